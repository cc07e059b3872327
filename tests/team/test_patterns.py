"""Chain and mesh over gRPC: agents in other processes run their own machines, and are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import pandacore as pc
from pandacore.journal import Journal
from pandacore.team.past import rebuild
from pandacore.testing import ScriptedModel

CREW = """
import asyncio, os
import pandacore as pc

async def work(task):
    with open(os.environ["LEDGER"], "a") as file:
        print(task.subtask_id, os.getpid(), file=file, flush=True)
    try:
        await asyncio.sleep(float(task.metadata.get("seconds", 0.01)))
    except asyncio.CancelledError:
        with open(os.environ["LEDGER"], "a") as file:
            print("cancelled", os.getpid(), file=file, flush=True)
        raise
    return f"{task.text}[{','.join(sorted(task.inputs))}]"

agents = [pc.Agent(work, capabilities=[c], name=c, concurrency=4) for c in os.environ["HOLDS"].split()]
globals().update({f"agent_{n}": a for n, a in enumerate(agents)})
"""
CAPABILITIES = ["find", "read", "tell"]
STEPS = pc.Plan(
    [
        pc.Subtask("one", "find", "find it"),
        pc.Subtask("two", "read", "read it", ["one"]),
        pc.Subtask("three", "tell", "tell it", ["two"]),
    ]
)
ANSWER = "tell it[two]"
SOAK = 15


class Hosts:
    """Host processes, started together; each has one agent per capability that it holds."""

    def __init__(self, folder: Path, *holds: str) -> None:
        self.path = folder / "ledger"
        (folder / "crew.py").write_text(CREW)
        env = {**os.environ, "LEDGER": str(self.path)}
        command = [sys.executable, "-m", "pandacore.team.serve", "crew"]
        self.processes = [
            subprocess.Popen(command, cwd=folder, env={**env, "HOLDS": h}, stdout=subprocess.PIPE, text=True)
            for h in holds
        ]
        self.addresses = []
        for process in self.processes:
            assert process.stdout is not None
            self.addresses.append(json.loads(process.stdout.readline())["address"])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def kill(self, pid: int) -> None:
        """Kill a host, and be sure that it is dead."""
        [process] = [p for p in self.processes if p.pid == pid]
        process.kill()
        process.wait()

    def ledger(self) -> list[tuple[str, int]]:
        """What was begun, in which process."""
        if not self.path.exists():
            return []
        return [(line.split()[0], int(line.split()[1])) for line in self.path.read_text().splitlines()]

    async def begun(self, step: str) -> int:
        """The process that works on the step, once one does."""
        async with asyncio.timeout(10):
            while not (pids := [pid for s, pid in self.ledger() if s == step]):
                await asyncio.sleep(0.005)
        return pids[0]

    @contextlib.asynccontextmanager
    async def collective(self) -> AsyncIterator[pc.Collective]:
        """A collective without agents of its own that has taken in all hosts that live."""
        self.path.unlink(missing_ok=True)
        async with pc.Collective.local() as c:
            for process, address in zip(self.processes, self.addresses, strict=True):
                if process.poll() is None:
                    await c.attach(address)
            yield c


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    found = Hosts(tmp_path_factory.mktemp("hosts"), *CAPABILITIES, "read", "read")
    yield found
    found.close()


def kinds(result: pc.Result, kind: type) -> list[Any]:
    return [e for e in result.events if isinstance(e, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["chain", "mesh", "failover"])
async def test_three_agents_on_three_hosts_answer(hosts: Hosts, pattern: str) -> None:
    async with hosts.collective() as c:
        result = await c.run(pc.Task("the task", plan=STEPS), pattern=pattern)
        assert (result.output, result.failures) == (ANSWER, ())
        assert result.outputs["two"] == "read it[one]"
        assert [step for step, _ in hosts.ledger()] == ["one", "two", "three"]
        assert len({pid for _, pid in hosts.ledger()}) == 3
        assert [e.subtask_id for e in kinds(result, pc.SubtaskStarted)] == ["one", "two", "three"]
        done = kinds(result, pc.SubtaskCompleted)
        # Each host tells of its own commits, so one may be heard of before those ahead of it.
        assert {(e.subtask_id, e.agent) for e in done} == {
            ("one", "find"),
            ("two", "read"),
            ("three", "tell"),
        }
        assert len(done) == 3
        # Nothing of the run is left on any host: the second one begins afresh.
        again = await c.run(pc.Task("the task", plan=STEPS), pattern=pattern)
        assert again.output == ANSWER


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["star", "chain", "mesh", "failover"])
async def test_a_cancelled_run_stops_its_members_within_a_second(hosts: Hosts, pattern: str) -> None:
    async with hosts.collective() as c:
        run = c.start(pc.Task("the task", plan=STEPS, metadata={"seconds": "60"}), pattern=pattern)
        await hosts.begun("one")
        async with asyncio.timeout(1 + 1):  # one second, and one for a busy machine
            assert (await run.cancel()).status == "cancelled"
        assert [step for step, _ in hosts.ledger()] == ["one", "cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["chain", "mesh"])
async def test_a_killed_host_is_replaced_while_it_works(hosts: Hosts, pattern: str) -> None:
    async with hosts.collective() as c:
        task = pc.Task("the task", plan=STEPS, idempotent=True, metadata={"seconds": "0.2"})
        run = c.start(task, pattern=pattern)
        hosts.kill(await hosts.begun("two"))
        result = await run.result()
        assert (result.output, result.failures) == (ANSWER, ())
        assert [step for step, _ in hosts.ledger()] == ["one", "two", "two", "three"], "a step ran again"
        assert len({pid for step, pid in hosts.ledger() if step == "two"}) == 2


CALLER = """
import asyncio, json, sys
import pandacore as pc

