"""``pandacore replay``: check a run's log against itself, without agents or models."""

from __future__ import annotations

from pathlib import Path

import typer

from pandacore.cli.log import JOURNAL, RUN, opened

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def replay(
    run: str = RUN,
    *,
    journal: Path | None = JOURNAL,
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Rebuild a run from its log alone, and compare.

    Every record is verified; no agent and no model is called. Exits 1 if they differ.
    """
    from pandacore.cli.output import Exit, json_line, say
    from pandacore.team.past import rebuild

    with opened(journal) as log:
        found = rebuild(log, run)
    if as_json:
        json_line(
            {
                "run_id": run,
                "records": found.records,
                "outputs": dict(found.outputs),
                "finished": found.finished,
                "same": found.same,
            }
        )
    else:
        state = (
            "is still open" if not found.finished else "ended" if found.same else "DIFFERS from its result"
        )
        say(f"run {run} {state}: {found.records} records, {len(found.outputs)} committed subtasks")
        for name, output in found.outputs.items():
            say(f"  {name}: {' '.join(str(output).split())[:100]}")
    raise typer.Exit(Exit.OK if found.same else Exit.FAILED)
