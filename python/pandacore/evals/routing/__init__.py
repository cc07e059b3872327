"""A labelled set for routing by meaning: which role should get this message?

105 roles with a one-line description each, as an agent would subscribe, and 525 messages, five for each role,
as people write them: most share no telling word with the description. Written for this project.

Run it as a program for the table of embedders: ``python -m pandacore.evals.routing [MODEL ...]``, where a
model is a server's, such as ``llama:all-minilm-l6-v2``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from pandacore.broker import SemanticIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pandacore.models.embedders import Embedder

__all__ = ["Message", "Role", "RoutingScore", "load", "score", "score_bm25"]


@dataclass(frozen=True, slots=True)
class Role:
    """A subscriber: ``role`` names it, ``text`` is what it subscribes with."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message and the role that should get it."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class RoutingScore:
    """Shares of messages whose role is first, or among the first three or ten; mean reciprocal rank."""

    model_id: str
    messages: int
    top1: float
    top3: float
    top10: float
    mrr: float


def load() -> tuple[list[Role], list[Message]]:
    """Read the roles, and the messages in the order of their roles."""
    here = files(__name__)

    def rows(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in here.joinpath(name).read_text("utf-8").splitlines()]

    return [Role(**row) for row in rows("roles.jsonl")], [Message(**row) for row in rows("messages.jsonl")]


async def score(embedder: Embedder, *, held_out: bool = False) -> RoutingScore:
    """Route every message to the role whose description is nearest; count how often that is the right one.

    A message without anything that the embedder knows arrives nowhere.

    Parameters
    ----------
    embedder : Embedder
    held_out : bool
        Only the last three of the five messages of each role: the first two were looked at when the settings
        of `HashingEmbedder` were chosen.
    """
    roles, messages = _part(held_out)
    index = SemanticIndex(embedder.dimension, model_id=embedder.model_id, rerank="f32")
    index.add(np.arange(len(roles)), await embedder.embed([role.text for role in roles]))
    numbers = {role.role: at for at, role in enumerate(roles)}
    ranks = np.full(len(messages), np.inf)
    for at, vector in enumerate(await embedder.embed([message.text for message in messages])):
        if vector.any():
            found = index.search(vector, len(roles), recall=1.0, rerank_depth=len(roles)).ids.tolist()
            ranks[at] = 1 + found.index(numbers[messages[at].role])
    return _summary(embedder.model_id, ranks)


def score_bm25(*, held_out: bool = False) -> RoutingScore:
    """The plain lexical baseline: BM25 over the descriptions, on stems, without function words."""
    from pandacore.models.embedders import content_stems
    from pandacore.models.extractive.bm25 import BM25

    roles, messages = _part(held_out)
    found = BM25([content_stems(role.text) for role in roles])
    ranks = np.full(len(messages), np.inf)
    for at, message in enumerate(messages):
        scores = np.asarray(found.scores(content_stems(message.text)))
        own = scores[[role.role for role in roles].index(message.role)]
        if own > 0:
            ranks[at] = (scores >= own).sum()
    return _summary("bm25", ranks)


def _part(held_out: bool) -> tuple[list[Role], list[Message]]:
    roles, messages = load()
    return roles, [message for at, message in enumerate(messages) if not held_out or at % 5 >= 2]


def _summary(model_id: str, ranks: NDArray[np.float64]) -> RoutingScore:
    return RoutingScore(
        model_id=model_id,
        messages=len(ranks),
        top1=float(np.mean(ranks <= 1)),
        top3=float(np.mean(ranks <= 3)),
        top10=float(np.mean(ranks <= 10)),
        mrr=float(np.mean(1 / ranks)),
    )
