"""demo, solve and eval, end to end: real agents and a real model server over gRPC."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pandacore.cli.output import Exit

Command = Callable[..., Any]  # the fixture of conftest.py; it returns a `Done`
MODULE = [sys.executable, "-m", "pandacore.cli.main"]

WORLD = """\
# Red panda
The red panda was described by Frédéric Cuvier in 1825. It lives in the Himalayas.

# Frédéric Cuvier
Frédéric Cuvier was a French zoologist, born in Montbéliard in 1773.
"""


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "world.md").write_text(WORLD, encoding="utf-8")
    return folder


@contextmanager
def scripted(tmp_path: Path, body: str, **env: str) -> Iterator[str]:
    """A model server whose answers are made by ``body``, a function of the request; yields its spec."""
    (tmp_path / "the_script.py").write_text("import json\nimport os\n" + textwrap.dedent(body))
    with subprocess.Popen(
        [*MODULE, "model", "serve", "--backend", "scripted", "--model", "the_script:answer"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))),
            **env,
        },
    ) as server:
        try:
            assert server.stdout is not None
            yield f"grpc://{json.loads(server.stdout.readline())['address']}"
        finally:
            server.terminate()
            server.wait(timeout=20)


# -- demo


def test_demo_shows_the_team_the_plan_the_answer_and_the_evidence(pandacore: Command) -> None:
    done = pandacore("demo")
    assert done.code == Exit.OK, done.err
    assert len(set(re.findall(r"process (\d+)", done.out))) == 3, "each member of this team has its own host"
    assert str(os.getpid()) not in re.findall(r"process (\d+)", done.out)
    for words in (
        "question  ",
        "plan (by ",
        "team\n",
        "why chosen",
        "run\n",
        "answer    ",
        "  right",
        "evidence  ",
    ):
        assert words in done.out
    assert " tokens, " in done.out.splitlines()[-1]
    assert "\x1b" not in done.out


def test_demo_as_json(pandacore: Command) -> None:
    done = pandacore("demo", "--hosts", "0", "--question", "2", "--json")
    assert done.code == Exit.OK, done.err
    (row,) = done.objects
    assert row["right"] is True
    assert row["answer"] == row["expected"]
    assert row["evidence"][0].keys() >= {"title", "sentence", "text"}
    assert {member["name"] for member in row["team"]} >= {"retriever", "answerer"}
    assert all(member["why"] and member["did"].startswith("did:key:z") for member in row["team"])
    assert row["usage"]["total_tokens"] > 0
    assert row["plan"][0]["depends_on"] == []


def test_demo_answers_every_question_in_one_go(pandacore: Command) -> None:
    done = pandacore("demo", "--hosts", "0", "--all", "--json")
    assert done.code == Exit.OK, done.err
    assert len(done.objects) == len(pandacore("demo", "--list", "--json").objects) == 10
    assert sum(row["right"] for row in done.objects) >= 9


def test_demo_takes_a_question_of_your_own(pandacore: Command) -> None:
    done = pandacore("demo", "--hosts", "0", "-q", "Who directed The Glass Harbour?", "--json")
    assert done.objects[0]["answer"] == "Petra Lowell"
    assert "expected" not in done.objects[0]


def test_planner_by_rules_needs_no_planning_call(pandacore: Command) -> None:
    done = pandacore("demo", "--hosts", "0", "--planner", "rules")
    assert "plan (by user)" in done.out
    assert pandacore("demo", "--hosts", "0", "--planner", "guess").code == Exit.USAGE


def test_limits_of_the_team_come_from_the_settings(
    pandacore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pandacore.agent import Agent
    from pandacore.cli.questions import _fitted
    from pandacore.config import load
    from pandacore.demo.agents import TEAM

    own = [Agent.of(member) for member in TEAM]
    assert [_fitted(member, load()) for member in own] == own
    monkeypatch.setenv("PANDACORE__AGENTS__CONCURRENCY", "1")
    monkeypatch.setenv("PANDACORE__AGENTS__QUEUE_LIMIT", "2")
    fitted = [_fitted(member, load()) for member in own]
    assert {(member.concurrency, member.queue_limit) for member in fitted} == {(1, 2)}
    assert [member.name for member in fitted] == [member.name for member in own]
    assert pandacore("demo", "--hosts", "0", "--question", "3").code == Exit.OK


def test_settings_of_a_file_reach_the_model_server(
    pandacore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    # Nothing listens there; the address in the error shows that the server was told.
    (tmp_path / "pandacore.toml").write_text(
        "[model]\nspec = 'openai:m'\nbase_url = 'http://127.0.0.1:9/v1'\nretries = 0\n"
    )
    done = pandacore("demo", "--hosts", "0")
    assert done.code == Exit.UNREACHABLE, done.err
    assert "127.0.0.1:9" in done.err


# -- solve


def test_solve_answers_from_own_files(pandacore: Command, docs: Path) -> None:
    done = pandacore(
        "solve", "Where was the zoologist who described the red panda born?", "--docs", str(docs)
    )
    assert done.code == Exit.OK, done.err
    assert "answer    Montbéliard" in done.out
    assert "evidence  Frédéric Cuvier: " in done.out


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_solve_prints_names_on_any_console(docs: Path, encoding: str) -> None:
    done = subprocess.run(
        [*MODULE, "solve", "Who described the red panda?", "--docs", str(docs)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert done.returncode == Exit.OK, done.stderr
    text = done.stdout.decode(encoding)
    assert ("Fr\\xe9d\\xe9ric Cuvier" if encoding == "ascii" else "Frédéric Cuvier") in text


def test_document_cannot_steer_the_terminal(pandacore: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The \x1b[31mpanda\x1b]0;title\x07 \u202ewas described by Cuvier\x1b[2J.")
    done = pandacore("solve", "Who described the panda?", "--docs", str(tmp_path / "a.txt"))
    assert "Cuvier" in done.out
    assert not {"\x1b", "\x07", "\u202e"} & set(done.out + done.err)


def test_large_document_set_is_narrowed_and_said(pandacore: Command, docs: Path) -> None:
    filler = [{"title": f"Filler {i}", "text": f"Nothing of note in {i}. " * 40} for i in range(4_500)]
    (docs / "more.jsonl").write_text("\n".join(json.dumps(row) for row in filler))
    done = pandacore(
        "solve", "Where was the zoologist who described the red panda born?", "--docs", str(docs)
    )
    assert done.code == Exit.OK, done.err
    assert "of 4502 passages go to the team" in done.err
    assert "answer    Montbéliard" in done.out


def test_unknown_pattern_is_refused(pandacore: Command, docs: Path) -> None:
    done = pandacore("solve", "x", "--docs", str(docs), "--pattern", "stra")
    assert done.code == Exit.USAGE
    assert "star" in done.err


def test_empty_answer_is_not_a_success(pandacore: Command, docs: Path, tmp_path: Path) -> None:
    body = """
        def answer(request):
            return {"answer": "", "evidence": [], "confidence": 0, "facts": [], "names": [], "verdict": ""}
    """
    with scripted(tmp_path, body) as spec:
        done = pandacore(
            "solve", "x y z", "--docs", str(docs), "--model", spec, "--planner", "rules", "--json"
        )
    assert done.code == Exit.FAILED
    assert "the passages do not answer this" in done.err or "InvalidOutput" in done.err
    assert done.objects[0]["answer"] == ""


# -- failures


@pytest.mark.parametrize(("cap", "value"), [("TOKENS", "10"), ("STEPS", "1")])
def test_reached_cap_is_named_with_its_value_and_how_to_raise_it(
    pandacore: Command, monkeypatch: pytest.MonkeyPatch, cap: str, value: str
) -> None:
    monkeypatch.setenv(f"PANDACORE__RUN__{cap}", value)
    done = pandacore("demo", "--hosts", "0", "--json")
    assert done.code == Exit.FAILED
    assert "BudgetExceeded" in done.err
    assert value in done.err
    assert f"PANDACORE__RUN__{cap}" in done.err
    assert done.objects[0]["status"] == "failed"
    assert done.objects[0]["failures"][0]["kind"] == "BudgetExceeded"


def test_reached_deadline_says_how_to_raise_it(pandacore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANDACORE__RUN__DEADLINE_S", "0.001")
    done = pandacore("demo", "--hosts", "0", "--json")
    assert done.code == Exit.FAILED
    assert "PANDACORE__RUN__DEADLINE_S" in done.err
    # Whether the run or a call inside it meets the deadline first is a race.
    assert done.objects[0]["failures"][0]["kind"] in {"BudgetExceeded", "DeadlineExceeded"}


def test_model_that_goes_away_exits_3(
    pandacore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANDACORE__MODEL__RETRIES", "0")
    body = """
        def answer(request):
            os._exit(1)
    """
    with scripted(tmp_path, body) as spec:
        done = pandacore("demo", "--hosts", "0", "--model", spec, "--planner", "rules", "--json")
    assert done.code in {Exit.UNREACHABLE, Exit.FAILED}
    assert done.objects[0]["status"] == "failed"
    kinds = {failure["kind"] for failure in done.objects[0]["failures"]}
    assert kinds & {"ModelUnavailable", "UnknownOutcome", "ConnectionLost", "CircuitOpen"}


def test_key_in_a_model_error_is_never_printed(
    pandacore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-5f2c9e81d7"
    monkeypatch.setenv("PANDACORE__MODEL__API_KEY", canary)
    body = """
        from pandacore.errors import AuthenticationFailed

        def answer(request):
            key = os.environ["PANDACORE__MODEL__API_KEY"]
            raise AuthenticationFailed(f"Incorrect API key provided: {key}", where=f"http://u:{key}@h/v1")
    """
    with scripted(tmp_path, body) as spec:
        for arguments in ((), ("--json",), ("--debug",)):
            done = pandacore("demo", "--hosts", "0", "--model", spec, "--planner", "rules", *arguments)
            assert done.code == Exit.FAILED
            assert "AuthenticationFailed" in done.err
            assert canary not in done.out + done.err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_a_run_with_130(tmp_path: Path) -> None:
    body = """
        import asyncio

        async def answer(request):
            await asyncio.sleep(60)
    """
    with (
        scripted(tmp_path, body) as spec,
        subprocess.Popen(
            [*MODULE, "demo", "--hosts", "0", "--model", spec, "--planner", "rules"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as run,
    ):
        try:
            assert run.stdout is not None
            assert run.stderr is not None
            for line in run.stdout:
                if "starts answer.question" in line:  # the step that asks the model
                    break
            else:
                pytest.fail(f"the run did not start: {run.stderr.read()}")
            start = time.monotonic()
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=30) == Exit.INTERRUPTED
            print(f"ended after {time.monotonic() - start:.2f} s, target 2 s")  # noqa: T201
            errors = run.stderr.read()
            assert errors.endswith("error: interrupted\n")
            assert "Traceback" not in errors
        finally:
            run.kill()


# -- eval


def _rows(count: int) -> str:
    context = [
        ["Red panda", ["The red panda was described by Frédéric Cuvier in 1825."]],
        [
            "Frédéric Cuvier",
            ["Frédéric Cuvier was a French zoologist.", "He was born in Montbéliard in 1773."],
        ],
    ]
    rows = [
        {
            "id": f"r{i}",
            "question": "Who described the red panda?",
            "answer": "Frédéric Cuvier",
            "type": "bridge",
            "supporting_facts": [["Red panda", 0]],
            "context": context,
        }
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_eval_scores_and_resumes(pandacore: Command, tmp_path: Path) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "out.jsonl"
    data.write_text(_rows(4))
    first = pandacore("eval", "hotpotqa", "--data", str(data), "--limit", "2", "--out", str(out), "--json")
    assert first.code == Exit.OK, first.err
    report = first.objects[0]
    assert (report["rows"], report["completed"], report["resumed"]) == (2, 2, 0)
    assert report["metrics"]["em"] == 1.0
    again = pandacore("eval", "hotpotqa", "--data", str(data), "--out", str(out))
    assert again.code == Exit.USAGE
    assert "--resume" in again.err
    rest = pandacore("eval", "hotpotqa", "--data", str(data), "--out", str(out), "--resume")
    assert rest.code == Exit.OK, rest.err
    assert "4 of 4 questions completed, 2 of them from before" in rest.out
    assert "4/4" in rest.err


def test_eval_refuses_what_it_cannot_read(pandacore: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\n')
    for arguments in (
        ("hotpotqa", "--data", "missing.jsonl"),
        ("hotpotqa", "--data", "bad.jsonl"),
        ("hotpotqa", "--data", "bad.jsonl", "--resume"),
        ("hotpotqa", "--data", "bad.jsonl", "--limit", "0"),
    ):
        done = pandacore("eval", *arguments)
        assert done.code == Exit.USAGE, arguments
        assert "hint: " in done.err
