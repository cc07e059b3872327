"""A line of subtasks in front of full queues."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["Line"]


class Line:
    """Subtasks that found every queue full. One of them at a time tries again, and the others wait behind it.

    A run with 10^4 subtasks and room for a hundred would else ask for all of them again and again.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether somebody stands in line."""
        return self._turn.locked()

    async def enter(self) -> None:
        """Wait for the turn, first come, first served."""
        await self._turn.acquire()

    def leave(self) -> None:
        """Give the turn to the next."""
        self._turn.release()

    def freed(self) -> None:
        """There may be room now."""
        self._freed.set()

    async def room(self, wait_s: float) -> None:
        """Wait until there may be room, at most for so long: others use the queues as well."""
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._freed.wait()
