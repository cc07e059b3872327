"""Agents served over real gRPC on loopback: probes, invitations, assignments, cancellation, limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pandacore import Agent, AgentContext, Task, errors
from pandacore.rpc.channel import MAX_PAYLOAD, open_channel
from pandacore.rpc.v1 import agent_pb2
from pandacore.team.client import (
    Accepted,
    AgentClient,
    AgentEvent,
    Completed,
    Progress,
    Started,
    SubtaskError,
)
from pandacore.team.host import Host


class Served:
    """A host with its client, and short forms of the calls."""

    def __init__(self, host: Host, client: AgentClient) -> None:
        self.host = host
        self.client = client

    def add(self, handler: Any, **options: Any) -> Agent:
        agent = Agent(handler, capabilities=["work"], **options)
        self.host.add(agent)
        return agent

    def request(self, agent: Agent, **fields: Any) -> agent_pb2.AssignRequest:
        defaults: dict[str, Any] = {
            "agent_id": agent.id,
            "run_id": "run",
            "subtask_id": "s1",
            "attempt": 1,
            "capability": "work",
            "instruction": "do it",
            "inputs_json": "{}",
            "unlimited_tokens": True,
        }
        return agent_pb2.AssignRequest(**{**defaults, **fields})

    async def output(self, agent: Agent, **fields: Any) -> Any:
        done = await self.client.assign(self.request(agent, **fields), timeout_s=10)
        return json.loads(done.output_json)

    async def events(self, request: agent_pb2.AssignRequest) -> list[AgentEvent]:
        heard: list[AgentEvent] = []
        done = await self.client.assign(request, timeout_s=10, tell=heard.append)
        return [*heard, done]


@pytest.fixture(params=["over a socket", "in the process"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    host = Host()
    client = AgentClient(await host.start(), host=host if request.param == "in the process" else None)
    yield Served(host, client)
    await client.close()
    await host.close()


async def echo(task: Task) -> str:
    return task.text


async def eventually(condition: Any, seconds: float = 5.0) -> None:
    """Wait until ``condition()`` holds; fail after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_an_assignment_streams_its_life(served: Served) -> None:
    async def work(task: Task, ctx: AgentContext) -> dict[str, Any]:
        ctx.progress("half way")
        return {
            "text": task.text,
            "inputs": dict(task.inputs),
            "root": task.root_text,
            "key": task.idempotency_key,
        }

    agent = served.add(work)
    request = served.request(agent, inputs_json='{"s0": [1]}', root_text="whole", idempotency_key="k")
    events = await served.events(request)
    assert [type(e) for e in events] == [Accepted, Started, Progress, Completed]
    assert json.loads(events[-1].output_json) == {  # type: ignore[union-attr]
        "text": "do it",
        "inputs": {"s0": [1]},
        "root": "whole",
        "key": "k",
    }


async def test_plain_functions_run_in_threads_and_classes_serve_too(served: Served) -> None:
    def blocking(task: Task) -> str:
        return threading.current_thread().name

    class Reader:
        async def __call__(self, task: Task) -> str:
            return "called"

    assert (await served.output(served.add(blocking))).startswith("pandacore-agent")
    assert await served.output(served.add(Reader())) == "called"


async def test_probe_and_invitation_show_the_load(served: Served) -> None:
    agent = served.add(echo, concurrency=2, queue_limit=1)
    assert (await served.client.probe(agent.id, timeout_s=5)).total == 0
    for run in ("r1", "r2", "r3"):
        accepted, _, load = await served.client.invite(agent.id, run, "work", ttl_s=60, timeout_s=5)
        assert accepted
    assert load.reserved == 3
    assert (await served.client.invite(agent.id, "r4", "work", ttl_s=60, timeout_s=5))[:2] == (
        False,
        "queue full",
    )
    assert await served.client.release(agent.id, "r1", timeout_s=5)
    assert not await served.client.release(agent.id, "r1", timeout_s=5)
    accepted, reason, _ = await served.client.invite(agent.id, "r5", "swim", ttl_s=60, timeout_s=5)
    assert (accepted, reason) == (False, "no capability 'swim'")


