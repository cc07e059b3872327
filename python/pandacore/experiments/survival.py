"""``pandacore experiment crashes`` and ``faults``: what becomes of answers when members die or go astray.

Every agent lives in a host process of its own kind, on the other side of gRPC. Each question runs clean and
disturbed, on the same model and plan.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pandacore.bench.frame import Option
from pandacore.collective import Collective
from pandacore.demo.agents import CAPABILITIES
from pandacore.errors import ConfigError
from pandacore.evals.hotpotqa import Row, prediction, score
from pandacore.experiments.frame import Experiment
from pandacore.experiments.hosts import Hosts
from pandacore.experiments.mortal import FOLDER, doomed
from pandacore.experiments.questions import DATA, interval, load_questions
from pandacore.models.extractive.planning import plan_question
from pandacore.models.handle import connect
from pandacore.patterns.base import Contract
from pandacore.plan import Plan, Subtask
from pandacore.task import Budget, Task

__all__ = ["CRASHES_OPTIONS", "FAULTS_OPTIONS", "PATTERNS", "crashes", "faults"]

PATTERNS: Final = ("star", "chain", "mesh")
"""The patterns that run over host processes."""
_MODULE: Final = "pandacore.experiments.mortal"
_SPARE: Final = 2

_COMMON: Final = (
    DATA,
    Option("model", str, "extractive", "what answers: extractive, llama:NAME, openai:MODEL or grpc://…"),
    Option("rows", int, 50, "only so many questions, 0: all"),
    Option("patterns", str, ",".join(PATTERNS), f"which of {', '.join(PATTERNS)}, separated by commas"),
)
CRASHES_OPTIONS: Final = (
    *_COMMON,
    Option("probability", float, 0.5, "of a crash, for each step; every question has at least one crash"),
)
FAULTS_OPTIONS: Final = _COMMON


@dataclass(frozen=True, slots=True)
class _Answered:
    """One question's run: its scores, its end, and what the agents logged."""

    scores: Mapping[str, float]
    completed: bool
    wall_s: float
    log: Sequence[Mapping[str, Any]]
    faulty: int | None
    failure: str


def crashes(experiment: Experiment) -> None:
    """Kill hosts with ``kill -9`` in the middle of steps."""
    probability = float(str(experiment.options["probability"]))
    if not 0 <= probability <= 1:
        raise ConfigError(f"{probability} is no probability", where="--probability", hint="use 0.5")

    def disturb(row: Row, plan: Plan) -> dict[str, str]:
        seed = f"{experiment.seed}/{row.id}"
        told = {"crash": str(probability), "seed": seed}
        if not any(doomed(seed, s.id, probability) for s in plan.subtasks):
            # Every question has a crash: if chance spares all steps, one is chosen.
            drawn = np.random.default_rng([experiment.seed, len(row.id), *row.id.encode()])
            told["forced"] = plan.order[int(drawn.integers(len(plan)))]
        return told

    for pattern, data, clean, disturbed in _both(experiment, disturb):
        killed = [e for a in disturbed for e in a.log if e["what"] == "crashed"]
        experiment.emit("crashes", len(killed), pattern=pattern, data=data)
        waits = [s for answered in disturbed for s in _recoveries(answered.log)]
        for name, q in (("recovery_p50_ms", 0.5), ("recovery_p99_ms", 0.99)):
            value = float(np.quantile(waits, q)) * 1e3 if waits else None
            experiment.emit(name, value, pattern=pattern, data=data, crashes=len(waits))
        extra = sum(a.wall_s for a in disturbed) - sum(a.wall_s for a in clean)
        value = extra / len(killed) * 1e3 if killed else None
        experiment.emit("wall_per_crash_ms", value, pattern=pattern, data=data)


def faults(experiment: Experiment) -> None:
    """Let the first agent that takes up one capability talk about something else for the whole run."""

    def disturb(row: Row, plan: Plan) -> dict[str, str]:
        drawn = np.random.default_rng([experiment.seed, len(row.id), *row.id.encode()])
        held = list(plan.capabilities)
        return {"faulty": held[int(drawn.integers(len(held)))]}

    for pattern, data, clean, disturbed in _both(experiment, disturb):
        swapped = [_was_swapped(answered) for answered in disturbed]
        experiment.emit("swap_rate", sum(swapped) / len(swapped), pattern=pattern, data=data)
        for name in ("em", "f1"):
            before = sum(a.scores[name] for a in clean) / len(clean)
            after = sum(a.scores[name] for a in disturbed) / len(disturbed)
            experiment.emit(f"{name}_lost_points", 100 * (before - after), pattern=pattern, data=data)


_Disturb = Callable[[Row, Plan], dict[str, str]]


