"""``pandacore doctor``: looks at everything a run needs, one line each, with a fix where it is amiss."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final

import typer

from pandacore.bench.text import width
from pandacore.cli.output import Exit, clean, json_line, say, style
from pandacore.config import Settings, load, redact
from pandacore.errors import ModelUnavailable, PandacoreError

__all__ = ["Check", "Verdict", "app", "checks"]

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PING_S: Final = 5.0
MIN_FREE: Final = 2 * 1024**3  # bytes; the smallest useful local model takes about half of it
# No release of pandacore is older, so an earlier clock is wrong; certificates would look not yet valid.
_OLDEST_NOW: Final = 1_735_689_600.0  # 2025-01-01
_MAX_SKEW_S: Final = 60.0


class Verdict(StrEnum):
    """How a check came out."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. ``unreachable`` marks a failure that is a server's, not this machine's."""

    name: str
    verdict: Verdict
    detail: str
    fix: str | None = None
    unreachable: bool = False


def checks() -> Iterator[Check]:
    """Run every check in order; none raises."""
    yield from _guard("python", _python)
    yield from _guard("extension", _extension)
    yield from _guard("packages", _packages)
    settings: Settings | None = None
    try:
        settings = load()
    except PandacoreError as error:
        where = f"{error.where}: " if error.where else ""
        yield Check("settings", Verdict.FAIL, f"{where}{error.message}", error.hint)
    else:
        given = len(settings.origins)
        yield Check("settings", Verdict.PASS, f"{given} set, the rest are defaults")
    yield from _guard("loopback", _loopback)
    yield from _guard("open files", _open_files)
    yield from _guard("clock", _clock)
    yield from _guard("console", _console)
    if settings is not None:
        known = settings
        yield from _guard("cache", lambda: _cache(known.paths.cache_dir))
        yield from _guard("model", lambda: _model(known))


def _guard(name: str, check: Callable[[], Check]) -> Iterator[Check]:
    try:
        yield check()
    except PandacoreError as error:
        yield Check(
            name,
            Verdict.FAIL,
            error.message,
            error.hint,
            unreachable=isinstance(error, ModelUnavailable | ConnectionError),
        )
    except Exception as error:  # a doctor that falls ill helps nobody: the finding is the finding
        yield Check(name, Verdict.FAIL, f"the check itself failed: {type(error).__name__}: {error}")


def _python() -> Check:
    version = platform.python_version()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    about = (
        f"{platform.python_implementation()} {version}, {sysconfig.get_config_var('SOABI') or 'no ABI tag'}, "
        f"{platform.system()} {platform.machine()}{'' if gil else ', free-threaded'}"
    )
    if not gil:
        return Check("python", Verdict.WARN, about, "the extension is built for the standard build of Python")
    return Check("python", Verdict.PASS, about)


def _extension() -> Check:
    try:
        from pandacore import build
    except ImportError as error:
        return Check(
            "extension",
            Verdict.FAIL,
            f"pandacore._core cannot be loaded: {error}",
            "reinstall pandacore for this Python, or build it: maturin develop --release",
        )
    about = f"pandacore._core {build.VERSION}"
    if not build.RELEASE_BUILD:
        return Check(
            "extension",
            Verdict.WARN,
            f"{about}, development build: correct, but many times slower",
            "build it with: maturin develop --release",
        )
    return Check("extension", Verdict.PASS, f"{about}, release build")


def _packages() -> Check:
    missing = []
    found = []
    try:
        required = metadata.requires("pandacore") or []
    except metadata.PackageNotFoundError:
        return Check(
            "packages",
            Verdict.WARN,
            "pandacore runs from its sources and is not installed",
            "pip install -e .",
        )
    for line in required:
        requirement, _, marker = line.partition(";")
        if "extra" in marker:
            continue
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        if match is None:
            continue
        name = match.group()
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check(
            "packages", Verdict.FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}"
        )
    return Check("packages", Verdict.PASS, ", ".join(found))


def _loopback() -> Check:
    fix = "allow connections on 127.0.0.1: agents and models talk over it"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(PING_S)
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=PING_S) as client:
                peer, _ = server.accept()
                with peer:
                    peer.settimeout(PING_S)
                    client.sendall(b"ping")
                    if peer.recv(4) != b"ping":
                        return Check("loopback", Verdict.FAIL, "bytes do not arrive", fix)
    except OSError as error:
        return Check("loopback", Verdict.FAIL, f"no connection to 127.0.0.1: {error.strerror or error}", fix)
    return Check("loopback", Verdict.PASS, "127.0.0.1 accepts and carries a connection")


def _open_files() -> Check:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return Check("open files", Verdict.PASS, "no limit on this system")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= 4096:
        return Check(
            "open files", Verdict.PASS, f"limit {'none' if soft == resource.RLIM_INFINITY else soft}"
        )
    ceiling = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    verdict = Verdict.FAIL if soft < 256 else Verdict.WARN
    return Check("open files", verdict, f"limit {soft}, at most {ceiling}", "raise it: ulimit -n 4096")


