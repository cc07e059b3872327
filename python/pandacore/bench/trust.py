"""Trust paths at up to a million agents, beside general graph libraries.

The graph is synthetic and deterministic: members arrive in order and are certified by two or three earlier
ones, half of them chosen in proportion to how many certificates they have issued. Ours checks on every
certificate that it is live and, on every node, that it is a member; the peers know neither, and get a graph
in which everything is live. All answers are compared before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pandacore.bench.frame import Bench, Case
from pandacore.errors import StateError
from pandacore.trust import Certificate, Genesis, KeyPair, TrustGraph, TrustPolicy, TrustStore

__all__ = ["PEERS", "certificate_graph", "run"]

PEERS = ("igraph", "rustworkx", "scipy")

_GENESIS = 3
_DEPTH = 3
_NOW = 1_000_000
_BASE = 10_000  # the size that growth is measured from

Ints = NDArray[np.uint32]


def certificate_graph(agents: int, seed: int, prefer: float = 0.5) -> tuple[Ints, Ints]:
    """Return issuers and subjects of a synthetic certificate graph; the same on every machine.

    Agent v is certified by two or three different earlier agents; each is, with probability ``prefer``,
    drawn in proportion to one plus the certificates it has issued, else uniformly.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    wanted = np.where(rng.random(agents) < 0.5, 3, 2)
    wanted[:_GENESIS] = 0
    total = int(np.minimum(wanted, np.arange(agents)).sum())
    issuers, subjects = np.empty(total, np.uint32), np.empty(total, np.uint32)
    draws = iter(_pairs(rng, 4 * total + 64))
    count = 0
    issued: list[int] = []
    for agent in range(_GENESIS, agents):
        chosen: list[int] = []
        while len(chosen) < min(int(wanted[agent]), agent):
            coin, place = next(draws)
            if coin < prefer and count > 0:
                ticket = int(place * (agent + count))
                certifier = ticket if ticket < agent else issued[ticket - agent]
            else:
                certifier = int(place * agent)
            if certifier not in chosen:
                chosen.append(certifier)
        for certifier in chosen:
            issuers[count], subjects[count] = certifier, agent
            issued.append(certifier)
            count += 1
    return issuers[:count], subjects[:count]


def _pairs(rng: np.random.Generator, block: int) -> Iterable[tuple[float, float]]:
    """Yield pairs of uniform numbers from blocks of one stream; a block's last numbers may be unused."""
    while True:
        numbers = rng.random(block)
        # The reference generator starts a new block when fewer than three numbers are left.
        usable = (block - 3) // 2 + 1
        yield from zip(numbers[: 2 * usable : 2].tolist(), numbers[1 : 2 * usable : 2].tolist(), strict=True)


class _Csr:
    """Adjacency in NumPy arrays, as a careful user of SciPy's sparse matrices would hold it."""

    def __init__(self, agents: int, issuers: Ints, subjects: Ints) -> None:
        from scipy.sparse import csr_matrix

        ones = np.ones(len(issuers), np.int8)
        ahead = csr_matrix((ones, (issuers, subjects)), (agents, agents))
        self.agents = agents
        self.ahead, self.back = ahead, ahead.T.tocsr()
        self.out_start, self.outs = ahead.indptr, ahead.indices
        self.in_start, self.ins = self.back.indptr, self.back.indices
        self.bytes = sum(a.nbytes for m in (self.ahead, self.back) for a in (m.indptr, m.indices, m.data))

    def successors(self, node: int) -> list[int]:
        found: list[int] = self.outs[self.out_start[node] : self.out_start[node + 1]].tolist()
        return found

    def predecessors(self, node: int) -> list[int]:
        found: list[int] = self.ins[self.in_start[node] : self.in_start[node + 1]].tolist()
        return found

    def ball(self, node: int) -> int:
        """Size of the depth-3 set by whole frontiers; the fast way in NumPy when sets are large."""
        seen = np.zeros(self.agents, np.bool_)
        seen[node] = True
        frontier = np.array([node])
        count = 1
        for _ in range(_DEPTH):
            starts, ends = self.out_start[frontier], self.out_start[frontier + 1]
            lengths = ends - starts
            shift = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
            reached = self.outs[np.arange(int(lengths.sum())) + shift]
            frontier = np.unique(reached[~seen[reached]])
            seen[frontier] = True
            count += len(frontier)
        return count


