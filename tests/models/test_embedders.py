"""Embedders: the offline default, and that of a model server."""

from __future__ import annotations

import numpy as np
import pytest

from pandacore.errors import ConfigError, ShapeError
from pandacore.models import Embedder, HashingEmbedder, ModelEmbedder
from pandacore.testing import ScriptedModel

TEXTS = [
    "search the web for facts",
    "web search and browsing",
    "solve integrals and equations",
    "mathematics: equation solving",
    "translate German into French",
    "translation from French to German",
]


PANDA = [39, 40, 41, 46, 47, 48, 50, 56, 60, 61, 62, 63]


async def test_hashing_puts_texts_that_share_words_together() -> None:
    vectors = await HashingEmbedder().embed(TEXTS)
    assert (vectors.dtype, vectors.shape) == (np.dtype(np.float32), (6, 512))
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    assert similarity.argmax(axis=1).tolist() == [1, 0, 3, 2, 5, 4]


async def test_hashing_is_deterministic_and_pinned() -> None:
    first, second = HashingEmbedder(64), HashingEmbedder(64)
    assert np.array_equal(await first.embed(TEXTS), await second.embed(TEXTS))
    # A change of the features must come with a new model id, or stored vectors would be compared with others.
    vector = (await first.embed(["panda"]))[0]
    assert first.model_id == "hashing-v2-64"
    assert np.flatnonzero(vector).tolist() == PANDA
    assert (await first.embed(["a", "a b"])).shape == (2, 64)


@pytest.mark.parametrize("text", ["", "   ", "!!!", "\u200b"])
async def test_text_without_content_is_a_zero_vector(text: str) -> None:
    assert not (await HashingEmbedder().embed([text])).any()


async def test_word_order_case_and_unicode_forms() -> None:
    embed = HashingEmbedder().vectors
    upper, lower = embed(["ÉCOLE Web", "école web"])
    assert np.array_equal(upper, lower)
    nfc, nfd = embed(["é", "e\u0301"])
    assert np.array_equal(nfc, nfd)
    assert np.allclose(*embed(["dog bites man", "man bites dog"]))
    assert embed(["猫と犬", "x" * 100_000]).any(axis=1).all()


def test_hashing_knows_ideas_endings_and_spellings() -> None:
    def near(one: str, other: str) -> float:
        first, second = HashingEmbedder().vectors([one, other])
        return float(first @ second)

    assert near("the tap is dripping", "plumber") > 0.4  # no letters in common that would tell
    assert near("deliveries", "delivering") > 0.7
    assert near("Xylograf", "xylographer") > 0.3  # in no list: parts of the word
    assert abs(near("plumber", "sonnet")) < 0.2
    assert near("what would you do about it", "what about this") > 0


def test_hashing_refuses_what_it_cannot_do() -> None:
    for dimension in (0, 15, 70_000):
        with pytest.raises(ConfigError):
            HashingEmbedder(dimension)
    with pytest.raises(ConfigError):
        HashingEmbedder().vectors("text")


async def test_model_embedder_works_in_batches_and_checks_the_shape() -> None:
    async with ScriptedModel() as model:
        embedder = await ModelEmbedder.of(model.client, batch=4)
        assert isinstance(embedder, Embedder)
        assert isinstance(HashingEmbedder(), Embedder)
        assert (embedder.model_id, embedder.dimension) == ("scripted", 16)
        vectors = await embedder.embed([str(number) for number in range(10)])
        assert vectors.shape == (10, 16)
        assert np.array_equal(vectors[9], (await embedder.embed(["9"]))[0])
        assert (await embedder.embed([])).shape == (0, 16)
        wrong = ModelEmbedder(model.client, model_id="scripted", dimension=17)
        with pytest.raises(ShapeError):
            await wrong.embed(["a"])
        with pytest.raises(ConfigError, match="no model 'other'"):
            await ModelEmbedder.of(model.client, model="other")
