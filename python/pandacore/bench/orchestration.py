"""``pandacore bench orchestration``: what a run costs when agents and models take no time.

100 agents in 4 host processes, a model server in another, everything over gRPC on loopback. A task is a star
of 4 subtasks that do not depend on each other, worked on by a team of 4; each subtask asks the model once,
unless a row says ``model=none``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import numpy as np

from pandacore.bench import workers
from pandacore.bench.frame import Bench, Option
from pandacore.collective import Collective
from pandacore.errors import StateError
from pandacore.experiments.hosts import Hosts
from pandacore.journal import Journal
from pandacore.launchers import HostSpec, LocalLauncher
from pandacore.models.process import ServerSpec, spawn
from pandacore.plan import Plan, Subtask
from pandacore.rpc import loop
from pandacore.task import Result, SubtaskCompleted, SubtaskProgress, Task, TeamFormed

__all__ = ["OPTIONS", "PEERS", "run"]

PEERS = ("autogen",)
OPTIONS = (
    Option("seconds", float, 5.0, "length of each measurement"),
    Option("width", int, 32, "runs at once in the closed loop"),
    Option("autogen", str, "", "interpreter with autogen-ext[grpc], to run it beside ours"),
)

_HOSTS: Final = 4
_SUBTASKS: Final = 4
_OFFERED: Final = 700.0
"""Subtasks a second of a second open loop, so that latencies can be compared where the throughputs differ."""
_DURABILITIES: Final[tuple[Literal["sync", "async"], ...]] = ("sync", "async")
_TURNS: Final = 4
"""How often the loops with and without a journal take turns."""
_MODULE: Final = "pandacore.bench.workers"


def run(bench: Bench) -> None:
    """Measure throughput, latency, the journal's price, a slow model, and a worker that dies."""
    seconds = 0.3 if bench.quick else float(str(bench.options["seconds"]))
    width = 8 if bench.quick else int(str(bench.options["width"]))
    for agents in bench.sizes(default=(100,), quick=(8,)):
        loop.run(_measure(bench, agents, seconds, width))