def _both(
    experiment: Experiment, disturb: _Disturb
) -> Iterator[tuple[str, str, list[_Answered], list[_Answered]]]:
    """Run the questions clean and disturbed, per pattern; emits what both studies share."""
    options: dict[str, Any] = experiment.options
    data, rows = load_questions(options["data"], 4 if experiment.quick else options["rows"])
    wanted = [name.strip() for name in options["patterns"].split(",") if name.strip()]
    for name in wanted:
        if name not in PATTERNS:
            raise ConfigError(f"no pattern {name!r}", where="--patterns", hint=f"use {', '.join(PATTERNS)}")
    for pattern in wanted:
        found: dict[str, list[_Answered]] = {}
        for kind in ("clean", "disturbed"):
            answered = asyncio.run(
                _answer_all(rows, pattern, options["model"], disturb if kind == "disturbed" else None)
            )
            found[kind] = answered
            for failed in filter(None, (a.failure for a in answered)):
                experiment.note(f"{pattern}: {failed}")
            told: dict[str, Any] = {"pattern": pattern, "run": kind, "data": data, "rows": len(rows)}
            experiment.emit("completion_rate", sum(a.completed for a in answered) / len(rows), **told)
            for name in ("em", "f1"):
                values = [a.scores[name] for a in answered]
                low, high = interval(values, experiment.rng())
                experiment.emit(
                    name, sum(values) / len(values), low=round(low, 4), high=round(high, 4), **told
                )
            experiment.emit("wall_s", sum(a.wall_s for a in answered) / len(rows), **told)
        yield pattern, data, found["clean"], found["disturbed"]


async def _answer_all(
    rows: Sequence[Row], pattern: str, model: str, disturb: _Disturb | None
) -> list[_Answered]:
    with tempfile.TemporaryDirectory(prefix="pandacore-study-") as name:
        folder = Path(name)
        async with connect(model) as handle, Collective.local(seed=1) as collective:
            hosts = Hosts(
                collective,
                _MODULE,
                model=f"grpc://{handle.client.target}",
                environment={FOLDER: name},
            )
            async with hosts:
                study = _Study(pattern, collective, hosts, folder, disturb)
                return [await study.answer(row) for row in rows]


@dataclass(frozen=True, slots=True)
class _Study:
    """Where questions are answered, and what is done to them."""

    pattern: str
    collective: Collective
    hosts: Hosts
    folder: Path
    disturb: _Disturb | None

    async def answer(self, row: Row) -> _Answered:
        """Run one question."""
        plan = Plan(
            [
                Subtask(step.id, step.capability, step.instruction, step.depends_on)
                for step in plan_question(row.question, CAPABILITIES)
            ]
        )
        # At worst every step takes a host with it, and somebody must be left to do the last one again.
        await self.hosts.fill((len(plan) if self.disturb else 0) + _SPARE)
        documents = row.documents()
        task = Task(
            row.question,
            documents=documents,
            plan=plan,
            idempotent=True,
            contracts={s.id: _contract(s, [d.id for d in documents]) for s in plan.subtasks},
            metadata=self.disturb(row, plan) if self.disturb else {},
        )
        result = await self.collective.run(task, pattern=self.pattern, budget=Budget(wall_s=600))
        answer, evidence = prediction(row, result)
        log_file = self.folder / f"{result.run_id}.jsonl"
        lines = log_file.read_text(encoding="utf-8").splitlines() if log_file.exists() else []
        faulty = self.folder / f"{result.run_id}.faulty"
        return _Answered(
            score(row, answer, evidence),
            result.ok,
            result.wall_s,
            [json.loads(line) for line in lines],
            int(faulty.read_text()) if faulty.exists() else None,
            "" if result.ok else f"{row.id}: {result.failures[0]}",
        )


def _contract(subtask: Subtask, documents: Sequence[str]) -> Contract:
    """What a step owes: it speaks of the documents at hand. An answer without evidence must be empty."""
    known = {"enum": list(documents)}
    quoted = {
        "type": "array",
        "items": {"type": "object", "properties": {"document": known}, "required": ["document"]},
    }
    match subtask.capability:
        case "retrieve.passages":
            properties: dict[str, Any] = {"documents": {"type": "array", "items": known}}
        case "answer.question":
            properties = {"answer": {"type": "string"}, "evidence": quoted}
        case _:
            properties = {"facts": quoted}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(properties)}
    if subtask.capability == "answer.question":
        proven = {"properties": {"evidence": {"minItems": 1}}}
        schema["anyOf"] = [proven, {"properties": {"answer": {"const": ""}}}]
    return Contract(subtask.instruction, output_schema=schema, max_bytes=262_144)


def _recoveries(log: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds from each crash to the moment at which another agent begins the step anew."""
    found = []
    for crash in (entry for entry in log if entry["what"] == "crashed"):
        later = [
            entry["at"]
            for entry in log
            if entry["what"] == "began" and entry["subtask"] == crash["subtask"] and entry["at"] > crash["at"]
        ]
        if later:
            found.append(min(later) - crash["at"])
    return found


def _was_swapped(answered: _Answered) -> bool:
    """Whether the faulty agent's step was finished by another."""
    if answered.faulty is None or not answered.completed:
        return False
    lines = {entry["subtask"]: entry["pid"] for entry in answered.log}  # the last to begin each step
    began = {entry["subtask"] for entry in answered.log if entry["pid"] == answered.faulty}
    return any(lines[subtask] != answered.faulty for subtask in began)
