"""Host processes for studies: started, taken into a collective, killed and replaced."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from pandacore.collective import Collective
from pandacore.errors import ConnectionLost, PandacoreError

__all__ = ["Hosts"]

_READY_S = 60.0
_TRIES = 5


class Hosts:
    """Processes that serve the agents of a module; ``async with`` ends them.

    Parameters
    ----------
    collective : Collective
        Every process is attached to it.
    module : str
        What they serve.
    model : str
        What their agents use, as ``grpc://host:port``; empty: nothing.
    replicas : int
        Agents per marked function.
    environment : mapping of str to str
        Added to this process's own.
    """

    def __init__(
        self,
        collective: Collective,
        module: str,
        *,
        model: str = "",
        replicas: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._collective = collective
        # The lifeline: whatever becomes of this process, its hosts do not stay behind.
        self._arguments = [
            module,
            "--lifeline",
            "--replicas",
            str(replicas),
            *(["--model", model] if model else []),
        ]
        self._environment = {**os.environ, **(environment or {})}
        self._processes: list[asyncio.subprocess.Process] = []
        self._served: dict[int, str] = {}
        self.addresses: list[str] = []
        """Where the processes serve, dead ones included."""

    async def fill(self, count: int) -> None:
        """Start as many as are missing to ``count`` running ones.

        Raises
        ------
        ConnectionLost
            Hosts keep dying before they have joined.
        """
        for _ in range(_TRIES):
            self._drop()
            missing = count - len(self._processes)
            if missing <= 0:
                return
            await asyncio.gather(*(self._start() for _ in range(missing)))
        raise ConnectionLost("hosts keep dying before they have joined", hint="see what they write")

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pandacore.team.serve", *self._arguments),
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(_READY_S):
            line = await process.stdout.readline()
        try:
            address = json.loads(line)["address"]
        except ValueError as error:
            raise ConnectionLost(
                "the host process ended before it was ready", hint="run python -m pandacore.team.serve"
            ) from error
        try:
            await self._collective.attach(address)
        except PandacoreError:  # too slow, or killed meanwhile: not one of those that run
            process.kill()
            await process.wait()
            return
        self._served[process.pid] = address
        self.addresses.append(address)

    def _drop(self) -> None:
        """Forget what ended, and end what was so slow that the collective holds it for dead."""
        directory = self._collective._open_services().directory
        for process in self._processes:
            if process.returncode is None and not directory.at(self._served[process.pid]):
                process.kill()
        self._processes = [
            p for p in self._processes if p.returncode is None and directory.at(self._served[p.pid])
        ]

    def running(self) -> list[int]:
        """The ids of the processes that run."""
        return [p.pid for p in self._processes if p.returncode is None]

    def kill(self, pid: int) -> None:
        """kill -9."""
        next(p for p in self._processes if p.pid == pid).kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes))
