"""Agents as nodes of runs: a host opens them for an entrypoint, drives their machines, and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from typing import TYPE_CHECKING, Any, Final, Protocol

from pandacore import errors
from pandacore.models.bound import BoundModel
from pandacore.models.types import Usage
from pandacore.models.wire import documents_from_pb, usage_from_pb, usage_to_pb
from pandacore.patterns import MACHINES, base
from pandacore.plan import Plan
from pandacore.planning import plan_by_model, plan_by_rule, rank_by_model
from pandacore.rpc.errors import from_detail, to_detail
from pandacore.rpc.v1 import agent_pb2
from pandacore.task import Task
from pandacore.team.client import SubtaskError, failure_of
from pandacore.team.engine import FAILOVER, Engine, build
from pandacore.team.links import Links
from pandacore.team.purse import share_ledger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandacore.team.host import Host, _Worker

__all__ = ["MAX_NODES", "Member", "Node", "Nodes"]

logger = logging.getLogger(__name__)

MAX_NODES: Final = 10_000
"""Nodes that a host has open at once; more are refused."""
ASK_S: Final = 10.0
"""Seconds that the entrypoint may take to answer a question; then it is asked again."""
MAX_PROGRESS_REPORTS: Final = 1_000
"""Progress lines that a node passes on; later ones are dropped."""
_BACKOFF_S: Final = (0.01, 0.5)


class Node(Protocol):
    """What a host can bring messages to: a member, or the entrypoint of a run of this process."""

    epoch: int

    def deliver(self, request: agent_pb2.DeliverRequest) -> agent_pb2.DeliverReply:
        """Take what another node sent."""


class Member(Engine):
    """One agent's part in one run, on the agent's own host.

    Its checkpoints are kept in memory: a host that dies takes them along, which is what the patterns are
    made for. It ends on the entrypoint's word, or when nothing was heard of the run for a whole lease.
    """

    def __init__(self, host: Host, worker: _Worker, request: agent_pb2.OpenRequest) -> None:
        super().__init__(request.run_id, worker.agent.id.hex())
        self.epoch = request.epoch
        self._host = host
        self._worker = worker
        self._spec = spec = agent_pb2.RunSpec()
        spec.CopyFrom(request.spec)
        self._root = request.peers[0].name
        self._links = Links(self, host, faithful=[self._root])
        self._links.update(request.peers, (request.epoch, request.version))
        self._by_messages = spec.pattern == FAILOVER
        self._deadline = self._loop.time() + spec.deadline_ms / 1000 if spec.deadline_ms else None
        self._lease_s = max(spec.lease_ms, 1_000) / 1000
        self.expires = self._loop.time() + self._lease_s
        self._plan = Plan.from_dict(json.loads(spec.plan_json)) if spec.plan_json else None
        self._vocabulary: dict[str, str] = json.loads(spec.vocabulary_json or "{}")
        self._progress = 0
        self.abandoned: list[tuple[str, int]] = []
        if not spec.outlives_root:
            self._links.follow(request.peers[0].address)
        self._machine = build(
            MACHINES[spec.pattern][1],
            self.run_id,
            self.me,
            limits=base.Limits.from_dict(json.loads(spec.limits_json)),
        )
        self.post(base.Start())
        self._main = self._loop.create_task(self._live(), name=f"pandacore node {worker.agent.name}")

    # -- life ----------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            while True:  # a machine that is done still answers late messages
                await self._follow()
        except Exception as error:
            logger.exception("node %r of run %s broke", self._worker.agent.name, self.run_id)
            self._tell(agent_pb2.NodeReport(broken=to_detail(error)))

    def renew(self) -> None:
        """Something was heard of the run."""
        self.expires = self._loop.time() + self._lease_s

    def deliver(self, request: agent_pb2.DeliverRequest) -> agent_pb2.DeliverReply:
        """See :meth:`Engine.deliver`."""
        if request.sender.name == self._root and request.epoch < self.epoch:
            return agent_pb2.DeliverReply(fenced=True)
        self.renew()
        return super().deliver(request)

    def reopened(self, request: agent_pb2.OpenRequest) -> None:
        """The entrypoint says anew who is in the team, and where it is itself."""
        assert self._links is not None
        self.renew()
        self.epoch = max(self.epoch, request.epoch)
        self._links.update(request.peers, (request.epoch, request.version))

    def lost(self, peer: str) -> None:
        """See ``Owner``."""
        if peer == self._root and not self._spec.outlives_root:
            logger.info("run %s lost its entrypoint; node %s ends", self.run_id, self._worker.agent.name)
            self._host.nodes.end(self.run_id, self.me)
            return
        super().lost(peer)

    def fenced(self) -> None:
        """See ``Owner``. Only an entrypoint is fenced by others."""

    def oversized(self, error: errors.PayloadTooLarge) -> None:
        """See ``Owner``."""
        self._tell(agent_pb2.NodeReport(broken=to_detail(error)))

    async def close(self) -> agent_pb2.CloseReply:
        """End at once; answers the attempts whose agent's code went on, and what was spent untold."""
        assert self._links is not None
        self._main.cancel()
        await asyncio.gather(self._main, return_exceptions=True)
        self._links.hold()
        await self._stop_work()
        spent = Usage()
        for report in self._links.unsent(self._root):
            for usage in (report.planned, report.event.completed.usage, report.event.failed.usage):
                spent += usage_from_pb(usage)
        await self._hang_up()
        state = agent_pb2.ATTEMPT_STATE_ABANDONED
        abandoned = [
            agent_pb2.Attempt(agent_id=self._worker.agent.id, subtask_id=s, attempt=n, state=state)
            for s, n in self.abandoned
        ]
        return agent_pb2.CloseReply(abandoned=abandoned, spent=usage_to_pb(spent))

    # -- work ----------------------------------------------------------------------------------------

    def _store(self, checkpoint: base.Checkpoint) -> None:
        """Nothing to do: the machine's own state is the copy in memory."""

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - self._loop.time(), 0.0)

    def _subtask(self, execute: base.Execute) -> tuple[str, str]:
        """Capability and instruction: by the machine's word, the plan's, or the task's."""
        if execute.work is not None:
            return str(execute.work["capability"]), str(execute.work["instruction"])
        if self._plan is not None and execute.subtask_id in self._plan:
            subtask = self._plan[execute.subtask_id]
            return subtask.capability, subtask.instruction
        return self._worker.agent.capabilities[0], self._spec.text

    async def _execute(self, execute: base.Execute) -> Any:
        if execute.agent != self.me:
            raise errors.ProtocolError(
                "a member can only have its own agent work",
                where=f"subtask {execute.subtask_id!r}",
                hint="Execute(agent=self.me), or send the other node a message",
            )
        capability, instruction = self._subtask(execute)
        spec = self._spec
        key = (execute.subtask_id, execute.attempt)
        share = await self._share(*key)
        request = agent_pb2.AssignRequest(
            agent_id=self._worker.agent.id,
            run_id=self.run_id,
            subtask_id=execute.subtask_id,
            attempt=execute.attempt,
            capability=capability,
            instruction=instruction,
            root_text=spec.text,
            inputs_json=json.dumps(dict(execute.inputs), ensure_ascii=False),
            documents=spec.documents,
            priority=spec.priority,
            idempotency_key=f"{self.run_id}/{execute.subtask_id}",
            metadata_json=spec.metadata_json,
            token_budget=share.tokens,
            unlimited_tokens=spec.unlimited_tokens,
            cost_budget=share.cost,
            prices_json=spec.prices_json,
            contract_json=json.dumps(execute.contract.to_dict()) if execute.contract else "",
        )
        report = agent_pb2.NodeReport(
            subtask_id=key[0], attempt=key[1], capability=capability, instruction=instruction
        )
        wait_s = _BACKOFF_S[0]
        while True:
            last = await self._assigned(request, report)
            if last.WhichOneof("event") == "completed":
                return json.loads(last.completed.output_json)
            error = failure_of(last.failed)
            if last.failed.executed or not isinstance(error, errors.Overloaded):
                usage = usage_from_pb(last.failed.usage)
                raise SubtaskError(error, executed=last.failed.executed, usage=usage)
            # A full queue is no failure of the subtask: it waits for a place.
            await asyncio.sleep(random.uniform(wait_s / 2, wait_s))
            wait_s = min(wait_s * 2, _BACKOFF_S[1])

    async def _assigned(
        self, request: agent_pb2.AssignRequest, report: agent_pb2.NodeReport
    ) -> agent_pb2.AssignEvent:
        """Put it into the agent's queue and follow it; answers its last event."""
        events: asyncio.Queue[agent_pb2.AssignEvent] = asyncio.Queue()
        job = self._host.assign(request, self._deadline, events.put_nowait)
        try:
            while True:
                event = await events.get()
                match event.WhichOneof("event"):
                    case "accepted":
                        continue
                    case "progress":
                        self._progress += 1
                        if self._progress > MAX_PROGRESS_REPORTS:
                            continue
                    case "failed" if job is None:
                        return event  # it was not taken: nothing happened yet
                    case _:
                        pass
                self._tell(report, event)
                if event.WhichOneof("event") in ("completed", "failed"):
                    return event
        finally:
            if job is not None and job.last is None:
                job.tell = None
                await self._worker.cancel(job)
                if job.last is not None:
                    self._tell(report, job.last)  # what it cost until then
                if job.state == agent_pb2.ATTEMPT_STATE_ABANDONED:
                    self.abandoned.append((request.subtask_id, request.attempt))

    def _attempt_failed(self, key: tuple[str, int], error: errors.PandacoreError, *, executed: bool) -> None:
        self.post(base.ExecutionFailed(*key, error, executed))

    # -- the entrypoint ------------------------------------------------------------------------------

    def _tell(self, report: agent_pb2.NodeReport, event: agent_pb2.AssignEvent | None = None) -> None:
        assert self._links is not None
        told = agent_pb2.NodeReport()
        told.CopyFrom(report)
        if event is not None:
            told.event.CopyFrom(event)
        self._links.report(self._root, told)

    async def _question(self, **question: Any) -> agent_pb2.AskReply:
        """Ask the entrypoint, until it answers or this node ends: while it is away, it may come back."""
        assert self._links is not None
        request = agent_pb2.AskRequest(run_id=self.run_id, sender=self.me, **question)
        wait_s = _BACKOFF_S[0]
        while True:
            address = self._links.book.get(self._root, "")
            try:
                if address == self._host.address:
                    return await self._host.nodes.ask(request)
                return await self._host.clients.at(address).ask(request, timeout_s=ASK_S)
            except errors.ConnectionLost:
                if self._by_messages:  # a stand-in goes on without the entrypoint
                    raise
            except (errors.DeadlineExceeded, errors.UnknownRun):
                pass
            await asyncio.sleep(random.uniform(wait_s / 2, wait_s))
            wait_s = min(wait_s * 2, _BACKOFF_S[1])

    async def _share(self, subtask_id: str, attempt: int) -> agent_pb2.AskReply:
        """What an execution may spend; a typed error if a cap of this agent is used up."""
        if not self._spec.asks_first:
            return agent_pb2.AskReply()
        reserve = agent_pb2.Reserve(subtask_id=subtask_id, attempt=attempt)
        try:
            reply = await self._question(reserve=reserve)
        except errors.ConnectionLost:
            # The budget is gone with the entrypoint: the work goes on without model calls.
            return agent_pb2.AskReply()
        if reply.HasField("refused"):
            raise from_detail(reply.refused)
        return reply

    async def _find(self, capability: str, exclude: tuple[str, ...]) -> str | None:
        assert self._links is not None
        ask = agent_pb2.Replace(capability=capability, exclude=exclude)
        reply = await self._question(replace=ask)
        if not reply.HasField("peer"):
            return None
        self._links.learn(reply.peer.name, reply.peer.address)
        return str(reply.peer.name)

    def _noted(self, note: Mapping[str, Any], actions: list[base.Action]) -> None:
        self._tell(agent_pb2.NodeReport(note_json=json.dumps(dict(note), ensure_ascii=False)))

    def _reported(self, sender: str, report: agent_pb2.NodeReport) -> None:
        logger.debug("run %s: a report of %s reached a member", self.run_id, sender[:16])

    # -- planning ------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _model(self, request: str) -> Any:
        """The host's model, charged to the run; None if the host has none."""
        if self._host.model is None:
            yield None
            return
        share = await self._share(request, 0)
        used = Usage()

        def spend(usage: Usage) -> None:
            nonlocal used
            used += usage

        tokens = None if self._spec.unlimited_tokens else share.tokens
        ledger = share_ledger(tokens, share.cost, self._spec.prices_json, "Budget")
        try:
            yield BoundModel(self._host.model, ledger=ledger, remaining_s=self._remaining_s, spent=spend)
        finally:
            self._tell(agent_pb2.NodeReport(subtask_id=request, planned=usage_to_pb(used)))

    def _task(self) -> Task:
        spec = self._spec
        return Task(
            spec.text,
            documents=documents_from_pb(spec.documents),
            capabilities=tuple(self._vocabulary),
            metadata=json.loads(spec.metadata_json or "{}"),
            priority=spec.priority,
        )

    async def _make(self, ask: base.AskPlan) -> base.Planned:
        proposing = ask.context.get("reason") in ("propose", "revise")
        async with self._model(ask.request) as model:
            if proposing and (model is None or not self._spec.may_replan):
                if ask.context.get("errors"):
                    raise _nobody_plans()
                return base.Planned(plan_by_rule(self._task(), self._vocabulary), ask.request)
            if model is None or not self._spec.may_replan:
                raise _nobody_plans()
            stuck = None if proposing and not ask.context.get("errors") else ask.context
            plan = await plan_by_model(self._task(), self._vocabulary, model, stuck)
            return base.Planned(plan, ask.request)

    async def _rank(self, ask: base.AskRanking) -> list[str]:
        async with self._model(ask.request) as model:
            if model is None:
                return sorted(ask.proposals, key=lambda d: (len(ask.proposals[d]["subtasks"]), d))
            return await rank_by_model(self._task(), ask.proposals, model)


