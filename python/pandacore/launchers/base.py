"""What a launcher is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pandacore.trust import KeyPair

__all__ = ["HostHandle", "HostSpec", "Launcher"]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host process to start.

    Parameters
    ----------
    collective : bytes, length 32
        The collective it belongs to.
    entry : str, optional
        What it runs, as ``package.module:function``: ``async def function(node, arguments)``, called once the
        host has joined. It may return; the host goes on until it is stopped. Default: nothing.
    arguments : mapping
        JSON values handed to ``entry``.
    agents, standby : tuple of str
        Agents that it runs, or starts when somebody asks for them, as ``package.module`` or
        ``package.module:name``. They are announced before :meth:`Launcher.start` returns.
    limits : mapping of str to int
        ``concurrency`` and ``queue_limit`` of its agents, where not their own.
    model : str, optional
        What its agents' ``ctx.model`` uses; see ``Collective.local``.
    key : KeyPair, optional
        Its identity; handed over on standard input, never on the command line. Default: a fresh key.
    seeds : tuple of str
        Hosts to join, beside those that the launcher knows.
    bind : str
        Where it listens, ``host:port``.
    state_dir : str, optional
        See `pandacore.gossip.Node.start`.
    ticket : str, optional
        Lets the host with this ``key`` into a closed collective.
    """

    collective: bytes
    entry: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    agents: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    model: str | None = None
    key: KeyPair | None = None
    seeds: tuple[str, ...] = ()
    bind: str = "127.0.0.1:0"
    state_dir: str | None = None
    ticket: str | None = None


@dataclass(frozen=True, slots=True)
class HostHandle:
    """A host process that was started: its number at the launcher, process id, address and ``did:key``."""

    number: int
    pid: int
    address: str
    did: str


class Launcher(Protocol):
    """Starts and stops host processes."""

    async def start(self, spec: HostSpec) -> HostHandle:
        """Start a host; returns when it has joined."""
        ...

    async def stop(self, host: HostHandle, *, grace_s: float = 5.0) -> None:
        """Let a host say goodbye and end; after ``grace_s`` it is killed."""
        ...

    async def hosts(self) -> list[HostHandle]:
        """Hosts that run."""
        ...

    def logs(self, host: HostHandle) -> AsyncIterator[str]:
        """Lines that the host wrote to its standard error, so far and as they come."""
        ...

    def seeds(self) -> list[str]:
        """Addresses of up to three hosts that run."""
        ...
