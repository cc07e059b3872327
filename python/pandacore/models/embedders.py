"""Text to vectors: the `Embedder` interface, an offline default, and embeddings of a model server."""

from __future__ import annotations

import functools
import itertools
import math
import re
import unicodedata
import zlib
from collections import defaultdict
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

from pandacore.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pandacore.models.client import ModelClient

__all__ = ["Embedder", "HashingEmbedder", "ModelEmbedder"]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. Only vectors with the same ``model_id`` and ``dimension`` are comparable."""

    @property
    def model_id(self) -> str:
        """Names the model and everything that changes its vectors."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32, shape (len(texts), dimension); rows have length 1, or 0 for a text without content."""


_WORD: Final = re.compile(r"[^\W_]+")
_WORDS_KEPT: Final = 65_536

# Words without a topic. They get a small weight instead of none, so that a text made of nothing else still
# has a vector.
_COMMON: Final = frozenset(
    _WORD.findall(
        "a about after all also am an and any anyone are as at be because been before being but by can could "
        "did do does doing don for from get gets getting give go going got had has have having he her here "
        "him his how i if in into is isn it its just know let like ll make me more most much my need needs "
        "no not of off on one only or our out over own please put re s same see she should so some somebody "
        "someone something still such t take than that the their them then there these they thing this those "
        "through to too under up us use used using ve very want wants was way we well were what when where "
        "which while who whom why will with without would you your yours"
    )
)
# The first that fits is taken off; the number is how much of the word must be left.
_SUFFIXES: Final = (
    *((suffix, 4) for suffix in ("isations", "izations", "isation", "ization", "ations", "ation", "ments")),
    *((suffix, 4) for suffix in ("ment", "ities", "ity", "ingly", "ings")),
    *(("ing", 3), ("iers", 3), ("ier", 4), ("ies", 3), ("ers", 4), ("er", 4), ("ors", 4), ("or", 4)),
    *(("ions", 4), ("ion", 4), ("ied", 3), ("ed", 3), ("ly", 4), ("es", 3), ("s", 3), ("al", 5), ("ic", 5)),
)
_IDEA_SHARE: Final = 0.6
"""Part of the components that belongs to ideas; the rest is for words and parts of words."""
_IDEA_PLACES: Final = 3
_IDEA_WEIGHT: Final = 1.5
_SURFACE: Final = 0.7
_TRIGRAMS: Final = (0.25, 1.0)
"""Weight of a word's parts, beside the word's own: for words of the lexicon, and for others."""


def stem(word: str) -> str:
    """The word without an English ending: *deliveries*, *delivering* and *delivered* meet."""
    for suffix, least in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= least and not word.endswith("ss"):
            word = word[: -len(suffix)]
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] in "ey" else word


def content_stems(text: str) -> list[str]:
    """Stems of the words of a text that are no function words."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return [stem(word) for word in words if word not in _COMMON]


@functools.cache
def _lexicon() -> tuple[dict[str, tuple[int, ...]], NDArray[np.float32]]:
    """Ideas of each stem, and how near each idea is to each: they share words."""
    found: dict[str, set[int]] = {}
    text = files("pandacore.models").joinpath("lexicon.txt").read_text("utf-8")
    lines = [set(map(stem, _WORD.findall(line))) for line in text.splitlines() if not line.startswith("#")]
    for idea, words in enumerate(lines):
        for word in words:
            found.setdefault(word, set()).add(idea)
    near = np.eye(len(lines), dtype=np.float32)
    for word in sorted(found):
        ideas = sorted(found[word])
        for one, other in itertools.permutations(ideas, 2):
            near[one, other] += 1 / (len(ideas) * math.sqrt(len(lines[one]) * len(lines[other])))
    return {word: tuple(sorted(ideas)) for word, ideas in found.items()}, near


@functools.lru_cache(maxsize=4)
def _ideas(dimension: int) -> NDArray[np.float32]:
    """The vector of each idea, with some of those near to it."""
    near = _lexicon()[1]
    places = np.zeros((len(near), int(_IDEA_SHARE * dimension)), dtype=np.float32)
    for idea in range(len(near)):
        for turn in range(_IDEA_PLACES):
            at, sign = _place(f"{turn}k{idea}", places.shape[1])
            places[idea, at] += sign / math.sqrt(_IDEA_PLACES)
    return near @ places


@functools.lru_cache(maxsize=1 << 16)
def _place(key: str, size: int) -> tuple[int, float]:
    # CRC alone is linear; a multiply spreads its bits over position and sign.
    mixed = zlib.crc32(key.encode()) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    mixed ^= mixed >> 29
    return (mixed & 0xFFFFFFFF) % size, 1.0 if mixed >> 60 & 1 else -1.0


class HashingEmbedder:
    """A bag of words, parts of words and ideas: offline, deterministic, no weights.

    A word counts for itself, without its ending; for its parts of three letters, which find other spellings
    and other languages that write words with letters; and for the ideas it stands for. Those come from a list
    of some 450 lines of English words that belong together (*leak, pipe, tap, drain, …*), written for this
    project; ideas that share words are near to each other. Function words hardly count, and long words count
    more than short ones (a stand-in for inverse document frequency, which would need a corpus). Each feature
    goes to a few signed components by its hash, so any dimension works.

    What it is not: a model. Words outside the list are known by their letters only, and no order of words is
    seen. Use `ModelEmbedder` where that matters.

    Parameters
    ----------
    dimension : int
        Length of the vectors, 16 to 65,536. More than 512 gains nothing on short texts.

    Examples
    --------
    >>> import asyncio
    >>> vectors = asyncio.run(HashingEmbedder().embed(["a dripping tap", "call the plumber", "cook rice"]))
    >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2)
    True
    """

    def __init__(self, dimension: int = 512) -> None:
        if not 16 <= dimension <= 65_536:
            raise ConfigError(f"dimension is {dimension}", hint="use 16 to 65,536")
        self._dimension = dimension

    @property
    def model_id(self) -> str:
        return f"hashing-v2-{self._dimension}"

    @property
    def dimension(self) -> int:
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.vectors(texts)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`embed` without a coroutine: it does no I/O.

        Raises
        ------
        ConfigError
            ``texts`` is a str.
        """
        if isinstance(texts, str):
            raise ConfigError("texts is a str, not a sequence", where="embed", hint="pass [text]")
        found = np.zeros((len(texts), self._dimension), dtype=np.float32)
        ideas = _ideas(self._dimension)
        start = ideas.shape[1]
        size = self._dimension - start
        for at, text in enumerate(texts):
            row = found[at]
            surface, meant = _features(text)
            if meant:
                weights = np.array([_IDEA_WEIGHT * _damped(w) for w in meant.values()], dtype=np.float32)
                row[:start] = weights @ ideas[list(meant)]
            bins = [0.0] * size
            for feature, weight in surface.items():
                for turn in "01":
                    place, sign = _place(turn + feature, size)
                    bins[place] += sign * _SURFACE * _damped(weight) / math.sqrt(2)
            row[start:] = bins
            length = float(np.linalg.norm(row))
            if length > 0:  # all features may have cancelled each other
                row /= length
        return found


