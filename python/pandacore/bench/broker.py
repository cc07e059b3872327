"""The semantic index beside hnswlib, usearch and faiss: speed at equal recall, builds, updates, filters.

Times are CPU seconds of the process, the best of some rounds with the engines alternating in one process:
wall time on a shared machine says more about the neighbours. Every engine gets the same graph parameters
(M = 16, efConstruction = 200) and one thread. Recall is counted at k = 10 against a brute-force search of the
same vectors in NumPy; speeds at a recall are interpolated on a sweep of ef.

The vectors come from a seeded generator, or from ``--vectors FILE.npy``. The generator is as hard as text:
on 20,000 of its vectors hnswlib reaches recalls of 0.95, 0.985 and 0.996 at ef 32, 64 and 128 (median cosine
0.67 to the first and 0.58 to the tenth neighbour); on MiniLM embeddings of package descriptions it reached
0.943, 0.981 and 0.995 (0.68 and 0.57).

``--keep DIR`` saves what the peers built, with the CPU seconds it took, under the parameters, the peer's
version and a hash of the vectors; a later run with the same ones loads it. Its build rows then say ``kept``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pandacore.bench.frame import Bench, Option
from pandacore.broker import SemanticIndex, Subset
from pandacore.errors import ConfigError

PEERS = ("hnswlib", "usearch", "faiss")
OPTIONS = (
    Option("vectors", str, "", "a .npy file of float32 rows to use instead of the generator"),
    Option("rerank", str, "int16", "int16, bf16 (larger, less exact), f32 or none"),
    Option("keep", str, "", "a directory where the peers' built indexes are kept from run to run"),
    Option("parts", str, "sizes,churn", "sizes (all but the next), churn, beside (a minute of writes)"),
)

K = 10
M = 16
EF_CONSTRUCTION = 200
QUERIES = 1_000
EFS = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
SELECTIVITIES = (0.5, 0.1, 0.02, 0.01, 0.001, 0.0001)
CHURN_SIZE = 20_000

Matrix = NDArray[np.float32]
Ids = NDArray[np.int64]
T = TypeVar("T")


class Engine(Protocol):
    """What the bench asks of each contender."""

    name: str

    def build(self, vectors: Matrix) -> None: ...
    def search(self, queries: Matrix, ef: int) -> Ids: ...
    def one(self, query: Matrix, ef: int) -> object: ...
    def replace(self, gone: Ids, new: Ids, vectors: Matrix) -> None: ...
    def memory(self) -> int: ...


class Peer(Engine, Protocol):
    """A contender whose index can be kept between runs."""

    distribution: str

    def save(self, path: str) -> None: ...
    def load(self, path: str) -> None: ...


class Ours:
    name = "pandacore"

    def __init__(self, dim: int, rerank: str) -> None:
        self.index = SemanticIndex(dim, rerank=rerank, m=M, ef_construction=EF_CONSTRUCTION)  # type: ignore[arg-type]

    def build(self, vectors: Matrix) -> None:
        self.index.add(np.arange(len(vectors)), vectors)

    def search(self, queries: Matrix, ef: int) -> Ids:
        # One query after the other, as the peers do.
        return self.index.search_batch(queries, K, ef=ef, executor="graph", interleave=False).ids

    def one(self, query: Matrix, ef: int) -> object:
        return self.index.search(query, K, ef=ef, executor="graph")

    def replace(self, gone: Ids, new: Ids, vectors: Matrix) -> None:
        self.index.remove(gone)
        self.index.add(new, vectors)

    def memory(self) -> int:
        return self.index.nbytes


class Hnswlib:
    name = distribution = "hnswlib"

    def __init__(self, module: ModuleType, dim: int, capacity: int) -> None:
        self.module, self.capacity = module, capacity
        self.index = module.Index("ip", dim)
        self.index.init_index(capacity, M=M, ef_construction=EF_CONSTRUCTION, allow_replace_deleted=True)

    def build(self, vectors: Matrix) -> None:
        self.index.add_items(vectors, np.arange(len(vectors)), num_threads=1)

    def search(self, queries: Matrix, ef: int) -> Ids:
        self.index.set_ef(ef)
        return np.asarray(self.index.knn_query(queries, K, num_threads=1)[0], dtype=np.int64)

    def one(self, query: Matrix, ef: int) -> object:
        return self.index.knn_query(query, K, num_threads=1)

    def replace(self, gone: Ids, new: Ids, vectors: Matrix) -> None:
        for item in gone:
            self.index.mark_deleted(item)
        self.index.add_items(vectors, new, num_threads=1, replace_deleted=True)

    def memory(self) -> int:
        return int(self.index.index_file_size())

    def save(self, path: str) -> None:
        self.index.save_index(path)

    def load(self, path: str) -> None:
        self.index = self.module.Index("ip", self.index.dim)
        self.index.load_index(path, max_elements=self.capacity, allow_replace_deleted=True)


class Usearch:
    name = distribution = "usearch"

    def __init__(self, module: ModuleType, dim: int) -> None:
        self.index = module.Index(
            ndim=dim, metric="ip", dtype="bf16", connectivity=M, expansion_add=EF_CONSTRUCTION
        )

    def build(self, vectors: Matrix) -> None:
        self.index.add(np.arange(len(vectors)), vectors, threads=1)

    def search(self, queries: Matrix, ef: int) -> Ids:
        self.index.expansion_search = ef
        return np.asarray(self.index.search(queries, K, threads=1).keys).astype(np.int64)

    def one(self, query: Matrix, ef: int) -> object:
        return self.index.search(query, K, threads=1)

    def replace(self, gone: Ids, new: Ids, vectors: Matrix) -> None:
        self.index.remove(gone)
        self.index.add(new, vectors, threads=1)

    def memory(self) -> int:
        return int(self.index.memory_usage)

    def save(self, path: str) -> None:
        self.index.save(path)

    def load(self, path: str) -> None:
        self.index.load(path)


class Faiss:
    name = "faiss"
    distribution = "faiss-cpu"

    def __init__(self, module: ModuleType, dim: int) -> None:
        module.omp_set_num_threads(1)
        self.module = module
        self.index = module.IndexHNSWFlat(dim, M, module.METRIC_INNER_PRODUCT)
        self.index.hnsw.efConstruction = EF_CONSTRUCTION

    def build(self, vectors: Matrix) -> None:
        self.index.add(vectors)

    def search(self, queries: Matrix, ef: int) -> Ids:
        self.index.hnsw.efSearch = ef
        return np.asarray(self.index.search(queries, K)[1], dtype=np.int64)

    def one(self, query: Matrix, ef: int) -> object:
        return self.index.search(query[None, :], K)

    def replace(self, gone: Ids, new: Ids, vectors: Matrix) -> None:
        raise NotImplementedError  # an HNSW index of faiss cannot remove

    def memory(self) -> int:
        return int(self.module.serialize_index(self.index).size)

    def save(self, path: str) -> None:
        self.module.write_index(self.index, path)

    def load(self, path: str) -> None:
        self.index = self.module.read_index(path)


def texts_like(rng: np.random.Generator, sizes: Sequence[int], dim: int = 384) -> list[Matrix]:
    """Unit vectors that are as hard to search as sentence embeddings.

    Each has a main topic, a second one of varying weight, and a rest whose size varies too; topics belong to
    fields, and their popularity has a heavy tail.
    """
    spectrum = (np.arange(1, dim + 1) ** -0.5).astype(np.float32)
    spectrum /= np.sqrt((spectrum**2).sum())

    def draw(count: int) -> Matrix:
        return rng.standard_normal((count, dim), dtype=np.float32) * spectrum

    topics = max(64, max(sizes) // 10)
    fields = draw(max(8, topics // 40))
    centres = np.float32(0.6) * fields[rng.integers(0, len(fields), topics)] + np.float32(0.8) * draw(topics)
    popularity = rng.pareto(1.5, topics) + 0.2
    popularity /= popularity.sum()
    common = np.float32(0.4) * draw(1)
    found = []
    for size in sizes:
        vectors = np.empty((size, dim), dtype=np.float32)
        for start in range(0, size, 50_000):
            rows = min(50_000, size - start)
            first = rng.choice(topics, rows, p=popularity)
            second = rng.choice(topics, rows, p=popularity)
            weight = rng.random((rows, 1), dtype=np.float32)
            rest = np.exp(0.4 * rng.standard_normal((rows, 1), dtype=np.float32))
            part = common + centres[first] + weight * centres[second] + rest * draw(rows)
            vectors[start : start + rows] = part / np.linalg.norm(part, axis=1, keepdims=True)
        found.append(vectors)
    return found


def nearest(vectors: Matrix, queries: Matrix, allowed: NDArray[np.bool_] | None = None) -> Ids:
    """Brute force: the K best rows for each query, among the allowed ones."""
    rows = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    kept = min(K, len(rows))
    best = np.empty((len(queries), kept), dtype=np.int64)
    step = max(1, 20_000_000 // max(1, len(rows)))
    pool = vectors if allowed is None else vectors[rows]
    for start in range(0, len(queries), step):
        scores = queries[start : start + step] @ pool.T
        top = np.argpartition(-scores, kept - 1, axis=1)[:, :kept] if kept < len(rows) else None
        best[start : start + step] = rows[top] if top is not None else rows
    return best


def as_good(vectors: Matrix, queries: Matrix, found: Ids) -> float:
    """Share of the answers no worse than the K-th of a brute force: of equal vectors any will do.

    A ten-thousandth is left to the index, which orders by vectors of 16 bits.
    """
    truth = nearest(vectors, queries)
    scores = [np.einsum("qd,qkd->qk", queries, vectors[ids]) for ids in (found, truth)]
    return float((scores[0] >= scores[1].min(axis=1, keepdims=True) - 1e-4).mean())


def recall(found: Ids, truth: Ids) -> float:
    hits = sum(np.isin(t, f).sum() for f, t in zip(found, truth, strict=True))
    return float(hits / truth.size)


def cpu(work: Callable[..., T], *args: Any) -> tuple[float, T]:
    """CPU seconds of a call, and what it returned."""
    start = time.process_time()
    result = work(*args)
    return max(time.process_time() - start, 1e-9), result


def at_recall(curve: list[tuple[float, float]], wanted: float) -> float | None:
    """The speed at a recall, on the line between the measured points (logarithms of speed)."""
    points = sorted(curve)
    recalls = [r for r, _ in points]
    if not recalls or recalls[-1] < wanted or recalls[0] > wanted:
        return None
    return float(np.exp(np.interp(wanted, recalls, np.log([qps for _, qps in points]))))


def run(bench: Bench) -> None:
    parts = str(bench.options["parts"]).split(",")
    if not parts or set(parts) - {"sizes", "churn", "beside"}:
        raise ConfigError(f"no such part: {parts}", where="--parts", hint="use sizes, churn, beside")
    for n in bench.sizes(default=(100_000, 1_000_000), quick=(4_000,)) if "sizes" in parts else ():
        _size(bench, n)
    if "churn" in parts:
        _churn(bench)
    if "beside" in parts:
        _beside(bench)


def _data(bench: Bench, n: int) -> tuple[Matrix, Matrix, Matrix]:
    """Vectors, queries, and spare vectors for replacement."""
    queries, spare = (200, n // 10) if bench.quick else (QUERIES, min(20_000, n // 10))
    path = str(bench.options["vectors"])
    if not path:
        parts = texts_like(bench.rng(), (n, queries, spare))
        return parts[0], parts[1], parts[2]
    rows = np.load(path, mmap_mode="r")
    if rows.ndim != 2 or len(rows) < n + queries + spare:
        raise ConfigError(
            f"{path} has shape {rows.shape}; {n + queries + spare} rows are needed",
            where="--vectors",
            hint="give a larger file or a smaller --agents",
        )
    chosen = np.sort(bench.rng().permutation(len(rows))[: n + queries + spare])
    some = np.asarray(rows[chosen], dtype=np.float32)
    some /= np.linalg.norm(some, axis=1, keepdims=True)
    bench.rng(1).shuffle(some)
    return some[:n], some[n : n + queries], some[n + queries :]


def _engines(bench: Bench, dim: int, capacity: int) -> tuple[Ours, list[Peer]]:
    engines: list[Peer] = []
    if (module := bench.peer("hnswlib")) is not None:
        engines.append(Hnswlib(module, dim, capacity))
    if (module := bench.peer("usearch", module="usearch.index")) is not None:
        engines.append(Usearch(module, dim))
    if (module := bench.peer("faiss")) is not None:
        engines.append(Faiss(module, dim))
    return Ours(dim, str(bench.options["rerank"])), engines


def _built(bench: Bench, peer: Peer, vectors: Matrix, key: str) -> tuple[float, bool]:
    """Build a peer's index, or take the one that was kept; returns its CPU seconds, and whether it was."""
    directory = str(bench.options["keep"])
    if not directory:
        return cpu(peer.build, vectors)[0], False
    version = importlib.metadata.version(peer.distribution)
    shape = f"m{M}-efc{EF_CONSTRUCTION}-{len(vectors)}x{vectors.shape[1]}"
    path = Path(directory) / f"{peer.name}-{version}-{shape}-{key}.index"
    facts = path.with_suffix(".json")
    if facts.exists() and path.exists():
        peer.load(str(path))
        return float(json.loads(facts.read_text())["build_cpu_s"]), True
    seconds, _ = cpu(peer.build, vectors)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".new")
    peer.save(str(unfinished))
    os.replace(unfinished, path)
    facts.write_text(json.dumps({"build_cpu_s": seconds}))
    return seconds, False


