"""Who is in the collective, and where: one entry per agent, one client per host."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from pandacore import errors
from pandacore.team.clients import Clients
from pandacore.team.entry import Entry
from pandacore.trust import did_of

if TYPE_CHECKING:
    from pandacore.gossip import AgentEntry, Changes, Node
    from pandacore.registry import Registry
    from pandacore.team.client import AgentClient
    from pandacore.team.meaning import Meaning
    from pandacore.team.passes import Passport
    from pandacore.team.vetting import Vetting

__all__ = ["Directory", "Entry", "SharedDirectory"]

MAX_SEARCHED: Final = 100_000
"""Most agents of a collective that can be searched by meaning; each takes memory in Python."""
_MAX_AGREED: Final = 16_384


class Directory:
    """The agents of a collective, kept in step with the registry.

    Also the book of loads. What the registry believes of an agent's load is the agent's own last report plus
    what this caller has decided and the agent does not know yet: without the second part, simultaneous
    assemblies herd on the same agent.

    Parameters
    ----------
    registry : Registry
    meaning : Meaning
        Kept in step too.
    vetting : Vetting, optional
        Decides whom the collective works with; None: everybody.
    """

    def __init__(
        self,
        registry: Registry,
        meaning: Meaning,
        vetting: Vetting | None = None,
        clients: Clients | None = None,
    ) -> None:
        self._registry = registry
        self._stale: set[bytes] = set()
        self.meaning = meaning
        self.vetting = vetting
        self.clients = clients or Clients()
        self._entries: dict[bytes, Entry] = {}
        self._reported: dict[bytes, int] = {}
        self._pending: dict[bytes, int] = {}

    @property
    def registry(self) -> Registry:
        """The registry, with the loads of this moment."""
        for agent_id in self._stale:
            self._registry.set_load(agent_id, self.load(agent_id))
        self._stale.clear()
        return self._registry

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, agent_id: bytes) -> bool:
        return agent_id in self._entries

    def find(self, agent_id: bytes) -> Entry | None:
        """The entry of an agent, or None."""
        return self._entries.get(agent_id)

    def add(self, entry: Entry, *, concurrency: int) -> None:
        """Announce an agent of this process, or of one that was attached.

        Raises
        ------
        DuplicateId
            It is here already.
        """
        if entry.agent_id in self._entries:
            raise errors.DuplicateId(
                f"agent {entry.name!r} is in the collective already", hint="give the second one its own key"
            )
        self.registry.announce(entry.agent_id, entry.capabilities, concurrency=concurrency)
        self._entries[entry.agent_id] = entry
        self.meaning.add(entry)
        if self.vetting is not None:
            self.vetting.add(entry.agent_id)

    def update(self, entry: Entry) -> None:
        """Replace what is said of an agent that was added; its capabilities stay."""
        self._entries[entry.agent_id] = entry
        self.meaning.add(entry)

    def remove(self, agent_id: bytes) -> None:
        """Withdraw an agent that was added; forgets its loads."""
        del self._entries[agent_id]
        if self.vetting is not None:
            self.vetting.remove(agent_id)
        self.registry.withdraw(agent_id)
        self.meaning.remove(agent_id)
        self._reported.pop(agent_id, None)
        self._pending.pop(agent_id, None)

    def entry(self, agent_id: bytes) -> Entry:
        """The entry of an agent.

        Raises
        ------
        UnknownAgent
            It is not, or no longer, in the collective.
        """
        entry = self.find(agent_id)
        if entry is None:
            raise errors.UnknownAgent(
                f"no agent {agent_id.hex()[:16]} in the collective", hint="it left; choose another"
            )
        return entry

    def usable(self, agent_id: bytes) -> bool:
        """Whether the agent is here and the collective works with it."""
        return agent_id in self._entries and (self.vetting is None or self.vetting.accepts(agent_id))

    def at(self, address: str) -> list[Entry]:
        """The added agents of one host."""
        return [e for e in self._entries.values() if e.address == address]

    def vocabulary(self, *, usable: bool = False) -> dict[str, str]:
        """Capabilities and what the first (usable) agent with each says of itself."""
        found: dict[str, str] = {}
        for entry in self._entries.values():
            if usable and not self.usable(entry.agent_id):
                continue
            for name in entry.capabilities:
                found.setdefault(name, entry.description)
        return found

    def refusal(self, agent_id: bytes) -> str:
        """Why an agent that is here must not be worked with; empty if it may."""
        return ""

    async def drop_client(self, address: str) -> None:
        """Close the client of a host that is gone."""
        await self.clients.drop(address)

    def client(self, agent_id: bytes) -> AgentClient:
        """The client of the agent's host."""
        return self.clients.at(self.entry(agent_id).address)

    def client_at(self, address: str) -> AgentClient:
        """The one client of a host; connects when first used."""
        return self.clients.at(address)

    async def close(self) -> None:
        """Close all clients."""
        await self.clients.close()

    # -- loads ---------------------------------------------------------------------------------------

    def report(self, agent_id: bytes, load: int) -> None:
        """The agent says that its load is ``load``."""
        if agent_id in self._entries:
            self._reported[agent_id] = load
            self._stale.add(agent_id)

    def expect(self, agent_id: bytes, change: int) -> None:
        """This caller is about to add ``change``, or (negative) no longer is."""
        if agent_id not in self._entries:
            return
        pending = self._pending.get(agent_id, 0) + change
        if pending:
            self._pending[agent_id] = pending
        else:
            self._pending.pop(agent_id, None)
        self._stale.add(agent_id)

    def load(self, agent_id: bytes) -> int:
        """The believed load."""
        load = self._reported.get(agent_id, 0) + self._pending.get(agent_id, 0)
        return load if load > 0 else 0