def _layered(successors: Callable[[int], Iterable[int]]) -> Callable[[int], int]:
    """Depth-3 set by layers of Python sets; the fast way when sets are small."""

    def ball(node: int) -> int:
        seen = {node}
        frontier = [node]
        for _ in range(_DEPTH):
            following = []
            for at in frontier:
                for to in successors(at):
                    if to not in seen:
                        seen.add(to)
                        following.append(to)
            frontier = following
        return len(seen)

    return ball


def _bidirectional(
    successors: Callable[[int], Iterable[int]], predecessors: Callable[[int], Iterable[int]]
) -> Callable[[tuple[int, int]], int | None]:
    """Distance up to 3, searching from both ends; faster than any peer's own shortest path here."""

    def distance(pair: tuple[int, int]) -> int | None:
        anchor, target = pair
        if anchor == target:
            return 0
        ahead, back = {anchor}, {target}
        front, rear = [anchor], [target]
        for steps in range(1, _DEPTH + 1):
            forward = len(front) <= len(rear)
            frontier, mine, other = (front, ahead, back) if forward else (rear, back, ahead)
            neighbours = successors if forward else predecessors
            following = []
            for node in frontier:
                for to in neighbours(node):
                    if to in other:
                        return steps
                    if to not in mine:
                        mine.add(to)
                        following.append(to)
            if not following:
                return None
            if forward:
                front = following
            else:
                rear = following
        return None

    return distance


def run(bench: Bench) -> None:
    """Measure sets, pairs, memory and events for each size."""
    for agents in bench.sizes(default=(_BASE, 1_000_000), quick=(2_000,)):
        issuers, subjects = certificate_graph(agents, bench.seed)
        rng = bench.rng(agents)
        _searches(bench, agents, issuers, subjects, rng)
        _events(bench, agents, issuers, subjects, rng)
    _ingest(bench)


