"""What the journal tells of a run: enough to show it, and to take it up again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.journal import Kind
from pandacore.models.types import Usage
from pandacore.patterns import MACHINES
from pandacore.patterns.base import Checkpoint, fold
from pandacore.plan import Plan
from pandacore.planted import PLANTED
from pandacore.task import Budget, Question, Task
from pandacore.team.driver import HUB, Past
from pandacore.team.engine import build

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandacore.journal import Journal

__all__ = ["Opened", "Rebuilt", "open_questions", "read_past", "rebuild"]


_NONE: Final = object()


@dataclass(frozen=True, slots=True)
class Opened:
    """A run read back from its records. ``finished`` is its result as data, None if it is still open."""

    task: Task
    pattern: str
    planner: str
    budget: Budget
    past: Past
    finished: Mapping[str, Any] | None


def read_past(journal: Journal, run_id: str) -> Opened:
    """Read a run. O(records); every record is verified.

    Raises
    ------
    UnknownRun, JournalCorrupt, IncompatibleJournal
        The journal cannot give the run.
    """
    first: Mapping[str, Any] | None = None
    plan: Plan | None = None
    source = ""
    state: dict[str, Any] | None = None
    usage = Usage()
    finished: Mapping[str, Any] | None = None
    resumed = 0
    answers: dict[str, Any] = {}
    for record in journal.read(run_id):
        match record.kind:
            case Kind.RUN:
                first = record.body
            case Kind.PLAN:
                made, source = record.body["plan"], record.body["source"]
                plan = _given(first) if made is None else Plan.from_dict(made)
            case Kind.CHECKPOINT:
                if state is not None and "stale_checkpoint" in PLANTED:
                    continue
                state = fold(state, Checkpoint(record.body["state"], record.body["full"]))
            case Kind.SPENT:
                usage += Usage(**record.body)
            case Kind.ANSWER:
                answers[record.body["id"]] = record.body["value"]
            case Kind.FINISH:
                finished = record.body
            case Kind.RESUMED:
                resumed += 1
    if first is None:
        raise errors.IncompatibleJournal(
            "the run does not begin with its task",
            where=f"{journal.path}, run {run_id}",
            hint="restore a backup",
        )
    return Opened(
        Task.from_dict(first["task"]),
        first["pattern"],
        first["planner"],
        Budget.from_dict(first["budget"]),
        Past(run_id, plan, source, state, usage, resumed, answers),
        finished,
    )


def _given(first: Mapping[str, Any] | None) -> Plan | None:
    """The plan that came with the task."""
    plan = None if first is None else first["task"]["plan"]
    return None if plan is None else Plan.from_dict(plan)


def open_questions(opened: Opened) -> list[Question]:
    """The questions of a run that wait for an answer, by its log; none of one that has ended."""
    past = opened.past
    if opened.finished is not None or past.state is None or opened.pattern not in MACHINES:
        return []
    machine = build(MACHINES[opened.pattern][0], past.run_id, HUB)
    machine.restore(past.state)
    found = (
        Question(q["text"], q["id"], q["schema"], q["subtask"], str(q["agent"] or ""))
        for q in machine.questions
    )
    return [question for question in found if question.id not in past.answers]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A run as its log alone tells it. ``same`` is False if the log contradicts the result it ends with."""

    records: int
    outputs: Mapping[str, Any]
    finished: str
    same: bool


def rebuild(journal: Journal, run_id: str) -> Rebuilt:
    """Replay a run's log: no agent and no model is called.

    Raises
    ------
    UnknownRun, JournalCorrupt, IncompatibleJournal
        The journal cannot give the run.
    """
    opened = read_past(journal, run_id)
    records = sum(1 for _ in journal.read(run_id))
    state = opened.past.state or {}
    outputs = {r["id"]: r["output"] for r in state.get("hub", {}).get("done", {}).values()}
    if opened.pattern != "star":
        outputs = dict((state.get("ended") or {}).get("outputs", {}))
    if opened.finished is None:
        return Rebuilt(records, outputs, "", True)
    told = dict(opened.finished["outputs"])
    # Members of a chain or mesh also told what they had done before the entrypoint could write it down.
    same = (
        told == outputs
        if opened.pattern == "star"
        else all(told.get(k, _NONE) == v for k, v in outputs.items())
    )
    return Rebuilt(records, outputs, opened.finished["status"], same)
