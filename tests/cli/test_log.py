"""``pandacore runs, show, resume, replay`` over a journal that real runs wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pandacore.journal import Journal

AGENTS = """
import os, signal
import pandacore as pc

@pc.agent(capabilities=["first"])
async def first(task):
    return "one"

@pc.agent(capabilities=["second"])
async def second(task):
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{task.inputs['a']} two"
"""

CRASHING = """
import pandacore as pc
import crew
plan = pc.Plan([pc.Subtask("a", "first", "x"), pc.Subtask("b", "second", "x", ["a"])])
with pc.Collective.local(journal="runs.db") as c:
    c.add(crew.first, crew.second)
    c.run(pc.Task("count to two", plan=plan, idempotent=True))
"""


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pandacore.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, str]:
    """A folder with agents and the journal of a run whose process was killed; and the run's id."""
    (tmp_path / "crew.py").write_text(AGENTS)
    done = subprocess.run(
        [sys.executable, "-c", CRASHING],
        cwd=tmp_path,
        env={**os.environ, "DIE": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    [line] = cli(tmp_path, "runs", "--journal", "runs.db", "--json").stdout.splitlines()
    info = json.loads(line)
    assert (info["status"], info["text"]) == ("open", "count to two")
    return tmp_path, info["run_id"]


@pytest.mark.slow
def test_a_crashed_run_is_listed_shown_resumed_and_replayed(crashed: tuple[Path, str]) -> None:
    folder, run = crashed
    here = ("--journal", "runs.db")
    assert "a committed, attempt 1" in cli(folder, "show", run, *here).stdout
    assert "is still open" in cli(folder, "replay", run, *here).stdout
    done = cli(folder, "resume", run, *here, "--agents", "crew", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "one two"
    replayed = json.loads(cli(folder, "replay", run, *here, "--json").stdout)
    assert replayed["same"] is True
    assert replayed["outputs"] == {"a": "one", "b": "one two"}
    assert "completed" in cli(folder, "runs", *here).stdout
    kinds = [json.loads(x)["kind"] for x in cli(folder, "show", run, *here, "--json").stdout.splitlines()]
    assert kinds[0] == "run"
    assert "resumed" in kinds
    assert kinds[-1] == "finish"
    again = cli(folder, "resume", run, *here, "--agents", "crew")
    assert again.returncode == 1
    assert "has ended: completed" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs"], "no journal is named"),
        (["runs", "--journal", "missing.db"], "there is no such file"),
        (["resume", "x", "--journal", "runs.db", "--agents", "no_such_module"], "cannot be imported"),
    ],
)
def test_wrong_uses_name_the_fix(tmp_path: Path, arguments: list[str], said: str) -> None:
    Journal(tmp_path / "runs.db").close()
    done = cli(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "hint: " in done.stderr
