"""The labelled routing set and what the offline embedder and plain words do on it."""

from __future__ import annotations

import asyncio
from collections import Counter

from pandacore.evals.routing import load, score, score_bm25
from pandacore.models.embedders import HashingEmbedder


def test_the_set_is_large_and_labelled() -> None:
    roles, messages = load()
    names = [role.role for role in roles]
    assert len(names) == len(set(names)) >= 100
    assert len({message.text for message in messages}) == len(messages) >= 500
    assert set(Counter(message.role for message in messages).values()) == {5}
    assert {message.role for message in messages} == set(names)


def test_the_offline_embedder_routes_far_better_than_shared_words() -> None:
    offline = asyncio.run(score(HashingEmbedder(), held_out=True))
    lexical = score_bm25(held_out=True)
    assert offline.messages == lexical.messages == 315
    # Chance is 0.01 for the first place.
    assert offline.top1 > 2 * lexical.top1 > 0.1
    assert offline.top1 <= offline.top3 <= offline.top10
