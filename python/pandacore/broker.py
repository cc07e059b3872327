"""Semantic routing: the nearest vectors by meaning, under filters, while vectors come, change and go.

Usable alone, as a replacement of an approximate-nearest-neighbour library:

>>> import numpy as np
>>> from pandacore.broker import SemanticIndex
>>> index = SemanticIndex(3)
>>> index.add([10, 11, 12], np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]], dtype=np.float32))
1
>>> index.search(np.array([1, 0.1, 0], dtype=np.float32), k=2).ids
array([10, 12])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast

import numpy as np

from pandacore._core import SearchParams, SemanticIndexCore, SubsetCore
from pandacore.errors import ConfigError, ShapeError, StateError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from pandacore.models.embedders import Embedder
    from pandacore.registry import Registry

__all__ = ["CapabilityMatch", "Found", "FoundBatch", "SemanticIndex", "SemanticResolver", "Subset"]

Metric = Literal["cosine", "ip"]
Rerank = Literal["f32", "bf16", "int16", "none"]
Executor = Literal["scan", "batch", "graph", "two_hop"]

_DEFAULT_FLAGS = ("alive", "trusted", "free", "reputable")
_MAX_K = 1 << 24
_MAX_ID = (1 << 63) - 1
_MAX_KNOWN = 64
_MAX_ASKED = 4_096
_LEARNT_AT_ONCE = 256
# Candidates that reach a recall on 10^5 text embeddings; `tune` measures it for the vectors at hand.
_LADDER = ((0.80, 16), (0.90, 32), (0.95, 64), (0.98, 128), (0.99, 192), (0.995, 320), (0.999, 768))


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one query, best first; equal scores in the order of their ids.

    Attributes
    ----------
    ids : int64, shape (n,)
        At most ``k``; fewer when fewer vectors are allowed or reach the threshold.
    scores : float32, shape (n,)
        Cosines, or inner products.
    version : int
        The state of the index that the answer is true of: the number of writes before it.
    executor : str
        Who answered: ``scan``, ``batch``, ``graph`` or ``two_hop``.
    scored : int
        Codes that were looked at.
    """

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    version: int
    executor: Executor
    scored: int

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """The answers to a batch of queries, all in one version.

    Attributes
    ----------
    ids : int64, shape (n_queries, width)
        Row i answers query i; places without a result hold -1. ``width`` is at most ``k``.
    scores : float32, shape (n_queries, width)
        Minus infinity where there is no result.
    version, executor, scored
        As in `Found`; ``scored`` is the sum.
    """

    ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    version: int
    executor: Executor
    scored: int

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Found]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Found:
        """Return the answer to one query, without the empty places."""
        kept = self.ids[row] >= 0
        return Found(self.ids[row][kept], self.scores[row][kept], self.version, self.executor, self.scored)


class Subset:
    """A set of ids, prepared once for many filtered searches.

    It follows the index: replaced vectors stay members, removed ones drop out, and ids that are added later
    join.

    Parameters
    ----------
    ids : array_like of int
        Repetitions and unknown ids do not matter.
    """

    __slots__ = ("_core",)

    def __init__(self, ids: ArrayLike) -> None:
        self._core = SubsetCore(_ids(ids))

    def __len__(self) -> int:
        return len(self._core)

    def __repr__(self) -> str:
        return f"Subset({len(self)} ids)"


