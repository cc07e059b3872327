"""One run, from task to result: plans, forms the team, carries out what the machine asks, ends for sure."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.journal import Kind
from pandacore.models.types import Usage
from pandacore.models.wire import documents_to_pb, usage_from_pb
from pandacore.patterns import MACHINES, base
from pandacore.patterns.questions import question_id
from pandacore.plan import Plan, Subtask
from pandacore.planning import plan_by_model, plan_by_rule
from pandacore.rpc.errors import from_detail, to_detail
from pandacore.rpc.v1 import agent_pb2, model_pb2
from pandacore.task import (
    Budget,
    Event,
    Failure,
    Member,
    PatternNote,
    PlanReady,
    Question,
    QuestionAnswered,
    QuestionAsked,
    Result,
    RunFinished,
    RunStarted,
    Status,
    SubtaskCompleted,
    SubtaskFailed,
    SubtaskProgress,
    SubtaskStarted,
    Task,
    TeamFormed,
    TeamView,
    Timings,
    flat,
    new_id,
)
from pandacore.team.answers import check_answer
from pandacore.team.client import Completed, Progress, SubtaskError, failure_of
from pandacore.team.contract import check_contracts
from pandacore.team.crew import Crew
from pandacore.team.engine import FAILOVER, Engine, build
from pandacore.team.line import Line
from pandacore.team.links import Links
from pandacore.team.purse import Purse, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from pandacore.broker import CapabilityMatch
    from pandacore.journal import Journal
    from pandacore.models.bound import BoundModel
    from pandacore.models.client import ModelClient
    from pandacore.team.assembly import Assembler
    from pandacore.team.client import AgentEvent
    from pandacore.team.directory import Directory
    from pandacore.team.host import Host

__all__ = ["EventStream", "Past", "Run", "Services"]

logger = logging.getLogger(__name__)

MAX_PROGRESS_EVENTS: Final = 10_000
"""Progress events kept per run; later ones are dropped. The other kinds are bounded by the plan."""
CANCEL_S: Final = 0.8
"""Seconds to wait for agents to confirm a cancellation."""
ORPHAN_GRACE_S: Final = 30.0
"""How long an agent goes on without its caller in a run with a journal, so that a resumed run finds the
result instead of doing the work twice."""
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False).encode
_AT_IT: Final = 1_000_000
"""Weight of an agent that is at the same subtask already, in the choice of another."""
HUB: Final = "hub"
LEASE_S: Final = (10.0, 60.0)
"""How long nodes go on without a word of their run: without a journal, and with one, for the time that a
crashed entrypoint takes to come back. Renewed every quarter."""
PATIENCE_S: Final = (10.0, 60.0)
"""Seconds without progress after which a node asks around: without a model, and with one that plans."""
_BACKOFF_S: Final = (0.01, 0.5)


@dataclass(frozen=True, slots=True)
class Services:
    """What a run uses of its collective."""

    directory: Directory
    assembler: Assembler
    model: ModelClient | None
    random: Random
    journal: Journal | None = None
    host: Host | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What the journal holds of a run that is taken up again."""

    run_id: str
    plan: Plan | None
    source: str
    state: Mapping[str, Any] | None
    usage: Usage
    resumed: int = 0
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _untold(error: SubtaskError, subtask_id: str) -> SubtaskError:
    """Who was asked before a restart is not there to say whether it did the work."""
    unknown = errors.UnknownOutcome(
        f"the agent that was asked before the restart cannot be reached: {error.error.message}",
        where=f"subtask {subtask_id!r}",
        hint="mark the task idempotent=True to have such subtasks run again",
    )
    return SubtaskError(unknown, executed=True, usage=error.usage)


