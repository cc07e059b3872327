"""A node's way to the other nodes of its run: one outbox per peer, in order, each message once."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from pandacore import errors
from pandacore.rpc.channel import check_size
from pandacore.rpc.v1 import agent_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pandacore.team.host import Host

__all__ = ["Links", "Owner"]

logger = logging.getLogger(__name__)

MAX_OUTBOX: Final = 4_096
"""Envelopes that wait for one peer; then the oldest is dropped, as if the network had lost it."""
MAX_BATCH: Final = 64
"""Envelopes of one call, as long as they stay below ``_BATCH_BYTES`` together."""
DELIVER_S: Final = 5.0
"""Seconds that one call may take."""
TRIES: Final = 3
"""Refused connections in a row after which a peer counts as lost."""
_BATCH_BYTES: Final = 1024 * 1024
_BACKOFF_S: Final = (0.02, 0.5)


class Owner(Protocol):
    """Whose links these are: told what they find out."""

    run_id: str
    me: str
    epoch: int

    def lost(self, peer: str) -> None:
        """The peer cannot be reached any more."""

    def found(self, peer: str) -> None:
        """The peer can be reached again."""

    def fenced(self) -> None:
        """A newer epoch has taken the run over."""

    def oversized(self, error: errors.PayloadTooLarge) -> None:
        """A message is too large to be sent at all."""


class Links:
    """Sends what the machine wants sent, and knows where the others are.

    Parameters
    ----------
    owner : Owner
    host : Host
        The host of the owner; peers on it are reached without a socket.
    faithful : sequence of str
        Peers that are never given up: what is for them is kept until they are back.
    """

    def __init__(self, owner: Owner, host: Host, *, faithful: Iterable[str] = ()) -> None:
        self._owner = owner
        self._host = host
        self._faithful = set(faithful)
        self._incarnation = random.SystemRandom().getrandbits(63)
        self._book: dict[str, str] = {}
        self._version = (0, 0)
        self.down: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._outboxes: dict[str, deque[agent_pb2.Envelope]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._follows: dict[str, Callable[[], None]] = {}
        self._closed = False
        self._held = False

    # -- the address book --------------------------------------------------------------------------------

    @property
    def book(self) -> Mapping[str, str]:
        """Where each peer is."""
        return self._book

    def learn(self, name: str, address: str) -> None:
        """A peer is at this address."""
        if name != self._owner.me and address and self._book.get(name) != address:
            self._book[name] = address
            if self._outboxes.get(name):
                self._wake(name)

    def update(self, peers: Iterable[agent_pb2.Peer], version: tuple[int, int]) -> None:
        """The entrypoint's list, by its epoch and its number there; an older one than the last is ignored."""
        if version <= self._version:
            return
        self._version = version
        for peer in peers:
            self.learn(peer.name, peer.address)
            if peer.name == self._owner.me:
                continue
            if peer.down:
                self._lose(peer.name)
            else:
                self._find(peer.name)

    def follow(self, address: str) -> None:
        """Notice it when this host is gone."""
        if address != self._host.address and address not in self._follows and not self._closed:
            self._follows[address] = self._host.clients.follow(address, lambda: self._gone(address))

    def _gone(self, address: str) -> None:
        self._follows.pop(address, None)
        for name in [n for n, a in self._book.items() if a == address]:
            self._lose(name)

    def _lose(self, name: str) -> None:
        if name not in self.down and not self._closed:
            self.down.add(name)
            self._owner.lost(name)

    def _find(self, name: str) -> None:
        if name in self.down and not self._closed:
            self.down.discard(name)
            self._owner.found(name)

    # -- sending -----------------------------------------------------------------------------------------

    def send(self, to: str, message: Mapping[str, Any]) -> None:
        """Send a message of the machine, as it is now: its values may be the machine's own."""
        self._put(to, agent_pb2.Envelope(message_json=json.dumps(message, ensure_ascii=False)))

    def report(self, to: str, report: agent_pb2.NodeReport) -> None:
        """Tell the entrypoint what happened."""
        self._put(to, agent_pb2.Envelope(report=report))

    def _put(self, to: str, envelope: agent_pb2.Envelope) -> None:
        if self._closed:
            return
        self._numbers[to] = envelope.number = self._numbers.get(to, 0) + 1
        outbox = self._outboxes.setdefault(to, deque(maxlen=MAX_OUTBOX))
        outbox.append(envelope)
        if self._book.get(to) == self._host.address and to not in self._tasks:
            reply = self._host.nodes.deliver(self._request(to, list(outbox)))
            if not reply.busy:
                outbox.clear()
                self._answered(to, reply)
                return
        self._wake(to)

    def _wake(self, to: str) -> None:
        if to not in self._tasks and not self._held:
            task = asyncio.get_running_loop().create_task(self._drain(to), name=f"pandacore outbox {to[:8]}")
            self._tasks[to] = task
            task.add_done_callback(lambda _: self._tasks.pop(to, None))

    def _request(self, to: str, envelopes: list[agent_pb2.Envelope]) -> agent_pb2.DeliverRequest:
        owner = self._owner
        return agent_pb2.DeliverRequest(
            run_id=owner.run_id,
            epoch=owner.epoch,
            sender=agent_pb2.Peer(name=owner.me, address=self._host.address),
            to=to,
            incarnation=self._incarnation,
            envelopes=envelopes,
        )

    async def _drain(self, to: str) -> None:
        outbox = self._outboxes[to]
        refused, wait_s = 0, _BACKOFF_S[0]
        while outbox and (address := self._book.get(to)) is not None:
            batch = _batch(outbox)
            request = self._request(to, batch)
            try:
                if address == self._host.address:
                    reply = self._host.nodes.deliver(request)
                else:
                    check_size(request, producer=f"a message of node {self._owner.me[:16]!r}")
                    reply = await self._host.clients.at(address).deliver(request, timeout_s=DELIVER_S)
            except errors.PayloadTooLarge as error:
                outbox.popleft()
                self._owner.oversized(error)
                continue
            except errors.PandacoreError as error:
                logger.debug("delivery to %s at %s: %s", to[:8], address, error)
                refused = refused + 1 if isinstance(error, errors.ConnectionLost) else 0
                if refused >= TRIES:
                    self._lose(to)
                if to in self.down and to not in self._faithful:
                    outbox.clear()
                    return
            else:
                if not reply.busy:
                    for envelope in batch:
                        if outbox and outbox[0] is envelope:
                            outbox.popleft()
                    self._answered(to, reply)
                    self.follow(address)
                    refused, wait_s = 0, _BACKOFF_S[0]
                    continue
            await asyncio.sleep(random.uniform(wait_s / 2, wait_s))
            wait_s = min(wait_s * 2, _BACKOFF_S[1])

    def _answered(self, to: str, reply: agent_pb2.DeliverReply) -> None:
        if reply.fenced:
            self._owner.fenced()
        elif not reply.unknown:
            self._find(to)
        elif to not in self._faithful:
            self._lose(to)  # it is open no more: whatever it knew of the run is gone

    def hold(self) -> None:
        """Begin no more calls; what is for peers of this host still reaches them."""
        self._held = True
        for task in self._tasks.values():
            task.cancel()

    def unsent(self, to: str) -> list[agent_pb2.NodeReport]:
        """The reports that are still to be told."""
        return [e.report for e in self._outboxes.get(to, ()) if e.WhichOneof("content") == "report"]

    async def close(self) -> None:
        """Send nothing more, follow nobody."""
        self._closed = True
        for leave in self._follows.values():
            leave()
        self._follows.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outboxes.clear()


def _batch(outbox: deque[agent_pb2.Envelope]) -> list[agent_pb2.Envelope]:
    batch: list[agent_pb2.Envelope] = []
    size = 0
    for envelope in outbox:
        size += envelope.ByteSize()
        if batch and (size > _BATCH_BYTES or len(batch) == MAX_BATCH):
            break
        batch.append(envelope)
    return batch
