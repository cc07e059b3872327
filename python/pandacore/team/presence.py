"""A host's place in its collective: what it announces, what it learns of the others, what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from pandacore import errors
from pandacore.agent import Agent
from pandacore.gossip import Announcement, Node, Request, hosting_proof
from pandacore.trust import KeyPair, did_of

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from pandacore.gossip import JoinReport, Subscription, Ticket
    from pandacore.team.directory import SharedDirectory

    OnRequest = Callable[[Request], Iterable[object] | Awaitable[Iterable[object] | None] | None]

__all__ = ["Joining", "Presence", "collective_id"]

logger = logging.getLogger(__name__)

ASK_S: Final = 2.0
"""Seconds that a broadcast request waits for its first offer."""
MAX_ON_REQUEST: Final = 64
"""Agents that a host starts in answer to requests, all together."""
HINT_S: Final = 1.0
"""Least seconds between two announcements of loads."""
MEMBER_S: Final = 2.0
"""How long a call of a host that is not known waits for word of it: it may have joined a moment ago."""
CLOCKS_S: Final = 300
"""How far the clocks of two machines may differ."""
_TURN_S: Final = 0.01  # wakes within it are handled together
_TIDY_S: Final = 5.0
_AT_ONCE: Final = 256
_MAX_DESCRIPTION: Final = 240  # bytes of UTF-8: announcements are small
_ID: Final = re.compile(r"[0-9a-f]{64}")
_NAME_DOMAIN: Final = b"pandacore/collective-name/v1\0"


def collective_id(name: str) -> bytes:
    """The id of the collective with a name: 32 bytes. A text of 64 hexadecimal digits is an id itself.

    An id is no secret: it keeps collectives apart, an admission key keeps strangers out.
    """
    import hashlib

    if _ID.fullmatch(name):
        return bytes.fromhex(name)
    if not name or len(name) > 200:
        raise errors.ConfigError(
            "the name of a collective has 1 to 200 characters", where="collective", hint="choose one"
        )
    return hashlib.sha256(_NAME_DOMAIN + name.encode()).digest()


@dataclass(frozen=True, slots=True)
class Joining:
    """How a host comes into its collective; the arguments of ``Collective.join``."""

    collective: bytes | str | None = None
    seeds: tuple[str, ...] = ()
    key: KeyPair | None = None
    bind: str = "127.0.0.1:0"
    advertise: str | None = None
    state_dir: str | os.PathLike[str] | None = None
    admission: bytes | None = None
    ticket: Ticket | None = None
    timeout_s: float = 30.0
    on_request: OnRequest | None = None

    def admitted_by(self, host: bytes, now: float) -> bytes | None:
        """The key that signs this collective's tickets, if it is a closed one.

        Raises
        ------
        ConfigError
            The ticket is another host's, or has ended, or is signed by another key than the one to accept.
        """
        ticket = self.ticket
        if ticket is None:
            return self.admission
        if ticket.host != host:
            why = f"the ticket is for {did_of(ticket.host)}, this host is {did_of(host)}"
            hint = "pass the key of the host that the ticket names (--key)"
        elif ticket.not_after < now - CLOCKS_S:
            why = f"the ticket ended {now - ticket.not_after:.0f} s ago"
            hint = "ask the holder of the admission key for a new one"
        elif self.admission not in (None, ticket.admission):
            why = "the ticket is signed by another key than the one whose tickets are to be accepted"
            hint = "leave admission out to take the ticket's"
        else:
            return ticket.admission
        raise errors.ConfigError(why, where="ticket", hint=hint)

    def target(self) -> tuple[bytes, tuple[str, ...]]:
        """The collective's id and the seeds, without the id that a seed may carry after a slash.

        Raises
        ------
        WrongCollective
            A seed names another collective than the one asked for, or than another seed.
        ConfigError
            There are seeds, and nothing says which collective is meant.
        """
        wanted = collective_id(self.collective) if isinstance(self.collective, str) else self.collective
        plain = []
        for text in self.seeds:
            seed, slash, tail = text.rpartition("/")
            if not slash:
                plain.append(text)
                continue
            if not _ID.fullmatch(tail):
                raise errors.ConfigError(
                    "after the slash of a seed stands the collective's id, 64 hexadecimal digits",
                    where=text,
                    hint="copy the seed that the other host shows",
                )
            found = bytes.fromhex(tail)
            if wanted is not None and found != wanted:
                raise _wrong("the seed", found, wanted, where=seed)
            wanted = found
            plain.append(seed)
        if self.ticket is not None:
            if wanted is not None and self.ticket.collective != wanted:
                raise _wrong("the ticket", self.ticket.collective, wanted, where="ticket")
            wanted = self.ticket.collective
        if wanted is None:
            if plain:
                raise errors.ConfigError(
                    "the seeds do not say which collective they belong to",
                    where="seeds",
                    hint="pass collective=…, or the whole seed that the other host shows",
                )
            import os

            wanted = os.urandom(32)
        return wanted, tuple(plain)


def _wrong(what: str, found: bytes, wanted: bytes, *, where: str) -> errors.WrongCollective:
    theirs, ours = found.hex(), wanted.hex()
    return errors.WrongCollective(
        f"{what} belongs to collective {theirs}, this host to {ours}",
        ours=ours,
        theirs=theirs,
        where=where,
        hint="use one of this collective, or leave the collective out",
    )


class Presence:
    """Keeps a directory up to date with the collective, and the collective with this host's agents.

    Parameters
    ----------
    node : Node
        Started; this object ends it.
    directory : SharedDirectory
    endpoint : str
        Where this host's agents are served.
    on_change : callable
        Called on the loop after the directory changed.
    start : callable
        Takes an agent in that was made in answer to a request.
    on_request : callable, optional
        Makes agents for a request of another host; see ``Collective.join``.
    """

    def __init__(
        self,
        node: Node,
        directory: SharedDirectory,
        *,
        endpoint: str,
        on_change: Callable[[], None],
        start: Callable[[Agent], None],
        on_request: OnRequest | None = None,
    ) -> None:
        self.node = node
        self._directory = directory
        self._endpoint = endpoint
        self._on_change = on_change
        self._start_agent = start
        self._on_request = on_request
        self._agents: dict[bytes, Agent] = {}
        self._loads: dict[bytes, int] = {}
        self._told: dict[bytes, int] = {}
        self._vectors: dict[bytes, Subscription] = {}
        self._unstated: dict[bytes, Agent] = {}
        self._dirty: set[bytes] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing = asyncio.Lock()
        self._arrival = 0
        self._started_on_request = 0

    async def join(self, timeout_s: float) -> JoinReport:
        """Come in, and go on following the collective from then on."""
        report = await self.node.join(timeout_s)
        await self._refresh()
        self._spawn(self._follow())
        return report

    async def close(self) -> None:
        """Say goodbye to the other hosts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.node.leave()

    # -- own agents ----------------------------------------------------------------------------------

    def announcement(self, agent: Agent) -> Announcement:
        """What this host says of an agent of its own."""
        load = self._loads.get(agent.id, 0)
        return Announcement(
            agent.id,
            agent.capabilities,
            name=agent.name,
            description=_cut(agent.description),
            endpoint=self._endpoint,
            load=min(load, 65_535),
            concurrency=agent.concurrency,
            subscription=self._vectors.get(agent.id),
            subscription_text=_cut(agent.subscription),
            proof=hosting_proof(agent.key, self.node.collective, self.node.id),
        )

    def announce(self, agent: Agent) -> None:
        """Tell the collective of an agent of this host, or what is new of one."""
        self._vectors.pop(agent.id, None)  # it may be of an earlier text
        self.node.announce(self.announcement(agent))
        self._agents[agent.id] = agent
        if not self._unstated:
            self._spawn(self._state())
        self._unstated[agent.id] = agent

    async def _state(self) -> None:
        """Announce what the agents are about as vectors, so that other hosts need not embed their texts."""
        while self._unstated:
            part = list(islice(self._unstated.values(), _AT_ONCE))
            texts = [agent.subscription for agent in part]
            try:
                vectors = await self._directory.meaning.states(part)
            except errors.PandacoreError as error:  # they are found by their texts
                logger.warning("the agents of this host are announced without vectors: %s", error)
                self._unstated.clear()
                return
            for agent, text, vector in zip(part, texts, vectors, strict=True):
                if agent.subscription != text:
                    continue  # it has another by now, and waits for its vector still
                self._unstated.pop(agent.id, None)
                if vector is None or agent.id not in self._agents or self.node.ended:
                    continue
                self._vectors[agent.id] = vector
                try:
                    self.node.announce(self.announcement(agent))
                except (
                    errors.PayloadTooLarge,
                    errors.Overloaded,
                ):  # then without, as before
                    del self._vectors[agent.id]
            await asyncio.sleep(0)

    def withdraw(self, agent_id: bytes) -> None:
        """Take an agent of this host back."""
        if self._agents.pop(agent_id, None) is not None:
            self._loads.pop(agent_id, None)
            self._told.pop(agent_id, None)
            self._vectors.pop(agent_id, None)
            self._unstated.pop(agent_id, None)
            self._dirty.discard(agent_id)
            self.node.withdraw(agent_id)

    def load_changed(self, agent_id: bytes, load: int) -> None:
        """An own agent's load is ``load``. Others are told when it about doubled or halved, not each time."""
        self._loads[agent_id] = load
        if load.bit_length() == self._told.get(agent_id, 0):
            self._dirty.discard(agent_id)
            return
        self._dirty.add(agent_id)
        if self._timer is None and not self.node.ended:
            self._timer = asyncio.get_running_loop().call_later(HINT_S, self._tell_loads)

    def _tell_loads(self) -> None:
        self._timer = None
        dirty, self._dirty = self._dirty, set()
        agents = [self._agents[agent_id] for agent_id in dirty if agent_id in self._agents]
        if not agents or self.node.ended:
            return
        with contextlib.suppress(errors.Overloaded):  # a hint; the next change tells
            self.node.announce(*(self.announcement(agent) for agent in agents))
        for agent in agents:
            self._told[agent.id] = self._loads.get(agent.id, 0).bit_length()

    # -- the others ----------------------------------------------------------------------------------

    async def is_member(self, host: bytes) -> bool:
        """Whether a host is a live member; waits a moment for word of one that is not known."""
        deadline = asyncio.get_running_loop().time() + MEMBER_S
        while True:
            version = self.node.version
            state = next((m.state for m in self.node.members() if m.id == host), "")
            left = deadline - asyncio.get_running_loop().time()
            if state in ("alive", "suspect") or left <= 0 or self.node.ended:
                return state in ("alive", "suspect")
            await self.node.wait_async(version, timeout_s=left)

    async def ask(self, missing: Mapping[str, int]) -> bool:
        """Ask this host's own factory and then all others for agents; true if there are new ones now."""
        if self.node.ended:
            return False
        if await self._refresh():
            return True
        wanted = Request(0, self.node.id, 0, tuple(sorted(missing)))
        if await self._make(wanted):
            return True
        if not any(m.state == "alive" and not m.is_self for m in self.node.members()):
            return False
        offers = await self.node.request(wanted.capabilities, timeout_s=ASK_S)
        await self._refresh()
        return bool(offers)

    async def _refresh(self) -> bool:
        """Take in what the node has learned; true if any agent changed."""
        async with self._refreshing:
            fed, changes = await asyncio.to_thread(self._directory.refresh)
            if fed or changes is not None:
                self._directory.learn(changes)
            return bool(fed)

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        version = 0
        tidied = loop.time()
        while not self.node.ended:
            version = await self.node.wait_async(version, timeout_s=_TIDY_S)
            await self._refresh()
            self._on_change()
            if self._on_request is not None:
                for request in self.node.requests(self._arrival):
                    self._arrival = request.arrival
                    self._spawn(self._answer(request))
            if loop.time() - tidied >= _TIDY_S:
                tidied = loop.time()
                await self._directory.drop_clients()
            await asyncio.sleep(_TURN_S)
        logger.error("this host is no longer in its collective; its agents are only known here")

    async def _answer(self, request: Request) -> None:
        made = await self._make(request)
        if made:
            self.node.offer(request, *(self.announcement(agent) for agent in made))
            logger.info("started %d agents for a request for %s", len(made), ", ".join(request.capabilities))

    async def _make(self, request: Request) -> list[Agent]:
        if self._on_request is None or self._started_on_request >= MAX_ON_REQUEST:
            return []
        try:
            found = self._on_request(request)
            if inspect.isawaitable(found):
                found = await found
            made = [Agent.of(target) for target in found or ()]
            made = made[: MAX_ON_REQUEST - self._started_on_request]
            for agent in made:
                self._start_agent(agent)
                self._started_on_request += 1
        except Exception:  # the user's own code: this request goes without an offer
            logger.exception("on_request failed for %s", ", ".join(request.capabilities))
            return []
        return made

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("following the collective failed", exc_info=error)


def _cut(text: str) -> str:
    """The text, cut to fit an announcement."""
    data = text.encode()
    if len(data) <= _MAX_DESCRIPTION:
        return text
    return data[: _MAX_DESCRIPTION - 3].decode(errors="ignore").rstrip() + "…"


def seeds_of(seeds: str | Sequence[str]) -> tuple[str, ...]:
    """One seed or several, as a tuple."""
    return (seeds,) if isinstance(seeds, str) else tuple(seeds)
