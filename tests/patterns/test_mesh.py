"""Mesh: voting, adoption, debate by hand; everything under faults in the simulator."""

from __future__ import annotations

from itertools import permutations, product
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
    Contract,
    Evict,
    Execute,
    Executed,
    ExecutionFailed,
    Finish,
    Judged,
    Limits,
    MeshMember,
    MeshRoot,
    PeerDown,
    Planned,
    PlanningFailed,
    Reason,
    Received,
    Replacement,
    Send,
    Start,
    StopExecution,
    covering_subset,
    instant_runoff,
)
from pandacore.plan import Plan, Subtask
from pandacore.testing import SimNetwork, explore

MEMBERS = ["m1", "m2", "m3", "m4", "m5", "m6"]
TEAM = {"c": ["x", "y"], "d": ["z"]}
TWO = Plan([Subtask("a", "c", "a"), Subtask("b", "d", "b", ["a"])])
ONE = Plan([Subtask("a", "c", "a")])


def only(actions: list[Any], kind: type) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def sent(actions: list[Any], to: str, kind: str) -> list[dict[str, Any]]:
    return [s.message for s in only(actions, Send) if s.to == to and s.message["kind"] == kind]


def root(plan: Plan | None = TWO, **options: Any) -> MeshRoot:
    options.setdefault("idempotent", True)
    return MeshRoot("r", "root", plan, options.pop("team", TEAM), **options)


def member(entry: MeshRoot, name: str, actions: list[Any]) -> tuple[MeshMember, list[Any]]:
    """A member that has heard the root's word, and what it did then."""
    machine = MeshMember("r", name)
    (state,) = sent(actions, name, "STATE")
    return machine, machine.handle(Received("root", state))


def test_the_voters_cover_every_capability_and_all_nodes_agree_on_them() -> None:
    assert covering_subset({"a": ["p", "q"], "b": ["q"]}, least=1) == ["q"]
    assert covering_subset({"a": ["p"], "b": ["q"]}, least=3) == ["p", "q"]
    assert covering_subset({"a": ["p", "q", "s"], "b": ["q"]}, least=3) == ["q", "p", "s"]


def brute_force(ballots: dict[str, list[str]], candidates: list[str]) -> str:
    """Instant runoff as the definition says it, by sets and full sorts."""
    left = set(candidates)
    ranks = {c: sum(b.index(c) if c in b else len(candidates) for b in ballots.values()) for c in candidates}
    while len(left) > 1:
        tops = dict.fromkeys(left, 0)
        for ballot in ballots.values():
            standing = [c for c in ballot if c in left]
            if standing:
                tops[standing[0]] += 1
        fewest = min(tops.values())
        worst = max(ranks[c] for c in left if tops[c] == fewest)
        left.remove(max(c for c in left if tops[c] == fewest and ranks[c] == worst))
    return left.pop()


def test_instant_runoff_agrees_with_the_definition_on_every_small_election() -> None:
    names = ["a", "b", "c"]
    ballots = [list(p) for n in (1, 2, 3) for p in permutations(names, n)]
    for cast in product(ballots, repeat=3):
        votes = dict(zip("123", cast, strict=True))
        assert instant_runoff(votes, names)[0] == brute_force(votes, names)


def test_a_proposal_without_first_places_goes_out_and_its_votes_move_on() -> None:
    votes = {"1": ["a", "c"], "2": ["a", "c"], "3": ["b", "c"], "4": ["b", "c"], "5": ["c", "b"]}
    assert instant_runoff(votes, ["a", "b", "c"]) == ("b", 2)


def test_members_propose_vote_adopt_and_work() -> None:
    entry = root(None)
    actions = entry.handle(Start())
    x, asked = member(entry, "x", actions)
    z, _ = member(entry, "z", actions)
    y, _ = member(entry, "y", actions)
    assert only(asked, AskPlan)[0].context["reason"] == "propose", "the first voter convenes"
    opened = {n: sent(asked, n, "OPEN")[0] for n in ("z", "y")}
    request = only(asked, AskPlan)[0].request
    x.handle(Planned(TWO, request))
    ballots: list[Any] = []
    for name, machine in (("z", z), ("y", y)):
        (ask,) = only(machine.handle(Received("x", opened[name])), AskPlan)
        (proposal,) = sent(machine.handle(Planned(TWO, ask.request)), "x", "PROPOSE")
        ballots = x.handle(Received(name, proposal))
    adopted: list[Any] = []
    for name, machine in (("z", z), ("y", y)):
        (ballot,) = sent(ballots, name, "BALLOT")
        (rank,) = sent(machine.handle(Received("x", ballot)), "x", "RANK")
        adopted = x.handle(Received(name, rank))
    assert only(adopted, Execute)[0].subtask_id == "a"
    (adopt,) = sent(adopted, "root", "ADOPT")
    assert set(adopt["ballots"]) == {"x", "y", "z"}
    told = entry.handle(Received("x", adopt))
    assert entry.adopted is not None
    assert sent(told, "y", "STATE")[0]["shared"]["elect"] is None
    forged = {**adopt, "ballots": {"x": adopt["ballots"]["x"]}, "e": 2}
    fresh = root(None)
    fresh.handle(Start())
    fresh.handle(Received("x", forged))
    assert fresh.adopted is None, "one ballot is no quorum"


