"""AutoGen's gRPC runtime under the load of ``pandacore bench orchestration``; prints one JSON object.

A script for an interpreter with ``autogen-core`` and ``autogen-ext[grpc]``. They cannot share an environment
with pandacore, since they pin an older protobuf, so this file uses neither pandacore nor anything it brings.

Usage: ``python autogen_peer.py SECONDS WIDTH`` measures; ``python autogen_peer.py worker ADDRESS TYPE`` is
one of the worker processes that it starts.
"""

# No `from __future__ import annotations` here: the message handlers are found by their annotations.

import asyncio
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

WORKERS = 4
AGENTS = 25
SUBTASKS = 4
GIVE_UP_S = 15.0


@dataclass
class Work:
    """What is sent and answered; ``seconds`` is how long the agent works."""

    text: str
    seconds: float = 0.0


def _agent() -> Any:
    from autogen_core import MessageContext, RoutedAgent, message_handler

    class Worker(RoutedAgent):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("worker")

        @message_handler  # type: ignore[untyped-decorator]
        async def work(self, message: Work, ctx: MessageContext) -> Work:
            if message.seconds:
                await asyncio.sleep(message.seconds)
            return message

    return Worker


async def _serve(address: str, kind: str) -> None:
    from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime

    runtime = GrpcWorkerAgentRuntime(host_address=address)
    await runtime.start()
    worker = _agent()
    await worker.register(runtime, kind, worker)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await runtime.stop_when_signal()


async def _start(address: str, kind: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "worker", address, kind, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        await process.stdout.readline()
    return process


async def _measure(seconds: float, width: int) -> dict[str, Any]:
    from autogen_core import AgentId, try_get_known_serializers_for_type
    from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime, GrpcWorkerAgentRuntimeHost

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    host = GrpcWorkerAgentRuntimeHost(address=address)
    host.start()
    runtime = GrpcWorkerAgentRuntime(host_address=address)
    await runtime.start()
    runtime.add_message_serializer(try_get_known_serializers_for_type(Work))
    workers = [await _start(address, f"w{n}") for n in range(WORKERS)]
    done, waits = 0, []

    async def loop(start: int, end: float) -> None:
        nonlocal done
        turn = start
        while time.perf_counter() < end:
            began = time.perf_counter()
            ids = [AgentId(f"w{(turn + n) % WORKERS}", str((turn + n) % AGENTS)) for n in range(SUBTASKS)]
            await asyncio.gather(*(runtime.send_message(Work("do it"), i) for i in ids))
            waits.append(time.perf_counter() - began)
            done += SUBTASKS
            turn += SUBTASKS

    begin = time.perf_counter()
    await asyncio.gather(*(loop(n, begin + 1) for n in range(width)))
    done = 0
    waits.clear()
    begin = time.perf_counter()
    await asyncio.gather(*(loop(n, begin + seconds) for n in range(width)))
    rate = done / (time.perf_counter() - begin)
    waits.sort()
    # A worker dies in the middle of a call: when does the caller hear of it?
    call = asyncio.ensure_future(runtime.send_message(Work("long", 30.0), AgentId("w0", "0")))
    await asyncio.sleep(1)
    workers[0].send_signal(signal.SIGKILL)
    killed = time.perf_counter()
    await asyncio.wait({call}, timeout=GIVE_UP_S)
    answered = time.perf_counter() - killed if call.done() else None
    call.cancel()
    for process in workers:
        if process.returncode is None:
            process.kill()
        await process.wait()
    return {
        "subtasks_per_second": rate,
        "p50_ms": waits[len(waits) // 2] * 1e3,
        "p99_ms": waits[int(len(waits) * 0.99)] * 1e3,
        "answer_after_kill_s": answered,
        "waited_s": GIVE_UP_S,
    }


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(_serve(sys.argv[2], sys.argv[3]))
    else:
        found = asyncio.run(_measure(float(sys.argv[1]), int(sys.argv[2])))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        # What waits for the dead worker inside the runtime would keep the interpreter from ending.
        os._exit(0)
