"""The pattern of docs/patterns.md: short, and as robust as it says."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from pandacore.testing import SimNetwork, explore

PAGE = Path(__file__).resolve().parents[2] / "docs" / "patterns.md"
RUNNERS = ["ann", "ben", "cid", "dot"]


def relay() -> tuple[Any, str]:
    """The class as the page shows it, and its text."""
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    source = block[1][: block[1].index("runners = [")]
    names: dict[str, Any] = {}
    exec(compile(source, str(PAGE), "exec"), names)
    return names["Relay"], source


def test_a_users_pattern_takes_less_than_sixty_lines() -> None:
    _, source = relay()
    assert len([line for line in source.splitlines() if line.strip()]) < 60


def test_it_survives_loss_duplication_crashes_and_restarts() -> None:
    machine, _ = relay()

    def build(net: SimNetwork) -> None:
        for name in RUNNERS:
            net.add(
                name,
                partial(machine, "race", name, RUNNERS),
                agent=lambda execute: execute.agent,
                caller=name == "ann",
            )
        net.chaos(RUNNERS[1:], crashes=1, until_s=0.8)
        net.chaos(["ann"], crashes=1, until_s=0.8, restart=1.0)

    def check(net: SimNetwork, report: Any) -> None:
        assert "ann" in report.finishes, "the race did not end"
        laps = report.finishes["ann"].value
        assert laps[0] == "ann"
        assert laps == [r for r in RUNNERS if r in laps], "a lap was run twice, or out of order"
        assert len(laps) >= len(RUNNERS) - 1

    counters = explore(build, check, seeds=range(200), loss=0.1, duplicate=0.1)
    assert counters["crash"] > 100
    assert counters["restarted"] > 100
