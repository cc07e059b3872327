"""The client's end of a chat link: many short chats with one server over one stream, several to a message."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from pandacore.errors import DeadlineExceeded, PandacoreError, ProtocolError
from pandacore.rpc.errors import from_detail
from pandacore.rpc.outbox import Outbox
from pandacore.rpc.v1 import model_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ChatLink"]

TICK_S: Final = 0.05
"""How often the link looks for chats whose time is over: one timer for all of them."""


class ChatLink:
    """Chats, matched with their answers by number. Opened when first used, and again after it broke.

    Parameters
    ----------
    target : str
        The server, for errors.
    open_stream : callable
        Opens the bidirectional call.
    """

    def __init__(self, target: str, open_stream: Callable[[], Any]) -> None:
        self._target = target
        self._open_stream = open_stream
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[pb.ChatResponse], float]] = {}
        self._outbox: Outbox[pb.ChatCall] | None = None
        self._call: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock: asyncio.TimerHandle | None = None

    async def chat(self, request: pb.ChatRequest, timeout_s: float) -> pb.ChatResponse:
        """Ask and wait. Cancelling stops the answer at the server.

        Raises
        ------
        PandacoreError
            The server's word, or the time was over.
        grpc.aio.AioRpcError
            The stream broke, or could not be opened.
        """
        loop = asyncio.get_running_loop()
        outbox = self._outbox or self._open()
        number = next(self._numbers)
        future: asyncio.Future[pb.ChatResponse] = loop.create_future()
        self._waiting[number] = (future, loop.time() + timeout_s)
        if self._clock is None:
            self._clock = loop.call_later(TICK_S, self._tick)
        outbox.put(pb.ChatCall(id=number, request=request, deadline_ms=max(math.ceil(timeout_s * 1000), 1)))
        try:
            return await future
        finally:
            if self._waiting.pop(number, None) is not None:
                outbox.put(pb.ChatCall(id=number))

    def _open(self) -> Outbox[pb.ChatCall]:
        call = self._call = self._open_stream()
        outbox = self._outbox = Outbox(lambda batch: call.write(pb.ChatCalls(calls=batch)))
        loop = asyncio.get_running_loop()
        for work in (_write(outbox), self._read(call)):
            task = loop.create_task(work, name="pandacore chat link")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return outbox

    async def _read(self, call: Any) -> None:
        why: Exception = _broken(grpc.StatusCode.UNAVAILABLE, "the server ended the link")
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                if message is None:  # what gRPC makes of bytes that are not the message
                    why = ProtocolError("the answer is not of the protocol", where=self._target)
                    break
                for reply in message.replies:
                    self._replied(reply)
            else:
                if (code := await call.code()) is not grpc.StatusCode.OK:
                    why = _broken(code, await call.details())
        except grpc.aio.AioRpcError as error:
            why = error
        finally:
            if self._call is call:
                self._call = self._outbox = None
                waiting, self._waiting = self._waiting, {}
                for future, _ in waiting.values():
                    if not future.done():
                        future.set_exception(why)
            call.cancel()

    def _replied(self, reply: pb.ChatReply) -> None:
        future, _ = self._waiting.pop(reply.id, (None, 0.0))
        if future is None or future.done():
            return
        if reply.HasField("error"):
            error = from_detail(reply.error)
            error.where = error.where or self._target
            future.set_exception(error)
        else:
            future.set_result(reply.response)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for future, deadline in list(self._waiting.values()):
            if deadline <= now and not future.done():
                future.set_exception(
                    DeadlineExceeded(
                        "no answer before the deadline", where=self._target, hint="give the call more time"
                    )
                )
        self._clock = loop.call_later(TICK_S, self._tick) if self._waiting else None

    async def close(self) -> None:
        """End the link; running chats are cancelled."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _broken(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


async def _write(outbox: Outbox[pb.ChatCall]) -> None:
    # What is wrong with a broken stream is told by the reader.
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, PandacoreError):
        await outbox.run()
