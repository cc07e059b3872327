"""A seeded population of agents for the registry and assembly benches.

Each agent has 1 to 8 capabilities, drawn from a Zipf law (s = 1); nine of ten agents are eligible, that is
alive and trusted. Requests draw distinct capabilities from the same law, among those with enough holders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pandacore.registry import Registry

__all__ = ["CANDIDATES", "CHUNK", "World", "in_core"]

MOST = 8
"""Most capabilities of one agent."""
CANDIDATES = 16
"""Candidates per capability that all contenders look at."""
CHUNK = 8
"""Calls of the core between two looks at the clock."""


@dataclass(frozen=True)
class World:
    """The population, as columns.

    Attributes
    ----------
    agents, vocabulary : int
        How many agents and how many capability names there are.
    offsets : int64, shape (agents + 1,)
        Agent ``i`` has ``capabilities[offsets[i]:offsets[i + 1]]``, all different.
    capabilities : uint32
        Numbers from 0; 0 is the most frequent.
    ids : uint8, shape (agents, 32)
    loads : uint16, shape (agents,)
        Uniform from 0 to 63.
    alive, trusted : bool, shape (agents,)
        Each false for one agent in twenty.
    """

    agents: int
    vocabulary: int
    offsets: NDArray[np.int64]
    capabilities: NDArray[np.uint32]
    ids: NDArray[np.uint8]
    loads: NDArray[np.uint16]
    alive: NDArray[np.bool_]
    trusted: NDArray[np.bool_]
    law: NDArray[np.float64]

    @classmethod
    def make(cls, agents: int, rng: np.random.Generator, *, vocabulary: int = 10_000) -> World:
        """Draw a population."""
        law = np.cumsum(1.0 / np.arange(1, vocabulary + 1))
        law /= law[-1]
        wanted = rng.integers(1, MOST + 1, agents)
        drawn = np.searchsorted(law, rng.random((agents, MOST))).astype(np.uint32)
        # Few names for many draws: redraw what an agent has already, three times, and drop what is left.
        for _ in range(3):
            again = _repeated(drawn)
            drawn[again] = np.searchsorted(law, rng.random(int(again.sum()))).astype(np.uint32)
        keep = (np.arange(MOST) < wanted[:, None]) & ~_repeated(drawn)
        offsets = np.zeros(agents + 1, np.int64)
        np.cumsum(keep.sum(axis=1), out=offsets[1:])
        ids = rng.integers(0, 256, (agents, 32), dtype=np.uint8)
        ids[:, :8] = np.arange(agents, dtype=np.uint64).view(np.uint8).reshape(-1, 8)  # all different
        return cls(
            agents,
            vocabulary,
            offsets,
            drawn[keep],
            ids,
            rng.integers(0, 64, agents).astype(np.uint16),
            rng.random(agents) >= 0.05,
            rng.random(agents) >= 0.05,
            law,
        )

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """The agent of each entry of ``capabilities``."""
        return np.repeat(np.arange(self.agents), np.diff(self.offsets))

    @cached_property
    def eligible(self) -> NDArray[np.bool_]:
        """Agents that may be chosen."""
        return self.alive & self.trusted

    @cached_property
    def pools(self) -> list[NDArray[np.int64]]:
        """The eligible agents of each capability, ascending."""
        order = np.argsort(self.capabilities, kind="stable")
        order = order[self.eligible[self.owners[order]]]
        bounds = np.searchsorted(self.capabilities[order], np.arange(1, self.vocabulary))
        return np.split(self.owners[order], bounds)

    def requests(
        self, count: int, size: int, rng: np.random.Generator, *, holders: int = CANDIDATES
    ) -> NDArray[np.uint32]:
        """Draw requests of ``size`` distinct capabilities that at least ``holders`` eligible agents have.

        Returns
        -------
        uint32, shape (count, size)
            Capability numbers.
        """
        enough = np.array([len(pool) >= holders for pool in self.pools])
        weight = np.diff(self.law, prepend=0.0) * enough
        chosen = np.flatnonzero(weight)
        # The largest of log(u) / w: weighted draws without replacement (Efraimidis and Spirakis, 2006).
        rows = np.empty((count, size), np.uint32)
        for start in range(0, count, 256):
            keys = np.log(rng.random((min(256, count - start), chosen.size))) / weight[chosen]
            best = np.argpartition(keys, -size, axis=1)[:, -size:]
            rows[start : start + len(keys)] = chosen[rng.permuted(best, axis=1)]
        return rows

    def handles(self, registry: Registry) -> NDArray[np.uint32]:
        """The registry's handle of each capability number."""
        return np.array([registry.capability(self.name(i)).index for i in range(self.vocabulary)], np.uint32)

    @staticmethod
    def name(number: int) -> str:
        """The name of a capability number."""
        return f"skill{number}"  # without a dot: parents would be further capabilities

    def load_into(
        self, registry: Registry, handles: NDArray[np.uint32], *, at_a_time: int | None = None
    ) -> None:
        """Announce all agents: at once, or so many at a time."""
        for first in range(0, self.agents, at_a_time or self.agents):
            rows = slice(first, first + (at_a_time or self.agents))
            offsets = self.offsets[first : rows.stop + 1]
            registry.announce_many(
                self.ids[rows],
                offsets - offsets[0],
                handles[self.capabilities[offsets[0] : offsets[-1]]],
                loads=self.loads[rows],
                alive=self.alive[rows],
                trusted=self.trusted[rows],
            )


def _repeated(rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Mark the entries of each row that occur further left in it."""
    marks = np.zeros(rows.shape, np.bool_)
    for i in range(1, rows.shape[1]):
        marks[:, i] = (rows[:, :i] == rows[:, i : i + 1]).any(axis=1)
    return marks


def in_core(registry: Registry, rows: NDArray[np.uint32], mode: str) -> Callable[[int], NDArray[np.float64]]:
    """Time calls inside the core: seconds of each, as the mean over a few neighbours."""

    def timed(calls: int) -> NDArray[np.float64]:
        nanoseconds, _ = registry.time_assembly(
            rows,
            mode=mode,
            per_capability=1,
            probes=CANDIDATES,
            chunk=CHUNK,
            seed=1,
            calls=calls * CHUNK,
        )
        return nanoseconds * 1e-9

    return timed
