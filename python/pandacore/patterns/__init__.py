"""Orchestration patterns: machines without I/O that turn events into actions."""

from pandacore.patterns.base import (
    Action,
    AttemptEnded,
    AttemptFailed,
    Begin,
    Dispatch,
    Finish,
    Input,
    Pattern,
    StopAttempt,
)
from pandacore.patterns.star import Star

__all__ = [
    "PATTERNS",
    "Action",
    "AttemptEnded",
    "AttemptFailed",
    "Begin",
    "Dispatch",
    "Finish",
    "Input",
    "Pattern",
    "Star",
    "StopAttempt",
]

PATTERNS: dict[str, type[Pattern]] = {"star": Star}
"""Patterns by the name that ``Collective.run(pattern=…)`` takes."""
