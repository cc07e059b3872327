"""F02: an orchestrator killed at any journal write; a new process takes the run up, and repeats nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.journal import Journal, Kind, Record
from pandacore.team.past import read_past

PROGRAM = """
import asyncio, json, os, signal, sys
import pandacore as pc
from pandacore.journal import Journal

path, ledger, width, crash_at, when, run_id = sys.argv[1:]
width, crash_at = int(width), int(crash_at)

class Crashing(Journal):
    writes = 0
    async def append(self, run_id, kind, body):
        Crashing.writes += 1
        number = Crashing.writes
        if number == crash_at and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        seq = await super().append(run_id, kind, body)
        if number == crash_at and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return seq

@pc.agent(capabilities=["work"], concurrency=4)
async def work(task):
    with open(ledger, "a") as file:
        print(os.getpid(), task.subtask_id, task.idempotency_key, file=file, flush=True)
    return f"{task.subtask_id}({','.join(sorted(task.inputs))})"

# Layers of `width`: each subtask needs one of the layer before, the last needs all of its layer.
ids = [[f"s{layer}_{n}" for n in range(width)] for layer in range(3)]
subtasks = [pc.Subtask(ids[0][n], "work", "begin") for n in range(width)]
subtasks += [pc.Subtask(ids[l][n], "work", "go on", [ids[l - 1][n]]) for l in (1, 2) for n in range(width)]
subtasks.append(pc.Subtask("end", "work", "end", ids[2]))

async def main():
    with Crashing(path) as journal:
        async with pc.Collective.local(journal=journal) as c:
            c.add(work, replicas=2)
            if run_id == "new":
                run = c.start(pc.Task("layers", plan=pc.Plan(subtasks), idempotent=True))
            else:
                run = c.resume(run_id)
            result = await run.result()
            print(json.dumps([result.run_id, str(result.status), len(result.outputs), result.value]))

