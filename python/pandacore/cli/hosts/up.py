"""``pandacore up``: a host with agents, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from pandacore.cli.output import Exit, json_line, note, say, style
from pandacore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandacore.collective import Collective

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class _Crew:
    """Agents of one place."""

    use: str
    replicas: int = 1
    standby: bool = False


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A host as its file and the options describe it."""

    collective: str | None = None
    seeds: tuple[str, ...] = ()
    bind: str = "127.0.0.1:0"
    advertise: str | None = None
    key: str | None = None
    state_dir: str | None = None
    ticket: str | None = None
    model: str | None = None
    agents: tuple[_Crew, ...] = field(default=())


_TEXTS: Final = ("collective", "bind", "advertise", "key", "state_dir", "ticket", "model")


@app.command()
def up(
    agents: list[str] = typer.Argument(
        None, metavar="[AGENTS]...", help="module, module:name, file.py, file.py:name, or a host's file.toml."
    ),
    *,
    seed: list[str] = typer.Option([], "--seed", metavar="ADDRESS", help="A host that is there already."),
    collective: str | None = typer.Option(
        None, "--collective", metavar="NAME|ID", help="Which collective; default: the seed's, or a new one."
    ),
    bind: str | None = typer.Option(None, "--bind", metavar="HOST:PORT", help="Where to listen."),
    advertise: str | None = typer.Option(
        None, "--advertise", metavar="HOST:PORT", help="Where others reach it, if elsewhere."
    ),
    key: str | None = typer.Option(
        None, "--key", metavar="FILE", help="The host's key; made if the file is not there."
    ),
    state_dir: str | None = typer.Option(
        None, "--state-dir", metavar="DIR", help="What a restarted host should know."
    ),
    ticket: str | None = typer.Option(
        None, "--ticket", metavar="TICKET|FILE", help="What lets this host in; see `pandacore ticket`."
    ),
    model: str | None = typer.Option(
        None,
        "--model",
        metavar="SPEC",
        help="What its agents use; extractive, llama:NAME, grpc://host:port...",
    ),
    standby: list[str] = typer.Option(
        [], "--standby", metavar="AGENTS", help="Agents that start only when a team lacks them."
    ),
    replicas: int = typer.Option(1, "--replicas", min=1, max=100_000, help="Agents of each marked function."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object when it is ready."),
) -> None:
    """Run a host with agents until Ctrl-C.

    Prints its address, which is the --seed of the next host.
    """
    from pandacore.cli.runs import blocking

    wanted = _Wanted()
    crews = []
    for place in agents or []:
        if place.endswith(".toml"):
            wanted = _read(Path(place))
        else:
            crews.append(_Crew(place, replicas))
    crews += [_Crew(place, replicas, standby=True) for place in standby]
    given = {
        "collective": collective,
        "bind": bind,
        "advertise": advertise,
        "key": key,
        "state_dir": state_dir,
        "ticket": ticket,
        "model": model,
    }
    wanted = replace(
        wanted,
        **{name: value for name, value in given.items() if value is not None},
        seeds=(*wanted.seeds, *seed),
        agents=(*wanted.agents, *crews),
    )
    raise typer.Exit(blocking(_run(wanted, as_json=as_json)))


async def _run(wanted: _Wanted, *, as_json: bool) -> Exit:
    from pandacore.agent import agents_of
    from pandacore.cli import runs
    from pandacore.cli.hosts import answering, key_in
    from pandacore.collective import Collective
    from pandacore.config import load

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C cancels this coroutine instead
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
    crews = [(crew, agents_of(crew.use)) for crew in wanted.agents]
    async with contextlib.AsyncExitStack() as stack:
        client = None
        if wanted.model is not None:
            client = (await stack.enter_async_context(runs.model(load(), wanted.model))).client
        joining = Collective.join(
            wanted.seeds,
            collective=wanted.collective,
            key=None if wanted.key is None else key_in(Path(wanted.key)),
            bind=wanted.bind,
            advertise=wanted.advertise,
            state_dir=wanted.state_dir,
            ticket=None if wanted.ticket is None else _ticket(wanted.ticket),
            model=client,
        )
        entering = asyncio.ensure_future(joining.__aenter__())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({entering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not entering.done():  # told to stop while it still looked for its seeds
            entering.cancel()
            await asyncio.wait({entering})
            return Exit.OK
        collective = await entering
        stack.push_async_callback(collective.close)
        for crew, found in crews:
            if crew.standby:
                collective.standby(*found, limit=crew.replicas)
            else:
                collective.add(*found, replicas=crew.replicas)
        await stack.enter_async_context(answering(collective, stop))
        _show(collective, crews, as_json=as_json)
        await stopping
        if not as_json:
            note("leaving")
    return Exit.OK


def _ticket(text: str) -> str:
    """A ticket, which may stand in a file."""
    if text.startswith("pandacore-ticket-"):
        return text
    try:
        return Path(text).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=text, hint="check the path") from error


def _show(collective: Collective, crews: list[tuple[_Crew, list[object]]], *, as_json: bool) -> None:
    import os

    node, seed = collective.node, collective.seed_address
    names = [agent.name for agent in collective.agents]
    if as_json:
        json_line(
            {
                "ready": True,
                "pid": os.getpid(),
                "did": node.did,
                "address": node.address,
                "collective": node.collective.hex(),
                "seed": seed,
                "members": collective.joined.members,
                "agents": names,
            }
        )
        return
    waiting = sum(len(found) for crew, found in crews if crew.standby)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    say(f"{style('host', 'bold')}     {node.did}")
    say(f"{style('at', 'bold')}       {node.address}, process {os.getpid()}")
    say(f"{style('hosts', 'bold')}    {collective.joined.members} in this collective")
    say(f"{style('agents', 'bold')}   {shown or 'none'}" + (f"; {waiting} on standby" if waiting else ""))
    say(f"{style('seed', 'bold')}     {seed}")
    say(f"\nanother host: pandacore up AGENTS --seed {seed}")


def _read(path: Path) -> _Wanted:
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(path), hint="check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"is no TOML: {error}", where=str(path), hint="correct the file") from error
    where = str(path)
    _known(table, (*_TEXTS, "seeds", "agents"), where)
    for name in _TEXTS:
        if not isinstance(table.get(name, ""), str):
            raise ConfigError(f"{name} must be a text", where=where, hint=f'write {name} = "..."')
    seeds, crews = table.get("seeds", []), table.get("agents", [])
    if not isinstance(seeds, list) or not all(isinstance(s, str) for s in seeds):
        raise ConfigError("seeds must be a list of texts", where=where, hint='write seeds = ["..."]')
    if not isinstance(crews, list) or not all(isinstance(c, dict) for c in crews):
        raise ConfigError("agents must be tables", where=where, hint='write [[agents]] and use = "module"')
    return _Wanted(
        **{name: table[name] for name in _TEXTS if name in table},
        seeds=tuple(seeds),
        agents=tuple(_crew(crew, f"{where}: agents[{n}]") for n, crew in enumerate(crews)),
    )


def _crew(table: Mapping[str, Any], where: str) -> _Crew:
    _known(table, ("use", "replicas", "standby"), where)
    use, replicas, standby = table.get("use"), table.get("replicas", 1), table.get("standby", False)
    if not isinstance(use, str):
        raise ConfigError("use is missing", where=where, hint='write use = "module:name"')
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 1 <= replicas <= 100_000:
        raise ConfigError("replicas must be 1 to 100000", where=where, hint="write replicas = 1")
    if not isinstance(standby, bool):
        raise ConfigError("standby must be true or false", where=where, hint="write standby = true")
    return _Crew(use, replicas, standby)


def _known(table: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    from pandacore.names import suggestions

    for name in table:
        if name not in names:
            close = suggestions(name, names)
            raise ConfigError(
                f"there is no {name!r}",
                where=where,
                hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}",
            )
