"""Who is in the collective, and where: one entry per agent, one client per host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pandacore import errors
from pandacore.team.clients import Clients
from pandacore.team.entry import Entry

if TYPE_CHECKING:
    from pandacore.registry import Registry
    from pandacore.team.client import AgentClient
    from pandacore.team.meaning import Meaning
    from pandacore.team.vetting import Vetting

__all__ = ["Directory", "Entry"]


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

    def add(self, entry: Entry, *, concurrency: int) -> None:
        """Announce an agent.

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

    def remove(self, agent_id: bytes) -> None:
        """Withdraw an agent; forgets its loads."""
        self.entry(agent_id)
        if self.vetting is not None:
            self.vetting.remove(agent_id)
        self.registry.withdraw(agent_id)
        self.meaning.remove(agent_id)
        del self._entries[agent_id]
        self._reported.pop(agent_id, None)
        self._pending.pop(agent_id, None)

    def entry(self, agent_id: bytes) -> Entry:
        """The entry of an agent.

        Raises
        ------
        UnknownAgent
            It is not, or no longer, in the collective.
        """
        entry = self._entries.get(agent_id)
        if entry is None:
            raise errors.UnknownAgent(
                f"no agent {agent_id.hex()[:16]} in the collective", hint="it left; choose another"
            )
        return entry

    def usable(self, agent_id: bytes) -> bool:
        """Whether the agent is here and the collective works with it."""
        return agent_id in self._entries and (self.vetting is None or self.vetting.accepts(agent_id))

    def at(self, address: str) -> list[Entry]:
        """The agents of one host."""
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

    async def drop_client(self, address: str) -> None:
        """Close the client of a host that is gone."""
        await self.clients.drop(address)

    def client(self, agent_id: bytes) -> AgentClient:
        """The client of the agent's host."""
        return self.client_at(self.entry(agent_id).address)

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
        return max(self._reported.get(agent_id, 0) + self._pending.get(agent_id, 0), 0)
