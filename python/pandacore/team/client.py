"""The caller's side of ``AgentService``: a client per host, deadlines on all calls, typed errors."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

from pandacore import errors
from pandacore.models.types import Usage
from pandacore.models.wire import usage_from_pb
from pandacore.rpc.channel import MAX_PAYLOAD, check_size, open_channel
from pandacore.rpc.errors import error_of_call, from_detail
from pandacore.rpc.v1 import agent_pb2, agent_pb2_grpc
from pandacore.task import Question
from pandacore.team.card import NONCE_BYTES, read_card
from pandacore.team.entry import Entry
from pandacore.team.link import LocalLink, StreamLink, hint_of_loss
from pandacore.team.tls import open_sealed_channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from pandacore.team.host import Host
    from pandacore.team.link import Heard

__all__ = [
    "Accepted",
    "AgentClient",
    "AgentEvent",
    "Completed",
    "Load",
    "Progress",
    "Started",
    "SubtaskError",
    "asked_to_pb",
    "failure_of",
    "invited",
]


@dataclass(frozen=True, slots=True)
class Load:
    """An agent's queue as a probe saw it. ``service_s`` is 0 until it has finished a subtask."""

    queued: int
    running: int
    reserved: int
    concurrency: int
    queue_limit: int
    service_s: float
    accepting: bool

    @property
    def total(self) -> int:
        """Running, waiting and reserved together."""
        return self.queued + self.running + self.reserved

    @property
    def expected_wait_s(self) -> float:
        """Seconds until one more subtask would begin, by the agent's own smoothed service time."""
        return self.wait_s(behind=self.total)

    def wait_s(self, *, behind: int) -> float:
        """Seconds until a subtask would begin that has so many before it."""
        ahead = max(behind - self.concurrency + 1, 0)
        return ahead * self.service_s / max(self.concurrency, 1)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The agent took the subtask; ``queue_position`` others wait before it. From here on a lost connection
    leaves the outcome unknown."""

    queue_position: int


@dataclass(frozen=True, slots=True)
class Started:
    """The agent's code began."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A line from the agent."""

    text: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The output, still as JSON text, and what it cost."""

    output_json: str
    usage: Usage
    queued_s: float
    run_s: float


Metadata: TypeAlias = tuple[tuple[str, bytes], ...]
AgentEvent: TypeAlias = Accepted | Started | Progress | Completed


class SubtaskError(Exception):
    """An attempt ended without an output. ``executed`` False: the agent's code never began."""

    def __init__(self, error: errors.PandacoreError, *, executed: bool, usage: Usage) -> None:
        super().__init__(str(error))
        self.error = error
        self.executed = executed
        self.usage = usage


_NOTHING: Final = Usage()
_LARGE: Final = 256 * 1024
"""Requests of more bytes do not go over the link."""


