"""The questions that studies of orchestration work on, and intervals for their scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from pandacore import demo
from pandacore.bench.frame import Option
from pandacore.evals.hotpotqa import Row, load_rows

__all__ = ["DATA", "SAMPLES", "interval", "load_questions"]

SAMPLES: Final = Path("../shared/data/hotpotqa_distractor.jsonl")
"""Where HotPotQA samples are taken from without ``--data``, if the file is there."""
DATA: Final = Option(
    "data", str, "", "HotPotQA rows as JSONL; else ../shared/data if present, else the built-in set"
)


def load_questions(data: str, limit: int = 0) -> tuple[str, list[Row]]:
    """The rows of a file, or of the samples, or the ten questions of the demo; and what to call them.

    Parameters
    ----------
    data : str
        Path; empty: as said in `DATA`.
    limit : int
        Only the first rows; 0: all.

    Raises
    ------
    ConfigError
        The file cannot be read.
    """
    path = Path(data) if data else SAMPLES
    if data or path.exists():
        return path.stem, load_rows(path, limit=limit or None)
    context = tuple((d.title, d.sentences) for d in demo.documents())
    rows = [Row(q.id, q.question, q.answer, q.type, q.supporting_facts, context) for q in demo.questions()]
    return "built-in", rows[: limit or None]


def interval(values: Sequence[float], rng: np.random.Generator, *, draws: int = 2_000) -> tuple[float, float]:
    """The 95 % bootstrap interval of a mean over rows, by percentiles of resampled means.

    Examples
    --------
    >>> interval([1.0, 1.0], np.random.default_rng(1))
    (1.0, 1.0)
    """
    sample = np.asarray(values, dtype=np.float64)
    means = sample[rng.integers(0, sample.size, (draws, sample.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
