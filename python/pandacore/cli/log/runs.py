"""``pandacore runs``: the runs of a journal."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import replace
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
    from pandacore.cli.output import clean, json_line, say
    from pandacore.team.past import open_questions, read_past

    with opened(journal) as log:
        found = log.runs(limit=limit)
        asked = {i.run_id: open_questions(read_past(log, i.run_id)) for i in found if i.status == "open"}
    found = [replace(i, status="input_required") if asked.get(i.run_id) else i for i in found]
    if as_json:
        for info in found:
            told = [{"id": q.id, "text": q.text} for q in asked.get(info.run_id, ())]
            json_line({**dataclasses.asdict(info), "questions": told})
        return
    if not found:
        say("no runs yet")
        return
    rows = [[i.run_id, i.status, i.pattern, when(i.began), " ".join(i.text.split())[:60]] for i in found]
    say(columns(["run", "status", "pattern", "began", "task"], rows))
    for run_id, questions in asked.items():
        for question in questions:
            say(f"\nrun {run_id} asks {question.id}: {clean(' '.join(question.text.split()))}")
            say(f"  pandacore answer {run_id} {shlex.quote(question.id)} VALUE")
