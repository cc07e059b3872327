"""Two-hop work in separate steps, so that different agents can do them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pandacore.models.extractive.answer import Candidate, candidates
from pandacore.models.extractive.question import analyse
from pandacore.models.extractive.reader import select_sentences
from pandacore.models.extractive.retrieve import Hit, Library, contains, folded, name_words
from pandacore.models.extractive.text import base_title, fold

__all__ = ["Reading", "first_hop", "read", "second_hop"]

_NAMED = 0.3  # what a pair gains when a title is the bridge; pairs differ by about 0.1 to 0.5
_STARTED = 0.1  # ... when it goes on from a passage of the first hop


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: sentences as (passage, sentence), and names that may lead on, best first."""

    facts: tuple[tuple[int, int], ...]
    names: tuple[str, ...]


def first_hop(library: Library, question: str, *, about: str = "", limit: int = 3) -> list[Hit]:
    """The passages to begin with.

    Parameters
    ----------
    library : Library
        All passages.
    question : str
        The whole question.
    about : str
        A name; if passages are about it, they come first.
    limit : int
        How many passages at most, at least 1.

    Returns
    -------
    list of Hit
        Best first, with falling scores. Empty if no passage has anything in common with the question.
    """
    order: list[int] = []
    if about:
        order += library.find(about, question)
    ranked = library.rank(question)
    useful = {hit.index for hit in ranked if hit.score > 0}
    order += [pair.first for pair in library.pairs(question)[:limit] if pair.first in useful]
    order += [hit.index for hit in ranked if hit.score > 0]
    return _numbered(order, limit)


def second_hop(
    library: Library,
    question: str,
    *,
    started: Sequence[int],
    names: Sequence[str] = (),
    limit: int = 4,
) -> list[Hit]:
    """The passages to answer from, given where the first hop began and what it found.

    Parameters
    ----------
    library : Library
        All passages.
    question : str
        The whole question.
    started : sequence of int
        The passages of the first hop.
    names : sequence of str
        Names found there, the likeliest first.
    limit : int
        How many passages at most, at least 2.
    """
    begun = set(started)
    wanted = [name_words(name) for name in names if name.strip()]
    gains = {i: _gain(title, wanted) for i, title in enumerate(library.titles)}
    scored = [
        (
            pair.score
            + max(gains[pair.first], gains[pair.second])
            + _STARTED * bool({pair.first, pair.second} & begun),
            pair,
        )
        for pair in library.pairs(question)
    ]
    scored.sort(key=lambda item: (-item[0], item[1].first, item[1].second))
    order: list[int] = []
    for _, pair in scored[:limit]:
        order += [pair.first, pair.second]
    order += list(started)
    return _numbered(order, limit)


def _gain(title: Sequence[str], names: Sequence[Sequence[str]]) -> float:
    for place, name in enumerate(names):
        if name and (tuple(title) == tuple(name) or contains(title, name) >= 0 or contains(name, title) >= 0):
            return _NAMED / (1 + place)
    return 0.0


def _numbered(order: Sequence[int], limit: int) -> list[Hit]:
    unique = list(dict.fromkeys(order))[:limit]
    return [Hit(index, round(1.0 / (1 + place), 4)) for place, index in enumerate(unique)]


def read(library: Library, question: str, *, limit: int = 3) -> Reading:
    """Read passages for what bears on a question, and for the names that lead to other passages."""
    asked = analyse(question)
    order = tuple(hit.index for hit in library.rank(question, limit=limit))
    known = folded(question)
    choices: list[list[Candidate]] = []
    for index in order if asked.kind == "span" else ():
        found = candidates(library, question, (index,), on_the_way=True)
        choices.append(
            [
                c
                for c in found
                if c.kind in ("name", "quote", "title") and contains(known, folded(c.text)) < 0
            ][:2]
        )
    stated = tuple((c.passage, c.sentence) for own in choices for c in own)
    facts = select_sentences(library, question, order, rests_on=stated)
    # Each passage's best name, then what they link to, then the second best ones.
    names = {fold(own[0].text): own[0].text for own in choices if own}
    names |= _linked(library, order, known)
    for second in (own[1].text for own in choices if len(own) > 1):
        names.setdefault(fold(second), second)
    return Reading(facts, tuple(names.values())[:5])


def _linked(library: Library, order: Sequence[int], known: Sequence[str]) -> dict[str, str]:
    """Titles of passages that others of them name and the question does not."""
    found: dict[str, str] = {}
    for target in order:
        title = base_title(library.passages[target].title)
        if contains(known, folded(title)) < 0 and any(library.links(i, target) for i in order if i != target):
            found[fold(title)] = title
    return found