async def test_a_reservation_of_a_dead_caller_expires(served: Served) -> None:
    agent = served.add(echo, queue_limit=0)
    assert (await served.client.invite(agent.id, "dead", "work", ttl_s=0.05, timeout_s=5))[0]
    worker = served.host.worker(agent.id)
    await eventually(lambda: worker.queue.reserved == 0)
    assert (await served.client.invite(agent.id, "r2", "work", ttl_s=5, timeout_s=5))[0]


async def test_failures_of_the_agent_are_typed_and_never_an_output(served: Served) -> None:
    async def broken(task: Task) -> str:
        raise KeyError("missing thing")

    async def typed(task: Task) -> str:
        raise errors.RateLimited("slow down", retry_after_s=2.5)

    async def no_json(task: Task) -> object:
        return object()

    with pytest.raises(SubtaskError) as caught:
        await served.output(served.add(broken))
    assert isinstance(caught.value.error, errors.AgentFailed)
    assert caught.value.error.kind == "KeyError"
    assert caught.value.executed
    with pytest.raises(SubtaskError) as caught:
        await served.output(served.add(typed))
    assert isinstance(caught.value.error, errors.RateLimited)
    assert caught.value.error.retry_after_s == 2.5
    with pytest.raises(SubtaskError, match="no JSON value"):
        await served.output(served.add(no_json))


async def test_an_agent_without_a_model_gets_a_state_error(served: Served) -> None:
    async def asks(task: Task, ctx: AgentContext) -> str:
        return str(ctx.model)

    with pytest.raises(SubtaskError) as caught:
        await served.output(served.add(asks))
    assert isinstance(caught.value.error, errors.StateError)


async def test_unknown_agents_and_duplicate_attempts_are_refused(served: Served) -> None:
    release = asyncio.Event()

    async def waits(task: Task) -> str:
        await release.wait()
        return "done"

    with pytest.raises(errors.UnknownAgent):
        await served.client.probe(b"\x01" * 32, timeout_s=5)
    agent = served.add(waits)
    first = asyncio.create_task(served.output(agent))
    await eventually(lambda: served.host.worker(agent.id).queue.running)
    with pytest.raises(SubtaskError) as caught:
        await served.output(agent)
    assert isinstance(caught.value.error, errors.DuplicateId)
    assert not caught.value.executed
    release.set()
    assert await first == "done"


async def test_what_must_not_run_twice_begins_late_only_where_it_cannot_have_been(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    async def work(task: Task) -> str:
        calls.append(task.attempt)
        return "done"

    agent = served.add(work)
    await served.client.invite(agent.id, "run", "work", ttl_s=60, timeout_s=5)
    memory = served.client.memory
    asks: dict[str, Any] = {"only_if_known": True, "orphan_grace_ms": 1000}
    for other in (b"", b"another!"):  # another process, or one that has forgotten attempts since
        with pytest.raises(SubtaskError) as refused:
            await served.output(agent, **asks, memory=other)
        assert isinstance(refused.value.error, errors.UnknownOutcome)
    assert calls == []
    assert await served.output(agent, **asks, memory=memory) == "done", "it never came"
    assert await served.output(agent, **asks, memory=memory) == "done", "it is told how it ended"
    assert await served.output(agent, attempt=2) == "done"  # nobody asked for its result to be kept
    for fields in ({**asks, "memory": memory}, {}):
        with pytest.raises(SubtaskError) as refused:
            await served.output(agent, attempt=2, **fields)
        assert isinstance(refused.value.error, errors.UnknownOutcome if fields else errors.DuplicateId)
    assert calls == [1, 2]

    monkeypatch.setattr("pandacore.team.host.MAX_REMEMBERED", 4)
    for attempt in range(3, 6):
        await served.output(agent, attempt=attempt)
    await served.client.invite(agent.id, "run", "work", ttl_s=60, timeout_s=5)
    assert served.client.memory != memory, "what it forgot may have been anything"
    with pytest.raises(SubtaskError) as refused:
        await served.output(agent, **asks, attempt=9, memory=memory)
    assert isinstance(refused.value.error, errors.UnknownOutcome)
    assert calls == [1, 2, 3, 4, 5]


async def test_a_full_queue_answers_overloaded_before_anything_ran(served: Served) -> None:
    release = asyncio.Event()

    async def waits(task: Task) -> str:
        await release.wait()
        return "done"

    agent = served.add(waits, queue_limit=0)
    first = asyncio.create_task(served.output(agent))
    await eventually(lambda: served.host.worker(agent.id).queue.running)
    with pytest.raises(SubtaskError) as caught:
        await served.output(agent, subtask_id="s2")
    assert isinstance(caught.value.error, errors.Overloaded)
    assert not caught.value.executed
    release.set()
    await first


@pytest.mark.parametrize("where", ["queued", "running"])
async def test_cancel_ends_a_subtask_wherever_it_is(served: Served, where: str) -> None:
    entered = asyncio.Event()

    async def waits(task: Task) -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    agent = served.add(waits)
    work = [asyncio.create_task(served.output(agent, subtask_id="running"))]
    await entered.wait()
    work.append(asyncio.create_task(served.output(agent, subtask_id="queued")))
    await eventually(lambda: served.host.worker(agent.id).queue.queued)
    state = await served.client.cancel(agent.id, "run", where, 1, timeout_s=5)
    assert state == agent_pb2.ATTEMPT_STATE_CANCELLED
    with pytest.raises(SubtaskError) as caught:
        await work[where == "queued"]
    assert isinstance(caught.value.error, errors.Cancelled)
    # Idempotent, and remembered after the end.
    assert await served.client.cancel(agent.id, "run", where, 1, timeout_s=5) == state
    assert (
        await served.client.cancel(agent.id, "run", "other", 1, timeout_s=5)
        == agent_pb2.ATTEMPT_STATE_UNKNOWN
    )
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)


