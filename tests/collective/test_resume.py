"""F02: an orchestrator killed at any journal write; a new process takes the run up, and repeats nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.journal import Journal, Kind, Record
from pandacore.team.past import read_past, rebuild
from pandacore.testing import ScriptedModel

CRASHING = """
class Crashing(Journal):
    writes = 0
    def _put(self, run_id, kind, body):  # what every record passes through, awaited or not
        Crashing.writes += 1
        hit = Crashing.writes == int(crash_at)
        if hit and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        seq, written = super()._put(run_id, kind, body)
        if hit and when == "after":
            written.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        return seq, written
"""

PROGRAM = """
import asyncio, json, os, signal, sys
import pandacore as pc
from pandacore.journal import Journal

path, ledger, width, crash_at, when, run_id = sys.argv[1:]
width, crash_at = int(width), int(crash_at)

@CRASHING@
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
    command = [
        sys.executable,
        "-c",
        PROGRAM.replace("@CRASHING@", CRASHING),
        str(path),
        str(ledger),
        str(width),
        str(crash_at),
        when,
        run_id,
    ]
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
            assert not ledger.read_text()  # the first records share a commit; nobody was asked before it
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
    assert crash_and_resume(tmp_path, 3, crash_at, when), "the run has so many writes"


DEADLY = """
import asyncio, json, os, signal, sys
import pandacore as pc

path, ledger, run_id = sys.argv[1:]

@pc.agent(capabilities=["work"])
async def work(task):
    with open(ledger, "a") as file:
        print(task.subtask_id, file=file, flush=True)
    if run_id == "new":
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with pc.Collective.local(journal=path) as c:
        c.add(work)
        run = c.start(pc.Task("do it")) if run_id == "new" else c.resume(run_id)
        result = await run.result()
        print(json.dumps([str(result.status), [f.kind for f in result.failures]]))

asyncio.run(main())
"""


def test_what_died_with_its_agent_is_not_done_again(tmp_path: Path) -> None:
    path, ledger = tmp_path / "runs.db", tmp_path / "ledger"

    def life(run_id: str) -> Any:
        command = [sys.executable, "-c", DEADLY, str(path), str(ledger), run_id]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert life("new").returncode == -signal.SIGKILL
    with Journal(path) as journal:
        [info] = journal.runs()
    done = life(info.run_id)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["failed", ["UnknownOutcome"]]
    assert ledger.read_text().splitlines() == ["s1"]


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


CREW = """
import os
import pandacore as pc

@pc.agent(capabilities=["work"], concurrency=4)
async def work(task):
    with open(os.environ["LEDGER"], "a") as file:
        print(task.subtask_id, task.idempotency_key, file=file, flush=True)
    return f"{task.subtask_id}({','.join(sorted(task.inputs))})"
"""

ELSEWHERE = """
import asyncio, json, os, signal, sys
import pandacore as pc
from pandacore.journal import Journal

path, address, pattern, crash_at, when, run_id = sys.argv[1:]

@CRASHING@
subtasks = [pc.Subtask(f"s{n}", "work", "go", [f"s{n - 1}"] if n else []) for n in range(5)]

async def main():
    with Crashing(path) as journal:
        async with pc.Collective.local(journal=journal) as c:
            await c.attach(address)
            task = pc.Task("steps", plan=pc.Plan(subtasks), redundancy={"work": 2})
            run = c.resume(run_id) if run_id else c.start(task, pattern=pattern)
            result = await run.result()
            print(json.dumps([result.run_id, str(result.status), result.outputs]))

asyncio.run(main())
"""


class Elsewhere:
    """A host process that outlives the orchestrators whose runs it serves."""

    def __init__(self, folder: Path) -> None:
        (folder / "crew.py").write_text(CREW)
        self.folder, self.ledger = folder, folder / "ledger"
        self.ledger.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pandacore.team.serve", "crew", "--replicas", "3"],
            cwd=folder,
            env={**os.environ, "LEDGER": str(self.ledger)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["address"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def launch(self, path: Path, pattern: str, crash_at: int, when: str, run_id: str) -> Any:
        arguments = [str(path), self.address, pattern, str(crash_at), when, run_id]
        command = [sys.executable, "-c", ELSEWHERE.replace("@CRASHING@", CRASHING), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def crash_and_resume(self, pattern: str, crash_at: int, when: str) -> bool:
        """One crash of the orchestrator alone; False if the run ended before that write."""
        path = self.folder / f"{pattern}{when}{crash_at}.db"
        done = self.launch(path, pattern, crash_at, when, "")
        if done.returncode == 0:
            return False
        assert done.returncode == -signal.SIGKILL, done.stderr
        with Journal(path) as journal:
            runs = journal.runs()
            if not runs or runs[0].status != "open":
                return True
        done = self.launch(path, pattern, 0, "never", runs[0].run_id)
        assert done.returncode == 0, done.stderr
        run_id, status, outputs = json.loads(done.stdout)
        assert (run_id, status) == (runs[0].run_id, "completed"), outputs
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        effects = Counter(subtask for subtask, key in lines if key.startswith(f"{run_id}/"))
        assert effects == {f"s{n}": 1 for n in range(5)}, f"{pattern}, crash {when} write {crash_at}"
        return True


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    found = Elsewhere(tmp_path_factory.mktemp("elsewhere"))
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "crash_at"), [("chain", 5), ("mesh", 6)])
def test_a_killed_entrypoint_of_a_chain_or_mesh_repeats_nothing(
    elsewhere: Elsewhere, pattern: str, crash_at: int
) -> None:
    assert elsewhere.crash_and_resume(pattern, crash_at, "after")


@pytest.mark.soak
@pytest.mark.parametrize("pattern", ["star", "chain", "mesh"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_write_of_an_orchestrator_whose_agents_live_elsewhere(
    elsewhere: Elsewhere, pattern: str, when: str
) -> None:
    crash_at = 1
    while elsewhere.crash_and_resume(pattern, crash_at, when):
        crash_at += 1
    assert crash_at > 5


async def test_a_replay_calls_no_model(tmp_path: Path) -> None:
    @pc.agent(capabilities=["think"])
    async def think(task: pc.Task, ctx: pc.AgentContext) -> str:
        return (await ctx.model.chat(pc.ChatRequest((pc.Message.user("go"),), max_tokens=9))).text

    async with ScriptedModel(lambda request: "thought") as model:
        async with pc.Collective.local(model=model.spec, journal=tmp_path / "runs.db") as c:
            c.add(think)
            result = await c.run("think")
        assert (result.output, model.calls) == ("thought", 1)
        with Journal(tmp_path / "runs.db", read_only=True) as journal:
            again = rebuild(journal, result.run_id)
        assert again.same
        assert list(again.outputs.values()) == ["thought"]
        assert model.calls == 1


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
