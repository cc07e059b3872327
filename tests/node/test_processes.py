"""Host processes on loopback: found by gossip, stopped, killed, paused."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pandacore import errors
from pandacore.gossip import Announcement, Node
from pandacore.launchers import HostSpec, LocalLauncher
from pandacore.trust import KeyPair

HOME = bytes([6]) * 32


async def announce_one(node: Node, arguments: dict[str, Any]) -> None:
    """The entry of the hosts of these tests."""
    node.announce(Announcement(bytes([arguments["number"]]) * 32, ["test.one"], name=f"of {os.getpid()}"))


async def fail(node: Node, arguments: dict[str, Any]) -> None:
    """An entry that breaks."""
    raise RuntimeError("the entry broke")


async def until(node: Node, check: Callable[[], bool], seconds: float) -> float:
    start = time.monotonic()
    while not check():
        assert time.monotonic() - start < seconds, [(m.state, m.did[-6:]) for m in node.members()]
        await node.wait_async(node.version, timeout_s=0.05)
    return time.monotonic() - start


def states(node: Node) -> dict[str, str]:
    return {m.did: m.state for m in node.members()}


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> str:
    # The children import this file by name.
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    return "test_processes:announce_one"


async def test_three_processes_find_each_other_and_leave_cleanly(entry: str) -> None:
    async with Node.start(KeyPair.generate(), HOME) as node, LocalLauncher() as launcher:
        hosts = [
            await launcher.start(
                HostSpec(HOME, entry=entry, arguments={"number": i}, seeds=(f"{node.did}@{node.address}",))
            )
            for i in (1, 2, 3)
        ]
        assert [h.pid for h in await launcher.hosts()] == [h.pid for h in hosts]
        await until(node, lambda: len(node.agents()) == 3, 10)
        assert {a.name for a in node.agents()} == {f"of {h.pid}" for h in hosts}
        assert len(launcher.seeds()) == 3
        start = time.monotonic()
        await launcher.stop(hosts[0])
        assert time.monotonic() - start < 2
        await until(node, lambda: states(node)[hosts[0].did] == "left", 2)
        assert {a.name for a in node.agents()} == {f"of {h.pid}" for h in hosts[1:]}


async def test_a_killed_process_is_dead_for_all_in_time_and_may_come_back(entry: str) -> None:
    async with Node.start(KeyPair.generate(), HOME) as node, LocalLauncher() as launcher:
        key = KeyPair.generate()
        seeds = (node.address,)
        spec = HostSpec(HOME, entry=entry, arguments={"number": 1}, seeds=seeds, key=key)
        victim = await launcher.start(spec)
        others = [
            await launcher.start(HostSpec(HOME, entry=entry, arguments={"number": i}, seeds=seeds))
            for i in (2, 3)
        ]
        await until(node, lambda: len(node.agents()) == 3, 10)
        os.kill(victim.pid, signal.SIGKILL)
        await until(node, lambda: states(node)[key.did] == "down", 12)
        assert len(node.agents()) == 2, "the agents go with their host"
        again = await launcher.start(spec)
        await until(node, lambda: states(node)[key.did] == "alive" and len(node.agents()) == 3, 5)
        assert [m.id for m in node.members()].count(key.public) == 1
        assert again.did == victim.did
        assert {m.state for m in node.members() if m.did in {o.did for o in others}} == {"alive"}


async def test_a_paused_process_accuses_nobody(entry: str) -> None:
    async with Node.start(KeyPair.generate(), HOME) as node, LocalLauncher() as launcher:
        hosts = [await launcher.start(HostSpec(HOME, seeds=(node.address,))) for _ in range(3)]
        await until(node, lambda: len(node.members()) == 4, 10)
        sleeper = hosts[0]
        os.kill(sleeper.pid, signal.SIGSTOP)
        try:
            deaths = set()
            until_then = time.monotonic() + 6
            while time.monotonic() < until_then:
                deaths |= {m.did for m in node.members() if m.state == "down"}
                await node.wait_async(node.version, timeout_s=0.2)
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        assert deaths <= {sleeper.did}
        await until(node, lambda: {m.state for m in node.members()} == {"alive"}, 10)
        assert node.counters()["deaths"] <= 1


async def test_twenty_starts_of_one_key_leave_one_live_entry() -> None:
    key = KeyPair.generate()
    async with Node.start(KeyPair.generate(), HOME) as node:
        for number in range(20):
            again = Node.start(key, HOME, seeds=[node.address])
            await again.join(10)
            again.announce(Announcement(bytes([9]) * 32, ["a"], name=f"start {number}"))
            await again.wait_async(again.version, timeout_s=0.1)
            again.close(leave=number % 2 == 0)
        seen = max(m.epoch for m in node.members() if m.id == key.public)
        last = Node.start(key, HOME, seeds=[node.address])
        await last.join(10)
        last.announce(Announcement(bytes([9]) * 32, ["a"], name="the last"))
        await until(node, lambda: [a.name for a in node.agents()] == ["the last"], 10)
        assert [(m.id, m.state) for m in node.members() if not m.is_self] == [(key.public, "alive")]
        # A start that was killed before anybody heard of its epoch leaves it to the next one.
        assert last.epoch > seen >= 10
        await last.leave()


async def test_a_killed_host_that_kept_no_counter_is_let_in_at_once(entry: str) -> None:
    key, seeds = KeyPair.generate(), []
    async with Node.start(KeyPair.generate(), HOME) as first, LocalLauncher() as launcher:
        seeds = [first.address]
        earlier = Node.start(key, HOME, seeds=seeds)
        await earlier.join(10)
        earlier.close(leave=False)
        spec = HostSpec(HOME, entry=entry, arguments={"number": 1}, seeds=(first.address,), key=key)
        killed = await launcher.start(spec)
        await until(first, lambda: states(first)[key.did] == "alive" and len(first.agents()) == 1, 10)
        async with Node.start(KeyPair.generate(), HOME, seeds=seeds) as second:
            await second.join(10)
            # The second one has met the process after it learned that it is not the first start of its key.
            await until(second, lambda: second.counters()["connections"] == 2, 20)
            [known] = [m.epoch for m in second.members() if m.did == key.did]
            os.kill(killed.pid, signal.SIGKILL)
            # Its connections stay open for half a minute: nobody said that they end.
            async with Node.start(key, HOME, seeds=[second.address]) as again:
                assert (await again.join(10)).complete
                # Well before the half minute, also on a busy machine.
                await until(second, lambda: again.epoch > known and again.root() == second.root(), 20)


async def test_a_late_joiner_has_a_hundred_thousand_agents_when_join_returns() -> None:
    async with Node.start(KeyPair.generate(), HOME) as node:
        node.publish_synthetic(100_000, 1, 100)
        await until(node, lambda: node.rows == 100_000, 60)
        async with Node.start(KeyPair.generate(), HOME, seeds=[node.address]) as late:
            report = await late.join(60)
            assert (report.complete, report.agents, late.rows) == (True, 100_000, 100_000)
            assert late.root() == node.root()


@pytest.mark.soak
async def test_fifty_processes_notice_a_kill_in_time_and_survive_pauses() -> None:
    async with Node.start(KeyPair.generate(), HOME) as node, LocalLauncher() as launcher:
        hosts = [await launcher.start(HostSpec(HOME, seeds=(node.address,))) for _ in range(49)]
        await until(node, lambda: len(node.members()) == 50, 30)
        await until(node, lambda: set(states(node).values()) == {"alive"}, 30)
        times = []
        for victim in hosts[:5]:
            os.kill(victim.pid, signal.SIGKILL)
            times.append(await until(node, lambda v=victim: states(node)[v.did] == "down", 20))  # type: ignore[misc]
        assert max(times) <= 8, times
        sleepers = hosts[5:7]
        for host in sleepers:
            os.kill(host.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        fallen: set[str] = set()
        while time.monotonic() < deadline:
            fallen |= {did for did, state in states(node).items() if state == "down"}
            await node.wait_async(node.version, timeout_s=0.2)
        for host in sleepers:
            os.kill(host.pid, signal.SIGCONT)
        assert fallen <= {h.did for h in hosts[:7]}
        await until(node, lambda: all(states(node)[h.did] == "alive" for h in hosts[5:]), 20)


async def test_an_entry_that_breaks_is_told_with_what_it_wrote(entry: str) -> None:
    async with LocalLauncher() as launcher:
        with pytest.raises(errors.ConnectionLost, match="no_such_function"):
            await launcher.start(HostSpec(HOME, entry="test_processes:no_such_function"))
        host = await launcher.start(HostSpec(HOME, entry="test_processes:fail"))
        async with asyncio.timeout(20):
            lines = [line async for line in launcher.logs(host)]
        assert any("the entry broke" in line for line in lines)
        assert await launcher.hosts() == []


async def test_a_host_that_cannot_write_its_start_counter_down_stops_and_says_so(
    entry: str, tmp_path: Path
) -> None:
    key = KeyPair.generate()
    async with LocalLauncher() as launcher:
        handle = await launcher.start(HostSpec(HOME, entry=entry, arguments={"number": 1}))
        seeds = launcher.seeds()
        earlier = Node.start(key, HOME, seeds=seeds)
        await earlier.join(10)
        earlier.close(leave=False)
        # The other one keeps still until the folder is such that nothing can be written to it.
        os.kill(handle.pid, signal.SIGSTOP)
        again = Node.start(key, HOME, seeds=seeds, state_dir=tmp_path)
        (tmp_path / "epoch.new").mkdir()
        os.kill(handle.pid, signal.SIGCONT)
        with pytest.raises(errors.StateError, match="start counter not written"):
            await again.join(20)
        assert again.ended
        assert (tmp_path / "epoch").read_text() == "1\n"
        again.close()
