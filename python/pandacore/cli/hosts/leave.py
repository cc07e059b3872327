"""``pandacore leave``: let a host say goodbye and end."""

from __future__ import annotations

import typer

from pandacore.cli.hosts import HOST

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def leave(
    *,
    host: str | None = HOST,
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Let a host of yours say goodbye and end.

    Returns when it has ended. What its agents work on is cancelled; runs of other hosts swap in others.
    """
    from pandacore.cli.hosts import rows
    from pandacore.cli.output import json_line, say
    from pandacore.cli.runs import blocking

    for row in blocking(rows("leave", host, [])):
        if as_json:
            json_line({"left": True, **row})
        else:
            say(f"host {row['did']} (process {row['pid']}) has left")
