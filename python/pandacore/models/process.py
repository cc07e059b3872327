"""A model server as a child process: started, awaited, and never left behind."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final, Self

from pandacore import errors
from pandacore.config import redact
from pandacore.errors import ConfigError, ForkError, ModelUnavailable, PandacoreError
from pandacore.models.limits import forget_endpoint

__all__ = ["ModelProcess", "ServerSpec", "spawn"]

_log = logging.getLogger("pandacore.models.process")
_LOG_LINES: Final = 50
_LINE: Final = 4_096
_living: weakref.WeakSet[ModelProcess] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What to start: the arguments of ``python -m pandacore.models.server``.

    Secrets do not belong here, since other users can read a command line: they go through the environment.
    """

    backend: str
    model: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    waiting: int = 256

    def argv(self) -> list[str]:
        """The command line."""
        # -u would not help: the one line that matters is flushed. -X frozen_modules is the default.
        found = [sys.executable, "-m", "pandacore.models.server", "--lifeline", "--backend", self.backend]
        if self.model:
            found += ["--model", self.model]
        if self.concurrency is not None:
            found += ["--concurrency", str(self.concurrency)]
        found += ["--waiting", str(self.waiting)]
        for key, value in self.options.items():
            found += ["--option", f"{key}={value}"]
        return found


class ModelProcess:
    """A running child server. Made by `spawn`; close it, or let the interpreter's exit do so."""

    def __init__(self, popen: subprocess.Popen[bytes], spec: ServerSpec) -> None:
        self._popen = popen
        self._pid = os.getpid()
        self.spec = spec
        self.address = ""
        self.models: tuple[str, ...] = ()
        self._stderr: deque[str] = deque(maxlen=_LOG_LINES)
        self._stdout: queue.Queue[bytes | None] = queue.Queue(1)
        for name, stream, sink in (
            ("stdout", popen.stdout, self._first_line),
            ("stderr", popen.stderr, self._keep_log),
        ):
            threading.Thread(target=sink, args=(stream,), name=f"pandacore-model-{name}", daemon=True).start()
        _living.add(self)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._popen.poll() is None

    def _first_line(self, stream: IO[bytes]) -> None:
        with stream:
            self._stdout.put(stream.readline(_LINE * 16) or None)
            while stream.read(_LINE):  # keep the pipe empty: a full one would stop the child
                pass

    def _keep_log(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LINE):
                text = redact(line.decode("utf-8", "replace").rstrip())
                self._stderr.append(text)
                _log.debug("%d: %s", self._popen.pid, text)

    def _wait_ready(self, deadline_s: float) -> None:
        try:
            line = self._stdout.get(timeout=deadline_s)
        except queue.Empty:
            self.close(grace_s=0.5)
            raise ModelUnavailable(
                f"the {self.spec.backend} server was not ready after {deadline_s:g} s{self._last_words()}",
                where="model server",
                hint="give it more time, or start it by hand with `pandacore model serve`",
            ) from None
        report: Any = None
        with contextlib.suppress(ValueError):
            report = json.loads(line) if line else None
        if isinstance(report, dict) and report.get("ready") is True:
            self.address = report["address"]
            self.models = tuple(report["models"])
            return
        self.close(grace_s=0.5)
        raise self._failure(report)

    def _failure(self, report: Any) -> PandacoreError:
        """The error that the child reported, or one from its exit status."""
        if isinstance(report, dict):
            kind = getattr(errors, str(report.get("type")), None)
            if isinstance(kind, type) and issubclass(kind, PandacoreError):
                return kind(
                    str(report.get("message")),
                    where=report.get("where") or "model server",
                    hint=report.get("hint"),
                )
        return ModelUnavailable(
            f"the {self.spec.backend} server ended with status {self._popen.poll()}{self._last_words()}",
            where="model server",
            hint="start it by hand with `pandacore model serve` to see why",
        )

    def _last_words(self) -> str:
        lines = list(self._stderr)[-3:]
        return ": " + " | ".join(lines) if lines else ""

    def close(self, grace_s: float = 5.0) -> None:
        """End the child: ask, wait ``grace_s`` seconds, then kill. Safe to call twice."""
        if os.getpid() != self._pid:
            raise ForkError(
                "the model server belongs to the parent process", hint="start another after the fork"
            )
        _living.discard(self)
        if self.address:
            forget_endpoint(self.address)
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()  # the lifeline: the child drains and leaves
        if self._popen.poll() is None:
            self._popen.terminate()
        try:
            self._popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    async def aclose(self, grace_s: float = 5.0) -> None:
        """`close` without blocking the event loop."""
        await asyncio.to_thread(self.close, grace_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ModelProcess {self.spec.backend} pid={self.pid} at {self.address or 'no address yet'}>"


def spawn(
    spec: ServerSpec, *, deadline_s: float = 60.0, env: Mapping[str, str] | None = None
) -> ModelProcess:
    """Start a model server and wait until it is ready. Blocks; from a coroutine use ``asyncio.to_thread``.

    Parameters
    ----------
    spec : ServerSpec
    deadline_s : float
        Seconds until it must be ready. Loading a large model takes seconds on its first read from disk.
    env : mapping, optional
        Environment of the child; this process's by default. Secrets go here.

    Raises
    ------
    ModelUnavailable
        It ended, or was not ready in time.
    PandacoreError
        What the child reported, such as `ConfigError` for an unknown backend.
    """
    if deadline_s <= 0:
        raise ConfigError(f"deadline_s is {deadline_s}", hint="use more than 0")
    popen = subprocess.Popen(
        spec.argv(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else dict(env),
        # Ctrl-C goes to the parent alone, which ends the child in order.
        start_new_session=sys.platform != "win32",
    )
    process = ModelProcess(popen, spec)
    started = time.monotonic()
    try:
        process._wait_ready(deadline_s)
    except BaseException:
        if process.alive:
            process.close(grace_s=0.5)
        raise
    _log.debug("%r ready after %.2f s", process, time.monotonic() - started)
    return process


def _close_all() -> None:
    for process in list(_living):
        if process._pid == os.getpid():
            process.close(grace_s=1.0)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # The child of a fork must not end the parent's servers at its exit.
    os.register_at_fork(after_in_child=_living.clear)
