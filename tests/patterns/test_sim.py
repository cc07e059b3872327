"""The simulator itself: faults happen, runs repeat, failures shrink."""

from __future__ import annotations

from typing import Any

import pytest

from pandacore.patterns import Checkpoint, Machine, Received, SetTimer, Start, TimerFired, fold
from pandacore.patterns.base import joined
from pandacore.testing import SimFailure, SimNetwork, SimReport, explore


class Talker(Machine):
    """Sends ``count`` numbered messages to its peer; counts what it hears."""

    def __init__(self, me: str, peer: str, count: int) -> None:
        super().__init__("r", me)
        self.peer = peer
        self.count = count
        self.heard: list[int] = []

    def on(self, event: Any) -> None:
        match event:
            case Start():
                for n in range(self.count):
                    self.send(self.peer, "N", n=n)
                self.do(SetTimer("end", 5.0))
            case Received(_, {"n": n}):
                self.heard.append(n)
                self.put("heard", value=len(self.heard))
            case TimerFired("end"):
                self.finish(self.heard)
            case _:
                pass


def pair(seed: int, count: int = 200, **options: Any) -> tuple[SimNetwork, SimReport]:
    net = SimNetwork(seed, **options)
    net.add("a", lambda: Talker("a", "b", count), caller=True)
    net.add("b", lambda: Talker("b", "a", count), caller=True)
    return net, net.run()


def test_every_kind_of_message_fault_really_happens() -> None:
    _, report = pair(1, loss=0.2, duplicate=0.2)
    assert 40 < report.counters["loss"] < 130
    assert 40 < report.counters["duplicate"] < 130
    assert report.counters["reordered"] > 40
    heard = report.finishes["a"].value
    assert len(heard) != len(set(heard)), "no duplicate arrived"
    assert heard != sorted(heard), "nothing overtook"
    assert set(heard) < set(range(200)), "nothing was lost"


def test_without_faults_everything_arrives_once() -> None:
    _, report = pair(1)
    assert sorted(report.finishes["a"].value) == list(range(200))
    assert report.faults == []


def test_a_partition_cuts_both_ways_and_heals() -> None:
    net = SimNetwork(3, delay_s=(0.01, 0.02))
    net.add("a", lambda: Talker("a", "b", 10), caller=True)
    net.add("b", lambda: Talker("b", "a", 10), caller=True)
    net.partition({"a"}, at_s=0.0, for_s=1.0)
    report = net.run()
    assert report.counters["cut"] == 20
    assert report.finishes["a"].value == []


def test_a_crash_loses_what_was_not_checkpointed_and_nothing_else() -> None:
    net = SimNetwork(5)
    net.add("a", lambda: Talker("a", "b", 20), caller=True)
    net.add("b", lambda: Talker("b", "a", 20))
    net.crash("a", at_s=0.03, restart_after_s=1.0)
    net.run()
    machine = net.machine("a")
    assert isinstance(machine, Talker)
    assert machine.state["heard"] >= len(machine.heard)


def test_the_same_seed_repeats_and_another_does_not() -> None:
    hashes = [pair(seed, loss=0.1)[1].trace_hash for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_failure_names_its_seed_and_only_the_faults_it_needs() -> None:
    def build(net: SimNetwork) -> None:
        net.add("a", lambda: Talker("a", "b", 30), caller=True)
        net.add("b", lambda: Talker("b", "a", 30), caller=True)

    def check(_: SimNetwork, report: SimReport) -> None:
        assert 7 in report.finishes["b"].value, "number 7 did not arrive"

    with pytest.raises(SimFailure) as caught:
        explore(build, check, seeds=range(100), loss=0.2)
    text = str(caught.value)
    assert "number 7 did not arrive" in text
    assert "faults needed (1): loss#" in text
    assert text.startswith("seed ")


def test_a_patch_puts_and_drops_in_place() -> None:
    state = fold(None, Checkpoint({"a": {"b": 1}, "c": 2}))
    state = fold(
        state, Checkpoint({"set": [[["a", "d"], 3], [["e", "f"], 4]], "drop": [["a", "b"], ["x"]]}, False)
    )
    assert state == {"a": {"d": 3}, "c": 2, "e": {"f": 4}}


def test_a_value_that_covers_a_dropped_one_keeps_it() -> None:
    class Keeper(Machine):
        def on(self, event: Any) -> None:
            self.put("a", "b", value=1)
            self.drop("a", "b")
            self.put("a", value={"b": 2})
            self.put("a", "c", value=3)
            self.drop("a", "c")

    machine = Keeper("r", "me")
    stored: dict[str, Any] | None = None
    for _ in range(2):
        for action in machine.handle(Start()):
            assert isinstance(action, Checkpoint)
            stored = fold(stored, action)
        assert stored == machine.snapshot() == {"a": {"b": 2}}


def test_two_patches_in_a_row_join_to_what_both_make() -> None:
    def first() -> Checkpoint:
        return Checkpoint({"set": [[["a"], {"x": 1}], [["b"], 2]], "drop": []}, full=False)

    second = Checkpoint({"set": [[["a", "y"], 3]], "drop": [["b"]]}, full=False)
    both = joined(first(), second)
    assert both is not None
    wanted = {"c": 0, "a": {"x": 1, "y": 3}}
    assert fold({"c": 0}, both) == wanted == fold(fold({"c": 0}, first()), second)
    assert joined(second, first()) is None  # what is dropped first and set again would be lost
    whole = joined(Checkpoint({"a": {"x": 1}, "b": 2, "c": 0}), second)
    assert whole == Checkpoint(wanted)
    assert joined(first(), Checkpoint({"a": 1})) is None