pattern, journal, addresses, task, run_id = sys.argv[1:]

async def main():
    async with pc.Collective.local(journal=journal) as c:
        for address in json.loads(addresses):
            await c.attach(address)
        if run_id == "new":
            run = c.start(pc.Task.from_dict(json.loads(task)), pattern=pattern)
        else:
            run = c.resume(run_id)
        result = await run.result()
        print(json.dumps([result.value, [str(f) for f in result.failures]]))

asyncio.run(main())
"""


def call(hosts: Hosts, folder: Path, pattern: str, run_id: str, seconds: float) -> subprocess.Popen[str]:
    """A process that runs the task, or takes the run up again."""
    task = pc.Task("the task", plan=STEPS, idempotent=True, metadata={"seconds": str(seconds)})
    live = [a for p, a in zip(hosts.processes, hosts.addresses, strict=True) if p.poll() is None]
    arguments = [pattern, str(folder / "runs.db"), json.dumps(live), json.dumps(task.to_dict()), run_id]
    return subprocess.Popen([sys.executable, "-c", CALLER, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["chain", "mesh", "failover"])
async def test_a_killed_entrypoint_comes_back_to_its_members(
    hosts: Hosts, tmp_path: Path, pattern: str
) -> None:
    hosts.path.unlink(missing_ok=True)
    first = call(hosts, tmp_path, pattern, "new", 0.5)
    await hosts.begun("two")
    first.kill()
    first.communicate()
    if pattern == "failover":  # a stand-in leads: the run goes on although its caller is gone
        await hosts.begun("three")
    with Journal(tmp_path / "runs.db") as journal:
        [info] = journal.runs()
        assert info.status == "open"
    out, _ = call(hosts, tmp_path, pattern, info.run_id, 0.5).communicate(timeout=60)
    assert json.loads(out) == [ANSWER, []]
    assert [step for step, _ in hosts.ledger()] == ["one", "two", "three"], "members lost what they had"
    with Journal(tmp_path / "runs.db") as journal:
        assert rebuild(journal, info.run_id).same


@pytest.mark.parametrize("pattern", ["chain", "mesh"])
async def test_without_a_plan_members_of_this_process_work_one_out(pattern: str) -> None:
    async def say(task: pc.Task) -> str:
        return f"{task.capability}: {task.text}"

    async with pc.Collective.local() as c:
        for capability in CAPABILITIES[:2]:
            c.add(pc.Agent(say, capabilities=[capability]))
        result = await c.run(pc.Task("hello", capabilities=["find", "read"]), pattern=pattern)
        assert result.output == {"s1": "find: hello", "s2": "read: hello"}
        sources = [e.source for e in kinds(result, pc.PlanReady)]
        assert sources == ["vote" if pattern == "mesh" else "rule"]


@pc.postcondition("no digits")
def no_digits(output: Any) -> bool | str:
    return not any(c.isdigit() for c in str(output)) or f"{output!r} has digits"


@pytest.mark.parametrize("pattern", ["star", "chain", "mesh", "failover"])
@pytest.mark.parametrize(
    "contract",
    [
        pc.Contract("a word", output_schema={"type": "string"}),
        pc.Contract("a word", postcondition="no digits"),
    ],
)
async def test_an_author_of_faulty_outputs_is_swapped(pattern: str, contract: pc.Contract) -> None:
    faulty: list[str] = []

    def worker(name: str) -> pc.Agent:
        async def work(task: pc.Task) -> Any:
            faulty[:] = faulty or [name]  # whoever is asked first
            return 7 if name in faulty else "a word"

        return pc.Agent(work, capabilities=["find"], name=name)

    async with pc.Collective.local() as c:
        c.add(*map(worker, ["ann", "ben", "cid"]))
        task = pc.Task(
            "the task",
            plan=pc.Plan(STEPS.subtasks[:1]),
            redundancy={"find": 3},
            contracts={"one": contract},
        )
        result = await c.run(task, pattern=pattern)
        assert (result.output, result.failures) == ("a word", ())
        if pattern != "star":  # which swaps without a word
            notes = [(e.kind, e.details.get("peer")) for e in kinds(result, pc.PatternNote)]
            assert ("evict", faulty[0]) in notes
        [done] = kinds(result, pc.SubtaskCompleted)
        assert done.agent != faulty[0]


@pytest.mark.parametrize("pattern", ["chain", "mesh"])
async def test_members_spend_within_the_budget_and_say_what(pattern: str) -> None:
    async def think(task: pc.Task, ctx: pc.AgentContext) -> str:
        assert ctx.model.remaining_tokens is not None
        request = pc.ChatRequest((pc.Message.user(task.text),), max_tokens=20)
        return (await ctx.model.chat(request)).text

    async with ScriptedModel(["thought"] * 9) as model, pc.Collective.local(model=model.spec) as c:
        for capability in CAPABILITIES:
            c.add(pc.Agent(think, capabilities=[capability]))
        task = pc.Task("the task", plan=STEPS)
        result = await c.run(task, pattern=pattern, budget=pc.Budget(tokens=2_000))
        assert result.failures == ()
        assert 0 < result.usage.total_tokens <= 2_000
        done = kinds(result, pc.SubtaskCompleted)
        assert sum(e.usage.total_tokens for e in done) == result.usage.total_tokens
        poor = await c.run(task, pattern=pattern, budget=pc.Budget(tokens=1, replans=0))
        assert "BudgetExceeded" in {f.kind for f in poor.failures}


@pytest.mark.soak
@pytest.mark.parametrize("pattern", ["chain", "mesh"])
async def test_hosts_killed_at_random_moments(tmp_path: Path, pattern: str) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(SOAK):
        crowd = Hosts(tmp_path, *["find read tell"] * 4)
        async with crowd.collective() as c:
            task = pc.Task("the task", plan=STEPS, idempotent=True, metadata={"seconds": "0.1"})
            runs = [c.start(task, pattern=pattern) for _ in range(6)]
            for process in rng.sample(crowd.processes, 2):
                await asyncio.sleep(rng.uniform(0, 0.3))
                process.kill()
            results = await asyncio.gather(*(run.result() for run in runs))
        crowd.close()
        assert [r.value for r in results] == [ANSWER] * 6, (seed, [r.failures for r in results])
