"""The pattern of docs/patterns.md: short, and as robust as it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pandacore as pc
from pandacore import patterns
from pandacore.testing import SimNetwork, explore

PAGE = Path(__file__).resolve().parents[2] / "docs" / "patterns.md"
RUNNERS = ["ann", "ben", "cid", "dot"]


def relay() -> tuple[Any, str]:
    """The class as the page shows it, and its text."""
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    source = block[1][: block[1].index("\nrunners = [")]
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
                partial(machine, "race", name, {"run": RUNNERS[1:]} if name == "ann" else None),
                agent=None if name == "ann" else lambda execute: execute.agent,
                caller=name == "ann",
            )
        net.chaos(RUNNERS[1:], crashes=1, until_s=0.8)
        net.chaos(["ann"], crashes=1, until_s=0.8, restart=1.0)

    def check(net: SimNetwork, report: Any) -> None:
        assert "ann" in report.finishes, "the race did not end"
        laps = report.finishes["ann"].value
        assert laps == [r for r in RUNNERS[1:] if r in laps], "a lap was run twice, or out of order"
        assert len(laps) >= len(RUNNERS) - 2

    counters = explore(build, check, seeds=range(200), loss=0.1, duplicate=0.1)
    assert counters["crash"] > 100
    assert counters["restarted"] > 100


CREW = """
import asyncio, os
import pandacore as pc
from pandacore.patterns import register
from relay import Relay

register("relay", Relay, Relay)

async def run_a_lap(task):
    with open(os.environ["LEDGER"], "a") as file:
        print(os.getpid(), file=file, flush=True)
    await asyncio.sleep(0.3)
    return os.getpid()

runner = pc.Agent(run_a_lap, capabilities=["run"])
"""


def host_of(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pandacore.team.serve", "crew"]
    env = {**os.environ, "LEDGER": str(folder / "ledger")}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
async def test_it_runs_over_grpc_and_skips_a_killed_runner(tmp_path: Path) -> None:
    machine, source = relay()
    (tmp_path / "relay.py").write_text(source)
    (tmp_path / "crew.py").write_text(CREW)
    ledger = tmp_path / "ledger"
    ledger.touch()
    hosts = [host_of(tmp_path) for _ in range(3)]
    try:
        patterns.register("relay", machine, machine)
        async with pc.Collective.local() as c:
            for host in hosts:
                assert host.stdout is not None
                await c.attach(json.loads(host.stdout.readline())["address"])
            run = c.start(pc.Task("race", capabilities=["run"], redundancy={"run": 3}), pattern="relay")
            async with asyncio.timeout(20):
                while len(ledger.read_text().split()) < 2:
                    await asyncio.sleep(0.005)
            first, second = map(int, ledger.read_text().split())
            os.kill(second, signal.SIGKILL)
            result = await run.result()
            (third,) = {h.pid for h in hosts} - {first, second}
            assert (result.output, result.failures) == ([first, third], ())
    finally:
        patterns.MACHINES.pop("relay", None)
        for host in hosts:
            host.kill()
            host.communicate()