class Run(Engine):
    """A task in progress. Made by ``Collective.start`` or ``resume``; bound to the collective's event loop.

    Whatever happens, a run ends in one :class:`Result`, its last event is ``RunFinished``, and nothing of it
    goes on afterwards.
    """

    def __init__(
        self,
        task: Task,
        pattern: str,
        machine: Callable[..., base.Machine],
        budget: Budget,
        services: Services,
        *,
        planner: str = "auto",
        past: Past | None = None,
    ) -> None:
        super().__init__(past.run_id if past else new_id(), HUB)
        self.id = self.run_id
        self.epoch = past.resumed + 2 if past else 1
        self.task = task
        self._pattern = pattern
        self._machine_type = machine
        known = MACHINES.get(pattern, (None, None))
        self._votes = bool(getattr(machine, "votes_on_plans", False))
        self._by_messages = pattern == FAILOVER
        self._binds = services.journal is not None and not self._by_messages
        self._has_members = known[0] is machine and known[1] is not None and pattern != "star"
        self._documents: list[model_pb2.Document] = documents_to_pb(task.documents) if task.documents else []
        self._metadata_json = _ENCODE(dict(task.metadata)) if task.metadata else "{}"
        self._budget = budget
        self._services = services
        self._planner = planner
        self._past = past
        self._began = monotonic()
        self._purse = Purse(budget)
        self._prices_json = _ENCODE(budget.to_dict()["prices"]) if self._purse.capped_cost else ""
        self._usage = past.usage if past else Usage()
        self._purse.charge(self._usage)
        self._unshared = 0
        self._events: list[Event] = []
        self._progress_events = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._plan: Plan | None = None
        self._source = ""
        self._team = TeamView()
        self._marks: dict[str, float] = {}
        self._assigned: dict[tuple[str, int], bytes] = {}
        self._held: Counter[bytes] = Counter()  # attempts of `_assigned` by agent
        self._at_it: dict[str, dict[int, bytes]] = {}  # and by subtask
        self._lines: dict[str, Line] = {}
        self._taken: Counter[bytes] = Counter()
        self._completed: dict[tuple[str, int], tuple[str, Completed, Any]] = {}
        self._authors: dict[tuple[str, int], bytes] = {}
        self._crew: Crew | None = None
        self._reserved: dict[tuple[str, str, int], Share] = {}
        self._done_by_members: dict[str, Any] = {}
        self._begun: set[str] = set()
        self._made_by: dict[tuple[str, str], tuple[str, Completed]] = {}
        self._drafted = False
        self._away: set[bytes] = set()
        self._failures: list[Failure] = []
        self._last_failures: dict[str, Failure] = {}
        self._result: Result | None = None
        self._answered: dict[str, Any] = dict(past.answers) if past else {}
        self._parking = False
        self._broken: errors.PandacoreError | None = None
        self._stopping = False
        if services.host is not None:
            services.host.runs[self.id] = self
        self._main = self._loop.create_task(self._drive(), name=f"pandacore run {self.id}")

    @property
    def done(self) -> bool:
        """True once the result exists."""
        return self._result is not None

    @property
    def status(self) -> str:
        """``running``, ``input_required`` while questions are open, or how it ended."""
        if self._result is not None:
            return str(self._result.status)
        return str(Status.INPUT_REQUIRED) if self.questions else "running"

    @property
    def questions(self) -> tuple[Question, ...]:
        """What agents wait to be told, by :meth:`answer`; other subtasks may go on meanwhile."""
        if self._machine is None or self.done:
            return ()
        found = (self._question(q) for q in self._machine.questions)
        return tuple(q for q in found if q.id not in self._answered)

    def _question(self, asked: Mapping[str, Any]) -> Question:
        agent = asked["agent"]
        name = self._name(bytes.fromhex(agent)) if agent else ""
        return Question(asked["text"], asked["id"], asked["schema"], asked["subtask"], name)

    async def answer(self, question_id: str, value: Any) -> None:
        """Answer an open question; in any order. With a journal the answer is durable on return.

        Raises
        ------
        UnknownQuestion
            None of this id is open.
        DuplicateAnswer
            It was answered before; the first answer stands.
        InvalidAnswer
            The value is no JSON value, or breaks the question's schema.
        StateError
            The run has ended.
        """
        if self._stopping:
            raise errors.StateError(f"run {self.id} has ended, or is about to", hint="see its result")
        check_answer(self.questions, self._answered, question_id, value)
        self._answered[question_id] = value
        try:
            await self._log(Kind.ANSWER, lambda: {"id": question_id, "value": value})
        except errors.PandacoreError:
            del self._answered[question_id]
            raise
        self.post(base.Answered(question_id, value))

    @property
    def parkable(self) -> bool:
        """True if only answers can bring the run further, and the journal holds all that was done."""
        machine = self._machine
        journal = self._services.journal
        return machine is not None and machine.waits and not self._attempts and journal is not None

    async def park(self) -> Result:
        """Leave a :attr:`parkable` run as it is in the journal; ``Collective.resume`` takes it up again."""
        if not self._stopping:
            self._parking = self._stopping = True
            self._main.cancel()
        return await self.result()

    async def result(self) -> Result:
        """Wait for the end. Cancelling the waiter does not cancel the run."""
        if not self._main.done():
            over = asyncio.Event()
            self._main.add_done_callback(lambda _: over.set())
            await over.wait()
        assert self._result is not None
        return self._result

    async def cancel(self) -> Result:
        """Stop the run; answers with its result within about a second. Idempotent."""
        self.request_cancel()
        return await self.result()

    def request_cancel(self) -> None:
        """Ask the run to stop, without waiting."""
        if not self._stopping:
            self._stopping = True
            self._main.cancel()

    def members_changed(self) -> None:
        """Agents left the collective or came back: the team's own ones among them are told to the machine."""
        directory = self._services.directory
        for agent_id in {m.agent_id for m in self._team.members}:
            here = agent_id in directory
            if here and agent_id in self._away:
                self._away.discard(agent_id)
                self.found(agent_id.hex())
            elif not here and agent_id not in self._away:
                self._away.add(agent_id)
                self.lost(agent_id.hex())

    def lost(self, peer: str) -> None:
        """See ``Owner``."""
        super().lost(peer)
        if self._links is not None and self._crew is not None:
            self._links.down.add(peer)
            self._errand(self._crew.tell())

    def found(self, peer: str) -> None:
        """See ``Owner``."""
        super().found(peer)
        if self._crew is not None:
            self._errand(self._crew.tell())

    def fenced(self) -> None:
        """See ``Owner``."""
        self._give_up(
            errors.StateError(
                f"run {self.id} was taken up elsewhere, under a later epoch",
                where=f"epoch {self.epoch}",
                hint="look at the run where it goes on",
            )
        )

    def oversized(self, error: errors.PayloadTooLarge) -> None:
        """See ``Owner``."""
        self._give_up(error)

    def _give_up(self, error: errors.PandacoreError) -> None:
        """End the run from outside its machine."""
        if self._broken is None and not self._stopping:
            self._broken = error
            self._main.cancel()

    def events(self, *, after: int = 0) -> EventStream:
        """The run's events with ``seq`` above ``after``, until the last. Leaving it does not stop the run."""
        return EventStream(self, after=after, owns_run=False)

    # -- the run itself ------------------------------------------------------------------------------

    async def _drive(self) -> None:
        status, value = Status.FAILED, None
        self._emit(RunStarted, task=self.task)
        try:
            async with asyncio.timeout(self._budget.wall_s):
                finish = await self._work()
            value = finish.value
            status = Status.FAILED if finish.failed else Status.COMPLETED
            self._failures += [self._failure(s, e) for s, e in finish.failed.items()]
        except errors.PandacoreError as error:
            self._failures.append(Failure.of(error))
        except TimeoutError:
            limit = self._budget.wall_s or 0
            self._failures.append(
                Failure.of(
                    errors.BudgetExceeded(
                        f"the run took longer than {limit:g} s",
                        kind="wall_s",
                        limit=limit,
                        used=limit,
                        where="Budget.wall_s",
                        hint="raise Budget(wall_s=…); the finished outputs are in Result.outputs",
                    )
                )
            )
        except asyncio.CancelledError:
            why: errors.PandacoreError
            if self._parking:
                status = Status.INPUT_REQUIRED
                why = errors.InputRequired(*self.questions, hint="answer, then Collective.resume(RUN)")
            elif self._broken is None:
                status = Status.CANCELLED
                why = errors.Cancelled("the run was cancelled")
            else:
                why = self._broken
            self._failures.append(Failure.of(why))
        except Exception as error:  # a fault of ours must still end the run, visibly
            logger.exception("run %s failed by an internal error", self.id)
            self._failures.append(Failure.of(error))
        finally:
            self._stopping = True
            await self._end(status, value)

    async def _work(self) -> base.Finish:
        if self._past is None:
            self._note(
                Kind.RUN,
                lambda: {
                    "pattern": self._pattern,
                    "planner": self._planner,
                    "task": self.task.to_dict(),
                    "budget": self._budget.to_dict(),
                },
            )
        else:
            self._note(Kind.RESUMED, dict)
        plan, self._source = await self._make_plan()
        services = self._services
        directory = services.directory
        plan, matches = await directory.meaning.fit(plan, directory.registry)
        asked = {match.capability: match.requirement for match in matches}
        required = {
            c: self.task.redundancy.get(c, self.task.redundancy.get(asked.get(c, c), 1))
            for c in plan.capabilities
        }
        if self._votes and self._source in ("model", "rule"):
            self._drafted = self._source == "model"  # the members make the plan; this one says who is needed
        else:
            check_contracts(plan, self.task.contracts)
            self._plan = plan
        self._mark("plan")
        if self._plan is not None:
            if self._past is None or self._past.plan is None:
                given = plan is self.task.plan  # the record of the task has it
                body = {"plan": None if given else plan.to_dict(), "source": self._source}
                self._note(Kind.PLAN, lambda: body)
            self._emit(PlanReady, plan=plan, source=self._source)
        machine = None
        if self._past is not None and self._past.state is not None and self._has_members:
            machine = self._make_machine()  # its team is the one it had
            self._team = self._team_of(machine.peers)
        else:
            try:
                formed = await self._services.assembler.form(required, self.id)
            except errors.NoTeam as error:
                lacks = (n for n, s in enumerate(plan.subtasks) if s.capability in error.missing)
                if error.where is None and (index := next(lacks, None)) is not None:
                    error.where = f"$.subtasks[{index}].capability"
                raise
            members = tuple(_with_match(m, matches) for m in formed.members)
            self._team = TeamView(members, formed.mode, matches)
        self._mark("assemble")
        self._emit(TeamFormed, team=self._team)
        machine = self._machine = machine or self._make_machine()
        machine.logged = services.journal is not None or self._by_messages
        if self._has_members:
            await self._durable()
            await self._open_crew(machine, required)
        self.post(base.Start())
        if self._past is not None:
            self._take_up_questions(machine)
        return await self._follow()

    def _take_up_questions(self, machine: base.Machine) -> None:
        """Of an earlier life: answers that came in, perhaps from elsewhere, and questions that are open."""
        for asked in machine.questions:
            if asked["id"] in self._answered:
                self.post(base.Answered(asked["id"], self._answered[asked["id"]]))
            else:
                self._emit(QuestionAsked, question=self._question(asked))

    def _make_machine(self) -> base.Machine:
        team: dict[str, list[str]] = {}
        for member in self._team.members:
            team.setdefault(member.capability, []).append(member.agent_id.hex())
        several = {c: len(p) for c, p in team.items()}
        restored = None if self._past is None else self._past.state
        machine = build(
            self._machine_type,
            self.id,
            HUB,
            plan=self._plan,
            team=team,
            inputs=self.task.inputs,
            idempotent=self.task.idempotent,
            redundancy=several if self.task.race or self.task.debate else {},
            debate=self.task.debate,
            ranking="driver" if self._drafted else "rule",
            contracts=self.task.contracts,
            late_binding=not self._by_messages,
            stand_ins=self._stand_ins() if self._by_messages and restored is None else (),
            limits=self._limits(),
        )
        if restored is not None:
            machine.restore(restored)
            # Nobody of the earlier process is known to be there: the machine swaps in the team formed now.
            known = {m.agent_id.hex() for m in self._team.members}
            for peer in sorted(set(machine.peers) - known):
                if bytes.fromhex(peer) not in self._services.directory:
                    self.post(base.PeerDown(peer))
        return machine

    def _stand_ins(self) -> list[str]:
        """Two members to keep the hub's checkpoint: in other processes, and different ones, if there are."""
        directory, host = self._services.directory, self._services.host
        own = host.address if host is not None else ""
        where: dict[str, str] = {}
        for member in self._team.members:
            if member.agent_id in directory:
                where[member.agent_id.hex()] = directory.entry(member.agent_id).address
        if len(where) < 2:
            raise errors.ConfigError(
                f"a team of {len(where)} has nobody who could stand in for its hub: it takes two",
                where='run(pattern="failover")',
                hint="raise Task.redundancy, or use the star",
            )
        seen: dict[str, int] = {}
        order = {}
        for name, address in where.items():
            order[name] = (address == own, seen.get(address, 0))
            seen[address] = seen.get(address, 0) + 1
        return sorted(where, key=lambda n: order[n])[:2]

    def _limits(self) -> base.Limits:
        return base.Limits(
            steps=self._budget.steps or 2**31,
            hops=self._budget.hops or 2**31,
            replans=self._budget.replans,
            retransmit_s=1.0 if self._has_members else None,
            patience_s=PATIENCE_S[self._services.model is not None],
        )

    async def _make_plan(self) -> tuple[Plan, str]:
        if self._past is not None and self._past.plan is not None:
            return self._past.plan, self._past.source
        if self.task.plan is not None:
            return self.task.plan, "user"
        vocabulary = self._services.directory.vocabulary()
        if not vocabulary and not self.task.capabilities:
            raise errors.NoTeam("the collective has no agents", hint="add some with collective.add(...)")
        model = self._model()
        by_rule = self._planner == "rule" or (
            self._planner == "auto" and (len(self.task.capabilities) == 1 or len(vocabulary) == 1)
        )
        if model is None or by_rule:
            if self._planner == "model":
                raise errors.ConfigError(
                    "planner='model' needs a model", hint='start the collective with model="extractive"'
                )
            return plan_by_rule(self.task, vocabulary), "rule"
        usable = self._services.directory.vocabulary(usable=True)
        await self._durable()
        return await plan_by_model(self.task, usable or vocabulary, model), "model"

    def _model(self) -> BoundModel | None:
        from pandacore.models.bound import BoundModel

        if self._services.model is None:
            return None
        return BoundModel(
            self._services.model,
            ledger=self._purse.ledger(),
            remaining_s=self._remaining_s,
            spent=self._spend,
        )

    def _spend(self, usage: Usage) -> None:
        if usage.total_tokens:
            self._usage += usage

    def _remaining_s(self) -> float | None:
        if self._budget.wall_s is None:
            return None
        return max(self._began + self._budget.wall_s - monotonic(), 0.0)

    def _note(self, kind: Kind, body: Callable[[], Any]) -> None:
        """Write a record that is durable before the next effect of the run, not before this returns."""
        if self._services.journal is not None:
            self._await_later(self._services.journal.write(self.id, kind, body()))

    async def _log(self, kind: Kind, body: Callable[[], Any]) -> None:
        if self._services.journal is not None:
            await self._services.journal.append(self.id, kind, body())

    # -- members as nodes ----------------------------------------------------------------------------

    async def _open_crew(self, machine: base.Machine, required: Mapping[str, int]) -> None:
        """Make the team's agents nodes of the run; whom that fails for is down from the start."""
        services = self._services
        if services.host is None:
            raise errors.StateError("this collective has no host, so no members can answer it")
        self._links = Links(self, services.host)
        vocabulary = {c: d for c, d in services.directory.vocabulary().items() if c in required}
        text = json.dumps(vocabulary or dict.fromkeys(required, ""), ensure_ascii=False)
        self._crew = Crew(
            self,
            services.host,
            services.directory,
            self._links,
            lambda: self._spec(text),
        )
        services.host.nodes.attach(self)
        names = dict.fromkeys([*(m.agent_id.hex() for m in self._team.members), *machine.peers])
        opened = await self._crew.open(names)
        resumed = self._past is not None and self._past.state is not None
        gone = [n for n in names if n not in opened]
        # A node that was of the run and knows nothing of it has lost what it had, as if it had crashed.
        empty = [n for n, fresh in opened.items() if fresh and resumed]
        if self._crew.fenced:
            self.fenced()
        self._links.down.update(gone, empty)
        for name in [*gone, *empty]:
            self.post(base.PeerDown(name))
        await self._crew.tell()
        if empty:
            self._links.down.difference_update(empty)
            for name in empty:
                self.post(base.PeerUp(name))
            await self._crew.tell()
        self._errand(self._crew.renew(LEASE_S[services.journal is not None] / 4))

    def _spec(self, vocabulary: str) -> agent_pb2.RunSpec:
        """What a node has to know of the run."""
        left = self._remaining_s()
        durable = self._services.journal is not None or self._by_messages
        return agent_pb2.RunSpec(
            pattern=self._pattern,
            limits_json=json.dumps(self._limits().to_dict()),
            text=self.task.text,
            documents=self._documents,
            metadata_json=self._metadata_json,
            priority=self.task.priority,
            plan_json=json.dumps(self._plan.to_dict(), ensure_ascii=False) if self._plan else "",
            may_replan=self._drafted or self._source == "model",
            vocabulary_json=vocabulary,
            unlimited_tokens=not self._purse.capped_tokens,
            prices_json=self._prices_json,
            asks_first=self._purse.capped,
            deadline_ms=0 if left is None else max(int(left * 1000), 1),
            lease_ms=int(LEASE_S[durable] * 1000),
            outlives_root=durable,
        )

    def _team_of(self, peers: Iterable[str]) -> TeamView:
        """The team of a run that is taken up again: those of it that are here."""
        directory = self._services.directory
        members = []
        for agent_id in map(bytes.fromhex, peers):
            if agent_id in directory:
                entry = directory.entry(agent_id)
                why = "of the team before the crash"
                load = directory.load(agent_id)
                members.append(Member(agent_id, entry.name, entry.capabilities[0], load, 0.0, 1, why))
        return TeamView(tuple(members))

    async def serve(self, request: agent_pb2.AskRequest) -> agent_pb2.AskReply:
        """A member asks for another agent, or for its share of the tokens."""
        if request.WhichOneof("question") == "replace":
            peer = await self._find(request.replace.capability, tuple(request.replace.exclude))
            if peer is None or self._links is None:
                return agent_pb2.AskReply()
            return agent_pb2.AskReply(peer=agent_pb2.Peer(name=peer, address=self._links.book[peer]))
        key = (request.sender, request.reserve.subtask_id, request.reserve.attempt)
        if key not in self._reserved:
            self._begun.add(key[1])
            agent_id = bytes.fromhex(request.sender)
            try:
                self._reserved[key] = self._purse.take(agent_id, self._sharers(key[1]), step=key[2] > 0)
            except errors.BudgetExceeded as error:
                return agent_pb2.AskReply(refused=to_detail(error))
        share = self._reserved[key]
        return agent_pb2.AskReply(tokens=share.tokens, cost=share.cost)

    def _sharers(self, subtask_id: str) -> int:
        """How many subtasks may begin now, and so share what is left."""
        plan = self._plan
        if plan is None or self._pattern == "chain":
            return 1
        done = self._done_by_members.keys() | (self._machine.outputs.keys() if self._machine else set())
        ready = [
            s
            for s in plan.order
            if s not in self._begun and s not in done and all(n in done for n in plan[s].depends_on)
        ]
        return len(ready) + 1

    def _reported(self, sender: str, report: agent_pb2.NodeReport) -> None:
        """What happened at a member, as an event and in the accounts."""
        name = self._name(bytes.fromhex(sender))
        key = (report.subtask_id, report.attempt)
        match report.WhichOneof("what"):
            case "event":
                self._member_event(sender, name, key, report)
            case "note_json":
                note = json.loads(report.note_json)
                self._noted({"agent": sender, **note, "by": sender}, [])
            case "planned":
                self._settle((sender, report.subtask_id, 0), usage_from_pb(report.planned))
            case "broken":
                error = from_detail(report.broken)
                if isinstance(error, errors.PayloadTooLarge):
                    self._give_up(error)
                else:
                    logger.error("the node of %r broke: %s", name, error)
                    self.lost(sender)
            case _:
                pass

    def _member_event(
        self, sender: str, name: str, key: tuple[str, int], report: agent_pb2.NodeReport
    ) -> None:
        event = report.event
        match event.WhichOneof("event"):
            case "started":
                self._emit(
                    SubtaskStarted,
                    subtask_id=key[0],
                    agent=name,
                    attempt=key[1],
                    capability=report.capability,
                    instruction=report.instruction,
                )
            case "progress":
                self._emit_progress(key[0], name, event.progress.text)
            case "completed":
                done = event.completed
                usage = usage_from_pb(done.usage)
                self._settle((sender, *key), usage)
                completed = Completed(done.output_json, usage, done.queued_s, done.run_s)
                self._made_by[sender, key[0]] = (name, completed)
                if self._pattern not in ("chain", "mesh", FAILOVER):  # nobody commits: made is done
                    self._committed(key[0], sender)
            case "failed":
                self._settle((sender, *key), usage_from_pb(event.failed.usage))
                error = failure_of(event.failed)
                if isinstance(error, errors.Cancelled | errors.InputRequired):
                    return  # it was stopped because it is not wanted any more, or goes on when it is answered
                failure = Failure.of(error, subtask_id=key[0], agent=name)
                self._last_failures[key[0]] = failure
                again = not event.failed.executed or self.task.idempotent
                self._emit(
                    SubtaskFailed,
                    subtask_id=key[0],
                    agent=name,
                    attempt=key[1],
                    failure=failure,
                    retrying=again,
                )
            case _:
                pass

    def _settle(self, key: tuple[str, str, int], usage: Usage) -> None:
        if (share := self._reserved.pop(key, None)) is not None:
            share.settle(usage)
        else:
            self._purse.charge(usage)
        self._account(usage)

    def _account(self, usage: Usage) -> None:
        """Count what a member spent, durably."""
        self._spend(usage)
        if usage.total_tokens:
            # A broken journal ends the run at its next decision.
            with contextlib.suppress(errors.PandacoreError):
                self._note(Kind.SPENT, partial(flat, usage))

    def _committed(self, subtask_id: str, sender: str) -> None:
        """A subtask that a member did is done."""
        if subtask_id in self.task.contracts:
            self._judged(bytes.fromhex(sender), bad=False)
        found = self._made_by.pop((sender, subtask_id), None)
        if found is not None:
            output = json.loads(found[1].output_json)
            self._done_by_members[subtask_id] = output
            self._emit_completed(subtask_id, found[0], output, found[1])

    # -- what the engine asks ------------------------------------------------------------------------

    def _store(self, checkpoint: base.Checkpoint) -> asyncio.Future[None] | None:
        journal = self._services.journal
        if journal is None:
            return None
        body = {"state": checkpoint.state, "full": checkpoint.full}
        return journal.write(self.id, Kind.CHECKPOINT, body)

    def _bind(self, execute: base.Execute) -> base.Assigned | None:
        key = (execute.subtask_id, execute.attempt)
        agent_id = None if key in self._attempts else self._choose(execute)
        if agent_id is None:
            return None
        self._hand_to(key, agent_id)
        return base.Assigned(*key, agent_id.hex(), self._memory(agent_id).hex())

    def _memory(self, agent_id: bytes) -> bytes:
        """What the agent's host called its memory when it was last invited."""
        try:
            return self._services.directory.client(agent_id).memory
        except errors.UnknownAgent:
            return b""

    def _begin(self, execute: base.Execute) -> None:
        self._unshared += 1
        super()._begin(execute)

    def _stopped(self, key: tuple[str, int]) -> None:
        agent_id = self._assigned.get(key)
        if agent_id is not None:  # hanging up is not enough where the agent waits for callers to come back
            self._errand(self._confirm_stops({key: agent_id}))

    async def _make(self, ask: base.AskPlan) -> base.Planned:
        model = self._model()
        if model is None or self._source != "model":
            raise errors.InvalidPlan(
                f"the plan was made by {self._source or 'nobody'}, so nobody can change it",
                where="replan",
                hint="let a model plan, or add agents that can take over",
            )
        vocabulary = self._services.directory.vocabulary(usable=True)
        plan = await plan_by_model(self.task, vocabulary, model, ask.context)
        self._adopted(plan, "model")
        return base.Planned(plan, ask.request)

    def _adopted(self, plan: Plan, source: str) -> None:
        """Another plan is in force."""
        self._plan = plan
        self._note(Kind.PLAN, lambda: {"plan": plan.to_dict(), "source": source})
        self._emit(PlanReady, plan=plan, source=source)

    async def _rank(self, ask: base.AskRanking) -> list[str]:
        return sorted(ask.proposals)

    async def _find(self, capability: str, exclude: tuple[str, ...]) -> str | None:
        """Another agent for a capability, out of the registry."""
        try:
            extra = await self._services.assembler.form(
                {capability: 1}, self.id, exclude=frozenset(bytes.fromhex(p) for p in exclude)
            )
        except errors.NoTeam:
            return None
        name = extra.members[0].agent_id.hex()
        if self._crew is not None:
            if name not in await self._crew.open([name]):
                return None
            await self._crew.tell()
        self._team = dataclasses.replace(self._team, members=(*self._team.members, *extra.members))
        return name

    def _checked(self, key: tuple[str, int], *, bad: bool) -> None:
        self._judged(self._authors.pop(key, None), bad=bad)

    def _judged(self, agent_id: bytes | None, *, bad: bool) -> None:
        """Feed an outcome that was checked to the agent's reputation; what nobody checked says nothing."""
        vetting = self._services.directory.vetting
        if vetting is not None and agent_id is not None:
            vetting.observe(agent_id, bad=bad)

    def _noted(self, note: Mapping[str, Any], actions: list[base.Action]) -> None:
        match note["note"]:
            case "step":  # of a chain; a mesh commits at the entrypoint, without saying which attempt
                self._committed(note["subtask"], note["agent"])
            case "commit" if self._has_members:
                self._committed(note["subtask"], note["agent"])
            case "drift" if self._has_members and not note.get("judged"):
                self._judged(bytes.fromhex(note["agent"]), bad=True)
                self._noted({**note, "judged": True}, actions)
            case "plan" if self._has_members:
                plan = Plan.from_dict(note["plan"])
                self._adopted(plan, "vote" if self._votes else "model")
            case "commit":
                key = (note["subtask"], note["attempt"])
                if (found := self._completed.pop(key, None)) is not None:
                    name, completed, output = found
                    if isinstance(output, list | dict):  # a copy: the machine's own stays as it is
                        output = json.loads(completed.output_json)
                    self._emit_completed(note["subtask"], name, output, completed)
            case "attempt_failed" if not self._has_members:
                subtask_id = note["subtask"]
                failure = self._last_failures.get(subtask_id)
                if failure is not None:
                    again = any(
                        isinstance(a, base.AskReplacement | base.AskPlan)
                        or (isinstance(a, base.Execute) and a.subtask_id == subtask_id)
                        for a in actions
                    )
                    self._emit(
                        SubtaskFailed,
                        subtask_id=subtask_id,
                        agent=failure.agent or "",
                        attempt=self._last_attempt(subtask_id),
                        failure=failure,
                        retrying=again,
                    )
            case "asked":
                for asked in note["questions"]:
                    whole = {**asked, "id": question_id(note["subtask"], asked["id"])}
                    whole |= {"subtask": note["subtask"], "agent": note["agent"]}
                    self._emit(QuestionAsked, question=self._question(whole))
            case "answered":
                self._emit(QuestionAnswered, question_id=note["question"])
            case "hand" | "ignored" | "malformed" | "plan" | "attempt_failed":
                logger.debug("run %s: %s", self.id, dict(note))
            case kind:
                if self._progress_events < MAX_PROGRESS_EVENTS:
                    self._progress_events += 1
                    told = {k: self._readable(v) for k, v in note.items() if k not in ("note", "by")}
                    by = self._readable(note.get("by", ""))
                    self._emit(PatternNote, kind=kind, agent=by, details=told)

    def _readable(self, value: Any) -> Any:
        """Ids of members as their names."""
        if isinstance(value, str) and len(value) == 64:
            return next((m.name for m in self._team.members if m.agent_id.hex() == value), value)
        if isinstance(value, list | tuple):
            return [self._readable(v) for v in value]
        return value

    def _last_attempt(self, subtask_id: str) -> int:
        assert self._machine is not None
        return int(self._machine.state.get("hub", {}).get("attempts", {}).get(subtask_id, 1))

    def _failure(self, subtask_id: str, error: errors.PandacoreError) -> Failure:
        last = self._last_failures.get(subtask_id)
        if last is not None and last.message == error.message:
            return last
        if error.where in (
            "Limits.steps",
            "Limits.replans",
            "Limits.hops",
        ):  # callers set these caps through the budget
            error.where = error.where.replace("Limits", "Budget")
            error.hint = (error.hint or "").replace("Limits(", "Budget(")
        return Failure.of(error, subtask_id=subtask_id or None, agent=last.agent if last else None)

    # -- attempts ------------------------------------------------------------------------------------

    def _ended(self, key: tuple[str, int]) -> None:
        super()._ended(key)
        self._hand_to(key, None)
        for line in self._lines.values():
            line.freed()

    def _hand_to(self, key: tuple[str, int], agent_id: bytes | None) -> None:
        """An attempt is with this agent now, or with nobody."""
        subtask_id, attempt = key
        before = self._assigned.pop(key, None)
        if before is not None:
            self._held[before] -= 1
            if not self._held[before]:
                del self._held[before]
            others = self._at_it[subtask_id]
            del others[attempt]
            if not others:
                del self._at_it[subtask_id]
        if agent_id is not None:
            self._assigned[key] = agent_id
            self._held[agent_id] += 1
            self._at_it.setdefault(subtask_id, {})[attempt] = agent_id

    def _attempt_failed(self, key: tuple[str, int], error: errors.PandacoreError, *, executed: bool) -> None:
        agent_id = self._assigned.get(key)
        name = self._name(agent_id) if agent_id else None
        if agent_id is not None:
            self.post(base.Assigned(*key, agent_id.hex()))
        self._last_failures[key[0]] = Failure.of(error, subtask_id=key[0], agent=name)
        # An agent that fails openly is replaced, not blamed: the task may be at fault.
        if executed and isinstance(error, errors.ProtocolError):
            self._judged(agent_id, bad=True)
        self.post(base.ExecutionFailed(*key, error, executed))

    def _name(self, agent_id: bytes) -> str:
        for member in self._team.members:
            if member.agent_id == agent_id:
                return member.name
        return agent_id.hex()[:8]

    async def _execute(self, execute: base.Execute) -> Any:
        subtask = self._subtask(execute.subtask_id)
        share: Share | None = None
        spent = Usage()
        wait_s = _BACKOFF_S[0]
        key = (execute.subtask_id, execute.attempt)
        bound = self._assigned.get(key)
        line = self._lines.get(subtask.capability)
        if line is None:
            line = self._lines[subtask.capability] = Line()
        in_line = False

        def accepted() -> None:
            nonlocal in_line
            if in_line:
                in_line = False
                line.leave()

        try:
            inputs_json = _ENCODE(dict(execute.inputs)) if execute.inputs else "{}"
            while True:
                if line.busy and not in_line:
                    await line.enter()
                    in_line = True
                agent_id = bound or self._choose(execute) or await self._recruit(execute, subtask.capability)
                self._hand_to(key, agent_id)
                memory = self._memory(agent_id)
                if self._binds and execute.agent is None and agent_id != bound:
                    await self._take_in(base.Assigned(*key, agent_id.hex(), memory.hex()))
                bound = None
                if share is None:  # after a full queue it keeps what was set aside
                    share = self._purse.take(agent_id, self._unshared)
                    self._unshared -= 1
                request = agent_pb2.AssignRequest(
                    agent_id=agent_id,
                    run_id=self.id,
                    subtask_id=subtask.id,
                    attempt=execute.attempt,
                    capability=subtask.capability,
                    instruction=subtask.instruction,
                    root_text=self.task.text,
                    inputs_json=inputs_json,
                    documents=self._documents,
                    priority=self.task.priority,
                    idempotency_key=f"{self.id}/{subtask.id}",
                    metadata_json=self._metadata_json,
                    token_budget=share.tokens,
                    unlimited_tokens=share.tokens is None,
                    cost_budget=share.cost,
                    prices_json=self._prices_json,
                    contract_json=json.dumps(execute.contract.to_dict()) if execute.contract else "",
                    only_if_known=execute.again,
                    memory=bytes.fromhex(execute.memory),
                    orphan_grace_ms=int(ORPHAN_GRACE_S * 1000) if self._services.journal else 0,
                )
                try:
                    output, spent = await self._assign(request, agent_id, accepted)
                    if spent.total_tokens:
                        self._note(Kind.SPENT, partial(flat, spent))
                    return output
                except SubtaskError as error:
                    spent += error.usage
                    if error.usage.total_tokens:
                        self._note(Kind.SPENT, partial(flat, error.usage))
                    if error.executed or not isinstance(error.error, errors.Overloaded):
                        if execute.again and isinstance(
                            error.error, errors.ConnectionLost | errors.UnknownAgent
                        ):
                            raise _untold(error, subtask.id) from error
                        raise
                # A full queue is no failure of the subtask: wait, and look for the least loaded again.
                self._hand_to(key, None)
                if in_line:
                    await line.room(self._services.random.uniform(wait_s / 2, wait_s))
                    wait_s = min(wait_s * 2, _BACKOFF_S[1])
                else:
                    await line.enter()
                    in_line = True
        finally:
            accepted()
            if share is None:
                self._unshared -= 1
            else:
                share.settle(spent)
            self._spend(spent)

    def _subtask(self, subtask_id: str) -> Subtask:
        """The subtask; for one that a user's pattern made up, the whole task under its name."""
        plan = self._plan
        if plan is not None and subtask_id in plan:
            return plan[subtask_id]
        return Subtask(subtask_id, self._team.members[0].capability, self.task.text)

    def _choose(self, execute: base.Execute) -> bytes | None:
        """The machine's agent, or the least loaded of its candidates that is not at this subtask already."""
        if execute.agent is not None:
            return bytes.fromhex(execute.agent)
        directory = self._services.directory
        subtask_id, attempt = execute.subtask_id, execute.attempt
        # One with work of this run comes last: a place that is held but not used counts as load as well.
        held = self._held
        others = self._at_it.get(subtask_id, {})
        at_it = {agent_id for number, agent_id in others.items() if number != attempt}
        affords = self._purse.affords
        best: bytes | None = None
        least = (0, 0)
        for agent_id in map(bytes.fromhex, execute.candidates):
            mine = held[agent_id] + (_AT_IT if agent_id in at_it else 0)
            if (best is None or mine <= least[0]) and directory.usable(agent_id) and affords(agent_id):
                rank = (mine, directory.load(agent_id))
                if best is None or rank < least:
                    best, least = agent_id, rank
        return best

    async def _recruit(self, execute: base.Execute, capability: str) -> bytes:
        """Somebody who is in the team from now on, as none of the candidates is left."""
        candidates = [*map(bytes.fromhex, execute.candidates)]
        try:
            extra = await self._services.assembler.form(
                {capability: 1}, self.id, exclude=frozenset(candidates)
            )
        except errors.NoTeam:
            spent_up = next((a for a in candidates if not self._purse.affords(a)), None)
            if spent_up is None:
                raise
            return spent_up  # the error of its cap says more
        self._team = dataclasses.replace(self._team, members=(*self._team.members, *extra.members))
        return extra.members[0].agent_id

    async def _assign(
        self, request: agent_pb2.AssignRequest, agent_id: bytes, on_accepted: Callable[[], None]
    ) -> tuple[Any, Usage]:
        directory = self._services.directory
        try:
            client = directory.client(agent_id)
            if not directory.usable(agent_id):
                raise errors.UnknownAgent("the agent is no longer accepted", hint="another one is chosen")
        except errors.UnknownAgent as error:
            lost = errors.ConnectionLost(
                error.message, where=f"subtask {request.subtask_id!r}", hint=error.hint
            )
            raise SubtaskError(lost, executed=False, usage=Usage()) from error
        name = self._name(agent_id)
        directory.expect(agent_id, +1)
        accepted = False

        def tell(event: AgentEvent) -> None:
            nonlocal accepted
            if isinstance(event, Progress):
                self._emit_progress(request.subtask_id, name, event.text)
            if accepted:
                return
            # From here on the agent's own report counts the subtask.
            accepted = True
            on_accepted()
            self._taken[agent_id] += 1
            directory.expect(agent_id, -1)
            if not self._binds:
                self.post(base.Assigned(request.subtask_id, request.attempt, agent_id.hex()))
            self._emit(
                SubtaskStarted,
                subtask_id=request.subtask_id,
                agent=name,
                attempt=request.attempt,
                capability=request.capability,
                instruction=request.instruction,
            )

        try:
            done = await client.assign(request, timeout_s=self._remaining_s(), tell=tell)
        finally:
            if not accepted:
                directory.expect(agent_id, -1)
        return self._output(request, name, done), done.usage

    def _output(self, request: agent_pb2.AssignRequest, name: str, event: Completed) -> Any:
        try:
            output = json.loads(event.output_json)
        except ValueError as error:
            raise errors.ProtocolError(
                f"the output is no JSON: {error}", where=f"subtask {request.subtask_id!r} by {name!r}"
            ) from error
        self._authors[request.subtask_id, request.attempt] = request.agent_id
        self._completed[request.subtask_id, request.attempt] = (name, event, output)
        return output

    # -- events and the end --------------------------------------------------------------------------

    def _emit(self, kind: Callable[..., Event], /, **fields: Any) -> None:
        self._events.append(
            kind(seq=len(self._events) + 1, ts=monotonic() - self._began, run_id=self.id, **fields)
        )
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _next_event(self, index: int) -> Event | None:
        """The event at ``index`` once it exists; None if there will be none."""
        while len(self._events) <= index:
            if self.done:
                return None
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return self._events[index]

    def _emit_completed(self, subtask_id: str, agent: str, output: Any, done: Completed) -> None:
        self._emit(
            SubtaskCompleted,
            subtask_id=subtask_id,
            agent=agent,
            output=output,
            usage=done.usage,
            queued_s=done.queued_s,
            run_s=done.run_s,
        )

    def _emit_progress(self, subtask_id: str, agent: str, text: str) -> None:
        if self._progress_events < MAX_PROGRESS_EVENTS:
            self._progress_events += 1
            self._emit(SubtaskProgress, subtask_id=subtask_id, agent=agent, text=text)

    def _mark(self, phase: str) -> None:
        self._marks[phase] = monotonic() - self._began

    async def _end(self, status: Status, value: Any) -> None:
        assigned = dict(self._assigned)
        if self._services.host is not None:
            self._services.host.runs.pop(self.id, None)
        await self._stop_work()
        if self._crew is not None:
            await self._dismiss(self._crew)
        await self._hang_up()
        if assigned:
            await self._confirm_stops(assigned)
        with contextlib.suppress(Exception):
            await self._services.assembler.disband(self._team, self.id, self._taken, within_s=CANCEL_S)
        wall_s = monotonic() - self._began
        planned = self._marks.get("plan", wall_s)
        assembled = self._marks.get("assemble", wall_s)
        timings = Timings(planned, assembled - planned, wall_s - assembled, wall_s)
        outputs = {**self._done_by_members, **(self._machine.outputs if self._machine else {})}
        result = Result(
            self.id,
            status,
            value,
            outputs,
            tuple(self._failures),
            self._usage,
            timings,
            self._team,
            self._plan,
            tuple(self._events),
        )
        try:
            if status is not Status.INPUT_REQUIRED:  # a parked run stays open
                await self._log(Kind.FINISH, result.to_dict)
        except errors.PandacoreError as error:
            logger.error("the end of run %s could not be journalled: %s", self.id, error)
        self._result = result
        self._emit(RunFinished, result=result)

    async def _dismiss(self, crew: Crew) -> None:
        """End the members' nodes; report those whose agents went on."""
        for reply in await crew.close(CANCEL_S):
            for attempt in reply.abandoned:
                self._failures.append(self._abandoned(attempt.agent_id, attempt.subtask_id))
            self._account(usage_from_pb(reply.spent))
        if self._services.host is not None:
            self._services.host.nodes.detach(self)

    def _abandoned(self, agent_id: bytes, subtask_id: str) -> Failure:
        name = self._name(agent_id)
        error = errors.AgentFailed(
            f"agent {name!r} ignored the cancellation and was abandoned",
            kind="Abandoned",
            hint="let CancelledError pass, and keep plain functions short",
        )
        return Failure.of(error, subtask_id=subtask_id, agent=name)

    async def _confirm_stops(self, assigned: Mapping[tuple[str, int], bytes]) -> None:
        """Have the agents of unfinished attempts confirm that they stopped; report those that went on."""

        async def stop(key: tuple[str, int], agent_id: bytes) -> None:
            try:
                state = await self._services.directory.client(agent_id).cancel(
                    agent_id, self.id, *key, timeout_s=CANCEL_S
                )
            except errors.PandacoreError:
                return  # gone: nothing runs there any more, or nobody can say
            if state == agent_pb2.ATTEMPT_STATE_ABANDONED:
                self._failures.append(self._abandoned(agent_id, key[0]))

        await asyncio.gather(*(stop(key, agent_id) for key, agent_id in assigned.items()))