async def _measure(bench: Bench, agents: int, seconds: float, width: int) -> None:
    each = max(agents // _HOSTS, 1)
    shown: dict[str, Any] = {"agents": agents, "hosts": _HOSTS, "width": width}
    asks, plain = _task("bench.ask"), _task("bench.plain")
    told = {**shown, "path": "hosts", "model": "0 s"}
    with _model() as fast:
        async with _team(fast, each) as (collective, hosts):
            rate = await _closed(collective, asks, seconds, width)
            bench.emit("subtasks_per_second", rate, "/s", **told)
            for offered in dict.fromkeys((0.7 * rate, min(0.7 * rate, _OFFERED))):
                added, whole = await _open(collective, asks, seconds, offered / _SUBTASKS, bench.seed)
                for name, values in (("added_latency", added), ("run_latency", whole)):
                    for stat, q in (("p50", 0.5), ("p99", 0.99)):
                        value = float(np.quantile(values, q)) * 1e3
                        bench.emit(f"{name}_{stat}", value, "ms", offered=round(offered), **told)
            await _journals(bench, collective, hosts, asks, seconds=seconds, width=width, told=told)
            without = await _closed(collective, plain, seconds, width)
        await _peer(bench, without, seconds, width, shown)
    async with _joined(each) as collective:
        sealed = await _closed(collective, plain, seconds, width)
        bench.emit("subtasks_per_second", sealed, "/s", **{**shown, "path": "joined hosts", "model": "none"})
    async with Collective.local(seed=bench.seed) as collective:
        collective.add(workers.plain, replicas=agents)
        rate = await _closed(collective, plain, seconds, width)
        bench.emit("subtasks_per_second", rate, "/s", **{**shown, "path": "own host", "model": "none"})
    await _slow(bench, each, shown)


async def _slow(bench: Bench, each: int, shown: dict[str, Any]) -> None:
    """A slow model: what the star adds to the critical path, and what a crash does to a call."""
    delay_s = 0.2 if bench.quick else 1.0
    told = {**shown, "path": "hosts", "model": f"{delay_s:g} s"}
    with _model(delay_s) as slow:
        async with _team(slow, each) as (collective, hosts):
            sides = [Subtask(f"b{n}", "bench.ask", "ask", ["a"]) for n in range(2)]
            diamond = Plan(
                [Subtask("a", "bench.ask", "ask"), *sides, Subtask("c", "bench.ask", "ask", ["b0", "b1"])]
            )
            task = Task("ask", plan=diamond, redundancy={"bench.ask": 2})
            walls = [_ended(await collective.run(task)).wall_s for _ in range(2 if bench.quick else 6)][1:]
            over = float(np.median(walls)) / (3 * delay_s) - 1
            bench.emit("over_critical_path", 100 * over, "%", **told)
            for outcome in ("typed error", "swap"):
                took, result = await _killed(collective, hosts, idempotent=outcome == "swap")
                if result.ok != (outcome == "swap"):
                    raise StateError(f"the run {result.status}: {result.failures}", hint="report this")
                again = delay_s if outcome == "swap" else 0  # the second agent asks the model too
                bench.emit("answer_after_kill", (took - again) * 1e3, "ms", outcome=outcome, **told)


async def _journals(
    bench: Bench,
    collective: Collective,
    hosts: Hosts,
    task: Task,
    *,
    seconds: float,
    width: int,
    told: dict[str, Any],
) -> None:
    """The closed loop without a journal and with each kind of one, on the same hosts.

    The loops take turns, as the speed of a shared machine drifts by more than a journal costs.
    """
    async with contextlib.AsyncExitStack() as stack:
        callers = {"none": collective}
        for durability in _DURABILITIES:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pandacore-bench-"))
            journal = stack.enter_context(Journal(Path(folder) / "runs.db", durability=durability))
            caller = await stack.enter_async_context(Collective.local(seed=bench.seed, journal=journal))
            for address in hosts.addresses:
                await caller.attach(address)
            callers[durability] = caller
        rates: dict[str, list[float]] = {name: [] for name in callers}
        for _ in range(1 if bench.quick else _TURNS):
            for name, caller in callers.items():
                rates[name].append(await _closed(caller, task, seconds, width))
    middle = {name: float(np.median(values)) for name, values in rates.items()}
    for name, rate in middle.items():
        bench.emit("subtasks_per_second", rate, "/s", journal=name, **told)
    for durability in _DURABILITIES:
        cost = 100 * (1 - middle[durability] / middle["none"])
        bench.emit("journal_cost", cost, "%", journal=durability, **told)


async def _killed(collective: Collective, hosts: Hosts, *, idempotent: bool) -> tuple[float, Result]:
    """kill -9 of a host whose agent waits for the model; seconds from there to the end of the run."""
    plan = Plan([Subtask("a", "bench.exposed", "ask")])
    task = Task("ask", plan=plan, redundancy={"bench.exposed": 2}, idempotent=idempotent)
    run = collective.start(task)
    killed = 0.0
    async for event in run.events():
        if isinstance(event, SubtaskProgress) and not killed:
            hosts.kill(int(event.text))
            killed = time.perf_counter()
    return time.perf_counter() - killed, await run.result()


@contextlib.contextmanager
def _model(delay_s: float = 0.0) -> Iterator[str]:
    """A model server in a process of its own; its address."""
    spec = ServerSpec(
        "scripted", f"{_MODULE}:answer", {"delay_s": str(delay_s)}, concurrency=256, waiting=4_096
    )
    with spawn(spec) as server:
        yield f"grpc://{server.address}"


@contextlib.asynccontextmanager
async def _joined(each: int) -> AsyncIterator[Collective]:
    """Hosts that found each other by gossip: calls are encrypted, and carry passes."""
    async with Collective.join(seed=1) as collective, LocalLauncher() as launcher:
        spec = HostSpec(
            collective.id,
            agents=(f"{_MODULE}:plain",) * each,
            limits={"queue_limit": 256},
            seeds=(collective.seed_address.partition("/")[0],),
        )
        await asyncio.gather(*(launcher.start(spec) for _ in range(_HOSTS)))
        for _ in range(1_200):  # a minute
            if len(collective.registry.holders("bench.plain")) == _HOSTS * each:
                break
            await asyncio.sleep(0.05)
        yield collective


@contextlib.asynccontextmanager
async def _team(model: str, each: int) -> AsyncIterator[tuple[Collective, Hosts]]:
    async with (
        Collective.local(seed=1) as collective,
        Hosts(collective, _MODULE, model=model, replicas=each) as hosts,
    ):
        await hosts.fill(_HOSTS)
        yield collective, hosts


def _task(capability: str) -> Task:
    plan = Plan([Subtask(f"s{n}", capability, "do it") for n in range(_SUBTASKS)])
    return Task("bench", plan=plan, redundancy={capability: _SUBTASKS})


def _ended(result: Result) -> Result:
    if not result.ok:
        raise StateError(f"a run failed: {result.failures[0]}", hint="report this")
    return result


async def _closed(collective: Collective, task: Task, seconds: float, width: int) -> float:
    """Subtasks per second with ``width`` runs at once, after a second of warming up."""

    async def one_loop(end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            _ended(await collective.run(task))
            count += _SUBTASKS
        return count

    async def all_loops(length_s: float) -> float:
        begin = time.perf_counter()
        counts = await asyncio.gather(*(one_loop(begin + length_s) for _ in range(width)))
        return sum(counts) / (time.perf_counter() - begin)

    await all_loops(min(seconds, 1.0))
    return await all_loops(seconds)


async def _open(
    collective: Collective, task: Task, seconds: float, runs_per_s: float, seed: int
) -> tuple[list[float], list[float]]:
    """Runs that come by a Poisson process, whether or not earlier ones have ended.

    Returns
    -------
    added, whole : list of float
        Seconds per subtask from when its team stood to its commit, less the agent's own time; and per run,
        from when it was due.
    """
    random = Random(seed)
    added: list[float] = []
    whole: list[float] = []

    async def one(due: float) -> None:
        result = _ended(await collective.run(task))
        whole.append(time.perf_counter() - due)
        [formed] = [e.ts for e in result.events if isinstance(e, TeamFormed)]
        added.extend(e.ts - formed - e.run_s for e in result.events if isinstance(e, SubtaskCompleted))

    due = begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        while (due := due + random.expovariate(runs_per_s)) < begin + seconds:
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            group.create_task(one(due))
    return added, whole


async def _peer(bench: Bench, ours: float, seconds: float, width: int, shown: dict[str, Any]) -> None:
    """AutoGen's runtime, in the interpreter that has it, with the same agents and without any model."""
    told = {**shown, "path": "hosts", "model": "none"}
    interpreter = str(bench.options["autogen"])
    if not bench.wants("autogen") or not interpreter:
        if bench.wants("autogen"):
            bench.skip("autogen", "needs an interpreter of its own: --autogen PATH, with autogen-ext[grpc]")
        bench.emit("subtasks_per_second", ours, "/s", **told)
        return
    script = str(Path(__file__).with_name("autogen_peer.py"))
    command = [interpreter, script, str(seconds), str(width)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        bench.skip("autogen", f"it did not run: {done.stderr.strip()[-300:]}")
        bench.emit("subtasks_per_second", ours, "/s", **told)
        return
    theirs = found["subtasks_per_second"]
    bench.emit(
        "subtasks_per_second", ours, "/s", peer="autogen", peer_value=theirs, ratio="times_faster", **told
    )
    if (answered := found["answer_after_kill_s"]) is None:
        bench.note(f"autogen: no answer within {found['waited_s']:g} s after its worker was killed")
    else:
        bench.note(f"autogen: answered {answered:.2f} s after its worker was killed")
