"""``pandacore answer``: tell a run what one of its agents asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import typer

from pandacore import errors
from pandacore.cli.log import JOURNAL, RUN, place

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)

CALL_S: Final = 10.0
"""Seconds that the process of a run has to take an answer."""


@app.command()
def answer(
    run: str = RUN,
    question: str = typer.Argument(..., metavar="ID", help="The question, as `pandacore show RUN` lists it."),
    value: str = typer.Argument(..., metavar="VALUE", help="JSON; any other text stands for itself."),
    *,
    journal: Path | None = JOURNAL,
) -> None:
    """Answer what an agent of a run asked.

    A run in progress goes on at once. If its process is gone, the answer waits in the run log for `pandacore
    resume`. The first answer to a question stands.
    """
    from pandacore.cli.output import say
    from pandacore.journal import Journal

    try:
        given: Any = json.loads(value)
    except ValueError:
        given = value
    path = place(journal)
    try:
        log = Journal(path)
    except errors.DataDirLocked as locked:
        asyncio.run(_tell(path, run, question, json.dumps(given), locked))
        say(f"run {run} goes on")
        return
    with log:
        asyncio.run(_write(log, run, question, given))
    say(f"written down; pandacore resume {run}")


async def _tell(path: Path, run: str, question: str, value: str, locked: errors.DataDirLocked) -> None:
    """Answer in the process that owns the journal."""
    from pandacore.journal import Journal
    from pandacore.team.clients import Clients

    unknown: errors.PandacoreError = locked
    clients = Clients()
    try:
        for address, token in Journal.doors(path):
            try:
                await clients.at(address).answer(run, question, value, token, timeout_s=CALL_S)
            except errors.UnknownRun as error:
                unknown = error
            else:
                return
    finally:
        await clients.close()
    raise unknown


async def _write(journal: Any, run: str, question: str, value: Any) -> None:
    from pandacore.journal import Kind
    from pandacore.team.answers import check_answer
    from pandacore.team.past import open_questions, read_past

    opened = read_past(journal, run)
    if opened.finished is not None:
        raise errors.StateError(f"run {run} has ended", hint="show it with `pandacore show`")
    check_answer(open_questions(opened), opened.past.answers, question, value)
    await journal.append(run, Kind.ANSWER, {"id": question, "value": value})
