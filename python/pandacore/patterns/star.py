"""Star: a hub dispatches every dependency-free subtask in parallel and collects (PANDA, appendix B.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pandacore import errors
from pandacore.patterns.base import (
    Action,
    AttemptEnded,
    AttemptFailed,
    Begin,
    Dispatch,
    Finish,
    Pattern,
    StopAttempt,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandacore.patterns.base import Input
    from pandacore.plan import Plan

__all__ = ["Star"]


class Star(Pattern):
    """The hub's state machine.

    Invariants: an output is accepted once and never changes; a subtask has at most one attempt in flight;
    each input costs O(dependents of the subtask).

    A failed attempt is repeated, up to the cap, if the agent's code never began, if the agent is at fault
    rather than the task, or if the task is idempotent; an unknown outcome of any other task ends the run.
    """

    def __init__(
        self, plan: Plan, *, inputs: Mapping[str, Any], idempotent: bool = False, max_attempts: int = 3
    ) -> None:
        super().__init__(plan, inputs=inputs, idempotent=idempotent, max_attempts=max_attempts)
        self._waiting = {s.id: len(s.depends_on) for s in plan.subtasks}
        self._in_flight: dict[str, int] = {}
        self._finished = False

    def handle(self, event: Input) -> list[Action]:
        """See :meth:`Pattern.handle`. Late or repeated news of an attempt is ignored."""
        if self._finished:
            return []
        match event:
            case Begin():
                return [self._dispatch(s.id, 1) for s in self.plan.subtasks if not s.depends_on]
            case AttemptEnded(subtask_id, attempt, output):
                if self._in_flight.get(subtask_id) != attempt:
                    return []
                return self._accept(subtask_id, output)
            case AttemptFailed(subtask_id, attempt, error, executed):
                if self._in_flight.get(subtask_id) != attempt:
                    return []
                return self._failed_attempt(subtask_id, attempt, error, executed)

    def _accept(self, subtask_id: str, output: Any) -> list[Action]:
        del self._in_flight[subtask_id]
        self.outputs[subtask_id] = output
        if len(self.outputs) == len(self.plan):
            return self._finish()
        actions: list[Action] = []
        for dependent in self.plan.dependents(subtask_id):
            self._waiting[dependent] -= 1
            if self._waiting[dependent] == 0:
                actions.append(self._dispatch(dependent, 1))
        return actions

    def _failed_attempt(
        self, subtask_id: str, attempt: int, error: errors.PandacoreError, executed: bool
    ) -> list[Action]:
        if attempt < self.max_attempts and self._may_repeat(error, executed):
            return [self._dispatch(subtask_id, attempt + 1)]
        del self._in_flight[subtask_id]
        self.failed[subtask_id] = error
        # Nothing downstream can run, and the answer needs all of it: stop what is still in flight.
        stops: list[Action] = [StopAttempt(other, number) for other, number in self._in_flight.items()]
        return stops + self._finish()

    def _may_repeat(self, error: errors.PandacoreError, executed: bool) -> bool:
        match error:
            case errors.BudgetExceeded() | errors.PayloadTooLarge() | errors.Cancelled() | errors.NoTeam():
                return False  # another agent would meet the same wall
            case errors.UnknownOutcome():
                return self.idempotent
            case _:
                # A typed failure after execution is an answer: the agent says that it did not succeed. It is
                # repeated only where repeating is harmless.
                return not executed or self.idempotent

    def _dispatch(self, subtask_id: str, attempt: int) -> Dispatch:
        self._in_flight[subtask_id] = attempt
        needed = self.plan[subtask_id].depends_on
        inputs = {d: self.outputs[d] for d in needed} if needed else dict(self.inputs)
        return Dispatch(subtask_id, attempt, inputs)

    def _finish(self) -> list[Action]:
        self._finished = True
        if self.failed:
            return [Finish(None, dict(self.failed))]
        sinks = self.plan.sinks
        value = self.outputs[sinks[0]] if len(sinks) == 1 else {s: self.outputs[s] for s in sinks}
        return [Finish(value)]
