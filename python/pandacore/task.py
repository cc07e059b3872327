"""What a caller hands in and gets back: tasks, budgets, events and results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pandacore.errors import ConfigError, PandacoreError, RunFailed
from pandacore.models.types import Document, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pandacore.broker import CapabilityMatch
    from pandacore.patterns.base import Contract
    from pandacore.plan import Plan

__all__ = [
    "Budget",
    "Document",
    "Event",
    "Failure",
    "Json",
    "Member",
    "PatternNote",
    "PlanReady",
    "Question",
    "QuestionAnswered",
    "QuestionAsked",
    "Result",
    "RunFinished",
    "RunStarted",
    "Status",
    "SubtaskCompleted",
    "SubtaskFailed",
    "SubtaskProgress",
    "SubtaskStarted",
    "Task",
    "TeamFormed",
    "TeamView",
    "Timings",
    "Usage",
]

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
"""What agents exchange: any JSON value."""

MAX_QUESTION_TEXT: Final = 10_000
"""Longest question of an agent, in characters."""
MAX_TASK_TEXT: Final = 1_000_000
"""Longest task text, in characters; larger input belongs into documents."""


def flat(data: Any) -> dict[str, Any]:
    """A dataclass of plain values as a dict; ``asdict`` would copy each of them, at ten times the cost."""
    return {name: getattr(data, name) for name in data.__dataclass_fields__}


def new_id() -> str:
    """A fresh run id: 20 hexadecimal digits. Ids only have to be distinct, not reproducible.

    The first 8 are the seconds since 1970, so that the records of runs of one time lie together in the
    journal (a third less work than with ids at random); the others are random.
    """
    return f"{int(time.time()) & 0xFFFF_FFFF:08x}{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Caps for one run; ``None`` means no cap. Checked before each call, never after.

    Parameters
    ----------
    tokens : int, optional
        Prompt and completion tokens of all model calls together.
    wall_s : float, optional
        Seconds from the start of the run to its end.
    steps : int, optional
        Subtask executions, retries included.
    replans : int
        Changes of the plan after it got stuck; 0: none.
    hops : int, optional
        Times that work passes from one agent to another: hand-offs along a chain, and executions that are
        repeated by another agent after a failure or a loss.
    cost : float, optional
        Money for all model calls together, by ``prices``. A model without a price is then ``UnknownPrice``.
    prices : mapping of str to (float, float)
        What 1,000 prompt tokens and 1,000 completion tokens of each model cost, in any one currency.
    agent_tokens, agent_cost, agent_steps : optional
        The same caps for each single agent. One that has used up its part gets nothing more of this run;
        another one with the capability goes on.
    """

    tokens: int | None = None
    wall_s: float | None = 300.0
    steps: int | None = 1_000
    replans: int = 3
    hops: int | None = None
    cost: float | None = None
    prices: Mapping[str, Sequence[float]] = field(default_factory=dict)
    agent_tokens: int | None = None
    agent_cost: float | None = None
    agent_steps: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "tokens",
            "wall_s",
            "steps",
            "hops",
            "cost",
            "agent_tokens",
            "agent_cost",
            "agent_steps",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(
                    f"must be above 0, not {value}", where=f"Budget.{name}", hint="use None for no cap"
                )
        if not 0 <= self.replans <= 1_000:
            raise ConfigError(f"must be 0 to 1000, not {self.replans}", where="Budget.replans", hint="use 3")
        for model, price in self.prices.items():
            if len(price) != 2 or not all(0 <= p < math.inf for p in price):
                raise ConfigError(
                    f"the price of {model!r} is {price!r}, not two numbers from 0 up",
                    where="Budget.prices",
                    hint="give what 1,000 prompt tokens and 1,000 completion tokens cost",
                )
        for name, whole in (
            ("agent_tokens", self.tokens),
            ("agent_cost", self.cost),
            ("agent_steps", self.steps),
        ):
            part = getattr(self, name)
            if part is not None and whole is not None and part > whole:
                raise ConfigError(
                    f"one agent may not have more than the run: {part} of {whole}",
                    where=f"Budget.{name}",
                    hint="lower it",
                )

    def to_dict(self) -> dict[str, Any]:
        """The caps as JSON-ready data."""
        return {**flat(self), "prices": {m: list(p) for m, p in self.prices.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Budget:
        """The inverse of :meth:`to_dict`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent has to know before it can go on; see :class:`pandacore.errors.InputRequired`.

    Parameters
    ----------
    text : str
        For whoever answers; 1 to 10,000 characters.
    id : str
        Its name within the subtask, without a colon. Default: derived from the text, so the same text is the
        same question. As a question of a run (``Run.questions``) it is ``SUBTASK:ID``.
    schema : mapping, optional
        JSON schema of the answer; another one is refused. None: any JSON value.
    """

    text: str
    id: str = ""
    schema: Mapping[str, Any] | None = None
    # Set by the runtime on the open questions of a run.
    subtask_id: str = ""
    agent: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip() or len(self.text) > MAX_QUESTION_TEXT:
            raise ConfigError(
                f"the question is not a text of 1 to {MAX_QUESTION_TEXT} characters",
                where="Question.text",
                hint="say what has to be known",
            )
        if not self.id:
            digest = hashlib.blake2b(self.text.encode(), digest_size=4).hexdigest()
            object.__setattr__(self, "id", digest)
        if not self.subtask_id and (not isinstance(self.id, str) or ":" in self.id or len(self.id) > 128):
            raise ConfigError(
                f"the id {self.id!r} is not a string of 1 to 128 characters without a colon",
                where="Question.id",
                hint='name it like "approve"',
            )


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work.

    The same class is what a caller runs and what an agent receives: an agent sees its own instruction in
    ``text``, the outputs of the subtasks it depends on in ``inputs``, and the caller's words in
    ``root_text``.

    Parameters
    ----------
    text : str
        The instruction or question, not blank.
    capabilities : sequence of str, optional
        What the team must be able to do, in order. Empty: proposed by the model, or matched by words.
    documents : sequence of Document, optional
        Passages that the work may rest on.
    inputs : mapping, optional
        JSON values that the task brings along.
    plan : Plan, optional
        A ready plan; planning is skipped.
    redundancy : mapping of str to int, optional
        Agents to hold per capability (default 1): one works, the others are there when it fails.
    race : bool
        True: all agents held for a capability work on each of its subtasks; the first output counts.
    debate : bool
        True, in a mesh: all agents held for a capability work on each of its subtasks, see each other's
        answers and answer again; the answer of most counts.
    contracts : mapping of str to Contract, optional
        Per subtask id of the plan: what its output must keep. A broken contract is sent back once, then
        another agent takes over.
    priority : int
        Larger runs earlier in an agent's queue.
    idempotent : bool
        True: a subtask whose outcome is unknown may be executed again.
    metadata : mapping of str to str, optional
        Passed to every agent unchanged.
    """

    text: str
    capabilities: Sequence[str] = ()
    documents: Sequence[Document] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    redundancy: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0
    idempotent: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    race: bool = False
    debate: bool = False
    contracts: Mapping[str, Contract] = field(default_factory=dict)
    # Set by the runtime on what an agent receives.
    capability: str = ""
    root_text: str = ""
    run_id: str = ""
    subtask_id: str = ""
    attempt: int = 1
    idempotency_key: str = ""
    contract: Contract | None = None
    answers: Mapping[str, Any] = field(default_factory=dict)
    """To what the agent asked by ``InputRequired``, by the questions' own ids; empty at first."""
    state: Any = None
    """What the agent gave along with its last questions."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ConfigError("the task text is empty", where="Task.text", hint="say what should be done")
        if len(self.text) > MAX_TASK_TEXT:
            raise ConfigError(
                f"the task text has {len(self.text)} characters, at most {MAX_TASK_TEXT} are allowed",
                where="Task.text",
                hint="put the material into documents",
            )
        if isinstance(self.capabilities, str):
            raise ConfigError(
                "capabilities is one string",
                where="Task.capabilities",
                hint="pass a list of capability names",
            )
        object.__setattr__(self, "capabilities", tuple(self.capabilities))
        object.__setattr__(self, "documents", tuple(self.documents))
        if self.race and self.debate:
            raise ConfigError(
                "the first answer cannot count where answers are debated",
                where="Task.race",
                hint="choose race or debate",
            )
        for name, count in self.redundancy.items():
            if not 1 <= count <= 1_000:
                raise ConfigError(
                    f"redundancy of {name!r} is {count}, must be 1 to 1000",
                    where="Task.redundancy",
                    hint="lower it",
                )

    def to_dict(self) -> dict[str, Any]:
        """What the caller gave, as JSON-ready data."""
        return {
            "text": self.text,
            "capabilities": list(self.capabilities),
            "documents": [[d.id, d.title, list(d.sentences)] for d in self.documents],
            "inputs": dict(self.inputs),
            "plan": self.plan.to_dict() if self.plan else None,
            "redundancy": dict(self.redundancy),
            "priority": self.priority,
            "idempotent": self.idempotent,
            "metadata": dict(self.metadata),
            "race": self.race,
            "debate": self.debate,
            "contracts": {name: c.to_dict() for name, c in self.contracts.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """The inverse of :meth:`to_dict`."""
        from pandacore.patterns.base import Contract
        from pandacore.plan import Plan

        return cls(
            **{
                **data,
                "documents": [Document(*d) for d in data["documents"]],
                "plan": Plan.from_dict(data["plan"]) if data["plan"] else None,
                "contracts": {name: Contract.from_dict(c) for name, c in data["contracts"].items()},
            }
        )


@lru_cache(maxsize=4_096)
def _did(agent_id: bytes) -> str:
    from pandacore.trust import did_of

    return did_of(agent_id)


class Status(StrEnum):
    """How a run ended; ``input_required``: it has not, and is parked in the run log until it is resumed."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a subtask or a run failed. ``kind`` is the class name in :mod:`pandacore.errors`."""

    kind: str
    message: str
    hint: str | None = None
    where: str | None = None
    subtask_id: str | None = None
    agent: str | None = None

    @classmethod
    def of(cls, error: BaseException, *, subtask_id: str | None = None, agent: str | None = None) -> Failure:
        """The failure that an exception stands for."""
        if isinstance(error, PandacoreError):
            return cls(type(error).__name__, error.message, error.hint, error.where, subtask_id, agent)
        return cls(type(error).__name__, str(error), None, None, subtask_id, agent)

    def __str__(self) -> str:
        place = f"{self.subtask_id}: " if self.subtask_id else ""
        tail = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.kind}: {self.message}{tail}"


@dataclass(frozen=True, slots=True)
class Member:
    """One team member and why it was chosen."""

    agent_id: bytes
    name: str
    capability: str
    load: int
    expected_wait_s: float
    candidates: int
    why: str
    address: str = ""
    """Where its host serves it."""

    @property
    def did(self) -> str:
        """The agent's id as ``did:key:z6Mk…``."""
        return _did(self.agent_id)


@dataclass(frozen=True, slots=True)
class TeamView:
    """The agents that serve one run, in the order of the capabilities."""

    members: tuple[Member, ...] = ()
    mode: str = "consolidated"
    matches: tuple[CapabilityMatch, ...] = ()
    """Capabilities that nobody had by name, and what was taken for each by meaning."""

    def _repr_html_(self) -> str:
        from pandacore.notebook import team_html

        return team_html(self)

    def holders(self, capability: str) -> tuple[Member, ...]:
        """The members that hold a place for ``capability``."""
        return tuple(m for m in self.members if m.capability == capability)


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the start of the run: what each phase took, and the whole."""

    plan_s: float = 0.0
    assemble_s: float = 0.0
    execute_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run. ``output`` raises unless it completed, so an error is never read as an answer."""

    run_id: str
    status: Status
    value: Any
    outputs: Mapping[str, Any]
    failures: tuple[Failure, ...]
    usage: Usage
    timings: Timings
    team: TeamView
    plan: Plan | None
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def output(self) -> Any:
        """The answer: the output of the plan's one last subtask, or a dict of all last ones by subtask id.

        Raises
        ------
        RunFailed
            The run did not complete; ``outputs`` holds what was finished.
        """
        if self.status is not Status.COMPLETED:
            raise RunFailed(
                f"run {self.run_id} {self.status}: {'; '.join(map(str, self.failures)) or 'no reason given'}",
                status=str(self.status),
                hint="see Result.failures, and Result.outputs for the finished subtasks",
            )
        return self.value

    @property
    def ok(self) -> bool:
        """True if the run completed."""
        return self.status is Status.COMPLETED

    @property
    def wall_s(self) -> float:
        """Seconds from start to end."""
        return self.timings.wall_s

    def _repr_html_(self) -> str:
        from pandacore.notebook import result_html

        return result_html(self)

    def to_json(self) -> str:
        """One JSON object with everything but the events and documents."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return {
            "run_id": self.run_id,
            "status": str(self.status),
            "output": self.value,
            "outputs": dict(self.outputs),
            "failures": [flat(f) for f in self.failures],
            "usage": flat(self.usage),
            "timings": flat(self.timings),
            "team": [
                {"name": m.name, "did": m.did, "capability": m.capability, "why": m.why, "address": m.address}
                for m in self.team.members
            ],
            "matches": [dataclasses.asdict(match) for match in self.team.matches],
            "plan": self.plan.to_dict() if self.plan else None,
        }


@dataclass(frozen=True, slots=True)
class _EventBase:
    """``seq`` counts from 1 within a run; ``ts`` is seconds since the run began."""

    seq: int
    ts: float
    run_id: str


@dataclass(frozen=True, slots=True)
class RunStarted(_EventBase):
    """The run exists."""

    task: Task


@dataclass(frozen=True, slots=True)
class PlanReady(_EventBase):
    """The subtasks are known. ``source`` is ``user``, ``model`` or ``rule``."""

    plan: Plan
    source: str


@dataclass(frozen=True, slots=True)
class TeamFormed(_EventBase):
    """Every capability of the plan has its agents."""

    team: TeamView


@dataclass(frozen=True, slots=True)
class SubtaskStarted(_EventBase):
    """An agent accepted a subtask."""

    subtask_id: str
    agent: str
    attempt: int
    capability: str
    instruction: str


@dataclass(frozen=True, slots=True)
class SubtaskProgress(_EventBase):
    """A line of progress from the agent."""

    subtask_id: str
    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class SubtaskCompleted(_EventBase):
    """A subtask's output is accepted; it is never executed again."""

    subtask_id: str
    agent: str
    output: Any
    usage: Usage
    queued_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class SubtaskFailed(_EventBase):
    """An attempt failed; ``retrying`` says if another agent takes over."""

    subtask_id: str
    agent: str
    attempt: int
    failure: Failure
    retrying: bool


@dataclass(frozen=True, slots=True)
class QuestionAsked(_EventBase):
    """A subtask waits for an answer, by :meth:`Collective.answer` or ``pandacore answer``."""

    question: Question


@dataclass(frozen=True, slots=True)
class QuestionAnswered(_EventBase):
    """A question has its answer; the subtask goes on once it has all of them."""

    question_id: str


@dataclass(frozen=True, slots=True)
class PatternNote(_EventBase):
    """What the pattern did to go on: a swap, a vote, a new leader. For people; with progress lines at most
    10,000 a run.

    ``kind`` is, among others, ``evict``, ``joined``, ``readmitted``, ``splice``, ``drift``, ``replan``,
    ``tally``, ``decided``, ``reform``, ``debated``, ``leads`` or ``deposed``; ``agent`` is who did it, empty
    for the entrypoint; ``details`` depend on the kind.
    """

    kind: str
    agent: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunFinished(_EventBase):
    """The last event of every run."""

    result: Result


Event: TypeAlias = (
    RunStarted
    | PlanReady
    | TeamFormed
    | SubtaskStarted
    | SubtaskProgress
    | SubtaskCompleted
    | SubtaskFailed
    | QuestionAsked
    | QuestionAnswered
    | PatternNote
    | RunFinished
)
"""The closed union of what a run reports."""

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
