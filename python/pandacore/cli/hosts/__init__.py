"""Commands about hosts. They ask a host of this user on this machine, or come in as an observer.

A host that ``pandacore up`` started answers on a loopback port. Which one, and the secret that a question
must carry, stand in a file that only its user can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from pandacore.errors import ConfigError, ConnectionLost

if TYPE_CHECKING:
    from pandacore.collective import Collective
    from pandacore.gossip import AgentEntry
    from pandacore.gossip import Member as HostMember
    from pandacore.trust import KeyPair

__all__ = [
    "HOST",
    "SEED",
    "LocalHost",
    "agent_rows",
    "answering",
    "ask",
    "key_in",
    "local_hosts",
    "member_rows",
    "rows",
]

HOST = typer.Option(None, "--host", metavar="PID|DID", help="Which host of yours; needed if several run.")
SEED = typer.Option(
    [], "--seed", metavar="ADDRESS", help="Ask the collective of this host, as an observer for a moment."
)
_ANSWER_S: Final = 10.0
_JOIN_S: Final = 10.0
_MAX_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalHost:
    """A host that ``pandacore up`` started, as its file says."""

    pid: int
    did: str
    seed: str
    port: int
    token: str
    path: Path


def _folder() -> Path:
    from pandacore.config import user_cache_dir

    return user_cache_dir() / "hosts"


def local_hosts() -> list[LocalHost]:
    """The hosts that left a file; whether they still run shows when they are asked."""
    found = []
    for path in sorted(_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads(path.read_text(encoding="utf-8"))
            found.append(
                LocalHost(facts["pid"], facts["did"], facts["seed"], facts["port"], facts["token"], path)
            )
    return found


# -- the host's side -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def answering(collective: Collective, stop: asyncio.Event) -> AsyncIterator[None]:
    """Answer the questions of this user's commands while inside."""
    token = secrets.token_hex(32)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                question = json.loads(await reader.readline())
            if not hmac.compare_digest(str(question.get("token")), token):
                return
            match question.get("ask"):
                case "members":
                    answer = member_rows(collective)
                case "agents":
                    answer = agent_rows(collective.all_agents())
                case "leave":
                    stop.set()
                    writer.write(b"{}\n")
                    await writer.drain()
                    await reader.read()  # the caller learns from the end of the connection that all is done
                    return
                case _:
                    return
            for row in answer:
                writer.write(json.dumps(row).encode() + b"\n")
                await writer.drain()
            writer.write(b"{}\n")
            await writer.drain()
        except (OSError, ValueError, TimeoutError, AttributeError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=_MAX_LINE)
    path = _folder() / f"{os.getpid()}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = {
        "pid": os.getpid(),
        "did": collective.node.did,
        "seed": collective.seed_address,
        "port": server.sockets[0].getsockname()[1],
        "token": token,
    }
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(facts, file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.close()


# -- the command's side --------------------------------------------------------------------------------


async def ask(host: str | None, question: str) -> AsyncIterator[dict[str, Any]]:
    """Ask a host of this user; answers its rows as they come.

    Raises
    ------
    ConnectionLost
        None runs.
    ConfigError
        Several run, or none of that name.
    """
    found = [(h, *streams) for h in local_hosts() if (streams := await _connect(h)) is not None]
    try:
        if not found:
            raise ConnectionLost(
                "no host of yours runs on this machine",
                hint="start one with `pandacore up`, or name any host of the collective with --seed",
            )
        if host is not None:
            named = [f for f in found if host in (str(f[0].pid), f[0].did)]
            if not named:
                raise ConfigError(f"no host {host!r} runs here", where="--host", hint=_choose(found))
        elif len(found) > 1:
            raise ConfigError(f"{len(found)} hosts of yours run", where="--host", hint=_choose(found))
        else:
            named = found
        chosen, reader, writer = named[0]
        writer.write(json.dumps({"token": chosen.token, "ask": question}).encode() + b"\n")
        await writer.drain()
        while (line := await reader.readline()) and (row := json.loads(line)):
            yield row
        if not line:
            raise ConnectionLost(
                "the host broke off its answer", where=f"process {chosen.pid}", hint="ask again"
            )
        if question == "leave":
            yield {"pid": chosen.pid, "did": chosen.did}
            await reader.read()
    finally:
        for _, _, writer in found:
            writer.close()


async def _connect(host: LocalHost) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        return await asyncio.open_connection("127.0.0.1", host.port, limit=_MAX_LINE)
    except OSError:  # it was killed, so its file is still there
        host.path.unlink(missing_ok=True)
        return None


def _choose(found: list[tuple[LocalHost, Any, Any]]) -> str:
    return "choose one of " + ", ".join(f"{h.pid} ({h.did[:20]}...)" for h, _, _ in found[:10])


async def rows(question: str, host: str | None, seeds: list[str]) -> list[dict[str, Any]]:
    """The rows about a collective: of a host of this user, or as an observer by way of ``seeds``."""
    if not seeds:
        return [row async for row in ask(host, question)]
    from pandacore.collective import Collective

    async with Collective.join(seeds, timeout_s=_JOIN_S) as observer:
        if question == "agents":
            return agent_rows(observer.all_agents())
        return [row for row in member_rows(observer) if not row["self"]]


def member_rows(collective: Collective) -> list[dict[str, Any]]:
    """The hosts of a collective, for people and programs."""
    return [_member_row(member) for member in collective.members()]


def _member_row(member: HostMember) -> dict[str, Any]:
    return {
        "did": member.did,
        "state": member.state,
        "agents": member.agents,
        "addresses": list(member.addresses),
        "epoch": member.epoch,
        "self": member.is_self,
    }


def agent_rows(entries: list[AgentEntry]) -> list[dict[str, Any]]:
    """The agents of a collective, for people and programs."""
    from pandacore.trust import did_of

    return [
        {
            "did": entry.did,
            "name": entry.name,
            "description": entry.description,
            "capabilities": list(entry.capabilities),
            "load": entry.load,
            "concurrency": entry.concurrency,
            "endpoint": entry.endpoint,
            "host": did_of(entry.host),
        }
        for entry in entries
    ]


def key_in(path: Path) -> KeyPair:
    """The key in a file, 64 hexadecimal digits; made, for its owner's eyes, if the file is not there."""
    from pandacore.trust import KeyPair

    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        seed = os.urandom(32)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(seed.hex() + "\n")
        except OSError as error:
            raise ConfigError(
                f"cannot be written: {error.strerror}", where=str(path), hint="choose another place"
            ) from error
        return KeyPair.from_seed(seed)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), hint="check the path") from error
    try:
        return KeyPair.from_seed(bytes.fromhex(text))
    except ValueError as error:
        raise ConfigError(
            "is no key: it needs 64 hexadecimal digits", where=str(path), hint="name another file"
        ) from error
