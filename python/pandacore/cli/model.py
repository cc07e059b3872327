"""``pandacore model``: serve a model over gRPC, and manage local weights."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import typer

from pandacore.cli.output import Exit
from pandacore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Serve a model over gRPC, or manage local weights."""


def key_values(texts: Sequence[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` options.

    Raises
    ------
    ConfigError
        A text has no ``=``, or a key occurs twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"{key!r} has no value", where="--option", hint="write --option KEY=VALUE")
        if key in found:
            raise ConfigError(f"{key!r} is given twice", where="--option", hint="give it once")
        found[key] = value
    return found


@app.command()
def serve(
    *,
    backend: str = typer.Option("extractive", "--backend", help="extractive, openai, llama or scripted."),
    model: str = typer.Option(
        "", "--model", metavar="NAME", help="llama: a GGUF file or known name; openai: the model to ask for."
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on."),
    port: int = typer.Option(0, "--port", min=0, max=65535, help="Port; 0 takes a free one."),
    concurrency: int | None = typer.Option(None, "--concurrency", min=1, help="Calls that run at once."),
    waiting: int = typer.Option(256, "--waiting", min=0, help="Calls that may wait; more are refused."),
    allow_remote: bool = typer.Option(
        False, "--allow-remote", help="Allow a host that is not loopback; there is no authentication."
    ),
    option: list[str] = typer.Option([], "--option", metavar="KEY=VALUE", help="Setting of the backend."),
    log_level: str = typer.Option("warning", "--log-level", help="debug, info, warning or error."),
) -> None:
    """Serve a model over gRPC until Ctrl-C or SIGTERM, then drain.

    Prints one line of JSON with the address when it is ready. Keys are read from the environment, never from
    the command line: PANDACORE__MODEL__API_KEY, or PANDACORE__MODEL__API_KEY_FILE for a file that holds it.
    """
    from pandacore.config import suggestion
    from pandacore.models.server import build_backend
    from pandacore.models.server import serve as serve_backend

    levels = logging.getLevelNamesMapping()
    if log_level.upper() not in levels:
        near = suggestion(log_level, [name.lower() for name in levels])
        raise ConfigError(
            f"unknown level {log_level!r}",
            where="--log-level",
            hint=f"did you mean {near}?" if near else "use debug, info, warning or error",
        )
    logging.basicConfig(level=log_level.upper(), stream=sys.stderr)
    made = build_backend(backend, model=model or None, options=key_values(option))
    _run(serve_backend(made, host, port, concurrency=concurrency, waiting=waiting, allow_remote=allow_remote))
    raise typer.Exit(Exit.OK)


def _run(work: Coroutine[object, object, None]) -> None:
    try:
        import uvloop  # a tenth faster, where it is installed
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)
