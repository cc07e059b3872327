"""HotPotQA: each question is one run of the demo team over its ten paragraphs.

Yang et al., "HotpotQA: A Dataset for Diverse, Explainable Multi-hop Question Answering" (2018).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pandacore.errors import ConfigError, PandacoreError
from pandacore.evals.scoring import answer_score, joint_score, support_score
from pandacore.models.types import Document

if TYPE_CHECKING:
    from pandacore.collective import Collective
    from pandacore.models.client import ModelClient
    from pandacore.models.handle import ModelHandle
    from pandacore.plan import Plan
    from pandacore.task import Budget, Result, Task

__all__ = [
    "METRICS",
    "Progress",
    "Report",
    "Row",
    "aggregate",
    "evaluate",
    "load_rows",
    "prediction",
    "score",
]

METRICS: Final = ("em", "f1", "sp_em", "sp_f1", "joint_em", "joint_f1")
"""The scores of one question, each 0 to 1."""
PLANNERS: Final = ("auto", "model", "rules", "single")
_COSTS: Final = ("wall_s", "cpu_s", "prompt_tokens", "completion_tokens", "total_tokens")
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One question: its gold answer and facts, and the paragraphs to answer from as (title, sentences)."""

    id: str
    question: str
    answer: str
    type: str
    supporting_facts: tuple[tuple[str, int], ...]
    context: tuple[tuple[str, tuple[str, ...]], ...]

    def documents(self) -> tuple[Document, ...]:
        """The paragraphs as documents. The id is the title, with a number where a title occurs twice."""
        found: dict[str, Document] = {}
        for title, sentences in self.context:
            name, count = title, 1
            while name in found:
                count += 1
                name = f"{title} #{count}"
            found[name] = Document(name, title, tuple(s.strip() for s in sentences))
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Progress:
    """Reported after each question: how many are done of how many, the last record, and the means so far."""

    done: int
    total: int
    record: Mapping[str, Any]
    means: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an evaluation. A question without a completed run counts 0 in every score.

    ``metrics`` holds the means of `METRICS`; ``by_type`` the same per question type; ``costs`` the mean
    seconds and tokens a question (``cpu_s`` only where the system tells it) and their totals as ``…_total``.
    """

    rows: int
    completed: int
    resumed: int
    settings: Mapping[str, Any]
    metrics: Mapping[str, float]
    by_type: Mapping[str, Mapping[str, float]]
    costs: Mapping[str, float]
    records: Sequence[Mapping[str, Any]] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single records, ready for JSON."""
        data = asdict(self)
        del data["records"]
        return data


def load_rows(path: str | Path, *, limit: int | None = None) -> list[Row]:
    """Read questions, one JSON object a line.

    Parameters
    ----------
    path : str or Path
        A JSONL file with the fields ``id, question, answer, type, supporting_facts, context``, where
        ``context`` is a list of ``[title, [sentence, …]]``.
    limit : int, optional
        Only the first rows.

    Raises
    ------
    ConfigError
        The file cannot be read, or a line is not such an object; says which.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"must be 1 or more, not {limit}", where="limit", hint="leave it out for all rows")
    rows: list[Row] = []
    seen: set[str] = set()
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if limit is not None and len(rows) >= limit:
                    break
                if not line.strip():
                    continue
                row = _row(line, f"{path}:{number}")
                if row.id in seen:
                    raise ConfigError(f"the id {row.id!r} occurs twice", where=f"{path}:{number}")
                seen.add(row.id)
                rows.append(row)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), hint="check --data") from None
    if not rows:
        raise ConfigError("no questions in the file", where=str(path), hint="check --data")
    return rows


def _row(line: str, where: str) -> Row:
    try:
        item = json.loads(line)
        return Row(
            id=str(item["id"]),
            question=str(item["question"]),
            answer=str(item["answer"]),
            type=str(item.get("type", "")),
            supporting_facts=tuple((str(t), int(i)) for t, i in item["supporting_facts"]),
            context=tuple((str(t), tuple(str(s) for s in body)) for t, body in item["context"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"not a HotPotQA row: {type(error).__name__}: {error}",
            where=where,
            hint="each line is an object with id, question, answer, supporting_facts and context",
        ) from None


# --- records ---------------------------------------------------------------------------------------------


def score(row: Row, answer: str, evidence: Iterable[tuple[str, int]]) -> dict[str, float]:
    """The official scores of one prediction, by the names of `METRICS`."""
    ours = answer_score(answer, row.answer)
    support = support_score(set(evidence), set(row.supporting_facts))
    joint = joint_score(ours, support)
    return {
        "em": ours.em,
        "f1": ours.f1,
        "sp_em": support.em,
        "sp_f1": support.f1,
        "joint_em": joint.em,
        "joint_f1": joint.f1,
    }


def aggregate(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each score over rows; one without a completed record counts 0."""
    return {
        name: sum(float(records[r.id][name]) if r.id in records else 0.0 for r in rows) / len(rows)
        if rows
        else 0.0
        for name in METRICS
    }


