"""The star machine by hand: one event in, its actions out."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pandacore import errors
from pandacore.patterns import (
    AskJudgement,
    AskPlan,
    AskReplacement,
    Assigned,
    CancelRequested,
    Checkpoint,
    Contract,
    Event,
    Evict,
    Execute,
    Executed,
    ExecutionFailed,
    Finish,
    Judged,
    Limits,
    PeerDown,
    PeerUp,
    Planned,
    PlanningFailed,
    Reason,
    Received,
    Replacement,
    Send,
    StarHub,
    StarMember,
    Start,
    StopExecution,
    TimerFired,
    fold,
)
from pandacore.plan import Plan, Subtask

CALLS = Limits(retransmit_s=None)
DIAMOND = Plan(
    [
        Subtask("a", "c", "a"),
        Subtask("b", "c", "b", ["a"]),
        Subtask("c", "c", "c", ["a"]),
        Subtask("d", "c", "d", ["b", "c"]),
    ]
)
ONE = Plan([Subtask("a", "c", "a")])
LOST = errors.ConnectionLost("gone")


def hub(plan: Plan | None = DIAMOND, team: Any = None, **options: Any) -> StarHub:
    options.setdefault("limits", CALLS)
    return StarHub("r", "hub", plan, {"c": ["x", "y", "z"]} if team is None else team, **options)


def only(actions: list[Any], kind: type) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def feed(machine: StarHub, *events: Any) -> list[Any]:
    actions: list[Any] = []
    for event in events:
        actions = machine.handle(event)
    return actions


def test_ready_subtasks_go_out_together_to_different_members_after_the_checkpoint() -> None:
    machine = hub()
    first = machine.handle(Start())
    assert isinstance(first[0], Checkpoint)
    assert only(first, Execute) == [Execute("a", 1, {}, "x")]
    actions = machine.handle(Executed("a", 1, "A"))
    assert isinstance(actions[0], Checkpoint)
    assert only(actions, Execute) == [Execute("b", 1, {"a": "A"}, "x"), Execute("c", 1, {"a": "A"}, "y")]
    feed(machine, Executed("c", 1, "C"))
    assert only(feed(machine, Executed("b", 1, "B")), Execute) == [Execute("d", 1, {"b": "B", "c": "C"}, "x")]
    assert only(feed(machine, Executed("d", 1, "D")), Finish) == [Finish("D")]
    assert machine.outputs == {"a": "A", "b": "B", "c": "C", "d": "D"}
    assert machine.handle(Executed("d", 1, "other")) == []


def test_the_first_of_redundant_outputs_counts_and_the_rest_are_stopped() -> None:
    machine = hub(ONE, redundancy={"c": 3})
    assert [e.agent for e in only(machine.handle(Start()), Execute)] == ["x", "y", "z"]
    actions = machine.handle(Executed("a", 2, "from y"))
    assert only(actions, StopExecution) == [StopExecution("a", 1, "x"), StopExecution("a", 3, "z")]
    assert only(actions, Finish) == [Finish("from y")]


def test_the_driver_chooses_where_binding_is_late_or_the_team_is_its_own() -> None:
    late = only(hub(ONE, late_binding=True).handle(Start()), Execute)
    assert late == [Execute("a", 1, {}, None, ("x", "y", "z"))]
    assert only(hub(ONE, {}).handle(Start()), Execute) == [Execute("a", 1, {}, None, ())]
    machine = hub(ONE, late_binding=True, idempotent=True)
    feed(machine, Start(), Assigned("a", 1, "y"))
    assert only(machine.handle(PeerDown("y")), Execute) == [Execute("a", 2, {}, None, ("x", "z"))]


def test_a_lost_member_is_swapped_and_its_late_output_is_still_welcome() -> None:
    machine = hub(ONE, idempotent=True)
    machine.handle(Start())
    actions = machine.handle(PeerDown("x"))
    assert only(actions, Evict) == [Evict("x", Reason.CRASH)]
    assert only(actions, Execute) == [Execute("a", 2, {}, "y")]
    actions = machine.handle(Executed("a", 1, "late"))
    assert only(actions, StopExecution) == [StopExecution("a", 2, "y")]
    assert only(actions, Finish) == [Finish("late")]


def test_the_output_of_a_faulty_member_never_counts() -> None:
    machine = hub(ONE)
    machine.handle(Start())
    actions = machine.handle(Judged("a", 1, ok=False, reason="unrelated"))
    assert only(actions, Evict) == [Evict("x", Reason.FAULTY)]
    assert only(actions, StopExecution) == [StopExecution("a", 1, "x")]
    assert only(actions, Execute) == [Execute("a", 2, {}, "y")]
    assert only(machine.handle(Executed("a", 1, "bad")), Finish) == []
    assert only(machine.handle(Executed("a", 2, "good")), Finish) == [Finish("good")]


def test_fc_56_an_unknown_outcome_ends_the_run_unless_the_task_is_idempotent() -> None:
    unknown = errors.UnknownOutcome("cut")
    machine = hub(ONE)
    machine.handle(Start())
    (finish,) = only(machine.handle(ExecutionFailed("a", 1, unknown, executed=True)), Finish)
    assert str(finish.failed["a"]) == "cut"
    assert isinstance(finish.failed["a"], errors.UnknownOutcome)
    machine = hub(ONE, idempotent=True)
    machine.handle(Start())
    assert only(machine.handle(ExecutionFailed("a", 1, unknown, executed=True)), Execute) == [
        Execute("a", 2, {}, "y")
    ]


def test_fc_56_over_messages_a_lost_member_may_have_done_its_work() -> None:
    machine = hub(ONE, limits=Limits())
    machine.handle(Start())
    (finish,) = only(machine.handle(PeerDown("x")), Finish)
    assert isinstance(finish.failed["a"], errors.UnknownOutcome)


def test_no_replacement_is_typed_and_keeps_what_is_done() -> None:
    machine = hub(
        DIAMOND, {"c": ["x"]}, idempotent=True, limits=Limits(retransmit_s=None, replans=0, rounds=2)
    )
    feed(machine, Start(), Executed("a", 1, "A"))
    actions = machine.handle(PeerDown("x"))
    assert only(actions, AskReplacement) == [AskReplacement("c", ("x",))]
    feed(machine, Replacement("c", None), TimerFired("seek:c"))
    (finish,) = only(machine.handle(Replacement("c", None)), Finish)
    assert isinstance(finish.failed["b"], errors.NoReplacement)
    assert finish.failed["b"].missing == {"c": 1}
    assert machine.outputs == {"a": "A"}


def test_a_crashed_member_that_is_back_is_taken_again_but_a_faulty_one_never() -> None:
    machine = hub(ONE, {"c": ["x"]}, idempotent=True)
    feed(machine, Start(), PeerDown("x"), PeerUp("x"))
    assert only(machine.handle(Replacement("c", None)), Execute) == [Execute("a", 2, {}, "x")]
    machine = hub(ONE, {"c": ["x"]}, limits=Limits(retransmit_s=None, replans=0, rounds=1))
    feed(machine, Start(), Judged("a", 1, ok=False, reason="bad"), PeerUp("x"))
    (finish,) = only(machine.handle(Replacement("c", "x")), Finish)
    assert isinstance(finish.failed["a"], errors.NoReplacement)


def test_a_replan_keeps_what_is_done_or_running_and_stops_the_rest() -> None:
    machine = hub(idempotent=True, limits=Limits(retransmit_s=None, attempts=1))
    feed(machine, Start(), Executed("a", 1, "A"))
    (ask,) = only(machine.handle(ExecutionFailed("b", 1, errors.AgentFailed("no"), executed=True)), AskPlan)
    assert ask.context["outputs"] == {"a": "A"}
    assert ask.context["errors"]["b"]["kind"] == "AgentFailed"
    new = Plan(
        [
            Subtask("first", "c", "a"),  # the finished one by another name
            Subtask("other", "c", "c", ["first"]),  # the running one
            Subtask("e", "c", "e", ["first", "other"]),
        ]
    )
    actions = machine.handle(Planned(new, ask.request))
    assert only(actions, Execute) == []
    assert only(actions, StopExecution) == []
    assert machine.outputs == {"first": "A"}
    assert only(machine.handle(Executed("c", 1, "C")), Execute) == [
        Execute("e", 1, {"first": "A", "other": "C"}, "y")
    ] or machine.outputs == {"first": "A", "other": "C"}
    assert only(machine.handle(Executed("e", 1, "E")), Finish) == [Finish("E")]


def test_work_that_the_new_plan_does_not_need_is_stopped() -> None:
    machine = hub(idempotent=True, limits=Limits(retransmit_s=None, attempts=1))
    feed(machine, Start(), Executed("a", 1, "A"))
    (ask,) = only(machine.handle(ExecutionFailed("b", 1, errors.AgentFailed("no"), executed=True)), AskPlan)
    actions = machine.handle(Planned(Plan([Subtask("a", "c", "a")]), ask.request))
    assert only(actions, StopExecution) == [StopExecution("c", 1, "y")]
    assert only(actions, Finish) == [Finish("A")]


def test_fc_69_the_same_plan_again_is_a_loop_with_its_cycle() -> None:
    machine = hub(ONE, idempotent=True, limits=Limits(retransmit_s=None, attempts=1))
    machine.handle(Start())
    failed = ExecutionFailed("a", 1, errors.AgentFailed("no"), executed=True)
    (ask,) = only(machine.handle(failed), AskPlan)
    (finish,) = only(machine.handle(Planned(ONE, ask.request)), Finish)
    loop = finish.failed[""]
    assert isinstance(loop, errors.LoopDetected)
    assert len(loop.cycle) == 2
    assert loop.cycle[0] == loop.cycle[1]
    assert isinstance(finish.failed["a"], errors.AgentFailed)


def test_fc_68_the_replan_cap_is_named_and_the_first_cause_kept() -> None:
    machine = hub(ONE, idempotent=True, limits=Limits(retransmit_s=None, attempts=1, replans=2))
    actions = machine.handle(Start())
    for turn in range(2):
        (execute,) = only(actions, Execute)
        error = errors.AgentFailed(f"no {turn}")
        (ask,) = only(
            machine.handle(ExecutionFailed(execute.subtask_id, execute.attempt, error, executed=True)),
            AskPlan,
        )
        actions = machine.handle(Planned(Plan([Subtask("a", "c", f"another way {turn}")]), ask.request))
    (execute,) = only(actions, Execute)
    error = errors.AgentFailed("no 2")
    (finish,) = only(
        machine.handle(ExecutionFailed(execute.subtask_id, execute.attempt, error, executed=True)), Finish
    )
    cap = finish.failed[""]
    assert isinstance(cap, errors.BudgetExceeded)
    assert (cap.kind, cap.limit, cap.used) == ("replans", 2, 2)
    assert "replans" in str(cap)
    assert str(finish.failed["a"]) == "no 2"


def test_where_nobody_plans_the_cause_ends_the_run() -> None:
    machine = hub(ONE, limits=Limits(retransmit_s=None, attempts=1))
    machine.handle(Start())
    (ask,) = only(machine.handle(ExecutionFailed("a", 1, LOST, executed=False)), AskPlan) or [None]
    if ask is None:  # one swap first
        (ask,) = only(
            machine.handle(ExecutionFailed("a", 2, errors.AgentFailed("x"), executed=True)), AskPlan
        )
    (finish,) = only(machine.handle(PlanningFailed(errors.StateError("no planner"), ask.request)), Finish)
    assert set(finish.failed) == {"a"}


def test_the_step_cap_ends_the_run_with_what_is_done() -> None:
    machine = hub(limits=Limits(retransmit_s=None, steps=2))
    machine.handle(Start())
    (finish,) = only(machine.handle(Executed("a", 1, "A")), Finish)
    cap = finish.failed["c"]
    assert isinstance(cap, errors.BudgetExceeded)
    assert (cap.kind, cap.limit) == ("steps", 2)
    assert machine.outputs == {"a": "A"}


def test_delegation_drift_is_sent_back_once_then_swapped() -> None:
    contract = Contract("find it", {"type": "string"})
    machine = hub(ONE, contracts={"a": contract})
    (execute,) = only(machine.handle(Start()), Execute)
    assert execute.contract == contract
    (ask,) = only(machine.handle(Executed("a", 1, 5)), AskJudgement)
    assert ask == AskJudgement("a", 1, 5, contract)
    (again,) = only(machine.handle(Judged("a", 1, ok=False, reason="no string")), Execute)
    assert (again.agent, again.attempt) == ("x", 2)
    assert again.inputs["_revise"] == {"reason": "no string", "previous": 5}
    machine.handle(Executed("a", 2, 6))
    actions = machine.handle(Judged("a", 2, ok=False, reason="no string"))
    assert only(actions, Evict) == [Evict("x", Reason.FAULTY)]
    (swapped,) = only(actions, Execute)
    assert (swapped.agent, swapped.attempt) == ("y", 3)
    assert "_revise" not in swapped.inputs
    machine.handle(Executed("a", 3, "it"))
    assert only(machine.handle(Judged("a", 3, ok=True)), Finish) == [Finish("it")]


def test_a_transcript_instead_of_a_summary_is_drift() -> None:
    machine = hub(ONE, contracts={"a": Contract("find it", max_bytes=100)})
    machine.handle(Start())
    (again,) = only(machine.handle(Executed("a", 1, "x" * 200)), Execute)
    assert "202 bytes" in again.inputs["_revise"]["reason"]


def test_fc_69_the_same_rejected_output_three_times_is_a_loop() -> None:
    limits = Limits(retransmit_s=None, replans=0)
    machine = hub(ONE, contracts={"a": Contract("find it")}, limits=limits)
    machine.handle(Start())
    finish: list[Any] = []
    for attempt in (1, 2, 3):
        machine.handle(Executed("a", attempt, {"b": 1, "a": 2} if attempt % 2 else {"a": 2, "b": 1}))
        finish = only(machine.handle(Judged("a", attempt, ok=False, reason="wrong")), Finish)
    loop = finish[0].failed["a"]
    assert isinstance(loop, errors.LoopDetected)
    assert loop.cycle == ("a by x", "a by x", "a by y")


def test_fc_26_the_first_terminal_state_stands() -> None:
    terminal: dict[str, Event] = {
        "complete": Executed("a", 1, "A"),
        "fail": ExecutionFailed("a", 1, errors.BudgetExceeded("tokens"), executed=True),
        "cancel": CancelRequested(),
    }
    for first in terminal.values():
        for second in terminal.values():
            machine = hub(ONE)
            machine.handle(Start())
            assert len(only(machine.handle(first), Finish)) == 1
            assert only(machine.handle(second), Finish) == []


def test_cancellation_stops_everything_in_flight() -> None:
    machine = hub()
    feed(machine, Start(), Executed("a", 1, "A"))
    actions = machine.handle(CancelRequested())
    assert only(actions, StopExecution) == [StopExecution("b", 1, "x"), StopExecution("c", 1, "y")]
    (finish,) = only(actions, Finish)
    assert isinstance(finish.failed[""], errors.Cancelled)


def test_fc_39_a_restart_dispatches_nothing_that_is_done_and_repeats_attempts_by_number() -> None:
    machine = hub(idempotent=True)
    stored: dict[str, Any] | None = None
    for event in (Start(), Executed("a", 1, "A"), Executed("b", 1, "B")):
        for checkpoint in only(machine.handle(event), Checkpoint):
            stored = fold(stored, Checkpoint(json.loads(json.dumps(checkpoint.state)), checkpoint.full))
    assert stored == machine.snapshot()
    resumed = hub()
    resumed.restore(stored or {})
    assert only(resumed.handle(Start()), Execute) == [Execute("c", 1, {"a": "A"}, "y")]
    resumed.handle(Executed("c", 1, "C"))
    assert resumed.outputs == {"a": "A", "b": "B", "c": "C"}


def test_the_plan_is_asked_for_where_none_is_given() -> None:
    machine = hub(None)
    (ask,) = only(machine.handle(Start()), AskPlan)
    assert ask.context["reason"] == "plan"
    assert only(machine.handle(Planned(ONE, ask.request)), Execute) == [Execute("a", 1, {}, "x")]
    assert machine.handle(Planned(DIAMOND, ask.request)) == []


def test_a_malformed_message_is_noted_and_changes_nothing() -> None:
    machine = hub(limits=Limits())
    machine.handle(Start())
    before = machine.snapshot()
    for kind in ("RESULT", "CHECKPOINT_ACK", "FENCED", "CLAIM", "nonsense", None):
        machine.handle(Received("x", {"kind": kind, "run": "r"}))
    assert machine.handle(Received("x", {"kind": "RESULT", "run": "another"})) == []
    assert machine.snapshot() == before


def test_a_member_answers_a_repeated_dispatch_from_its_cache() -> None:
    member = StarMember("r", "m")
    message = {
        "kind": "DISPATCH",
        "run": "r",
        "epoch": 1,
        "subtask": "a",
        "attempt": 1,
        "inputs": {},
        "again": False,
        "contract": None,
    }
    assert only(member.handle(Received("hub", message)), Execute) == [Execute("a", 1, {}, "m")]
    assert [s.message["kind"] for s in only(member.handle(Received("hub", message)), Send)] == ["WORKING"]
    (result,) = only(member.handle(Executed("a", 1, "A")), Send)
    repeated = member.handle(Received("hub", message))
    assert only(repeated, Execute) == []
    assert only(repeated, Send) == [result]
    assert [s.message["kind"] for s in only(member.handle(TimerFired("result")), Send)] == ["RESULT"]
    member.handle(Received("hub", {"kind": "RESULT_ACK", "run": "r", "subtask": "a", "attempt": 1}))
    assert only(member.handle(TimerFired("result")), Send) == []


def test_a_member_obeys_no_lower_epoch() -> None:
    member = StarMember("r", "m")
    member.handle(Received("new", {"kind": "EPOCH", "run": "r", "epoch": 3}))
    message = {"kind": "DISPATCH", "run": "r", "epoch": 2, "subtask": "a", "attempt": 1, "inputs": {}}
    actions = member.handle(Received("old", {**message, "again": False, "contract": None}))
    assert only(actions, Execute) == []
    assert [(s.to, s.message["kind"], s.message["epoch"]) for s in only(actions, Send)] == [
        ("old", "FENCED", 3)
    ]


def test_one_stand_in_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="majority"):
        hub(stand_ins=["x"])


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["chain", "fan"])
def test_fc_47_large_plans_cost_time_in_proportion(shape: str) -> None:
    count = 100_000 if shape == "chain" else 10_000
    subtasks = [Subtask("s0", "c", "go")]
    subtasks += [
        Subtask(f"s{n}", "c", "go", [f"s{n - 1}" if shape == "chain" else "s0"]) for n in range(1, count)
    ]
    machine = hub(Plan(subtasks), limits=Limits(retransmit_s=None, steps=1_000_000))
    began = time.process_time()
    waiting = only(machine.handle(Start()), Execute)
    ended: list[Any] = []
    steps = 0
    while waiting:
        execute = waiting.pop()
        actions = machine.handle(Executed(execute.subtask_id, execute.attempt, 1))
        waiting += only(actions, Execute)
        ended += only(actions, Finish)
        steps += 1
    assert steps == count
    assert len(ended) == 1
    assert time.process_time() - began < 40
