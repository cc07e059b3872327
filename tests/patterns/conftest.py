"""Teams in the simulator, with their invariants checked after every event."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pandacore.patterns import Emit, Execute, Limits, Machine, Received, StarHub, StarMember
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
        self.views: dict[str, tuple[int, int]] = {}
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
        epoch, view = self.views.get(name, (0, 0))
        if epoch == hub["epoch"]:
            assert hub["view"] >= view, "S5: a view went back"
        self.views[name] = (hub["epoch"], hub["view"])

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


@pytest.fixture(scope="session")
def star_world() -> type[StarWorld]:
    """The class, for tests that choose its options."""
    return StarWorld


@pytest.fixture(scope="session")
def worlds() -> dict[str, Any]:
    """The class per pattern."""
    return {"star": StarWorld}


@pytest.fixture(autouse=True, scope="session")
def planted_fault() -> None:
    """Plants the fault named by ``PANDACORE_MUTANT``, to see that the suite notices it."""
    if name := os.environ.get("PANDACORE_MUTANT"):
        Machine.planted = frozenset({name})
