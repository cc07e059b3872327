"""The stream that carries a host's many small calls: what happens to them when it breaks."""

from __future__ import annotations

import asyncio
import sys

import pytest

from pandacore import Agent, Task, errors
from pandacore.rpc.outbox import BATCH_BYTES, BATCH_CALLS, take_batch
from pandacore.rpc.v1 import agent_pb2
from pandacore.team.client import AgentClient, AgentEvent, Started, SubtaskError
from pandacore.team.host import Host


async def forever(task: Task) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_a_host_that_stops_ends_every_call_and_the_next_one_finds_its_successor() -> None:
    host = Host()
    client = AgentClient(await host.start())
    agent = Agent(forever, capabilities=["work"], concurrency=8)
    host.add(agent)
    started = 0
    all_started = asyncio.Event()

    async def run(name: str) -> None:
        request = agent_pb2.AssignRequest(
            agent_id=agent.id, run_id="run", subtask_id=name, attempt=1, instruction="x"
        )

        def heard(event: AgentEvent) -> None:
            nonlocal started
            if isinstance(event, Started):
                started += 1
                if started == 3:
                    all_started.set()

        await client.assign(request, timeout_s=30, tell=heard)

    work = [asyncio.create_task(run(f"s{n}")) for n in range(3)]
    async with asyncio.timeout(10):
        await all_started.wait()
        server = host._server
        assert server is not None
        await server.stop(grace=0)
        ends = await asyncio.gather(*work, return_exceptions=True)
    for end in ends:
        assert isinstance(end, SubtaskError)
        assert end.executed
        assert isinstance(end.error, errors.UnknownOutcome)
    with pytest.raises(errors.ConnectionLost):
        await client.probe(agent.id, timeout_s=5)
    # Nobody listens any more: the host stops what it ran.
    async with asyncio.timeout(5):
        while host.worker(agent.id).queue.load:
            await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(errors.ConnectionLost, match="closed"):
        await client.probe(agent.id, timeout_s=5)
    await host.close()


def test_a_message_takes_what_fits_and_a_large_item_goes_alone() -> None:
    small = [agent_pb2.Call(id=n, release=agent_pb2.ReleaseRequest(run_id="x")) for n in range(1, 601)]
    pending = [(call, call.ByteSize()) for call in small]
    sizes = []
    while pending:
        batch, size = take_batch(pending)
        assert size == sum(call.ByteSize() for call in batch)
        sizes.append(len(batch))
    assert sizes == [BATCH_CALLS, BATCH_CALLS, 600 - 2 * BATCH_CALLS]
    large = agent_pb2.Call(id=1, assign=agent_pb2.AssignRequest(inputs_json="x" * 2 * BATCH_BYTES))
    pending = [(call, call.ByteSize()) for call in (small[0], large, small[1])]
    assert [take_batch(pending)[0] for _ in range(3)] == [[small[0]], [large], [small[1]]]


async def test_a_host_with_a_lifeline_ends_with_its_parent() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pandacore.team.serve", "pandacore.bench.workers", "--lifeline"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert b'"ready": true' in await process.stdout.readline()
        process.stdin.close()
        assert await process.wait() == 0