def _nobody_plans() -> errors.InvalidPlan:
    return errors.InvalidPlan(
        "the plan was not made by a model, so nobody can change it",
        where="replan",
        hint="let a model plan, or add agents that can take over",
    )


class Nodes:
    """All nodes that are open on a host, of members and entrypoints."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._members: dict[tuple[str, str], Member] = {}
        self._roots: dict[tuple[str, str], Any] = {}
        self._by_run: dict[str, set[str]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._members)

    def attach(self, root: Any) -> None:
        """Let messages reach the entrypoint of a run of this process."""
        self._roots[root.run_id, root.me] = root

    def detach(self, root: Any) -> None:
        """The entrypoint is gone."""
        self._roots.pop((root.run_id, root.me), None)

    def open(self, request: agent_pb2.OpenRequest) -> agent_pb2.OpenReply:
        """Open nodes; tell all nodes of the run here who is in the team."""
        reply = agent_pb2.OpenReply()
        here = [self._members[request.run_id, name] for name in self._by_run.get(request.run_id, ())]
        if any(node.epoch > request.epoch for node in here):
            return agent_pb2.OpenReply(fenced=True)
        for node in here:
            node.reopened(request)
        for agent_id in request.agent_ids:
            fresh = (request.run_id, agent_id.hex()) not in self._members
            refused = self._admit(agent_id, request) if fresh else ""
            reply.nodes.append(agent_pb2.OpenedNode(agent_id=agent_id, fresh=fresh, refused=refused))
        return reply

    def _admit(self, agent_id: bytes, request: agent_pb2.OpenRequest) -> str:
        """Why the agent cannot be a node; empty if it is one now."""
        if len(self._members) >= MAX_NODES:
            return f"{MAX_NODES} nodes are open here"
        if request.spec.pattern not in MACHINES:
            return f"no pattern {request.spec.pattern!r} here: register it where the agents are served"
        if not request.peers:
            return "no entrypoint was named"
        try:
            worker = self._host.worker(agent_id)
            node = Member(self._host, worker, request)
        except (errors.PandacoreError, ValueError) as error:
            return str(error)
        self._members[request.run_id, node.me] = node
        self._by_run.setdefault(request.run_id, set()).add(node.me)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(1.0, self._expire)
        return ""

    def deliver(self, request: agent_pb2.DeliverRequest) -> agent_pb2.DeliverReply:
        """Bring messages to the node they are for."""
        key = (request.run_id, request.to)
        node: Node | None = self._roots.get(key) or self._members.get(key)
        return agent_pb2.DeliverReply(unknown=True) if node is None else node.deliver(request)

    async def ask(self, request: agent_pb2.AskRequest) -> agent_pb2.AskReply:
        """Have the run's entrypoint answer.

        Raises
        ------
        UnknownRun
            It is not here.
        """
        for (run_id, _), root in self._roots.items():
            if run_id == request.run_id:
                reply: agent_pb2.AskReply = await root.serve(request)
                return reply
        raise errors.UnknownRun(
            f"run {request.run_id} has no entrypoint here", hint="it has ended, or went elsewhere"
        )

    def renew(self, run_id: str) -> None:
        """The entrypoint gives proof of life."""
        for name in self._by_run.get(run_id, ()):
            self._members[run_id, name].renew()

    async def close_run(self, run_id: str, epoch: int) -> agent_pb2.CloseReply:
        """End the run's nodes here; answers the attempts that could not be stopped, and what was spent."""
        here = [self._members[run_id, name] for name in self._by_run.get(run_id, ())]
        ended = [self._take(n.run_id, n.me) for n in here if n.epoch <= epoch]
        replies = await asyncio.gather(*(node.close() for node in ended if node is not None))
        spent = sum((usage_from_pb(r.spent) for r in replies), Usage())
        abandoned = [attempt for r in replies for attempt in r.abandoned]
        return agent_pb2.CloseReply(abandoned=abandoned, spent=usage_to_pb(spent))

    def end(self, run_id: str, name: str) -> None:
        """End one node, without waiting."""
        node = self._take(run_id, name)
        if node is not None:
            task = asyncio.get_running_loop().create_task(node.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def end_agent(self, agent_id: bytes) -> None:
        """The agent is served no more: its nodes end."""
        for run_id, name in [k for k in self._members if k[1] == agent_id.hex()]:
            self.end(run_id, name)

    def _take(self, run_id: str, name: str) -> Member | None:
        names = self._by_run.get(run_id, set())
        names.discard(name)
        if not names:
            self._by_run.pop(run_id, None)
        return self._members.pop((run_id, name), None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for node in [n for n in self._members.values() if n.expires <= now]:
            logger.info("node %s of run %s heard nothing for its whole lease", node.me[:16], node.run_id)
            self.end(node.run_id, node.me)
        self._sweep = loop.call_later(1.0, self._expire) if self._members else None

    async def close(self) -> None:
        """End all."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for run_id, name in list(self._members):
            self.end(run_id, name)
        await asyncio.gather(*self._ending, return_exceptions=True)
