"""``pandacore experiment faults``: a member that talks about something else."""

from __future__ import annotations

from pandacore.experiments.survival import FAULTS_OPTIONS as OPTIONS
from pandacore.experiments.survival import faults as run

__all__ = ["OPTIONS", "run"]
