"""What every pattern is: ``handle(event) -> actions``, with no clock, socket or randomness.

Each node of a team, the entrypoint and every member, runs one :class:`Machine`. The driver
(`pandacore.team.driver`) carries the actions out over gRPC and feeds what happened back in; in tests
:class:`pandacore.testing.SimNetwork` does the same in virtual time, with faults.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from pandacore import errors
from pandacore.errors import PandacoreError
from pandacore.planted import PLANTED

if TYPE_CHECKING:
    from pandacore.plan import Plan

__all__ = [
    "RUN",
    "Action",
    "Answered",
    "AskJudgement",
    "AskPlan",
    "AskRanking",
    "AskReplacement",
    "Asked",
    "Assigned",
    "CancelRequested",
    "Checkpoint",
    "ClearTimer",
    "Contract",
    "Emit",
    "Event",
    "Evict",
    "Execute",
    "Executed",
    "ExecutionFailed",
    "Finish",
    "Judged",
    "Limits",
    "Machine",
    "PeerDown",
    "PeerUp",
    "Planned",
    "PlanningFailed",
    "Ranked",
    "Reason",
    "Received",
    "Replacement",
    "Send",
    "SetTimer",
    "Start",
    "StopExecution",
    "TimerFired",
    "canonical",
    "error_from_json",
    "error_to_json",
    "fold",
    "hop_cap",
    "is_wall",
    "joined",
    "repetition",
    "short_hash",
    "subtask_digests",
]

RUN: Final = ""
"""The key in ``Finish.failed`` for an error of the run itself rather than of one subtask."""


REPEATS: Final = 3
"""Times that the same rejected output may come before it is a loop."""


class Reason(StrEnum):
    """Why a member leaves the team. A faulty one is never taken back, a crashed one may be."""

    CRASH = "crash"
    FAULTY = "faulty"


# -- events: what a machine is told ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Begin, or go on after :meth:`Machine.restore`."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer: a JSON object with ``kind`` and ``run``. May be late, repeated, out of order."""

    sender: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Assigned:
    """An agent is asked for an execution that the driver was to place, or confirms that it is still at it.

    Where checkpoints are kept, this one is stored before the agent hears of it. ``memory``: what comes back
    as :attr:`Execute.memory`, by which the agent's host knows whether it ever did.
    """

    subtask_id: str
    attempt: int
    agent: str
    memory: str = ""


@dataclass(frozen=True, slots=True)
class Executed:
    """An execution gave an output."""

    subtask_id: str
    attempt: int
    output: Any


@dataclass(frozen=True, slots=True)
class ExecutionFailed:
    """An execution gave none. ``executed`` False: the agent's code never began."""

    subtask_id: str
    attempt: int
    error: PandacoreError
    executed: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """An execution ended with questions instead of an output: the subtask goes on, by a new attempt, once
    they are answered. Each question has ``id`` (its own within the subtask), ``text`` and ``schema`` (or
    None); ``state`` is what the agent wants back then."""

    subtask_id: str
    attempt: int
    questions: Sequence[Mapping[str, Any]]
    state: Any = None

    def to_dict(self) -> dict[str, Any]:
        """The questions and the state as JSON-ready data."""
        return {"questions": [dict(q) for q in self.questions], "state": self.state}


@dataclass(frozen=True, slots=True)
class Answered:
    """A question of the run (``SUBTASK:ID``) has its answer. Unknown and repeated ones change nothing."""

    question: str
    value: Any


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The failure detector holds ``peer`` for dead. It may be wrong; no safety rests on it."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerUp:
    """``peer`` is alive: it came back, or the suspicion was wrong."""

    peer: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer of this name ran out."""

    name: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer to :class:`AskPlan`, with the request it was asked by."""

    plan: Plan
    request: str


