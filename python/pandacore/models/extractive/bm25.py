"""Okapi BM25 over bags of stems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["BM25"]


class BM25:
    """Rank documents, each given as a sequence of terms, against a query.

    Parameters
    ----------
    documents : sequence of sequence of str
        The terms of each document; stop words should be gone.
    k1 : float
        Saturation of repeated terms, at least 0.
    b : float
        Length normalisation, 0 (none) to 1 (full).

    Notes
    -----
    Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the
    non-negative idf ``ln(1 + (N - n + 0.5) / (n + 0.5))``.

    Examples
    --------
    >>> index = BM25([["red", "panda"], ["grey", "wolf"]])
    >>> index.scores(["panda"])[0] > index.scores(["panda"])[1] == 0.0
    True
    """

    def __init__(self, documents: Sequence[Sequence[str]], *, k1: float = 1.2, b: float = 0.75) -> None:
        self._k1 = k1
        self._b = b
        self._counts = [Counter(document) for document in documents]
        self._lengths = [len(document) for document in documents]
        self._mean = sum(self._lengths) / len(documents) if documents else 0.0
        self._frequency: Counter[str] = Counter()
        for counts in self._counts:
            self._frequency.update(counts.keys())

    def __len__(self) -> int:
        return len(self._counts)

    def idf(self, term: str) -> float:
        """The weight of a term; a term that occurs nowhere has the highest."""
        n = self._frequency[term]
        return math.log(1 + (len(self._counts) - n + 0.5) / (n + 0.5))

    def score(self, query: Iterable[str], index: int) -> float:
        """Score one document; a term that occurs twice in the query counts twice."""
        counts = self._counts[index]
        length = self._lengths[index] / self._mean if self._mean else 0.0
        norm = self._k1 * (1 - self._b + self._b * length)
        total = 0.0
        for term in query:
            tf = counts[term]
            if tf:
                total += self.idf(term) * tf * (self._k1 + 1) / (tf + norm)
        return total

    def scores(self, query: Iterable[str]) -> list[float]:
        """Score all documents."""
        terms = list(query)
        return [self.score(terms, index) for index in range(len(self._counts))]
