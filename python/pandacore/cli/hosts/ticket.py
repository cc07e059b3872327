"""``pandacore ticket``: what lets a host into a closed collective."""

from __future__ import annotations

import time
from pathlib import Path

import typer

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_DAY_S = 86_400


@app.command()
def ticket(
    hosts: list[str] = typer.Argument(
        ..., metavar="HOST...", help="did:key:... of a host, or its key file, made if it is not there."
    ),
    *,
    admission_key: str = typer.Option(
        ..., "--admission-key", metavar="FILE", help="The key that signs; made if the file is not there."
    ),
    collective: str = typer.Option(..., "--collective", metavar="NAME|ID", help="For which collective."),
    days: float = typer.Option(30.0, "--days", min=0.001, max=36_500, help="How long it holds."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a line."),
) -> None:
    """Let hosts into a closed collective.

    Prints a ticket for each. A host started with a ticket lets only hosts in that have one of the same
    admission key. Whoever holds that key decides who comes in; keep it off the hosts.
    """
    from pandacore.cli.hosts import key_in
    from pandacore.cli.output import json_line, say
    from pandacore.gossip import issue_ticket
    from pandacore.team.presence import collective_id
    from pandacore.trust import did_of, parse_did

    home = collective_id(collective)
    ids = [parse_did(host) if host.startswith("did:") else key_in(Path(host)).public for host in hosts]
    signer = key_in(Path(admission_key))
    not_after = int(time.time() + days * _DAY_S)
    for host in ids:
        made = issue_ticket(signer, home, host, not_after=not_after)
        if as_json:
            json_line(
                {
                    "ticket": str(made),
                    "host": did_of(host),
                    "collective": home.hex(),
                    "admission": signer.did,
                    "not_after": not_after,
                }
            )
        else:
            say(str(made))
