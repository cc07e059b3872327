"""``pandacore experiment hotpotqa``: one agent alone beside teams, by pattern, on the same questions.

Same rows, same model, same budget. The single agent retrieves by the same rules as the team's retriever and
answers in one call. Yang et al., "HotpotQA: A Dataset for Diverse, Explainable Multi-hop Question Answering"
(2018).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pandacore.bench.frame import Option
from pandacore.errors import ConfigError
from pandacore.evals.hotpotqa import Progress, Report, evaluate
from pandacore.experiments.frame import Experiment, Row
from pandacore.experiments.questions import DATA, interval, load_questions
from pandacore.task import Budget

__all__ = ["ARMS", "OPTIONS", "plot", "run"]

ARMS: Final = ("single", "star", "chain", "mesh")
"""The single agent, and the patterns."""
_SCORES: Final = ("em", "f1", "sp_em", "sp_f1", "joint_f1")
_COSTS: Final = ("wall_s", "total_tokens")

OPTIONS = (
    DATA,
    Option("model", str, "extractive", "what answers: extractive, llama:NAME, openai:MODEL or grpc://…"),
    Option("rows", int, 0, "only so many questions, 0: all"),
    Option("patterns", str, ",".join(ARMS), f"which of {', '.join(ARMS)}, separated by commas"),
    Option("tokens", int, 50_000, "token budget of a question"),
    Option("records", str, "", "folder for one line a question and arm, from which a later call goes on"),
)


def run(experiment: Experiment) -> None:
    """Answer every question once per arm; scores and costs with 95 % bootstrap intervals."""
    options: dict[str, Any] = experiment.options
    limit = options["rows"] or (10 if experiment.quick else 0)
    data, rows = load_questions(options["data"], limit)
    wanted = [name.strip() for name in options["patterns"].split(",") if name.strip()]
    for name in wanted:
        if name not in ARMS:
            raise ConfigError(f"no arm {name!r}", where="--patterns", hint=f"use {', '.join(ARMS)}")
    folder = Path(options["records"]) if options["records"] else None
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot be made: {error.strerror}", where="--records") from None
    for name in wanted:
        # A question may take minutes on a small machine: time is not what is capped here.
        budget = Budget(tokens=options["tokens"], wall_s=3_600)
        records = None if folder is None else folder / f"{name}.jsonl"

        def said(progress: Progress, name: str = name) -> None:
            if progress.done % max(progress.total // 10, 1) == 0:
                means = progress.means
                experiment.note(f"{name}: {progress.done}/{progress.total}, F1 {means['f1']:.3f}")

        report = asyncio.run(
            evaluate(
                rows,
                model=options["model"],
                pattern="star" if name == "single" else name,
                planner="single" if name == "single" else "auto",
                budget=budget,
                resume_path=records,
                progress=said,
            )
        )
        _emit(experiment, report, pattern=name, model=options["model"], data=data)


def _emit(experiment: Experiment, report: Report, **conditions: object) -> None:
    conditions |= {"rows": report.rows}
    experiment.emit("completion_rate", report.completed / report.rows, **conditions)
    for name in (*_SCORES, *_COSTS):
        values = [float(record[name]) for record in report.records]
        if name in _SCORES:  # a question without an answer counts 0
            values += [0.0] * (report.rows - len(values))
        if not values:
            experiment.emit(name, None, **conditions)
            continue
        low, high = interval(values, experiment.rng())
        experiment.emit(name, sum(values) / len(values), low=round(low, 4), high=round(high, 4), **conditions)


def plot(rows: Sequence[Row], figure: Any) -> None:
    """Bars of the scores by arm, with their intervals."""
    axes = figure.subplots()
    arms = list(dict.fromkeys(str(row.conditions["pattern"]) for row in rows))
    for place, arm in enumerate(arms):
        found = {row.metric: row for row in rows if row.conditions["pattern"] == arm}
        shown = [found[name] for name in _SCORES if name in found and found[name].value is not None]
        at = [_SCORES.index(row.metric) + 0.8 * place / len(arms) for row in shown]
        values = [row.value or 0.0 for row in shown]
        spread: tuple[list[float], list[float]] = ([], [])
        for row, value in zip(shown, values, strict=True):
            spread[0].append(value - float(str(row.conditions["low"])))
            spread[1].append(float(str(row.conditions["high"])) - value)
        axes.bar(at, values, 0.8 / len(arms), yerr=spread, capsize=2, label=arm)
    axes.set_xticks([n + 0.3 for n in range(len(_SCORES))], _SCORES)
    axes.set_ylim(0, 1)
    axes.set_ylabel("score, with 95 % interval")
    axes.legend()
