"""The official HotPotQA scores, from their description.

Yang et al., "HotpotQA: A Dataset for Diverse, Explainable Multi-hop Question Answering" (2018).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Score", "answer_score", "exact_match", "joint_score", "normalize_answer", "support_score"]

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_SPECIAL = frozenset({"yes", "no", "noanswer"})


@dataclass(frozen=True, slots=True)
class Score:
    """Exact match, precision, recall and F1, each 0 to 1."""

    em: float
    precision: float
    recall: float
    f1: float


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def normalize_answer(text: str) -> str:
    """Lower-case, delete ASCII punctuation, drop articles, squeeze white space, in this order.

    Examples
    --------
    >>> normalize_answer("The U.S.  well-known Act")
    'us wellknown act'
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 if both normalise to the same string, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def answer_score(prediction: str, gold: str) -> Score:
    """Score an answer by its bag of normalised words.

    ``yes``, ``no`` and ``noanswer`` earn no partial credit.

    Examples
    --------
    >>> round(answer_score("Chief of Protocol of the US", "Chief of Protocol").f1, 2)
    0.75
    >>> answer_score("yes it is", "yes").f1
    0.0
    """
    predicted, wanted = normalize_answer(prediction), normalize_answer(gold)
    em = float(predicted == wanted)
    if predicted != wanted and (predicted in _SPECIAL or wanted in _SPECIAL):
        return Score(0.0, 0.0, 0.0, 0.0)
    predicted_words, gold_words = predicted.split(), wanted.split()
    same = sum((Counter(predicted_words) & Counter(gold_words)).values())
    if same == 0:
        return Score(em, 0.0, 0.0, 0.0)
    precision, recall = same / len(predicted_words), same / len(gold_words)
    return Score(em, precision, recall, _f1(precision, recall))


def support_score(predicted: Collection[tuple[str, int]], gold: Collection[tuple[str, int]]) -> Score:
    """Score supporting facts, given as (title, sentence index), as sets.

    Examples
    --------
    >>> support_score({("A", 0), ("B", 1)}, {("A", 0)})
    Score(em=0.0, precision=0.5, recall=1.0, f1=0.6666666666666666)
    """
    ours, wanted = set(predicted), set(gold)
    hits = len(ours & wanted)
    precision = hits / len(ours) if ours else 0.0
    recall = hits / len(wanted) if wanted else 0.0
    return Score(float(ours == wanted), precision, recall, _f1(precision, recall))


def joint_score(answer: Score, support: Score) -> Score:
    """Combine both: precision and recall multiply, exact match needs both."""
    precision = answer.precision * support.precision
    recall = answer.recall * support.recall
    return Score(answer.em * support.em, precision, recall, _f1(precision, recall))
