"""Evaluations on public benchmarks, with their official scores."""

from __future__ import annotations

from pandacore.evals.hotpotqa import Progress, Report, Row, evaluate, load_rows
from pandacore.evals.scoring import (
    Score,
    answer_score,
    exact_match,
    joint_score,
    normalize_answer,
    support_score,
)

__all__ = [
    "Progress",
    "Report",
    "Row",
    "Score",
    "answer_score",
    "evaluate",
    "exact_match",
    "joint_score",
    "load_rows",
    "normalize_answer",
    "support_score",
]
