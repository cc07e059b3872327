"""One run, from task to result: plans, forms the team, carries out what the pattern asks, ends for sure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.models.budget import TokenLedger
from pandacore.models.types import Usage
from pandacore.models.wire import documents_to_pb
from pandacore.patterns.base import AttemptEnded, AttemptFailed, Begin, Dispatch, Finish, StopAttempt
from pandacore.planning import plan_by_model, plan_by_rule
from pandacore.rpc.v1 import agent_pb2
from pandacore.task import (
    Budget,
    Event,
    Failure,
    PlanReady,
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
    new_id,
)
from pandacore.team.client import Completed, Progress, Started, SubtaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from pandacore.models.bound import BoundModel
    from pandacore.models.budget import Reservation
    from pandacore.models.client import ModelClient
    from pandacore.patterns.base import Action, Input, Pattern
    from pandacore.plan import Plan
    from pandacore.task import Member
    from pandacore.team.assembly import Assembler
    from pandacore.team.directory import Directory

__all__ = ["EventStream", "Run"]

logger = logging.getLogger(__name__)

MAX_PROGRESS_EVENTS: Final = 10_000
"""Progress events kept per run; later ones are dropped. The other kinds are bounded by the plan."""
CANCEL_S: Final = 0.8
"""Seconds to wait for agents to confirm a cancellation."""
_BACKOFF_S: Final = (0.01, 0.5)


@dataclass(frozen=True, slots=True)
class Services:
    """What a run uses of its collective."""

    directory: Directory
    assembler: Assembler
    model: ModelClient | None
    random: Random


class Run:
    """A task in progress. Made by ``Collective.start``; bound to the collective's event loop.

    Whatever happens, a run ends in one :class:`Result`, its last event is ``RunFinished``, and nothing of it
    goes on afterwards.
    """

    def __init__(
        self, task: Task, pattern: type[Pattern], budget: Budget, services: Services, *, planner: str = "auto"
    ) -> None:
        self.id = new_id()
        self.task = task
        self._pattern_type = pattern
        self._budget = budget
        self._services = services
        self._planner = planner
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._ledger = TokenLedger(budget.tokens, name="Budget.tokens")
        self._usage = Usage()
        self._unshared = 0
        self._steps = 0
        self._events: list[Event] = []
        self._progress_events = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._plan: Plan | None = None
        self._team = TeamView()
        self._marks: dict[str, float] = {}
        self._pattern: Pattern | None = None
        self._inbox: asyncio.Queue[Input] = asyncio.Queue()
        self._attempts: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._assigned: dict[tuple[str, int], bytes] = {}
        self._blamed: dict[str, set[bytes]] = {}
        self._failures: list[Failure] = []
        self._last_failures: dict[str, Failure] = {}
        self._result: Result | None = None
        self._stopping = False
        self._main = self._loop.create_task(self._drive(), name=f"pandacore run {self.id}")

    @property
    def done(self) -> bool:
        """True once the result exists."""
        return self._result is not None

    async def result(self) -> Result:
        """Wait for the end. Cancelling the waiter does not cancel the run."""
        await asyncio.shield(asyncio.wait({self._main}))
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
            self._failures += [
                self._last_failures.get(s) or Failure.of(e, subtask_id=s) for s, e in finish.failed.items()
            ]
        except asyncio.CancelledError:
            status = Status.CANCELLED
            self._failures.append(Failure.of(errors.Cancelled("the run was cancelled")))
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
        except Exception as error:  # a fault of ours must still end the run, visibly
            logger.exception("run %s failed by an internal error", self.id)
            self._failures.append(Failure.of(error))
        finally:
            self._stopping = True
            await self._end(status, value)

    async def _work(self) -> Finish:
        self._plan, source = await self._make_plan()
        self._mark("plan")
        self._emit(PlanReady, plan=self._plan, source=source)
        required = {c: self.task.redundancy.get(c, 1) for c in self._plan.capabilities}
        self._team = await self._services.assembler.form(required, self.id)
        self._mark("assemble")
        self._emit(TeamFormed, team=self._team)
        self._pattern = self._pattern_type(
            self._plan, inputs=self.task.inputs, idempotent=self.task.idempotent
        )
        finish = self._carry_out(self._pattern.handle(Begin()))
        while finish is None:
            finish = self._carry_out(self._pattern.handle(await self._inbox.get()))
        return finish

    async def _make_plan(self) -> tuple[Plan, str]:
        if self.task.plan is not None:
            return self.task.plan, "user"
        vocabulary = self._services.directory.vocabulary()
        if not vocabulary:
            raise errors.NoTeam("the collective has no agents", hint="add some with collective.add(...)")
        model = self._model()
        by_rule = self._planner == "rule" or (self._planner == "auto" and len(self.task.capabilities) == 1)
        if model is None or by_rule or (self._planner == "auto" and len(vocabulary) == 1):
            if self._planner == "model":
                raise errors.ConfigError(
                    "planner='model' needs a model", hint='start the collective with model="extractive"'
                )
            return plan_by_rule(self.task, vocabulary), "rule"
        return await plan_by_model(self.task, vocabulary, model), "model"

    def _model(self) -> BoundModel | None:
        from pandacore.models.bound import BoundModel

        if self._services.model is None:
            return None
        return BoundModel(
            self._services.model, ledger=self._ledger, remaining_s=self._remaining_s, spent=self._spend
        )

    def _spend(self, usage: Usage) -> None:
        self._usage += usage

    def _remaining_s(self) -> float | None:
        if self._budget.wall_s is None:
            return None
        return max(self._began + self._budget.wall_s - self._loop.time(), 0.0)

    # -- actions -------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> Finish | None:
        finish = None
        for action in actions:
            match action:
                case Dispatch():
                    key = (action.subtask_id, action.attempt)
                    self._unshared += 1
                    self._attempts[key] = self._loop.create_task(self._attempt(action))
                case StopAttempt(subtask_id, attempt):
                    if (running := self._attempts.get((subtask_id, attempt))) is not None:
                        running.cancel()
                case Finish():
                    finish = action
        return finish

    async def _attempt(self, dispatch: Dispatch) -> None:
        subtask_id, number = dispatch.subtask_id, dispatch.attempt
        try:
            output = await self._execute(dispatch)
        except SubtaskError as error:
            self._attempt_failed(dispatch, error.error, executed=error.executed)
        except errors.PandacoreError as error:
            self._attempt_failed(dispatch, error, executed=False)
        except Exception as error:
            logger.exception(
                "attempt %d of %s in run %s failed by an internal error", number, subtask_id, self.id
            )
            self._attempt_failed(
                dispatch,
                errors.ProtocolError(f"{type(error).__name__}: {error}", where=subtask_id),
                executed=True,
            )
        else:
            self._inbox.put_nowait(AttemptEnded(subtask_id, number, output))
        finally:
            self._attempts.pop((subtask_id, number), None)
            self._assigned.pop((subtask_id, number), None)

    def _attempt_failed(self, dispatch: Dispatch, error: errors.PandacoreError, *, executed: bool) -> None:
        agent_id = self._assigned.get((dispatch.subtask_id, dispatch.attempt))
        if agent_id is not None:
            self._blamed.setdefault(dispatch.subtask_id, set()).add(agent_id)
        name = next((m.name for m in self._team.members if m.agent_id == agent_id), "")
        assert self._pattern is not None
        last = dispatch.attempt >= self._pattern.max_attempts
        failure = Failure.of(error, subtask_id=dispatch.subtask_id, agent=name or None)
        self._last_failures[dispatch.subtask_id] = failure
        self._emit(
            SubtaskFailed,
            subtask_id=dispatch.subtask_id,
            agent=name,
            attempt=dispatch.attempt,
            failure=failure,
            retrying=not last and (not executed or self.task.idempotent),
        )
        self._inbox.put_nowait(AttemptFailed(dispatch.subtask_id, dispatch.attempt, error, executed))

    async def _execute(self, dispatch: Dispatch) -> Any:
        assert self._plan is not None
        subtask = self._plan[dispatch.subtask_id]
        reservation = self._share_tokens()
        spent = Usage()
        wait_s = _BACKOFF_S[0]
        try:
            self._count_step()
            inputs_json = json.dumps(dict(dispatch.inputs), ensure_ascii=False)
            while True:
                member = await self._member_for(subtask.capability, dispatch.subtask_id)
                key = (dispatch.subtask_id, dispatch.attempt)
                self._assigned[key] = member.agent_id
                request = agent_pb2.AssignRequest(
                    agent_id=member.agent_id,
                    run_id=self.id,
                    subtask_id=subtask.id,
                    attempt=dispatch.attempt,
                    capability=subtask.capability,
                    instruction=subtask.instruction,
                    root_text=self.task.text,
                    inputs_json=inputs_json,
                    documents=documents_to_pb(self.task.documents),
                    priority=self.task.priority,
                    idempotency_key=f"{self.id}/{subtask.id}",
                    metadata_json=json.dumps(dict(self.task.metadata), ensure_ascii=False),
                    token_budget=reservation.tokens,
                    unlimited_tokens=self._budget.tokens is None,
                )
                try:
                    output, spent = await self._assign(request, member)
                    return output
                except SubtaskError as error:
                    spent += error.usage
                    if error.executed or not isinstance(error.error, errors.Overloaded):
                        raise
                # A full queue is no failure of the subtask: wait, and look for the least loaded again.
                await asyncio.sleep(self._services.random.uniform(wait_s / 2, wait_s))
                wait_s = min(wait_s * 2, _BACKOFF_S[1])
        finally:
            reservation.settle(spent.total_tokens)
            self._spend(spent)

    async def _assign(self, request: agent_pb2.AssignRequest, member: Member) -> tuple[Any, Usage]:
        self._services.directory.expect(member.agent_id, +1)
        accepted = False
        try:
            client = self._services.directory.client(member.agent_id)
            async with contextlib.aclosing(client.assign(request, timeout_s=self._remaining_s())) as stream:
                async for event in stream:
                    if not accepted:
                        # From here on the agent's own report counts the subtask.
                        accepted = True
                        self._services.directory.expect(member.agent_id, -1)
                        self._emit(
                            SubtaskStarted,
                            subtask_id=request.subtask_id,
                            agent=member.name,
                            attempt=request.attempt,
                            capability=request.capability,
                            instruction=request.instruction,
                        )
                    match event:
                        case Progress(text):
                            self._emit_progress(request.subtask_id, member.name, text)
                        case Completed():
                            return self._completed(request, member, event), event.usage
                        case Started():
                            pass
        finally:
            if not accepted:
                self._services.directory.expect(member.agent_id, -1)
        raise AssertionError("a stream ends with Completed or an error")

    def _completed(self, request: agent_pb2.AssignRequest, member: Member, event: Completed) -> Any:
        try:
            output = json.loads(event.output_json)
        except ValueError as error:
            raise errors.ProtocolError(
                f"the output is no JSON: {error}", where=f"subtask {request.subtask_id!r} by {member.name!r}"
            ) from error
        self._emit(
            SubtaskCompleted,
            subtask_id=request.subtask_id,
            agent=member.name,
            output=output,
            usage=event.usage,
            queued_s=event.queued_s,
            run_s=event.run_s,
        )
        return output

    async def _member_for(self, capability: str, subtask_id: str) -> Member:
        blamed = self._blamed.get(subtask_id, set())
        held = [m for m in self._team.holders(capability) if m.agent_id not in blamed]
        if held:
            return min(held, key=lambda m: self._services.directory.load(m.agent_id))
        try:
            extra = await self._services.assembler.form({capability: 1}, self.id, exclude=frozenset(blamed))
        except errors.NoTeam as error:
            raise errors.NoTeam(
                f"no agent is left for {capability!r} after {len(blamed)} failed",
                missing=error.missing,
                where=f"subtask {subtask_id!r}",
                hint="add a second agent with this capability",
            ) from error
        self._team = TeamView((*self._team.members, *extra.members), self._team.mode)
        return extra.members[0]

    def _count_step(self) -> None:
        limit = self._budget.steps
        if limit is not None and self._steps >= limit:
            raise errors.BudgetExceeded(
                f"{self._steps} subtask executions were started",
                kind="steps",
                limit=limit,
                used=self._steps,
                asked=1,
                where="Budget.steps",
                hint="raise Budget(steps=…)",
            )
        self._steps += 1

    def _share_tokens(self) -> Reservation:
        """An equal share of what is left for each attempt that has none yet; 0 means no model calls."""
        left = self._ledger.remaining
        share = 0 if left is None else left // max(self._unshared, 1)
        self._unshared -= 1
        return self._ledger.reserve(share)

    # -- events and the end --------------------------------------------------------------------------

    def _emit(self, kind: Callable[..., Event], **fields: Any) -> None:
        self._events.append(
            kind(seq=len(self._events) + 1, ts=self._loop.time() - self._began, run_id=self.id, **fields)
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

    def _emit_progress(self, subtask_id: str, agent: str, text: str) -> None:
        if self._progress_events < MAX_PROGRESS_EVENTS:
            self._progress_events += 1
            self._emit(SubtaskProgress, subtask_id=subtask_id, agent=agent, text=text)

    def _mark(self, phase: str) -> None:
        self._marks[phase] = self._loop.time() - self._began

    async def _end(self, status: Status, value: Any) -> None:
        running = list(self._attempts.items())
        assigned = dict(self._assigned)
        for _, attempt in running:
            attempt.cancel()
        await asyncio.gather(*(attempt for _, attempt in running), return_exceptions=True)
        await self._confirm_stops(assigned)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._services.assembler.disband(self._team, self.id), CANCEL_S)
        wall_s = self._loop.time() - self._began
        planned = self._marks.get("plan", wall_s)
        assembled = self._marks.get("assemble", wall_s)
        timings = Timings(planned, assembled - planned, wall_s - assembled, wall_s)
        outputs = dict(self._pattern.outputs) if self._pattern else {}
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
        self._result = result
        self._emit(RunFinished, result=result)

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
                name = next(
                    (m.name for m in self._team.members if m.agent_id == agent_id), agent_id.hex()[:8]
                )
                error = errors.AgentFailed(
                    f"agent {name!r} ignored the cancellation and was abandoned",
                    kind="Abandoned",
                    hint="let CancelledError pass, and keep plain functions short",
                )
                self._failures.append(Failure.of(error, subtask_id=key[0], agent=name))

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
