"""Host processes on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType

from pandacore.errors import ConnectionLost, StateError
from pandacore.launchers.base import HostHandle, HostSpec
from pandacore.trust import KeyPair

__all__ = ["LocalLauncher"]

_READY_S = 60.0
_TAIL = 2_000


class LocalLauncher:
    """Starts hosts as child processes; ``async with`` stops those that are left.

    Hosts that are started one after the other are given the first three as seeds.
    """

    def __init__(self) -> None:
        self._processes: dict[int, tuple[HostHandle, asyncio.subprocess.Process]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="pandacore-hosts-")
        self._number = 0

    async def start(self, spec: HostSpec) -> HostHandle:
        """See `Launcher.start`.

        Raises
        ------
        ConnectionLost
            The process ended, or did not join in 60 s. The end of what it wrote is in the message.
        """
        number = self._number
        self._number += 1
        key = spec.key or KeyPair.generate()
        facts = {
            "seed": key._core.seed().hex(),
            "collective": spec.collective.hex(),
            "seeds": [*spec.seeds, *self.seeds()],
            "bind": spec.bind,
            "state_dir": spec.state_dir,
            "ticket": spec.ticket,
            "entry": spec.entry,
            "arguments": dict(spec.arguments),
            "agents": spec.agents,
            "standby": spec.standby,
            "limits": dict(spec.limits),
            "model": spec.model,
        }
        with self._log(number).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pandacore.launchers.host",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C in the terminal is for the launcher, which tells the hosts.
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(facts).encode() + b"\n")
            await process.stdin.drain()
            async with asyncio.timeout(_READY_S):
                line = await process.stdout.readline()
            ready = json.loads(line)
        except (TimeoutError, ConnectionError, json.JSONDecodeError) as error:
            if process.returncode is None:
                process.kill()
            await process.wait()
            tail = self._log(number).read_text(encoding="utf-8", errors="replace")[-_TAIL:].strip()
            raise ConnectionLost(
                f"the host process did not join: {tail or 'it wrote nothing'}",
                where=f"host {number}",
                hint="run the entry in this process to see what is wrong",
            ) from error
        handle = HostHandle(number, process.pid, ready["address"], ready["did"])
        self._processes[number] = (handle, process)
        return handle

    async def stop(self, host: HostHandle, *, grace_s: float = 5.0) -> None:
        """See `Launcher.stop`. A host that has ended already is no error."""
        _, process = self._find(host)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._processes.pop(host.number, None)

    async def hosts(self) -> list[HostHandle]:
        """See `Launcher.hosts`."""
        return [handle for handle, process in self._processes.values() if process.returncode is None]

    async def logs(self, host: HostHandle) -> AsyncIterator[str]:
        """See `Launcher.logs`. Ends with the host."""
        position = 0
        rest = ""
        while True:
            ended = host.number not in self._processes or self._find(host)[1].returncode is not None
            with self._log(host.number).open(encoding="utf-8", errors="replace") as file:
                file.seek(position)
                text = rest + file.read()
                position = file.tell()
            *lines, rest = text.split("\n")
            for line in lines:
                yield line
            if ended:
                if rest:
                    yield rest
                return
            await asyncio.sleep(0.1)

    def seeds(self) -> list[str]:
        """See `Launcher.seeds`."""
        running = [h for h, process in self._processes.values() if process.returncode is None]
        return [f"{handle.did}@{handle.address}" for handle in running[:3]]

    async def aclose(self) -> None:
        """Stop all hosts."""
        await asyncio.gather(*(self.stop(handle) for handle, _ in list(self._processes.values())))
        self._folder.cleanup()

    async def __aenter__(self) -> LocalLauncher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _find(self, host: HostHandle) -> tuple[HostHandle, asyncio.subprocess.Process]:
        try:
            return self._processes[host.number]
        except KeyError:
            raise StateError(
                f"host {host.number} was not started here, or was stopped", hint="ask hosts() which ones run"
            ) from None

    def _log(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number}.log"

    def __repr__(self) -> str:
        return f"<LocalLauncher {len(self._processes)} hosts, process {os.getpid()}>"
