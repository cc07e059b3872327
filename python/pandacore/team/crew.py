"""The members of a run as its entrypoint sees them: nodes on their hosts, opened, told the news, closed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pandacore import errors
from pandacore.rpc.v1 import agent_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pandacore.team.directory import Directory
    from pandacore.team.engine import Engine
    from pandacore.team.host import Host
    from pandacore.team.links import Links

__all__ = ["Crew"]

logger = logging.getLogger(__name__)

OPEN_S: Final = 5.0
"""Seconds that a host has to open its nodes of a run."""
TELL_S: Final = 2.0
"""Seconds that hosts have to take note of a change of the team before the run goes on without them."""


class Crew:
    """Opens agents as nodes of one run, and keeps all of them informed of who is in the team.

    Parameters
    ----------
    root : Engine
        The entrypoint. What it was not told by its epoch or a later one, a node does not obey.
    host : Host
        The entrypoint's own.
    directory : Directory
        Where agents are.
    links : Links
        The entrypoint's.
    spec : callable
        What the nodes have to know, as of now.
    """

    def __init__(
        self,
        root: Engine,
        host: Host,
        directory: Directory,
        links: Links,
        spec: Callable[[], agent_pb2.RunSpec],
    ) -> None:
        self._root = root
        self._host = host
        self._directory = directory
        self._links = links
        self._spec = spec
        self._nodes: dict[str, str] = {}
        self._version = 0
        self.fenced = False

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    @property
    def addresses(self) -> list[str]:
        """The hosts that have nodes of the run."""
        return list(dict.fromkeys(self._nodes.values()))

    async def open(self, names: Iterable[str]) -> dict[str, bool]:
        """Open agents as nodes; answers those that are, and whether each knew nothing of the run before."""
        by_address: dict[str, list[str]] = {}
        for name in names:
            if bytes.fromhex(name) in self._directory:
                address = self._directory.entry(bytes.fromhex(name)).address
                by_address.setdefault(address, []).append(name)
                self._nodes[name] = address
                self._links.learn(name, address)
        opened: dict[str, bool] = {}
        replies = await asyncio.gather(
            *(self._call(address, there, OPEN_S) for address, there in by_address.items())
        )
        for address, reply in zip(by_address, replies, strict=True):
            self._links.follow(address)
            for node in reply.nodes if reply is not None else ():
                if node.refused:
                    logger.info("%s at %s: %s", node.agent_id.hex()[:16], address, node.refused)
                else:
                    opened[node.agent_id.hex()] = node.fresh
        for name in (n for there in by_address.values() for n in there if n not in opened):
            self._nodes.pop(name, None)
        return opened

    async def tell(self) -> None:
        """Tell all nodes who is in the team, where, and who is held for dead."""
        down = {a for n, a in self._nodes.items() if n in self._links.down}
        live = [a for a in self.addresses if a not in down]
        await asyncio.gather(*(self._call(address, [], TELL_S) for address in live))

    async def _call(self, address: str, names: list[str], timeout_s: float) -> agent_pb2.OpenReply | None:
        self._version += 1
        root = agent_pb2.Peer(name=self._root.me, address=self._host.address)
        peers = [
            agent_pb2.Peer(name=name, address=at, down=name in self._links.down)
            for name, at in self._nodes.items()
        ]
        request = agent_pb2.OpenRequest(
            run_id=self._root.run_id,
            epoch=self._root.epoch,
            version=self._version,
            agent_ids=[bytes.fromhex(name) for name in names],
            peers=[root, *peers],
        )
        if names:
            request.spec.CopyFrom(self._spec())
        if address == self._host.address:
            reply = self._host.nodes.open(request)
        else:
            try:
                reply = await self._directory.client_at(address).open(request, timeout_s=timeout_s)
            except errors.PayloadTooLarge:
                raise
            except errors.PandacoreError as error:
                logger.info("run %s: %s does not take part: %s", self._root.run_id, address, error)
                return None
        self.fenced = self.fenced or reply.fenced
        return reply

    async def renew(self, every_s: float) -> None:
        """Give proof of life to all nodes, for as long as this runs."""
        while True:
            await asyncio.sleep(every_s)
            for address in self.addresses:
                if address == self._host.address:
                    self._host.nodes.renew(self._root.run_id)
                    continue
                try:
                    await self._directory.client_at(address).heartbeat(self._root.run_id, timeout_s=TELL_S)
                except errors.PandacoreError as error:
                    logger.debug("run %s: renewal at %s: %s", self._root.run_id, address, error)

    async def close(self, timeout_s: float) -> list[agent_pb2.CloseReply]:
        """End all nodes; answers what each host says to it. Who is not told ends by itself."""

        async def end(address: str) -> agent_pb2.CloseReply:
            if address == self._host.address:
                return await self._host.nodes.close_run(self._root.run_id, self._root.epoch)
            client = self._directory.client_at(address)
            return await client.close_run(self._root.run_id, self._root.epoch, timeout_s=timeout_s)

        replies = await asyncio.gather(*(end(address) for address in self.addresses), return_exceptions=True)
        return [reply for reply in replies if isinstance(reply, agent_pb2.CloseReply)]
