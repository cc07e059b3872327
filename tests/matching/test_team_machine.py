"""The binding of the team machine; its protocol is exhausted in the Rust crate."""

from __future__ import annotations

import random
from collections import deque

import pytest

from pandacore.errors import ConfigError
from pandacore.registry import Registry
from pandacore.team_machine import (
    TeamEffect,
    TeamEvent,
    TeamState,
    WorkerEffect,
    WorkerEvent,
    WorkerState,
)


def test_team_forms_swaps_a_crashed_member_and_completes() -> None:
    state = TeamState([1, 1], [(0, []), (1, [0])])
    state, effects = state.step(TeamEvent.Start())
    assert effects == [TeamEffect.SetTimer("assembly", 0), TeamEffect.Match([(0, 1), (1, 1)], [])]
    state, effects = state.step(TeamEvent.Found([(0, 10), (1, 20)]))
    assert TeamEffect.Reserve(10, 0) in effects
    assert TeamEffect.Reserve(20, 1) in effects
    state, _ = state.step(TeamEvent.Accepted(10))
    assert state.phase == "forming"
    state, effects = state.step(TeamEvent.Accepted(20))
    assert effects[0] == TeamEffect.Checkpoint()
    assert TeamEffect.Dispatch(0, 10) in effects
    assert (state.phase, state.members, state.assigned) == ("running", [[10], [20]], [10, None])
    view = state.view
    state, effects = state.step(TeamEvent.Suspected(10))
    assert state.view > view
    assert state.evicted == {10: "crash"}
    assert TeamEffect.Match([(0, 1)], [10, 20]) in effects
    state, _ = state.step(TeamEvent.Found([(0, 11)]))
    state, effects = state.step(TeamEvent.Accepted(11))
    assert TeamEffect.Dispatch(0, 11) in effects
    # The first one was only slow: its output saves a second answer.
    state, effects = state.step(TeamEvent.Result(0, 10))
    assert TeamEffect.Acknowledge(0, 10) in effects
    assert state.done == [10, None]
    state, effects = state.step(TeamEvent.Result(1, 20))
    assert state.phase == "completed"
    assert TeamEffect.Ended() in effects
    assert state.failure is None


def test_results_of_faulty_agents_are_refused_and_events_out_of_place_change_nothing() -> None:
    state = TeamState([1], [(0, [])])
    for event in (TeamEvent.Start(), TeamEvent.Found([(0, 1), (0, 2)]), TeamEvent.Accepted(1)):
        state, _ = state.step(event)
    state, _ = state.step(TeamEvent.Faulty(1))
    state, _ = state.step(TeamEvent.Result(0, 1))
    assert state.done == [None]
    assert state.evicted == {1: "faulty"}
    strays: list[TeamEvent] = [
        TeamEvent.Accepted(99),
        TeamEvent.Refused(99),
        TeamEvent.Alive(99),
        TeamEvent.Offered(7, 1),
        TeamEvent.Result(7, 1),
        TeamEvent.Expired("dispatch", 7),
        TeamEvent.Expired("solicit", 7),
    ]
    for stray in strays:
        after, _ = state.step(stray)
        assert after == state, stray


def test_successor_fences_the_old_owner_and_sends_open_work_again() -> None:
    state = TeamState([1], [(0, [])])
    for event in (TeamEvent.Start(), TeamEvent.Found([(0, 1)]), TeamEvent.Accepted(1)):
        state, _ = state.step(event)
    with pytest.raises(ConfigError, match="above the checkpoint's, 1"):
        state.resume(1)
    successor, effects = state.resume(2).step(TeamEvent.Start())
    assert TeamEffect.Dispatch(0, 1) in effects
    assert successor.epoch == 2
    deposed, effects = state.step(TeamEvent.Deposed())
    assert (deposed.phase, effects) == ("deposed", [TeamEffect.Checkpoint()])
    assert deposed.step(TeamEvent.Result(0, 1))[1] == []

    worker = WorkerState()
    worker, does = worker.step(WorkerEvent.Reserve(1, True))
    assert does == [WorkerEffect.Accept()]
    worker, does = worker.step(WorkerEvent.Dispatch(1, 0))
    assert does == [WorkerEffect.Run(0)]
    worker, does = worker.step(WorkerEvent.Finished(0))
    assert does == [WorkerEffect.Send(0)]
    worker, does = worker.step(WorkerEvent.Dispatch(2, 0))
    assert does == [WorkerEffect.Send(0)], "a finished subtask is sent again, not run again"
    worker, does = worker.step(WorkerEvent.Dispatch(1, 1))
    assert does == [], "the old owner is not obeyed"
    assert (worker.epoch, worker.held, worker.subtasks) == (2, True, {0: "finished"})


@pytest.mark.parametrize(
    ("wanted", "subtasks", "match"),
    [
        ([1], [(1, [])], "requirement 1; there are 1"),
        ([1], [(0, [0])], "comes after subtask 0"),
        ([1], [(0, []), (0, [5])], "comes after subtask 5"),
    ],
)
def test_impossible_plans_are_refused(
    wanted: list[int], subtasks: list[tuple[int, list[int]]], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        TeamState(wanted, subtasks)


def test_unknown_timer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"timer is .lunch.;"):
        TeamState([1], []).step(TeamEvent.Expired("lunch", 0))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_a_registry_and_lossy_messages_lead_to_an_end(seed: int) -> None:
    """Requests, answers and results are lost, repeated and reordered; agents crash; timers run out."""
    rng = random.Random(seed)
    registry = Registry(seed=seed)
    for n in range(12):
        registry.announce(bytes([n]) * 32, ["a" if n % 2 else "b"])
    down = set(rng.sample(range(12), 4))
    state = TeamState([2, 1], [(0, []), (0, []), (1, [0, 1])], solicitations=1, reservations=2)
    network: deque[TeamEvent] = deque([TeamEvent.Start()])
    timers: dict[tuple[str, int], TeamEvent] = {}
    names = ["a", "b"]
    for _ in range(2_000):
        if not network:
            if not timers:
                break
            network.append(timers.pop(rng.choice(sorted(timers))))
        if rng.random() < 0.3:
            network.rotate()
        before = state
        state, effects = state.step(network.popleft())
        assert state.view >= before.view
        members = [agent for pool in state.members for agent in pool]
        assert len(set(members)) == len(members)
        assert not set(members) & {a for a, why in state.evicted.items() if why == "faulty"}
        for effect in effects:
            answers: list[TeamEvent] = []
            match effect:
                case TeamEffect.Match(wanted=wanted, without=without):
                    team = registry.assemble(
                        {names[r]: n for r, n in wanted}, exclude=[registry.id_of(s) for s in without]
                    )
                    network.append(TeamEvent.Found([(names.index(m.capability), m.slot) for m in team]))
                case TeamEffect.Reserve(agent=agent) if agent not in down:
                    answers = [TeamEvent.Accepted(agent)]
                case TeamEffect.Dispatch(subtask=subtask, agent=agent):
                    answers = [TeamEvent.Result(subtask, agent)]
                    if agent in down or rng.random() < 0.1:
                        answers = [TeamEvent.Suspected(agent), TeamEvent.Alive(agent)]
                case TeamEffect.SetTimer(timer=timer, of=of) if timer != "assembly":
                    timers[timer, of] = TeamEvent.Expired(timer, of)
            for answer in answers:
                network.extend([answer] * rng.choice([0, 1, 1, 1, 2]))
        if state.phase in ("completed", "failed"):
            break
    assert state.phase == "completed" or state.failure in ("unmatched", "no_replacement"), state
