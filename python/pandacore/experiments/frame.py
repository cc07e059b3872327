"""The frame of every study: seeded, one row per figure with its conditions, a table, a plot where possible.

Unlike a benchmark, an experiment measures how something behaves (recall under attack, steps to recovery), so
the same seed gives the same rows unless a row says that it is a time.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from pandacore.bench.frame import Option, parse_options, plain
from pandacore.bench.text import columns, number
from pandacore.errors import ConfigError
from pandacore.experiments import EXPERIMENTS

__all__ = ["Entry", "Experiment", "Row", "load_experiment", "run_experiment", "save", "table", "write_json"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and the conditions it was taken under."""

    experiment: str
    metric: str
    value: float | None
    conditions: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the row as one flat object; conditions follow the fixed keys."""
        fixed: dict[str, object] = {
            "experiment": self.experiment,
            "metric": self.metric,
            "value": plain(self.value),
        }
        return fixed | {key: plain(value) for key, value in self.conditions.items() if key not in fixed}


class Experiment:
    """What an experiment module gets: the seed, its options, and `emit`.

    Attributes
    ----------
    quick : bool
        Fewer repeats and smaller sizes: the path is tried, the figures are rough.
    seed : int
        Seed of everything random; `rng` gives a fresh generator from it.
    options : dict
        The values of the module's ``OPTIONS``.
    """

    def __init__(
        self,
        name: str,
        *,
        quick: bool = False,
        seed: int = 42,
        options: Mapping[str, object] | None = None,
        report: Callable[[Row], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.quick = quick
        self.seed = seed
        self.options = dict(options or {})
        self.rows: list[Row] = []
        self._report = report
        self._note = note

    def rng(self, stream: int = 0) -> np.random.Generator:
        """Return a generator that depends only on the seed and ``stream``."""
        return np.random.default_rng([self.seed, stream])

    def emit(self, metric: str, value: float | None, **conditions: object) -> Row:
        """Report one figure; the keywords are its conditions. None means that it does not exist here."""
        row = Row(
            self.name,
            metric,
            None if value is None else float(value),
            conditions | {"seed": self.seed, "quick": self.quick},
        )
        self.rows.append(row)
        if self._report is not None:
            self._report(row)
        return row

    def note(self, text: str) -> None:
        """Tell the user something that is not a figure (it goes to stderr)."""
        if self._note is not None:
            self._note(text)


@dataclass(frozen=True, slots=True)
class Entry:
    """An experiment as its module declares it."""

    run: Callable[[Experiment], None]
    options: tuple[Option, ...]
    plot: Callable[[Sequence[Row], Any], None] | None


def load_experiment(name: str) -> Entry:
    """Import the experiment of this name.

    Raises
    ------
    ConfigError
        No experiment has this name.
    """
    if name not in EXPERIMENTS:
        raise ConfigError(
            f"there is no experiment {name!r}",
            where="experiment NAME",
            hint=f"choose one of: {', '.join(sorted(EXPERIMENTS)) or '(none in this version)'}",
        )
    module = importlib.import_module(EXPERIMENTS[name][0])
    return Entry(module.run, getattr(module, "OPTIONS", ()), getattr(module, "plot", None))


def run_experiment(
    name: str,
    *,
    quick: bool = False,
    seed: int = 42,
    options: Mapping[str, str] | None = None,
    report: Callable[[Row], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> list[Row]:
    """Run one experiment and return its rows; ``report`` sees each row as soon as it is known.

    Raises
    ------
    ConfigError
        Unknown experiment or option.
    """
    entry = load_experiment(name)
    experiment = Experiment(
        name,
        quick=quick,
        seed=seed,
        options=parse_options(name, entry.options, options or {}),
        report=report,
        note=note,
    )
    entry.run(experiment)
    return experiment.rows


def save(name: str, rows: Sequence[Row], directory: str | Path) -> tuple[list[Path], str | None]:
    """Write ``NAME.jsonl`` and, if it can be drawn, ``NAME.png``; return the files and why one is missing.

    Raises
    ------
    ConfigError
        The directory cannot be written.
    """
    target = Path(directory)
    data = target / f"{name}.jsonl"
    try:
        target.mkdir(parents=True, exist_ok=True)
        with data.open("w", encoding="utf-8") as out:
            for row in rows:
                write_json(row, out)
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror or error}", where=str(target), hint="choose another --out"
        ) from None
    entry = load_experiment(name)
    if entry.plot is None:
        return [data], f"experiment {name} has no plot"
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError:
        return [data], "no plot: matplotlib is not installed; pip install 'pandacore[viz]' brings it"
    # A bare Figure draws through Agg and needs neither pyplot nor a display.
    figure = figure_module.Figure(figsize=(8, 5), layout="constrained")
    entry.plot(rows, figure)
    picture = target / f"{name}.png"
    figure.savefig(picture, dpi=150)
    return [data, picture], None


def write_json(row: Row, out: TextIO) -> None:
    """Write a row as one line of JSON."""
    out.write(json.dumps(row.as_json(), ensure_ascii=True) + "\n")
    out.flush()


def table(rows: Sequence[Row]) -> str:
    """Return the rows as an aligned plain-text table, one column per condition."""
    keys = [
        key
        for key in dict.fromkeys(k for row in rows for k in row.conditions)
        if key not in {"seed", "quick"}
    ]
    body = [
        [row.metric, number(row.value), *(str(row.conditions.get(key, "")) for key in keys)] for row in rows
    ]
    return columns(["metric", "value", *keys], body, right={1})