async def test_fc_41_code_that_swallows_its_cancellation_is_reported_and_abandoned(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def stubborn(task: Task) -> str:
        entered.set()
        while not leave.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await leave.wait()
        return "too late"

    agent = served.add(stubborn)
    work = asyncio.create_task(served.output(agent))
    await entered.wait()
    async with asyncio.timeout(3):
        state = await served.client.cancel(agent.id, "run", "s1", 1, timeout_s=2)
    assert state == agent_pb2.ATTEMPT_STATE_ABANDONED
    with pytest.raises(SubtaskError, match="ignored the cancellation"):
        await work
    assert "abandoned" in caplog.text
    worker = served.host.worker(agent.id)
    assert (worker.queue.running, worker.abandoned) == (0, 1)
    leave.set()
    await eventually(lambda: worker.abandoned == 0)
    assert worker.queue.running == 0


async def test_a_caller_that_hangs_up_stops_the_work(served: Served) -> None:
    stopped = asyncio.Event()

    async def waits(task: Task) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    agent = served.add(waits)
    work = asyncio.create_task(served.output(agent))
    await eventually(lambda: served.host.worker(agent.id).queue.running)
    work.cancel()
    async with asyncio.timeout(3):
        await stopped.wait()
    await eventually(lambda: served.host.worker(agent.id).queue.load == 0)


async def test_the_deadline_of_the_call_stops_the_work(served: Served) -> None:
    stopped = asyncio.Event()

    async def waits(task: Task, ctx: AgentContext) -> str:
        assert ctx.remaining_s is not None
        assert ctx.remaining_s < 1
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    agent = served.add(waits)
    with pytest.raises(SubtaskError) as caught:
        await served.client.assign(served.request(agent), timeout_s=0.2)
    assert isinstance(caught.value.error, errors.DeadlineExceeded)
    async with asyncio.timeout(3):
        await stopped.wait()


async def test_many_calls_share_messages_and_none_is_mixed_up(served: Served) -> None:
    async def double(task: Task) -> int:
        return 2 * int(task.text)

    agents = [served.add(double, concurrency=8, queue_limit=200) for _ in range(3)]
    inputs = f'{{"a": "{"x" * 9_000}"}}'
    asked = [
        served.output(agents[n % 3], subtask_id=f"s{n}", instruction=str(n), inputs_json=inputs)
        for n in range(300)
    ]
    assert await asyncio.gather(*asked) == [2 * n for n in range(300)]


async def test_inputs_that_are_no_object_fail_with_their_place(served: Served) -> None:
    async def never(task: Task) -> str:
        raise AssertionError("must not run")

    with pytest.raises(SubtaskError, match=r"must be a JSON object, is list") as caught:
        await served.output(served.add(never), inputs_json="[1]")
    assert "AssignRequest.inputs_json" in str(caught.value)


async def test_progress_beyond_what_is_read_is_dropped_and_the_end_still_arrives(served: Served) -> None:
    async def chatty(task: Task, ctx: AgentContext) -> str:
        for n in range(10_000):
            ctx.progress(str(n))
        return "end"

    request = served.request(served.add(chatty))
    events = await served.events(request)
    lines = [e.text for e in events if isinstance(e, Progress)]
    assert 0 < len(lines) <= 64
    assert lines[-1] == "9999"
    assert isinstance(events[-1], Completed)


async def test_heartbeat_names_the_attempts_of_a_run(served: Served) -> None:
    async def waits(task: Task) -> str:
        await asyncio.Event().wait()
        return "never"

    agent = served.add(waits)
    queue = served.host.worker(agent.id).queue
    work = [asyncio.create_task(served.output(agent, subtask_id="a"))]
    await eventually(lambda: queue.running)
    work.append(asyncio.create_task(served.output(agent, subtask_id="b")))
    await eventually(lambda: queue.queued)
    assert await served.client.heartbeat("run", timeout_s=5) == {
        (agent.id, "a", 1): agent_pb2.ATTEMPT_STATE_RUNNING,
        (agent.id, "b", 1): agent_pb2.ATTEMPT_STATE_QUEUED,
    }
    assert await served.client.heartbeat("other", timeout_s=5) == {}
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)


