"""Chain: by hand, and under faults in the simulator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pandacore import errors
from pandacore.patterns import (
    AskJudgement,
    AskPlan,
    AskReplacement,
    CancelRequested,
    ChainMember,
    ChainRoot,
    Contract,
    Evict,
    Execute,
    Executed,
    ExecutionFailed,
    Finish,
    Judged,
    Limits,
    PeerDown,
    Planned,
    PlanningFailed,
    Reason,
    Received,
    Replacement,
    Send,
    Start,
    StopExecution,
    TimerFired,
)
from pandacore.plan import Plan, Subtask
from pandacore.testing import SimNetwork, explore

MEMBERS = ["m1", "m2", "m3", "m4", "m5", "m6"]
TWO = Plan([Subtask("a", "c", "a"), Subtask("b", "d", "b", ["a"])])
WORK_A = {"capability": "c", "instruction": "a"}
WORK_B = {"capability": "d", "instruction": "b"}
TEAM = {"c": ["x", "y"], "d": ["z"]}


def only(actions: list[Any], kind: type) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def kinds(actions: list[Any]) -> list[tuple[str, str]]:
    return [(s.to, s.message["kind"]) for s in only(actions, Send)]


def root(plan: Plan | None = TWO, **options: Any) -> ChainRoot:
    options.setdefault("idempotent", True)
    return ChainRoot("r", "root", plan, options.pop("team", TEAM), **options)


def handed(machine: ChainRoot | ChainMember, actions: list[Any]) -> dict[str, Any]:
    (send,) = [s for s in only(actions, Send) if s.message["kind"] == "HANDOFF"]
    message: dict[str, Any] = send.message
    return message


def test_a_chain_hands_on_accepts_and_finishes_once() -> None:
    entry, x, z = root(), ChainMember("r", "x"), ChainMember("r", "z")
    first = handed(entry, entry.handle(Start()))
    actions = x.handle(Received("root", first))
    assert kinds(actions) == [("root", "ACCEPT")]
    assert only(actions, Execute) == [Execute("a", 1, {}, "x", work=WORK_A)]
    assert kinds(x.handle(Received("root", first))) == [("root", "ACCEPT")], "a duplicate is accepted again"
    second = handed(x, x.handle(Executed("a", 1, "A")))
    actions = z.handle(Received("x", second))
    assert kinds(actions) == [("x", "ACCEPT"), ("root", "PROGRESS")]
    assert only(actions, Execute) == [Execute("b", 1, {"a": "A"}, "z", work=WORK_B)]
    (final,) = only(z.handle(Executed("b", 1, "B")), Send)
    assert (final.to, final.message["kind"]) == ("root", "FINAL")
    actions = entry.handle(Received("z", final.message))
    assert only(actions, Finish) == [Finish("B")]
    assert entry.outputs == {"a": "A", "b": "B"}
    assert {to for to, kind in kinds(actions) if kind == "DONE"} == {"x", "y", "z"}
    assert only(entry.handle(Received("z", final.message)), Finish) == []
    assert only(x.handle(Received("root", {"kind": "DONE", "run": "r"})), Finish) == [Finish(None)]


def test_what_ended_before_a_restart_stays_ended_although_its_members_are_gone() -> None:
    entry, x, z = root(idempotent=False), ChainMember("r", "x"), ChainMember("r", "z")
    first = handed(entry, entry.handle(Start()))
    x.handle(Received("root", first))
    z.handle(Received("x", handed(x, x.handle(Executed("a", 1, "A")))))
    (final,) = only(z.handle(Executed("b", 1, "B")), Send)
    entry.handle(Received("z", final.message))
    again = root(idempotent=False)
    again.restore(entry.snapshot())
    assert again.handle(PeerDown("x")) == []
    assert only(again.handle(Start()), Finish) == [Finish("B")]
    assert again.outputs == {"a": "A", "b": "B"}


def test_an_older_generation_is_stale_and_a_newer_one_stops_the_run() -> None:
    x = ChainMember("r", "x")
    entry = root()
    first = handed(entry, entry.handle(Start()))
    x.handle(Received("root", {**first, "g": [3, 1, "root"]}))
    assert kinds(x.handle(Received("root", {**first, "g": [2, 1, "root"]}))) == [("root", "STALE")]
    actions = x.handle(Received("root", {**first, "g": [4, 1, "root"]}))
    assert only(actions, StopExecution) == [StopExecution("a", 1, "x")]
    assert only(actions, Execute) == [Execute("a", 2, {}, "x", epoch=4, work=WORK_A)]


def test_a_lost_successor_is_replaced_from_the_retained_payload() -> None:
    entry = root()
    entry.handle(Start())
    actions = entry.handle(PeerDown("x"))
    assert only(actions, Evict) == [Evict("x", Reason.CRASH)]
    again = handed(entry, actions)
    assert again["g"] == [2, 1, "root"]


def test_fc_56_a_lost_successor_ends_a_run_that_is_not_idempotent() -> None:
    entry = root(idempotent=False)
    entry.handle(Start())
    (finish,) = only(entry.handle(PeerDown("x")), Finish)
    assert isinstance(finish.failed["a"], errors.UnknownOutcome)


def test_a_step_that_fails_goes_back_and_to_another_holder() -> None:
    entry, x = root(), ChainMember("r", "x")
    x.handle(Received("root", handed(entry, entry.handle(Start()))))
    (refusal,) = only(x.handle(ExecutionFailed("a", 1, errors.AgentFailed("no"), executed=True)), Send)
    assert refusal.message["kind"] == "REFUSE"
    actions = entry.handle(Received("x", refusal.message))
    assert kinds(actions) == [("x", "REFUSE_ACK"), ("y", "HANDOFF")]
    assert only(actions, Evict) == []


def test_drift_from_the_contract_is_sent_back_once_then_the_member_is_swapped_as_faulty() -> None:
    entry, x = root(contracts={"a": Contract("find it")}), ChainMember("r", "x")
    x.handle(Received("root", handed(entry, entry.handle(Start()))))
    assert len(only(x.handle(Executed("a", 1, "bad")), AskJudgement)) == 1
    (again,) = only(x.handle(Judged("a", 1, ok=False, reason="unrelated")), Execute)
    assert again.inputs["_revise"] == {"reason": "unrelated", "previous": "bad"}
    x.handle(Executed("a", 2, "worse"))
    (refusal,) = only(x.handle(Judged("a", 2, ok=False, reason="unrelated")), Send)
    actions = entry.handle(Received("x", refusal.message))
    assert only(actions, Evict) == [Evict("x", Reason.FAULTY)]
    assert ("y", "HANDOFF") in kinds(actions)


def test_no_holder_left_leads_to_a_replan_then_to_a_typed_failure() -> None:
    limits = Limits(rounds=1, replans=1)
    entry = root(team={"c": ["x"], "d": ["z"]}, limits=limits)
    entry.handle(Start())
    actions = entry.handle(PeerDown("x"))
    (ask,) = only(actions, AskReplacement)
    assert ask.exclude == ("x",)
    (plan,) = only(entry.handle(Replacement("c", None)), AskPlan)
    assert plan.context["errors"]["a"]["kind"] == "NoReplacement"
    (finish,) = only(entry.handle(PlanningFailed(errors.StateError("none"), plan.request)), Finish)
    assert isinstance(finish.failed["a"], errors.NoReplacement)


def test_fc_69_the_same_plan_again_is_a_loop() -> None:
    entry = root(team={"c": ["x"], "d": ["z"]}, limits=Limits(rounds=1))
    entry.handle(Start())
    entry.handle(PeerDown("x"))
    (plan,) = only(entry.handle(Replacement("c", None)), AskPlan)
    (finish,) = only(entry.handle(Planned(TWO, plan.request)), Finish)
    assert isinstance(finish.failed["a"], errors.LoopDetected)
    assert len(finish.failed["a"].cycle) == 2


def test_another_plan_keeps_the_outputs_that_still_count() -> None:
    entry = root(team={"c": ["x", "y"], "d": []}, limits=Limits(rounds=1))
    x = ChainMember("r", "x")
    x.handle(Received("root", handed(entry, entry.handle(Start()))))
    (ask,) = only(x.handle(Executed("a", 1, "A")), AskReplacement)
    (plan,) = only(x.handle(Replacement(ask.capability, None)), AskPlan)
    other = Plan([Subtask("first", "c", "a"), Subtask("second", "c", "b", ["first"])])
    actions = x.handle(Planned(other, plan.request))
    (execute,) = only(actions, Execute)
    assert (execute.subtask_id, execute.inputs) == ("second", {"first": "A"})


def test_cancellation_reaches_every_member() -> None:
    entry, x = root(), ChainMember("r", "x")
    x.handle(Received("root", handed(entry, entry.handle(Start()))))
    actions = entry.handle(CancelRequested())
    (finish,) = only(actions, Finish)
    assert isinstance(finish.failed[""], errors.Cancelled)
    done = next(s for s in only(actions, Send) if s.to == "x")
    assert only(x.handle(Received("root", done.message)), StopExecution) == [StopExecution("a", 1, "x")]


def test_a_payload_is_kept_until_done_or_a_long_silence_of_the_root() -> None:
    entry, x = root(), ChainMember("r", "x", limits=Limits())
    x.handle(Received("root", handed(entry, entry.handle(Start()))))
    x.handle(Executed("a", 1, "A"))
    x.handle(Received("z", {"kind": "ACCEPT", "run": "r", "g": [1, 1, "root"], "k": 1}))
    assert x.state["holds"], "handed on and accepted, and still kept"
    for _ in range(Limits().retransmits):
        assert kinds(x.handle(TimerFired("custody"))) == [("root", "QUERY")]
        assert x.state["holds"]
    assert only(x.handle(TimerFired("custody")), Finish) == [Finish(None)]


@pytest.mark.parametrize(
    ("crashes", "suspicions", "partitions", "least"), [(1, 0, 0, 1.0), (3, 0, 0, 0.99), (2, 2, 1, 0.99)]
)
def test_runs_under_faults_end_and_nearly_all_complete(
    chain_world: Any, crashes: int, suspicions: int, partitions: int, least: float
) -> None:
    world = chain_world()
    ends = {"completed": 0, "failed": 0}

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(
            MEMBERS, crashes=crashes, suspicions=suspicions, partitions=partitions, until_s=1.5, restart=0.5
        )

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        ends["failed" if report.finishes["root"].failed else "completed"] += 1

    counters = explore(build, check, seeds=range(250), loss=0.05, duplicate=0.1)
    assert ends["completed"] >= least * sum(ends.values()), ends
    assert counters["crash"] > 100
    assert counters["duplicate"] > 100


@pytest.mark.parametrize("victim", ["root", "m1", "m3", "m4"])
def test_a_crash_at_every_boundary_is_survived(chain_world: Any, victim: str) -> None:
    world = chain_world()
    crashes = 0
    for boundary in range(100):
        net = SimNetwork(seed=boundary)
        world.build(net)
        net.crash_at(victim, boundary, restart_after_s=1.0 if victim == "root" else None)
        report = net.run()
        world.check(net, report)
        assert not report.finishes["root"].failed, (boundary, report.finishes["root"].failed)
        if not report.faults:
            break
        crashes += 1
    assert 3 < crashes < 100


def test_a_live_payload_downstream_is_spliced_rather_than_made_again(chain_world: Any) -> None:
    """The middle holder dies after its successor has the payload: nothing is executed twice."""
    world = chain_world()
    spliced = 0
    for seed in range(60):
        net = SimNetwork(seed=seed, work_s=(0.3, 0.3))
        world.build(net)
        net.crash("m3", at_s=0.85)
        report = net.run()
        world.check(net, report)
        if report.noted("splice"):
            spliced += 1
            steps = [n["subtask"] for n in report.noted("step")]
            assert len(steps) == len(set(steps)) == 4
    assert spliced > 20


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    count=st.integers(1, 8),
    needs=st.lists(st.integers(0, 6), min_size=8, max_size=8),
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_any_plan_under_faults(
    chain_world: Any, count: int, needs: list[int], seed: int, loss: float
) -> None:
    subtasks = [
        Subtask(f"s{n}", "cde"[n % 3], "work", [f"s{needs[n] % n}", f"s{n - 1}"] if n else [])
        for n in range(count)
    ]
    world = chain_world(Plan(subtasks))

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(["root", *MEMBERS], crashes=2, suspicions=1, partitions=1, until_s=2.0, restart=0.7)

    explore(build, world.check, seeds=[seed], loss=loss, duplicate=0.1)
