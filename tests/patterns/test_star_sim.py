"""Star under faults: thousands of seeded runs, a crash at every boundary, random plans."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pandacore.patterns import Limits
from pandacore.plan import Plan, Subtask
from pandacore.testing import SimNetwork, explore

FAST = Limits(retransmit_s=0.5, patience_s=2.0)
MEMBERS = ["m1", "m2", "m3", "m4", "m5"]


@pytest.mark.slow
def test_four_hundred_runs_with_every_kind_of_fault_end_and_commit_once(star_world: Any) -> None:
    world = star_world()

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(["hub", *MEMBERS], crashes=2, suspicions=2, partitions=1, until_s=1.5, restart=0.6)

    counters = explore(build, world.check, seeds=range(400), loss=0.05, duplicate=0.1)
    for fault in ("loss", "duplicate", "reordered", "crash", "restarted", "suspect", "partition", "cut"):
        assert counters[fault] > 50, f"{fault} hardly happened: {counters[fault]}"
    for note in ("evict", "joined", "leads", "deposed", "stand_in"):
        assert counters[f"note:{note}"] > 5, f"{note} hardly happened"


def test_without_stand_ins_the_hub_resumes_from_its_own_checkpoint(star_world: Any) -> None:
    world = star_world(stand_ins=())

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(["hub", *MEMBERS], crashes=3, suspicions=2, until_s=1.0, restart=1.0)

    def check(net: SimNetwork, report: Any) -> None:
        world.check(net, report)
        assert not report.finishes["hub"].failed, report.finishes["hub"].failed

    counters = explore(build, check, seeds=range(200), loss=0.1, duplicate=0.1)
    assert counters["restarted"] > 100


@pytest.mark.parametrize("victim", ["hub", "m1", "m3"])
def test_a_crash_at_every_boundary_is_survived(star_world: Any, victim: str) -> None:
    """Before each checkpoint, message and execution of the victim in turn: 100 % complete."""
    world = star_world(limits=FAST)
    crashes = 0
    for boundary in range(200):
        net = SimNetwork(seed=boundary)
        world.build(net)
        net.crash_at(victim, boundary, restart_after_s=1.0 if victim == "hub" else None)
        report = net.run()
        world.check(net, report)
        assert report.finishes["hub"].failed == {}, (boundary, report.finishes["hub"].failed)
        if not report.faults:
            break
        crashes += 1
    assert 5 < crashes < 200
    print(f"{victim}: {crashes} boundaries")  # noqa: T201


def test_a_hub_that_never_comes_back_is_replaced_and_the_run_is_finished_elsewhere(star_world: Any) -> None:
    world = star_world(limits=FAST)
    finished = 0
    for boundary in range(12, 40):
        net = SimNetwork(seed=boundary)
        world.build(net)
        net.crash_at("hub", boundary)
        report = net.run(until_s=60)
        world.check(net, report)
        if report.finishes.get("hub"):
            break
        leaders = [n for n in ("m1", "m3") if report.finishes.get(n) and report.finishes[n].value is not None]
        assert len(leaders) == 1, (boundary, report.finishes)
        finished += 1
    assert finished > 5


def test_one_reliable_call_per_execution_needs_no_timers(star_world: Any) -> None:
    """``retransmit_s=None``: what the driver does over gRPC."""
    limits = Limits(retransmit_s=None)
    world = star_world(stand_ins=(), limits=limits)

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(MEMBERS, crashes=3, suspicions=2, until_s=0.8, restart=0.5)

    counters = explore(build, world.check, seeds=range(150), calls=True)
    assert counters["sent"] == 0
    assert counters["crash"] > 100


def test_the_same_seed_gives_the_same_trace(star_world: Any) -> None:
    hashes = set()
    for _ in range(2):
        world = star_world()
        net = SimNetwork(seed=11, loss=0.1, duplicate=0.1)
        world.build(net)
        net.chaos(["hub", *MEMBERS], crashes=2, suspicions=2, partitions=1)
        hashes.add(net.run().trace_hash)
    assert len(hashes) == 1


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A DAG of up to nine subtasks."""
    count = draw(st.integers(1, 9))
    subtasks = []
    for index in range(count):
        needs = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        capability = draw(st.sampled_from(["c", "d"]))
        subtasks.append(Subtask(f"s{index}", capability, "work", [f"s{n}" for n in sorted(needs)]))
    return Plan(subtasks)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    plan=plans(), seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.1, 0.3]), copies=st.integers(1, 2)
)
def test_any_plan_under_faults(star_world: Any, plan: Plan, seed: int, loss: float, copies: int) -> None:
    world = star_world(plan, redundancy={"c": copies})

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.chaos(["hub", *MEMBERS], crashes=2, suspicions=1, partitions=1, until_s=2.0, restart=0.7)

    explore(build, world.check, seeds=[seed], loss=loss, duplicate=0.1)
