"""``pandacore show``: one run of a journal."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import typer

from pandacore.cli.log import JOURNAL, RUN, opened, when

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def show(
    run: str = RUN,
    *,
    journal: Path | None = JOURNAL,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a record."),
) -> None:
    """Show what a run did, record by record."""
    from pandacore.cli.output import clean, json_line, say
    from pandacore.team.past import open_questions, read_past

    with opened(journal) as log:
        records = list(log.read(run))
        questions = open_questions(read_past(log, run))
    for record in records:
        if as_json:
            json_line({"seq": record.seq, "at": record.at, "kind": str(record.kind), "body": record.body})
        else:
            told = _told(str(record.kind), record.body)
            say(f"{record.seq:5}  {when(record.at)}  {record.kind:<10}  {told}")
    if as_json:
        return
    for question in questions:
        say(f"\nopen question {question.id}: {clean(' '.join(question.text.split()))}")
        if question.schema is not None:
            say(f"  {json.dumps(question.schema, ensure_ascii=False)}")
        say(f"  pandacore answer {run} {shlex.quote(question.id)} VALUE")


def _told(kind: str, body: Any) -> str:
    """A record in one line."""
    match kind:
        case "run":
            given = body["task"]["plan"]
            steps = "" if given is None else f": {_steps(given)}"
            return f"{body['pattern']}: {' '.join(body['task']['text'].split())[:100]}{steps}"
        case "plan":
            if body["plan"] is None:
                return f"by {body['source']}, with the task"
            return f"by {body['source']}: {_steps(body['plan'])}"
        case "checkpoint":
            return "; ".join(_changes(body)) or "no change of subtasks"
        case "spent":
            return f"{body['total_tokens']} tokens"
        case "answer":
            return f"{body['id']}: {json.dumps(body['value'], ensure_ascii=False)[:100]}"
        case "finish":
            shown = json.dumps(body["output"], ensure_ascii=False)
            failed = "; ".join(f"{f['kind']}: {f['message']}" for f in body["failures"])
            return f"{body['status']}: {(failed or shown)[:120]}"
        case _:
            return ""


def _steps(plan: Any) -> str:
    return ", ".join(f"{s['id']} {s['capability']}" for s in plan["subtasks"][:8])


def _changes(body: Any) -> list[str]:
    """What a checkpoint says of subtasks: commits, new attempts, members that left."""
    if body["full"]:
        attempts = body["state"].get("hub", {}).get("attempts", {})
        begun = [f"{subtask_id} attempt {number}" for subtask_id, number in attempts.items()]
        return [f"state of {len(body['state'])} parts", *begun]
    found = []
    for path, value in body["state"]["set"]:
        match path:
            case ["hub", "done", _]:
                found.append(f"{value['id']} committed, attempt {value['attempt']}")
            case ["hub", "attempts", subtask_id]:
                found.append(f"{subtask_id} attempt {value}")
            case ["hub", "pauses", _]:
                found.append(f"{value['id']} asks {', '.join(value['questions'])}")
            case ["hub", "evicted", peer]:
                found.append(f"{peer[:8]} left: {value}")
            case ["hub", "replans"]:
                found.append(f"replan {value}")
            case _:
                pass
    return found
