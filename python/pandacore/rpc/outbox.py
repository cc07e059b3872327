"""Small messages that share a stream: what waits while one is being written goes into the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

__all__ = ["BATCH_BYTES", "BATCH_CALLS", "Outbox", "take_batch"]

BATCH_CALLS: Final = 256
"""Most calls or replies of one message."""
BATCH_BYTES: Final = 512 * 1024
"""A message is full at this size; a larger single item goes alone."""

T = TypeVar("T", bound="Message")


def take_batch(pending: list[tuple[T, int]]) -> tuple[list[T], int]:
    """Take what fits one message off the front of a list of items with their sizes; at least one item.

    Answers the items and their size together.
    """
    size, count = 0, 0
    for _, more in pending[:BATCH_CALLS]:
        if count and size + more > BATCH_BYTES:
            break
        size += more
        count += 1
    batch = [item for item, _ in pending[:count]]
    del pending[:count]
    return batch, size


class Outbox(Generic[T]):
    """Writes items to a stream, in order, several to a message.

    Parameters
    ----------
    write : async callable
        Writes one message with these items; returns when the next may follow.
    """

    def __init__(self, write: Callable[[list[T]], Awaitable[None]]) -> None:
        self._write = write
        self._pending: list[tuple[T, int]] = []
        self._wake: asyncio.Future[None] | None = None
        self.unwritten = 0
        """Bytes that wait, or are being written."""

    def put(self, item: T) -> None:
        """Have an item written."""
        size = item.ByteSize()  # once: it costs as much as encoding the message
        self._pending.append((item, size))
        self.unwritten += size
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def run(self) -> None:
        """Write until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._pending:
                self._wake = loop.create_future()
                await self._wake
            batch, size = take_batch(self._pending)
            await self._write(batch)
            self.unwritten -= size