def _read_records(path: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a file holds of earlier runs. A cut last line, left by a crash, is taken off the file."""
    if not path.exists():
        return {}
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        os.truncate(path, whole)
    records: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(raw[:whole].decode("utf-8", "replace").splitlines(), 1):
        try:
            item = json.loads(line)
            kind = item["kind"]
        except (ValueError, TypeError, KeyError):
            raise ConfigError(
                "not a record of an evaluation", where=f"{path}:{number}", hint="give another --out file"
            ) from None
        if kind == "settings":
            earlier = {key: value for key, value in item.items() if key != "kind"}
            if earlier != dict(settings):
                changed = [k for k in {*earlier, *settings} if earlier.get(k) != settings.get(k)]
                raise ConfigError(
                    f"the file was written with other settings ({', '.join(sorted(changed))})",
                    where=str(path),
                    hint="give another --out file, or the same settings",
                )
        elif item.get("status") == "completed":
            records[item["id"]] = item
    return records


def _append(file: IO[str], item: Mapping[str, Any]) -> None:
    # One write and a flush: a crash loses at most the last line.
    file.write(json.dumps(item, ensure_ascii=False) + "\n")
    file.flush()


# --- running ---------------------------------------------------------------------------------------------


async def evaluate(
    rows: Sequence[Row],
    *,
    model: str | ModelClient | ModelHandle = "extractive",
    pattern: str = "star",
    limit: int | None = None,
    resume_path: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    planner: str = "auto",
    budget: Budget | None = None,
    concurrency: int = 1,
) -> Report:
    """Answer questions with the demo team and score them.

    Parameters
    ----------
    rows : sequence of Row
        The questions, from `load_rows`.
    model : str, ModelClient or ModelHandle
        What `pandacore.models.connect` takes or gives.
    pattern : str
        The orchestration pattern of each run.
    limit : int, optional
        Only the first rows.
    resume_path : str or Path, optional
        A JSONL file: one line a finished question is appended, and questions with a completed line are not
        run again. A cut last line is tolerated; other settings are refused.
    progress : callable, optional
        Called with a `Progress` after each question.
    planner : str
        ``model``: the model plans each question; ``rules``: the team's own plan by the question's wording;
        ``auto``: ``model`` for the extractive backend, which plans by the same rules, ``rules`` for others,
        whose plans cost tokens; ``single``: one agent answers alone, for comparison.
    budget : Budget, optional
        Of each run.
    concurrency : int
        Runs at once, at least 1. Above 1, ``cpu_s`` of a question holds parts of its neighbours.

    Returns
    -------
    Report

    Raises
    ------
    ConfigError
        An argument or the file is not valid.
    ModelError
        The model server could not be started. A failure inside a run is recorded and scores 0.
    """
    if planner not in PLANNERS:
        raise ConfigError(f"no planner {planner!r}", where="planner", hint=f"use {', '.join(PLANNERS)}")
    if concurrency < 1:
        raise ConfigError(f"must be 1 or more, not {concurrency}", where="concurrency", hint="use 1")
    from pandacore.collective import Collective
    from pandacore.demo.agents import TEAM, question_plan
    from pandacore.models.handle import connect

    chosen = list(rows[:limit])
    settings = {
        "format": _FORMAT,
        "eval": "hotpotqa",
        "model": model if isinstance(model, str) else getattr(model, "spec", repr(model)),
        "pattern": pattern,
        "planner": planner,
    }
    path = Path(resume_path) if resume_path is not None else None
    records: dict[str, dict[str, Any]] = _read_records(path, settings) if path else {}
    wanted = {row.id for row in chosen}
    records = {key: item for key, item in records.items() if key in wanted}
    resumed = len(records)
    async with (
        connect(model) as handle,
        Collective.local(model=handle.client) as collective,
    ):
        collective.add(*TEAM)
        plan = question_plan if planner == "rules" else _alone if planner == "single" else None
        if planner == "auto" and await _generates(handle):
            plan = question_plan
        file = open(path, "a", encoding="utf-8") if path else None  # noqa: ASYNC230, SIM115
        try:
            if file and file.tell() == 0:
                _append(file, {"kind": "settings", **settings})
            await _run_all(
                [row for row in chosen if row.id not in records],
                _Runner(collective, handle, pattern, plan, budget),
                records=records,
                file=file,
                chosen=chosen,
                progress=progress,
                concurrency=concurrency,
            )
        finally:
            if file:
                file.close()
    return _report(chosen, records, settings, resumed)


def _alone(question: str) -> Plan:
    """One subtask: the answerer finds its passages itself."""
    from pandacore.plan import Plan, Subtask

    return Plan([Subtask("answer", "answer.question", question)])


async def _generates(handle: ModelHandle) -> bool:
    known = await handle.client.list_models()
    return bool(known) and known[0].generative


@dataclass(frozen=True, slots=True)
class _Runner:
    """Everything a question needs to become a record."""

    collective: Collective
    handle: ModelHandle
    pattern: str
    plan: Callable[[str], Plan] | None
    budget: Budget | None

    def task(self, row: Row) -> Task:
        from pandacore.task import Task

        plan = self.plan(row.question) if self.plan else None
        return Task(row.question, documents=row.documents(), plan=plan)

    async def run(self, row: Row) -> dict[str, Any]:
        began, cpu = time.perf_counter(), self._cpu_s()
        result = await self.collective.run(self.task(row), pattern=self.pattern, budget=self.budget)
        ended = self._cpu_s()
        answer, evidence = prediction(row, result)
        return {
            "kind": "question",
            "id": row.id,
            "type": row.type,
            "question": row.question,
            "gold": row.answer,
            "answer": answer,
            "evidence": [list(item) for item in evidence],
            **score(row, answer, evidence),
            "wall_s": round(time.perf_counter() - began, 4),
            "cpu_s": round(ended - cpu, 4) if ended is not None and cpu is not None else None,
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "total_tokens": result.usage.total_tokens,
            "status": str(result.status),
            "failures": [str(failure) for failure in result.failures],
        }

    def _cpu_s(self) -> float | None:
        """CPU seconds of this process and of the model server it started; None if the latter is unknown."""
        process = self.handle.process
        if process is None:
            return None
        server = _process_cpu_s(process.pid)
        return None if server is None else time.process_time() + server


def _process_cpu_s(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prediction(row: Row, result: Result) -> tuple[str, list[tuple[str, int]]]:
    """The answer and evidence of a run, evidence by title; empty if the run failed."""
    output = result.output if result.ok else None
    if not isinstance(output, Mapping):
        return "", []
    titles = {document.id: document.title for document in row.documents()}
    evidence = [
        (titles[item["document"]], int(item["sentence"]))
        for item in output.get("evidence", ())
        if item["document"] in titles
    ]
    return str(output.get("answer", "")), evidence


async def _run_all(
    todo: Sequence[Row],
    runner: _Runner,
    *,
    records: dict[str, dict[str, Any]],
    file: IO[str] | None,
    chosen: Sequence[Row],
    progress: Callable[[Progress], None] | None,
    concurrency: int,
) -> None:
    places = asyncio.Semaphore(concurrency)
    done = len(records)

    async def one(row: Row) -> None:
        nonlocal done
        async with places:
            record = await runner.run(row)
        done += 1
        if file:
            _append(file, record)
        records[row.id] = record
        if progress:
            so_far = [r for r in chosen if r.id in records]
            progress(Progress(done, len(chosen), record, aggregate(so_far, records)))

    try:
        async with asyncio.TaskGroup() as group:
            for row in todo:
                group.create_task(one(row))
    except* PandacoreError as failed:
        # The first says what is wrong; its neighbours were cancelled or say the same.
        raise failed.exceptions[0] from None


def _report(
    rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any], resumed: int
) -> Report:
    kinds = sorted({row.type for row in rows})
    costs: dict[str, float] = {}
    for name in _COSTS:
        values = [
            float(records[r.id][name]) for r in rows if r.id in records and records[r.id][name] is not None
        ]
        if values:
            costs[name] = sum(values) / len(values)
            costs[f"{name}_total"] = sum(values)
    return Report(
        rows=len(rows),
        completed=sum(1 for r in rows if r.id in records and records[r.id]["status"] == "completed"),
        resumed=resumed,
        settings=settings,
        metrics=aggregate(rows, records),
        by_type={k: aggregate([r for r in rows if r.type == k], records) for k in kinds},
        costs=costs,
        records=[records[r.id] for r in rows if r.id in records],
    )
