"""``pandacore bench registry``: loading, updating and the memory of the registry.

The peer is what a Python program would keep: a set of holders per capability, a dict of loads, a set of who
is alive. It does less at each update than we do, since it keeps no pools of those that may be chosen now: it
pays for that at every assembly (``pandacore bench assembly``, peer ``python_sets``).
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pandacore.bench.frame import Bench, Case
from pandacore.bench.world import World, in_core
from pandacore.registry import Registry

__all__ = ["PEERS", "run"]

PEERS = ("python",)

_BATCH = 10_000


def run(bench: Bench) -> None:
    """Measure load, updates and memory at each size."""
    for agents in bench.sizes(default=(10_000, 100_000, 1_000_000), quick=(10_000,)):
        world = World.make(agents, bench.rng(agents))
        registry = _load(bench, world)
        _memory(bench, world, registry)
        _updates(bench, world, registry)
        _under_updates(bench, world, registry)
        _snapshot(bench, registry)


def _memory(bench: Bench, world: World, registry: Registry) -> None:
    """Bytes an agent of lines, pools, versions and the id table; signatures and the ids themselves beside."""
    agents = len(registry)
    parts = {part: size / agents for part, size in registry.memory().items()}
    shown: dict[str, Any] = {f"{part}_bytes": round(size, 1) for part, size in parts.items()}
    ids = 32.0  # the keys, which are data and not index
    index = sum(parts.values()) - parts["signatures"] - ids
    bench.emit(
        "bytes_per_agent",
        index,
        "B",
        agents=agents,
        with_signatures=index + parts["signatures"],
        with_signatures_and_ids=index + parts["signatures"] + ids,
        grown_with_signatures=_grown(bench, world) / agents - ids,
        **shown,
    )


def _grown(bench: Bench, world: World) -> int:
    """Bytes of a registry whose agents came a few at a time, as gossip brings them."""
    registry = Registry(seed=bench.seed)
    world.load_into(registry, world.handles(registry), at_a_time=512)
    return sum(registry.memory().values())


def _snapshot(bench: Bench, registry: Registry) -> None:
    """Write everything to a file and read it back, fsync included."""
    with tempfile.TemporaryDirectory(prefix="pandacore-bench-") as directory:
        path = Path(directory) / "registry"
        start = time.perf_counter()
        registry.snapshot(path)
        written = time.perf_counter() - start
        other = Registry.restore(path)
        total = time.perf_counter() - start
        assert len(other) == len(registry)
        bench.emit(
            "snapshot_restore_seconds",
            total,
            "s",
            agents=len(registry),
            snapshot_s=written,
            restore_s=total - written,
            file_bytes=path.stat().st_size,
        )


def _load(bench: Bench, world: World) -> Registry:
    """Time a bulk load into an empty registry; the vocabulary is known, as it is after the first hosts."""
    times = []
    registry = Registry(seed=bench.seed)
    for _ in range(2 if bench.quick else 3):
        registry = Registry(seed=bench.seed)
        handles = world.handles(registry)
        gc.collect()
        start = time.perf_counter()
        world.load_into(registry, handles)
        times.append(time.perf_counter() - start)
    theirs: float | None = None
    if bench.wants("python"):
        gc.collect()
        start = time.perf_counter()
        _Python(world)
        theirs = time.perf_counter() - start
    bench.emit(
        "load_seconds",
        float(np.median(times)),
        "s",
        agents=world.agents,
        peer=None if theirs is None else "python",
        peer_value=theirs,
        ratio="times_faster",
        loads=len(times),
    )
    return registry


def _updates(bench: Bench, world: World, registry: Registry) -> None:
    rng = bench.rng(7)
    batches: list[NDArray[np.uint32]] = [
        rng.integers(0, world.agents, min(_BATCH, world.agents)).astype(np.uint32) for _ in range(16)
    ]
    size = len(batches[0])
    loads = rng.integers(0, 64, size).astype(np.uint16)
    flags = rng.random(size) < 0.5
    peer = _Python(world) if bench.wants("python") else None
    conditions: dict[str, Any] = {"unit": "updates/s", "agents": world.agents, "batch": size}

    load_list, flag_list = loads.tolist(), flags.tolist()
    lists = [batch.tolist() for batch in batches]
    bench.compare(
        "load_updates_per_second",
        Case("pandacore", op=lambda slots: registry.set_loads(slots, loads), inputs=batches, per_call=size),
        [Case("python", op=lambda slots: peer.set_loads(slots, load_list), inputs=lists, per_call=size)]
        if peer
        else [],
        **conditions,
    )
    # Every value is the opposite of the last one that its batch set, so that every update is a change.
    opposite = [not flag for flag in flag_list]
    turns = [(batch, flags) for batch in batches] + [(batch, ~flags) for batch in batches]
    their_turns = [(slots, flag_list) for slots in lists] + [(slots, opposite) for slots in lists]
    bench.compare(
        "flips_per_second",
        Case(
            "pandacore",
            op=lambda turn: registry.set_flags("alive", *turn),
            inputs=turns,
            per_call=size,
        ),
        [Case("python", op=lambda turn: peer.set_alive(*turn), inputs=their_turns, per_call=size)]
        if peer
        else [],
        **conditions,
    )
    registry.set_flags("alive", np.arange(world.agents, dtype=np.uint32), world.alive)

    # Agents change places with others and back, so that every announcement replaces all capabilities: the
    # agent leaves its pools and enters new ones. The peer only leaves and enters the same ones.
    announcements = _announcements(world, registry, batches)
    version = 1

    def announce(columns: tuple[Any, ...]) -> None:
        nonlocal version
        version += 1
        registry.announce_many(*columns, versions=np.full(len(columns[0]), version, np.uint64))

    distinct = int(np.mean([len(columns[0]) for columns in announcements]))
    bench.compare(
        "announces_per_second",
        Case("pandacore", op=announce, inputs=announcements, per_call=distinct),
        [Case("python", op=peer.announce, inputs=lists, per_call=size)] if peer else [],
        **conditions,
    )


def _announcements(
    world: World, registry: Registry, batches: list[NDArray[np.uint32]]
) -> list[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint32]]]:
    """Ids, offsets and capabilities of two calls per batch: others' capabilities, then their own."""
    handles = world.handles(registry)
    counts = np.diff(world.offsets)
    found = []
    for turn in (1, 0):
        for batch in batches:
            rows = np.unique(batch)
            holders = (rows + turn * (world.agents // 2 + 1)) % world.agents
            offsets = np.zeros(rows.size + 1, np.int64)
            np.cumsum(counts[holders], out=offsets[1:])
            within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts[holders])
            entries = np.repeat(world.offsets[holders], counts[holders]) + within
            found.append((world.ids[rows], offsets, handles[world.capabilities[entries]]))
    return found


def _under_updates(bench: Bench, world: World, registry: Registry) -> None:
    """Assembly beside a thread that applies load updates as fast as it can."""
    rows = world.handles(registry)[world.requests(200 if bench.quick else 1_000, 8, bench.rng(9))]
    case = Case("pandacore", timed=in_core(registry, rows, "dedicated"))
    alone = bench.measure([case])["pandacore"].p50
    stop = threading.Event()
    applied = 0
    slots = bench.rng(8).integers(0, world.agents, 1_000).astype(np.uint32)
    loads = bench.rng(8).integers(0, 64, slots.size).astype(np.uint16)

    def update() -> None:
        nonlocal applied
        while not stop.is_set():
            registry.set_loads(slots, loads)
            applied += slots.size

    writer = threading.Thread(target=update, name="bench-updates")
    start = time.perf_counter()
    writer.start()
    try:
        beside = bench.measure([case])["pandacore"].p50
    finally:
        stop.set()
        writer.join()
    rate = applied / (time.perf_counter() - start)
    bench.emit(
        "assembly_p50_under_updates",
        beside * 1e6,
        "us",
        agents=world.agents,
        alone_us=alone * 1e6,
        slowdown=beside / alone,
        updates_per_second=rate,
    )


class _Python:
    """The registry that a Python program would write."""

    def __init__(self, world: World) -> None:
        ids = world.ids.tobytes()
        names = [World.name(i) for i in range(world.vocabulary)]
        bounds = world.offsets.tolist()
        numbers = world.capabilities.tolist()
        self.ids = [ids[32 * i : 32 * i + 32] for i in range(world.agents)]
        self.skills = [
            tuple(names[c] for c in numbers[bounds[i] : bounds[i + 1]]) for i in range(world.agents)
        ]
        self.holders: dict[str, set[bytes]] = {name: set() for name in names}
        for agent, skills in zip(self.ids, self.skills, strict=True):
            for skill in skills:
                self.holders[skill].add(agent)
        self.loads = dict(zip(self.ids, world.loads.tolist(), strict=True))
        self.alive = {agent for agent, alive in zip(self.ids, world.alive.tolist(), strict=True) if alive}

    def set_loads(self, slots: list[int], loads: list[int]) -> None:
        ids, held = self.ids, self.loads
        for slot, load in zip(slots, loads, strict=True):
            held[ids[slot]] = load

    def set_alive(self, slots: list[int], values: list[bool]) -> None:
        ids, alive = self.ids, self.alive
        for slot, value in zip(slots, values, strict=True):
            (alive.add if value else alive.discard)(ids[slot])

    def announce(self, slots: list[int]) -> None:
        for slot in slots:
            agent = self.ids[slot]
            for skill in self.skills[slot]:
                self.holders[skill].discard(agent)
            for skill in self.skills[slot]:
                self.holders[skill].add(agent)
