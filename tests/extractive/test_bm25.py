"""BM25 against its formula."""

from __future__ import annotations

import math

import pytest

from pandacore.models.extractive import BM25

DOCUMENTS = [["red", "panda", "panda"], ["grey", "wolf"], ["red", "fox", "in", "snow", "red"]]


def by_hand(query: list[str], index: int, k1: float, b: float) -> float:
    mean = sum(map(len, DOCUMENTS)) / len(DOCUMENTS)
    total = 0.0
    for term in query:
        n = sum(term in d for d in DOCUMENTS)
        idf = math.log(1 + (len(DOCUMENTS) - n + 0.5) / (n + 0.5))
        tf = DOCUMENTS[index].count(term)
        if tf:
            total += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(DOCUMENTS[index]) / mean))
    return total


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.0, 0.0), (2.0, 1.0)])
@pytest.mark.parametrize("query", [["red"], ["panda", "red"], ["red", "red"], ["zebra"], []])
def test_scores_follow_the_formula(query: list[str], k1: float, b: float) -> None:
    index = BM25(DOCUMENTS, k1=k1, b=b)
    assert index.scores(query) == pytest.approx([by_hand(query, i, k1, b) for i in range(3)])


def test_rare_terms_weigh_more_and_no_weight_is_negative() -> None:
    index = BM25([["a", "x"], ["a", "y"], ["a"]])
    assert index.idf("zzz") > index.idf("x") > index.idf("a") > 0


def test_no_documents_is_no_error() -> None:
    assert BM25([]).scores(["a"]) == []
    assert BM25([[]]).scores(["a"]) == [0.0]