def _intervals(count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    begins = _NOW - rng.integers(0, 600_000, count)
    return begins.astype(np.uint32), (begins + 1_209_600).astype(np.uint32)


def _graph(
    agents: int, issuers: Ints, subjects: Ints, spans: tuple[Ints, Ints], policy: TrustPolicy
) -> TrustGraph:
    graph = TrustGraph(agents, genesis=_GENESIS, policy=policy, now_s=_NOW)
    graph.load(issuers, subjects, not_before=spans[0], not_after=spans[1])
    return graph


def _path(threshold: int = 2) -> TrustPolicy:
    return TrustPolicy.panda(reading="directed", grace_s=0, threshold=threshold)


def _searches(bench: Bench, agents: int, issuers: Ints, subjects: Ints, rng: np.random.Generator) -> None:
    graph = _graph(agents, issuers, subjects, _intervals(len(issuers), rng), _path())
    search = graph.search()
    nodes = rng.integers(0, agents, 4096).tolist()
    # Pairs of which the answer is yes, each of all such pairs as likely as another; and any two agents, of
    # which it is nearly always no.
    near, anyhow = _near_pairs(graph, agents, rng), list(zip(nodes, reversed(nodes), strict=True))
    balls: dict[str, Callable[[int], int]] = {}
    large: dict[str, Callable[[int], int]] = {}
    distances: dict[str, Callable[[tuple[int, int]], int | None]] = {}
    every: dict[str, Callable[[], Any]] = {}
    memory: dict[str, int] = {}
    if (igraph := bench.peer("igraph")) is not None:
        other_graph = igraph.Graph(
            n=agents, edges=np.column_stack([issuers, subjects]).astype(np.int64), directed=True
        )
        balls["igraph"] = large["igraph"] = lambda node: other_graph.neighborhood_size(node, _DEPTH, "out")
        every["igraph"] = lambda: other_graph.neighborhood_size(None, _DEPTH, "out")
        distances["igraph"] = _bidirectional(other_graph.successors, other_graph.predecessors)
    if (rustworkx := bench.peer("rustworkx")) is not None:
        digraph = rustworkx.PyDiGraph(multigraph=False)
        digraph.add_nodes_from(range(agents))
        digraph.add_edges_from_no_data(list(zip(issuers.tolist(), subjects.tolist(), strict=True)))
        balls["rustworkx"] = large["rustworkx"] = _layered(digraph.successor_indices)
        distances["rustworkx"] = _bidirectional(digraph.successor_indices, digraph.predecessor_indices)
    if bench.peer("scipy", module="scipy.sparse") is not None:
        csr = _Csr(agents, issuers, subjects)
        balls["scipy"], large["scipy"] = _layered(csr.successors), csr.ball
        distances["scipy"] = _bidirectional(csr.successors, csr.predecessors)
        memory["scipy"] = csr.bytes
    _check("depth-3 set of a founder", search.reach_count(0), {name: ball(0) for name, ball in large.items()})
    for node in nodes[:200]:
        _check(f"depth-3 set of {node}", search.reach_count(node), {n: b(node) for n, b in balls.items()})
    for pair in near[:1000] + anyhow[:1000]:
        _check(f"distance of {pair}", search.distance(*pair), {n: d(pair) for n, d in distances.items()})
    facts: dict[str, Any] = {
        "certificates": len(issuers),
        "depth": _DEPTH,
        "genesis_reaches": search.reach_count(0),
    }
    bench.compare(
        "genesis_depth3",
        Case("pandacore", lambda: search.reach_count(0)),
        [Case(name, lambda ball=ball: ball(0), max_calls=10) for name, ball in large.items()],
        unit="ms",
        agents=agents,
        rows="best",
        **facts,
    )
    bench.compare(
        {"random_depth3_p50": "p50", "random_depth3_p99": "p99"},
        Case("pandacore", search.reach_count, inputs=nodes),
        [Case(n, b, inputs=nodes, max_calls=500 if n == "igraph" else None) for n, b in balls.items()],
        agents=agents,
        rows="best",
        **facts,
    )
    distance = search.distance
    samples = {}
    for prefix, pairs in (("pair", near), ("any_pair", anyhow)):
        samples[prefix] = bench.compare(
            {f"{prefix}_p50": "p50", f"{prefix}_p99": "p99"},
            Case("pandacore", lambda pair: distance(*pair), inputs=pairs),
            [Case(name, find, inputs=pairs) for name, find in distances.items()],
            agents=agents,
            rows="best",
            **facts,
        )
    everybody = np.arange(agents, dtype=np.uint32)
    if every:
        found = np.asarray(every["igraph"]())
        _check("all depth-3 sets", graph.reach_sizes(everybody).sum(), {"igraph": found.sum()})
    bench.compare(
        "all_members_depth3",
        Case("pandacore", lambda: graph.reach_sizes(everybody), max_calls=2),
        [Case(name, whole, max_calls=1) for name, whole in every.items()],
        unit="s",
        agents=agents,
        rows="best",
        rounds=2,
        threads=1,
        **facts,
    )
    theirs = memory.get("scipy")
    bench.emit(
        "memory_bytes",
        graph.memory_bytes,
        "B",
        agents=agents,
        peer=None if theirs is None else "scipy",
        peer_value=theirs,
        includes="topology and validity; the peer holds topology only",
        certificates=len(issuers),
    )
    if agents > _BASE:
        _growth(bench, agents, samples["pair"]["pandacore"].p50)


def _near_pairs(graph: TrustGraph, agents: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw pairs uniformly from all that are one to three hops apart."""
    behind = graph.reach_sizes(np.arange(agents, dtype=np.uint32)).astype(np.float64) - 1
    pairs = []
    for anchor in rng.choice(agents, 4096, p=behind / behind.sum()).tolist():
        reached = graph.search().reach(anchor)
        pairs.append((anchor, int(reached[rng.integers(1, len(reached))])))
    return pairs


def _growth(bench: Bench, agents: int, p50_s: float) -> None:
    """Compare pairs of this size with pairs at ten thousand agents."""
    issuers, subjects = certificate_graph(_BASE, bench.seed)
    rng = bench.rng(_BASE)
    graph = _graph(_BASE, issuers, subjects, _intervals(len(issuers), rng), _path())
    search, pairs = graph.search(), _near_pairs(graph, _BASE, rng)
    small = bench.measure([Case("pandacore", lambda pair: search.distance(*pair), inputs=pairs)])["pandacore"]
    bench.emit(
        "pair_growth",
        p50_s * 1e6,
        "us",
        agents=agents,
        peer=f"pandacore at {_BASE}",
        peer_value=small.p50 * 1e6,
        ratio="ours/theirs",
    )


def _check(what: str, ours: object, theirs: dict[str, Any]) -> None:
    for peer, answer in theirs.items():
        if answer != ours:
            raise StateError(f"{what}: pandacore says {ours}, {peer} says {answer}", where="bench trust")


def _events(bench: Bench, agents: int, issuers: Ints, subjects: Ints, rng: np.random.Generator) -> None:
    """Time certificate events, a third each issued, revoked and expired, while one set is kept right."""
    count = 6_000 if bench.quick else min(150_000, 3 * len(issuers) // 4)
    begins, ends = _intervals(len(issuers), rng)
    each = count // 3
    touched = rng.permutation(len(issuers))[: 2 * each]
    revoked, expiring = touched[:each], touched[each:]
    # One certificate ends in each coming second, so that a step of the clock is one event.
    ends[expiring] = _NOW + 1 + np.arange(each, dtype=np.uint32)
    kinds = np.resize(np.array([0, 1, 2], np.uint8), 3 * each)
    first = np.zeros(3 * each, np.uint32)
    second = np.zeros(3 * each, np.uint32)
    new = rng.integers(0, agents, each)
    first[0::3], second[0::3] = new, (new + 1 + rng.integers(0, agents - 1, each)) % agents
    first[1::3], second[1::3] = issuers[revoked], subjects[revoked]
    starts = _NOW + 1 + np.repeat(np.arange(each, dtype=np.uint32), 3)
    for name, policy in (
        ("strict", TrustPolicy.strict(quota=None)),
        ("path t=1", _path(1)),
        ("panda t=2", _path(2)),
    ):
        rates, alone = [], []
        for _ in range(2 if bench.quick else 3):
            graph = _graph(agents, issuers, subjects, (begins, ends), policy)
            trusted = graph.trusted()
            size = len(trusted)
            begun, worked = time.perf_counter(), time.thread_time()
            graph.apply(kinds, first, second, not_before=starts, not_after=_NOW + 9_999_999)
            rates.append(len(kinds) / (time.perf_counter() - begun))
            alone.append(len(kinds) / (time.thread_time() - worked))
        fresh = graph.trusted()
        if not np.array_equal(fresh.layers(), trusted.layers()):
            raise StateError("the maintained set differs from a recompute", where="bench trust")
        bench.emit(
            "cert_events_per_second",
            float(np.median(rates)),
            "1/s",
            agents=agents,
            policy=name,
            events=len(kinds),
            per_cpu_second=round(float(np.median(alone))),  # as on a machine without other work
            set_before=size,
            set_after=len(trusted),
            memory_bytes_after=graph.memory_bytes,
        )
    _memory_after_events(bench, agents, issuers, subjects, rng)


def _memory_after_events(
    bench: Bench, agents: int, issuers: Ints, subjects: Ints, rng: np.random.Generator
) -> None:
    """Find the most memory that topology and validity take while certificates come and go."""
    begins, ends = _intervals(len(issuers), rng)
    graph = _graph(agents, issuers, subjects, (begins, ends), TrustPolicy.strict(quota=None))
    trusted = graph.trusted()
    block = 6_000 if bench.quick else 50_001
    blocks = 2 if bench.quick else 20
    most, now = graph.memory_bytes, _NOW
    kinds = np.resize(np.array([0, 1, 2], np.uint8), block)
    for _ in range(blocks):
        new = rng.integers(0, agents, block)
        other = (new + 1 + rng.integers(0, agents - 1, block)) % agents
        revoked = rng.integers(0, len(issuers), block)
        first, second = (
            np.where(kinds == 0, new, issuers[revoked]),
            np.where(kinds == 0, other, subjects[revoked]),
        )
        starts = now + 1 + np.arange(block) // 3
        # New ones live for up to a day: some end while the others come.
        graph.apply(
            kinds, first, second, not_before=starts, not_after=starts + rng.integers(1, 86_400, block)
        )
        now = int(starts[-1])
        most = max(most, graph.memory_bytes)
    bench.emit(
        "memory_bytes_most",
        most,
        "B",
        agents=agents,
        events=blocks * block,
        set_after=len(trusted),
        certificates=len(issuers),
    )


def _ingest(bench: Bench) -> None:
    """Time signed certificates through the store: two signatures each, verified once."""
    keys = [KeyPair.from_seed(n.to_bytes(32, "big")) for n in range(60)]
    genesis = Genesis([keys[0].public], threshold=1, label="bench")
    made = [
        Certificate.issue(a, b.public, genesis.collective_id, not_before=0, not_after=1000).consented(b)
        for n, a in enumerate(keys)
        for b in keys[n + 1 : n + 11]
    ]
    seconds = []
    for _ in range(3):
        store = TrustStore(genesis, now_s=0, policy=TrustPolicy.strict(threshold=1, quota=None))
        begun = time.perf_counter()
        answers = store.ingest_many(made, threads=1)
        seconds.append(time.perf_counter() - begun)
        if any(answer is not None for answer in answers):
            raise StateError("a valid certificate was refused", where="bench trust")
    bench.emit("ingest_per_second", len(made) / float(np.median(seconds)), "1/s", threads=1, signatures=2)
