"""Attrition: many plans on many host processes, one of which is killed every two seconds."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import time
from pathlib import Path

import pytest

import pandacore as pc
from pandacore.experiments.hosts import Hosts

CREW = """
import asyncio, os, sqlite3
import pandacore as pc

@pc.agent(capabilities=["work"], concurrency=4, queue_limit=64)
async def worker(task):
    await asyncio.sleep(0.2)
    with sqlite3.connect(os.environ["LEDGER"], timeout=30, isolation_level="IMMEDIATE") as ledger:
        mine = f"{task.subtask_id}/{task.attempt}/{os.getpid()}"
        ledger.execute("INSERT INTO executions VALUES (?, ?)", (task.idempotency_key, mine))
        # The effect: the first one with this key stands, as with any service that takes idempotency keys.
        ledger.execute("INSERT OR IGNORE INTO effects VALUES (?, ?)", (task.idempotency_key, mine))
    with sqlite3.connect(os.environ["LEDGER"], timeout=30) as ledger:
        row = ledger.execute("SELECT value FROM effects WHERE key = ?", (task.idempotency_key,)).fetchone()
    return row[0]
"""


async def attrition(
    folder: Path, *, hosts: int, plans: int, each_s: float, kills: int, every_s: float, seed: int
) -> None:
    rng = random.Random(seed)
    (folder / "attrition_crew.py").write_text(CREW)
    ledger = folder / "ledger.db"
    with sqlite3.connect(ledger) as made:
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("CREATE TABLE effects (key TEXT PRIMARY KEY, value TEXT)")
        made.execute("CREATE TABLE executions (key TEXT, value TEXT)")
    plan = pc.Plan(
        [
            pc.Subtask("a", "work", "first"),
            *(pc.Subtask(f"b{n}", "work", "side", ["a"]) for n in range(2)),
            pc.Subtask("c", "work", "last", ["b0", "b1"]),
        ]
    )
    environment = {
        "LEDGER": str(ledger),
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    async with (
        pc.Collective.local(seed=seed) as collective,
        Hosts(collective, "attrition_crew", environment=environment) as crew,
    ):
        await crew.fill(hosts)
        began = time.monotonic()

        async def killer() -> None:
            for _ in range(kills):
                await asyncio.sleep(every_s)
                crew.kill(rng.choice(crew.running()))

        killing = asyncio.create_task(killer())
        runs = []
        for number in range(plans):
            runs.append(collective.start(pc.Task(f"plan {number}", plan=plan, idempotent=True)))
            await asyncio.sleep(each_s)
        results = [await run.result() for run in runs]
        await killing
        took = time.monotonic() - began
    ok = [r for r in results if r.ok]
    with sqlite3.connect(ledger) as read:
        effects = dict(read.execute("SELECT key, value FROM effects").fetchall())
        [(executions,)] = read.execute("SELECT COUNT(*) FROM executions").fetchall()
    swaps = sum(isinstance(e, pc.SubtaskFailed) for r in results for e in r.events)
    sys.stdout.write(
        f"seed {seed}: {len(results)} plans, {len(ok)} completed, {kills} of {hosts} killed, {took:.0f} s, "
        f"{swaps} attempts lost, {executions} executions for {len(effects)} effects\n"
    )
    assert len(results) == plans
    assert len(ok) >= 0.99 * plans, [r.failures for r in results if not r.ok][:3]
    for result in results:
        done = [e.subtask_id for e in result.events if isinstance(e, pc.SubtaskCompleted)]
        assert len(done) == len(set(done)), f"seed {seed}: committed twice"
        for subtask_id, output in result.outputs.items():
            assert output == effects[f"{result.run_id}/{subtask_id}"], f"seed {seed}"


@pytest.mark.soak
async def test_f01_200_plans_while_a_host_of_20_is_killed_every_two_seconds(tmp_path: Path) -> None:
    await attrition(
        tmp_path, hosts=20, plans=200, each_s=0.15, kills=15, every_s=2, seed=random.randrange(2**32)
    )


@pytest.mark.slow
async def test_f01_plans_go_on_while_hosts_are_killed(tmp_path: Path) -> None:
    await attrition(
        tmp_path, hosts=3, plans=12, each_s=0.1, kills=2, every_s=0.6, seed=random.randrange(2**32)
    )
