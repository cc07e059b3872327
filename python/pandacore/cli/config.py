"""``pandacore config show``."""

from __future__ import annotations

import typer

from pandacore.bench.text import columns
from pandacore.cli.output import json_line, say
from pandacore.config import load

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show the settings and where they come from."""


@app.command()
def show(
    origin: bool = typer.Option(False, "--origin", help="Also print where each value came from."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per setting."),
) -> None:
    """Print every setting; secrets are shown as ***."""
    rows = load().rows()
    if as_json:
        for name, value, source in rows:
            json_line({"name": name, "value": value, "source": source.source, "where": source.where})
        return
    shown = [(name, "-" if value is None else str(value), str(source)) for name, value, source in rows]
    if origin:
        say(columns(("setting", "value", "origin"), shown))
    else:
        say(columns(("setting", "value"), [row[:2] for row in shown]))