def _damped(weight: float) -> float:
    return 1 + math.log(weight) if weight > 1 else weight


def _features(text: str) -> tuple[dict[str, float], dict[int, float]]:
    """Weights of words and their parts, and of ideas."""
    lexicon = _lexicon()[0]
    surface: dict[str, float] = defaultdict(float)
    meant: dict[int, float] = defaultdict(float)
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold())[:_WORDS_KEPT]:
        if word in _COMMON:
            surface[f"w:{word}"] += 0.02
            continue
        root = stem(word)
        weight = min(1.5, 0.5 + len(word) / 8)
        surface[f"w:{root}"] += weight
        padded = f"<{word}>"
        parts = range(max(1, len(padded) - 2))
        ideas = lexicon.get(root, ())
        for start in parts:
            part = padded[start : start + 3]
            surface[f"c:{part}"] += _TRIGRAMS[not ideas] * weight / math.sqrt(len(parts))
        for idea in ideas:
            meant[idea] += 1 / math.sqrt(len(ideas))
    return surface, meant


class ModelEmbedder:
    """Embeddings of a model server, in batches.

    Parameters
    ----------
    client : ModelClient
    model_id, dimension : str, int
        As the server's list of models says; a vector of another dimension is refused.
    batch : int
        Texts in one call.
    """

    def __init__(self, client: ModelClient, *, model_id: str, dimension: int, batch: int = 64) -> None:
        if dimension < 1 or batch < 1:
            raise ConfigError(f"dimension is {dimension} and batch {batch}", hint="both must be 1 or more")
        self._client = client
        self._model_id = model_id
        self._dimension = dimension
        self._batch = batch

    @classmethod
    async def of(cls, client: ModelClient, *, model: str = "", batch: int = 64) -> ModelEmbedder:
        """Ask the server what it has: the named model, or the first that makes embeddings.

        Raises
        ------
        ConfigError
            The server has none.
        """
        for info in await client.list_models():
            if info.embeddings and model in ("", info.id):
                dimension = info.embedding_dimension
                if dimension == 0:  # not advertised: one vector tells
                    dimension = (await client.embed(["dimension"], model=info.id)).shape[1]
                return cls(client, model_id=info.id, dimension=dimension, batch=batch)
        raise ConfigError(
            f"{client.target} has no {f'model {model!r} with ' if model else ''}embeddings",
            hint="use HashingEmbedder, or serve a model that makes embeddings",
        )

    @property
    def model_id(self) -> str:
        return self._model_id

    @property
    def dimension(self) -> int:
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if isinstance(texts, str):
            raise ConfigError("texts is a str, not a sequence", where="embed", hint="pass [text]")
        found = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for start in range(0, len(texts), self._batch):
            part = list(texts[start : start + self._batch])
            vectors = await self._client.embed(part, model=self._model_id)
            if vectors.shape != (len(part), self._dimension):
                raise ShapeError(
                    f"{self._model_id} sent vectors of shape {vectors.shape}, "
                    f"not {(len(part), self._dimension)}",
                    where=self._client.target,
                    hint="re-create the embedder: the server serves another model now",
                )
            found[start : start + len(part)] = vectors
        return found