@pytest.mark.parametrize("mebibytes", [3.9, 4.1, 64.0])
async def test_fc_53_an_output_over_the_limit_is_one_typed_error(served: Served, mebibytes: float) -> None:
    calls = []

    async def large(task: Task) -> str:
        calls.append(1)
        return "x" * int(mebibytes * 1024 * 1024)

    agent = served.add(large, name="big")
    if mebibytes < 4:
        assert len(await served.output(agent)) == int(mebibytes * 1024 * 1024)
    else:
        with pytest.raises(SubtaskError) as caught:
            await served.output(agent)
        error = caught.value.error
        assert isinstance(error, errors.PayloadTooLarge)
        assert error.size > error.limit == MAX_PAYLOAD
        assert error.producer == "agent 'big'"
    assert len(calls) == 1


async def test_fc_53_inputs_that_add_up_over_the_limit_are_refused_before_sending(served: Served) -> None:
    agent = served.add(echo)
    parts = json.dumps({f"s{i}": "x" * 1024 * 1024 for i in range(5)})
    with pytest.raises(errors.PayloadTooLarge) as caught:
        await served.output(agent, inputs_json=parts)
    assert caught.value.limit == MAX_PAYLOAD
    assert "the input of subtask 's1'" in caught.value.producer


async def test_health_and_reflection_are_served(served: Served) -> None:
    async with open_channel(served.host.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "pandacore.rpc.v1.AgentService"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        mirror: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        names = []
        async for answer in mirror.ServerReflectionInfo(iter([request]), timeout=5):
            names = [s.name for s in answer.list_services_response.service]
        assert "pandacore.rpc.v1.AgentService" in names


HOST_PROGRAM = """
import asyncio, sys
from pandacore import Agent
from pandacore.team.host import Host

async def effect(task):
    with open(sys.argv[1], "a") as ledger:
        print(task.idempotency_key, file=ledger, flush=True)
    await asyncio.Event().wait()

async def main():
    host = Host()
    address = await host.start()
    agent = Agent(effect, capabilities=["work"])
    host.add(agent)
    print(address, agent.id.hex(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_fc_56_an_agent_that_dies_after_its_effect_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST_PROGRAM, str(ledger), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address, agent_id = (await process.stdout.readline()).decode().split()
    client = AgentClient(address)
    request = agent_pb2.AssignRequest(
        agent_id=bytes.fromhex(agent_id),
        run_id="run",
        subtask_id="s1",
        attempt=1,
        instruction="x",
        idempotency_key="run/s1",
    )
    work = asyncio.create_task(client.assign(request, timeout_s=20))
    await eventually(lambda: ledger.exists() and ledger.read_text() != "")
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(SubtaskError) as caught:
        await work
    await process.wait()
    assert isinstance(caught.value.error, errors.UnknownOutcome)
    assert caught.value.executed
    assert ledger.read_text() == "run/s1\n"
    with pytest.raises(errors.ConnectionLost):
        await client.probe(bytes.fromhex(agent_id), timeout_s=5)
    await client.close()
