"""``pandacore experiment crashes``: hosts killed with ``kill -9`` while their agents work."""

from __future__ import annotations

from pandacore.experiments.survival import CRASHES_OPTIONS as OPTIONS
from pandacore.experiments.survival import crashes as run

__all__ = ["OPTIONS", "run"]
