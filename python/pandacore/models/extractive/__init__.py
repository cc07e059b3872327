"""Question answering by quoting: deterministic rules over given passages, without a model's weights."""

from __future__ import annotations

from pandacore.models.extractive.bm25 import BM25
from pandacore.models.extractive.comparison import Comparison, compare
from pandacore.models.extractive.question import Question, analyse
from pandacore.models.extractive.reader import Answer, select_passages, select_sentences, solve
from pandacore.models.extractive.retrieve import Hit, Library, Pair
from pandacore.models.extractive.text import Passage, estimate_tokens, passages_from_text, split_sentences

__all__ = [
    "BM25",
    "Answer",
    "Comparison",
    "Hit",
    "Library",
    "Pair",
    "Passage",
    "Question",
    "analyse",
    "compare",
    "estimate_tokens",
    "passages_from_text",
    "select_passages",
    "select_sentences",
    "solve",
    "split_sentences",
]