def _rows(
    bench: Bench,
    metric: str,
    values: dict[str, float | None],
    unit: str,
    n: int,
    **conditions: Any,
) -> None:
    """One row for each peer; values a contender could not reach are left out."""
    ours = values.pop("pandacore", None)
    if ours is None:
        bench.note(f"{metric}: not reached")
        return
    ratio: Any = "times_faster" if unit.endswith("/s") else "ours/theirs"
    peers = {name: value for name, value in values.items() if value is not None}
    if not peers:
        bench.emit(metric, ours, unit, agents=n, **conditions)
    for name, value in peers.items():
        bench.emit(metric, ours, unit, agents=n, peer=name, peer_value=value, ratio=ratio, **conditions)


def _size(bench: Bench, n: int) -> None:
    vectors, queries, spare = _data(bench, n)
    truth = nearest(vectors, queries)
    ours, peers = _engines(bench, vectors.shape[1], n)
    engines: list[Engine] = [ours, *peers]
    key = hashlib.blake2b(vectors.data, digest_size=8).hexdigest()
    mine, _ = cpu(ours.build, vectors)
    if not peers:
        bench.emit("build_seconds", mine, "s", agents=n)
    for peer in peers:
        seconds, kept = _built(bench, peer, vectors, key)
        bench.emit("build_seconds", mine, "s", agents=n, peer=peer.name, peer_value=seconds, kept=kept)
    memory = {e.name: e.memory() / n for e in engines}
    _rows(bench, "memory_bytes", dict(memory), "B", n, rerank=ours.index.rerank)

    curves: dict[str, list[tuple[float, float]]] = {e.name: [] for e in engines}
    reached: dict[str, int] = {}
    for ef in EFS:
        best: dict[str, float] = {}
        for turn in range(2 if bench.quick else 4):
            for engine in engines if turn % 2 == 0 else reversed(engines):
                seconds, found = cpu(engine.search, queries, ef)
                best[engine.name] = min(best.get(engine.name, np.inf), seconds)
                if turn == 0:
                    curves[engine.name].append((recall(found, truth), 0.0))
        for name, seconds in best.items():
            got, _ = curves[name][-1]
            curves[name][-1] = (got, len(queries) / seconds)
            if got >= 0.95:
                reached.setdefault(name, ef)
        if min(curve[-1][0] for curve in curves.values()) >= 0.99:
            break
    for wanted in (0.90, 0.95, 0.99):
        speeds = {name: at_recall(curve, wanted) for name, curve in curves.items()}
        _rows(bench, f"qps_recall{round(100 * wanted)}", speeds, "queries/s", n)

    _single(bench, engines, queries, reached, n)
    _interleaved(bench, ours, queries, reached, n)
    one, two = (
        min(
            _wall(partial(ours.index.search_batch, queries, K, ef=64, executor="graph", threads=t))
            for _ in range(3)
        )
        for t in (1, 2)
    )
    bench.emit("two_threads_speedup", one / two, "times", agents=n)
    seconds, scanned = cpu(partial(ours.index.search_batch, queries, K, executor="batch"))
    exact = {"pandacore": len(queries) / seconds} | {
        name: at_recall(curve, 0.95) for name, curve in curves.items() if name == "hnswlib"
    }
    _rows(bench, "batch_scan_qps", exact, "queries/s", n, recall=recall(scanned.ids, truth))

    _filters(bench, engines, vectors, queries, n)
    _replace(bench, engines, spare, n)


