"""A small world to try pandacore on: passages about the Lantern Isles, questions, and a team of agents.

The passages are our own writing about an invented country, so no model can know the answers by heart.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from pandacore.models.extractive.text import passages_from_text
from pandacore.models.types import Document

__all__ = ["DemoQuestion", "documents", "questions"]


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question, its answer, and the sentences that prove it as (title, sentence), counted from 0."""

    id: str
    question: str
    answer: str
    type: str
    supporting_facts: tuple[tuple[str, int], ...]


@lru_cache(maxsize=1)
def documents() -> tuple[Document, ...]:
    """The passages that ship with the package, one a topic, by file and position."""
    found: list[Document] = []
    folder = files(__package__) / "corpus"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".md"):
            text = entry.read_text(encoding="utf-8")
            found += [
                Document(re.sub(r"[^a-z0-9]+", "-", p.title.lower()), p.title, p.sentences)
                for p in passages_from_text(text, source=entry.name)
            ]
    return tuple(found)


@lru_cache(maxsize=1)
def questions() -> tuple[DemoQuestion, ...]:
    """The ten questions over `documents`, each of which needs two passages."""
    raw = (files(__package__) / "questions.json").read_text(encoding="utf-8")
    return tuple(
        DemoQuestion(
            item["id"],
            item["question"],
            item["answer"],
            item["type"],
            tuple((title, position) for title, position in item["supporting_facts"]),
        )
        for item in json.loads(raw)
    )
