"""Teams in the simulator, with their invariants checked after every event."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pandacore.patterns import (
    ChainMember,
    ChainRoot,
    Emit,
    Evict,
    Execute,
    Executed,
    Limits,
    MeshMember,
    MeshRoot,
    PeerDown,
    Received,
    StarHub,
    StarMember,
)
from pandacore.plan import Plan, Subtask

if TYPE_CHECKING:
    from pandacore.patterns import Action, AskReplacement, Event
    from pandacore.testing import SimNetwork, SimReport

DIAMOND = Plan(
    [
        Subtask("a", "c", "a"),
        Subtask("b", "c", "b", ["a"]),
        Subtask("c", "d", "c", ["a"]),
        Subtask("d", "c", "d", ["b", "c"]),
    ]
)
ANSWER = "d(b(a()),c(a()))"
HOLDS = {"m1": "c", "m2": "cd", "m3": "d", "m4": "cd", "m5": "cd"}
TEAM = {"c": ["m1", "m2"], "d": ["m3", "m2"]}
HUB = "hub"


def work(execute: Execute) -> str:
    """An output that shows its whole lineage."""
    return f"{execute.subtask_id}({','.join(str(v) for v in execute.inputs.values())})"


def value_of(plan: Plan) -> Any:
    """What the plan comes to when every agent answers by :func:`work`."""
    outputs: dict[str, str] = {}
    for subtask_id in plan.order:
        needs = plan[subtask_id].depends_on
        outputs[subtask_id] = f"{subtask_id}({','.join(outputs[d] for d in needs)})"
    sinks = plan.sinks
    return outputs[sinks[0]] if len(sinks) == 1 else {s: outputs[s] for s in sinks}


class StarWorld:
    """Builds a network, watches it and judges the end of its run."""

    def __init__(
        self, plan: Plan = DIAMOND, *, stand_ins: tuple[str, ...] = ("m1", "m3"), **options: Any
    ) -> None:
        self.plan = plan
        self.stand_ins = stand_ins
        self.options = {"idempotent": True, **options}
        self.views: dict[tuple[str, int], tuple[int, int]] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.dispatched: dict[tuple[str, int], float] = {}

    def build(self, net: SimNetwork) -> None:
        """Add the hub and five members."""
        self.views.clear()
        self.epochs.clear()
        self.dispatched.clear()
        net.watch = self.watch
        net.replacement = self.replacement
        net.add(
            HUB,
            lambda: StarHub("r", HUB, self.plan, TEAM, stand_ins=self.stand_ins, **self.options),
            caller=True,
        )
        for name in HOLDS:
            net.add(name, partial(StarMember, "r", name, limits=self.limits), agent=work)

    @property
    def limits(self) -> Limits:
        """The limits in use."""
        found = self.options.get("limits", Limits())
        assert isinstance(found, Limits)
        return found

    def replacement(self, net: SimNetwork, _: str, action: AskReplacement) -> str | None:
        """The registry: anybody alive who holds the capability and is not excluded."""
        fit = (m for m, c in HOLDS.items() if action.capability in c and m not in action.exclude)
        return next((m for m in fit if net.alive(m)), None)

    def watch(self, net: SimNetwork, name: str, event: Event, actions: list[Action]) -> None:
        """S1, S2, S5 at every leader; fencing at every worker."""
        machine = net.machine(name)
        if name != HUB:
            for action in actions:
                if isinstance(action, Execute) and action.agent == name:
                    life = (name, net.incarnation(name))
                    assert action.epoch >= self.epochs.get(life, 1), f"{name} obeys a lower epoch"
            if isinstance(event, Received):
                life = (name, net.incarnation(name))
                self.epochs[life] = max(self.epochs.get(life, 1), int(machine.state.get("promised", 1)))
        for action in actions:
            if isinstance(action, Emit) and action.note["note"] == "commit":
                author = action.note["agent"]
                evicted = machine.state["hub"]["evicted"]
                assert evicted.get(author) != "faulty", f"the output of faulty {author} was accepted"
            if isinstance(action, Execute) and action.agent != name:
                self.dispatched.setdefault((action.subtask_id, action.attempt), net.now)
        hub = machine.state.get("hub")
        if hub is None or machine.state.get("owner") != name:
            return
        team = {p for pool in hub["team"].values() for p in pool}
        assert not team & set(hub["evicted"]), "S2: an evicted member is in the team"
        for key, flight in hub["flights"].items():
            agent = flight["a"]
            if flight["d"] not in hub["done"] and agent is not None:
                assert agent in team, f"S1: {key} is assigned to {agent}, which is not in the team"
        # A view that was lost with a crash before its checkpoint had no effect: compare within one life.
        leader = (name, net.incarnation(name))
        epoch, view = self.views.get(leader, (0, 0))
        if epoch == hub["epoch"]:
            assert hub["view"] >= view, "S5: a view went back"
        self.views[leader] = (hub["epoch"], hub["view"])

    def check(self, net: SimNetwork, report: SimReport) -> None:
        """Every run ends, with the right value or a typed reason; commits are exactly once."""
        assert not report.noted("malformed"), report.noted("malformed")
        finish = report.finishes.get(HUB)
        if not net.alive(HUB):
            return  # the caller's process is gone for good; nobody is left to answer
        assert finish is not None, "the run did not end"
        if finish.failed:
            kinds = {type(e).__name__ for e in finish.failed.values()}
            assert kinds <= {"NoQuorum", "NoReplacement", "BudgetExceeded"}, kinds
        else:
            assert finish.value == value_of(self.plan), "S3: an output changed, or an input was not its own"
        commits = [n["digest"] for n in report.noted("commit")]
        assert len(commits) == len(set(commits)), "a subtask was committed twice"
        if not report.noted("leads"):
            committed = {n["subtask"]: t for t, _, n in report.notes if n["note"] == "commit"}
            for (subtask_id, attempt), at in self.dispatched.items():
                assert at <= committed.get(subtask_id, at), f"S4: attempt {attempt} of finished {subtask_id}"


CHAIN = Plan(
    [
        Subtask("a", "c", "a"),
        Subtask("b", "d", "b", ["a"]),
        Subtask("c", "e", "c", ["a", "b"]),
        Subtask("d", "c", "d", ["c"]),
    ]
)
CHAIN_HOLDS = {"m1": "c", "m2": "cd", "m3": "d", "m4": "ce", "m5": "de", "m6": "cde"}
CHAIN_TEAM = {"c": ["m1", "m2"], "d": ["m3", "m2"], "e": ["m4", "m5"]}
ROOT = "root"


class ChainWorld:
    """A root and six members; C1 to C5."""

    def __init__(self, plan: Plan = CHAIN, *, team: Any = None, **options: Any) -> None:
        self.plan = plan
        self.team = CHAIN_TEAM if team is None else team
        self.options = {"idempotent": True, **options}
        self.seen: dict[tuple[str, int], tuple[Any, ...]] = {}
        self.counts: dict[str, int] = {}
        self.lost: set[str] = set()
        self.makers: dict[str, list[str]] = {}
        self.running: dict[tuple[str, str, int], str] = {}

    def build(self, net: SimNetwork) -> None:
        """Add the nodes."""
        self.seen.clear()
        self.counts.clear()
        self.lost.clear()
        self.makers.clear()
        self.running.clear()
        net.watch = self.watch
        net.replacement = self.replacement
        options = self.options
        net.add(ROOT, lambda: ChainRoot("r", ROOT, self.plan, self.team, **options), caller=True)
        for name in CHAIN_HOLDS:
            net.add(name, partial(ChainMember, "r", name), agent=self.work)

    def work(self, execute: Execute) -> str:
        """An output that names its execution, so that two of the same step can be told apart."""
        number = self.counts[execute.subtask_id] = self.counts.get(execute.subtask_id, 0) + 1
        return f"{execute.subtask_id}#{number}({','.join(str(v) for v in execute.inputs.values())})"

    def replacement(self, net: SimNetwork, _: str, action: AskReplacement) -> str | None:
        """The registry."""
        fit = (m for m, c in CHAIN_HOLDS.items() if action.capability in c and m not in action.exclude)
        return next((m for m in fit if net.alive(m)), None)

    def watch(self, net: SimNetwork, name: str, event: Event, actions: list[Action]) -> None:
        """C2, C4 at every node; C5 at every execution."""
        machine = net.machine(name)
        assert isinstance(machine, ChainRoot | ChainMember)
        life = (name, net.incarnation(name))
        assert machine.seen >= self.seen.get(life, (0, 0, "")), "C2: seen went back"
        self.seen[life] = machine.seen
        assert machine.seen[0] <= machine.limits.generations, "C4: too many generations"
        runs = [h for h in machine.state.get("holds", {}).values() if h["phase"] == "run"]
        assert len(runs) <= 1, "C2: two steps run at once"
        if isinstance(event, PeerDown):
            self.lost.add(event.peer)
        if isinstance(event, Executed):
            done = self.running[(name, event.subtask_id, event.attempt)]
            self.makers.setdefault(done, []).append(name)
        for action in actions:
            if isinstance(action, Evict):
                self.lost.add(action.peer)
            if isinstance(action, Execute):
                hold = runs[0]
                assert tuple(hold["g"]) >= machine.seen, "a stale generation is executed"
                outputs = hold["payload"]["outputs"]
                needs = self.plan[action.subtask_id].depends_on
                assert all(d in outputs for d in needs), "C3: a step runs without its prefix"
                work = f"{action.subtask_id} {dict(action.inputs)}"
                self.running[(name, action.subtask_id, action.attempt)] = work
                for other in self.makers.get(work, []):
                    # Lost or suspected, the earlier executor or this one: a restart counts as both.
                    pair = {other, name}
                    excuse = pair & self.lost or any(net.incarnation(n) > 1 for n in pair)
                    assert excuse, f"C5: {action.subtask_id} again although {other} has its output"

    def check(self, net: SimNetwork, report: SimReport) -> None:
        """Every run ends, with outputs of one lineage or a typed reason."""
        assert not report.noted("malformed"), report.noted("malformed")
        if not net.alive(ROOT):
            return
        finish = report.finishes.get(ROOT)
        assert finish is not None, "the run did not end"
        if finish.failed:
            kinds = {type(e).__name__ for e in finish.failed.values()}
            assert kinds <= {"NoReplacement", "BudgetExceeded"}, kinds
            return
        outputs = net.machine(ROOT).outputs
        assert set(outputs) == set(self.plan.order)
        for subtask_id, output in outputs.items():
            needs = self.plan[subtask_id].depends_on
            inner = f"({','.join(outputs[d] for d in needs)})"
            assert output.startswith(f"{subtask_id}#"), output
            assert output.endswith(inner), f"C3: {subtask_id} mixes lineages: {output}"
        assert finish.value == outputs[self.plan.sinks[0]]


LINE = Plan([Subtask("x", "c", "a"), Subtask("y", "d", "c", ["x"]), Subtask("z", "e", "z", ["y"])])
MESH_TEAM = {"c": ["m1", "m2"], "d": ["m3", "m2"], "e": ["m4", "m5"]}


class MeshWorld:
    """A root and six members that propose one of two plans; M1 to M4."""

    def __init__(self, plan: Plan | None = None, *, team: Any = None, **options: Any) -> None:
        self.plan = plan
        self.team = MESH_TEAM if team is None else team
        self.options = {"idempotent": True, "ranking": "driver", **options}
        self.counts: dict[str, int] = {}
        self.plans: dict[tuple[Any, ...], str] = {}
        self.versions: dict[tuple[Any, ...], str] = {}
        self.ranks: dict[tuple[str, int], tuple[Any, ...]] = {}

    def build(self, net: SimNetwork) -> None:
        """Add the nodes."""
        for memory in (self.counts, self.plans, self.versions, self.ranks):
            memory.clear()
        net.watch = self.watch
        net.plan = self.propose
        net.rank = self.order
        net.replacement = self.replacement
        options = self.options
        net.add(ROOT, lambda: MeshRoot("r", ROOT, self.plan, self.team, **options), caller=True)
        for name in CHAIN_HOLDS:
            net.add(name, partial(MeshMember, "r", name), agent=self.work)

    def work(self, execute: Execute) -> str:
        """An output that names its execution."""
        number = self.counts[execute.subtask_id] = self.counts.get(execute.subtask_id, 0) + 1
        inner = (str(v) for k, v in execute.inputs.items() if not k.startswith("_"))
        return f"{execute.subtask_id}#{number}({','.join(inner)})"

    def propose(self, _: SimNetwork, name: str, action: Any) -> Plan:
        """Odd members want the diamond, even ones the line; who revises takes the leading plan."""
        if action.context.get("lead") is not None and name != "m1":
            return Plan.from_dict(action.context["lead"])
        return CHAIN if name in {"m1", "m3", "m5"} else LINE

    def order(self, _: SimNetwork, name: str, action: Any) -> list[str]:
        """A ballot that depends on the member, and on when it is asked."""
        _, epoch, _, turn = action.request.split(":")
        return sorted(action.proposals, reverse=(int(name[1]) // 2 + int(epoch) + int(turn)) % 2 == 0)

    def replacement(self, net: SimNetwork, _: str, action: AskReplacement) -> str | None:
        """The registry."""
        fit = (m for m, c in CHAIN_HOLDS.items() if action.capability in c and m not in action.exclude)
        return next((m for m in fit if net.alive(m)), None)

    def watch(self, net: SimNetwork, name: str, event: Event, actions: list[Action]) -> None:
        """M1, M2 and M4 at every node."""
        machine = net.machine(name)
        assert isinstance(machine, MeshRoot | MeshMember)
        for action in actions:
            if isinstance(action, Emit) and action.note["note"] == "decided":
                key = (action.note["view"], action.note["version"], action.note["epoch"])
                found = self.plans.setdefault(key, action.note["digest"])
                assert found == action.note["digest"], "M1: one epoch decided two plans"
            if isinstance(action, Emit) and action.note["note"] == "tally":
                assert action.note["turn"] <= machine.limits.rounds, "M4: too many rounds"
        adopted = machine.adopted
        if adopted is None:
            return
        rank = (adopted["view"], adopted["version"], adopted["epoch"])
        life = (name, net.incarnation(name))
        assert rank >= self.ranks.get(life, rank), "a lower epoch replaced a higher one"
        self.ranks[life] = rank
        text = str(adopted["plan"])
        assert self.plans.setdefault(("adopted", *rank), text) == text, "M1: one epoch, two plans"
        if self.options.get("certified"):
            assert self.versions.setdefault(rank[:2], text) == text, "M2: one version, two plans"

    def check(self, net: SimNetwork, report: SimReport) -> None:
        """Every run ends, with the outputs of the adopted plan or a typed reason."""
        assert not report.noted("malformed"), report.noted("malformed")
        if not net.alive(ROOT):
            return
        finish = report.finishes.get(ROOT)
        assert finish is not None, "the run did not end"
        commits = [n["digest"] for n in report.noted("commit")]
        assert len(commits) == len(set(commits)), "a subtask was committed twice"
        if finish.failed:
            kinds = {type(e).__name__ for e in finish.failed.values()}
            assert kinds <= {"NoReplacement", "NoQuorum", "BudgetExceeded", "LoopDetected"}, kinds
            return
        machine = net.machine(ROOT)
        assert isinstance(machine, MeshRoot)
        assert machine.adopted is not None
        plan = Plan.from_dict(machine.adopted["plan"])
        assert set(machine.outputs) == set(plan.order)
        for subtask_id, output in machine.outputs.items():
            inner = f"({','.join(machine.outputs[d] for d in plan[subtask_id].depends_on)})"
            assert output.endswith(inner), f"{subtask_id} mixes lineages: {output}"


@pytest.fixture(scope="session")
def mesh_world() -> type[MeshWorld]:
    """The class, for tests that choose its options."""
    return MeshWorld


@pytest.fixture(scope="session")
def chain_world() -> type[ChainWorld]:
    """The class, for tests that choose its options."""
    return ChainWorld


@pytest.fixture(scope="session")
def star_world() -> type[StarWorld]:
    """The class, for tests that choose its options."""
    return StarWorld


@pytest.fixture(scope="session")
def worlds() -> dict[str, Any]:
    """The class per pattern."""
    return {"star": StarWorld, "chain": ChainWorld, "mesh": MeshWorld}
