"""``pandacore bench NAME``."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from pandacore.bench import BENCHES
from pandacore.bench.text import columns
from pandacore.cli.output import clean, json_line, note, say
from pandacore.errors import ConfigError

__all__ = ["app", "extra_options"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def extra_options(arguments: Sequence[str]) -> dict[str, str]:
    """Read ``--name value`` and ``--name=value`` of options that only one bench or experiment knows.

    Raises
    ------
    ConfigError
        An argument is not an option, or has no value.
    """
    found: dict[str, str] = {}
    waiting = iter(arguments)
    for argument in waiting:
        if not argument.startswith("--") or argument == "--":
            raise ConfigError(
                f"unexpected argument {argument!r}", where="command line", hint="options are --name value"
            )
        name, sign, value = argument[2:].partition("=")
        if not sign:
            try:
                value = next(waiting)
            except StopIteration:
                raise ConfigError("has no value", where=argument, hint=f"write {argument} VALUE") from None
        found[name] = value
    return found


def _sizes(texts: Sequence[str]) -> list[int]:
    sizes = []
    for text in texts:
        for part in text.split(","):
            try:
                value = float(part.replace("_", ""))
            except ValueError:
                value = -1.0
            if not (1 <= value <= 1e9 and value == int(value)):
                raise ConfigError(
                    f"{part!r} is not a number of agents", where="--agents", hint="write 10000, or 1e4,1e5"
                )
            sizes.append(int(value))
    return sizes


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def bench(
    context: typer.Context,
    name: str = typer.Argument("", metavar="NAME", help="The bench; without it, they are listed."),
    *,
    agents: list[str] = typer.Option([], "--agents", metavar="N", help="Sizes to run, such as 1e4,1e5."),
    against: list[str] = typer.Option([], "--against", metavar="PEER", help="Only these peers."),
    seed: int = typer.Option(42, "--seed", help="Seed of everything random."),
    quick: bool = typer.Option(False, "--quick", help="Small sizes, to try the path."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per figure."),
) -> None:
    """Measure speed and size, beside peers."""
    if not name:
        if as_json:
            for bench_name, (_, summary) in sorted(BENCHES.items()):
                json_line({"bench": bench_name, "summary": summary})
        else:
            say(columns(("bench", "what it measures"), [(n, s) for n, (_, s) in sorted(BENCHES.items())]))
        return
    from pandacore.bench.frame import Row, machine_facts, run_bench, table

    said: set[str] = set()

    def show(row: Row) -> None:
        if as_json:
            json_line(row.as_json())
            return
        done = f"{row.metric}{'' if row.agents is None else f' at {row.agents:,}'}"
        if done not in said:  # one row per peer, but one line per figure
            said.add(done)
            note(f"measured {done}")

    rows = run_bench(
        name,
        agents=_sizes(agents),
        against=[peer for text in against for peer in text.split(",")],
        quick=quick,
        seed=seed,
        options=extra_options(context.args),
        report=show,
        note=note,
    )
    if not as_json:
        facts = machine_facts()
        say(clean(table(rows)))
        say()
        say(", ".join(f"{key} {value}" for key, value in facts.items() if value is not None))
        if quick:
            say("--quick: the path works; the figures mean little")
