"""The clients of a process: one per host it talks to, and a word when such a host is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from pandacore import errors
from pandacore.team.client import AgentClient
from pandacore.trust import parse_did

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pandacore.team.client import Metadata
    from pandacore.team.host import Host
    from pandacore.team.passes import Passport

__all__ = ["Clients"]

logger = logging.getLogger(__name__)

MAX_CLIENTS: Final = 1_024
"""Hosts that a process keeps a connection to; beyond that the oldest that nobody follows is closed."""
PROOF_S: Final = 0.5
"""Seconds that a host whose connection broke has to prove that it lives."""
PROOFS: Final = 3
"""Times that it is asked; a refused connection counts at once, a silent host only after all of them."""


class Clients:
    """One client per address, connected when first used. Bound to the event loop it is used on.

    Parameters
    ----------
    passport : Passport, optional
        Makes the passes of calls to addresses that name their host, ``did:key:…@host:port``. Such calls are
        encrypted; others go in plaintext, for loopback.
    """

    def __init__(self, passport: Passport | None = None) -> None:
        self._passport = passport
        self.host: Host | None = None
        """The host of this process: calls to its agents skip the socket."""
        self._clients: dict[str, AgentClient] = {}
        self._followers: dict[str, list[Callable[[], None]]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def at(self, address: str) -> AgentClient:
        """The one client of a host."""
        client = self._clients.get(address)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                idle = next((a for a in self._clients if a not in self._followers), None)
                if idle is not None:
                    asyncio.get_running_loop().create_task(self._clients.pop(idle).close())
            own = self.host if self.host is not None and self.host.address == address else None
            did, _, place = address.rpartition("@")
            peer = parse_did(did) if did else None
            client = AgentClient(place, peer=peer, host=own, metadata=self._metadata(peer))
            self._clients[address] = client
        return client

    def _metadata(self, peer: bytes | None) -> Callable[[], Metadata] | None:
        passport = self._passport
        if passport is None or peer is None:
            return None
        return lambda: passport.metadata(peer)

    async def keep(self, dids: Collection[str]) -> None:
        """Close the clients of named hosts that are not among ``dids``."""
        gone = [a for a in self._clients if "@" in a and a.rpartition("@")[0] not in dids]
        for address in gone:
            await self.drop(address)

    async def drop(self, address: str) -> None:
        """Close the client of a host."""
        client = self._clients.pop(address, None)
        if client is not None:
            await client.close()

    def follow(self, address: str, gone: Callable[[], None]) -> Callable[[], None]:
        """Have ``gone`` called, once, when the host's connection breaks and it gives no proof of life.

        A killed process is noticed at once, because its connections break; one that hangs is not noticed
        here at all. Costs no traffic. Answers a function that ends the following.
        """
        self._followers.setdefault(address, []).append(gone)
        if address not in self._watches:
            self._watches[address] = asyncio.get_running_loop().create_task(
                self._watch(address), name=f"pandacore follow {address}"
            )

        def leave() -> None:
            followers = self._followers.get(address, [])
            if gone in followers:
                followers.remove(gone)
            if not followers:
                self._followers.pop(address, None)
                if (watch := self._watches.pop(address, None)) is not None:
                    watch.cancel()

        return leave

    async def _watch(self, address: str) -> None:
        while True:
            await self.at(address).broken()
            if not await self._alive(address):
                break
        self._watches.pop(address, None)
        for gone in self._followers.pop(address, []):
            gone()

    async def _alive(self, address: str) -> bool:
        for _ in range(PROOFS):
            try:
                await self.at(address).heartbeat("", timeout_s=PROOF_S)
            except errors.ConnectionLost:
                return False
            except errors.PandacoreError as error:
                logger.debug("proof of life of %s: %s", address, error)
            else:
                return True
        return False

    async def close(self) -> None:
        """Close all; calls in flight end as ``ConnectionLost``."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        self._watches.clear()
        self._followers.clear()
        for client in self._clients.values():
            with contextlib.suppress(Exception):  # one that fails to close must not keep the others open
                await client.close()
        self._clients.clear()