asyncio.run(main())
"""


def launch(path: Path, ledger: Path, width: int, crash_at: int, when: str, run_id: str = "new") -> Any:
    command = [sys.executable, "-c", PROGRAM, str(path), str(ledger), str(width), str(crash_at), when, run_id]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def commits(records: list[Record]) -> set[str]:
    """Ids of the committed subtasks, read from the checkpoints without the code that resumes a run."""
    found: set[str] = set()
    for record in records:
        if record.kind is not Kind.CHECKPOINT:
            continue
        if record.body["full"]:
            found = {done["id"] for done in record.body["state"]["hub"]["done"].values()}
        else:
            found |= {v["id"] for path, v in record.body["state"]["set"] if path[:2] == ["hub", "done"]}
    return found


def crash_and_resume(folder: Path, width: int, crash_at: int, when: str) -> bool:
    """One crash at one write, then the resumption; False if the run ended before that write."""
    path, ledger = folder / "runs.db", folder / "ledger"
    ledger.touch()
    done = launch(path, ledger, width, crash_at, when)
    if done.returncode == 0:
        return False
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Journal(path) as journal:
        runs = journal.runs()
        if not runs:
            assert (crash_at, when) == (1, "before")  # nothing was promised to anybody yet
            return True
        [info] = runs
        records = list(journal.read(info.run_id))
    if records[-1].kind is Kind.FINISH:
        return True
    committed = commits(records)
    before = len(ledger.read_text().splitlines())
    done = launch(path, ledger, width, 0, "never", info.run_id)
    assert done.returncode == 0, done.stderr
    run_id, status, outputs, value = json.loads(done.stdout)
    assert (run_id, status, outputs) == (info.run_id, "completed", 3 * width + 1)
    assert value == f"end({','.join(sorted(f's2_{n}' for n in range(width)))})"
    repeated = {line.split()[1] for line in ledger.read_text().splitlines()[before:]}
    assert not repeated & committed, f"crash {when} write {crash_at}: {repeated & committed} ran again"
    keys = {line.split()[2] for line in ledger.read_text().splitlines()}
    assert keys == {f"{run_id}/{s}" for s in {line.split()[1] for line in ledger.read_text().splitlines()}}
    with Journal(path) as journal:
        assert journal.runs()[0].status == "completed"
    return True


@pytest.mark.slow
@pytest.mark.parametrize("crash_at", [1, 2, 3, 4, 5, 7, 9, 11])
@pytest.mark.parametrize("when", ["before", "after"])
def test_f02_a_killed_run_is_taken_up_and_nothing_committed_runs_again(
    tmp_path: Path, crash_at: int, when: str
) -> None:
    crash_and_resume(tmp_path, 3, crash_at, when)


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_f02_every_write_of_a_plan_of_thirty_one(tmp_path: Path, when: str) -> None:
    crash_at = 1
    while True:
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        if not crash_and_resume(folder, 10, crash_at, when):
            break
        crash_at += 1
    assert crash_at > 30


@pc.agent(capabilities=["work"])
async def work(task: pc.Task) -> str:
    return task.text


async def test_the_journal_tells_the_whole_story(tmp_path: Path) -> None:
    async with pc.Collective.local(journal=tmp_path / "runs.db") as c:
        c.add(work)
        result = await c.run(pc.Task("hello", inputs={"a": 1}, metadata={"k": "v"}))
        journal = c._open_services().journal
        assert journal is not None
        kinds = [r.kind for r in journal.read(result.run_id)]
        assert kinds[:2] == [Kind.RUN, Kind.PLAN]
        assert kinds[-1] is Kind.FINISH
        past = read_past(journal, result.run_id)
        assert past.task.to_dict() == pc.Task("hello", inputs={"a": 1}, metadata={"k": "v"}).to_dict()
        assert past.finished == json.loads(result.to_json())
        with pytest.raises(errors.StateError, match="has ended: completed"):
            c.resume(result.run_id)
        with pytest.raises(errors.UnknownRun):
            c.resume("nope")


async def test_a_collective_without_a_journal_says_what_is_missing() -> None:
    async with pc.Collective.local() as c:
        with pytest.raises(errors.StateError, match="no journal"):
            c.resume("x")


async def test_a_broken_contract_is_sent_back_once_then_another_agent_takes_over() -> None:
    calls: Counter[str] = Counter()
    notes: list[object] = []

    def make(name: str, answers: list[object]) -> pc.Agent:
        async def answer(task: pc.Task) -> object:
            notes.append(task.inputs.get("_revise"))
            calls[name] += 1
            return answers[min(calls[name], len(answers)) - 1]

        return pc.Agent(answer, capabilities=["count"], name=name)

    contract = pc.Contract("a number", output_schema={"type": "integer"})
    plan = pc.Plan([pc.Subtask("a", "count", "count")])
    async with pc.Collective.local(seed=1) as c:
        c.add(make("stubborn", ["many", "very many"]), make("stubborn too", ["some", 7]))
        result = await c.run(
            pc.Task("x", plan=plan, contracts={"a": contract}, redundancy={"count": 2}),
        )
        assert result.output == 7
        assert notes[0] is None
        assert "is not of type" in str(notes[1])
    assert sum(calls.values()) in (2, 4)  # who was asked first decides whether a swap was needed


async def test_racing_agents_the_first_output_counts_and_the_others_are_stopped() -> None:
    stopped = asyncio.Event()

    async def slow(task: pc.Task) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "slow"

    async def quick(task: pc.Task) -> str:
        return "quick"

    async with pc.Collective.local() as c:
        c.add(pc.Agent(slow, capabilities=["run"]), pc.Agent(quick, capabilities=["run"]))
        result = await c.run(pc.Task("x", redundancy={"run": 2}, race=True), budget=pc.Budget(wall_s=20))
        assert result.output == "quick"
        async with asyncio.timeout(5):
            await stopped.wait()


async def test_an_idempotent_task_is_swapped_to_another_agent_when_one_fails() -> None:
    async def broken(task: pc.Task) -> str:
        raise OSError("out of order")

    async def works(task: pc.Task) -> str:
        return f"attempt {task.attempt}"

    async with pc.Collective.local() as c:
        c.add(pc.Agent(broken, capabilities=["do"]), pc.Agent(works, capabilities=["do"]))
        results = [await c.run(pc.Task("x", idempotent=True)) for _ in range(16)]
        assert {r.output for r in results} <= {"attempt 1", "attempt 2"}
        assert any(isinstance(e, pc.SubtaskFailed) and e.retrying for r in results for e in r.events)