class AgentClient:
    """Calls one host's agents. Bound to the event loop it is created on.

    Parameters
    ----------
    address : str
        ``host:port`` of the host.
    peer : bytes, optional
        The host's id: calls are encrypted, and reach nobody else. Default: plaintext, for loopback.
    host : Host, optional
        The host itself where it is in this process: the same messages then skip the socket.
    metadata : callable, optional
        Answers the metadata of a call; default: none.
    """

    def __init__(
        self,
        address: str,
        *,
        peer: bytes | None = None,
        host: Host | None = None,
        metadata: Callable[[], Metadata] | None = None,
    ) -> None:
        self.address = address
        self.memory = b""
        """What the host last called its memory of attempts (``AssignRequest.memory``)."""
        self._metadata = metadata or tuple
        self._channel = open_channel(address) if peer is None else open_sealed_channel(address, peer)
        self._stub: Any = agent_pb2_grpc.AgentServiceStub(self._channel)
        self._link = (
            StreamLink(address, lambda: self._stub.Link(metadata=self._metadata()))
            if host is None
            else LocalLink(host)
        )
        self._own_calls_from = _LARGE if host is None else MAX_PAYLOAD

    async def close(self) -> None:
        """Close the channel; calls in flight end as ``ConnectionLost``."""
        await self._link.close()
        await self._channel.close()

    async def describe(self, *, timeout_s: float) -> list[tuple[Entry, int]]:
        """The agents of the host, each with its concurrency; every one has proved that its key is there.

        Raises
        ------
        ProtocolError, InvalidName
            A card is not signed by its agent, or breaks a rule; then none of the host is believed.
        """
        nonce = os.urandom(NONCE_BYTES)
        reply = await self._unary("Describe", agent_pb2.DescribeRequest(nonce=nonce), timeout_s)
        return [(read_card(card, nonce, self.address), card.concurrency) for card in reply.agents]

    async def probe(self, agent_id: bytes, *, timeout_s: float) -> Load:
        """Read an agent's queue."""
        return _load(await self._link.ask("probe", agent_pb2.ProbeRequest(agent_id=agent_id), timeout_s))

    async def invite(
        self, agent_id: bytes, run_id: str, capability: str, *, ttl_s: float, timeout_s: float
    ) -> tuple[bool, str, Load]:
        """Ask for a place in an agent's queue; answers (accepted, why not, load after)."""
        reply = self.invitation(agent_id, run_id, capability, ttl_s=ttl_s, timeout_s=timeout_s)
        return invited(await reply, self)

    def invitation(
        self, agent_id: bytes, run_id: str, capability: str, *, ttl_s: float, timeout_s: float
    ) -> asyncio.Future[agent_pb2.InviteReply]:
        """An invitation that is on its way at once; :func:`invited` reads the reply."""
        request = agent_pb2.InviteRequest(
            agent_id=agent_id, run_id=run_id, capability=capability, ttl_ms=max(int(ttl_s * 1000), 1)
        )
        return self._link.ask("invite", request, timeout_s)

    async def release(self, agent_id: bytes, run_id: str, *, timeout_s: float) -> bool:
        """Give places back; True if the run held any. A release overtakes no invitation made before it."""
        return bool((await self.withdrawal(agent_id, run_id, timeout_s=timeout_s)).found)

    def withdrawal(
        self, agent_id: bytes, run_id: str, *, timeout_s: float
    ) -> asyncio.Future[agent_pb2.ReleaseReply]:
        """A release that is on its way at once."""
        request = agent_pb2.ReleaseRequest(agent_id=agent_id, run_id=run_id)
        return self._link.ask("release", request, timeout_s)

    async def cancel(
        self, agent_id: bytes, run_id: str, subtask_id: str, attempt: int, *, timeout_s: float
    ) -> agent_pb2.AttemptState:
        """Stop an attempt; answers the state it ended in."""
        request = agent_pb2.CancelRequest(
            agent_id=agent_id, run_id=run_id, subtask_id=subtask_id, attempt=attempt
        )
        state: agent_pb2.AttemptState = (await self._link.ask("cancel", request, timeout_s)).state
        return state

    async def heartbeat(self, run_id: str, *, timeout_s: float) -> dict[tuple[bytes, str, int], int]:
        """Proof of life: the states of the run's attempts on the host, by (agent, subtask, attempt)."""
        reply = await self._unary("Heartbeat", agent_pb2.HeartbeatRequest(run_id=run_id), timeout_s)
        return {(a.agent_id, a.subtask_id, a.attempt): a.state for a in reply.attempts}

    async def open(self, request: agent_pb2.OpenRequest, *, timeout_s: float) -> agent_pb2.OpenReply:
        """Make agents nodes of a run, or tell its nodes there who is in the team.

        Raises
        ------
        PayloadTooLarge
            The task passes the message limit; nothing was sent.
        """
        check_size(request, producer=f"the task of run {request.run_id}")
        reply: agent_pb2.OpenReply = await self._unary("Open", request, timeout_s)
        return reply

    async def deliver(self, request: agent_pb2.DeliverRequest, *, timeout_s: float) -> agent_pb2.DeliverReply:
        """Bring a node its messages."""
        reply: agent_pb2.DeliverReply = await self._unary("Deliver", request, timeout_s)
        return reply

    async def ask(self, request: agent_pb2.AskRequest, *, timeout_s: float) -> agent_pb2.AskReply:
        """Ask a run's entrypoint."""
        reply: agent_pb2.AskReply = await self._unary("Ask", request, timeout_s)
        return reply

    async def close_run(self, run_id: str, epoch: int, *, timeout_s: float) -> agent_pb2.CloseReply:
        """End the run's nodes there; answers the attempts that went on regardless, and what was spent."""
        request = agent_pb2.CloseRequest(run_id=run_id, epoch=epoch)
        reply: agent_pb2.CloseReply = await self._unary("Close", request, timeout_s)
        return reply

    async def answer(
        self, run_id: str, question_id: str, value_json: str, token: bytes, *, timeout_s: float
    ) -> None:
        """Answer a question of a run whose entrypoint is there.

        Raises
        ------
        UnknownRun, UnknownQuestion, DuplicateAnswer, InvalidAnswer, CallRefused
            Nothing was answered.
        """
        request = agent_pb2.AnswerRequest(
            run_id=run_id, question_id=question_id, value_json=value_json, token=token
        )
        await self._unary("Answer", request, timeout_s)

    async def broken(self) -> None:
        """Wait until the connection breaks, or cannot be made."""
        ready = grpc.ChannelConnectivity.READY
        state = self._channel.get_state(try_to_connect=True)
        was_ready = state is ready
        while state is ready or not was_ready:
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)
            was_ready = was_ready or state is ready
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                return

    async def assign(
        self,
        request: agent_pb2.AssignRequest,
        *,
        timeout_s: float | None,
        tell: Callable[[AgentEvent], None] | None = None,
    ) -> Completed:
        """Run one subtask. ``tell`` hears what happens until then, at once. Cancelling stops the attempt.

        Raises
        ------
        SubtaskError
            It ended otherwise; carries the typed error and whether the agent's code had begun.
        PayloadTooLarge
            The request passes the message limit; nothing was sent.
        """
        size = request.ByteSize()
        if size > MAX_PAYLOAD:
            check_size(request, producer=f"the input of {self._where(request)}")

        def heard(event: agent_pb2.AssignEvent) -> None:
            if tell is not None:
                match event.WhichOneof("event"):
                    case "accepted":
                        tell(Accepted(event.accepted.queue_position))
                    case "started":
                        tell(Started())
                    case "progress":
                        tell(Progress(event.progress.text))

        # A large request goes as a call of its own, so that small ones need not wait behind it.
        alone = size > self._own_calls_from
        attempt = (
            _Alone(self._stub.Assign(request, timeout=timeout_s, metadata=self._metadata()), heard)
            if alone
            else self._link.assign(request, timeout_s, heard)
        )
        try:
            event = await attempt.future
        except (grpc.aio.AioRpcError, errors.PandacoreError) as error:
            typed = _assign_error(error, attempt.began, self._where(request))
            raise SubtaskError(typed, executed=attempt.began, usage=Usage()) from error
        finally:
            attempt.leave()
        if event.HasField("completed"):
            done = event.completed
            usage = usage_from_pb(done.usage) if done.HasField("usage") else _NOTHING
            return Completed(done.output_json, usage, done.queued_s, done.run_s)
        failed = event.failed
        theirs = failure_of(failed)
        theirs.where = theirs.where or self._where(request)
        raise SubtaskError(theirs, executed=failed.executed, usage=usage_from_pb(failed.usage))

    def _where(self, request: agent_pb2.AssignRequest) -> str:
        return f"subtask {request.subtask_id!r} at {self.address}"

    async def _unary(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            raise call_error(error, f"{method} at {self.address}") from error


class _Alone:
    """An attempt with a gRPC call of its own; otherwise as :class:`~pandacore.team.link.Attempt`."""

    def __init__(self, call: Any, tell: Heard) -> None:
        self._call = call
        self._tell = tell
        self.began = False
        self.future = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> agent_pb2.AssignEvent:
        event: agent_pb2.AssignEvent
        async for event in self._call:
            if event.HasField("completed") or event.HasField("failed"):
                return event
            self.began = True
            self._tell(event)
        raise errors.ConnectionLost("the stream ended early")

    def leave(self) -> None:
        self._call.cancel()


def asked_to_pb(error: errors.InputRequired) -> agent_pb2.Asked:
    """What an agent asked, for the wire.

    Raises
    ------
    ConfigError, TypeError, ValueError
        A question breaks a rule, or the state is no JSON value.
    """
    from pandacore.models.strict_json import check_schema

    questions = [q if isinstance(q, Question) else Question(str(q)) for q in error.questions]
    if not questions or len({q.id for q in questions}) < len(questions):
        raise errors.ConfigError(
            "InputRequired needs questions with different ids", where="InputRequired", hint="ask one"
        )
    for question in questions:
        if question.schema is not None:
            check_schema(question.schema, where=f"Question {question.id!r}")
    return agent_pb2.Asked(
        questions=[
            agent_pb2.Question(id=q.id, text=q.text, schema_json=json.dumps(q.schema) if q.schema else "")
            for q in questions
        ],
        state_json=json.dumps(error.state, ensure_ascii=False, allow_nan=False),
    )


def failure_of(failed: agent_pb2.Failed) -> errors.PandacoreError:
    """The error of an attempt without an output; its questions, if it has some."""
    if not failed.HasField("asked"):
        return from_detail(failed.error)
    questions = (
        Question(q.text, q.id, json.loads(q.schema_json) if q.schema_json else None)
        for q in failed.asked.questions
    )
    return errors.InputRequired(*questions, state=json.loads(failed.asked.state_json or "null"))


def call_error(error: grpc.aio.AioRpcError, where: str) -> errors.PandacoreError:
    """The typed error of a failed call: the peer's own if it sent one, else by status."""
    typed = error_of_call(error, where=where)
    if typed is not None:
        return typed
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.DeadlineExceeded("no answer in time", where=where, hint="raise the deadline")
        case grpc.StatusCode.UNAVAILABLE:
            why = error.details() or "unreachable"
            return errors.ConnectionLost(why, where=where, hint=hint_of_loss(why))
        case grpc.StatusCode.CANCELLED:
            return errors.Cancelled("the call was cancelled", where=where)
        case code:
            return errors.ProtocolError(
                f"{code.name}: {error.details()}", where=where, hint="check both versions"
            )


def _assign_error(
    error: grpc.aio.AioRpcError | errors.PandacoreError, began: bool, where: str
) -> errors.PandacoreError:
    if isinstance(error, errors.PandacoreError):
        typed = error
        typed.where = typed.where or where
    else:
        typed = call_error(error, where)
    # Whatever cut the stream after the agent began, its effect may have happened.
    if began and isinstance(typed, errors.ConnectionLost):
        return _broken(began, where, typed.message)
    return typed


def _broken(began: bool, where: str, why: str) -> errors.PandacoreError:
    if began:
        return errors.UnknownOutcome(
            f"the connection broke after the agent took it: {why}",
            where=where,
            hint="mark the task idempotent=True to have such subtasks run again",
        )
    return errors.ConnectionLost(f"the connection broke before the agent took it: {why}", where=where)


def invited(reply: agent_pb2.InviteReply, client: AgentClient) -> tuple[bool, str, Load]:
    """What an agent answered to an invitation through ``client``: (accepted, why not, load after)."""
    client.memory = reply.memory
    return reply.accepted, reply.reason, _load(reply.load)


def _load(reply: agent_pb2.ProbeReply) -> Load:
    return Load(
        reply.queued,
        reply.running,
        reply.reserved,
        reply.concurrency,
        reply.queue_limit,
        reply.service_s,
        reply.accepting,
    )
