"""Faults planted in the recovery code: the checks of the simulator notice each of them, and only them.

``PANDACORE_MUTANT=name pytest tests/patterns`` plants one for a whole run of the suite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pandacore import errors
from pandacore.patterns import Contract, Judged, Limits, Machine, Received
from pandacore.plan import Plan, Subtask
from pandacore.testing import SimFailure, SimNetwork, explore

if TYPE_CHECKING:
    from collections.abc import Callable

CHAIN = Plan([Subtask("a", "c", "a"), Subtask("b", "d", "b", ["a"])])
FAST = Limits(retransmit_s=0.5, patience_s=2.0)


def star_failover(worlds: Any) -> None:
    """The hub is cut off while a stand-in takes over."""
    world = worlds["star"](limits=FAST)

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.partition({"hub"}, at_s=0.1, for_s=3.0)
        net.chaos(["m2"], crashes=1)

    explore(build, world.check, seeds=range(40), shrink=5)


def star_faulty(worlds: Any) -> None:
    """A watchdog reports a member whose output is on its way."""
    world = worlds["star"](stand_ins=())

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.tell("hub", Judged("a", 1, ok=False, reason="unrelated"), at_s=0.05)

    explore(build, world.check, seeds=range(20), shrink=5)


def star_crash(worlds: Any) -> None:
    """A member that has work is lost."""
    world = worlds["star"](stand_ins=())

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.crash("m1", at_s=0.05)

    explore(build, world.check, seeds=range(20), shrink=5)


def star_loss(worlds: Any) -> None:
    """Nothing but lost messages."""
    world = worlds["star"](stand_ins=())

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        assert not report.noted("evict"), "a member was given up although it only lost messages"

    explore(world.build, check, seeds=range(40), loss=0.2, shrink=5)


def star_caps(worlds: Any) -> None:
    """An agent that always fails."""
    world = worlds["star"](stand_ins=(), limits=Limits(steps=20))

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.agents(lambda _: errors.AgentFailed("always"))

    def check(net: SimNetwork, report: Any) -> None:
        assert report.finishes.get("hub") is not None, "the run did not end"
        assert report.finishes["hub"].failed
        assert len(report.executions) <= 20, "more executions than the cap"

    explore(build, check, seeds=range(3), until_s=60, shrink=1)


def star_last_holder(worlds: Any) -> None:
    """The only holders are suspected wrongly, one after the other: they must be taken back."""
    world = worlds["star"](stand_ins=())

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.replacement = None
        for name in ("m1", "m2", "m3"):
            net.suspect("hub", name, at_s=0.02, for_s=0.2)

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        assert not report.finishes["hub"].failed, "no way on although the members are alive"

    explore(build, check, seeds=range(10), shrink=5)


def chain_stale(worlds: Any) -> None:
    """Messages that overtake each other by far, and wrong suspicions."""
    world = worlds["chain"]()

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(["m1", "m2", "m3"], suspicions=3, observers=["root", "m1", "m2"], until_s=0.5)

    explore(build, world.check, seeds=range(60), duplicate=0.5, delay_s=(0.001, 0.5), shrink=5)


def chain_custody(worlds: Any) -> None:
    """Two holders die one after the other, while the first still has its output."""
    world = worlds["chain"]()

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.crash("m3", at_s=0.75)
        net.crash("m4", at_s=0.85)

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        first = [n for n in report.noted("step") if n["subtask"] == "a"]
        assert len(first) == 1, "the first step was done again although its holder lives"

    explore(build, check, seeds=range(20), work_s=(0.3, 0.3), shrink=5)


def chain_loss(worlds: Any) -> None:
    """Nothing but lost messages."""
    world = worlds["chain"]()

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        assert not report.noted("evict"), "a member was given up although it only lost messages"

    explore(world.build, check, seeds=range(60), loss=0.3, until_s=60, shrink=5)


def chain_caps(worlds: Any) -> None:
    """Agents that always fail."""
    world = worlds["chain"](limits=Limits(steps=10, generations=30))

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.agents(lambda _: errors.AgentFailed("always"))

    def check(net: SimNetwork, report: Any) -> None:
        assert report.finishes.get("root") is not None, "the run did not end"
        assert report.finishes["root"].failed

    explore(build, check, seeds=range(3), until_s=60, shrink=1)


def mesh_loss(worlds: Any) -> None:
    """Nothing but lost messages."""
    world = worlds["mesh"]()

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        assert not report.finishes["root"].failed

    explore(world.build, check, seeds=range(20), loss=0.2, until_s=60, shrink=5)


def mesh_caps(worlds: Any) -> None:
    """Agents that always fail."""
    world = worlds["mesh"](limits=Limits(steps=15))

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.agents(lambda _: errors.AgentFailed("always"))

    def check(net: SimNetwork, report: Any) -> None:
        assert report.finishes.get("root") is not None, "the run did not end"
        assert report.finishes["root"].failed

    explore(build, check, seeds=range(3), until_s=60, shrink=1)


def mesh_faulty(worlds: Any) -> None:
    """A member that was found faulty says its output once more."""
    world = worlds["mesh"](CHAIN, contracts={"a": Contract("find it")})

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.judge = lambda _n, _name, action: action.attempt > 2 or "unrelated"
        for at_s in (0.6, 0.7, 0.8):
            digest = next(iter(net.machine("root")._work.ready))  # type: ignore[attr-defined]
            late = {"kind": "OUTPUT", "run": "r", "digest": digest, "output": "late", "id": "a"}
            net.tell("root", Received("m1", {**late, "attempt": 9, "turn": 9}), at_s=at_s)

    def check(net: SimNetwork, report: Any) -> None:
        evicted = {n["peer"] for n in report.noted("evict") if n["reason"] == "faulty"}
        at = {n["peer"]: t for t, _, n in report.notes if n["note"] == "evict"}
        for when, _, note in report.notes:
            if note["note"] == "commit" and note["agent"] in evicted:
                assert when < at[note["agent"]], f"an output of faulty {note['agent']} was committed"

    explore(build, check, seeds=range(10), work_s=(0.05, 0.1), shrink=5)


PLANTED: list[tuple[str, Callable[[Any], None]]] = [
    ("no_fencing", star_failover),
    ("accept_faulty", star_faulty),
    ("swap_keeps_assignment", star_crash),
    ("no_retransmission", star_loss),
    ("forget_cap", star_caps),
    ("no_readmission", star_last_holder),
    ("no_generation_check", chain_stale),
    ("forget_at_handon", chain_custody),
    ("no_retransmission", chain_loss),
    ("forget_cap", chain_caps),
    ("no_retransmission", mesh_loss),
    ("forget_cap", mesh_caps),
    ("accept_faulty", mesh_faulty),
]


@pytest.mark.parametrize(("mutant", "scenario"), PLANTED, ids=lambda v: getattr(v, "__name__", v))
def test_the_planted_fault_is_noticed_and_its_absence_is_not(
    mutant: str, scenario: Callable[[Any], None], worlds: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario(worlds)
    monkeypatch.setattr(Machine, "planted", frozenset({mutant}))
    with pytest.raises(SimFailure, match="seed"):
        scenario(worlds)
