"""``pandacore agents``: the agents of a collective."""

from __future__ import annotations

import typer

from pandacore.cli.hosts import HOST, SEED

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def agents(
    *,
    host: str | None = HOST,
    seed: list[str] = SEED,
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line."),
) -> None:
    """List the agents of a collective."""
    from pandacore.bench.text import columns
    from pandacore.cli.hosts import rows
    from pandacore.cli.output import clean, json_line, say
    from pandacore.cli.runs import blocking

    found = blocking(rows("agents", host, seed))
    if as_json:
        for row in found:
            json_line(row)
        return
    if not found:
        say("no agents yet")
        return
    table = [
        [
            clean(row["name"]),
            clean(", ".join(row["capabilities"]))[:50],
            f"{row['load']}/{row['concurrency']}",
            clean(row["endpoint"]),
            f"...{row['did'][-8:]}",
            clean(row["description"])[:50],
        ]
        for row in found
    ]
    say(columns(["agent", "capabilities", "load", "served at", "id", "says of itself"], table, right=(2,)))