def test_what_ended_before_a_restart_stays_ended_although_its_members_are_gone() -> None:
    entry = root(TWO, idempotent=False)
    entry.handle(Start())
    (finish,) = only(entry.handle(CancelRequested()), Finish)
    again = root(TWO, idempotent=False)
    again.restore(entry.snapshot())
    assert again.handle(PeerDown("x")) == []
    (same,) = only(again.handle(Start()), Finish)
    assert str(same.failed) == str(finish.failed)


def test_a_later_convener_proposes_again_what_a_quorum_accepted() -> None:
    entry = root(None, certified=True)
    opening = entry.handle(Start())
    nodes = {n: member(entry, n, opening) for n in ("x", "z", "y")}
    x, z, y = (nodes[n][0] for n in ("x", "z", "y"))

    def propose(convener: MeshMember, name: str, asked: list[Any], plans: dict[str, Plan]) -> list[Any]:
        """Everybody alive answers the OPEN of a convener with its plan; what the convener does then."""
        actions = convener.handle(Planned(plans[name], only(asked, AskPlan)[0].request))
        for other, plan in plans.items():
            if other == name:
                continue
            machine = nodes[other][0]
            (ask,) = only(machine.handle(Received(name, sent(asked, other, "OPEN")[0])), AskPlan)
            (answer,) = sent(machine.handle(Planned(plan, ask.request)), name, "PROPOSE")
            actions = convener.handle(Received(other, answer))
        return actions

    actions = propose(x, "x", nodes["x"][1], dict.fromkeys(("x", "z", "y"), TWO))
    for name, machine in (("z", z), ("y", y)):
        (rank,) = sent(machine.handle(Received("x", sent(actions, name, "BALLOT")[0])), "x", "RANK")
        proposed = x.handle(Received(name, rank))
    (ack,) = sent(z.handle(Received("x", sent(proposed, "z", "PROP")[0])), "x", "ACK")
    x.handle(Received("z", ack))
    assert x.adopted is not None, "two of three accepted it"
    assert x.adopted["plan"] == TWO.to_dict()
    # Nobody hears of it: x is lost, and the others want another plan now.
    y.handle(PeerDown("x"))
    asked = z.handle(PeerDown("x"))
    actions = propose(z, "z", asked, {"z": ONE, "y": ONE})
    assert not sent(actions, "y", "BALLOT"), "a vote could adopt a second plan for this version (M2)"
    assert sent(actions, "y", "PROP")[0]["plan"] == TWO.to_dict()


def test_the_first_output_is_committed_and_told_to_all() -> None:
    entry = root(redundancy={"c": 2})
    actions = entry.handle(Start())
    x, work = member(entry, "x", actions)
    y, also = member(entry, "y", actions)
    assert [e.subtask_id for e in (*only(work, Execute), *only(also, Execute))] == ["a", "a"]
    (output,) = sent(x.handle(Executed("a", 1, "A")), "root", "OUTPUT")
    told = entry.handle(Received("x", output))
    (commit,) = sent(told, "y", "COMMIT")
    assert only(y.handle(Received("root", commit)), StopExecution) == [StopExecution("a", 1, "y")]
    (late,) = sent(entry.handle(Received("y", {**output, "output": "other"})), "y", "COMMIT")
    assert late["output"] == "A"
    z, _ = member(entry, "z", actions)
    (execute,) = only(z.handle(Received("root", sent(told, "z", "COMMIT")[0])), Execute)
    assert execute.inputs == {"a": "A"}
    (last,) = sent(z.handle(Executed("b", 1, "B")), "root", "OUTPUT")
    assert only(entry.handle(Received("z", last)), Finish) == [Finish("B")]