class EventStream:
    """An async iterator over a run's events, safe to leave at any point and from any task.

    It is no generator on purpose: breaking out of one leaves clean-up to the garbage collector, in another
    context. If the stream owns its run (``Collective.stream``), leaving it early cancels the run.
    """

    def __init__(self, run: Run, *, after: int, owns_run: bool) -> None:
        self._run = run
        self._next = after
        self._owns_run = owns_run

    @property
    def run(self) -> Run:
        """The run behind the stream."""
        return self._run

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        try:
            event = await self._run._next_event(self._next)
        except asyncio.CancelledError:
            self._leave()
            raise
        if event is None:
            raise StopAsyncIteration
        self._next += 1
        return event

    async def aclose(self) -> None:
        """Leave the stream; a run that it owns is cancelled, and has ended on return."""
        if self._owns_run and not self._run.done:
            await self._run.cancel()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _leave(self) -> None:
        if self._owns_run:
            self._run.request_cancel()

    def __del__(self) -> None:
        run = self._run
        if self._owns_run and not run.done and not run._loop.is_closed():
            run._loop.call_soon_threadsafe(run.request_cancel)


def _with_match(member: Member, matches: tuple[CapabilityMatch, ...]) -> Member:
    """The member, with what its capability was taken for."""
    for match in matches:
        if match.capability == member.capability:
            taken = f"{member.why}; taken for {match.requirement!r} by meaning ({match.similarity:.2f})"
            return dataclasses.replace(member, why=taken)
    return member
