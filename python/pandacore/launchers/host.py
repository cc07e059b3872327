"""A host process: ``python -m pandacore.launchers.host``, with its description as one JSON line on stdin.

It prints ``{"address": …, "did": …}`` once it has joined, and leaves cleanly on SIGTERM, SIGINT, or when its
standard input closes, so that hosts do not outlive the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from pandacore.errors import ConfigError
from pandacore.gossip import Node, Ticket
from pandacore.trust import KeyPair

__all__ = ["main"]


async def main() -> None:
    """Run the host that standard input describes until it is told to stop."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    spec: dict[str, Any] = json.loads(await reader.readline())
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    entry = None if spec["entry"] is None else _entry(spec["entry"])
    tasks: list[asyncio.Task[Any]] = []
    async with _open(spec) as node:
        try:
            sys.stdout.write(json.dumps({"address": node.address, "did": node.did}) + "\n")
            sys.stdout.flush()
            if entry is not None:
                tasks.append(asyncio.create_task(entry(node, spec["arguments"])))
                tasks[0].add_done_callback(lambda task: stop.set() if _failed(task) else None)
            tasks.append(asyncio.create_task(_closed(reader, stop)))
            await stop.wait()
            if entry is not None and tasks[0].done():
                await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task


@contextlib.asynccontextmanager
async def _open(spec: dict[str, Any]) -> AsyncIterator[Node]:
    """The joined node: alone, or with a collective over it where there are agents to serve."""
    key = KeyPair.from_seed(bytes.fromhex(spec["seed"]))
    collective = bytes.fromhex(spec["collective"])
    ticket = None if spec["ticket"] is None else Ticket.parse(spec["ticket"])
    if not spec["agents"] and not spec["standby"]:
        node = Node.start(
            key,
            collective,
            bind=spec["bind"],
            seeds=spec["seeds"],
            state_dir=spec["state_dir"],
            admission=None if ticket is None else ticket.admission,
            ticket=ticket,
        )
        async with node:
            await node.join()
            yield node
        return
    from pandacore.agent import Agent, agents_of
    from pandacore.collective import Collective

    agents = [agent for place in spec["agents"] for agent in agents_of(place)]
    standby = [agent for place in spec["standby"] for agent in agents_of(place)]
    async with Collective.join(
        spec["seeds"],
        collective=collective,
        key=key,
        bind=spec["bind"],
        state_dir=spec["state_dir"],
        ticket=ticket,
        model=spec["model"],
    ) as c:
        limits = spec["limits"]
        c.add(*(Agent.of(agent).with_limits(**limits) for agent in agents) if limits else agents)
        c.standby(*standby)
        yield c.node


async def _closed(reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    while await reader.read(4096):
        pass
    stop.set()


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is not None


def _entry(text: str) -> Any:
    module, colon, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load {text!r}: {error}", where="entry", hint="check the module") from error
    if not callable(found):
        raise ConfigError(f"{text!r} is no function", where="entry", hint="write package.module:function")
    return found


if __name__ == "__main__":
    asyncio.run(main())