def test_a_debate_ends_by_majority_at_its_cap() -> None:
    team = {"c": ["x", "y", "z"]}
    entry = root(ONE, team=team, redundancy={"c": 3}, debate=True, limits=Limits(debates=2))
    actions = entry.handle(Start())
    peers = {n: member(entry, n, actions)[0] for n in ("x", "y", "z")}
    answers = {"x": "1", "y": "2", "z": "3"}
    for name, machine in peers.items():
        (output,) = sent(machine.handle(Executed("a", 1, answers[name])), "root", "OUTPUT")
        actions = entry.handle(Received(name, output))
    finish: list[Any] = []
    for name, machine in peers.items():
        (question,) = sent(actions, name, "DEBATE")
        (execute,) = only(machine.handle(Received("root", question)), Execute)
        assert execute.inputs["_debate"]["answers"] == {p: a for p, a in answers.items() if p != name}
        (output,) = sent(machine.handle(Executed("a", 2, "2" if name != "x" else "1")), "root", "OUTPUT")
        finish = only(entry.handle(Received(name, output)), Finish)
    assert finish == [Finish("2")]


def test_a_unanimous_answer_needs_no_second_round() -> None:
    entry = root(ONE, team={"c": ["x", "y"]}, redundancy={"c": 2}, debate=True)
    actions = entry.handle(Start())
    finish: list[Any] = []
    for name in ("x", "y"):
        machine, _ = member(entry, name, actions)
        (output,) = sent(machine.handle(Executed("a", 1, {"k": [1, 2]})), "root", "OUTPUT")
        finish = only(entry.handle(Received(name, output)), Finish)
    assert finish == [Finish({"k": [1, 2]})]


def test_drift_is_sent_back_once_then_the_member_is_evicted_as_faulty() -> None:
    entry = root(ONE, team={"c": ["x", "y"]}, contracts={"a": Contract("find it")})
    actions = entry.handle(Start())
    x, _ = member(entry, "x", actions)
    (output,) = sent(x.handle(Executed("a", 1, "bad")), "root", "OUTPUT")
    assert len(only(entry.handle(Received("x", output)), AskJudgement)) == 1
    (revise,) = sent(entry.handle(Judged("a", 1, ok=False, reason="unrelated")), "x", "REVISE")
    (again,) = only(x.handle(Received("root", revise)), Execute)
    assert again.inputs["_revise"] == {"reason": "unrelated", "previous": "bad"}
    (output,) = sent(x.handle(Executed("a", 2, "worse")), "root", "OUTPUT")
    entry.handle(Received("x", output))
    actions = entry.handle(Judged("a", 2, ok=False, reason="unrelated"))
    assert only(actions, Evict) == [Evict("x", Reason.FAULTY)]
    _, work = member(entry, "y", actions)
    assert [(e.subtask_id, e.agent) for e in only(work, Execute)] == [("a", "y")]


def test_the_last_holder_lost_leads_to_a_vote_then_to_another_plan() -> None:
    entry = root(team={"c": ["x", "y"], "d": ["z"]}, limits=Limits(rounds=1))
    entry.handle(Start())
    (ask,) = only(entry.handle(PeerDown("z")), AskReplacement)
    assert ask.capability == "d"
    actions = entry.handle(Replacement("d", None))
    stuck = {n: sent(actions, n, "STUCK")[0] for n in entry.shared["voters"] if sent(actions, n, "STUCK")}
    assert set(stuck) >= {"x", "y"}
    told: list[Any] = []
    for name in ("x", "y"):
        vote = {"kind": "REPLAN", "run": "r", "version": 1, "digest": stuck[name]["digest"], "agree": True}
        told = entry.handle(Received(name, vote)) or told
    (state,) = sent(told, "x", "STATE")
    assert state["shared"]["elect"] == 2
    assert state["shared"]["errors"]["b"]["kind"] == "NoReplacement"


def test_no_plan_from_anybody_ends_the_run_with_the_reason() -> None:
    entry = root(None)
    actions = entry.handle(Start())
    x, asked = member(entry, "x", actions)
    (ask,) = only(asked, AskPlan)
    x.handle(PeerDown("y"))
    x.handle(PeerDown("z"))
    (message,) = sent(x.handle(PlanningFailed(errors.InvalidPlan("no idea"), ask.request)), "root", "NO_PLAN")
    (finish,) = only(entry.handle(Received("x", message)), Finish)
    assert isinstance(finish.failed[""], errors.InvalidPlan)
    assert "no idea" in str(finish.failed[""])


def test_fc_56_a_lost_worker_ends_a_run_that_is_not_idempotent() -> None:
    entry = root(idempotent=False)
    entry.handle(Start())
    (finish,) = only(entry.handle(PeerDown("x")), Finish)
    assert isinstance(finish.failed["a"], errors.UnknownOutcome)