def _clock() -> Check:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _OLDEST_NOW:
        return Check("clock", Verdict.FAIL, f"it says {shown}", "set the clock: certificates depend on it")
    with tempfile.NamedTemporaryFile() as probe:
        probe.write(b"x")
        probe.flush()
        skew = os.stat(probe.name).st_mtime - time.time()
    if abs(skew) > _MAX_SKEW_S:
        return Check(
            "clock",
            Verdict.WARN,
            f"{shown}, but files are stamped {skew:+.0f} s off",
            "synchronise the clocks",
        )
    return Check("clock", Verdict.PASS, shown)


def _console() -> Check:
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    if "utf" in encoding:
        return Check("console", Verdict.PASS, encoding)
    return Check(
        "console",
        Verdict.WARN,
        f"{encoding}: letters outside it are shown as escapes",
        "set PYTHONIOENCODING=utf-8",
    )


def _cache(folder: Path) -> Check:
    fix = "make it writable, or set PANDACORE__PATHS__CACHE_DIR"
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if existing != folder:
            # Do not leave an empty directory behind: it is enough that it could be made.
            if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
                return Check("cache", Verdict.FAIL, f"{folder} cannot be created", fix)
        else:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as probe:
                probe.write(b"x")
                probe.flush()
                os.fsync(probe.fileno())
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check("cache", Verdict.FAIL, f"{folder} is not writable: {error.strerror or error}", fix)
    about = f"{folder}, {free / 1024**3:.1f} GiB free"
    if free < MIN_FREE:
        return Check("cache", Verdict.WARN, about, "free some space before fetching models")
    return Check("cache", Verdict.PASS, about)


def _model(settings: Settings) -> Check:
    spec = settings.model.spec
    kind, _, rest = spec.partition(":")
    if spec.startswith("grpc://"):
        return _ping_grpc(rest.removeprefix("//"))
    if kind == "llama" and importlib.util.find_spec("xllamacpp") is None:
        return Check(
            "model",
            Verdict.FAIL,
            f"{spec} needs xllamacpp",
            "pip install 'pandacore[local]', or use extractive",
        )
    if kind == "openai" or settings.model.base_url:
        return _ping_http(settings)
    return Check("model", Verdict.PASS, f"{redact(spec)}, no server to reach")


def _ping_grpc(address: str) -> Check:
    import asyncio

    from pandacore.models.client import ModelClient

    target = address.partition("/")[0]

    async def ask() -> list[str]:
        client = ModelClient(target)
        try:
            return [info.id for info in await client.list_models(deadline_s=PING_S)]
        finally:
            await client.aclose()

    try:
        names = asyncio.run(ask())
    except PandacoreError as error:
        return Check(
            "model",
            Verdict.FAIL,
            f"{target}: {error.message}",
            "start it with `pandacore model serve`, or correct model.spec",
            unreachable=True,
        )
    return Check("model", Verdict.PASS, f"{target} serves {', '.join(names) or 'no models'}")


def _ping_http(settings: Settings) -> Check:
    import httpx

    base = settings.model.base_url
    if not base:
        return Check(
            "model",
            Verdict.WARN,
            f"{settings.model.spec}: no base URL is set, so nothing was asked",
            "set PANDACORE__MODEL__BASE_URL to ask that server here",
        )
    key = settings.model.api_key
    headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
    shown = redact(base)
    try:
        with contextlib.closing(httpx.Client(timeout=PING_S, headers=headers)) as client:
            status = client.get(f"{base.rstrip('/')}/models").status_code
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        return Check(
            "model",
            Verdict.FAIL,
            f"{shown} does not answer: {redact(str(error)) or type(error).__name__}",
            "start the server, or correct model.base_url",
            unreachable=True,
        )
    if status in {401, 403}:
        return Check(
            "model", Verdict.FAIL, f"{shown} refuses the key ({status})", "set PANDACORE__MODEL__API_KEY"
        )
    if status >= 500:
        return Check(
            "model", Verdict.FAIL, f"{shown} answers {status}", "look at that server", unreachable=True
        )
    if status >= 400:
        return Check(
            "model", Verdict.WARN, f"{shown} answers {status} to /models", "check that the URL ends in /v1"
        )
    return Check("model", Verdict.PASS, f"{shown} answers")


_COLORS: Final = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@app.command()
def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON object per check.")) -> None:
    """Check this installation, line by line."""
    done = []
    for check in checks():
        done.append(check)
        detail, fix = redact(clean(check.detail)), redact(clean(check.fix)) if check.fix else None
        if as_json:
            json_line({"check": check.name, "verdict": str(check.verdict), "detail": detail, "fix": fix})
            continue
        pad = " " * (12 - width(check.name))
        say(f"{style(str(check.verdict), _COLORS[check.verdict])}  {check.name}{pad}{detail}")
        if fix:
            say(f"      {' ' * 12}fix: {fix}")
    failed = [check for check in done if check.verdict is Verdict.FAIL]
    if failed:
        only_server = all(check.unreachable for check in failed)
        raise typer.Exit(Exit.UNREACHABLE if only_server else Exit.FAILED)
