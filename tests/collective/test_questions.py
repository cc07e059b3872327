"""Agents that ask people: several at once, in any order, after a crash, from outside (FC-27, FC-39)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.cli.log.answer import _tell as answer_there
from pandacore.cli.log.answer import _write as write_answer
from pandacore.journal import Journal, Kind
from pandacore.team.client import AgentClient
from pandacore.team.past import open_questions, read_past

PATTERNS = ["star", "chain", "mesh", "failover"]
PLAN = pc.Plan(
    [
        pc.Subtask("draft", "write", "write it"),
        pc.Subtask("left", "ask", "left", ["draft"]),
        pc.Subtask("right", "ask", "right", ["draft"]),
        pc.Subtask("end", "write", "end", ["left", "right"]),
    ]
)


@pc.agent(capabilities=["write"])
async def write(task: pc.Task) -> object:
    return dict(task.inputs) if task.inputs else "draft"


@pc.agent(capabilities=["ask"], concurrency=4)
async def ask(task: pc.Task) -> object:
    if not task.answers:
        yes_or_no = pc.Question(f"send {task.text}?", "send", {"type": "boolean"})
        raise pc.InputRequired(yes_or_no, pc.Question("to whom?", "to"), state={"side": task.text})
    return [task.inputs["draft"], task.answers["send"], task.answers["to"], task.state["side"]]


@contextlib.asynccontextmanager
async def collective(journal: Path | None = None) -> AsyncIterator[pc.Collective]:
    async with asyncio.timeout(60), pc.Collective.local(journal=journal, seed=1) as c:
        c.add(write, ask)
        yield c


async def asked(run: object, count: int) -> list[pc.Question]:
    """Wait until so many questions are open."""
    async for _ in run.events():  # type: ignore[attr-defined]
        if len(found := run.questions) >= count:  # type: ignore[attr-defined]
            return list(found)
    raise AssertionError("the run ended")


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_two_agents_ask_two_things_each_and_get_their_own_answers(pattern: str) -> None:
    async with collective() as c:
        run = c.start(pc.Task("mail", plan=PLAN), pattern=pattern)
        answers = {"left:send": True, "left:to": "Ann", "right:send": False, "right:to": "Bob"}
        rounds = [2, 2] if pattern == "chain" else [4]  # a chain takes one step after the other
        for count in rounds:
            for question in reversed(await asked(run, count)):
                assert run.status == "input_required"
                await c.answer(run, question.id, answers.pop(question.id))
        result = await run.result()
        assert result.output == {
            "left": ["draft", True, "Ann", "left"],
            "right": ["draft", False, "Bob", "right"],
        }
        told = [e.question for e in result.events if isinstance(e, pc.QuestionAsked)]
        assert {q.agent for q in told} == {"ask"}
        assert len(told) == sum(isinstance(e, pc.QuestionAnswered) for e in result.events) == 4
        assert run.status == "completed"


async def test_wrong_second_and_unasked_answers_are_refused_by_type() -> None:
    async with collective() as c:
        run = c.start(pc.Task("mail", plan=PLAN))
        await asked(run, 4)
        with pytest.raises(errors.InvalidAnswer, match="is not of type"):
            await c.answer(run, "left:send", "yes")
        with pytest.raises(errors.InvalidAnswer):
            await c.answer(run, "left:to", float("nan"))
        await c.answer(run, "left:send", True)
        with pytest.raises(errors.DuplicateAnswer):
            await c.answer(run, "left:send", False)
        with pytest.raises(errors.UnknownQuestion, match="open: left:to, right:send, right:to"):
            await c.answer(run, "left:cc", "x")
        with pytest.raises(errors.UnknownRun):
            await c.answer("nope", "left:to", "x")
        result = await run.cancel()
        assert result.status is pc.Status.CANCELLED
        with pytest.raises(errors.UnknownRun):
            await c.answer(run, "left:to", "x")
        with pytest.raises(errors.StateError, match="has ended"):
            await run.answer("left:to", "x")


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_fc_27_a_run_that_waits_for_people_is_cancelled_within_a_second(pattern: str) -> None:
    async with collective() as c:
        run = c.start(pc.Task("mail", plan=PLAN), pattern=pattern)
        await asked(run, 2)
        async with asyncio.timeout(2):
            result = await run.cancel()
        assert result.status is pc.Status.CANCELLED
        assert result.outputs["draft"] == "draft"
        assert run.questions == ()


async def test_the_clock_of_the_budget_goes_on_while_nobody_answers() -> None:
    async with collective() as c:
        result = await c.run(pc.Task("mail", plan=PLAN), budget=pc.Budget(wall_s=0.5))
        assert result.status is pc.Status.FAILED
        assert [f.kind for f in result.failures] == ["BudgetExceeded"]
        assert result.outputs == {"draft": "draft"}


async def test_an_answered_subtask_is_one_more_step_of_the_budget() -> None:
    async with collective() as c:
        plan = pc.Plan([pc.Subtask("draft", "write", "x"), pc.Subtask("left", "ask", "x", ["draft"])])
        run = c.start(pc.Task("mail", plan=plan), budget=pc.Budget(steps=2, replans=0))
        for question in await asked(run, 2):
            await c.answer(run, question.id, True)
        failure = (await run.result()).failures[0]
        assert (failure.kind, failure.subtask_id) == ("BudgetExceeded", "left")


async def test_fc_39_three_rounds_of_approval_and_every_effect_happens_once() -> None:
    effects: list[str] = []

    @pc.agent(capabilities=["approve"])
    def rounds(task: pc.Task) -> object:
        state = task.state or {"done": []}
        if len(state["done"]) == 3:
            return task.answers
        number = len(state["done"]) + 1
        effects.append(f"effect {number}")
        return pc.InputRequired(
            pc.Question(f"round {number}?", f"r{number}"), state={"done": [*state["done"], number]}
        )

    async with collective() as c:
        c.add(rounds)
        run = c.start(pc.Task("approve it", capabilities=["approve"]))
        for number in (1, 2, 3):
            [question] = await asked(run, 1)
            await c.answer(run, question.id, number)
        assert (await run.result()).output == {"r1": 1, "r2": 2, "r3": 3}
    assert effects == ["effect 1", "effect 2", "effect 3"]


async def test_a_question_that_breaks_a_rule_is_the_agents_failure() -> None:
    @pc.agent(capabilities=["twice"])
    async def twice(task: pc.Task) -> object:
        raise pc.InputRequired(pc.Question("a", "x"), pc.Question("b", "x"))

    async with collective() as c:
        c.add(twice)
        result = await c.run(pc.Task("x", capabilities=["twice"]))
        assert "different ids" in result.failures[0].message
        assert pc.Question("same text").id == pc.Question("same text").id != pc.Question("another").id
        with pytest.raises(errors.ConfigError):
            pc.Question("x", "a:b")


async def test_what_only_waits_for_people_stays_open_when_the_collective_closes(tmp_path: Path) -> None:
    async with collective(tmp_path / "runs.db") as c:
        run = c.start(pc.Task("mail", plan=PLAN))
        await asked(run, 4)
        await c.answer(run, "right:to", "Bob")
    parked = await run.result()
    assert parked.status is pc.Status.INPUT_REQUIRED
    with pytest.raises(errors.RunFailed, match="input_required"):
        _ = parked.output
    async with collective(tmp_path / "runs.db") as c:
        run = c.resume(parked.run_id)
        assert [q.id for q in await asked(run, 3)] == ["left:send", "left:to", "right:send"]
        with pytest.raises(errors.DuplicateAnswer):
            await c.answer(run, "right:to", "Eve")
        for question in run.questions:
            await c.answer(run, question.id, True)
        assert (await run.result()).output["right"] == ["draft", True, "Bob", "right"]


PROGRAM = """
import asyncio, sys
import pandacore as pc
from tests_questions import ask, write, PLAN

