"""Cancellation at any moment of any pattern: one terminal state, at once, and nothing goes on."""

from __future__ import annotations

from typing import Any

import pytest

from pandacore import errors
from pandacore.testing import SimNetwork, explore


@pytest.mark.parametrize(("pattern", "entry"), [("star", "hub"), ("chain", "root"), ("mesh", "root")])
def test_a_cancelled_run_ends_within_a_second_and_stops_its_agents(
    worlds: dict[str, Any], pattern: str, entry: str
) -> None:
    world = worlds[pattern]()

    def at(net: SimNetwork) -> float:
        return 0.01 + net.seed % 40 * 0.03

    def build(net: SimNetwork) -> None:
        world.build(net)
        net.cancel(entry, at_s=at(net))
        net.chaos(net.names[1:], crashes=1, suspicions=1, until_s=1.0)
        if net.seed % 3 == 0:
            net.partition({entry}, at_s=0.1, for_s=2.0)

    def check(net: SimNetwork, report: Any) -> None:
        finish = report.finishes[entry]
        assert report.time_s <= at(net) + 1.0
        if finish.failed:
            assert isinstance(finish.failed[""], errors.Cancelled)
        late = [t for t, _, _, _ in net.run(until_s=120, drain=True).executions if t > at(net) + 20]
        assert not late, "work was started long after the end"

    explore(build, check, seeds=range(80), loss=0.05)
