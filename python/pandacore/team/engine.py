"""Carries out what a machine asks for: the same for a run's entrypoint and for its members.

A machine does no I/O. An :class:`Engine` feeds it events one at a time and does, in order, what it answers:
timers, executions, messages, questions. Where the two kinds of node differ (what is durable, who executes,
who is asked) they say so in the abstract methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.patterns import base
from pandacore.patterns.star_node import as_message
from pandacore.rpc.v1 import agent_pb2
from pandacore.team.client import SubtaskError
from pandacore.team.contract import broken_term

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from pandacore.team.links import Links

__all__ = ["FAILOVER", "Engine", "build"]

logger = logging.getLogger(__name__)

FAILOVER: Final = "failover"
"""The star whose members get messages instead of calls, because any of two may come to lead it."""
MAX_INBOX: Final = 10_000
"""Events that wait for one node; further messages are refused as busy, and come again later."""
MAX_SENDERS: Final = 10_000
"""Senders whose last envelope a node remembers; messages of further ones are dropped."""


def build(machine: Callable[..., base.Machine], run_id: str, me: str, **wanted: Any) -> base.Machine:
    """Make a machine with those of the wanted arguments that its constructor takes.

    So a user's pattern declares what it needs, and nothing else.
    """
    taken = _taken(machine)
    if taken is None:
        return machine(run_id, me, **wanted)
    return machine(run_id, me, **{name: value for name, value in wanted.items() if name in taken})


@lru_cache(maxsize=64)
def _taken(machine: Callable[..., base.Machine]) -> frozenset[str] | None:
    """The arguments that a constructor takes by name; None: any."""
    parameters = inspect.signature(machine).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return frozenset(parameters)


class Engine(ABC):
    """One node of one run.

    Parameters
    ----------
    run_id, me : str
        The run and the node's name in it.
    """

    def __init__(self, run_id: str, me: str) -> None:
        self.run_id = run_id
        self.me = me
        self.epoch = 1
        self._loop = asyncio.get_running_loop()
        self._machine: base.Machine | None = None
        self._links: Links | None = None
        self._by_messages = False  # executions of others are ordered by messages, not by calls
        self._binds = False  # the agent of a call is written down before it is called
        self._inbox: deque[base.Event] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._heeded: list[asyncio.Future[None]] = []  # for those who wait until an event is durable
        self._stored: list[asyncio.Future[None]] = []  # records that are on their way to the disk
        self._attempts: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._heard: dict[str, tuple[int, int]] = {}

    # -- where the nodes differ ----------------------------------------------------------------------

    @abstractmethod
    def _store(self, checkpoint: base.Checkpoint) -> asyncio.Future[None] | None:
        """Begin to make the state durable; answers what is done when it is, None if it is at once."""

    @abstractmethod
    async def _execute(self, execute: base.Execute) -> Any:
        """Have an agent do it; answers its output, or raises ``SubtaskError`` or a typed error."""

    @abstractmethod
    def _attempt_failed(self, key: tuple[str, int], error: errors.PandacoreError, *, executed: bool) -> None:
        """An attempt ended without an output."""

    @abstractmethod
    async def _make(self, ask: base.AskPlan) -> base.Planned:
        """A plan; a typed error if there is none."""

    @abstractmethod
    async def _rank(self, ask: base.AskRanking) -> list[str]:
        """The proposals' digests, best first."""

    @abstractmethod
    async def _find(self, capability: str, exclude: tuple[str, ...]) -> str | None:
        """Another agent with the capability, ready to take part; None if there is none."""

    @abstractmethod
    def _noted(self, note: Mapping[str, Any], actions: list[base.Action]) -> None:
        """The machine tells something."""

    @abstractmethod
    def _reported(self, sender: str, report: agent_pb2.NodeReport) -> None:
        """Another node tells what happened there."""

    def _stopped(self, key: tuple[str, int]) -> None:  # noqa: B027 (cancelling may be all there is to do)
        """An attempt's output is no longer wanted; its task is cancelled already."""

    def _checked(self, key: tuple[str, int], *, bad: bool) -> None:  # noqa: B027 (only entrypoints keep count)
        """An output was held against its contract."""

    # -- events --------------------------------------------------------------------------------------

    def post(self, event: base.Event) -> None:
        """Give the machine an event, after those that wait."""
        self._inbox.append(event)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def deliver(self, request: agent_pb2.DeliverRequest) -> agent_pb2.DeliverReply:
        """Take what another node sent; what came before is dropped."""
        sender = request.sender.name
        if len(self._inbox) >= MAX_INBOX:
            return agent_pb2.DeliverReply(busy=True)
        incarnation, last = self._heard.get(sender, (0, 0))
        if incarnation != request.incarnation:
            if sender not in self._heard and len(self._heard) >= MAX_SENDERS:
                return agent_pb2.DeliverReply()
            last = 0
        if self._links is not None:
            self._links.learn(sender, request.sender.address)
        for envelope in request.envelopes:
            if envelope.number <= last:
                continue
            last = envelope.number
            if envelope.WhichOneof("content") == "report":
                self._reported(sender, envelope.report)
                continue
            try:
                message = json.loads(envelope.message_json)
            except ValueError:
                logger.warning("node %s of run %s sent no JSON", sender[:16], self.run_id)
                continue
            if isinstance(message, dict):
                self.post(base.Received(sender, message))
        self._heard[sender] = (request.incarnation, last)
        return agent_pb2.DeliverReply()

    def lost(self, peer: str) -> None:
        """See ``Owner``."""
        self.post(base.PeerDown(peer))

    def found(self, peer: str) -> None:
        """See ``Owner``."""
        self.post(base.PeerUp(peer))

    async def _follow(self) -> base.Finish:
        """Drive the machine until its part is over.

        It takes in all events that wait before the first effect of any of them, so that one commit of the
        journal serves them all.
        """
        machine, inbox = self._machine, self._inbox
        assert machine is not None
        finish = None
        while finish is None:
            if not inbox:
                self._wake = self._loop.create_future()
                await self._wake
                self._wake = None
            asked: list[list[base.Action]] = []
            heeded, self._heeded = self._heeded, []
            effects = bool(heeded)
            last: base.Checkpoint | None = None  # not stored yet, in case that the next one joins it
            while inbox:
                actions = machine.handle(inbox.popleft())
                if not actions:
                    continue
                asked.append(actions)
                if self._binds:
                    # Whom to ask is decided before the commit, so that a restart asks the same agent.
                    inbox.extendleft(self._placed(actions))
                if type(actions[0]) is base.Checkpoint:
                    last = self._begin_store(actions[0], after=last)
                    effects = effects or len(actions) > 1
                else:
                    effects = True
                if machine.done:
                    break
            if last is not None:
                self._put(last)
            if effects:
                await self._durable()
            for waiter in heeded:
                if not waiter.done():
                    waiter.set_result(None)
            for actions in asked:
                finish = self._carry_out(actions) or finish
        return finish

    def _placed(self, actions: list[base.Action]) -> Iterator[base.Assigned]:
        """Whom the executions go to whose agent is the driver's choice."""
        for action in actions:
            if type(action) is base.Execute and action.agent is None and (found := self._bind(action)):
                yield found

    def _bind(self, execute: base.Execute) -> base.Assigned | None:
        """Choose the agent of an execution; None if that takes time, or is not this node's part."""
        return None

    async def _take_in(self, event: base.Event) -> None:
        """Give the machine an event; return once what it wrote is durable."""
        durable = self._loop.create_future()
        self._heeded.append(durable)
        self.post(event)
        await durable

    def _begin_store(
        self, checkpoint: base.Checkpoint, *, after: base.Checkpoint | None
    ) -> base.Checkpoint | None:
        """Store a checkpoint, joined with the one before it; or answer it, if the next one may join it."""
        if after is not None:
            both = base.joined(after, checkpoint)
            if both is None:
                self._put(after)
            checkpoint = both or checkpoint
        if not checkpoint.full and checkpoint.state["drop"]:
            self._put(checkpoint)
            return None
        return checkpoint

    def _put(self, checkpoint: base.Checkpoint) -> None:
        self._await_later(self._store(checkpoint))

    def _await_later(self, written: asyncio.Future[None] | None) -> None:
        if written is not None:
            self._stored.append(written)

    async def _durable(self) -> None:
        """Wait until all that was stored is on the disk."""
        stored, self._stored = self._stored, []
        for written in stored:
            await written

    # -- actions -------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[base.Action]) -> base.Finish | None:
        finish = None
        for index, action in enumerate(actions):
            match action:
                case base.Checkpoint():
                    if index:  # the first is stored already
                        self._put(action)
                case base.Execute(subtask_id, attempt, agent=agent):
                    if self._by_messages and agent != self.me:
                        self._order(action)
                    elif (subtask_id, attempt) not in self._attempts:
                        self._begin(action)
                case base.StopExecution(subtask_id, attempt, agent):
                    if self._by_messages and agent != self.me:
                        self._order(action)
                    elif (running := self._attempts.get((subtask_id, attempt))) is not None:
                        running.cancel()
                        self._stopped((subtask_id, attempt))
                case base.Send(to, message):
                    if self._links is not None:  # else: a pattern whose members are called, not told
                        self._links.send(to, message)
                case base.SetTimer(name, after_s):
                    self._clear_timer(name)
                    self._timers[name] = self._loop.call_later(after_s, self._timer_fired, name)
                case base.ClearTimer(name):
                    self._clear_timer(name)
                case base.AskPlan():
                    self._errand(self._ask_plan(action))
                case base.AskRanking():
                    self._errand(self._ask_ranking(action))
                case base.AskReplacement(capability, exclude):
                    self._errand(self._ask_replacement(capability, exclude))
                case base.AskJudgement(subtask_id, attempt, output, contract):
                    reason = broken_term(output, contract)
                    self._checked((subtask_id, attempt), bad=bool(reason))
                    self.post(base.Judged(subtask_id, attempt, not reason, reason))
                case base.Emit(note):
                    self._noted(note, actions)
                case base.Finish():
                    finish = action
                case base.Evict(peer, reason):
                    logger.debug("run %s: %s leaves the team: %s", self.run_id, peer[:16], reason)
        return finish

    def _begin(self, execute: base.Execute) -> None:
        key = (execute.subtask_id, execute.attempt)
        self._attempts[key] = self._loop.create_task(self._attempt(execute))

    async def _attempt(self, execute: base.Execute) -> None:
        key = (execute.subtask_id, execute.attempt)
        try:
            output = await self._execute(execute)
        except SubtaskError as error:
            if isinstance(error.error, errors.InputRequired):
                self._attempt_asked(key, error.error)
            else:
                self._attempt_failed(key, error.error, executed=error.executed)
        except errors.PandacoreError as error:
            self._attempt_failed(key, error, executed=False)
        except Exception as error:
            logger.exception("attempt %s in run %s failed by an internal error", key, self.run_id)
            self._attempt_failed(
                key, errors.ProtocolError(f"{type(error).__name__}: {error}", where=key[0]), executed=True
            )
        else:
            self.post(base.Executed(*key, output))
        finally:
            self._ended(key)

    def _attempt_asked(self, key: tuple[str, int], asked: errors.InputRequired) -> None:
        """An attempt ended with questions."""
        if self._machine is None or not self._machine.takes_questions:
            refused = errors.StateError(
                f"the agent has questions, and this pattern takes none: {asked.message}",
                where=f"subtask {key[0]!r}",
                hint="use star, chain, mesh or failover, or set takes_questions and handle Asked",
            )
            self._attempt_failed(key, refused, executed=True)
            return
        questions = [{"id": q.id, "text": q.text, "schema": q.schema} for q in asked.questions]
        self.post(base.Asked(*key, questions, asked.state))

    def _ended(self, key: tuple[str, int]) -> None:
        self._attempts.pop(key, None)

    def _order(self, action: base.Execute | base.StopExecution) -> None:
        """Have another node's machine do it, by a message."""
        assert self._links is not None
        message = as_message(action, self.run_id)
        if message is not None:
            self._links.send(message.to, message.message)
        elif isinstance(action, base.Execute):
            self._errand(self._place(action))

    async def _place(self, execute: base.Execute) -> None:
        """Find the agent for an execution whose machine knows none."""
        capability = str((execute.work or {}).get("capability", ""))
        try:
            peer = await self._find(capability, ())
        except errors.PandacoreError:
            peer = None
        if peer is None:
            missing = errors.NoReplacement(
                f"no agent was found for {capability!r}",
                missing={capability: 1},
                where=f"subtask {execute.subtask_id!r}",
                hint="add one with this capability",
            )
            self._attempt_failed((execute.subtask_id, execute.attempt), missing, executed=False)
            return
        await self._take_in(base.Assigned(execute.subtask_id, execute.attempt, peer))
        self._order(replace(execute, agent=peer))

    async def _ask_plan(self, ask: base.AskPlan) -> None:
        try:
            self.post(await self._make(ask))
        except errors.PandacoreError as error:
            self.post(base.PlanningFailed(error, ask.request))

    async def _ask_ranking(self, ask: base.AskRanking) -> None:
        try:
            ranking = await self._rank(ask)
        except errors.PandacoreError as error:
            logger.debug("run %s: no ranking: %s", self.run_id, error)
            ranking = sorted(ask.proposals)
        self.post(base.Ranked(ask.request, ranking))

    async def _ask_replacement(self, capability: str, exclude: tuple[str, ...]) -> None:
        try:
            peer = await self._find(capability, exclude)
        except errors.PandacoreError as error:
            logger.debug("run %s: no replacement for %s: %s", self.run_id, capability, error)
            peer = None
        self.post(base.Replacement(capability, peer))

    # -- tasks and timers ----------------------------------------------------------------------------

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _timer_fired(self, name: str) -> None:
        self._timers.pop(name, None)
        self.post(base.TimerFired(name))

    def _clear_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    async def _stop_work(self) -> None:
        """Cancel what runs for this node; it can still tell others."""
        for name in list(self._timers):
            self._clear_timer(name)
        running = [*self._attempts.values(), *self._errands]
        if not running:
            return
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _hang_up(self) -> None:
        """Tell nobody anything more."""
        if self._links is not None:
            with contextlib.suppress(Exception):
                await self._links.close()