async def main():
    path, pattern, run_id = sys.argv[1:]
    async with pc.Collective.local(journal=path, seed=1) as c:
        c.add(write, ask)
        run = c.resume(run_id) if run_id else c.start(pc.Task("mail", plan=PLAN), pattern=pattern)
        async for event in run.events():
            if isinstance(event, pc.QuestionAsked):
                print(run.id, event.question.id, flush=True)
        result = await run.result()
        print(result.to_json(), flush=True)

asyncio.run(main())
"""


class Orchestrator:
    """A process of its own that runs, or takes up, the task."""

    def __init__(self, folder: Path, pattern: str, run_id: str = "") -> None:
        module = folder / "tests_questions.py"
        if not module.exists():
            module.write_text(Path(__file__).read_text())
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder / "runs.db"), pattern, run_id],
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split(maxsplit=1)

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def __enter__(self) -> Orchestrator:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def written(path: Path, run_id: str, answers: dict[str, object]) -> None:
    """Answer at a journal that nobody owns, as `pandacore answer` does."""
    with Journal(path) as journal:
        for question, value in answers.items():
            asyncio.run(write_answer(journal, run_id, question, value))


async def told(path: Path, run_id: str, question: str, value: object) -> None:
    """Answer at the process that owns the journal, as `pandacore answer` does."""
    [(address, token)] = Journal.doors(path)
    client = AgentClient(address)
    await client.answer(run_id, question, json.dumps(value), token, timeout_s=10)
    await client.close()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["star", "chain", "mesh"])
def test_an_orchestrator_killed_while_it_waits_is_answered_and_taken_up(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "runs.db"
    first = 2 if pattern == "chain" else 4
    with Orchestrator(tmp_path, pattern) as one:
        asks = [one.line() for _ in range(first)]
        one.kill()
    run = asks[0][0]
    with Journal(path, read_only=True) as journal:
        assert journal.runs()[0].status == "open"
        open_now = {q.id for q in open_questions(read_past(journal, run))}
    assert open_now == {line[1].strip() for line in asks}
    written(path, run, {q: True if q.endswith("send") else "Ann" for q in sorted(open_now, reverse=True)})
    with pytest.raises(errors.DuplicateAnswer):
        written(path, run, {asks[0][1].strip(): False})
    with Orchestrator(tmp_path, pattern, run) as two:
        while not (line := two.line())[0].startswith("{"):
            # The second step of a chain asks in this life, and is answered over gRPC.
            question = line[1].strip()
            asyncio.run(told(path, run, question, False if question.endswith("send") else "Bob"))
        result = json.loads(" ".join(line))
    assert result["status"] == "completed", result["failures"]
    assert result["output"]["left"] == ["draft", True, "Ann", "left"]
    with Journal(path) as journal:
        answers = [r.body["id"] for r in journal.read(run) if r.kind is Kind.ANSWER]
    assert len(answers) == len(set(answers)) == 4


async def test_a_host_of_a_joined_collective_is_answered_over_its_encrypted_port(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with asyncio.timeout(60), pc.Collective.join(journal=path) as c:
        c.add(write, ask)
        run = c.start(pc.Task("mail", plan=PLAN))
        for question in await asked(run, 4):
            value = "true" if question.id.endswith("send") else '"Ann"'
            await answer_there(path, run.id, question.id, value, errors.DataDirLocked("it is in use"))
        assert (await run.result()).output["left"] == ["draft", True, "Ann", "left"]


async def test_only_who_can_read_the_token_may_answer_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with collective(path) as c:
        run = c.start(pc.Task("mail", plan=PLAN))
        await asked(run, 4)
        [(address, token)] = Journal.doors(path)
        assert os.stat(f"{path}.answers").st_mode & 0o077 == 0
        client = AgentClient(address)
        try:
            with pytest.raises(errors.CallRefused):
                await client.answer(run.id, "left:to", '"x"', bytes(16), timeout_s=5)
            with pytest.raises(errors.UnknownQuestion):
                await client.answer(run.id, "left:cc", '"x"', token, timeout_s=5)
            with pytest.raises(errors.InvalidAnswer):
                await client.answer(run.id, "left:to", "{", token, timeout_s=5)
            await client.answer(run.id, "left:to", '"x"', token, timeout_s=5)
        finally:
            await client.close()
        assert len(run.questions) == 3
    assert Journal.doors(path) == []