def test_a_failed_execution_goes_to_the_next_holder() -> None:
    entry = root()
    actions = entry.handle(Start())
    x, _ = member(entry, "x", actions)
    y, idle = member(entry, "y", actions)
    assert only(idle, Execute) == []
    failed = ExecutionFailed("a", 1, errors.AgentFailed("no"), executed=True)
    (giveup,) = sent(x.handle(failed), "root", "GIVEUP")
    (state,) = sent(entry.handle(Received("x", giveup)), "y", "STATE")
    work = {"capability": "c", "instruction": "a"}
    assert only(y.handle(Received("root", state)), Execute) == [Execute("a", 1, {}, "y", work=work)]


def test_cancellation_reaches_every_member() -> None:
    entry = root()
    actions = entry.handle(Start())
    x, _ = member(entry, "x", actions)
    actions = entry.handle(CancelRequested())
    assert isinstance(only(actions, Finish)[0].failed[""], errors.Cancelled)
    (end,) = sent(actions, "x", "END")
    assert only(x.handle(Received("root", end)), StopExecution) == [StopExecution("a", 1, "x")]


@pytest.mark.parametrize("certified", [False, True])
@pytest.mark.parametrize(("crashes", "suspicions", "partitions", "least"), [(1, 0, 0, 1.0), (2, 2, 1, 0.97)])
def test_runs_under_faults_end_and_nearly_all_complete(
    mesh_world: Any, crashes: int, suspicions: int, partitions: int, least: float, certified: bool
) -> None:
    world = mesh_world(certified=certified)
    ends = {"completed": 0, "failed": 0}

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(
            MEMBERS, crashes=crashes, suspicions=suspicions, partitions=partitions, until_s=1.5, restart=0.5
        )

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        ends["failed" if report.finishes["root"].failed else "completed"] += 1

    counters = explore(build, check, seeds=range(120), loss=0.05, duplicate=0.1)
    assert ends["completed"] >= least * sum(ends.values()), ends
    assert counters["crash"] > 50


@pytest.mark.parametrize("victim", ["root", "m1", "m2", "m4"])
def test_a_crash_at_every_boundary_is_survived(mesh_world: Any, victim: str) -> None:
    world = mesh_world()
    crashes = 0
    for boundary in range(150):
        net = SimNetwork(seed=boundary)
        world.build(net)
        net.crash_at(victim, boundary, restart_after_s=1.0 if victim == "root" else None)
        report = net.run()
        world.check(net, report)
        assert not report.finishes["root"].failed, (boundary, report.finishes["root"].failed)
        if not report.faults:
            break
        crashes += 1
    assert 3 < crashes < 150


def test_a_silent_convener_is_followed_by_the_next(mesh_world: Any) -> None:
    world = mesh_world()
    net = SimNetwork(seed=3)
    world.build(net)
    first = net.machine("root").state["shared"]["voters"][0]
    net.crash(first, at_s=0.05)
    report = net.run()
    world.check(net, report)
    assert not report.finishes["root"].failed
    assert max(n["epoch"] for n in report.noted("decided")) > 1


@pytest.mark.slow
def test_light_adoption_may_differ_for_a_while_certified_never(mesh_world: Any) -> None:
    """The finding of the model check: a wrongly suspected convener lets members follow different plans."""

    def conflicts(certified: bool) -> int:
        world = mesh_world(certified=certified)
        found = 0

        def build(net: SimNetwork) -> None:
            world.build(net)
            voters = net.machine("root").state["shared"]["voters"]
            for voter in voters[1:]:
                net.suspect(voter, voters[0], at_s=0.7 + net.seed % 20 * 0.05, for_s=5.0)

        def check(net: SimNetwork, report: Any) -> None:
            nonlocal found
            world.check(net, report)
            assert not report.finishes["root"].failed
            found += len({n["digest"] for n in report.noted("decided")}) > 1

        explore(build, check, seeds=range(160), delay_s=(0.001, 0.4))
        return found

    assert conflicts(certified=False) > 0
    assert conflicts(certified=True) == 0


def test_debates_survive_loss_and_crashes(mesh_world: Any) -> None:
    world = mesh_world(debate=True, redundancy={"c": 2, "d": 2, "e": 2})

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(MEMBERS, crashes=1, suspicions=1, until_s=1.5)

    counters = explore(build, world.check, seeds=range(100), loss=0.1, duplicate=0.1)
    assert counters["note:debated"] > 100


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    certified=st.booleans(),
    planned=st.booleans(),
)
def test_any_seed(mesh_world: Any, seed: int, loss: float, certified: bool, planned: bool) -> None:
    plan = Plan([Subtask("a", "c", "a"), Subtask("b", "d", "b", ["a"]), Subtask("c", "e", "c", ["a"])])
    world = mesh_world(plan if planned else None, certified=certified)

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(["root", *MEMBERS], crashes=2, suspicions=1, partitions=1, until_s=2.0, restart=0.7)

    explore(build, world.check, seeds=[seed], loss=loss, duplicate=0.1)
