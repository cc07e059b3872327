"""The sentences that prove an answer which somebody else gave."""

from __future__ import annotations

from collections.abc import Collection

from pandacore.models.extractive.comparison import compare
from pandacore.models.extractive.question import analyse
from pandacore.models.extractive.reader import select_sentences
from pandacore.models.extractive.retrieve import Library
from pandacore.models.extractive.text import fold

__all__ = ["support"]

# Pairs differ by about 0.1 to 0.5, see `pandacore.models.extractive.hops`.
_STATED = 0.3  # what a pair gains when one of its passages states the answer
_CITED = 0.2  # ... for each of its passages that was cited


def support(
    library: Library, question: str, answer: str, cited: Collection[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """Correct and complete the sentences that were cited for an answer.

    Small models often cite a neighbour of the right sentence, or one of the two passages only. What was
    cited counts where it states the answer, and for the choice of the passages; the sentences between the
    question and the answer are found by the words and links that they share.

    Parameters
    ----------
    library : Library
        The passages.
    question : str
        The question.
    answer : str
        The answer. One that no passage states, other than yes and no, cannot be proved.
    cited : collection of (int, int)
        (passage, sentence) as given.

    Returns
    -------
    tuple of (int, int)
        (passage, sentence), by passage and position; ``cited`` itself if the answer cannot be proved.
    """
    as_given = tuple(sorted(set(cited)))
    wanted = fold(answer)
    stating = {
        (i, s)
        for i, passage in enumerate(library.passages)
        for s, sentence in enumerate(passage.sentences)
        if wanted and (wanted in fold(sentence) or wanted in fold(passage.title))
    }
    if wanted not in ("yes", "no") and not stating:
        return as_given
    asked = analyse(question)
    if asked.kind != "span":
        outcome = compare(library, asked)
        if outcome is not None and outcome.evidence:
            return tuple(sorted(set(outcome.evidence)))
    holders = {i for i, _ in stating}
    trusted = {i for i, _ in cited}
    scored = sorted(
        library.pairs(question),
        key=lambda p: (
            -(
                p.score
                + _STATED * bool({p.first, p.second} & holders)
                + _CITED * len({p.first, p.second} & trusted)
            )
        ),
    )
    if not scored:
        return as_given
    passages = (scored[0].first, scored[0].second)
    rests_on = tuple(fact for fact in as_given if fact in stating)
    if not rests_on:
        # The answer is more often where the question leads to than where it begins.
        rests_on = tuple(fact for i in reversed(passages) for fact in sorted(stating) if fact[0] == i)[:1]
    return select_sentences(library, question, passages, answer=answer, rests_on=rests_on)
