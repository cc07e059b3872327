"""``pandacore version``."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import typer

from pandacore.cli.output import json_line, say

__all__ = ["app", "facts", "one_line"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def facts() -> dict[str, object]:
    """Return the versions in use."""
    try:
        version = metadata.version("pandacore")
    except metadata.PackageNotFoundError:
        version = "unknown (not installed)"
    try:
        from pandacore import build

        core = {"version": build.VERSION, "build": "release" if build.RELEASE_BUILD else "dev"}
    except ImportError:
        core = {"version": "missing", "build": "missing"}
    return {
        "pandacore": version,
        "core": core["version"],
        "build": core["build"],
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": f"{sys.platform}-{platform.machine()}",
        "grpcio": _of("grpcio"),
        "protobuf": _of("protobuf"),
        "numpy": _of("numpy"),
    }


def _of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def one_line() -> str:
    """Return name and version, as ``--version`` prints them."""
    return f"pandacore {facts()['pandacore']}"


@app.command()
def version(as_json: bool = typer.Option(False, "--json", help="One JSON object.")) -> None:
    """Print the versions in use."""
    known = facts()
    if as_json:
        json_line(known)
        return
    say(f"pandacore {known['pandacore']} (core {known['core']}, {known['build']} build)")
    say(f"{known['implementation']} {known['python']} on {known['platform']}")
    say(f"grpcio {known['grpcio']}, protobuf {known['protobuf']}, numpy {known['numpy']}")
