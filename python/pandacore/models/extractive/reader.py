"""From a question and passages to an answer with its evidence."""

from __future__ import annotations

from dataclasses import dataclass

from pandacore.models.extractive.answer import candidates, find_span
from pandacore.models.extractive.comparison import compare, subjects
from pandacore.models.extractive.lexicon import equivalents
from pandacore.models.extractive.question import Question, analyse
from pandacore.models.extractive.retrieve import Library, folded, query_terms
from pandacore.models.extractive.text import base_title, content_stems, fold, stems

__all__ = ["Answer", "select_passages", "select_sentences", "solve"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, the sentences it rests on as (passage, sentence) positions, and a confidence, 0 to 1."""

    text: str
    evidence: tuple[tuple[int, int], ...]
    confidence: float
    kind: str


def select_passages(library: Library, question: str) -> tuple[int, ...]:
    """The one or two passages that a question needs, the question's own first."""
    asked = analyse(question)
    if asked.kind != "span":
        both = subjects(library, asked)
        if both:
            return both
    pairs = library.pairs(question)
    if pairs:
        return (pairs[0].first, pairs[0].second)
    return tuple(hit.index for hit in library.rank(question, limit=1) if hit.score > 0)


def select_sentences(
    library: Library,
    question: str,
    passages: tuple[int, ...],
    *,
    answer: str = "",
    rests_on: tuple[tuple[int, int], ...] = (),
) -> tuple[tuple[int, int], ...]:
    """The sentences that support an answer: what it rests on, and what leads there.

    Parameters
    ----------
    library : Library
        The passages.
    question : str
        The question.
    passages : tuple of int
        Positions of the passages to quote from.
    answer : str
        The answer, if there is one: a sentence that states it counts more.
    rests_on : tuple of (int, int)
        Sentences that belong to the evidence in any case.

    Returns
    -------
    tuple of (int, int)
        (passage, sentence), by passage and position; at least one a passage.
    """
    terms = query_terms(question)
    weights = {t: library.index.idf(t) for t in terms}
    total = sum(weights.values()) or 1.0
    wanted = fold(answer)
    titles = {i: fold(base_title(library.passages[i].title)) for i in passages}
    chosen: set[tuple[int, int]] = {e for e in rests_on if e[0] in passages}
    for index in passages:
        scored: list[tuple[float, int]] = []
        own = set(content_stems(library.passages[index].title))
        for position, sentence in enumerate(library.passages[index].sentences):
            here = set(stems(sentence))
            overlap = sum(
                w for t, w in weights.items() if t not in own and (t in here or equivalents(t) & here)
            )
            score = (
                _WEIGHTS["overlap"] * overlap / total
                + _WEIGHTS["lead"] * (position == 0)
                - _WEIGHTS["late"] * position
            )
            text = fold(sentence)
            if wanted and wanted in text and wanted not in ("yes", "no"):
                score += _WEIGHTS["answer"]
            if any(title and title in text for other, title in titles.items() if other != index):
                score += _WEIGHTS["bridge"]
            scored.append((score, position))
        if not scored:
            continue
        scored.sort(key=lambda item: (-item[0], item[1]))
        mine = [e for e in chosen if e[0] == index]
        if not mine:
            chosen.add((index, scored[0][1]))
        for score, position in scored[: int(_WEIGHTS["most"])]:
            if score >= _WEIGHTS["enough"]:
                chosen.add((index, position))
    return tuple(sorted(chosen))


def solve(library: Library, question: str) -> Answer | None:
    """Answer a question by quoting from passages.

    Returns
    -------
    Answer or None
        None if nothing in the passages has anything in common with the question.
    """
    asked: Question = analyse(question)
    if asked.kind != "span":
        outcome = compare(library, asked)
        if outcome is not None:
            passages = tuple(dict.fromkeys(i for i, _ in outcome.evidence))
            evidence = tuple(sorted(set(outcome.evidence)))
            if asked.kind == "shared" or not evidence:
                evidence = select_sentences(
                    library, question, passages, answer=outcome.answer, rests_on=outcome.evidence
                )
            return Answer(outcome.answer, evidence, outcome.confidence, asked.kind)
    pairs = library.pairs(question)
    subject = _only_subject(library, question)
    if subject is not None:
        pairs = []
        found = candidates(library, question, (subject,))
    elif pairs:
        found = find_span(library, question, pairs)
    else:
        single = tuple(hit.index for hit in library.rank(question, limit=1) if hit.score > 0)
        found = candidates(library, question, single)
    if not found:
        return None
    best = found[0]
    margin = best.score - found[1].score if len(found) > 1 else 0.5
    passages = next(
        ((p.first, p.second) for p in pairs[:3] if best.passage in (p.first, p.second)), (best.passage,)
    )
    evidence = select_sentences(
        library, question, passages, answer=best.text, rests_on=((best.passage, best.sentence),)
    )
    sure = (0.35 + margin) * _cover(library, question, passages)
    return Answer(best.text, evidence, max(0.05, min(0.9, sure)), asked.kind)


def _only_subject(library: Library, question: str) -> int | None:
    """The passage that answers alone: the question names its subject and asks one plain thing of it."""
    claims = library.claims(question)
    if len(claims) != 1:
        return None
    ((index, (start, _)),) = claims.items()
    before = [w for w in folded(question)[:start] if w not in _ARTICLES]
    if before and before[-1] == "of":  # "the designer of ...": somebody else is asked about
        return None
    own = set(content_stems(library.passages[index].title))
    rest = {t for t in content_stems(question) if t not in own}
    return index if len(rest) <= _WEIGHTS["plain"] else None


def _cover(library: Library, question: str, passages: tuple[int, ...]) -> float:
    """The share of the question's terms that some passages hold, rare ones counting more."""
    weights = {t: library.index.idf(t) for t in query_terms(question)}
    held = sum(w for t, w in weights.items() if any(library.strength(i, t) > 0 for i in passages))
    return held / (sum(weights.values()) or 1.0)


_ARTICLES = frozenset(("the", "a", "an"))
_WEIGHTS = {
    "overlap": 1.0,
    "lead": 0.3,
    "late": 0.02,
    "answer": 0.15,
    "bridge": 0.15,
    "most": 3,
    "enough": 0.45,
    "plain": 2,
}
