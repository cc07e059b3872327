"""Hosts that find each other: membership, agents of all hosts, requests to everybody, without a server.

A `Node` is this process in a collective. It runs on a thread of its own in Rust and never takes the
interpreter's lock, so a busy interpreter does not look like a dead host. What it knows is *state, read by
version*: a reader that was away for an hour reads what is true now, and nothing is lost in between.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pandacore import _core
from pandacore._core import (
    comparison_sizes,
    simulate_average,
    simulate_detection,
    simulate_false_deaths,
    simulate_faults,
    simulate_healing,
    simulate_idle,
    simulate_pauses,
    simulate_round,
    simulate_rumor,
    simulate_tree,
    time_replica,
)
from pandacore.errors import (
    ConfigError,
    DeadlineExceeded,
    JoinRefused,
    KeyInUse,
    PandacoreError,
    ShapeError,
    StateError,
    WrongCollective,
)
from pandacore.trust import KeyPair, did_of, parse_did, verify

if TYPE_CHECKING:
    from types import TracebackType

    from pandacore.registry import Registry

__all__ = [
    "AgentEntry",
    "Announcement",
    "Changes",
    "JoinReport",
    "Member",
    "Node",
    "Offer",
    "Request",
    "Subscription",
    "Ticket",
    "comparison_sizes",
    "hosting_proof",
    "issue_ticket",
    "simulate_average",
    "simulate_detection",
    "simulate_false_deaths",
    "simulate_faults",
    "simulate_healing",
    "simulate_idle",
    "simulate_pauses",
    "simulate_round",
    "simulate_rumor",
    "simulate_tree",
    "team_anchor",
    "team_identity",
    "time_replica",
]

_ANNOUNCEMENT: Final = 1
_TRUST: Final = 2
_PAGE: Final = 1000
_MAX_PATIENCE_S: Final = 600
_TICKET: Final = "pandacore-ticket-1:"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What an agent is interested in, as an int8 vector of a named embedding model.

    Parameters
    ----------
    model : str
        The embedding model; vectors of different models are never compared.
    scale : float
        What one step of a code is worth.
    codes : bytes
        Signed 8-bit codes, one a dimension.
    """

    model: str
    scale: float
    codes: bytes


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an agent of this host says about itself. All of it takes at most 1 KiB.

    Parameters
    ----------
    agent : bytes, length 32
        The agent's id.
    capabilities : sequence of str
        1 to 64 names.
    name, description, endpoint : str
        One line each; ``endpoint`` is where its team plane listens.
    load, concurrency, cost : int
        Queue length, subtasks at once, price of a subtask; 0 to 65535.
    subscription : Subscription, optional
        The vector of what it is interested in.
    subscription_text : str
        The same in words, one line, for hosts that embed with another model.
    certificates : sequence of bytes
        Encoded records of `pandacore.trust`; they travel as records of their own.
    since : int
        The agent's own counter of its moves between hosts: of two hosts that announce it, the one wins to
        which it agreed with the higher number.
    proof : bytes, length 64, optional
        `hosting_proof`. Looked at when two hosts claim the agent, and by `Node.agreed`.
    not_after : int
        Last second of validity by the wall clock; 0: no end. Five minutes later, since clocks differ, the
        agent does not count any more: it is in no list, no registry and no `Changes` except as removed.
    """

    agent: bytes
    capabilities: Sequence[str]
    name: str = ""
    description: str = ""
    endpoint: str = ""
    load: int = 0
    concurrency: int = 1
    cost: int = 0
    subscription: Subscription | None = None
    certificates: Sequence[bytes] = ()
    since: int = 1
    proof: bytes = b""
    not_after: int = 0
    subscription_text: str = ""


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """An agent of a live host. ``certificates`` are hash prefixes; `Node.certificates` has the records."""

    agent: bytes
    host: bytes
    version: tuple[int, int]
    capabilities: tuple[str, ...]
    name: str
    description: str
    endpoint: str
    load: int
    concurrency: int
    cost: int
    subscription: Subscription | None
    certificates: tuple[bytes, ...]
    since: int
    not_after: int
    subscription_text: str

    @property
    def did(self) -> str:
        """The id as ``did:key:z6Mk…``."""
        return did_of(self.agent)


@dataclass(frozen=True, slots=True)
class Member:
    """A host. ``state`` is "alive", "suspect", "down" or "left"; the agents of the first two count."""

    id: bytes
    state: str
    epoch: int
    incarnation: int
    addresses: tuple[str, ...]
    agents: int
    is_self: bool

    @property
    def did(self) -> str:
        """The id as ``did:key:z6Mk…``."""
        return did_of(self.id)


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed after a version, as it is now. With ``reset`` all agents are in ``updated``.

    ``members`` are all members; ``certificates`` are encoded trust records that are new or came back.
    """

    version: int
    reset: bool
    members: tuple[Member, ...]
    updated: tuple[AgentEntry, ...]
    removed: tuple[bytes, ...]
    certificates: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class JoinReport:
    """How a join went. ``complete``: all that the host that let this one in had then is here."""

    complete: bool
    members: int
    agents: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """A question of another host: who has, or can start, agents with these capabilities?"""

    arrival: int
    host: bytes
    number: int
    capabilities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """An answer to a request of this host. The agents are in the replica already."""

    host: bytes
    agents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Lets one host into one collective. Made by :func:`issue_ticket`; ``str`` writes it as a text.

    Parameters
    ----------
    admission, collective, host : bytes, length 32
        Whose key signed it, and whom it lets in where.
    not_after : int
        Last second of validity, by the wall clock.
    signature : bytes, length 64

    Examples
    --------
    >>> admission, host = KeyPair.from_seed(bytes(32)), KeyPair.from_seed(bytes(31) + b"h")
    >>> ticket = issue_ticket(admission, bytes(32), host.public, not_after=2_000_000_000)
    >>> Ticket.parse(str(ticket)) == ticket
    True
    """

    admission: bytes
    collective: bytes
    host: bytes
    not_after: int
    signature: bytes = field(repr=False)

    def __str__(self) -> str:
        end = self.not_after.to_bytes(8, "big")
        packed = self.admission + self.collective + self.host + end + self.signature
        return _TICKET + base64.urlsafe_b64encode(packed).decode()

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """Read a ticket that was written as a text.

        Raises
        ------
        ConfigError
            It is none, or its signature does not hold.
        """
        try:
            packed = base64.urlsafe_b64decode(text.strip().removeprefix(_TICKET))
        except ValueError:
            packed = b""
        if not text.strip().startswith(_TICKET) or len(packed) != 3 * 32 + 8 + 64:
            raise ConfigError(
                "the text is no ticket", where="ticket", hint="copy all of what `pandacore ticket` printed"
            )
        admission, collective, host = (packed[at : at + 32] for at in (0, 32, 64))
        not_after = int.from_bytes(packed[96:104], "big")
        ticket = cls(admission, collective, host, not_after, packed[104:])
        if not verify(admission, _core.ticket_message(collective, host, not_after), ticket.signature):
            raise ConfigError(
                "the ticket is not signed by its admission key", where="ticket", hint="ask for a new one"
            )
        return ticket


def hosting_proof(agent: KeyPair, collective: bytes, host: bytes, since: int = 1) -> bytes:
    """Sign, as an agent, that ``host`` may run it.

    Returns
    -------
    bytes, length 64
    """
    return agent.sign(_core.hosting_message(collective, agent.public, host, since))


def team_identity(key: KeyPair) -> tuple[bytes, bytes]:
    """A fresh private key for the team plane's TLS, and the host key's certificate for it; both in DER."""
    return _core.team_identity(key._core.seed())


def team_anchor(host: bytes) -> tuple[bytes, str]:
    """The trust anchor (DER) to which only certificates of the host lead, and the name in them."""
    return _core.team_anchor(_bytes32("host", host))


def issue_ticket(admission: KeyPair, collective: bytes, host: bytes, *, not_after: int) -> Ticket:
    """Sign, as a collective's admission key, that ``host`` may join until ``not_after``."""
    signature = admission.sign(_core.ticket_message(collective, host, not_after))
    return Ticket(admission.public, collective, host, not_after, signature)


