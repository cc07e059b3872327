"""The collective: agents that can be given tasks. Async first, with one sync facade over the same object."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.agent import Agent, subscribed
from pandacore.task import Budget, Result, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from pandacore.gossip import AgentEntry, Changes, JoinReport, Node, Request, Ticket
    from pandacore.gossip import Member as HostMember
    from pandacore.journal import Journal
    from pandacore.models.client import ModelClient
    from pandacore.models.embedders import Embedder
    from pandacore.patterns.base import Machine
    from pandacore.registry import Registry
    from pandacore.reputation import Reputation, ReputationPolicy
    from pandacore.sync import SyncCollective
    from pandacore.team.client import AgentClient
    from pandacore.team.directory import Directory
    from pandacore.team.driver import EventStream, Run, Services
    from pandacore.team.entry import Entry
    from pandacore.team.host import Host
    from pandacore.team.meaning import FoundAgent, Meaning
    from pandacore.team.presence import Joining, OnRequest, Presence
    from pandacore.team.vetting import Verdict, Vetting
    from pandacore.trust import Certificate, KeyPair, Revocation, TrustedSet, TrustStore

__all__ = ["Collective"]

MAX_RUNS: Final = 1_000
"""Runs of one collective that are in progress at once; further ones wait for a place."""
MAX_WAITING: Final = 10_000
"""Runs that wait for a place; more are refused as ``Overloaded``."""
_ATTACH_S: Final = 5.0


class Collective:
    """Agents, served over gRPC, and the runs they work on.

    Made by :meth:`local` (this process alone) or :meth:`join` (a host among many). ``async with`` gives this
    object, bound to the running event loop; a plain ``with`` gives the :class:`SyncCollective` facade over
    it, which works in scripts, notebooks and tests, whether or not a loop runs.

    Examples
    --------
    >>> import pandacore as pc
    >>> @pc.agent(capabilities=["text.upper"])
    ... async def upper(task: pc.Task) -> str:
    ...     return task.text.upper()
    >>> with pc.Collective.local() as c:
    ...     _ = c.add(upper)
    ...     print(c.run("hello").output)
    HELLO
    """

    def __init__(
        self,
        *,
        model: str | ModelClient | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        embedder: str | Embedder | None = None,
        semantic: float | None = None,
        seed: int | None = None,
        trust: TrustStore | TrustedSet | None = None,
        reputation: Reputation | ReputationPolicy | None = None,
        clock: Callable[[], float] = time.time,
        joining: Joining | None = None,
    ) -> None:
        if semantic is not None and not 0 < semantic <= 1:
            raise errors.ConfigError(
                f"must be above 0 and at most 1, not {semantic}",
                where="semantic",
                hint="use a cosine of the embedder, such as 0.4",
            )
        self._trust_spec = trust
        self._reputation_spec = reputation
        self._clock = clock
        self._model_spec = model
        self._joining = joining
        self._journal_spec = journal
        self._embedder_spec = embedder
        self._semantic = semantic
        self._random = Random(seed)
        self._seeded = seed is not None
        self._pid = os.getpid()
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit: contextlib.AsyncExitStack | None = None
        self._agents: dict[bytes, Agent] = {}
        self._runs: set[Run] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(MAX_RUNS)
        self._waiting = 0
        self._host: Host | None = None
        self._services: Services | None = None
        self._presence: Presence | None = None
        self._report: JoinReport | None = None
        self._standby: list[_Standby] = []
        self._changed = asyncio.Event()
        self._facade: SyncCollective | None = None

    @classmethod
    def local(
        cls,
        *,
        model: str | ModelClient | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        embedder: str | Embedder | None = None,
        semantic: float | None = None,
        seed: int | None = None,
        trust: TrustStore | TrustedSet | None = None,
        reputation: Reputation | ReputationPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Collective:
        """A collective of this process alone.

        Parameters
        ----------
        model : str or ModelClient, optional
            What ``ctx.model`` and the planner use: ``"extractive"`` (no weights), ``"llama:NAME"``,
            ``"openai:MODEL"``, or ``"grpc://host:port/model"`` of a running server. The first three start a
            model server as a child process. None: no model; plans are made by rule.
        journal : path or Journal, optional
            Where runs are logged, durably, so that a crashed one can be taken up by :meth:`resume`. A path is
            opened with ``durability="sync"`` and closed with the collective. None: runs are not logged.
        embedder : str or Embedder, optional
            Makes the vectors that :meth:`find` and ``semantic`` go by: an object, or a model server as for
            ``model``, such as ``"llama:all-minilm-l6-v2"``. None: :class:`pandacore.models.HashingEmbedder`,
            which needs no weights.
        semantic : float, optional
            Least cosine at which a capability is taken for one that nobody has by name; the team says what
            was taken for what (``TeamView.matches``). None: names only.
        seed : int, optional
            For every random choice of the runtime (ties between agents, jitter).
        trust : TrustStore or TrustedSet, optional
            Whom the collective accepts: the set, or what the store's own policy accepts. Nobody else gets
            work, also not in runs that began before a revocation or an expiry. None: everybody is accepted.
        reputation : Reputation or ReputationPolicy, optional
            Counts the outcomes that a contract judged, and keeps agents out that broke theirs too often.
        clock : callable
            Seconds since 1970. The trust store's time and the epochs of reputation (60 s) follow it.
        """
        return cls(
            model=model,
            journal=journal,
            embedder=embedder,
            semantic=semantic,
            seed=seed,
            trust=trust,
            reputation=reputation,
            clock=clock,
        )

    @classmethod
    def join(
        cls,
        seeds: str | Sequence[str] = (),
        *,
        collective: bytes | str | None = None,
        key: KeyPair | None = None,
        bind: str = "127.0.0.1:0",
        advertise: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        admission: bytes | None = None,
        ticket: Ticket | str | None = None,
        on_request: OnRequest | None = None,
        timeout_s: float = 30.0,
        model: str | ModelClient | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        embedder: str | Embedder | None = None,
        semantic: float | None = None,
        seed: int | None = None,
        trust: TrustStore | TrustedSet | None = None,
        reputation: Reputation | ReputationPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Collective:
        """A host of a collective of many processes and machines, which find each other by gossip.

        Teams are formed out of the agents of all hosts. Entering returns when everything that the host
        which let this one in knew is known here; leaving says goodbye to all.

        Parameters
        ----------
        seeds : str or sequence of str
            Hosts that may be there already, as their :attr:`seed_address` says:
            ``did:key:…@host:port/COLLECTIVE``; or ``host:port`` together with ``collective``. None: the first
            host of its collective.
        collective : bytes or str, optional
            The collective's id, or a name that all hosts use. Default: the seeds', or for the first host a
            new one.
        key : KeyPair, optional
            The host's identity. Default: a fresh one.
        bind : str
            Where it listens, ``host:port``: gossip over UDP, and the team plane over TCP, on the same port
            where that is free. Both are encrypted. ``0.0.0.0:0``: on all networks of the machine.
        advertise : str, optional
            Under which ``host:port`` others reach it, if not under the bound one. Default for ``0.0.0.0``:
            the address from which this machine reaches its first seed, or the world.
        state_dir : path, optional
            Keeps what a restarted host with the same key should know. One process at a time may use it.
        ticket : Ticket or str, optional
            What lets the host with this ``key`` into a closed collective: only hosts with a ticket come in
            there. Made by :func:`pandacore.gossip.issue_ticket` or ``pandacore ticket``.
        admission : bytes, optional
            The public key that signs tickets. Default: the one that signed this host's.
        on_request : callable, optional
            Called with a :class:`~pandacore.gossip.Request` when a team lacks capabilities that nobody has
            announced; answers agents (what :meth:`add` takes) that it can start for it, or None. May be
            async. At most 64 agents are started so.
        timeout_s : float
            For coming in.
        model, journal, embedder, semantic, seed, trust, reputation, clock
            As for :meth:`local`.

        Raises
        ------
        WrongCollective, JoinRefused
            On entering: a seed belongs to another collective, or does not let this host in.
        DeadlineExceeded
            On entering: no seed answered in time.
        ConfigError
            An address cannot be parsed or bound, nothing says which collective is meant, or the ticket is not
            for this host, or has ended.
        """
        from pandacore.gossip import Ticket
        from pandacore.team.presence import Joining, seeds_of

        joining = Joining(
            collective=collective,
            seeds=seeds_of(seeds),
            key=key,
            bind=bind,
            advertise=advertise,
            state_dir=state_dir,
            admission=admission,
            ticket=Ticket.parse(ticket) if isinstance(ticket, str) else ticket,
            timeout_s=timeout_s,
            on_request=on_request,
        )
        return cls(
            model=model,
            journal=journal,
            embedder=embedder,
            semantic=semantic,
            seed=seed,
            trust=trust,
            reputation=reputation,
            clock=clock,
            joining=joining,
        )

    # -- life ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Collective:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> SyncCollective:
        self._require("new", "it was started before")
        from pandacore.sync import SyncCollective

        self._facade = SyncCollective(self)
        self._facade._open()
        return self._facade

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._facade is not None
        self._facade.close()

    async def _start(self) -> None:
        from pandacore.journal import Journal
        from pandacore.registry import Registry
        from pandacore.team.assembly import Assembler
        from pandacore.team.driver import Services
        from pandacore.team.meaning import Meaning

        self._require("new", "it was started before")
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        try:
            async with contextlib.AsyncExitStack() as stack:
                model = None
                if self._model_spec is not None:
                    from pandacore.models.handle import connect

                    model = (await stack.enter_async_context(connect(self._model_spec))).client
                journal = self._journal_spec
                if journal is not None and not isinstance(journal, Journal):
                    journal = stack.enter_context(Journal(journal))
                meaning = Meaning(await self._make_embedder(stack), threshold=self._semantic)
                registry = Registry(
                    seed=self._random.getrandbits(63),
                    resolver=meaning.resolver,
                    trust_by_default=self._trust_spec is None,
                )
                vetting = self._make_vetting(registry, stack)
                serve = self._serve_here if self._joining is None else self._serve_all
                directory = await serve(stack, model, registry, meaning, vetting)
                presence = self._presence
                assembler = Assembler(
                    directory, random=self._random, ask=presence.ask if presence is not None else None
                )
                self._services = Services(directory, assembler, model, self._random, journal, self._host)
                if journal is not None and self._host is not None:
                    journal.announce(self._host.address, self._host.token)
                if presence is not None and self._joining is not None:
                    self._report = await presence.join(self._joining.timeout_s)
                for agent in self._agents.values():
                    self._announce(agent)
                self._exit = stack.pop_all()
        except BaseException:
            self._state = "closed"
            raise
        self._state = "open"

    async def _make_embedder(self, stack: contextlib.AsyncExitStack) -> Embedder:
        from pandacore.models.embedders import HashingEmbedder, ModelEmbedder

        spec = self._embedder_spec
        if spec is None:
            return HashingEmbedder()
        if not isinstance(spec, str):
            return spec
        from pandacore.models.handle import connect

        return await ModelEmbedder.of((await stack.enter_async_context(connect(spec))).client)

    async def _serve_here(
        self,
        stack: contextlib.AsyncExitStack,
        model: ModelClient | None,
        registry: Registry,
        meaning: Meaning,
        vetting: Vetting | None,
    ) -> Directory:
        from pandacore.team.directory import Directory
        from pandacore.team.host import Host

        directory = Directory(registry, meaning, vetting)
        stack.push_async_callback(directory.close)
        self._host = Host(
            model=model,
            load_changed=lambda agent, load: directory.report(agent.id, load),
            clients=directory.clients,
        )
        stack.push_async_callback(self._host.close)
        await self._host.start()
        return directory

    async def _serve_all(
        self,
        stack: contextlib.AsyncExitStack,
        model: ModelClient | None,
        registry: Registry,
        meaning: Meaning,
        vetting: Vetting | None,
    ) -> Directory:
        from pandacore.gossip import Node
        from pandacore.team.directory import SharedDirectory
        from pandacore.team.host import Host
        from pandacore.team.passes import Doorman, Passport
        from pandacore.team.presence import Presence
        from pandacore.trust import KeyPair

        joining = self._joining
        assert joining is not None
        target, seeds = joining.target()
        key = joining.key or KeyPair.generate()
        # In a thread, because names of seeds may have to be resolved.
        node = await asyncio.to_thread(
            Node.start,
            key,
            target,
            bind=joining.bind,
            advertise=joining.advertise,
            seeds=seeds,
            state_dir=joining.state_dir,
            admission=joining.admitted_by(key.public, self._clock()),
            ticket=joining.ticket,
            seed=self._random.getrandbits(63) if self._seeded else None,
        )
        stack.push_async_callback(node.leave)
        directory = SharedDirectory(registry, meaning, vetting, node, Passport(key, target))
        stack.push_async_callback(directory.close)

        def load_changed(agent: Agent, load: int) -> None:
            directory.report(agent.id, load)
            presence.load_changed(agent.id, load)

        async def is_member(host: bytes) -> bool:
            return await presence.is_member(host)

        self._host = Host(model=model, load_changed=load_changed, clients=directory.clients)
        stack.push_async_callback(self._host.close)
        endpoint = await self._host.start_beside(
            node, key=key, bind=joining.bind, doorman=Doorman(node.id, target, is_member)
        )
        self._presence = presence = Presence(
            node,
            directory,
            endpoint=endpoint,
            on_change=self._members_changed,
            start=self._take,
            on_request=self._on_request,
        )
        stack.push_async_callback(presence.close)
        return directory

    async def close(self) -> None:
        """Cancel what runs, say goodbye, stop serving and end the model server. Idempotent.

        Runs that wait for answers and for nothing else stay open in the journal, to be taken up by
        :meth:`resume`; their result says ``input_required``.
        """
        self._check_process()
        if self._state in ("closed", "new"):
            self._state = "closed"
            return
        self._check_loop()
        self._state = "closed"
        ends = (run.park() if run.parkable else run.cancel() for run in list(self._runs))
        await asyncio.gather(*ends, return_exceptions=True)
        watches = list(self._watches.values())
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        if self._exit is not None:
            await self._exit.aclose()
            self._exit = None

    # -- agents --------------------------------------------------------------------------------------

    def add(self, *agents: object, replicas: int = 1) -> list[Agent]:
        """Add agents: :class:`Agent` objects, or functions and classes marked with ``@agent``.

        Parameters
        ----------
        replicas : int
            How many agents, each with its own key and queue, to make of every marked function or class.

        Raises
        ------
        ConfigError
            An argument is no agent.
        DuplicateId
            The same :class:`Agent` was added before.
        StateError
            The collective is closed.
        """
        self._check_process()
        if self._state == "closed":
            raise errors.StateError("the collective is closed", hint="make a new one with Collective.local()")
        if not 1 <= replicas <= 100_000:
            raise errors.ConfigError(
                f"must be 1 to 100000, not {replicas}", where="add(replicas=…)", hint="use 1"
            )
        if replicas > 1 and any(isinstance(a, Agent) for a in agents):
            raise errors.ConfigError(
                "an Agent has one key, so it cannot be replicated",
                where="add(replicas=…)",
                hint="pass the marked function or class instead",
            )
        made = [Agent.of(target) for target in agents for _ in range(replicas)]
        ids = [agent.id for agent in made]
        if len(set(ids)) < len(ids) or any(i in self._agents for i in ids):
            raise errors.DuplicateId("the same agent is added twice", hint="give the second one its own key")
        for agent in made:
            self._agents[agent.id] = agent
            if self._state == "open":
                self._announce(agent)
        return made

    async def remove(self, agent: Agent) -> None:
        """Withdraw an agent; what it works on is cancelled.

        Raises
        ------
        UnknownAgent
            It is not in the collective.
        """
        self._require_open()
        assert self._host is not None
        if agent.id not in self._agents:
            raise errors.UnknownAgent(f"{agent.name!r} is not in the collective", hint="add it first")
        if self._presence is not None:
            self._presence.withdraw(agent.id)
        self._open_services().directory.remove(agent.id)
        await self._host.remove(agent.id)
        del self._agents[agent.id]

    def resubscribe(self, agent: Agent, subscription: str) -> None:
        """Change what an agent wants to be found for: :meth:`find` goes by the new text from now on.

        Parameters
        ----------
        agent : Agent
            One of this collective's own, from :meth:`add`.
        subscription : str
            Up to 4,000 characters; empty: its description again.

        Raises
        ------
        UnknownAgent
            It is not in the collective.
        ConfigError
            The text is too long.
        """
        self._check_process()
        if self._agents.get(agent.id) is not agent:
            raise errors.UnknownAgent(f"{agent.name!r} is not in the collective", hint="add it first")
        agent.subscription = subscribed(subscription)
        if self._state == "open":
            self._open_services().directory.update(self._entry(agent))
            if self._presence is not None:
                self._presence.announce(agent)

    async def attach(self, address: str) -> int:
        """Take in the agents of another process, served by ``python -m pandacore.team.serve``.

        Every agent proves by a signature that its key is there. The host is watched: when it gives no proof
        of life for about 1.5 s, its agents leave the collective, and runs that need them swap in others. If
        it was only slow, they are taken in again once it answers, for up to ten minutes.

        Parameters
        ----------
        address : str
            ``host:port`` of the other process; traffic to it is not encrypted, so use loopback.

        Returns
        -------
        int
            How many agents joined.

        Raises
        ------
        ConnectionLost, DeadlineExceeded
            Nobody answers there.
        ProtocolError
            An agent's card is not signed by its key; none of the host is taken in.
        DuplicateId
            An agent of it is here already.
        """
        from pandacore.team.watch import watch

        self._require_open()
        directory = self._open_services().directory
        client = directory.client_at(address)
        try:
            taken = await self._take_in(client)
        except BaseException:
            if not directory.at(address):
                await directory.drop_client(address)
            raise
        if (earlier := self._watches.pop(address, None)) is not None:
            earlier.cancel()  # the host was gone, and would have been taken in again

        async def back() -> None:
            await self._take_in(client)
            self._members_changed()

        self._watches[address] = asyncio.get_running_loop().create_task(
            watch(client, lambda: self._host_down(address), back), name=f"pandacore watch {address}"
        )
        return taken

    async def _take_in(self, client: AgentClient) -> int:
        """Ask a host for its agents and add them: all of them, or none."""
        directory = self._open_services().directory
        found = await client.describe(timeout_s=_ATTACH_S)
        for entry, _ in found:
            if entry.agent_id in directory:
                raise errors.DuplicateId(f"agent {entry.name!r} is here already", where=client.address)
        for entry, concurrency in found:
            directory.add(entry, concurrency=concurrency)
        return len(found)

    def _host_down(self, address: str) -> None:
        directory = self._open_services().directory
        gone = {entry.agent_id for entry in directory.at(address)}
        for agent_id in gone:
            directory.remove(agent_id)
        self._members_changed()

    def _members_changed(self) -> None:
        for run in list(self._runs):
            run.members_changed()
        self._changed.set()

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents of this process, in the order they were added."""
        return tuple(self._agents.values())

    @property
    def registry(self) -> Registry:
        """The registry behind the collective; read it freely, change it through ``add`` and ``remove``."""
        self._require_open()
        return self._open_services().directory.registry

    @property
    def address(self) -> str:
        """Where this process serves its agents, ``host:port``."""
        self._require_open()
        assert self._host is not None
        return self._host.address

    async def find(self, text: str, k: int = 10, *, threshold: float | None = None) -> list[FoundAgent]:
        """The agents nearest to a text in meaning: their subscription, or else description, and capabilities.

        Parameters
        ----------
        text : str
            What is looked for, in a few words or sentences.
        k : int
            Most agents in the answer; fewer when fewer are there or reach the threshold.
        threshold : float, optional
            Least cosine.

        Returns
        -------
        list of FoundAgent
            Best first; only agents that a team could be made of: alive, trusted and not draining.

        Raises
        ------
        ConfigError
            The text is empty, or ``k`` below 1.
        ModelError
            The embedder's server failed.
        """
        self._require_open()
        if k < 1:
            raise errors.ConfigError(f"must be 1 or more, not {k}", where="find(k=…)", hint="use 10")
        directory = self._open_services().directory
        if directory.vetting is not None:
            directory.vetting.refresh()

        def allowed(agent_id: bytes) -> bool:
            record = directory.registry.get(agent_id)
            return record is not None and record.alive and record.trusted and not record.draining

        return await directory.meaning.find(text, k, threshold=threshold, allowed=allowed)

    def explain(self, agent: Agent | bytes) -> Verdict:
        """Whether the collective works with an agent, and why: its certificates and what it did so far.

        Parameters
        ----------
        agent : Agent or bytes
            The agent, or its id as in ``Result.team``.
        """
        from pandacore.team.vetting import Verdict

        self._require_open()
        agent_id = agent.id if isinstance(agent, Agent) else agent
        vetting = self._open_services().directory.vetting
        if vetting is None:
            return Verdict(agent_id, True, "everybody is accepted", None, None)
        return vetting.explain(agent_id)

    def rate(self, agent: Agent | bytes, *, bad: bool) -> None:
        """Count an outcome of an agent that was judged outside of runs, by a person or another agent.

        Raises
        ------
        StateError
            The collective keeps no reputation.
        """
        self._require_open()
        vetting = self._open_services().directory.vetting
        if self._reputation_spec is None or vetting is None:
            raise errors.StateError(
                "the collective keeps no reputation",
                hint="start it with Collective.local(reputation=ReputationPolicy.robust())",
            )
        vetting.observe(agent.id if isinstance(agent, Agent) else agent, bad=bad)

    # -- the whole collective ----------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """This host in the collective plane.

        Raises
        ------
        StateError
            The collective is one process alone, or not open.
        """
        self._require_open()
        if self._presence is None:
            raise errors.StateError(
                "this collective is one process alone", hint="make it with Collective.join()"
            )
        return self._presence.node

    @property
    def id(self) -> bytes:
        """The collective's id, 32 bytes."""
        return self.node.collective

    @property
    def seed_address(self) -> str:
        """What another host passes to :meth:`join` to come in: ``did:key:…@host:port/COLLECTIVE``."""
        node = self.node
        return f"{node.did}@{node.address}/{node.collective.hex()}"

    @property
    def joined(self) -> JoinReport:
        """How coming in went; ``complete`` says that nothing was left out."""
        if self._report is None:
            raise errors.StateError(
                "this host has joined no collective", hint="make it with Collective.join()"
            )
        return self._report

    def members(self) -> list[HostMember]:
        """The hosts of the collective, this one first."""
        return self.node.members()

    def all_agents(self) -> list[AgentEntry]:
        """The agents of all live hosts. At 10^6 this takes seconds: ask :attr:`registry` instead."""
        return self.node.agents()

    async def changes(self, since: int = 0) -> AsyncIterator[Changes]:
        """Iterate over what changed in the collective; ends when this host leaves.

        State by version, no stream of events: a slow reader gets fewer, larger changes, and misses none.

        Parameters
        ----------
        since : int
            ``version`` of the last changes that were seen; 0: everything.
        """
        async for change in self.node.watch(since):
            yield change

    async def wait_for(self, *capabilities: str, timeout_s: float = 30.0) -> None:
        """Wait until an agent with each of the capabilities is here and may be chosen.

        Raises
        ------
        DeadlineExceeded
            Some are missing after ``timeout_s``; they are named.
        """
        self._require_open()
        directory = self._open_services().directory
        registry = directory.registry
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            self._changed.clear()
            if directory.vetting is not None:
                directory.vetting.refresh()
            missing = [name for name in capabilities if not registry.available(name)]
            if not missing:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                raise errors.DeadlineExceeded(
                    f"nobody with {', '.join(map(repr, missing))} came in {timeout_s:g} s",
                    hint="start a host whose agents have these capabilities",
                ) from None
            self._require_open()

    def publish(self, *statements: Certificate | Revocation) -> None:
        """Take certificates and revocations in, and spread them to all hosts.

        Every host verifies them by itself, and they count where a trust store is in use
        (``join(trust=…)``). What this host published is gone from the collective when it has left for long.

        Raises
        ------
        RefusedStatement
            This host's own trust store refuses one; none was spread.
        """
        from pandacore.trust import TrustStore

        node = self.node
        spec = self._trust_spec
        store = spec if spec is None or isinstance(spec, TrustStore) else spec.store
        if store is not None:
            for statement in statements:
                with contextlib.suppress(errors.DuplicateStatement):
                    store.ingest(statement)
        node.publish_certificates(*(statement.record for statement in statements))

    def standby(self, *agents: object, limit: int = 1) -> None:
        """Name marked functions or classes that are started only when a team lacks what they can do.

        Parameters
        ----------
        limit : int
            How many agents are made of each at most.

        Raises
        ------
        ConfigError
            An argument is no marked function or class.
        """
        for target in agents:
            if isinstance(target, Agent):
                raise errors.ConfigError(
                    "an Agent has one key, so it cannot be made when asked for",
                    where="standby",
                    hint="pass the marked function or class instead",
                )
            self._standby.append(_Standby(target, Agent.of(target).capabilities, limit))

    # -- runs ----------------------------------------------------------------------------------------

    async def run(
        self,
        task: Task | str,
        *,
        pattern: str | type[Machine] | tuple[type[Machine], type[Machine]] = "star",
        budget: Budget | None = None,
        planner: str = "auto",
    ) -> Result:
        """Run a task to its end.

        Parameters
        ----------
        task : Task or str
        pattern : str, Machine class, or two of them
            ``"star"``, ``"chain"``, ``"mesh"`` or a registered name; or the classes of your own pattern: the
            entrypoint's alone, if it has agents execute and needs nothing else of them, or also the members'.
        budget : Budget, optional
            Default: no token cap, 300 s, 1000 subtask executions.
        planner : str
            ``"model"``, ``"rule"``, or ``"auto"``: the model if there is one and anything to decide.

        Returns
        -------
        Result
            Whatever happened: look at ``status`` and ``failures``; ``output`` raises unless completed.
            Cancelling the awaiting task cancels the run, which has ended before the cancellation goes on.

        Raises
        ------
        StateError, ForkError
            The collective is not open, or belongs to another loop or process.
        Overloaded
            More than 10,000 runs wait already.
        ConfigError
            An argument is not valid.
        """
        self._require_open()
        await self._place()
        try:
            run = self.start(task, pattern=pattern, budget=budget, planner=planner)
            try:
                return await run.result()
            except asyncio.CancelledError:
                await run.cancel()
                raise
        finally:
            self._places.release()

    def start(
        self,
        task: Task | str,
        *,
        pattern: str | type[Machine] | tuple[type[Machine], type[Machine]] = "star",
        budget: Budget | None = None,
        planner: str = "auto",
    ) -> Run:
        """Begin a task and return at once; arguments as for :meth:`run`.

        Raises
        ------
        Overloaded
            1,000 runs are in progress; nothing was started.
        """
        from pandacore.team.driver import Run

        self._require_open()
        if len(self._runs) >= MAX_RUNS:
            raise errors.Overloaded(f"{MAX_RUNS} runs are in progress", hint="wait for some of them")
        if isinstance(task, str):
            task = Task(task)
        if not isinstance(task, Task):
            raise errors.ConfigError(
                f"a task is a Task or str, not {type(task).__name__}", hint="pass a string"
            )
        if planner not in ("auto", "model", "rule"):
            raise errors.ConfigError(
                f"no planner {planner!r}", where="run(planner=…)", hint="auto, model or rule"
            )
        name, machine = _pattern(pattern)
        return self._follow(
            Run(task, name, machine, budget or Budget(), self._open_services(), planner=planner)
        )

    def resume(self, run_id: str) -> Run:
        """Take up a run that a crash left open in the journal; what was committed is not done again.

        The team is formed anew out of the agents that are here now. Subtasks that were in flight are asked
        for at their agents; what no agent knows of is executed again if the task is idempotent, and ends the
        run as ``UnknownOutcome`` if not.

        Raises
        ------
        StateError
            The collective has no journal, or the run has ended, or is in progress here.
        UnknownRun, JournalCorrupt, IncompatibleJournal
            The journal cannot give the run.
        """
        from pandacore.team.driver import Run
        from pandacore.team.past import read_past

        self._require_open()
        services = self._open_services()
        if services.journal is None:
            raise errors.StateError(
                "the collective has no journal", hint="start it with Collective.local(journal=PATH)"
            )
        if any(run.id == run_id for run in self._runs):
            raise errors.StateError(f"run {run_id} is in progress here", hint="wait for it")
        opened = read_past(services.journal, run_id)
        if opened.finished is not None:
            raise errors.StateError(
                f"run {run_id} has ended: {opened.finished['status']}", hint="show it with `pandacore show`"
            )
        name, machine = _pattern(opened.pattern)
        return self._follow(
            Run(
                opened.task,
                name,
                machine,
                opened.budget,
                services,
                planner=opened.planner,
                past=opened.past,
            )
        )

    async def answer(self, run: Run | str, question_id: str, value: Any) -> None:
        """Answer what an agent of a run asked by :class:`~pandacore.errors.InputRequired`.

        Open questions are in ``Run.questions``, and come as :class:`~pandacore.task.QuestionAsked` events.
        They may be answered in any order; a subtask goes on once it has all its answers.

        Parameters
        ----------
        run : Run or str
            The run, or its id; one of this collective that is in progress.
        question_id : str
            ``SUBTASK:ID``.
        value : JSON value

        Raises
        ------
        UnknownRun, UnknownQuestion, DuplicateAnswer, InvalidAnswer
            Nothing was answered.
        """
        self._require_open()
        run_id = run if isinstance(run, str) else run.id
        found = next((r for r in self._runs if r.id == run_id), None)
        if found is None:
            raise errors.UnknownRun(
                f"run {run_id!r} is not in progress here",
                hint="take it up by resume(), or answer where it goes on: `pandacore answer`",
            )
        await found.answer(question_id, value)

    def _follow(self, run: Run) -> Run:
        self._runs.add(run)
        run._main.add_done_callback(lambda _: self._runs.discard(run))
        return run

    def stream(
        self,
        task: Task | str,
        *,
        pattern: str | type[Machine] | tuple[type[Machine], type[Machine]] = "star",
        budget: Budget | None = None,
        planner: str = "auto",
    ) -> EventStream:
        """Begin a task and iterate over its events; leaving early cancels it. Arguments as for :meth:`run`.

        ``async with collective.stream(task) as events:`` also waits until a left run has ended.
        """
        from pandacore.team.driver import EventStream

        run = self.start(task, pattern=pattern, budget=budget, planner=planner)
        return EventStream(run, after=0, owns_run=True)

    # -- inside --------------------------------------------------------------------------------------

    async def _place(self) -> None:
        """Wait for a place among the runs; whoever has one gives it back."""
        if self._places.locked() and self._waiting >= MAX_WAITING:
            raise errors.Overloaded(f"{self._waiting} runs wait already", hint="wait for some of them")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def _make_vetting(self, registry: Registry, stack: contextlib.AsyncExitStack) -> Vetting | None:
        trust, reputation = self._trust_spec, self._reputation_spec
        if trust is None and reputation is None:
            return None
        from pandacore.reputation import Reputation, ReputationPolicy
        from pandacore.team.vetting import Vetting
        from pandacore.trust import TrustStore

        if isinstance(trust, TrustStore):
            trust = stack.enter_context(trust.trusted())
        if isinstance(reputation, ReputationPolicy):
            reputation = Reputation(reputation, capacity=1_000_000)
        return Vetting(registry, trusted=trust, reputation=reputation, clock=self._clock)

    def _open_services(self) -> Services:
        assert self._services is not None
        return self._services

    def _announce(self, agent: Agent) -> None:
        assert self._host is not None
        self._host.add(agent)
        self._open_services().directory.add(self._entry(agent), concurrency=agent.concurrency)
        if self._presence is not None:
            self._presence.announce(agent)
        self._changed.set()

    def _entry(self, agent: Agent) -> Entry:
        from pandacore.team.directory import Entry

        assert self._host is not None
        return Entry(
            agent.id,
            agent.name,
            agent.description,
            agent.capabilities,
            self._host.address,
            subscription=agent.subscription,
        )

    def _take(self, agent: Agent) -> None:
        self._agents[agent.id] = agent
        self._announce(agent)

    async def _on_request(self, request: Request) -> list[object]:
        """The agents to start for a request: those that stand by, and what the user's own function makes."""
        found: list[object] = []
        for wanted in request.capabilities:
            for standby in self._standby:
                if standby.left and standby.agent_can(wanted):
                    standby.left -= 1
                    found.append(standby.target)
                    break
        assert self._joining is not None
        if not found and self._joining.on_request is not None:
            made = self._joining.on_request(request)
            found += (await made if inspect.isawaitable(made) else made) or ()
        return found

    def _require_open(self) -> None:
        self._require("open", "")
        self._check_loop()

    def _require(self, state: str, why: str) -> None:
        self._check_process()
        if self._state == state:
            return
        hints = {
            "new": "enter it first: `async with Collective.local() as c:` or `with …`",
            "starting": "wait until `async with` has entered",
            "open": "make a new one with Collective.local()",
            "closed": "make a new one with Collective.local()",
        }
        reason = (
            why
            or {"new": "it was never started", "starting": "it is starting", "closed": "it is closed"}[
                self._state
            ]
        )
        raise errors.StateError(f"the collective cannot do this: {reason}", hint=hints[self._state])

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise errors.ForkError(
                f"the collective belongs to process {self._pid}, this is its fork {os.getpid()}",
                hint="create a collective of its own in the child",
            )

    def _check_loop(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise errors.StateError(
                f"the collective belongs to event loop {id(self._loop):#x}, "
                + (f"the running one is {id(running):#x}" if running else "and no loop runs here"),
                hint="use it on the loop that entered it, or use the sync facade: `with Collective.local()`",
            )

    def _repr_html_(self) -> str:
        from pandacore.notebook import collective_html

        loads = {}
        if self._services is not None:
            loads = {agent_id: self._services.directory.load(agent_id) for agent_id in self._agents}
        return collective_html(self._state, self._agents.values(), loads)

    def __repr__(self) -> str:
        return f"<Collective {self._state}, {len(self._agents)} agents, {len(self._runs)} runs>"


@dataclass(slots=True)
class _Standby:
    """What may be started when somebody asks for it."""

    target: object
    capabilities: tuple[str, ...]
    left: int

    def agent_can(self, wanted: str) -> bool:
        return any(own == wanted or own.startswith(f"{wanted}.") for own in self.capabilities)


def _pattern(pattern: str | type[Machine] | tuple[type[Machine], type[Machine]]) -> tuple[str, type[Machine]]:
    from pandacore.patterns import MACHINES, register
    from pandacore.patterns.base import Machine

    if isinstance(pattern, str):
        if pattern in MACHINES:
            return pattern, MACHINES[pattern][0]
        from pandacore.names import suggestions

        close = suggestions(pattern, MACHINES)
        raise errors.ConfigError(
            f"no pattern {pattern!r}; known: {', '.join(MACHINES)}",
            where="run(pattern=…)",
            hint=f"did you mean {close[0]!r}?" if close else "use one of them, or a Machine class",
        )
    if isinstance(pattern, type) and issubclass(pattern, Machine):
        return pattern.__name__, pattern
    if isinstance(pattern, tuple) and len(pattern) == 2 and isinstance(pattern[0], type):
        name = f"{pattern[0].__module__}.{pattern[0].__qualname__}"
        register(name, *pattern)
        return name, pattern[0]
    raise errors.ConfigError(
        "a pattern is a name, a Machine class, or the classes of entrypoint and members",
        where="run(pattern=…)",
        hint='use "star"',
    )
