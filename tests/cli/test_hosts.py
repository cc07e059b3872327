"""Hosts that are started, asked and stopped from the command line; as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CREW = """
import os
import pandacore as pc

@pc.agent(capabilities=["work"])
async def worker(task):
    '''Works.'''
    return os.getpid()

@pc.agent(capabilities=["rare"])
async def rare(task):
    return os.getpid()
"""


@contextmanager
def up(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A host process, and what it said when it was ready."""
    (folder / "crew.py").write_text(CREW)
    process = subprocess.Popen(
        [sys.executable, "-m", "pandacore.cli.main", "up", "--json", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process, json.loads(line) if line else {}
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_hosts_are_started_listed_and_told_to_leave(tmp_path: Path, pandacore: Callable[..., Any]) -> None:
    with (
        up(tmp_path, "crew:worker", "--replicas", "2") as (first, one),
        up(tmp_path, "crew.py:worker", "--standby", "crew:rare", "--seed", one["seed"]) as (second, two),
    ):
        assert (one["members"], two["members"]) == (1, 2)
        assert two["agents"] == ["worker"]
        [file] = (tmp_path / "cache" / "pandacore" / "hosts").glob(f"{one['pid']}.json")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        unclear = pandacore("agents")
        assert (unclear.code, f"{one['pid']}" in unclear.err) == (2, True)
        deadline = time.monotonic() + 10
        while len(rows := pandacore("agents", "--json", "--host", str(one["pid"])).objects) < 3:
            assert time.monotonic() < deadline
        assert {row["host"] for row in rows} == {one["did"], two["did"]}
        assert rows[0]["capabilities"] == ["work"]
        assert "worker" in pandacore("agents", "--host", two["did"]).out
        members = pandacore("members", "--json", "--host", str(two["pid"])).objects
        assert [(m["did"], m["state"], m["agents"]) for m in members] == [
            (two["did"], "alive", 1),
            (one["did"], "alive", 2),
        ]
        observed = pandacore("members", "--json", "--seed", one["seed"]).objects
        assert {m["did"] for m in observed} == {one["did"], two["did"]}
        start = time.monotonic()
        left = pandacore("leave", "--host", str(two["pid"]), "--json").objects
        assert left == [{"left": True, "pid": two["pid"], "did": two["did"]}]
        assert second.wait(5) == 0
        assert time.monotonic() - start < 5
        states = {m["did"]: m["state"] for m in pandacore("members", "--json").objects}
        assert states.pop(one["did"]) == "alive"
        assert set(states.values()) == {"left"}, "the observer left as well"
        first.send_signal(signal.SIGINT)
        start = time.monotonic()
        assert first.wait(5) == 0
        assert time.monotonic() - start < 2
    nobody = pandacore("members")
    assert nobody.code == 3
    assert "pandacore up" in nobody.err


def test_a_host_is_described_by_a_file(tmp_path: Path, pandacore: Callable[..., Any]) -> None:
    (tmp_path / "host.toml").write_text(
        'collective = "kitchen"\nkey = "host.key"\n[[agents]]\nuse = "crew:worker"\nreplicas = 2\n'
        '[[agents]]\nuse = "crew:rare"\nstandby = true\n'
    )
    dids = set()
    for _ in range(2):
        with up(tmp_path, "host.toml") as (process, said):
            assert said["agents"] == ["worker", "worker"]
            dids.add(said["did"])
            process.send_signal(signal.SIGTERM)
            start = time.monotonic()
            assert process.wait(5) == 0
            assert time.monotonic() - start < 2
    assert len(dids) == 1, "the key is kept"
    assert stat.S_IMODE((tmp_path / "host.key").stat().st_mode) == 0o600
    other = pandacore("up", "host.toml", "--seed", said["seed"].replace(said["collective"], "ab" * 32))
    assert other.code == 3
    assert "ab" * 32 in other.err
    assert said["collective"] in other.err


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("colective = 'x'", "did you mean 'collective'?"),
        ("seeds = 'x'", "list of texts"),
        ("[[agents]]\nreplicas = 1", "use"),
        ("[[agents]]\nuse = 'a'\nreplicas = 0", "1 to 100000"),
        ("bind = 3", "must be a text"),
        ("= 3", "no TOML"),
        ("key = 'bad.key'", "64 hexadecimal"),
        ("bind = 'nowhere'", "host:port"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(
    tmp_path: Path, pandacore: Callable[..., Any], text: str, word: str
) -> None:
    (tmp_path / "bad.key").write_text("zz")
    (tmp_path / "host.toml").write_text(text)
    done = pandacore("up", "host.toml")
    assert done.code == 2
    assert word in done.err


def test_a_closed_collective_lets_in_who_has_a_ticket(tmp_path: Path, pandacore: Callable[..., Any]) -> None:
    made = pandacore(
        "ticket", "a.key", "b.key", "--admission-key", "admission.key", "--collective", "kitchen", "--json"
    ).objects
    assert stat.S_IMODE((tmp_path / "admission.key").stat().st_mode) == 0o600
    first, second = (row["ticket"] for row in made)
    (tmp_path / "b.ticket").write_text(second + "\n")
    one_more = ("--admission-key", "admission.key", "--collective", "kitchen")
    plain = pandacore("ticket", made[0]["host"], *one_more)
    assert plain.out.startswith("pandacore-ticket-1:")
    with up(tmp_path, "crew:worker", "--key", "a.key", "--ticket", first) as (_, one):
        assert (one["did"], one["collective"]) == (made[0]["host"], made[0]["collective"])
        with up(tmp_path, "--key", "b.key", "--ticket", "b.ticket", "--seed", one["seed"]) as (_, two):
            assert two["members"] == 2
        for options, code, word in (
            ((), 3, "join ticket"),
            (("--ticket", second), 2, "is for did:key:"),
            (("--ticket", "missing.ticket"), 2, "cannot be read"),
        ):
            done = pandacore("up", "--key", "c.key", "--seed", one["seed"], *options)
            assert (done.code, word in done.err) == (code, True), done.err


def test_a_dead_seed_and_a_killed_host_end_in_typed_errors(
    tmp_path: Path, pandacore: Callable[..., Any]
) -> None:
    missing = pandacore("up", "no_such_module")
    assert (missing.code, "no_such_module" in missing.err) == (2, True)
    (tmp_path / "broken.py").write_text("import pandacore as pc\n\npc.agent('no keyword')\n")
    broken = pandacore("up", str(tmp_path / "broken.py"))
    assert (broken.code, "TypeError" in broken.err, "broken.py, line 3" in broken.err) == (2, True, True)
    with up(tmp_path, "crew:worker") as (process, said):
        os.kill(said["pid"], signal.SIGKILL)
        process.wait(5)
    assert pandacore("agents").code == 3
    assert not list((tmp_path / "cache" / "pandacore" / "hosts").glob("*.json")), "its file is cleared away"
