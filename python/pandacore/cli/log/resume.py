"""``pandacore resume``: take up a run that a crash left open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pandacore.agent import agents_of
from pandacore.cli.log import JOURNAL, RUN, opened
from pandacore.config import Settings, load

if TYPE_CHECKING:
    from pandacore.journal import Journal

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def resume(
    run: str = RUN,
    *,
    journal: Path | None = JOURNAL,
    agents: str = typer.Option(
        "pandacore.demo.agents", "--agents", metavar="MODULE", help="The Python module with the agents."
    ),
    model: str | None = typer.Option(
        None, "--model", metavar="SPEC", help="extractive, llama:NAME, openai:MODEL or grpc://host:port."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Take up a run that a crash left open.

    Committed subtasks are not done again.
    """
    from pandacore.cli.runs import blocking

    settings = load()
    with opened(journal, read_only=False) as log:
        raise typer.Exit(
            blocking(_resume(run, log, agents_of(agents), model=model, settings=settings, as_json=as_json))
        )


async def _resume(
    run_id: str,
    journal: Journal,
    agents: list[object],
    *,
    model: str | None,
    settings: Settings,
    as_json: bool,
) -> int:
    from pandacore.cli import runs
    from pandacore.cli.output import json_line, say
    from pandacore.collective import Collective

    async with (
        runs.model(settings, model) as handle,
        Collective.local(model=handle.client, journal=journal) as collective,
    ):
        collective.add(*agents)
        shown = runs.view(quiet=as_json)
        run = collective.resume(run_id)
        with shown:
            async for event in run.events():
                shown.event(event)
        result = await run.result()
        if as_json:
            json_line(result.to_dict())
        elif result.ok:
            say(json.dumps(result.output, ensure_ascii=False))
        return runs.exit_code(result, settings)
