"""Faults planted in the recovery code by tests, to show that the suite notices them; none in use.

``PANDACORE_MUTANT=name`` (several: separated by commas) plants them in this process and in those it starts;
it is read once, here. ``make mutants`` plants each in turn; ``scripts/mutants.py`` says what each one does.
"""

from __future__ import annotations

import logging
import os
from typing import Final

__all__ = ["PLANTED"]

PLANTED: Final = frozenset(filter(None, os.environ.get("PANDACORE_MUTANT", "").split(",")))
"""Names of the faults in force."""

if PLANTED:
    logging.getLogger(__name__).warning("faults are planted: %s", ", ".join(sorted(PLANTED)))
