"""The host's end of a link: takes calls, answers them, and stops what nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, Final

import grpc

from pandacore import errors
from pandacore.rpc.errors import to_detail
from pandacore.rpc.outbox import Outbox
from pandacore.rpc.v1 import agent_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from pandacore.team.host import Host, Job, Tell

__all__ = ["Desk", "serve_link"]

MAX_UNREAD: Final = 32 * 1024 * 1024
"""Bytes of replies that a caller may leave unread; then nothing more is taken from it until it reads."""


TICK_S: Final = 0.05
"""How often a desk looks for subtasks whose time is over."""


class Desk:
    """Answers the calls of one link.

    Parameters
    ----------
    host : Host
        Where the agents are.
    reply : callable
        Takes every reply, in order.
    """

    def __init__(self, host: Host, reply: Callable[[agent_pb2.Reply], None]) -> None:
        self._host = host
        self._reply = reply
        self._jobs: dict[int, tuple[Job, Tell, float]] = {}
        self._clock: asyncio.TimerHandle | None = None

    def take(self, call: agent_pb2.Call) -> None:
        """Begin a call; a refusal is a reply as well."""
        number, kind = call.id, call.WhichOneof("call")
        try:
            match kind:
                case "assign":
                    self._assign(number, call.assign, call.deadline_ms)
                case "invite" | "release" | "probe":
                    answer = self._host.answer(kind, getattr(call, kind))
                    self._reply(agent_pb2.Reply(id=number, **{kind: answer}))
                case "cancel":
                    self._host.errand(self._cancel(number, call.cancel))
                case "hang_up":
                    self._hang_up(number)
                case _:
                    raise errors.ProtocolError("a call of a kind unknown here", hint="check both versions")
        except errors.PandacoreError as error:
            self._reply(agent_pb2.Reply(id=number, error=to_detail(error)))

    def _assign(self, number: int, request: agent_pb2.AssignRequest, deadline_ms: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_ms / 1000 if deadline_ms else None
        jobs, reply = self._jobs, self._reply

        def tell(event: agent_pb2.AssignEvent) -> None:
            kind = event.WhichOneof("event")
            if kind in {"completed", "failed"}:
                jobs.pop(number, None)
            reply(agent_pb2.Reply(id=number, assign=event))

        job = self._host.assign(request, deadline, tell)
        if job is not None and job.last is None:
            jobs[number] = (job, tell, math.inf if deadline is None else deadline)
            if deadline is not None and self._clock is None:
                self._clock = loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """Stop what nobody waits for any more: its caller's time is over."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for number in [n for n, (_, _, deadline) in self._jobs.items() if deadline <= now]:
            self._hang_up(number)
        self._clock = loop.call_later(TICK_S, self._tick) if self._jobs else None

    async def _cancel(self, number: int, request: agent_pb2.CancelRequest) -> None:
        try:
            state = await self._host.cancel(request)
        except errors.PandacoreError as error:
            self._reply(agent_pb2.Reply(id=number, error=to_detail(error)))
        else:
            self._reply(agent_pb2.Reply(id=number, cancel=agent_pb2.CancelReply(state=state)))

    def _hang_up(self, number: int) -> None:
        job, tell, _ = self._jobs.pop(number, (None, None, 0.0))
        if job is not None and tell is not None:
            self._host.hung_up(job, tell)

    def close(self) -> None:
        """The caller is gone: its subtasks are treated as if it had hung up on each."""
        for number in list(self._jobs):
            self._hang_up(number)
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


async def serve_link(host: Host, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Serve one stream until its caller leaves."""
    drained = asyncio.Event()

    async def write(batch: list[agent_pb2.Reply]) -> None:
        await context.write(agent_pb2.LinkReply(replies=batch))
        drained.set()

    outbox = Outbox(write)

    def reply(message: agent_pb2.Reply) -> None:
        if outbox.unwritten <= MAX_UNREAD or not message.assign.HasField("progress"):
            outbox.put(message)

    desk = Desk(host, reply)
    writer = asyncio.get_running_loop().create_task(outbox.run(), name="pandacore desk writer")
    try:
        while (message := await context.read()) is not grpc.aio.EOF:
            for call in message.calls:
                desk.take(call)
            while outbox.unwritten > MAX_UNREAD and not writer.done():
                drained.clear()
                await drained.wait()
            if writer.done():
                break
    finally:
        desk.close()
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await writer