def _wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _single(bench: Bench, engines: list[Engine], queries: Matrix, reached: dict[str, int], n: int) -> None:
    """Calls from Python with one query, each engine at its own ef for a recall of 0.95."""
    some = queries[:100] if bench.quick else queries[:400]
    engines = [e for e in engines if e.name in reached]
    if not any(isinstance(e, Ours) for e in engines):
        bench.note("a recall of 0.95 was not reached, so single queries are not compared")
        return
    times: dict[str, list[float]] = {e.name: [] for e in engines}
    for turn in range(2):
        for engine in engines if turn % 2 == 0 else reversed(engines):
            ef = reached[engine.name]
            engine.search(some[:1], ef)
            for query in some:
                start = time.perf_counter_ns()
                engine.one(query, ef)
                times[engine.name].append((time.perf_counter_ns() - start) / 1e3)
    for metric, quantile in (("single_query_p50", 0.5), ("single_query_p99", 0.99)):
        _rows(bench, metric, {k: float(np.quantile(v, quantile)) for k, v in times.items()}, "us", n)


def _interleaved(bench: Bench, ours: Ours, queries: Matrix, reached: dict[str, int], n: int) -> None:
    """Batches whose walks take turns, beside one walk after the other, at the ef for a recall of 0.95."""
    if ours.name not in reached:
        return
    best = {True: np.inf, False: np.inf}
    for turn in range(8):
        for together in (True, False) if turn % 2 == 0 else (False, True):
            search = partial(
                ours.index.search_batch, interleave=together, ef=reached[ours.name], executor="graph"
            )
            best[together] = min(best[together], cpu(partial(search, queries, K))[0])
    speeds = {together: len(queries) / seconds for together, seconds in best.items()}
    bench.emit(
        "interleaved_qps",
        speeds[True],
        "queries/s",
        agents=n,
        peer="one after the other",
        peer_value=speeds[False],
        ratio="times_faster",
        ef=reached[ours.name],
    )


