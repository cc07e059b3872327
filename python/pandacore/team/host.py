"""A host: one gRPC server that serves all agents of this process."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import itertools
import json
import logging
import secrets
import threading
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pandacore import errors
from pandacore.agent import no_model
from pandacore.models.bound import BoundModel
from pandacore.models.types import Usage
from pandacore.models.wire import documents_from_pb, usage_to_pb
from pandacore.patterns.base import Contract
from pandacore.planted import PLANTED
from pandacore.rpc.channel import MAX_PAYLOAD, OPTIONS, check_size
from pandacore.rpc.errors import status_code, to_detail, trailers
from pandacore.rpc.v1 import agent_pb2, agent_pb2_grpc
from pandacore.task import Task
from pandacore.team.card import MAX_AGENTS, card_of
from pandacore.team.client import asked_to_pb
from pandacore.team.clients import Clients
from pandacore.team.desk import serve_link
from pandacore.team.member import Nodes
from pandacore.team.purse import share_ledger
from pandacore.team.queue import WorkQueue
from pandacore.team.tls import server_credentials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from pandacore.agent import Agent
    from pandacore.gossip import Node
    from pandacore.models.client import ModelClient
    from pandacore.team.passes import Doorman
    from pandacore.trust import KeyPair

__all__ = ["CANCEL_GRACE_S", "Host", "Job", "Tell"]

logger = logging.getLogger(__name__)

CANCEL_GRACE_S: Final = 0.5
"""Seconds that an agent's code has to end after a cancellation; then it is reported and abandoned."""
MAX_PROGRESS: Final = 64
"""Progress lines of one subtask that wait to be sent; then the oldest is dropped."""
MAX_REMEMBERED: Final = 4_096
"""Ended attempts whose state a host still answers; then the oldest is forgotten."""
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Results of ended attempts that a host keeps for callers that come back; then the oldest is dropped."""
SWEEP_S: Final = 0.25
"""How often places that were held for too long are given back."""
MAX_THREADS: Final = 64
"""Worker threads of a host, for agents that are plain functions."""

_AttemptKey = tuple[bytes, str, str, int]
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_NOTHING: Final = Usage()
_NEVER_ASKED: Final[dict[str, Any]] = {"values": {}, "state": None}
_STARTED: Final = agent_pb2.AssignEvent(started=agent_pb2.Started())
_ACCEPTED: Final = agent_pb2.AssignEvent(accepted=agent_pb2.Accepted())
Tell: TypeAlias = "Callable[[agent_pb2.AssignEvent], None]"
"""Hears the events of an attempt, in order, on the loop."""
_ServicerContext = grpc.aio.ServicerContext[Any, Any]


class Answerable(Protocol):
    """A run in progress, as far as answers from outside go."""

    async def answer(self, question_id: str, value: Any) -> None:
        """Answer an open question."""


class _Context:
    """The agent's view of the runtime during one subtask; implements ``AgentContext``."""

    def __init__(self, job: Job, model: BoundModel | None) -> None:
        self._job = job
        self._model = model

    @property
    def model(self) -> BoundModel:
        if self._model is None:
            raise no_model()
        return self._model

    @property
    def remaining_s(self) -> float | None:
        return self._job.remaining_s()

    def progress(self, text: str) -> None:
        job = self._job
        if threading.get_ident() == job.thread:
            job.add_progress(str(text))
        else:  # a plain function in a worker thread: the job belongs to the loop
            job.loop.call_soon_threadsafe(job.add_progress, str(text))