@dataclass(frozen=True, slots=True)
class PlanningFailed:
    """No plan could be made."""

    error: PandacoreError
    request: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer to :class:`AskRanking`: digests of the proposals, best first."""

    request: str
    ranking: Sequence[str]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The answer to :class:`AskReplacement`; None: nobody was found."""

    capability: str
    peer: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """An output was checked: the answer to :class:`AskJudgement`, or the word of a watchdog or a peer."""

    subtask_id: str
    attempt: int
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The caller wants the run to stop."""


Event: TypeAlias = (
    Start
    | Received
    | Assigned
    | Executed
    | ExecutionFailed
    | Asked
    | Answered
    | PeerDown
    | PeerUp
    | TimerFired
    | Planned
    | PlanningFailed
    | Ranked
    | Replacement
    | Judged
    | CancelRequested
)
"""What a machine is told."""


# -- actions: what a machine asks for ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer. It may get lost: what matters is retransmitted by timers."""

    to: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Execute:
    """Have an agent work on a subtask. Repeating it for a running or finished attempt must change nothing.

    ``agent`` is the peer that shall do it (``me``: this node's own agent). None: the driver chooses, among
    ``candidates`` if there are any, and says whom by :class:`Assigned`. ``epoch`` fences: an agent obeys no
    epoch lower than the highest it has seen. ``inputs`` may hold ``_revise`` (why the last output was sent
    back), ``_debate`` (what the others answered) or ``_answers`` (to what the agent asked). ``again``: it was
    sent before and is not idempotent; an agent that does not know it must answer ``UnknownOutcome`` rather
    than do it, unless its host still has the ``memory`` of then, so that it cannot have come. ``work`` holds
    the ``capability`` and ``instruction`` where the machine knows the plan in force better than its driver.
    """

    subtask_id: str
    attempt: int
    inputs: Mapping[str, Any]
    agent: str | None = None
    candidates: tuple[str, ...] = ()
    epoch: int = 1
    contract: Contract | None = None
    again: bool = False
    memory: str = ""
    work: Mapping[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StopExecution:
    """Cancel an execution: its output is no longer wanted. ``agent``: who was asked, None if the driver
    chose."""

    subtask_id: str
    attempt: int
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Wake the machine by ``TimerFired(name)`` after so many seconds; a timer of this name starts anew."""

    name: str
    after_s: float


@dataclass(frozen=True, slots=True)
class ClearTimer:
    """Forget the timer of this name, if any."""

    name: str


@dataclass(frozen=True, slots=True)
class AskPlan:
    """Have a plan made. ``context`` holds ``reason`` (``plan``, ``replan``, ``propose``, ``revise``), the
    finished ``outputs`` by subtask id, and what went wrong. Answered by ``Planned`` or ``PlanningFailed``."""

    request: str
    context: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AskRanking:
    """Have proposals (digest -> plan) ranked, best first. Answered by ``Ranked``."""

    request: str
    proposals: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AskReplacement:
    """Find another agent with the capability: registry first, then broadcast. Answered by ``Replacement``."""

    capability: str
    exclude: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskJudgement:
    """Check an output against its contract. Answered by ``Judged``."""

    subtask_id: str
    attempt: int
    output: Any
    contract: Contract


@dataclass(frozen=True, slots=True)
class Evict:
    """A member leaves the team."""

    peer: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Durable state. It must be on disk before any later action of the same list takes effect.

    ``full``: ``state`` replaces all before. Otherwise it is a patch ``{"set": [[path, value], …], "drop":
    [path, …]}`` for :func:`fold`, so that a large plan costs O(change) per event. The values are the
    machine's own: serialise them before the next event is handed in.
    """

    state: Mapping[str, Any]
    full: bool = True


@dataclass(frozen=True, slots=True)
class Emit:
    """Something worth telling: for events, logs and telemetry. ``note["note"]`` names its kind."""

    note: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over for this node. ``failed`` maps subtask ids, or :data:`RUN`, to the error; empty means
    completed. Members finish with no value. Messages to the others may follow it."""

    value: Any
    failed: Mapping[str, PandacoreError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contract:
    """What a delegated subtask owes: it runs in its own context and returns a summary, no transcript.

    Parameters
    ----------
    objective : str
        What is to be found or made.
    output_schema : mapping, optional
        JSON schema of the output.
    boundaries : sequence of str
        What the agent must leave alone.
    token_budget : int, optional
        Tokens it may spend.
    max_bytes : int
        Largest output as canonical JSON, in bytes; longer material goes into artifacts by reference.
    postcondition : str, optional
        Name of a predicate on the output, for what no schema can say; see :func:`pandacore.postcondition`.
    """

    objective: str
    output_schema: Mapping[str, Any] | None = None
    boundaries: Sequence[str] = ()
    token_budget: int | None = None
    max_bytes: int = 16_384
    postcondition: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The contract as JSON-ready data."""
        return {**asdict(self), "boundaries": list(self.boundaries)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Contract:
        """The inverse of :meth:`to_dict`."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        return cls(**{**known, "boundaries": tuple(known.get("boundaries", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps and times of the protocols; every one ends in a typed error that names it.

    Parameters
    ----------
    attempts : int
        Executions of one subtask that failed, before the plan is in question.
    swaps : int
        Members lost under one subtask, before the plan is in question.
    replans : int
        Changes of the plan.
    steps : int
        Executions in the whole run.
    hops : int
        Times that work passes from one agent to another.
    generations : int
        Chain: reissues of a hand-off.
    rounds : int
        Rounds of proposals in a mesh, and rounds of asking for a replacement.
    debates : int
        Mesh: rounds in which several holders see each other's answers.
    views : int
        Mesh: times that the voters may be chosen anew.
    retransmit_s : float, optional
        Seconds until an unanswered message is sent again. None: the transport reports every loss itself (one
        call per execution), so executions are never repeated and need no acknowledgement.
    retransmits : int
        Times that a message is sent again before its receiver counts as gone.
    patience_s : float
        Seconds without any progress after which the entrypoint, or a stand-in, acts.
    """

    attempts: int = 3
    swaps: int = 8
    replans: int = 3
    steps: int = 1_000
    hops: int = 2**31
    generations: int = 16
    rounds: int = 3
    debates: int = 2
    views: int = 4
    retransmit_s: float | None = 1.0
    retransmits: int = 8
    patience_s: float = 10.0

    def to_dict(self) -> dict[str, Any]:
        """The limits as JSON-ready data."""
        return {name: getattr(self, name) for name in _LIMITS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limits:
        """The inverse of :meth:`to_dict`."""
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})


_LIMITS: Final = tuple(f.name for f in fields(Limits))


Action: TypeAlias = (
    Send
    | Execute
    | StopExecution
    | SetTimer
    | ClearTimer
    | AskPlan
    | AskRanking
    | AskReplacement
    | AskJudgement
    | Evict
    | Checkpoint
    | Emit
    | Finish
)
"""What a machine asks for."""


# -- helpers of all machines -------------------------------------------------------------------------


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def canonical(value: Any) -> str:
    """One text per JSON value: keys sorted, no spaces."""
    return _CANONICAL(value)


def short_hash(value: Any) -> str:
    """The first 16 hexadecimal digits of a BLAKE2b hash of the canonical JSON text."""
    return blake2b(canonical(value).encode(), digest_size=8).hexdigest()


def subtask_digests(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, str]:
    """A digest per subtask id: of what it is told to do and of the digests that it builds on.

    The id is left out: the same work under another name in another plan has the same digest, so its output is
    kept. Equal subtasks of one plan are told apart by their order. O(subtasks + dependencies).
    """
    root = short_hash(dict(inputs))
    return plan.digests(root, lambda: _digests(plan, root))


def _digests(plan: Plan, root: str) -> dict[str, str]:
    items = {item["id"]: item for item in plan.to_dict()["subtasks"]}
    seen: dict[str, int] = {}
    digests: dict[str, str] = {}
    for subtask_id in plan.order:
        item = items[subtask_id]
        needs = item["depends_on"]
        core = {k: v for k, v in item.items() if k not in {"id", "depends_on"}}
        base = short_hash([core, [digests[d] for d in needs] if needs else root])
        count = seen[base] = seen.get(base, 0) + 1
        digests[subtask_id] = base if count == 1 else f"{base}.{count}"
    return digests


def hop_cap(limits: Limits, used: int, where: str) -> errors.BudgetExceeded | None:
    """The error if work may not pass on once more; else None."""
    if used < limits.hops or "forget_cap" in PLANTED:
        return None
    return errors.BudgetExceeded(
        f"work has passed on {used} times, {where!r} would be one more",
        kind="hops",
        limit=limits.hops,
        used=used,
        asked=1,
        where="Limits.hops",
        hint="raise Limits(hops=…); the finished outputs are kept",
    )


def is_wall(error: PandacoreError) -> bool:
    """Whether another agent would fail at it as well. The cap of a single agent is no wall for others."""
    if isinstance(error, errors.BudgetExceeded):
        return not error.kind.startswith("agent_")
    return isinstance(error, errors.PayloadTooLarge | errors.Cancelled | errors.UnknownPrice)


def repetition(subtask_id: str, rejected: Sequence[Sequence[str]], reason: str) -> errors.LoopDetected | None:
    """The error once an output came a third time that was rejected before; else None.

    ``rejected`` holds (hash of the output, author) of every rejected output of the subtask, the newest last.
    """
    same = [author for mark, author in rejected if mark == rejected[-1][0]]
    if len(same) < REPEATS:
        return None
    return errors.LoopDetected(
        f"the same rejected output came {len(same)} times: {reason}",
        cycle=[f"{subtask_id} by {author}" for author in same],
        where=f"subtask {subtask_id!r}",
        hint="change the instruction or the contract",
    )


def error_to_json(error: PandacoreError) -> dict[str, Any]:
    """An error as it crosses the wire and stands in checkpoints."""
    data: dict[str, Any] = {"kind": type(error).__name__, "message": error.message}
    for key, value in sorted(vars(error).items()):
        if key != "message" and value is not None:
            data[key if key != "kind" else "of"] = list(value) if isinstance(value, tuple) else value
    return data


def error_from_json(data: Mapping[str, Any]) -> PandacoreError:
    """The inverse of :func:`error_to_json`; an unknown kind becomes ``AgentFailed`` with that kind."""
    found = getattr(errors, str(data.get("kind")), None)
    kind = found if isinstance(found, type) and issubclass(found, PandacoreError) else errors.AgentFailed
    message = str(data.get("message", "no reason given"))
    error = kind.__new__(kind, message)
    PandacoreError.__init__(error, message, where=data.get("where"), hint=data.get("hint"))
    blank = vars(kind("", where=None))
    for key, default in blank.items():
        if key in {"message", "where", "hint"}:
            continue
        value = data.get("of" if key == "kind" else key, default)
        setattr(error, key, tuple(value) if isinstance(value, list) else value)
    if kind is errors.AgentFailed and found is None:
        setattr(error, "kind", str(data.get("kind", "")))  # noqa: B010
    return error


def fold(state: dict[str, Any] | None, checkpoint: Checkpoint) -> dict[str, Any]:
    """Apply a checkpoint to the stored state, in place for a patch, and return the new state."""
    if checkpoint.full:
        return dict(checkpoint.state)
    state = {} if state is None else state
    for path, value in checkpoint.state["set"]:
        at = state
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = value
    for path in checkpoint.state["drop"]:
        at = state
        for key in path[:-1]:
            at = at.get(key, {})
        at.pop(path[-1], None)
    return state


def joined(first: Checkpoint, second: Checkpoint) -> Checkpoint | None:
    """One checkpoint for two in a row; None if the first patch removes something, or the second is whole.

    It may be serialised after both: what the second changed below a value of the first, it sets anyway.
    """
    if second.full:
        return None
    if first.full:
        return Checkpoint(fold(dict(first.state), second))
    if first.state["drop"]:
        return None
    return Checkpoint(
        {"set": [*first.state["set"], *second.state["set"]], "drop": second.state["drop"]}, full=False
    )


class Machine(ABC):
    """One node's part in one run. Subclasses write :meth:`on`; the rest of the contract is here.

    What must survive a crash lives in ``self.state``, a JSON object that is changed by :meth:`put` and
    :meth:`drop` only: the changes of one event form one :class:`Checkpoint`, ahead of every other action of
    that event. Everything else is rebuilt in :meth:`resume`.

    Parameters
    ----------
    run : str
        The run; messages of other runs are ignored.
    me : str
        This node's name among its peers.
    """

    # Faults that tests plant to show that the suite notices them; empty in use.
    planted: ClassVar[frozenset[str]] = PLANTED

    votes_on_plans: ClassVar[bool] = False
    """True: the members make the plan themselves, so the driver only finds out what capabilities it needs."""

    takes_questions: ClassVar[bool] = False
    """True: :class:`Asked` is understood. False: the driver reports an agent's question as a failure."""

    def __init__(self, run: str, me: str) -> None:
        self.run = run
        self.me = me
        self.state: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.done = False
        self.logged = True
        """False: nobody keeps the checkpoints, so none are made."""
        self._effects: list[Action] = []
        self._sets: dict[tuple[str, ...], Any] = {}
        self._drops: dict[tuple[str, ...], None] = {}
        self._stored = False

    # -- for the driver

    @property
    def peers(self) -> Sequence[str]:
        """The members that the durable state names: who has to be reached after a restart."""
        return ()

    @property
    def ended(self) -> bool:
        """Whether this node's part is over, if only by its durable state, before it is started again."""
        return self.done or bool(self.state.get("ended"))

    @property
    def questions(self) -> Sequence[Mapping[str, Any]]:
        """The open questions of the run, at its entrypoint; see ``pandacore.patterns.questions``."""
        return ()

    @property
    def waits(self) -> bool:
        """True if nothing but answers can bring the run further."""
        return False

    def handle(self, event: Event) -> list[Action]:
        """Take one event in and say what to do, in this order."""
        if isinstance(event, Received) and event.message.get("run") != self.run:
            return []
        try:
            self.on(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if not isinstance(event, Received):
                raise
            # A peer's malformed message must not end the run; nothing else is known to raise these.
            kind = str(event.message.get("kind"))
            self.note("malformed", kind=kind, sender=event.sender, error=f"{type(error).__name__}: {error}")
        return self.flush()

    def snapshot(self) -> dict[str, Any]:
        """A copy of the durable state: what the checkpoints so far add up to."""
        copy: dict[str, Any] = json.loads(json.dumps(self.state))
        return copy

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a snapshot, on a fresh machine; then give it :class:`Start`."""
        self.state = json.loads(json.dumps(dict(state)))
        self._stored = True
        self._sets.clear()  # what the constructor put is not news any more
        self._drops.clear()
        self.resume()

    # -- for subclasses

    @abstractmethod
    def on(self, event: Event) -> None:
        """Take one event in; ask for actions by :meth:`do` and the methods below."""

    def resume(self) -> None:  # noqa: B027 (nothing to rebuild is a valid answer)
        """Rebuild what :meth:`restore` does not carry."""

    def do(self, *actions: Action) -> None:
        """Ask for actions, in this order."""
        self._effects.extend(actions)

    def send(self, to: str, kind: str, **fields: Any) -> None:
        """Ask for one message."""
        self._effects.append(Send(to, {"kind": kind, "run": self.run, **fields}))

    def note(self, note: str, **fields: Any) -> None:
        """Tell the outside what happened."""
        self._effects.append(Emit({"note": note, **fields}))

    def put(self, *path: str, value: Any) -> None:
        """Set one value of the durable state."""
        at = self.state
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = value
        if not self.logged:
            return
        # A patch sets in this order, then drops: what this value covers must not undo it.
        self._sets.pop(path, None)
        self._sets[path] = value
        if self._drops:
            for dropped in [d for d in self._drops if d[: len(path)] == path]:
                del self._drops[dropped]

    def drop(self, *path: str) -> None:
        """Remove one value of the durable state."""
        at = self.state
        for key in path[:-1]:
            at = at.get(key, {})
        if path[-1] in at:
            del at[path[-1]]
            if not self.logged:
                return
            for covered in [s for s in self._sets if s[: len(path)] == path]:
                del self._sets[covered]
            self._drops[path] = None

    def finish(self, value: Any, failed: Mapping[str, PandacoreError] | None = None) -> None:
        """End this node's part."""
        self.done = True
        self._effects.append(Finish(value, dict(failed or {})))

    def flush(self) -> list[Action]:
        """The checkpoint of the changes since the last call, then the actions since then."""
        effects, self._effects = self._effects, []
        if not self._sets and not self._drops:
            return effects
        if not self.logged:
            self._sets.clear()
            self._drops.clear()
            return effects
        if "effect_before_checkpoint" in self.planted:
            return [*effects, self.checkpoint()]
        return [self.checkpoint(), *effects]

    def checkpoint(self) -> Checkpoint:
        """The changes since the last one; the first one of a machine is whole."""
        sets, self._sets = self._sets, {}
        drops, self._drops = self._drops, {}
        if not self._stored:
            self._stored = True
            return Checkpoint(dict(self.state))
        patch = {"set": [[list(p), v] for p, v in sets.items()], "drop": [list(p) for p in drops]}
        return Checkpoint(patch, full=False)
