"""``pandacore eval NAME``: official scores of a collective on a dataset."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pandacore.bench.text import columns
from pandacore.cli.output import Exit, clean, fail, json_line, note, say, uses_terminal
from pandacore.config import load
from pandacore.errors import ConfigError

if TYPE_CHECKING:
    from pandacore.evals import Progress, Report

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)

DATASETS = ("hotpotqa",)


@app.command(name="eval")
def evaluate(
    dataset: str = typer.Argument(..., metavar="DATASET", help="hotpotqa."),
    *,
    data: Path = typer.Option(..., "--data", metavar="FILE", help="The questions, one JSON object a line."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="Only the first N questions."),
    pattern: str = typer.Option("star", "--pattern", help="How the team works together."),
    model: str | None = typer.Option(
        None, "--model", metavar="SPEC", help="extractive, llama:NAME, openai:MODEL or grpc://host:port."
    ),
    planner: str = typer.Option("auto", "--planner", help="Who plans: auto, model or rules."),
    concurrency: int = typer.Option(1, "--concurrency", min=1, help="Questions at once."),
    out: Path | None = typer.Option(
        None, "--out", metavar="FILE", help="Append each finished question here."
    ),
    resume: bool = typer.Option(False, "--resume", help="Go on from what --out already holds."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Score a collective on a dataset.

    A question whose run fails counts 0 in every score. With --out, a stopped evaluation goes on with
    --resume.
    """
    if dataset not in DATASETS:
        raise ConfigError(
            f"there is no dataset {dataset!r}",
            where="eval DATASET",
            hint=f"choose one of: {', '.join(DATASETS)}",
        )
    if resume and out is None:
        raise ConfigError(
            "there is nothing to resume", where="--resume", hint="name the file with --out FILE"
        )
    if out is not None and not resume and out.exists() and out.stat().st_size:
        raise ConfigError(
            "exists already", where=str(out), hint="add --resume to go on with it, or choose another --out"
        )
    from pandacore.cli import runs
    from pandacore.evals import evaluate as evaluate_rows
    from pandacore.evals import load_rows

    settings = load()
    rows = load_rows(data, limit=limit)
    watch = _Watch()
    report = runs.blocking(
        evaluate_rows(
            rows,
            model=runs.handle(settings, model),
            pattern=pattern,
            planner=planner,
            concurrency=concurrency,
            budget=runs.budget(settings),
            resume_path=out,
            progress=watch,
        )
    )
    watch.end()
    if as_json:
        json_line(report.to_dict())
    else:
        _print(report)
    if report.completed < report.rows:
        failed = [str(why) for record in report.records for why in record.get("failures", ())]
        fail(
            f"{report.rows - report.completed} of {report.rows} runs failed{': ' if failed else ''}"
            f"{failed[0] if failed else ''}",
            "they count 0; repeat them with --out FILE --resume",
        )
        raise typer.Exit(Exit.FAILED)


class _Watch:
    """Progress on stderr: one changing line on a terminal, otherwise a line for every tenth."""

    def __init__(self) -> None:
        self._live = uses_terminal(sys.stderr)
        self._began = time.monotonic()
        self._said = 0
        self._first: int | None = None

    def __call__(self, progress: Progress) -> None:
        if self._first is None:
            self._first = progress.done - 1  # what was resumed took no time now
        fresh = progress.done - self._first
        left = (time.monotonic() - self._began) / fresh * (progress.total - progress.done)
        means = progress.means
        line = (
            f"{progress.done}/{progress.total}  F1 {means['f1']:.3f}  EM {means['em']:.3f}  "
            f"facts F1 {means['sp_f1']:.3f}  {left:.0f} s left"
        )
        if self._live:
            sys.stderr.write(f"\r{line:<78}")
            sys.stderr.flush()
        elif progress.done * 10 // progress.total > self._said:
            self._said = progress.done * 10 // progress.total
            note(line)

    def end(self) -> None:
        if self._live and self._first is not None:
            sys.stderr.write("\r" + " " * 78 + "\r")
            sys.stderr.flush()


def _print(report: Report) -> None:
    names = {
        "em": "EM",
        "f1": "F1",
        "sp_em": "facts EM",
        "sp_f1": "facts F1",
        "joint_em": "joint EM",
        "joint_f1": "joint F1",
    }
    groups: dict[str, Any] = {"all": report.metrics, **report.by_type}
    rows = [(clean(kind), *(f"{means.get(key, 0):.3f}" for key in names)) for kind, means in groups.items()]
    say(columns(("", *names.values()), rows, right=range(1, len(names) + 1)))
    resumed = f", {report.resumed} of them from before" if report.resumed else ""
    say(f"\n{report.completed} of {report.rows} questions completed{resumed}")
    costs = report.costs
    parts = [f"{costs['wall_s']:.2f} s"]
    if "cpu_s" in costs:
        parts.append(f"{costs['cpu_s']:.2f} s CPU")
    parts.append(f"{costs.get('total_tokens', 0):.0f} tokens")
    say(f"per question: {', '.join(parts)}")
