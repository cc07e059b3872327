"""An agent's queue: bounded, by priority, with places reserved for invited runs. No I/O, no clock."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pandacore.errors import Overloaded

__all__ = ["WorkQueue"]

T = TypeVar("T")


@dataclass(order=True, slots=True)
class _Entry(Generic[T]):
    rank: tuple[int, int]
    item: T = field(compare=False)
    gone: bool = field(default=False, compare=False)


class WorkQueue(Generic[T]):
    """At most ``concurrency`` items run and ``limit`` wait; a reserved place counts as waiting.

    Larger priority first, then first come, first served. ``offer``, ``next`` and ``discard`` cost
    O(log n); reservations O(1).
    """

    def __init__(self, *, concurrency: int, limit: int) -> None:
        self.concurrency = concurrency
        self.limit = limit
        self.running = 0
        self._waiting: list[_Entry[T]] = []
        self._entries: dict[int, _Entry[T]] = {}
        self._reserved: dict[str, int] = {}
        self.reserved = 0
        """Places held for invited runs."""
        self._numbers = itertools.count()

    @property
    def queued(self) -> int:
        """Items that wait."""
        return len(self._entries)

    @property
    def load(self) -> int:
        """What a probe reads: running, waiting and reserved together."""
        return self.running + len(self._entries) + self.reserved

    @property
    def full(self) -> bool:
        """True if nothing more is taken."""
        return self.running + len(self._entries) + self.reserved >= self.concurrency + self.limit

    def reserve(self, run_id: str) -> bool:
        """Hold one place for a run; False if the queue is full."""
        if self.full:
            return False
        self._reserved[run_id] = self._reserved.get(run_id, 0) + 1
        self.reserved += 1
        return True

    def holds(self, run_id: str) -> bool:
        """True if a place is held for the run."""
        return run_id in self._reserved

    def release(self, run_id: str) -> bool:
        """Give one place of a run back; False if it held none."""
        held = self._reserved.pop(run_id, 0)
        if held > 1:
            self._reserved[run_id] = held - 1
        self.reserved -= held > 0
        return held > 0

    def offer(self, item: T, *, run_id: str, priority: int = 0) -> int:
        """Add an item, on the run's reserved place if it has one; answers how many others wait.

        Raises
        ------
        Overloaded
            The queue is full and the run holds no place.
        """
        if not self.release(run_id) and self.full:
            raise Overloaded(
                f"{self.running} run and {self.queued} wait; at most {self.limit} may wait",
                hint="try another agent, or again later",
            )
        number = next(self._numbers)
        entry = _Entry((-priority, number), item)
        others = self.queued
        heapq.heappush(self._waiting, entry)
        self._entries[id(item)] = entry
        return others

    def next(self) -> T | None:
        """The item to start now, counted as running; None if there is none or all slots are taken."""
        while self.running < self.concurrency and self._waiting:
            entry = heapq.heappop(self._waiting)
            if not entry.gone:
                del self._entries[id(entry.item)]
                self.running += 1
                return entry.item
        return None

    def discard(self, item: T) -> bool:
        """Take a waiting item out; False if it does not wait."""
        entry = self._entries.pop(id(item), None)
        if entry is None:
            return False
        entry.gone = True
        if len(self._waiting) > 2 * len(self._entries) + 16:  # keep discarded entries from piling up
            self._waiting = [e for e in self._waiting if not e.gone]
            heapq.heapify(self._waiting)
        return True

    def done(self) -> None:
        """A running item ended."""
        self.running -= 1