def _filters(bench: Bench, engines: list[Engine], vectors: Matrix, queries: Matrix, n: int) -> None:
    rng = bench.rng(2)
    ours = next(e for e in engines if isinstance(e, Ours))
    hnswlib = next((e for e in engines if isinstance(e, Hnswlib)), None)
    topic = vectors @ vectors[int(rng.integers(n))]
    masks = [(share, "random", rng.random(n) < share) for share in SELECTIVITIES]
    masks.append((0.1, "correlated", topic >= np.quantile(topic, 0.9)))
    some, others = np.split(queries, [50 if bench.quick else 300])
    ours.index.tune(others)  # recalls are promised for vectors like those that were measured
    for share, kind, mask in masks:
        if not mask.any():
            mask[0] = True
        truth = nearest(vectors, some, mask)
        subset = Subset(np.flatnonzero(mask))
        ours.index.search(some[0], K, within=subset, recall=0.98)  # the set becomes slots
        answers: list[Any] = []

        def search(out: list[Any] = answers, subset: Subset = subset) -> None:
            out[:] = [ours.index.search(query, K, within=subset, recall=0.98) for query in some]

        seconds = min(cpu(search)[0] for _ in range(2))
        found = np.full((len(some), K), -1, dtype=np.int64)
        for row, answer in enumerate(answers):
            found[row, : len(answer)] = answer.ids
        conditions: dict[str, Any] = {"selectivity": share, "kind": kind, "executor": answers[0].executor}
        speeds: dict[str, float | None] = {"pandacore": len(some) / seconds}
        recalls: dict[str, float | None] = {"pandacore": recall(found, truth)}
        if hnswlib is not None and mask.sum() >= K:
            few = some[: max(3, int(20_000 * share))]  # it takes up to a second for each
            hnswlib.index.set_ef(64)
            allowed = mask.tolist().__getitem__
            query = partial(hnswlib.index.knn_query, few, K, num_threads=1, filter=allowed)
            try:
                spent, (ids, _) = min((cpu(query) for _ in range(2)), key=lambda timed: timed[0])
                speeds["hnswlib"] = len(few) / spent
                recalls["hnswlib"] = recall(np.asarray(ids, dtype=np.int64), truth[: len(few)])
            except RuntimeError as error:  # it finds fewer than k
                bench.note(f"hnswlib with a filter of {share}: {error}")
        _rows(bench, "filtered_qps", speeds, "queries/s", n, **conditions)
        _rows(bench, "filtered_recall", recalls, "share", n, **conditions)


