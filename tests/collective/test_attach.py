"""Agents of other processes: taken in with proof of their keys, watched, and replaced when killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.rpc.v1 import agent_pb2
from pandacore.team.card import card_of, read_card

CREW = """
import asyncio, os
import pandacore as pc

@pc.agent(capabilities=["work"], concurrency=4)
async def worker(task):
    with open(os.environ["LEDGER"], "a") as file:
        print(task.idempotency_key, os.getpid(), file=file, flush=True)
    await asyncio.sleep(0.05)
    return f"{task.text} by {os.getpid()}"
"""


@contextlib.asynccontextmanager
async def host(folder: Path, replicas: int = 2) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A host process with workers: the process, and its address."""
    (folder / "crew.py").write_text(CREW)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pandacore.team.serve", "crew", "--replicas", str(replicas)),
        cwd=folder,
        env={**os.environ, "LEDGER": str(folder / "ledger")},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    ready = json.loads(await process.stdout.readline())
    assert ready["agents"] == replicas
    try:
        yield process, ready["address"]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_agents_of_another_process_join_and_work(tmp_path: Path) -> None:
    async with host(tmp_path) as (process, address), pc.Collective.local() as c:
        assert await c.attach(address) == 2
        result = await c.run("hello")
        assert result.output == f"hello by {process.pid}"
        assert result.team.members[0].name == "worker"
        with pytest.raises(errors.DuplicateId):
            await c.attach(address)
        process.terminate()
        assert await process.wait() == 0


async def test_host_that_was_only_slow_is_taken_in_again(tmp_path: Path) -> None:
    async with host(tmp_path) as (process, address), pc.Collective.local() as c:
        await c.attach(address)
        process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(30):
                while len(c.registry):
                    await asyncio.sleep(0.05)
        finally:
            process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(30):
            while len(c.registry) < 2:
                await asyncio.sleep(0.05)
        assert (await c.run("hello")).output == f"hello by {process.pid}"


async def test_attaching_to_nobody_is_a_typed_error() -> None:
    async with pc.Collective.local() as c:
        with pytest.raises((errors.ConnectionLost, errors.DeadlineExceeded)):
            await c.attach("127.0.0.1:1")
        assert (await c.run("x")).failures[0].kind == "NoTeam"


def test_a_card_that_was_altered_or_is_replayed_is_refused() -> None:
    async def work(task: pc.Task) -> str:
        return ""

    nonce = os.urandom(32)
    agent = pc.Agent(work, capabilities=["a"])
    card = card_of(agent, nonce)
    assert read_card(card, nonce, "here").agent_id == agent.id
    with pytest.raises(errors.ProtocolError, match="not signed by its key"):
        read_card(card, os.urandom(32), "here")
    for change in ("name", "description", "capabilities", "concurrency", "agent_id", "signature"):
        other = agent_pb2.AgentCard.FromString(card.SerializeToString())
        match change:
            case "capabilities":
                other.capabilities.append("admin")
            case "concurrency":
                other.concurrency += 1
            case "agent_id" | "signature":
                setattr(other, change, os.urandom(len(getattr(card, change))))
            case _:
                setattr(other, change, "other")
        with pytest.raises(errors.ProtocolError, match="not signed by its key"):
            read_card(other, nonce, "here")


@pytest.mark.slow
async def test_f01_killed_hosts_are_replaced_and_nothing_committed_is_done_twice(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    plan = pc.Plan([pc.Subtask(f"s{n}", "work", f"step {n}", [f"s{n - 1}"] if n else []) for n in range(4)])
    async with contextlib.AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(host(tmp_path)) for _ in range(3)]
        c = await stack.enter_async_context(pc.Collective.local())
        for _, address in hosts:
            await c.attach(address)
        runs = [c.start(pc.Task(f"run {n}", plan=plan, idempotent=True)) for n in range(12)]
        for process, _ in hosts[:2]:  # two of three die while the runs go on
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            os.kill(process.pid, signal.SIGKILL)
        results = await asyncio.gather(*(run.result() for run in runs))
        assert [r.status for r in results] == ["completed"] * 12, (
            f"seed {seed}: {[r.failures for r in results]}"
        )
        assert any(isinstance(e, pc.SubtaskFailed) for r in results for e in r.events), f"seed {seed}"
        for result in results:
            done = [e.subtask_id for e in result.events if isinstance(e, pc.SubtaskCompleted)]
            assert sorted(done) == ["s0", "s1", "s2", "s3"], f"seed {seed}"
        # Once the detector has spoken, the dead hosts' agents are out of the registry.
        async with asyncio.timeout(10):
            while len(c.registry) > 2:
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_without_idempotence_a_killed_host_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    async with host(tmp_path, replicas=1) as (process, address), pc.Collective.local() as c:
        await c.attach(address)
        async for event in c.stream("once"):
            if isinstance(event, pc.SubtaskStarted):
                async with asyncio.timeout(10):
                    while not (tmp_path / "ledger").exists():
                        await asyncio.sleep(0.001)
                os.kill(process.pid, signal.SIGKILL)
            if isinstance(event, pc.RunFinished):
                assert event.result.failures[0].kind == "UnknownOutcome"
    assert len((tmp_path / "ledger").read_text().splitlines()) == 1
