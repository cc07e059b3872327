"""What the command line prints, on any console: Unicode or ASCII, terminal or pipe, colour or not."""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TextIO

from pandacore.errors import (
    ConfigError,
    ConnectionLost,
    DuplicateId,
    InvalidName,
    InvalidPlan,
    JoinRefused,
    ModelUnavailable,
    PandacoreError,
)

__all__ = [
    "Exit",
    "clean",
    "exit_code_of",
    "fail",
    "json_line",
    "note",
    "prepare_streams",
    "report",
    "say",
    "style",
    "switches",
    "uses_terminal",
]


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


@dataclass(slots=True)
class Switches:
    """Options of the whole command, set once by ``main``."""

    debug: bool = False
    no_color: bool = False


switches = Switches()

_ASCII = {
    "\u2018": "'",
    "\u2019": "'",
    "\u201c": '"',
    "\u201d": '"',
    "\u2010": "-",
    "\u2011": "-",
    "\u2013": "-",
    "\u2014": "-",
    "\u2026": "...",
    "\u2192": "->",
    "\u2190": "<-",
    "\u2264": "<=",
    "\u2265": ">=",
    "\u00d7": "x",
    "\u00b5": "u",
    "\u03bc": "u",
    "\u00b7": ".",
    "\u2022": "*",
    "\u2713": "ok",
    "\u2717": "x",
    "\u00a0": " ",
}
# C0 and C1 controls but tab and newline, bidirectional overrides and isolates: what came from a model, a peer
# or a document must not be able to steer the terminal or to reorder what is read.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ESCAPES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")


def _to_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    bad = error.object[error.start : error.end]
    # What has no plain spelling is escaped rather than replaced by "?", so names stay tellable.
    parts = [_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode("ascii") for c in bad]
    return "".join(parts), error.end


codecs.register_error("pandacore", _to_ascii)


def prepare_streams() -> None:
    """Make stdout and stderr accept every character, whatever the console's encoding."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="pandacore")


def clean(text: str) -> str:
    """Remove what could steer a terminal: escape sequences, control characters, bidirectional overrides."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def say(text: str = "") -> None:
    """Print a line of the answer to stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _redacted(text: str) -> str:
    from pandacore.config import redact  # only now: `--help` does not need the settings

    return redact(clean(text))


def note(text: str) -> None:
    """Print a line that is not part of the answer to stderr."""
    sys.stderr.write(f"{_redacted(text)}\n")
    sys.stderr.flush()


def json_line(value: Mapping[str, object]) -> None:
    """Print one object on one line; ASCII only, so that every console and pipe carries it unchanged."""
    sys.stdout.write(json.dumps(value, ensure_ascii=True, default=str) + "\n")
    sys.stdout.flush()


def uses_terminal(stream: TextIO | None = None) -> bool:
    """Say if a person is watching: a terminal that can move its cursor."""
    stream = stream or sys.stdout
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def uses_color(stream: TextIO | None = None) -> bool:
    """Say if colour is wanted: a terminal, and neither ``--no-color`` nor ``NO_COLOR``."""
    return uses_terminal(stream) and not switches.no_color and not os.environ.get("NO_COLOR")


_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def style(text: str, name: str, stream: TextIO | None = None) -> str:
    """Return the text in a style, or unchanged where colour is not wanted."""
    return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if uses_color(stream) else text


def exit_code_of(error: BaseException) -> Exit:
    """Return the exit code that an error stands for."""
    match error:
        case ConnectionLost() | ModelUnavailable() | JoinRefused():
            return Exit.UNREACHABLE
        case ConfigError() | InvalidName() | InvalidPlan() | DuplicateId():
            return Exit.USAGE
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
    return Exit.FAILED


def exit_code_of_kind(kind: str) -> Exit:
    """Return the exit code of a failure that is known only by the name of its error class."""
    from pandacore import errors

    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, ConnectionLost | ModelUnavailable | JoinRefused):
        return Exit.UNREACHABLE
    return Exit.FAILED


def fail(message: str, hint: str | None = None) -> None:
    """Print an error and its one next action to stderr."""
    sys.stderr.write(f"{style('error:', 'red', sys.stderr)} {_redacted(message)}\n")
    if hint:
        sys.stderr.write(f"{style('hint:', 'cyan', sys.stderr)} {_redacted(hint)}\n")
    sys.stderr.flush()


def report(error: BaseException) -> Exit:
    """Print an error as users should see it and return the exit code. ``--debug`` adds the traceback."""
    if switches.debug:
        # Locals are never shown, and secrets are cut out: a traceback is what people paste into reports.
        note("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, PandacoreError):
        fail(f"{error.where}: {error.message}" if error.where else error.message, error.hint)
        for extra in getattr(error, "__notes__", []):
            note(f"note: {extra}")
    else:
        detail = str(error)
        name = type(error).__name__
        fail(
            f"internal error: {name}: {detail}" if detail else f"internal error: {name}",
            None if switches.debug else "run it again with --debug and report what it prints",
        )
    return exit_code_of(error)
