"""``pandacore bench assembly``: how long it takes to put a team together.

A request names 8 capabilities. Dedicated: per capability the least loaded of 16 random eligible agents that
is not in the team yet; ours is complete besides, the peers are not. Consolidated: as few agents as possible.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pandacore.bench.frame import Bench, Case, Option
from pandacore.bench.world import CANDIDATES, CHUNK, World, in_core
from pandacore.registry import PreparedSpec, Registry, TeamSpec

__all__ = ["OPTIONS", "PEERS", "run"]

PEERS = ("python_lists", "python_sets", "numpy", "pyroaring", "sqlite", "numpy_greedy", "pyroaring_greedy")
OPTIONS = (Option("size", int, 8, "capabilities of a request"),)

_REQUESTS = 2_000
_BATCH = 1_000

Request = Sequence[int]


def run(bench: Bench) -> None:
    """Measure dedicated, batched and consolidated assembly at each size."""
    size = int(str(bench.options["size"]))
    smallest: tuple[int, Case] | None = None
    for agents in bench.sizes(default=(10_000, 100_000, 1_000_000), quick=(10_000,)):
        world = World.make(agents, bench.rng(agents))
        rows = world.requests(200 if bench.quick else _REQUESTS, size, bench.rng(agents + 1))
        registry = Registry(seed=bench.seed)
        handles = world.handles(registry)
        world.load_into(registry, handles)
        mapped = handles[rows]
        specs = [
            registry.prepare(TeamSpec({world.name(c): 1 for c in row}, probes=CANDIDATES))
            for row in rows.tolist()
        ]
        conditions: dict[str, Any] = {"capabilities": size, "candidates": CANDIDATES}
        peers = _dedicated_peers(bench, world, rows)
        core = Case("pandacore", timed=in_core(registry, mapped, "dedicated"))
        bench.compare(
            {"dedicated_rust_p50": "p50", "dedicated_rust_p99": "p99"},
            core,
            peers,
            agents=agents,
            chunk=CHUNK,
            **conditions,
        )
        if smallest is None:
            smallest = (agents, Case("smallest", timed=core.timed))
        else:
            _growth(bench, core, agents, *smallest)
        python = Case("pandacore", op=PreparedSpec.assemble, inputs=specs)
        bench.compare("dedicated_python_p50", python, peers, agents=agents, **conditions)
        batch = np.resize(mapped, (_BATCH, size))
        bench.compare(
            "batch_teams_per_second",
            Case("pandacore", op=lambda: registry.assemble_many(batch, probes=CANDIDATES), per_call=_BATCH),  # noqa: B023
            unit="teams/s",
            agents=agents,
            batch=_BATCH,
            **conditions,
        )
        _consolidated(bench, world, rows, registry=registry, mapped=mapped)


def _growth(bench: Bench, core: Case, agents: int, fewest: int, smallest: Case) -> None:
    """What more agents cost: both sizes in alternation, so that the machine's moods strike both."""
    samples = bench.measure([core, smallest])
    here, there = (samples[case.name].p50 for case in (core, smallest))
    bench.emit(
        "dedicated_growth",
        here / there,
        "times",
        agents=agents,
        smallest=fewest,
        p50_us=1e6 * here,
        smallest_p50_us=1e6 * there,
    )


# -- peers: the same choice with what a program would use without pandacore


def _dedicated_peers(bench: Bench, world: World, rows: NDArray[np.uint32]) -> list[Case]:
    requests: list[Request] = rows.tolist()
    makers: dict[str, Callable[[World], Callable[[Request], object] | None]] = {
        "python_lists": _python_lists,
        "python_sets": _python_sets,
        "numpy": _numpy,
        "pyroaring": lambda world: _pyroaring(bench, world),
        "sqlite": _sqlite,
    }
    cases = []
    for name, make in makers.items():
        if not bench.wants(name):
            continue
        chosen = make(world)
        if chosen is not None:
            team = chosen(requests[0])
            assert isinstance(team, list)
            assert len(set(team)) == len(requests[0]), f"{name} chose a team that is none"
            cases.append(Case(name, op=chosen, inputs=requests, max_calls=2_000))
    return cases


def _python_lists(world: World) -> Callable[[Request], list[int]]:
    pools = [pool.tolist() for pool in world.pools]
    loads = world.loads.tolist()
    draw = random.Random(1).random

    def assemble(request: Request) -> list[int]:
        team: list[int] = []
        for capability in request:
            pool = pools[capability]
            n = len(pool)
            best, least = -1, 1 << 30
            for _ in range(CANDIDATES):
                agent = pool[int(draw() * n)]
                load = loads[agent]
                if load < least and agent not in team:
                    best, least = agent, load
            team.append(best)
        return team

    return assemble


def _python_sets(world: World) -> Callable[[Request], list[int]]:
    """Holders and eligible agents as sets, met at each request: the plain reading of the task."""
    order = np.argsort(world.capabilities, kind="stable")
    bounds = np.searchsorted(world.capabilities[order], np.arange(1, world.vocabulary))
    holders = [set(part.tolist()) for part in np.split(world.owners[order], bounds)]
    eligible = set(np.flatnonzero(world.eligible).tolist())
    loads = world.loads.tolist()

    def assemble(request: Request) -> list[int]:
        team: list[int] = []
        for capability in request:
            free = (holders[capability] & eligible).difference(team)
            team.append(min(free, key=loads.__getitem__))
        return team

    return assemble


