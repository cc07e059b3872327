"""The labelled routing set and what the offline embedder does on it."""

from __future__ import annotations

import asyncio
from collections import Counter

from pandacore.evals.routing import load, score
from pandacore.models.embedders import HashingEmbedder


def test_the_set_is_large_and_labelled() -> None:
    roles, messages = load()
    names = [role.role for role in roles]
    assert len(names) == len(set(names)) >= 100
    assert len({message.text for message in messages}) == len(messages) >= 500
    assert set(Counter(message.role for message in messages).values()) == {5}
    assert {message.role for message in messages} == set(names)


def test_hashing_routes_better_than_chance() -> None:
    found = asyncio.run(score(HashingEmbedder(4096)))
    assert found.messages >= 500
    # Chance is 0.01 for the first place. Surface features cannot do much more: that is what the table says.
    assert found.top1 > 0.12
    assert found.top1 <= found.top3 <= found.top10
