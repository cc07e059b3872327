"""Serve the agents of a module from this process: ``python -m pandacore.team.serve MODULE``.

Prints one line of JSON when ready, ``{"ready": true, "address": "127.0.0.1:PORT", "agents": N}``, and serves
until SIGTERM or Ctrl-C. Another process takes the agents in with ``Collective.attach(address)``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys

from pandacore import errors
from pandacore.agent import Agent, agents_of
from pandacore.rpc import loop

__all__ = ["main", "serve"]


async def serve(agents: list[Agent], *, model: str | None = None, lifeline: bool = False) -> None:
    """Serve agents until the process is told to stop, or with a lifeline its standard input ends."""
    from pandacore.team.host import Host

    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the loop instead
            running.add_signal_handler(number, stop.set)
    if lifeline:
        loop.watch_stdin(stop)
    async with contextlib.AsyncExitStack() as stack:
        client = None
        if model is not None:
            from pandacore.models.handle import connect

            client = (await stack.enter_async_context(connect(model))).client
        host = Host(model=client)
        stack.push_async_callback(host.close)
        address = await host.start()
        for agent in agents:
            host.add(agent)
        sys.stdout.write(json.dumps({"ready": True, "address": address, "agents": len(agents)}) + "\n")
        sys.stdout.flush()
        await stop.wait()


def main(argv: list[str] | None = None) -> int:
    """The program; answers its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pandacore.team.serve", description="Serve agents.")
    parser.add_argument("module", help="the Python module with the agents")
    parser.add_argument("--replicas", type=int, default=1, help="agents per marked function or class")
    parser.add_argument("--model", help="the model that they use, such as grpc://127.0.0.1:PORT")
    parser.add_argument("--lifeline", action="store_true", help="end when the standard input ends")
    chosen = parser.parse_args(argv)
    try:
        targets = agents_of(chosen.module)
        agents = [Agent.of(target) for target in targets for _ in range(max(chosen.replicas, 1))]
        loop.run(serve(agents, model=chosen.model, lifeline=chosen.lifeline))
    except errors.PandacoreError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