class Job:
    """One attempt at one subtask, from acceptance to its terminal event."""

    def __init__(self, request: agent_pb2.AssignRequest, deadline: float | None) -> None:
        self.request = request
        self.key: _AttemptKey = (request.agent_id, request.run_id, request.subtask_id, request.attempt)
        self.usage = _NOTHING
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.deadline = deadline
        self.state = agent_pb2.ATTEMPT_STATE_QUEUED
        self.queued_at = monotonic()  # the loop's own clock may tell no more than milliseconds
        self.started_at: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.last: agent_pb2.AssignEvent | None = None
        self._end: asyncio.Future[None] | None = None
        self._progress: deque[str] | None = None
        self._flushing = False
        self.tell: Tell | None = None

    async def over(self, within_s: float) -> bool:
        """Wait for its terminal event; False if there is none in time."""
        if self.last is None and self._end is None:
            self._end = self.loop.create_future()
        if self.last is None and self._end is not None:
            await asyncio.wait({self._end}, timeout=within_s)
        return self.last is not None

    def remaining_s(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - self.loop.time(), 0.0)

    def add_progress(self, text: str) -> None:
        if self.last is None:
            if self._progress is None:
                self._progress = deque(maxlen=MAX_PROGRESS)
            self._progress.append(text[:10_000])
            if self.tell is not None and not self._flushing:
                # Not at once: of a burst only the last lines are sent.
                self._flushing = True
                self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._progress and self.tell is not None:
            progress = agent_pb2.Progress(text=self._progress.popleft())
            self.tell(agent_pb2.AssignEvent(progress=progress))

    def start(self) -> None:
        self.state = agent_pb2.ATTEMPT_STATE_RUNNING
        self.started_at = monotonic()
        if self.tell is not None:
            self.tell(_STARTED)

    def end(self, state: agent_pb2.AttemptState, event: agent_pb2.AssignEvent) -> None:
        """The first terminal event wins; later ones are ignored."""
        if self.last is None:
            self._flush()
            self.state = state
            self.last = event
            if self.tell is not None:
                self.tell(event)
            if self._end is not None and not self._end.done():
                self._end.set_result(None)

    def spend(self, usage: Usage) -> None:
        self.usage += usage

    def fail(
        self, error: BaseException, state: agent_pb2.AttemptState = agent_pb2.ATTEMPT_STATE_FAILED
    ) -> None:
        failed = agent_pb2.Failed(
            error=to_detail(error), usage=usage_to_pb(self.usage), executed=self.started_at is not None
        )
        self.end(state, agent_pb2.AssignEvent(failed=failed))

    def ask(self, asked: errors.InputRequired) -> None:
        """The agent has questions: the attempt ends, the subtask does not."""
        failed = agent_pb2.Failed(
            error=to_detail(asked), usage=usage_to_pb(self.usage), executed=True, asked=asked_to_pb(asked)
        )
        check_size(failed, producer=f"the questions of subtask {self.request.subtask_id!r}")
        self.end(agent_pb2.ATTEMPT_STATE_INPUT_REQUIRED, agent_pb2.AssignEvent(failed=failed))

    def listen(self, tell: Tell) -> None:
        """Tell somebody what happens from now on; whoever listened before is told that it no longer does."""
        if self.tell is not None:
            taken = errors.DuplicateId("another caller took this attempt over", hint="follow it there")
            self.tell(agent_pb2.AssignEvent(failed=agent_pb2.Failed(error=to_detail(taken), executed=True)))
        self.tell = tell
        if self.started_at is not None:
            tell(_STARTED)
        self._flush()


