"""The demo team as agents that crash or talk nonsense when told to, for host processes to import.

What a step shall do stands in the task's metadata, and what it did in a folder that all hosts share: the
first host to take a doomed step up leaves a file there, so that a step crashes once whatever the pattern.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pandacore.agent import Agent, AgentContext, agent
from pandacore.demo import agents as team
from pandacore.task import Task

__all__ = ["FOLDER", "answerer", "comparer", "doomed", "reader", "retriever"]

FOLDER = "PANDACORE_STUDY_FOLDER"
"""Environment variable with the shared folder."""
NONSENSE = "The best time to plant a lemon tree is a calm morning in spring."


def doomed(seed: str, subtask_id: str, probability: float) -> bool:
    """Whether a step crashes, by the seed of its task alone."""
    drawn = int.from_bytes(blake2b(f"{seed}/{subtask_id}".encode(), digest_size=8).digest(), "big")
    return drawn < probability * 2**64


def _claimed(folder: Path, name: str) -> bool:
    """True for the first caller of all processes with this name."""
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _log(folder: Path, run_id: str, **entry: object) -> None:
    line = json.dumps({"pid": os.getpid(), "at": time.monotonic(), **entry}) + "\n"
    with open(folder / f"{run_id}.jsonl", "a", encoding="utf-8") as file:  # one write: lines stay whole
        file.write(line)


def _faulty(folder: Path, task: Task) -> bool:
    """Whether this process is the one that talks nonsense: the first to take the capability up in the run."""
    if task.metadata.get("faulty") != task.capability:
        return False
    name = f"{task.run_id}.faulty"
    if _claimed(folder, name):
        (folder / name).write_text(str(os.getpid()))
    return (folder / name).read_text() == str(os.getpid())


def _mortal(target: object) -> Any:
    sane = Agent.of(target)
    work: Callable[[Task, AgentContext], Any] = sane.handler

    @agent(
        capabilities=sane.capabilities,
        name=sane.name,
        description=sane.description,
        concurrency=sane.concurrency,
    )
    async def step(task: Task, ctx: AgentContext) -> Any:
        folder = Path(os.environ[FOLDER])
        _log(folder, task.run_id, what="began", subtask=task.subtask_id, capability=task.capability)
        if _faulty(folder, task):
            return {"answer": NONSENSE, "evidence": [], "confidence": 1.0}
        output = await work(task, ctx)
        probability = float(task.metadata.get("crash", "0"))
        forced = task.metadata.get("forced", "") == task.subtask_id
        if (forced or doomed(task.metadata.get("seed", ""), task.subtask_id, probability)) and _claimed(
            folder, f"{task.run_id}.{task.subtask_id}.crash"
        ):
            # The work is done and the answer not given: the moment at which a crash costs most.
            _log(folder, task.run_id, what="crashed", subtask=task.subtask_id)
            os.kill(os.getpid(), signal.SIGKILL)
        return output

    return step


retriever = _mortal(team.retriever)
reader = _mortal(team.reader)
comparer = _mortal(team.comparer)
answerer = _mortal(team.answerer)