class Node:
    """This process in a collective. Made by :meth:`start`; ``async with`` leaves at the end.

    Usable from any thread. The ``async`` methods work on any running event loop.

    Examples
    --------
    >>> node = Node.start(KeyPair.from_seed(bytes(32)), bytes(32))
    >>> _ = node.announce(Announcement(bytes(31) + b"a", ["text.upper"], name="upper"))
    >>> version = node.wait(0, timeout_s=5)
    >>> [m.state for m in node.members()]
    ['alive']
    >>> node.close()
    """

    def __init__(self, core: _core.NodeCore, *, seeded: bool) -> None:
        self._core = core
        self._seeded = seeded
        self._started = time.monotonic()
        self._numbers = int.from_bytes(os.urandom(7))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._announced: dict[bytes, tuple[bytes, ...]] = {}
        self.id: bytes = core.id
        """The host's id: its 32-byte public key."""
        self.did: str = did_of(core.id)
        """The id as ``did:key:z6Mk…``."""
        self.collective: bytes = core.collective
        """The collective's id."""
        """Where others reach it, as ``host:port``; a seed for them."""
        self.port: int = core.port
        """The UDP port on which it listens."""

    @classmethod
    def start(
        cls,
        key: KeyPair,
        collective: bytes,
        *,
        bind: str = "127.0.0.1:0",
        advertise: str | None = None,
        seeds: Sequence[str] = (),
        state_dir: str | os.PathLike[str] | None = None,
        admission: bytes | None = None,
        ticket: Ticket | None = None,
        seed: int | None = None,
    ) -> Node:
        """Bind a UDP port and start the node's thread. Quick; follow it with :meth:`join`.

        Parameters
        ----------
        key : KeyPair
            The host's identity.
        collective : bytes, length 32
            Hosts of another collective are refused.
        bind : str
            Where to listen, ``host:port``; port 0 takes a free one.
        advertise : str, optional
            Under which address others dial this host. Default: the bound one, or for ``0.0.0.0`` the one from
            which this machine reaches its first seed, or the world.
        seeds : sequence of str
            Hosts that may already be there: ``host:port``, or ``did:key:…@host:port`` to pin the key.
        state_dir : path, optional
            Keeps the start counter and known addresses. One process at a time may use it.
        admission : bytes, length 32, optional
            Public key that signs join tickets; without a ticket nobody is let in then.
        ticket : Ticket, optional
            This host's ticket.
        seed : int, optional
            For the node's random choices. Default: the operating system's entropy.

        Raises
        ------
        ConfigError
            An address cannot be parsed, resolved or bound, or the state folder cannot be used.
        DataDirLocked
            Another process uses the state folder.
        """
        pinned = [_parse_seed(text) for text in seeds]
        core = _core.NodeCore(
            key._core.seed(),
            _bytes32("collective", collective),
            bind=_resolve(bind),
            advertise=None if advertise is None else _resolve(advertise),
            seeds=pinned,
            state_dir=None if state_dir is None else os.fspath(state_dir),
            admission=None if admission is None else _bytes32("admission", admission),
            ticket=None if ticket is None else (ticket.not_after, ticket.signature),
            seed=seed,
        )
        return cls(core, seeded=bool(pinned))

    # -- life ----------------------------------------------------------------------------------------

    async def join(self, timeout_s: float = 30.0) -> JoinReport:
        """Wait until this host has all that the host that lets it in has. Without seeds: returns at once.

        Raises
        ------
        WrongCollective, JoinRefused
            A seed refused. The node goes on trying the others: call again, or close it.
        KeyInUse
            Another process runs with this key.
        DeadlineExceeded
            No seed answered, or the transfer was not done, in ``timeout_s``. The node goes on trying.
        """
        deadline = time.monotonic() + timeout_s
        while (state := self._core.join_state()) != "complete":
            version = self.version
            if state == "searching" and (refusal := self._core.refusal()) is not None:
                raise _refused(*refusal)
            self._check_stopped()
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(
                    f"no seed answered in {timeout_s:g} s"
                    if state == "searching"
                    else f"the transfer of all agents took more than {timeout_s:g} s",
                    where=self.address,
                    hint="check that a seed runs and is reachable over UDP, or raise timeout_s",
                )
            # Short turns: a join can be done through a change that came before the version was read.
            await self.wait_async(version, timeout_s=min(left, 0.25))
        members = self.members()
        live = [m for m in members if m.state in ("alive", "suspect")]
        return JoinReport(
            complete=True,
            members=len(live),
            agents=sum(m.agents for m in live),
            seconds=time.monotonic() - self._started,
        )

    async def leave(self) -> None:
        """Say goodbye to all hosts and end. Idempotent; takes about half a second."""
        self._unwatch()
        await asyncio.to_thread(self._core.leave)

    async def aclose(self) -> None:
        """The same as :meth:`leave`."""
        await self.leave()

    def close(self, *, leave: bool = True) -> None:
        """End, after a goodbye unless ``leave`` is False. Blocks for up to half a second; idempotent."""
        self._unwatch()
        if leave:
            self._core.leave()
        else:
            self._core.close()

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.leave()

    # -- own agents ----------------------------------------------------------------------------------

    def announce(self, *announcements: Announcement) -> int:
        """Announce agents of this host, or announce them anew. Changes within 100 ms travel together.

        Returns
        -------
        int
            Number in this host's log by which all of them will be written.

        Raises
        ------
        PayloadTooLarge
            An announcement takes more than 1 KiB. None of them was announced.
        ConfigError, ShapeError
            A field breaks its rule. None of them was announced.
        Overloaded
            More than 1 GiB waits to be written.
        """
        records: list[tuple[int, bytes, bytes | None]] = []
        for a in announcements:
            agent = _bytes32("agent", a.agent)
            keys = []
            for record in a.certificates:
                key = _core.trust_record_key(record)
                records.append((_TRUST, key, record))
                keys.append(key)
            subscription = a.subscription
            payload = _core.encode_announcement(
                list(a.capabilities),
                name=a.name,
                description=a.description,
                endpoint=a.endpoint,
                since=a.since,
                proof=a.proof,
                not_after=a.not_after,
                load=_u16("load", a.load),
                concurrency=_u16("concurrency", a.concurrency),
                cost=_u16("cost", a.cost),
                subscription=None
                if subscription is None
                else (subscription.model, subscription.scale, subscription.codes),
                certificates=b"".join(key[:16] for key in keys),
                subscription_text=a.subscription_text,
            )
            records.append((_ANNOUNCEMENT, agent, payload))
        return self._core.publish(records)

    def withdraw(self, *agents: bytes) -> int:
        """Take back announcements of this host; unknown ids do no harm."""
        return self._core.publish([(_ANNOUNCEMENT, _bytes32("agent", agent), None) for agent in agents])

    def publish_certificates(self, *records: bytes) -> int:
        """Spread certificates and revocations of `pandacore.trust` that belong to no single agent.

        Raises
        ------
        ProtocolError
            A record is malformed. None of them was published.
        """
        return self._core.publish([(_TRUST, _core.trust_record_key(r), r) for r in records])

    # -- reading -------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where others reach it now, as ``host:port``; a seed for them."""
        return self._core.address

    @property
    def epoch(self) -> int:
        """Which start of this host this is."""
        return self._core.epoch

    @property
    def version(self) -> int:
        """Grows with every change of members, agents, requests or offers."""
        return self._core.version

    @property
    def ended(self) -> bool:
        """True once the node has left, was closed, or stopped itself."""
        return self._core.ended

    def members(self) -> list[Member]:
        """All hosts that are known, this one first."""
        return [
            Member(id_, state, epoch, incarnation, tuple(addresses), agents, at == 0)
            for at, (id_, state, epoch, incarnation, addresses, agents) in enumerate(self._core.members())
        ]

    def agents(self) -> list[AgentEntry]:
        """All agents of live hosts, of this host too. At 10^6 this takes seconds: prefer :meth:`feed`."""
        entries: list[AgentEntry] = []
        place: tuple[bytes, int] | None = None
        while True:
            page, place = self._core.agents(place, _PAGE)
            entries.extend(_entry(row) for row in page)
            if place is None:
                return entries

    def agent(self, agent: bytes) -> AgentEntry | None:
        """The announcement of one agent, or None."""
        row = self._core.agent(_bytes32("agent", agent))
        return None if row is None else _entry(row)

    def agreed(self, agent: bytes) -> bool:
        """Whether the agent itself signed that the host that announces it may run it."""
        return self._core.agent_agreed(_bytes32("agent", agent))

    def certificates(self) -> list[bytes]:
        """All certificates and revocations that live hosts have published, encoded. Not verified."""
        return self._core.payloads(_TRUST)

    def changes(self, after: int) -> Changes:
        """What changed in the replica after ``after``, a ``version`` of earlier `Changes` or 0.

        Older changes than 65,536 are not kept one by one: ``reset`` is then True and everything is listed.
        """
        version, reset, rows = self._core.changes(after)
        if reset:
            return Changes(
                version, True, tuple(self.members()), tuple(self.agents()), (), tuple(self.certificates())
            )
        updated: list[AgentEntry] = []
        removed: list[bytes] = []
        certificates: list[bytes] = []
        for kind, key in rows:
            if kind == _ANNOUNCEMENT:
                row = self._core.agent(key)
                if row is None:
                    removed.append(key)
                else:
                    updated.append(_entry(row))
            elif kind == _TRUST and (payload := self._core.payload(_TRUST, key)) is not None:
                certificates.append(payload)
        return Changes(
            version, False, tuple(self.members()), tuple(updated), tuple(removed), tuple(certificates)
        )

    def wait(self, after: int, *, timeout_s: float) -> int:
        """Block, without the interpreter's lock, until :attr:`version` is above ``after`` or time is over."""
        return self._core.wait(after, timeout_s)

    async def wait_async(self, after: int, *, timeout_s: float | None = None) -> int:
        """As :meth:`wait`, on the running event loop and without a thread."""
        loop = asyncio.get_running_loop()
        if not self._watch(loop):
            # Another loop has the descriptor, or this one cannot watch descriptors.
            return await asyncio.to_thread(self._core.wait, after, 3600.0 if timeout_s is None else timeout_s)
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while (version := self.version) <= after:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    if self.version <= after:
                        await waiter
            except TimeoutError:
                return self.version
            finally:
                self._waiters.discard(waiter)
        return version

    async def watch(self, after: int = 0) -> AsyncIterator[Changes]:
        """Iterate over `Changes`, beginning with what changed after ``after``. Ends when the node ends.

        A slow reader gets fewer, larger changes; it never misses any.
        """
        members = -1
        while not self._core.ended:
            seen = self.version
            members_now = self._core.members_version()
            if self._core.changes(after)[0] != after or members_now != members:
                changes = self.changes(after)
                after, members = changes.version, members_now
                yield changes
            await self.wait_async(seen)

    def feed(self, registry: Registry) -> int:
        """Bring a registry up to date with the agents of all live hosts, in Rust; returns how many changed.

        The registry then belongs to the node: agents that no live host announces are withdrawn from it.
        Call it after each change of :attr:`version`; it does only what is new.
        """
        announced, withdrawn, _ = self._core.feed(registry)
        return announced + withdrawn

    # -- requests ------------------------------------------------------------------------------------

    async def request(
        self, capabilities: Iterable[str], *, timeout_s: float = 5.0, want: int = 1
    ) -> list[Offer]:
        """Ask all hosts for agents with these capabilities; waits for ``want`` offers or ``timeout_s``.

        Returns
        -------
        list of Offer
            Their agents are announced, verified and in the replica by then. Empty: nobody offered.
        """
        names = list(capabilities)
        if not names or isinstance(capabilities, str):
            raise ConfigError("a request names capabilities", where="request", hint="pass a list of names")
        if not 0 < timeout_s <= _MAX_PATIENCE_S:
            raise ConfigError(
                f"timeout_s is {timeout_s}", where="request", hint=f"use 0 to {_MAX_PATIENCE_S} seconds"
            )
        self._numbers += 1
        number = self._numbers
        deadline = time.monotonic() + timeout_s
        version = self.version
        self._core.request(number, names, max(1, round(timeout_s)))
        while True:
            offers = [Offer(host, tuple(agents)) for host, agents in self._core.offers(number)]
            left = deadline - time.monotonic()
            if len(offers) >= want or left <= 0:
                return offers
            version = await self.wait_async(version, timeout_s=left)
            self._check_stopped()

    def requests(self, after: int = 0) -> list[Request]:
        """Requests of other hosts that are still open and arrived after the ``arrival`` number ``after``."""
        return [
            Request(arrival, host, number, tuple(names))
            for arrival, host, number, names in self._core.requests(after)
        ]

    def offer(self, request: Request, *announcements: Announcement) -> None:
        """Announce agents in answer to a request, and tell the host that asked.

        Raises
        ------
        ConfigError
            No announcement was given.
        """
        if not announcements:
            raise ConfigError("an offer names agents", where="offer", hint="pass announcements")
        self.announce(*announcements)
        self._core.offer(request.host, request.number, [a.agent for a in announcements])

    @property
    def rows(self) -> int:
        """Rows of all logs, withdrawals included."""
        return self._core.rows

    # -- for operators -------------------------------------------------------------------------------

    def root(self) -> bytes:
        """Hash of all live hosts and their rows: equal on hosts that know the same."""
        return self._core.root()

    def counters(self) -> dict[str, int]:
        """What the node has counted: traffic, probes, refusals by reason, bytes of the store."""
        return self._core.counters()

    def publish_synthetic(self, count: int, seed: int, capabilities: int) -> None:
        """Announce ``count`` made-up agents with records of about 300 bytes, for benches."""
        self._core.publish_synthetic(count, seed, capabilities)

    def __repr__(self) -> str:
        return f"<Node {self.did[:20]}… {self.address}>"

    # -- inside --------------------------------------------------------------------------------------

    def _check_stopped(self) -> None:
        reason = self._core.stop_reason()
        if reason == "key in use":
            raise KeyInUse(
                "another process runs with this host's key, so this node stopped",
                where=self.did,
                hint="give every host its own key",
            )
        if reason is not None or self._core.ended:
            raise StateError(f"the node has ended{f': {reason}' if reason else ''}", hint="start a new one")

    def _watch(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._loop is loop:
            return True
        if self._loop is not None and not self._loop.is_closed():
            return False
        try:
            loop.add_reader(self._core.descriptor(), self._readable)
        except NotImplementedError:
            return False
        self._loop = loop
        return True

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._release, loop, self._core.descriptor())

    def _release(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        loop.remove_reader(descriptor)
        self._wake()

    def _readable(self) -> None:
        self._core.drain()
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _entry(row: dict[str, Any]) -> AgentEntry:
    subscription, prefixes = row["subscription"], row["certificates"]
    return AgentEntry(
        agent=row["agent"],
        host=row["host"],
        version=row["version"],
        capabilities=tuple(row["capabilities"]),
        name=row["name"],
        description=row["description"],
        endpoint=row["endpoint"],
        load=row["load"],
        concurrency=row["concurrency"],
        cost=row["cost"],
        subscription=subscription and Subscription(*subscription),
        certificates=tuple(prefixes[at : at + 16] for at in range(0, len(prefixes), 16)),
        since=row["since"],
        not_after=row["not_after"],
        subscription_text=row["subscription_text"],
    )


def _bytes32(what: str, value: bytes) -> bytes:
    if not isinstance(value, bytes | bytearray) or len(value) != 32:
        raise ShapeError(f"must be 32 bytes, not {value!r:.80}", where=what, hint="pass an id")
    return bytes(value)


def _u16(what: str, value: int) -> int:
    if not 0 <= value <= 65_535:
        raise ConfigError(f"is {value}; it must be 0 to 65535", where=what, hint="choose a smaller unit")
    return value


def _resolve(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise ConfigError(f"{text!r} is no address", where="address", hint="write host:port")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ConfigError(f"cannot resolve {host!r}: {error}", where=text, hint="check the name") from error
    ip, resolved = str(found[0][4][0]), int(found[0][4][1])
    return f"[{ip}]:{resolved}" if ":" in ip else f"{ip}:{resolved}"


def _parse_seed(text: str) -> tuple[str, bytes | None]:
    did, at, address = text.rpartition("@")
    return _resolve(address), parse_did(did) if at else None


def _refused(kind: str, address: str, ours: Any, theirs: Any) -> PandacoreError:
    match kind:
        case "collective":
            mine, other = ours.hex(), theirs.hex()
            return WrongCollective(
                f"the seed belongs to collective {other}, this host to {mine}",
                ours=mine,
                theirs=other,
                where=address,
                hint="use a seed of this collective, or join with the seed's collective id",
            )
        case "ticket":
            return JoinRefused(
                "the seed wants a join ticket, and this host has none that is valid",
                where=address,
                hint="ask the holder of the admission key for a ticket for this host",
            )
        case "key":
            return JoinRefused(
                f"{did_of(theirs)} answers where {did_of(ours)} was expected",
                where=address,
                hint="check the address, or drop the pinned key if the host was given a new one",
            )
        case _:
            return JoinRefused(
                f"the seed broke off the hello: {theirs}",
                where=address,
                hint="run the same version on all hosts",
            )
