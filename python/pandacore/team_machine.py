"""Forming a team and keeping it whole, as pure functions: ``step(event) -> (state, effects)``.

For orchestrators of your own. A :class:`TeamState` reads no clock and sends nothing: it says what to do, and
you tell it what happened, timers included. Messages may be lost, repeated, late and in any order; agents may
crash; suspicions may be wrong. The same code is exhausted by a model checker in the tests of the Rust crate.

Agents are numbers of the caller; the slots of a :class:`~pandacore.registry.Registry` serve.

>>> state = TeamState(wanted=[1], subtasks=[(0, [])])
>>> state, effects = state.step(TeamEvent.Start())
>>> [type(effect).__name__ for effect in effects]
['SetTimer', 'Match']
>>> state, effects = state.step(TeamEvent.Found([(0, 7), (0, 8)]))
>>> state, effects = state.step(TeamEvent.Accepted(7))
>>> state.phase, state.members, state.assigned
('running', [[7]], [7])
>>> state, effects = state.step(TeamEvent.Suspected(7))  # it crashed: somebody else is looked for
>>> [e.without for e in effects if isinstance(e, TeamEffect.Match)]
[[7]]
>>> state, effects = state.step(TeamEvent.Found([(0, 8)]))
>>> state, effects = state.step(TeamEvent.Accepted(8))
>>> state, effects = state.step(TeamEvent.Result(0, 8))
>>> state.phase
'completed'

Fencing: ``TeamEffect.Checkpoint`` comes first in a step's effects and is to be stored by compare-and-set on
``state.epoch``. If that fails, drop the step's other effects and feed ``TeamEvent.Deposed``. A successor goes
on from the last checkpoint with ``state.resume(epoch)``. The other side is :class:`WorkerState`: it obeys no
epoch below the highest it saw, and runs a subtask once however often it is sent.
"""

from __future__ import annotations

from pandacore._core import TeamEffect, TeamEvent, TeamState, WorkerEffect, WorkerEvent, WorkerState

__all__ = ["TeamEffect", "TeamEvent", "TeamState", "WorkerEffect", "WorkerEvent", "WorkerState"]
