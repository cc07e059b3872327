"""Reputation updates and memory, with each agent rating what it has met."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from pandacore.bench.frame import Bench, Case
from pandacore.errors import StateError
from pandacore.reputation import Rating, Reputation

__all__ = ["PEERS", "run"]

PEERS = ("numpy",)

_MET = 8
_BATCH = 1 << 16


def run(bench: Bench) -> None:
    """Measure batch updates, single updates, ranking, and bytes a rated pair."""
    for agents in bench.sizes(default=(1_000_000,), quick=(10_000,)):
        _measure(bench, agents)


def _measure(bench: Bench, agents: int) -> None:
    rng = bench.rng(agents)
    pairs = agents * _MET
    observers = np.repeat(np.arange(agents, dtype=np.uint32), _MET)
    peers = ((observers + 1 + rng.integers(0, agents - 1, pairs)) % agents).astype(np.uint32)
    bad = rng.random(pairs) < 0.2
    store = Reputation()
    for start in range(0, pairs, _BATCH):
        part = slice(start, start + _BATCH)
        store.observe_many(observers[part], peers[part], bad[part], epoch=0)
    _check(store, peers[:_MET], bad[:_MET])
    bytes_per_pair = store.memory_bytes / len(store)
    bench.emit("bytes_per_pair", bytes_per_pair, "B", agents=agents, pairs=len(store), met=_MET)
    order = rng.integers(0, pairs, (8, _BATCH))
    batches = [(observers[places], peers[places], bad[places]) for places in order]
    # The same arithmetic in NumPy, where pairs are numbered already and none is met twice in a batch.
    x, y = np.ones(pairs), np.ones(pairs)

    def in_numpy(places: NDArray[np.int64]) -> None:
        events = bad[places]
        x[places] = 0.9 * x[places] + events
        y[places] = 0.9 * y[places] + ~events

    bench.compare(
        "updates_per_second",
        Case("pandacore", lambda b: store.observe_many(*b, epoch=1), inputs=batches, per_call=_BATCH),
        [Case("numpy", in_numpy, inputs=list(order), per_call=_BATCH)],
        unit="1/s",
        agents=agents,
        threads=1,
        batch=_BATCH,
        pairs=len(store),
    )
    # The same on a machine without other work: in processor time.
    worked = time.thread_time()
    for batch in batches:
        store.observe_many(*batch, epoch=1)
    per_cpu_second = len(batches) * _BATCH / (time.thread_time() - worked)
    bench.emit("updates_per_cpu_second", per_cpu_second, "1/s", agents=agents, batch=_BATCH)
    picks = [(n, peers[n * _MET : (n + 1) * _MET]) for n in rng.integers(0, agents, 512).tolist()]
    bench.compare(
        "rank_p50",
        Case("pandacore", lambda pick: store.rank(*pick, epoch=2), inputs=picks),
        agents=agents,
        candidates=_MET,
    )
    singles = list(zip(observers[order[0]].tolist(), peers[order[0]].tolist(), strict=True))
    bench.compare(
        "observe_p50",
        Case("pandacore", lambda pair: store.observe(*pair, bad=False, epoch=2), inputs=singles),
        agents=agents,
    )


def _check(store: Reputation, peers: NDArray[np.uint32], bad: NDArray[np.bool_]) -> None:
    """Recompute the first agent's ratings by the definition."""
    decay = store.policy.decay
    ratings: dict[int, Rating] = {}
    for peer, event in zip(peers.tolist(), bad.tolist(), strict=True):
        x, y = ratings.get(peer, Rating(1.0, 1.0))
        ratings[peer] = Rating(decay * x + event, decay * y + (not event))
    for peer, rating in ratings.items():
        found = store.standing(0, peer, epoch=0).first_hand
        if found != rating:
            raise StateError(f"the rating of {peer} is {found}, expected {rating}", where="bench reputation")