class _Worker:
    """Serves one agent: its queue, its running attempts and their ends."""

    def __init__(self, agent: Agent, host: Host) -> None:
        self.agent = agent
        self.host = host
        self.queue: WorkQueue[Job] = WorkQueue(concurrency=agent.concurrency, limit=agent.queue_limit)
        self.jobs: dict[_AttemptKey, Job] = {}
        self.service_s = 0.0
        self.abandoned = 0
        self.draining = False
        self._expiries: dict[str, float] = {}

    @property
    def accepting(self) -> bool:
        return not self.draining and self.abandoned < 4 * self.agent.concurrency and not self.queue.full

    def probe(self) -> agent_pb2.ProbeReply:
        queue = self.queue
        return agent_pb2.ProbeReply(
            queued=queue.queued,
            running=queue.running,
            reserved=queue.reserved,
            concurrency=queue.concurrency,
            queue_limit=queue.limit,
            service_s=self.service_s,
            accepting=self.accepting,
        )

    def refusal(self) -> str:
        """Why nothing more is taken now; empty if something is."""
        if self.draining:
            return "draining"
        if self.abandoned >= 4 * self.agent.concurrency:
            return f"{self.abandoned} abandoned executions still run"
        return "queue full" if self.queue.full else ""

    def invite(self, request: agent_pb2.InviteRequest) -> agent_pb2.InviteReply:
        reason = self.refusal()
        if not reason and request.capability and not _holds(self.agent, request.capability):
            reason = f"no capability {request.capability!r}"
        if reason:
            return agent_pb2.InviteReply(accepted=False, reason=reason, load=self.probe())
        self.queue.reserve(request.run_id)
        ttl_s = min(max(request.ttl_ms, 1), 600_000) / 1000
        self._expiries[request.run_id] = self.host.expires_in(self, ttl_s)
        self.changed()
        return agent_pb2.InviteReply(accepted=True, load=self.probe(), memory=self.host.memory)

    def release(self, run_id: str) -> bool:
        self._expiries.pop(run_id, None)
        found = False
        while self.queue.release(run_id):
            found = True
        if found:
            self.changed()
        return found

    def expire(self, now: float) -> bool:
        """Give back the places whose time is over; True while there are others."""
        for run_id in [run_id for run_id, at in self._expiries.items() if at <= now]:
            self.release(run_id)
        return bool(self._expiries)

    def submit(self, request: agent_pb2.AssignRequest, deadline: float | None) -> tuple[Job, int]:
        """Put an attempt into the queue; :meth:`pump` starts it."""
        job = Job(request, deadline)
        if (job.key in self.jobs or self.host.ended(job.key)) and "attempt_again" not in PLANTED:
            raise errors.DuplicateId(
                f"attempt {request.attempt} of {request.subtask_id!r} is already here",
                hint="raise the attempt number to run it again",
            )
        if self.draining or self.abandoned >= 4 * self.agent.concurrency:
            raise errors.Overloaded(self.refusal(), hint="try another agent")
        position = self.queue.offer(job, run_id=request.run_id, priority=request.priority)
        if not self.queue.holds(request.run_id):
            self._expiries.pop(request.run_id, None)
        self.jobs[job.key] = job
        return job, position

    def rejoin(self, request: agent_pb2.AssignRequest) -> Job | None:
        """The attempt that a caller who came back asks about, if it is still here.

        Raises
        ------
        UnknownOutcome
            The caller wants no second execution, and there may have been a first one.
        """
        key = (request.agent_id, request.run_id, request.subtask_id, request.attempt)
        job = self.jobs.get(key)
        if job is not None and job.request.orphan_grace_ms:
            return job
        never_came = job is None and not self.host.ended(key) and request.memory == self.host.memory
        if request.only_if_known and not never_came:
            raise errors.UnknownOutcome(
                f"nothing is known here of attempt {request.attempt} of {request.subtask_id!r}",
                hint="mark the task idempotent=True to have such subtasks run again",
            )
        return None

    async def orphaned(self, job: Job) -> None:
        """The caller's connection is gone: wait for it to come back, as long as it asked for; then stop."""
        grace_s = min(job.request.orphan_grace_ms, 3_600_000) / 1000
        if not (grace_s and await job.over(grace_s)) and job.last is None and job.tell is None:
            await self.cancel(job)

    def pump(self) -> None:
        while (job := self.queue.next()) is not None:
            job.start()
            job.task = job.loop.create_task(self._run(job), name=f"{self.agent.name}/{job.key[2]}")

    async def _run(self, job: Job) -> None:
        try:
            await self._execute(job)
        except asyncio.CancelledError:
            job.fail(self._stopped(began=True), agent_pb2.ATTEMPT_STATE_CANCELLED)
        except Exception as error:  # the agent's own code: any exception is its failure, never ours
            job.fail(_failure(error, self.agent))
        except BaseException as error:
            job.fail(errors.AgentFailed(f"{type(error).__name__}: {error}", kind=type(error).__name__))
            raise
        finally:
            if job.state == agent_pb2.ATTEMPT_STATE_ABANDONED:
                self.abandoned -= 1
            else:
                self._finish(job)

    async def _execute(self, job: Job) -> None:
        request = job.request
        task = _task_of(request)
        handler: Callable[..., Any] = self.agent.handler
        takes_context = self.agent.takes_context
        args = (task, _Context(job, self.host.bound_model(job))) if takes_context else (task,)
        try:
            if self.agent.is_async:
                output = await handler(*args)
            else:
                output = await job.loop.run_in_executor(self.host.threads, lambda: handler(*args))
                if inspect.isawaitable(output):
                    output = await output
        except errors.InputRequired as asked:
            output = asked
        if isinstance(output, errors.InputRequired):  # raised or returned, it is the same
            job.ask(output)
            return
        began = job.started_at or job.queued_at
        event = agent_pb2.AssignEvent()
        completed = event.completed
        completed.output_json = _dump(output, self.agent)
        if job.usage is not _NOTHING:
            completed.usage.CopyFrom(usage_to_pb(job.usage))
        completed.queued_s = began - job.queued_at
        completed.run_s = monotonic() - began
        if completed.ByteSize() > MAX_PAYLOAD:
            check_size(completed, producer=f"agent {self.agent.name!r}")
        job.end(agent_pb2.ATTEMPT_STATE_COMPLETED, event)

    def _finish(self, job: Job) -> None:
        self.queue.done()
        if job.started_at is not None and job.state == agent_pb2.ATTEMPT_STATE_COMPLETED:
            took = monotonic() - job.started_at
            # The first sample seeds the average; the weight is the smoothing that balances best.
            self.service_s = took if self.service_s == 0 else self.service_s + 0.05 * (took - self.service_s)
        self._forget(job)
        self.pump()
        self.changed()

    def _forget(self, job: Job) -> None:
        if self.jobs.pop(job.key, None) is not None:
            self.host.remember(job)

    def _stopped(self, *, began: bool) -> errors.PandacoreError:
        """Why an attempt was stopped. Where an agent leaves nobody asked for that: callers may swap it."""
        name = self.agent.name
        if not self.draining:
            return errors.Cancelled(
                "cancelled while it ran" if began else "cancelled while it waited", hint="run the task again"
            )
        if began:
            return errors.UnknownOutcome(
                f"agent {name!r} left while it worked",
                hint="mark the task idempotent=True to have such subtasks run again",
            )
        return errors.ConnectionLost(f"agent {name!r} left before it began", hint="choose another agent")

    async def cancel(self, job: Job) -> None:
        """Stop an attempt, queued or running; returns within the grace time, in a terminal state."""
        if self.queue.discard(job):
            job.fail(self._stopped(began=False), agent_pb2.ATTEMPT_STATE_CANCELLED)
            self._forget(job)
            self.changed()
            return
        if job.task is None or job.last is not None or "ignore_cancel" in PLANTED:
            return
        job.task.cancel()
        if not await job.over(CANCEL_GRACE_S):
            self.abandon(job)

    def abandon(self, job: Job) -> None:
        """Give up on code that ignored its cancellation: its slot is freed, and it is counted and logged."""
        if job.last is not None:
            return
        logger.warning(
            "agent %r went on after the cancellation of %s/%s and was abandoned",
            self.agent.name,
            job.request.run_id,
            job.request.subtask_id,
        )
        job.fail(
            errors.Cancelled(
                f"agent {self.agent.name!r} ignored the cancellation and was abandoned",
                hint="let CancelledError pass, and check for it in threads",
            ),
            agent_pb2.ATTEMPT_STATE_ABANDONED,
        )
        self.abandoned += 1
        self._finish(job)

    def changed(self) -> None:
        tell = self.host.load_changed
        if tell is not None:
            tell(self.agent, self.queue.load)