class SemanticIndex:
    """Vectors by id, searched by nearness.

    Searches run without locks, in any number of threads and beside a writer, and each sees one state of the
    index. Everything that computes runs with the interpreter released.

    Parameters
    ----------
    dim : int
        Components of a vector, 1 to 65,536.
    metric : {"cosine", "ip"}
        Cosine of the angle, or inner product.
    rerank : {"int16", "f32", "bf16", "none"}
        What is kept besides one byte a component to order the best candidates exactly: 16-bit fixed-point
        numbers (one byte more), the vectors as given (four), 16-bit floats (two), or nothing.
    m : int
        Links of a vector in the graph; 16 suits most text embeddings.
    ef_construction : int
        Candidates an insertion looks at. More is a better graph and a slower build.
    flags : sequence of str
        Yes-or-no attributes that filters go by. A new vector has all of them unless `add` says otherwise.
    model_id : str
        Names what made the vectors; kept in the file, and compared on `load`.
    seed : int
        Seed of the graph.
    consolidate_at : float
        Share of removed vectors at which a write takes them out of the graph. 1 leaves it to `consolidate`.

    Raises
    ------
    ConfigError
        An argument is out of range.

    Notes
    -----
    Methods: HNSW (Malkov and Yashunin, 2016) on byte codes of rotated vectors, with one-bit sketches after
    RaBitQ (Gao and Long, 2024); deletion after FreshDiskANN (Singh et al., 2021).
    """

    def __init__(
        self,
        dim: int,
        *,
        metric: Metric = "cosine",
        rerank: Rerank = "int16",
        m: int = 16,
        ef_construction: int = 200,
        flags: Sequence[str] = _DEFAULT_FLAGS,
        model_id: str = "",
        seed: int = 0,
        consolidate_at: float = 0.1,
    ) -> None:
        if isinstance(flags, str):
            raise ConfigError("flags is a str", where="SemanticIndex", hint="pass a sequence of names")
        names = list(flags)
        if len(set(names)) != len(names) or not all(names):
            raise ConfigError(f"flag names repeat or are empty: {names}", where="SemanticIndex")
        for name, value in (("dim", dim), ("m", m), ("ef_construction", ef_construction), ("seed", seed)):
            _whole(name, value)
        self._setup(
            SemanticIndexCore(
                dim=dim,
                metric=metric,
                rerank=rerank,
                m=m,
                ef_construction=ef_construction,
                flags=names,
                model=model_id,
                seed=seed,
                consolidate_at=consolidate_at,
            )
        )

    def _setup(self, core: SemanticIndexCore) -> None:
        self._core = core
        self._flags = {name: at for at, name in enumerate(core.flag_names)}
        self._ladder: tuple[tuple[float, int], ...] = _LADDER
        # Checked parameters by what was asked for: most callers ask for the same thing again and again.
        self._known: dict[tuple[object, ...], SearchParams] = {}
        self._pid = os.getpid()

    # Not in __slots__ and not set by __new__: a handle whose __init__ failed says so instead of crashing.
    def __getattr__(self, name: str) -> Any:
        if name in ("_core", "_flags", "_known", "_ladder", "_pid"):
            raise StateError(
                "the index was never created", where="SemanticIndex", hint="call SemanticIndex(dim) first"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- facts

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return self._core.dim

    @property
    def metric(self) -> Metric:
        """How vectors are compared."""
        return cast("Metric", self._core.metric)

    @property
    def rerank(self) -> Rerank:
        """What is kept besides the byte codes."""
        return cast("Rerank", self._core.rerank)

    @property
    def model_id(self) -> str:
        """What made the vectors, or empty."""
        return self._core.model

    @property
    def flags(self) -> tuple[str, ...]:
        """The names that filters may use."""
        return tuple(self._flags)

    @property
    def version(self) -> int:
        """The number of writes so far."""
        return self._core.version

    @property
    def buried(self) -> int:
        """Removed or replaced vectors whose places are still in the graph."""
        return self._core.buried

    @property
    def nbytes(self) -> int:
        """Bytes of all places ever used, with their links, ids and flags."""
        return self._core.nbytes

    @property
    def instruction_set(self) -> str:
        """The instructions that the inner loops use on this processor."""
        return self._core.instruction_set

    def __len__(self) -> int:
        return len(self._core)

    def __contains__(self, item: object) -> bool:
        return (
            isinstance(item, int | np.integer)
            and 0 <= int(item) <= _MAX_ID
            and self._core.contains(int(item))
        )

    def __repr__(self) -> str:
        core = self.__dict__.get("_core")
        if core is None:
            return "SemanticIndex(not created)"
        model = f", model_id={core.model!r}" if core.model else ""
        return f"SemanticIndex({core.dim}, metric={core.metric!r}{model}): {len(core)} vectors"

    def ids(self) -> NDArray[np.int64]:
        """Return all ids in ascending order."""
        return self._core.ids().view(np.int64)

    def get(self, item: int) -> NDArray[np.float32] | None:
        """Return the vector of an id as exactly as it is kept, or None.

        With metric ``cosine`` it has length 1. How exact it is depends on ``rerank``.
        """
        return self._core.get(int(item)) if item in self else None

    def flags_of(self, item: int) -> dict[str, bool] | None:
        """Return the flags of an id, or None."""
        bits = self._core.flags(int(item)) if item in self else None
        return None if bits is None else {name: bool(bits >> at & 1) for name, at in self._flags.items()}

    # -- writing

    def add(
        self,
        ids: ArrayLike,
        vectors: ArrayLike,
        *,
        flags: Sequence[str] | None = None,
        replace: bool = False,
        threads: int = 1,
    ) -> int:
        """Add vectors; all of the batch become visible at once, or none if any is refused.

        Parameters
        ----------
        ids : array_like of int, shape (n,)
            0 to 2**63 - 1.
        vectors : array_like of float, shape (n, dim)
            Finite and not zero. float32 is read in place.
        flags : sequence of str, optional
            The flags the new vectors have; all when left out. Replaced vectors keep theirs.
        replace : bool
            Replace vectors whose id is there already instead of refusing the batch.
        threads : int
            Threads that build the graph. With 1, equal calls make equal graphs.

        Returns
        -------
        int
            The version that shows the batch.

        Raises
        ------
        DimensionMismatch, InvalidVector, DuplicateId, ShapeError
            Nothing was added. `InvalidVector.rows` names the bad rows.
        """
        return self._put(ids, vectors, flags, "put" if replace else "add", threads)

    def update(self, ids: ArrayLike, vectors: ArrayLike, *, threads: int = 1) -> int:
        """Replace vectors; the new ones appear in the moment the old ones disappear.

        Raises
        ------
        UnknownId
            An id is not there; nothing was replaced.
        DimensionMismatch, InvalidVector, DuplicateId, ShapeError
            As in `add`.
        """
        return self._put(ids, vectors, None, "update", threads)

    def remove(self, ids: ArrayLike) -> int:
        """Remove vectors; they are in no answer from then on, and their ids may be used again.

        Raises
        ------
        UnknownId, DuplicateId
            Nothing was removed.
        """
        self._writable()
        return self._core.remove(_ids(ids))

    def set_flag(self, flag: str, ids: ArrayLike, value: bool | ArrayLike = True) -> None:
        """Set one flag of some vectors, in place: searches see it at once.

        Parameters
        ----------
        flag : str
        ids : array_like of int, shape (n,)
        value : bool or array_like of bool, shape (n,)

        Raises
        ------
        ConfigError
            The index has no such flag.
        UnknownId
            An id is not there; nothing was set.
        """
        self._writable()
        which = _ids(ids)
        values = np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype=np.bool_), which.shape))
        self._core.set_flag(self._flag(flag), which, values)

    def consolidate(self) -> None:
        """Take removed vectors out of the graph now, and give their places back."""
        self._writable()
        self._core.consolidate()

    def _put(
        self, ids: ArrayLike, vectors: ArrayLike, flags: Sequence[str] | None, mode: str, threads: int
    ) -> int:
        self._writable()
        rows = _matrix(vectors, "vectors")
        which = _ids(ids)
        if len(which) != len(rows):
            raise ShapeError(
                f"{len(which)} ids for {len(rows)} vectors",
                where="SemanticIndex",
                hint="pass one id for each",
            )
        bits = (1 << len(self._flags)) - 1 if flags is None else self._bits(flags)
        return self._core.put(which, rows, flags=bits, mode=mode, threads=_whole("threads", threads, 1))

    def _writable(self) -> None:
        if self._pid != os.getpid():
            # The writer's lock may be held by a thread that does not exist here.
            raise StateError(
                "the index was made before a fork",
                where="SemanticIndex",
                hint="load or build it in the child",
            )

    # -- searching

    def search(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        recall: float | None = None,
        ef: int | None = None,
        threshold: float | None = None,
        where: str | Sequence[str] = (),
        where_not: str | Sequence[str] = (),
        within: Subset | ArrayLike | None = None,
        exclude: ArrayLike = (),
        executor: Executor | None = None,
        rerank_depth: int = 0,
    ) -> Found:
        """Find the nearest vectors to one query.

        Parameters
        ----------
        query : array_like of float, shape (dim,)
        k : int
            Results wanted. Fewer come back when fewer are allowed: that is no error.
        recall : float, optional
            Wanted share of the true nearest, 0.95 when left out. 1 makes the search exact. `tune` makes the
            promise good for the vectors at hand.
        ef : int, optional
            Candidates a graph search keeps; overrides what follows from ``recall``.
        threshold : float, optional
            Least similarity of a result.
        where, where_not : str or sequence of str
            Flags that results must have, and must not have.
        within : Subset or array_like of int, optional
            Ids that may be results. Prepare a `Subset` to use one again.
        exclude : array_like of int
            Ids that must not be results.
        executor : {"scan", "batch", "graph", "two_hop"}, optional
            Overrides the planner.
        rerank_depth : int
            Candidates that are ordered exactly; 0 for max(32, 2 k) of a scan and max(16, 1.5 k) of a
            walk through the graph.

        Raises
        ------
        DimensionMismatch, InvalidVector, ConfigError
            The query or an argument cannot be used.
        """
        params = self._params(
            k, recall, ef, threshold, where, where_not, within, exclude, executor, rerank_depth
        )
        vector = query if _ready(query) else _floats(query, "query")
        if vector.ndim != 1:
            raise ShapeError(
                f"a query has one dimension, this one {vector.ndim}",
                where="SemanticIndex.search",
                hint="use search_batch for several",
            )
        return Found(*self._core.search(vector, params))  # type: ignore[arg-type]

    def search_batch(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        recall: float | None = None,
        ef: int | None = None,
        threshold: float | None = None,
        where: str | Sequence[str] = (),
        where_not: str | Sequence[str] = (),
        within: Subset | ArrayLike | None = None,
        exclude: ArrayLike = (),
        executor: Executor | None = None,
        rerank_depth: int = 0,
        threads: int = 1,
        interleave: bool = True,
    ) -> FoundBatch:
        """Find the nearest vectors to each of some queries, all in one state of the index.

        Parameters
        ----------
        queries : array_like of float, shape (n, dim)
        threads : int
            Threads that share the queries.
        interleave : bool
            Whether walks through the graph take turns, four at a time, so that one goes on while another
            waits for memory. Changes no result; False answers one query after the other.

        Other parameters and errors are those of `search`.
        """
        params = self._params(
            k, recall, ef, threshold, where, where_not, within, exclude, executor, rerank_depth
        )
        rows = _matrix(queries, "queries")
        threads = _whole("threads", threads, 1)
        return FoundBatch(*self._core.search_batch(rows, params, threads=threads, interleave=interleave))  # type: ignore[arg-type]

    def _params(  # noqa: PLR0917  (both searches pass all of them)
        self,
        k: int,
        recall: float | None,
        ef: int | None,
        threshold: float | None,
        where: str | Sequence[str],
        where_not: str | Sequence[str],
        within: Subset | ArrayLike | None,
        exclude: ArrayLike,
        executor: Executor | None,
        rerank_depth: int,
    ) -> SearchParams:
        plain = within is None and isinstance(exclude, tuple) and not exclude
        key = (k, recall, ef, threshold, where, where_not, executor, rerank_depth)
        if plain:
            try:
                if (known := self._known.get(key)) is not None:
                    return known
            except TypeError:  # a list of flags cannot be a key
                plain = False
        if within is not None and not isinstance(within, Subset):
            within = Subset(within)
        wanted = 0.95 if recall is None else float(recall)
        params = SearchParams(
            k=min(_whole("k", k, 1), _MAX_K),
            ef=self._ef(wanted) if ef is None else min(_whole("ef", ef, 1), _MAX_K),
            recall=wanted,
            threshold=threshold,
            require=self._bits(where) if where else 0,
            forbid=self._bits(where_not) if where_not else 0,
            subset=None if within is None else within._core,
            exclude=None if isinstance(exclude, tuple) and not exclude else _ids(exclude),
            executor=executor,
            rerank=_whole("rerank_depth", rerank_depth),
        )
        if plain and type(k) is int and len(self._known) < _MAX_KNOWN:
            self._known[key] = params
        return params

    def _ef(self, recall: float) -> int:
        for reached, ef in self._ladder:
            if reached >= recall:
                return ef
        return self._ladder[-1][1]

    def tune(self, queries: ArrayLike, k: int = 10) -> dict[int, float]:
        """Measure what recall each number of candidates reaches here, and go by it from now on.

        Parameters
        ----------
        queries : array_like of float, shape (n, dim)
            Queries like those to come; some hundreds are enough.

        Returns
        -------
        dict of int to float
            Candidates to recall at ``k``, against exact searches.
        """
        rows = _matrix(queries, "queries")
        if len(rows) == 0 or len(self) == 0:
            raise StateError(
                "there is nothing to measure", where="SemanticIndex.tune", hint="add vectors, pass queries"
            )
        truth = self.search_batch(rows, k, recall=1.0).ids
        measured: dict[int, float] = {}
        for ef in (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048):
            if ef < k:
                continue
            found = self.search_batch(rows, k, ef=ef, executor="graph").ids
            hits = sum(np.isin(a[a >= 0], b).sum() for a, b in zip(truth, found, strict=True))
            measured[ef] = float(hits / max(1, int((truth >= 0).sum())))
            if measured[ef] >= 0.9995:
                break
        self._known.clear()
        self._ladder = tuple(sorted((recall, ef) for ef, recall in measured.items()))
        return measured

    def _flag(self, name: str) -> int:
        try:
            return self._flags[name]
        except KeyError:
            known = ", ".join(self._flags) or "none"
            raise ConfigError(
                f"the index has no flag {name!r}", where="SemanticIndex", hint=f"its flags are: {known}"
            ) from None

    def _bits(self, names: str | Sequence[str]) -> int:
        if isinstance(names, str):
            names = (names,)
        bits = 0
        for name in names:
            bits |= 1 << self._flag(name)
        return bits

    # -- the file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one file; what was there is replaced only when the new file is complete.

        Removed vectors are taken out of the graph first. Searches go on meanwhile.

        Raises
        ------
        ConfigError
            The file cannot be written; the old one is untouched.
        """
        self._writable()
        self._core.save(Path(path))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, dim: int | None = None, model_id: str | None = None
    ) -> SemanticIndex:
        """Read an index that `save` wrote, after every checksum of it has been verified.

        Parameters
        ----------
        dim, model_id : optional
            What the caller expects; anything else is refused.

        Raises
        ------
        CorruptFile
            The file is damaged, cut off or something else. Nothing of it was used.
        DimensionMismatch, ModelMismatch
            The file holds other vectors than expected.
        ConfigError
            The file cannot be read.
        """
        index = cls.__new__(cls)
        index._setup(SemanticIndexCore.load(Path(path), dim, model_id))
        return index


@dataclass(frozen=True, slots=True)
class CapabilityMatch:
    """A requirement that nobody has by name, and the capability that was taken for it.

    Attributes
    ----------
    requirement, capability : str
    similarity : float
        Cosine of their texts.
    """

    requirement: str
    capability: str
    similarity: float


class SemanticResolver:
    """Matches requirements to capabilities by meaning; a resolver of one `Registry`.

    The text of a capability is its name, in words; where ``describe`` knows more of it, the nearer of the two
    texts counts.

    Parameters
    ----------
    embedder : Embedder
    threshold : float
        Least cosine of a match, above 0 and at most 1. It depends on the embedder: similarities of one say
        nothing about those of another.
    limit : int
        Most capabilities that one requirement is matched to.
    describe : callable, optional
        What is known of a capability besides its name; asked once, when the capability is first seen.

    Examples
    --------
    >>> from pandacore.models import HashingEmbedder
    >>> from pandacore.registry import Registry
    >>> registry = Registry(resolver=SemanticResolver(HashingEmbedder(), threshold=0.3))
    >>> _ = registry.announce(bytes(32), ["web.search"])
    >>> registry.assemble(["searching the web"]).complete
    True
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        threshold: float,
        limit: int = 4,
        describe: Callable[[str], str] | None = None,
    ) -> None:
        if not 0 < threshold <= 1:
            raise ConfigError(
                f"threshold is {threshold}", where="SemanticResolver", hint="use a cosine above 0, at most 1"
            )
        self._embedder = embedder
        self.threshold = float(threshold)
        self._limit = _whole("limit", limit, 1)
        self._describe = describe
        self._registry: Registry | None = None
        self._seen: list[str] = []
        # Two places for each capability: its name, and its name with what is known of it.
        self._index = SemanticIndex(embedder.dimension, model_id=embedder.model_id, flags=())
        self._asked: dict[str, NDArray[np.float32]] = {}

    def resolve(self, requirement: str, registry: Registry) -> tuple[str, ...]:
        """The capabilities that match, nearest first.

        An embedder that only works asynchronously is not asked here: `learn` the requirement first.
        """
        return tuple(match.capability for match in self.matches(requirement, registry))

    def matches(self, requirement: str, registry: Registry) -> tuple[CapabilityMatch, ...]:
        """`resolve` with similarities: capabilities that somebody has now."""
        at_once = getattr(self._embedder, "vectors", None)
        if at_once is not None:
            texts = self._unknown([requirement], registry)
            self._keep(texts, at_once(list(texts.values())) if texts else ())
        vector = self._asked.get(requirement)
        if vector is None or not vector.any():
            return ()
        best: dict[str, float] = {}

        def wanted(place: int, score: float) -> bool:
            name = self._seen[place // 2]
            if name in best or name == requirement or not registry.available(name):
                return False
            best[name] = score
            return True

        nearest(self._index, vector, self._limit, wanted, threshold=self.threshold)
        return tuple(CapabilityMatch(requirement, name, score) for name, score in best.items())

    async def learn(self, requirements: Iterable[str], registry: Registry) -> None:
        """Embed the requirements and the capabilities that are new, so that `resolve` knows them."""
        texts = self._unknown(requirements, registry)
        keys = list(texts)
        for start in range(0, len(keys), _LEARNT_AT_ONCE):
            part = {key: texts[key] for key in keys[start : start + _LEARNT_AT_ONCE]}
            self._keep(part, await self._embedder.embed(list(part.values())))

    def _unknown(self, requirements: Iterable[str], registry: Registry) -> dict[str | int, str]:
        """Texts that have no vector yet: those of requirements, and of capabilities by their place."""
        if self._registry is not registry:
            if self._registry is not None:
                raise StateError(
                    "the resolver serves another registry",
                    where="SemanticResolver",
                    hint="make one for each registry",
                )
            self._registry = registry
        texts: dict[str | int, str] = {}
        names = registry.capabilities()
        for at in range(len(self._seen), len(names)):
            said = self._describe(names[at]) if self._describe is not None else ""
            texts[2 * at] = spoken(names[at])
            if said:
                texts[2 * at + 1] = f"{texts[2 * at]}: {said}"
        self._seen = names
        for requirement in requirements:
            if requirement not in self._asked:
                texts[requirement] = spoken(requirement)
        return texts

    def _keep(self, texts: Iterable[str | int], vectors: Iterable[NDArray[np.float32]]) -> None:
        for key, vector in zip(texts, vectors, strict=True):
            if isinstance(key, str):
                while len(self._asked) >= _MAX_ASKED:
                    del self._asked[next(iter(self._asked))]
                self._asked[key] = vector
            elif vector.any():
                self._index.add([key], vector[None, :], replace=True)


def spoken(name: str) -> str:
    """A capability's name in words: ``search.web`` is *search web*."""
    return " ".join(name.replace(".", " ").replace("_", " ").replace("-", " ").split())


def nearest(
    index: SemanticIndex,
    vector: NDArray[np.float32],
    k: int,
    wanted: Callable[[int, float], bool],
    *,
    threshold: float | None = None,
) -> None:
    """Offer ids and scores, best first, until ``k`` of them were wanted or none is left."""
    seen, taken, depth = 0, 0, k
    while taken < k:
        found = index.search(vector, depth, threshold=threshold)
        for item, score in zip(found.ids[seen:].tolist(), found.scores[seen:].tolist(), strict=True):
            taken += wanted(item, score)
            if taken == k:
                return
        if len(found) < depth:
            return
        seen, depth = depth, 4 * depth


def _whole(name: str, value: object, least: int = 0) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not least <= int(value) <= _MAX_ID
    ):
        raise ConfigError(
            f"{name} is {value!r}", where="SemanticIndex", hint=f"pass a whole number, {least} or more"
        )
    return int(value)


