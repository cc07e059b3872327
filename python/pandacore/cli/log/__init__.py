"""Commands over the run log: ``runs``, ``show``, ``answer``, ``resume`` and ``replay``."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pandacore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pandacore.journal import Journal

__all__ = ["JOURNAL", "RUN", "opened", "place", "when"]

JOURNAL = typer.Option(
    None, "--journal", metavar="FILE", help="The run log; default: the setting paths.journal."
)
RUN = typer.Argument(..., metavar="RUN", help="The run's id, as `pandacore runs` lists it.")


def place(path: Path | None) -> Path:
    """The path of an existing journal: the one given, or that of the settings.

    Raises
    ------
    ConfigError
        None is given or set, or there is no such file.
    """
    from pandacore.config import load

    path = path or load().paths.journal
    if path is None:
        raise ConfigError(
            "no journal is named", where="--journal", hint="pass --journal FILE, or set paths.journal"
        )
    if not path.exists():
        raise ConfigError("there is no such file", where=str(path), hint="check the path of the journal")
    return path


@contextlib.contextmanager
def opened(path: Path | None, *, read_only: bool = True) -> Iterator[Journal]:
    """Open an existing journal; to read also beside the process that writes it. Errors as of `place`."""
    from pandacore.journal import Journal

    with Journal(place(path), read_only=read_only) as journal:
        yield journal


def when(at: float) -> str:
    """A time for people, in their own zone."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