class Host:
    """Serves agents over gRPC, one port a process.

    Parameters
    ----------
    model : ModelClient, optional
        The client that agents' ``ctx.model`` uses.
    load_changed : callable
        Called on the loop with (agent, load) whenever an agent's load changed.
    clients : Clients, optional
        How nodes of runs reach other hosts; default: clients of its own.
    """

    def __init__(
        self,
        *,
        model: ModelClient | None = None,
        load_changed: Callable[[Agent, int], None] | None = None,
        clients: Clients | None = None,
    ) -> None:
        self.model = model
        self.clients = clients or Clients()
        self.clients.host = self
        self.nodes = Nodes(self)
        self.load_changed = load_changed
        self._workers: dict[bytes, _Worker] = {}
        self._ended: OrderedDict[_AttemptKey, agent_pb2.AttemptState] = OrderedDict()
        self.memory = secrets.token_bytes(8)  # another one whenever ended attempts are forgotten
        self._kept: OrderedDict[_AttemptKey, agent_pb2.AssignEvent] = OrderedDict()
        self._kept_bytes = 0
        self._errands: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._holding: set[_Worker] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self.threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="pandacore-agent")
        self.address = ""
        self.runs: dict[str, Answerable] = {}
        """The runs that begin here, for answers to what their agents ask."""
        self.token = secrets.token_bytes(16)
        """Whoever shows it may answer."""

    async def start(
        self,
        bind: str = "127.0.0.1:0",
        *,
        doorman: Doorman | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> str:
        """Bind and serve; answers the bound address as ``host:port``.

        Parameters
        ----------
        bind : str
            ``host:port``; port 0 takes a free one.
        doorman : Doorman, optional
            Judges the callers; default: everybody may call.
        credentials : grpc.ServerCredentials, optional
            See :func:`pandacore.team.tls.server_credentials`. Default: plaintext, for loopback.
        """
        server = grpc.aio.server(options=OPTIONS, interceptors=[doorman] if doorman else [])
        agent_pb2_grpc.add_AgentServiceServicer_to_server(_Servicer(self), server)
        status = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(status, server)
        name = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
        reflection.enable_server_reflection((name, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        ip, _, wanted = bind.rpartition(":")
        try:
            port = (
                server.add_insecure_port(bind)
                if credentials is None
                else server.add_secure_port(bind, credentials)
            )
        except RuntimeError as error:
            raise errors.ConfigError(
                f"cannot listen: {error}", where=bind, hint="choose another address or port"
            ) from error
        if wanted not in ("0", str(port)):
            raise errors.ConfigError("the port is taken", where=bind, hint="choose another one")
        await server.start()
        for service in ("", name):
            await status.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        self.address = f"{ip}:{port}"
        return self.address

    async def start_beside(self, node: Node, *, key: KeyPair, bind: str, doorman: Doorman) -> str:
        """Serve next to a gossip node with its key, under the same port number where it is free.

        Answers the plain endpoint, ``host:port``; :attr:`address` then names the host as well.
        """
        ip, _, wanted = bind.rpartition(":")
        credentials = server_credentials(key)
        try:
            bound = await self.start(f"{ip}:{node.port}", doorman=doorman, credentials=credentials)
        except errors.ConfigError:
            if wanted != "0":
                raise
            bound = await self.start(f"{ip}:0", doorman=doorman, credentials=credentials)
        endpoint, port = node.address, bound.rpartition(":")[2]
        if port != str(node.port):
            endpoint = f"{endpoint.rpartition(':')[0]}:{port}"
        self.address = f"{node.did}@{endpoint}"
        return endpoint

    async def close(self) -> None:
        """Cancel what runs and stop serving; ends within about a second."""
        await self.nodes.close()
        jobs = [(w, job) for w in self._workers.values() for job in list(w.jobs.values())]
        for worker in self._workers.values():
            worker.draining = True
            for run_id in list(worker._expiries):
                worker.release(run_id)
        await asyncio.gather(*(worker.cancel(job) for worker, job in jobs))
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._server is not None:
            await self._server.stop(grace=0.2)
            self._server = None
        await self.clients.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def add(self, agent: Agent) -> None:
        """Serve an agent from now on."""
        if agent.id in self._workers:
            raise errors.DuplicateId(
                f"agent {agent.name!r} is already served", hint="give the second one its own key"
            )
        self._workers[agent.id] = _Worker(agent, self)

    async def remove(self, agent_id: bytes) -> None:
        """Stop serving an agent: what waits or runs is cancelled."""
        worker = self.worker(agent_id)
        worker.draining = True
        self.nodes.end_agent(agent_id)
        await asyncio.gather(*(worker.cancel(job) for job in list(worker.jobs.values())))
        del self._workers[agent_id]

    def agents(self) -> list[Agent]:
        """The agents that are served here."""
        return [worker.agent for worker in self._workers.values()]

    def worker(self, agent_id: bytes) -> _Worker:
        """The worker of an agent.

        Raises
        ------
        UnknownAgent
            This host does not serve it.
        """
        worker = self._workers.get(agent_id)
        if worker is None:
            raise errors.UnknownAgent(
                f"no agent with id {agent_id.hex()[:16]} here",
                where=self.address,
                hint="it left; choose another",
            )
        return worker

    def answer(self, name: str, request: Any) -> Any:
        """The reply to a call of this name that takes no time: ``invite``, ``release`` or ``probe``.

        Raises
        ------
        UnknownAgent
            This host does not serve the agent.
        """
        worker = self.worker(request.agent_id)
        match name:
            case "invite":
                return worker.invite(request)
            case "release":
                return agent_pb2.ReleaseReply(found=worker.release(request.run_id))
            case _:
                return worker.probe()

    def expires_in(self, worker: _Worker, seconds: float) -> float:
        """The time at which a place that a worker holds from now on is given back by the sweep."""
        loop = asyncio.get_running_loop()
        self._holding.add(worker)
        if self._sweep is None:
            self._sweep = loop.call_later(SWEEP_S, self._expire)
        return loop.time() + seconds

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._holding = {worker for worker in self._holding if worker.expire(now)}
        self._sweep = loop.call_later(SWEEP_S, self._expire) if self._holding else None

    def attempts(self, run_id: str) -> list[tuple[_AttemptKey, agent_pb2.AttemptState]]:
        """The attempts of a run that live on this host."""
        return [
            (key, job.state)
            for w in self._workers.values()
            for key, job in w.jobs.items()
            if key[1] == run_id
        ]

    def state(self, key: _AttemptKey) -> agent_pb2.AttemptState:
        """The state of an attempt; ``UNKNOWN`` if it never was here or is forgotten."""
        worker = self._workers.get(key[0])
        if worker is not None and (job := worker.jobs.get(key)) is not None:
            return job.state
        return self._ended.get(key, agent_pb2.ATTEMPT_STATE_UNKNOWN)

    def remember(self, job: Job) -> None:
        """Keep how an attempt ended, for late questions; and its result, for a caller that comes back."""
        self._ended[job.key] = job.state
        if len(self._ended) > MAX_REMEMBERED:
            for key in list(itertools.islice(self._ended, MAX_REMEMBERED // 2)):
                del self._ended[key]
            self.memory = secrets.token_bytes(8)
        if job.request.orphan_grace_ms and job.last is not None:
            self._kept[job.key] = job.last
            self._kept_bytes += job.last.ByteSize()
            while self._kept_bytes > MAX_KEPT_BYTES or len(self._kept) > MAX_REMEMBERED:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.ByteSize()

    def ended(self, key: _AttemptKey) -> bool:
        """Whether an attempt was here and ended; false as well if it is forgotten."""
        return key in self._ended

    def kept(self, key: _AttemptKey) -> agent_pb2.AssignEvent | None:
        """The last event of an ended attempt, if it is still kept."""
        return self._kept.get(key)

    def assign(self, request: agent_pb2.AssignRequest, deadline: float | None, tell: Tell) -> Job | None:
        """Take a subtask in, or up again; ``tell`` hears every event of it, at once or later.

        Returns
        -------
        Job or None
            None: it was told how it ended already.

        Raises
        ------
        UnknownAgent
            Nothing was told.
        """
        worker = self.worker(request.agent_id)
        kept = None
        if self._kept:
            kept = self.kept((request.agent_id, request.run_id, request.subtask_id, request.attempt))
        if kept is not None:
            tell(_ACCEPTED)
            tell(kept)
            return None
        position = 0
        try:
            job = worker.rejoin(request)
            if job is None:
                job, position = worker.submit(request, deadline)
        except errors.PandacoreError as error:
            executed = isinstance(error, errors.UnknownOutcome)
            tell(agent_pb2.AssignEvent(failed=agent_pb2.Failed(error=to_detail(error), executed=executed)))
            return None
        accepted = agent_pb2.Accepted(queue_position=position)
        tell(agent_pb2.AssignEvent(accepted=accepted) if position else _ACCEPTED)
        job.listen(tell)
        worker.pump()
        worker.changed()
        return job

    def hung_up(self, job: Job, tell: Tell) -> None:
        """A listener is gone; unless another has taken over, or it ended, the subtask is orphaned."""
        worker = self._workers.get(job.request.agent_id)
        # Two bound methods of one object are equal, but not the same.
        if job.tell == tell and job.last is None and worker is not None:
            job.tell = None
            self.errand(worker.orphaned(job))

    async def cancel(self, request: agent_pb2.CancelRequest) -> agent_pb2.AttemptState:
        """Stop an attempt; answers the state it ended in.

        Raises
        ------
        UnknownAgent
            This host does not serve its agent.
        """
        worker = self.worker(request.agent_id)
        key = (request.agent_id, request.run_id, request.subtask_id, request.attempt)
        job = worker.jobs.get(key)
        if job is None:
            return self.state(key)
        await worker.cancel(job)
        return job.state

    def errand(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)  # the loop holds tasks weakly
        task.add_done_callback(self._errands.discard)

    def bound_model(self, job: Job) -> BoundModel | None:
        """The model as one subtask sees it: charged to its ledger, cut off at its deadline."""
        if self.model is None:
            return None
        request = job.request
        limit = None if request.unlimited_tokens else request.token_budget
        ledger = share_ledger(
            limit, request.cost_budget, request.prices_json, f"subtask {request.subtask_id!r}"
        )
        return BoundModel(self.model, ledger=ledger, remaining_s=job.remaining_s, spent=job.spend)


class _Servicer(agent_pb2_grpc.AgentServiceServicer):
    """The wire side: looks the worker up, translates, and lets the worker decide."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def Probe(self, request: agent_pb2.ProbeRequest, context: _ServicerContext) -> agent_pb2.ProbeReply:
        return (await self._worker(request.agent_id, context)).probe()

    async def Describe(
        self, request: agent_pb2.DescribeRequest, context: _ServicerContext
    ) -> agent_pb2.DescribeReply:
        if not 16 <= len(request.nonce) <= 64:
            error = errors.ProtocolError("the nonce has not 16 to 64 bytes", hint="send random bytes")
            await context.abort(status_code(error), str(error), trailers(error))
        agents = self._host.agents()[:MAX_AGENTS]
        return agent_pb2.DescribeReply(agents=[card_of(agent, request.nonce) for agent in agents])

    async def Invite(
        self, request: agent_pb2.InviteRequest, context: _ServicerContext
    ) -> agent_pb2.InviteReply:
        return (await self._worker(request.agent_id, context)).invite(request)

    async def Release(
        self, request: agent_pb2.ReleaseRequest, context: _ServicerContext
    ) -> agent_pb2.ReleaseReply:
        worker = await self._worker(request.agent_id, context)
        return agent_pb2.ReleaseReply(found=worker.release(request.run_id))

    async def Assign(
        self, request: agent_pb2.AssignRequest, context: _ServicerContext
    ) -> AsyncIterator[agent_pb2.AssignEvent]:
        await self._worker(request.agent_id, context)
        left = context.time_remaining()
        deadline = None if left is None else asyncio.get_running_loop().time() + left
        events: asyncio.Queue[agent_pb2.AssignEvent] = asyncio.Queue()

        def tell(event: agent_pb2.AssignEvent) -> None:
            if events.qsize() < MAX_PROGRESS or not event.HasField("progress"):
                events.put_nowait(event)

        job = self._host.assign(request, deadline, tell)
        try:
            ended = False
            while not ended:
                event = await events.get()
                ended = event.HasField("completed") or event.HasField("failed")
                yield event
        finally:
            if job is not None:
                self._host.hung_up(job, tell)

    # gRPC takes this form, which reads and writes by itself, as well as a generator.
    async def Link(  # type: ignore[override]
        self, request_iterator: Any, context: _ServicerContext
    ) -> None:
        del request_iterator
        await serve_link(self._host, context)

    async def Cancel(
        self, request: agent_pb2.CancelRequest, context: _ServicerContext
    ) -> agent_pb2.CancelReply:
        await self._worker(request.agent_id, context)
        return agent_pb2.CancelReply(state=await self._host.cancel(request))

    async def Heartbeat(
        self, request: agent_pb2.HeartbeatRequest, context: _ServicerContext
    ) -> agent_pb2.HeartbeatReply:
        del context
        self._host.nodes.renew(request.run_id)
        return agent_pb2.HeartbeatReply(
            attempts=[
                agent_pb2.Attempt(agent_id=key[0], subtask_id=key[2], attempt=key[3], state=state)
                for key, state in self._host.attempts(request.run_id)
            ]
        )

    async def Open(self, request: agent_pb2.OpenRequest, context: _ServicerContext) -> agent_pb2.OpenReply:
        del context
        return self._host.nodes.open(request)

    async def Deliver(
        self, request: agent_pb2.DeliverRequest, context: _ServicerContext
    ) -> agent_pb2.DeliverReply:
        del context
        return self._host.nodes.deliver(request)

    async def Ask(self, request: agent_pb2.AskRequest, context: _ServicerContext) -> agent_pb2.AskReply:
        try:
            return await self._host.nodes.ask(request)
        except errors.PandacoreError as error:
            await context.abort(status_code(error), str(error), trailers(error))
            raise

    async def Close(self, request: agent_pb2.CloseRequest, context: _ServicerContext) -> agent_pb2.CloseReply:
        del context
        return await self._host.nodes.close_run(request.run_id, request.epoch)

    async def Answer(
        self, request: agent_pb2.AnswerRequest, context: _ServicerContext
    ) -> agent_pb2.AnswerReply:
        try:
            if not hmac.compare_digest(request.token, self._host.token):
                raise errors.CallRefused(
                    "the token is not this host's", hint="read it beside the run log, or join as its user"
                )
            run = self._host.runs.get(request.run_id)
            if run is None:
                raise errors.UnknownRun(
                    f"run {request.run_id!r} is not in progress here", hint="it has ended, or went elsewhere"
                )
            try:
                value = json.loads(request.value_json)
            except ValueError as error:
                raise errors.InvalidAnswer(f"the answer is no JSON: {error}", hint="send JSON") from error
            await run.answer(request.question_id, value)
        except errors.PandacoreError as error:
            await context.abort(status_code(error), str(error), trailers(error))
        return agent_pb2.AnswerReply()

    async def _worker(self, agent_id: bytes, context: _ServicerContext) -> _Worker:
        try:
            return self._host.worker(agent_id)
        except errors.UnknownAgent as error:
            await context.abort(status_code(error), str(error), trailers(error))
            raise


def _holds(agent: Agent, capability: str) -> bool:
    """True for the capability itself or a finer one: ``search.web`` satisfies ``search``."""
    if capability in agent.capabilities:
        return True
    return any(own.startswith(capability + ".") for own in agent.capabilities)


def _task_of(request: agent_pb2.AssignRequest) -> Task:
    inputs = _object(request.inputs_json, "AssignRequest.inputs_json")
    again = inputs.pop("_answers", _NEVER_ASKED)
    return Task(
        request.instruction,
        documents=documents_from_pb(request.documents),
        inputs=inputs,
        answers=again["values"],
        state=again["state"],
        priority=request.priority,
        metadata=_object(request.metadata_json, "AssignRequest.metadata_json"),
        capability=request.capability,
        root_text=request.root_text,
        run_id=request.run_id,
        subtask_id=request.subtask_id,
        attempt=request.attempt,
        idempotency_key=request.idempotency_key,
        contract=Contract.from_dict(json.loads(request.contract_json)) if request.contract_json else None,
    )


def _object(text: str, where: str) -> dict[str, Any]:
    if not text or text == "{}":
        return {}
    found = json.loads(text)
    if not isinstance(found, dict):
        raise errors.ProtocolError(
            f"must be a JSON object, is {type(found).__name__}", where=where, hint="key inputs by subtask id"
        )
    return found


def _dump(output: object, agent: Agent) -> str:
    try:
        return _ENCODE(output)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.AgentFailed(
            f"agent {agent.name!r} returned {type(output).__name__}, which is no JSON value: {error}",
            kind=type(error).__name__,
            hint="return str, numbers, bool, None, lists and dicts of these",
        ) from error


def _failure(error: Exception, agent: Agent) -> errors.PandacoreError:
    if isinstance(error, errors.PandacoreError):
        return error
    return errors.AgentFailed(
        f"agent {agent.name!r} raised {type(error).__name__}: {error}",
        kind=type(error).__name__,
        hint="fix the agent's code, or let it raise a pandacore error that says more",
    )
