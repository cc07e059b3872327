"""``pandacore runs``: the runs of a journal."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from pandacore.cli.log import JOURNAL, opened, when

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def runs(
    *,
    journal: Path | None = JOURNAL,
    limit: int = typer.Option(50, "--limit", min=1, help="At most so many, newest first."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line."),
) -> None:
    """List the runs of a journal."""
    from pandacore.bench.text import columns
    from pandacore.cli.output import json_line, say

    with opened(journal) as log:
        found = log.runs(limit=limit)
    if as_json:
        for info in found:
            json_line(dataclasses.asdict(info))
        return
    if not found:
        say("no runs yet")
        return
    rows = [[i.run_id, i.status, i.pattern, when(i.began), " ".join(i.text.split())[:60]] for i in found]
    say(columns(["run", "status", "pattern", "began", "task"], rows))
