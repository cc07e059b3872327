"""What every pattern is: ``handle(input) -> actions``, with no clock, socket or randomness.

The driver (`pandacore.team.driver`) carries the actions out over gRPC and feeds what happened back in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pandacore.errors import PandacoreError

if TYPE_CHECKING:
    from pandacore.plan import Plan

__all__ = [
    "Action",
    "AttemptEnded",
    "AttemptFailed",
    "Begin",
    "Dispatch",
    "Finish",
    "Input",
    "Pattern",
    "StopAttempt",
]


@dataclass(frozen=True, slots=True)
class Begin:
    """The team is formed; start."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt at a subtask gave an output."""

    subtask_id: str
    attempt: int
    output: Any


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt gave none. ``executed`` False: the agent's code never began."""

    subtask_id: str
    attempt: int
    error: PandacoreError
    executed: bool


Input: TypeAlias = Begin | AttemptEnded | AttemptFailed
"""What a pattern is told."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Have an agent with the subtask's capability work on it, with these outputs of its dependencies."""

    subtask_id: str
    attempt: int
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Cancel a running attempt: its output is no longer wanted."""

    subtask_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over. ``failed`` maps subtask ids to the error that ended them; empty means completed."""

    value: Any
    failed: Mapping[str, PandacoreError] = field(default_factory=dict)


Action: TypeAlias = Dispatch | StopAttempt | Finish
"""What a pattern asks for."""


class Pattern(ABC):
    """Base of all patterns. Subclasses keep the state of one run.

    Parameters
    ----------
    plan : Plan
        What is to be done.
    inputs : mapping
        JSON values that the task brought; every first subtask gets them.
    idempotent : bool
        True: an attempt with an unknown outcome may be repeated.
    max_attempts : int
        Attempts at one subtask, the first included.
    """

    def __init__(
        self, plan: Plan, *, inputs: Mapping[str, Any], idempotent: bool = False, max_attempts: int = 3
    ) -> None:
        self.plan = plan
        self.inputs = inputs
        self.idempotent = idempotent
        self.max_attempts = max_attempts
        self.outputs: dict[str, Any] = {}
        self.failed: dict[str, PandacoreError] = {}

    @abstractmethod
    def handle(self, event: Input) -> list[Action]:
        """Take one event in and say what to do. After a :class:`Finish` nothing more is asked."""