def _replace(bench: Bench, engines: list[Engine], spare: Matrix, n: int) -> None:
    """Removing a vector and adding another in its place, consolidation included."""
    rng = bench.rng(3)
    gone = rng.permutation(n)[: len(spare)].astype(np.int64)
    costs: dict[str, float | None] = {}
    for engine in engines:
        # The peers take milliseconds for each; ours must come to its consolidation.
        count = len(spare) if isinstance(engine, Ours) else min(len(spare), 500)
        try:
            new = n + np.arange(count, dtype=np.int64)
            seconds, _ = cpu(engine.replace, gone[:count], new, spare[:count])
        except NotImplementedError:
            bench.note(f"{engine.name} cannot remove vectors")
            continue
        costs[engine.name] = 1e6 * seconds / count
    _rows(bench, "replace_us", costs, "us", n)


def _churn(bench: Bench) -> None:
    """Recall after replacing 30 % and five times everything, in steps of 5 %, beside a fresh build."""
    size, turns = (2_000, (6, 20)) if bench.quick else (CHURN_SIZE, (6, 100))
    steps = max(turns)
    step = size // 20
    vectors, queries = texts_like(bench.rng(4), (size + steps * step, QUERIES // 2))
    rng = bench.rng(5)
    index = SemanticIndex(vectors.shape[1])
    live = np.arange(size)
    index.add(live, vectors[:size])
    for turn in range(1, steps + 1):
        live = rng.permutation(live)
        index.remove(live[:step])
        new = size + (turn - 1) * step + np.arange(step)
        index.add(new, vectors[new])
        live = np.concatenate([live[step:], new])
        if turn not in turns:
            continue
        fresh = SemanticIndex(vectors.shape[1])
        order = np.sort(live)
        fresh.add(order, vectors[order])
        truth = order[nearest(vectors[order], queries)]
        for ef in (32, 64, 128):
            after, rebuilt = (
                recall(i.search_batch(queries, K, ef=ef, executor="graph").ids, truth) for i in (index, fresh)
            )
            bench.emit(
                "recall_after_churn",
                after,
                "share",
                agents=size,
                peer="rebuild",
                peer_value=rebuilt,
                replaced=turn / 20,
                ef=ef,
                difference=after - rebuilt,
            )


def _beside(bench: Bench) -> None:
    """Eight searching threads, in turns alone and beside a writer; then the answers beside a brute force."""
    size, turns, turn_s = (2_000, 2, 0.3) if bench.quick else (CHURN_SIZE, 6, 10.0)
    vectors, queries, spare = texts_like(bench.rng(6), (size, 500, size))
    index = SemanticIndex(vectors.shape[1])
    index.add(np.arange(size), vectors)
    now = vectors.copy()
    times: dict[bool, list[float]] = {False: [], True: []}
    problems: list[BaseException] = []
    written = 0

    def search(first: int, stop: threading.Event, out: list[float]) -> None:
        at = first
        try:
            while not stop.is_set():
                start = time.perf_counter()
                found = index.search(queries[at % len(queries)], K)
                out.append(time.perf_counter() - start)
                if len(set(found.ids.tolist())) != K:
                    raise AssertionError(f"an answer of {len(found)} vectors, some of them twice")
                at += 1
        except BaseException as error:
            problems.append(error)

    def write(stop: threading.Event, rng: np.random.Generator) -> None:
        nonlocal written
        try:
            while not stop.is_set():
                gone = rng.choice(size, 8, replace=False)
                new = spare[rng.choice(size, 8, replace=False)]
                if written % 16:
                    index.update(gone, new)
                else:  # its id and its place are used again
                    index.remove(gone)
                    index.add(gone, new)
                now[gone] = new
                written += len(gone)
        except BaseException as error:
            problems.append(error)

    rng = bench.rng(7)
    for beside in [False, True] * turns:
        stop = threading.Event()
        outs: list[list[float]] = [[] for _ in range(8)]
        threads = [threading.Thread(target=search, args=(61 * t, stop, out)) for t, out in enumerate(outs)]
        if beside:
            threads.append(threading.Thread(target=write, args=(stop, rng)))
        for thread in threads:
            thread.start()
        stop.wait(turn_s)
        stop.set()
        for thread in threads:
            thread.join()
        times[beside] += [seconds for out in outs for seconds in out]
    if problems:
        raise problems[0]
    for name, quantile in (("search_p50_beside_writer", 0.5), ("search_p99_beside_writer", 0.99)):
        alone, with_writer = (1e6 * float(np.quantile(times[b], quantile)) for b in (False, True))
        bench.emit(
            name,
            with_writer,
            "us",
            agents=size,
            peer="no writer",
            peer_value=alone,
            threads=8,
            seconds=turns * turn_s,
            searches=len(times[True]),
            written=written,
        )
    exact = index.search_batch(queries, K, recall=1.0).ids
    bench.emit("recall_at_rest", as_good(now, queries, exact), "share", agents=size, written=written)
