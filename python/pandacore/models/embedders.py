"""Text to vectors: the `Embedder` interface, an offline default, and embeddings of a model server."""

from __future__ import annotations

import itertools
import re
import unicodedata
import zlib
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

# The most frequent English words carry no topic. They get a small weight instead of none, so that a text
# made of nothing else still has a vector.
_COMMON: Final = frozenset(
    _WORD.findall(
        "a an and are as at be but by can do does for from had has have he her his how i if in into is it "
        "its me my no not of on or our she so that the their them then there these they this to was we were "
        "what when where which who whom why will with would you your"
    )
)


class HashingEmbedder:
    """Feature hashing of words, word pairs and parts of words: offline, deterministic, no weights.

    What it is: a bag of surface features. It finds texts that share words, stems or spellings, in any
    language that writes words with letters. What it is not: it knows no synonyms, so *car* and *automobile*
    are unrelated to it. Use `ModelEmbedder` where meaning counts.

    Features are weighted by 1 + ln(count) and by how much they tell: long words more than short ones, and
    function words hardly (a stand-in for inverse document frequency, which would need a corpus). Each feature
    is hashed to two signed coordinates, which halves the harm of a collision.

    Parameters
    ----------
    dimension : int
        Length of the vectors, 16 to 65,536.

    Examples
    --------
    >>> import asyncio
    >>> vectors = asyncio.run(HashingEmbedder().embed(["search the web", "web searching", "cook rice"]))
    >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2)
    True
    """

    def __init__(self, dimension: int = 384) -> None:
        if not 16 <= dimension <= 65_536:
            raise ConfigError(f"dimension is {dimension}", hint="use 16 to 65,536")
        self._dimension = dimension

    @property
    def model_id(self) -> str:
        return f"hashing-v1-{self._dimension}"

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
        for index, text in enumerate(texts):
            features = _features(text)
            if not features:
                continue
            codes = np.fromiter((zlib.crc32(key.encode()) for key in features), np.uint64, len(features))
            weights = np.fromiter(features.values(), np.float32, len(features))
            row = np.zeros(self._dimension, dtype=np.float32)
            for turn in (0, 1):
                # CRC alone is linear; a multiply spreads its bits over position and sign.
                mixed = (codes + np.uint64(turn * 0x9E3779B9)) * np.uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> np.uint64(29)
                signs = np.where((mixed >> np.uint64(60)) & np.uint64(1), -1.0, 1.0).astype(np.float32)
                at = ((mixed & np.uint64(0xFFFFFFFF)) % np.uint64(self._dimension)).astype(np.int64)
                np.add.at(row, at, signs * weights)
            length = float(np.linalg.norm(row))
            if length > 0:  # all features may have cancelled each other
                found[index] = row / length
        return found


def _features(text: str) -> dict[str, float]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = _WORD.findall(folded)[:_WORDS_KEPT]
    counts: dict[str, float] = {}
    telling: dict[str, float] = {}

    def add(feature: str, weight: float) -> None:
        counts[feature] = counts.get(feature, 0.0) + 1.0
        telling[feature] = weight

    for word in words:
        weight = 0.1 if word in _COMMON else min(1.5, 0.5 + len(word) / 8)
        add(f"w:{word}", weight)
        if word not in _COMMON:
            # Beginnings carry the stem and endings the inflection, so the weight falls along the word.
            for length in range(4, min(len(word), 8)):
                add(f"s:{word[:length]}", 0.45 * weight)
            padded = f"<{word}>"
            for start in range(max(1, len(padded) - 2)):
                add(f"c:{padded[start : start + 3]}", 0.4 * weight / (1 + start))
    content = [word for word in words if word not in _COMMON]
    for left, right in itertools.pairwise(content):
        add(f"p:{left} {right}", 0.5)
    return {feature: telling[feature] * (1.0 + float(np.log(count))) for feature, count in counts.items()}


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
