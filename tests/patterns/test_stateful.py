"""Hypothesis chooses the faults and their moments; star, chain and mesh keep their invariants throughout.

The invariants are those of the worlds in ``conftest.py``, checked after every event. A failing sequence is
shrunk to the fewest faults that break something.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pandacore.patterns import Limits
from pandacore.testing import SimNetwork

QUICK = settings(
    max_examples=60,
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
DEEP = settings(QUICK, max_examples=1_500, stateful_step_count=25, derandomize=False)
FAULTS = 6
"""Faults of one run; more would mostly show runs that end early for want of members."""


class TeamUnderFaults(RuleBasedStateMachine):
    """A run that goes on for a while, then suffers a fault, and so on; at the end it must have ended."""

    def __init__(self, world: Any) -> None:
        super().__init__()
        self.world = world
        self.net = SimNetwork()
        self.faults = 0

    @initialize(
        seed=st.integers(0, 2**32),
        loss=st.sampled_from([0.0, 0.05, 0.2]),
        duplicate=st.sampled_from([0.0, 0.3]),
        slowest_s=st.sampled_from([0.02, 0.4]),
    )
    def begin(self, seed: int, loss: float, duplicate: float, slowest_s: float) -> None:
        """A slow network lets messages overtake each other by far."""
        self.net = SimNetwork(seed, loss=loss, duplicate=duplicate, delay_s=(0.001, slowest_s))
        self.world.build(self.net)
        self.faults = 0

    @rule(for_s=st.sampled_from([0.01, 0.1, 0.5, 2.0]))
    def go_on(self, for_s: float) -> None:
        self.net.run(until_s=self.net.now + for_s)

    def fault(self, data: Any) -> str:
        """The node that suffers the next fault."""
        self.faults += 1
        return str(data.draw(st.sampled_from(self.net.names)))

    @precondition(lambda self: self.faults < FAULTS)
    @rule(data=st.data(), back_after_s=st.sampled_from([None, 0.1, 1.0]))
    def crash(self, data: Any, back_after_s: float | None) -> None:
        self.net.crash(self.fault(data), at_s=self.net.now, restart_after_s=back_after_s)

    @precondition(lambda self: self.faults < FAULTS)
    @rule(data=st.data(), boundary=st.integers(0, 30), back_after_s=st.sampled_from([None, 0.5]))
    def crash_before_an_effect(self, data: Any, boundary: int, back_after_s: float | None) -> None:
        self.net.crash_at(self.fault(data), boundary, restart_after_s=back_after_s)

    @precondition(lambda self: self.faults < FAULTS)
    @rule(data=st.data(), for_s=st.sampled_from([0.1, 1.0, 5.0]))
    def suspect_wrongly(self, data: Any, for_s: float) -> None:
        observer = data.draw(st.sampled_from(self.net.names))
        self.net.suspect(observer, self.fault(data), at_s=self.net.now, for_s=for_s)

    @precondition(lambda self: self.faults < FAULTS)
    @rule(data=st.data(), for_s=st.sampled_from([0.2, 2.0]))
    def cut_off(self, data: Any, for_s: float) -> None:
        self.net.partition({self.fault(data)}, at_s=self.net.now, for_s=for_s)

    def teardown(self) -> None:
        if self.net.names:
            self.world.check(self.net, self.net.run(until_s=self.net.now + 900))


def of(world: Any) -> type[TeamUnderFaults]:
    """The machine for one world."""

    class OfWorld(TeamUnderFaults):
        def __init__(self) -> None:
            super().__init__(world)

    return OfWorld


WORLDS = [
    ("star", {"limits": Limits(retransmit_s=0.5, patience_s=2.0)}),
    ("star", {"stand_ins": ()}),
    ("chain", {}),
    ("mesh", {}),
    ("mesh", {"certified": True}),
]
NAMES = ["star with stand-ins", "star alone", "chain", "mesh", "certified mesh"]


@pytest.mark.parametrize(("pattern", "options"), WORLDS, ids=NAMES)
def test_invariants_hold_whatever_happens(
    worlds: dict[str, Any], pattern: str, options: dict[str, Any]
) -> None:
    run_state_machine_as_test(of(worlds[pattern](**options)), settings=QUICK)


@pytest.mark.soak
@pytest.mark.parametrize(("pattern", "options"), WORLDS, ids=NAMES)
def test_invariants_hold_whatever_happens_for_long(
    worlds: dict[str, Any], pattern: str, options: dict[str, Any]
) -> None:
    run_state_machine_as_test(of(worlds[pattern](**options)), settings=DEEP)
