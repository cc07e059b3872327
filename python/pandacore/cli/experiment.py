"""``pandacore experiment NAME``."""

from __future__ import annotations

from pathlib import Path

import typer

from pandacore.bench.text import columns
from pandacore.cli.bench import extra_options
from pandacore.cli.output import clean, json_line, note, say
from pandacore.experiments import EXPERIMENTS

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def experiment(
    context: typer.Context,
    name: str = typer.Argument("", metavar="NAME", help="The study; without it, they are listed."),
    *,
    out: Path | None = typer.Option(None, "--out", metavar="DIR", help="Save rows, and a plot with [viz]."),
    seed: int = typer.Option(42, "--seed", help="Seed of everything random."),
    quick: bool = typer.Option(False, "--quick", help="Small sizes, to try the path."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per figure."),
) -> None:
    """Run a seeded study."""
    if not name:
        if as_json:
            for study, (_, summary) in sorted(EXPERIMENTS.items()):
                json_line({"experiment": study, "summary": summary})
        elif EXPERIMENTS:
            say(
                columns(
                    ("experiment", "what it studies"), [(n, s) for n, (_, s) in sorted(EXPERIMENTS.items())]
                )
            )
        else:
            say("no experiments in this version")
        return
    from pandacore.experiments.frame import Row, run_experiment, save, table

    def show(row: Row) -> None:
        if as_json:
            json_line(row.as_json())

    rows = run_experiment(
        name, quick=quick, seed=seed, options=extra_options(context.args), report=show, note=note
    )
    if not as_json:
        say(clean(table(rows)))
    if out is not None:
        files, missing = save(name, rows, out)
        for file in files:
            note(f"wrote {file}")
        if missing:
            note(missing)