def _ids(ids: ArrayLike) -> NDArray[np.uint64]:
    found = np.asarray(ids)
    if found.ndim == 1 and found.size == 0:
        return np.empty(0, dtype=np.uint64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ShapeError(
            f"ids have dtype {found.dtype} and {found.ndim} dimensions",
            where="SemanticIndex",
            hint="pass a one-dimensional array of whole numbers",
        )
    if found.dtype.kind == "i" and int(found.min()) < 0:
        raise ConfigError(
            f"the id {found.min()} is negative", where="SemanticIndex", hint="use 0 to 2**63 - 1"
        )
    if found.dtype.kind == "u" and int(found.max()) > _MAX_ID:
        raise ConfigError(
            f"the id {found.max()} is too large", where="SemanticIndex", hint="use 0 to 2**63 - 1"
        )
    return np.ascontiguousarray(found, dtype=np.uint64)


def _floats(values: ArrayLike, name: str) -> NDArray[np.float32]:
    found = np.asarray(values)
    if found.dtype == np.float32 and found.flags.c_contiguous:
        return cast("NDArray[np.float32]", found)
    if found.dtype.kind not in "fiu":
        raise ShapeError(
            f"{name} have dtype {found.dtype}", where="SemanticIndex", hint="pass an array of float32"
        )
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused with its row
        return np.ascontiguousarray(found, dtype=np.float32)


def _ready(values: ArrayLike) -> TypeGuard[NDArray[np.float32]]:
    return type(values) is np.ndarray and values.dtype == np.float32 and values.flags.c_contiguous


def _matrix(values: ArrayLike, name: str) -> NDArray[np.float32]:
    found = _floats(values, name)
    if found.ndim != 2:
        raise ShapeError(
            f"{name} have {found.ndim} dimensions, not 2",
            where="SemanticIndex",
            hint="pass one row for each",
        )
    return found
