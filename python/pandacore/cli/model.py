"""``pandacore model``: serve a model over gRPC, and manage local weights."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pandacore.cli.output import Exit, clean, json_line, note, say, uses_terminal
from pandacore.config import load
from pandacore.errors import ConfigError, ModelNotFound

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


@app.command(name="list")
def list_models(as_json: bool = typer.Option(False, "--json", help="One JSON object per model.")) -> None:
    """List the models in the cache, and the known ones that could be fetched."""
    from pandacore.bench.text import columns
    from pandacore.models import catalog

    here = catalog.installed(cache=_cache())
    names = {model.name for model in here}
    absent = [model for model in catalog.known() if model.name not in names]
    if as_json:
        for model in here:
            json_line({"installed": True, **catalog.as_json(model)})
        for missing in absent:
            json_line({"installed": False, **catalog.as_json(missing)})
        return
    rows = [(m.name, m.kind, _megabytes(m.size), str(m.path)) for m in here]
    rows += [(m.name, m.kind, _megabytes(m.size), f"not fetched; {m.title}") for m in absent]
    say(clean(columns(("name", "kind", "size", "where"), rows, right={2})))


@app.command()
def get(
    source: str = typer.Argument(..., metavar="NAME|FILE|URL", help="A known model, or a file of your own."),
    *,
    sha256: str | None = typer.Option(None, "--sha256", help="What the file must have; a URL needs it."),
    name: str | None = typer.Option(None, "--name", help="Name of a file or URL in the cache."),
    force: bool = typer.Option(False, "--force", help="Fetch again even if it is there."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Fetch a model into the cache; it is kept only if its size and sha256 are right."""
    from pandacore.models import catalog

    progress = _Progress()
    known = {model.name for model in catalog.known()}
    is_own = "://" in source or Path(source).expanduser().exists()
    try:
        if source in known or not is_own:
            if sha256 is not None or name is not None:
                raise ConfigError(
                    f"{source!r} is pinned already",
                    where="--sha256, --name",
                    hint="leave them out, or give a file",
                )
            found = catalog.fetch(source, cache=_cache(), progress=progress, force=force)
        else:
            found = catalog.add(source, sha256=sha256, name=name, cache=_cache(), progress=progress)
    finally:
        progress.end()
    if as_json:
        json_line(catalog.as_json(found))
    else:
        say(f"{found.name}  {_megabytes(found.size)}  {found.path}")
        say(f"use it with --model llama:{found.name}" if found.kind == "chat" else f"kind: {found.kind}")


@app.command()
def rm(name: str = typer.Argument(..., metavar="NAME", help="A model in the cache.")) -> None:
    """Delete a model from the cache."""
    from pandacore.models import catalog

    if not catalog.remove(name, cache=_cache()):
        raise ModelNotFound(
            f"model {name!r} is not in the cache",
            where="model rm",
            hint="`pandacore model list` shows what is",
        )
    say(f"removed {name}")


def _cache() -> Path | None:
    """The cache directory if the settings name one; otherwise the catalogue decides."""
    settings = load()
    return settings.paths.cache_dir if settings.origin("paths.cache_dir").source != "default" else None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class _Progress:
    """Progress on stderr: one changing line on a terminal, otherwise a line for every tenth."""

    def __init__(self) -> None:
        self._live = uses_terminal(sys.stderr)
        self._said = -1

    def __call__(self, what: str, done: int, total: int) -> None:
        share = done / total if total else 0.0
        line = f"{share:4.0%}  {_megabytes(done)} of {_megabytes(total) if total else '?'}  {what}"
        if self._live:
            sys.stderr.write(f"\r{clean(line):<78.78}")
            sys.stderr.flush()
        elif int(share * 10) > self._said:
            self._said = int(share * 10)
            note(line)

    def end(self) -> None:
        if self._live:
            sys.stderr.write("\r" + " " * 78 + "\r")
            sys.stderr.flush()


def _run(work: Coroutine[object, object, None]) -> None:
    try:
        import uvloop  # a tenth faster, where it is installed
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)
