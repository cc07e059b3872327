"""``pandacore members``: the hosts of a collective."""

from __future__ import annotations

import typer

from pandacore.cli.hosts import HOST, SEED

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def members(
    *,
    host: str | None = HOST,
    seed: list[str] = SEED,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line."),
) -> None:
    """List the hosts of a collective."""
    from pandacore.bench.text import columns
    from pandacore.cli.hosts import rows
    from pandacore.cli.output import clean, json_line, say
    from pandacore.cli.runs import blocking

    found = blocking(rows("members", host, seed))
    if as_json:
        for row in found:
            json_line(row)
        return
    table = [
        [
            row["did"],
            row["state"],
            str(row["agents"]),
            clean(", ".join(row["addresses"])),
            "this one" * row["self"],
        ]
        for row in found
    ]
    say(columns(["host", "state", "agents", "address", ""], table, right=(2,)))