class SharedDirectory(Directory):
    """The agents of this process and of all other hosts of a collective.

    Of the others nothing is kept here: the node's replica is asked, and feeds the registry in Rust, so that
    10^6 agents cost no Python object each.

    Parameters
    ----------
    registry : Registry
        Belongs to the node from now on.
    meaning : Meaning
    vetting : Vetting, optional
        Both are kept in step with up to 100,000 agents. Where there is a vetting, later ones get no work.
    node : Node
    passport : Passport
        Makes the passes that this host's calls carry.
    """

    def __init__(
        self, registry: Registry, meaning: Meaning, vetting: Vetting | None, node: Node, passport: Passport
    ) -> None:
        super().__init__(registry, meaning, vetting, Clients(passport))
        self._seen = 0
        self._node = node
        self._agreed: OrderedDict[bytes, tuple[bytes, tuple[int, int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._registry)

    def __contains__(self, agent_id: bytes) -> bool:
        return agent_id in self._entries or self.find(agent_id) is not None

    def find(self, agent_id: bytes) -> Entry | None:
        """The entry of an agent of any live host, or None."""
        own = self._entries.get(agent_id)
        if own is not None:
            return own
        found = self._node.agent(agent_id)
        # What this host itself announced and has no entry any more is on its way out.
        if found is None or not found.endpoint or found.host == self._node.id:
            return None
        return _entry(found)

    def usable(self, agent_id: bytes) -> bool:
        """Whether the agent is here, belongs to its host, and the collective works with it."""
        if agent_id not in self or (self.vetting is not None and not self.vetting.accepts(agent_id)):
            return False
        return not self.refusal(agent_id)

    def vocabulary(self, *, usable: bool = False) -> dict[str, str]:
        """Capabilities and what one (usable) agent with each says of itself."""
        found: dict[str, str] = {}
        registry = self.registry
        names = registry.capabilities()
        # A parent that only others imply is no capability that somebody announced.
        parents = {name[:at] for name in names for at, letter in enumerate(name) if letter == "."}
        for name in names:
            if usable and self.vetting is not None and not registry.available(name):
                continue
            for agent_id in registry.holders(name)[:1]:
                entry = self.find(agent_id)
                if entry is not None and (name not in parents or name in entry.capabilities):
                    found[name] = entry.description
        return found

    def refusal(self, agent_id: bytes) -> str:
        """Why an agent must not be worked with: it has not signed that its host may run it."""
        if agent_id in self._entries:
            return ""
        found = self._node.agent(agent_id)
        if found is None:
            return "it left"
        seen = (found.host, found.version)
        if self._agreed.get(agent_id) != seen:
            if not self._node.agreed(agent_id):
                return "it has not signed that its host may run it"
            self._agreed[agent_id] = seen
            while len(self._agreed) > _MAX_AGREED:
                self._agreed.popitem(last=False)
        return ""

    async def drop_clients(self) -> None:
        """Close the clients of hosts that are gone."""
        await self.clients.keep({m.did for m in self._node.members() if m.state in ("alive", "suspect")})

    def refresh(self) -> tuple[int, Changes | None]:
        """Bring the registry up to date. Answers how many agents changed, and what to :meth:`learn`."""
        fed = self._node.feed(self._registry)
        # Certificates come and go without any agent that changes.
        if (not fed and self.vetting is None) or len(self._registry) > MAX_SEARCHED:
            return fed, None
        changes = self._node.changes(self._seen)
        self._seen = changes.version
        return fed, changes

    def learn(self, changes: Changes | None) -> None:
        """Keep what is searched by meaning and what is vetted in step, and this process's loads true."""
        for agent_id in changes.removed if changes else ():
            if agent_id not in self._entries:
                self.meaning.remove(agent_id)
                if self.vetting is not None:
                    self.vetting.remove(agent_id)
        for found in changes.updated if changes else ():
            if found.host != self._node.id:
                self.meaning.add(_entry(found))
                if self.vetting is not None:
                    self.vetting.follow(found.agent)
        if self.vetting is not None and changes is not None:
            self.vetting.ingest(changes.certificates)
        # The feed wrote what they announced, which is older.
        self._stale |= self._pending.keys() | self._reported.keys()

    @property
    def registry(self) -> Registry:
        """The registry, with the loads of this moment."""
        for agent_id in self._stale:
            with contextlib.suppress(
                errors.UnknownAgent
            ):  # it has not been fed with it yet, or no longer has it
                self._registry.set_load(agent_id, self.load(agent_id))
        self._stale.clear()
        return self._registry

    # -- loads: other hosts' agents are booked in the registry alone --------------------------------

    def report(self, agent_id: bytes, load: int) -> None:
        """The agent says that its load is ``load``."""
        if agent_id not in self._entries:
            with contextlib.suppress(errors.UnknownAgent):
                self._registry.set_load(agent_id, load)
            return
        super().report(agent_id, load)
        if not load:  # so that only the loaded ones are written again after each feed
            del self._reported[agent_id]

    def expect(self, agent_id: bytes, change: int) -> None:
        """This caller is about to add ``change``, or (negative) no longer is."""
        if agent_id in self._entries:
            super().expect(agent_id, change)
        elif (known := self._registry.get(agent_id)) is not None:
            self.report(agent_id, max(known.load + change, 0))

    def load(self, agent_id: bytes) -> int:
        """The believed load."""
        if agent_id in self._entries:
            return super().load(agent_id)
        known = self._registry.get(agent_id)
        return 0 if known is None else known.load


def _entry(found: AgentEntry) -> Entry:
    address = f"{did_of(found.host)}@{found.endpoint}"
    return Entry(
        found.agent,
        found.name,
        found.description,
        found.capabilities,
        address,
        subscription=found.subscription_text,
        vector=found.subscription,
    )
