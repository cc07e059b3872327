"""The star machine, driven by hand and at random; no network."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandacore import errors
from pandacore.patterns import AttemptEnded, AttemptFailed, Begin, Dispatch, Finish, Star, StopAttempt
from pandacore.plan import Plan, Subtask

DIAMOND = Plan(
    [
        Subtask("a", "c", "a"),
        Subtask("b", "c", "b", ["a"]),
        Subtask("c", "c", "c", ["a"]),
        Subtask("d", "c", "d", ["b", "c"]),
    ]
)
LOST = errors.ConnectionLost("gone")


def star(plan: Plan = DIAMOND, **options: Any) -> Star:
    return Star(plan, inputs={"given": 1}, **options)


def test_dependency_free_subtasks_go_out_together_with_their_inputs() -> None:
    machine = star()
    assert machine.handle(Begin()) == [Dispatch("a", 1, {"given": 1})]
    assert machine.handle(AttemptEnded("a", 1, "A")) == [
        Dispatch("b", 1, {"a": "A"}),
        Dispatch("c", 1, {"a": "A"}),
    ]
    assert machine.handle(AttemptEnded("c", 1, "C")) == []
    assert machine.handle(AttemptEnded("b", 1, "B")) == [Dispatch("d", 1, {"b": "B", "c": "C"})]
    assert machine.handle(AttemptEnded("d", 1, "D")) == [Finish("D")]


def test_several_sinks_give_a_dict() -> None:
    machine = star(Plan([Subtask("a", "c", "a"), Subtask("b", "c", "b")]))
    machine.handle(Begin())
    machine.handle(AttemptEnded("b", 1, 2))
    assert machine.handle(AttemptEnded("a", 1, None)) == [Finish({"a": None, "b": 2})]


def test_an_attempt_that_never_began_is_repeated_up_to_the_cap() -> None:
    machine = star(max_attempts=2)
    machine.handle(Begin())
    assert machine.handle(AttemptFailed("a", 1, LOST, False)) == [Dispatch("a", 2, {"given": 1})]
    assert machine.handle(AttemptFailed("a", 2, LOST, False)) == [Finish(None, {"a": LOST})]


def test_fc_56_an_unknown_outcome_is_not_repeated() -> None:
    unknown = errors.UnknownOutcome("cut")
    machine = star()
    machine.handle(Begin())
    assert machine.handle(AttemptFailed("a", 1, unknown, True)) == [Finish(None, {"a": unknown})]


def test_fc_56_unless_the_task_is_idempotent() -> None:
    machine = star(idempotent=True)
    machine.handle(Begin())
    assert machine.handle(AttemptFailed("a", 1, errors.UnknownOutcome("cut"), True)) == [
        Dispatch("a", 2, {"given": 1})
    ]


def test_a_failure_stops_what_is_still_in_flight() -> None:
    machine = star()
    machine.handle(Begin())
    machine.handle(AttemptEnded("a", 1, "A"))
    failed = errors.AgentFailed("bad")
    assert machine.handle(AttemptFailed("b", 1, failed, True)) == [
        StopAttempt("c", 1),
        Finish(None, {"b": failed}),
    ]
    assert machine.outputs == {"a": "A"}
    assert machine.handle(AttemptEnded("c", 1, "late")) == []


@pytest.mark.parametrize(
    "error",
    [errors.BudgetExceeded("x"), errors.PayloadTooLarge("x"), errors.NoTeam("x"), errors.Cancelled("x")],
)
def test_what_another_agent_would_meet_too_is_not_repeated(error: errors.PandacoreError) -> None:
    machine = star(idempotent=True)
    machine.handle(Begin())
    assert machine.handle(AttemptFailed("a", 1, error, False)) == [Finish(None, {"a": error})]


def test_late_and_repeated_news_change_nothing() -> None:
    machine = star()
    machine.handle(Begin())
    machine.handle(AttemptFailed("a", 1, LOST, False))
    assert machine.handle(AttemptEnded("a", 1, "stale")) == []
    machine.handle(AttemptEnded("a", 2, "A"))
    assert machine.handle(AttemptEnded("a", 2, "again")) == []
    assert machine.outputs == {"a": "A"}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 10))
    return Plan(
        [
            Subtask(
                f"s{i}",
                "c",
                "x",
                sorted(draw(st.sets(st.sampled_from([f"s{j}" for j in range(i)])))) if i else (),
            )
            for i in range(count)
        ]
    )


@given(plans(), st.randoms(use_true_random=False), st.booleans())
def test_every_schedule_ends_once_and_respects_the_plan(plan: Plan, random: Any, idempotent: bool) -> None:
    machine = star(plan, idempotent=idempotent)
    flying = {(a.subtask_id, a.attempt) for a in machine.handle(Begin()) if isinstance(a, Dispatch)}
    finished: Finish | None = None
    completed: dict[str, int] = {}
    for _ in range(1_000):
        if not flying:
            break
        subtask_id, attempt = random.choice(sorted(flying))
        flying.remove((subtask_id, attempt))
        if random.random() < 0.7:
            completed[subtask_id] = completed.get(subtask_id, 0) + 1
            event: Any = AttemptEnded(subtask_id, attempt, subtask_id.upper())
        else:
            event = AttemptFailed(subtask_id, attempt, LOST, random.random() < 0.3)
        for action in machine.handle(event):
            assert finished is None, "nothing follows the end"
            match action:
                case Dispatch():
                    assert set(plan[action.subtask_id].depends_on) <= machine.outputs.keys()
                    assert action.subtask_id not in machine.outputs
                    assert action.subtask_id not in {s for s, _ in flying}
                    flying.add((action.subtask_id, action.attempt))
                case StopAttempt():
                    flying.remove((action.subtask_id, action.attempt))
                case Finish():
                    finished = action
    assert finished is not None
    assert not flying
    assert all(count == 1 for count in completed.values())
    assert bool(finished.failed) == (len(machine.outputs) < len(plan))