def _numpy(world: World) -> Callable[[Request], list[int]]:
    pools, loads = world.pools, world.loads
    rng = np.random.default_rng(1)

    def assemble(request: Request) -> list[int]:
        team: list[int] = []
        for capability in request:
            pool = pools[capability]
            candidates = pool[rng.integers(0, pool.size, CANDIDATES)]
            order = np.argsort(loads[candidates])
            team.append(next((a for a in candidates[order].tolist() if a not in team), -1))
        return team

    return assemble


def _pyroaring(bench: Bench, world: World) -> Callable[[Request], list[int]] | None:
    module = bench.peer("pyroaring")
    if module is None:
        return None
    pools = [module.BitMap(pool.astype(np.uint32)) for pool in world.pools]
    sizes = [len(pool) for pool in pools]
    loads = world.loads.tolist()
    draw = random.Random(1).random

    def assemble(request: Request) -> list[int]:
        team: list[int] = []
        for capability in request:
            pool, n = pools[capability], sizes[capability]
            best, least = -1, 1 << 30
            for _ in range(CANDIDATES):
                agent = pool[int(draw() * n)]
                load = loads[agent]
                if load < least and agent not in team:
                    best, least = agent, load
            team.append(best)
        return team

    return assemble


def _sqlite(world: World) -> Callable[[Request], list[int]]:
    """A covering index in memory; it takes the least loaded of all, so crowds meet at one agent."""
    base = sqlite3.connect(":memory:")
    base.execute(
        "CREATE TABLE pool (cap INTEGER, load INTEGER, agent INTEGER, PRIMARY KEY (cap, load, agent)) "
        "WITHOUT ROWID"
    )
    keep = np.flatnonzero(world.eligible[world.owners])
    keep = keep[
        np.argsort(world.capabilities[keep], kind="stable")
    ]  # in key order, or the load takes minutes
    caps, owners = world.capabilities[keep].tolist(), world.owners[keep]
    base.executemany(
        "INSERT INTO pool VALUES (?, ?, ?)",
        zip(caps, world.loads[owners].tolist(), owners.tolist(), strict=True),
    )
    query = "SELECT agent FROM pool WHERE cap = ? ORDER BY load LIMIT ?"

    def assemble(request: Request) -> list[int]:
        team: list[int] = []
        for place, capability in enumerate(request, 1):
            found = base.execute(query, (capability, place)).fetchall()
            team.append(next((agent for (agent,) in found if agent not in team), -1))
        return team

    return assemble


# -- consolidated


def _consolidated(
    bench: Bench, world: World, rows: NDArray[np.uint32], *, registry: Registry, mapped: NDArray[np.uint32]
) -> None:
    agents = world.agents
    requests: list[Request] = rows.tolist()
    greedy = _numpy_greedy(world)
    peers = [Case("numpy_greedy", op=greedy, inputs=requests, max_calls=200)]
    if bench.wants("pyroaring_greedy") and bench.peer("pyroaring_greedy", module="pyroaring") is not None:
        peers.append(Case("pyroaring_greedy", op=_pyroaring_greedy(world), inputs=requests, max_calls=400))
    conditions: dict[str, Any] = {"capabilities": rows.shape[1]}
    ours = Case("pandacore", timed=in_core(registry, mapped, "consolidated"))
    bench.compare("consolidated_p50", ours, peers, agents=agents, chunk=CHUNK, **conditions)
    if not bench.wants("numpy_greedy"):
        return
    # Team sizes on the same requests; the peer looks at every holder, so few requests must do.
    sample = rows[: 20 if bench.quick else 100]
    _, members = registry.time_assembly(
        mapped[: len(sample)], mode="consolidated", per_capability=1, probes=CANDIDATES, chunk=1, seed=1
    )
    theirs = float(np.mean([len(greedy(request)) for request in sample.tolist()]))
    bench.emit(
        "consolidated_size_ratio",
        members,
        "agents",
        agents=agents,
        peer="numpy_greedy",
        peer_value=theirs,
        ratio="ours/theirs",
        requests=len(sample),
        **conditions,
    )


def _numpy_greedy(world: World) -> Callable[[Request], list[int]]:
    """Full-scan greedy: again and again the agent that covers most of what is left."""
    pools = world.pools

    def assemble(request: Request) -> list[int]:
        left = list(request)
        team: list[int] = []
        while left:
            counts = np.bincount(np.concatenate([pools[c] for c in left]))
            agent = int(counts.argmax())
            team.append(agent)
            left = [c for c in left if not _has(pools[c], agent)]
        return team

    return assemble


def _pyroaring_greedy(world: World) -> Callable[[Request], list[int]]:
    """The same greedy on compressed bitmaps; each plane holds one bit of every agent's count."""
    import pyroaring

    pools = [pyroaring.BitMap(pool.astype(np.uint32)) for pool in world.pools]

    def assemble(request: Request) -> list[int]:
        left = list(request)
        team: list[int] = []
        while left:
            planes: list[Any] = []
            for capability in left:
                carry = pools[capability]
                for k, plane in enumerate(planes):
                    planes[k], carry = plane ^ carry, plane & carry
                    if not carry:
                        break
                else:
                    planes.append(carry)
            # From the highest bit down, keep those that have it, if any has.
            best = planes.pop()
            for plane in reversed(planes):
                best = (best & plane) or best
            agent = best[0]
            team.append(agent)
            left = [c for c in left if agent not in pools[c]]
        return team

    return assemble


def _has(pool: NDArray[np.int64], agent: int) -> bool:
    at = int(np.searchsorted(pool, agent))
    return at < pool.size and int(pool[at]) == agent
