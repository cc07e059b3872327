"""The model server: `ModelService` over gRPC in front of a backend, with health and reflection.

Runs as its own process (``pandacore model serve`` or ``python -m pandacore.models.server``), so that a busy
model never stops an agent's event loop. It listens on loopback unless told otherwise, bounds what runs and
what waits, stops a generation when its deadline passes or its caller leaves, and drains on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from typing import Any, Final, NoReturn, Self, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pandacore.config import redact
from pandacore.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    ModelError,
    Overloaded,
    PandacoreError,
    PayloadTooLarge,
    StateError,
    UnsupportedFeature,
)
from pandacore.models import wire
from pandacore.models.backends.base import Backend
from pandacore.models.strict_json import check_schema
from pandacore.models.types import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    JsonSchema,
    constraint_name,
)
from pandacore.rpc import loop
from pandacore.rpc.errors import status_code, to_detail, trailers
from pandacore.rpc.outbox import Outbox
from pandacore.rpc.v1 import model_pb2 as pb
from pandacore.rpc.v1 import model_pb2_grpc as pb_grpc

__all__ = ["BACKENDS", "MAX_MESSAGE_BYTES", "ModelServer", "build_backend", "main", "serve"]

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
SERVICE: Final = pb.DESCRIPTOR.services_by_name["ModelService"].full_name
BACKENDS: Final = ("extractive", "llama", "openai", "scripted")

_COALESCE_S: Final = 0.02
_COALESCE_TOKENS: Final = 8
_DELTA_QUEUE: Final = 256
"""Pieces that a backend may be ahead of a slow reader; then the backend waits."""
_MAX_CALL_S: Final = 600.0
"""Longest a call without a deadline may run."""
_MAX_UNREAD: Final = 32 * 1024 * 1024
"""Bytes of answers that a link's caller may leave unread; then nothing more is taken from it."""
_MAX_TEXTS: Final = 2_048
_DETAIL_TEXT: Final = 1_000
"""Characters of an error's message on the wire: trailing metadata must stay below 8 KiB."""

_log = logging.getLogger("pandacore.models.server")
_T = TypeVar("_T")


class _Gate:
    """Lets ``limit`` calls run and ``waiting`` more wait; the next one is refused."""

    def __init__(self, limit: int, waiting: int) -> None:
        self.limit = limit
        self.max_waiting = waiting
        self.running = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    async def __aenter__(self) -> Self:
        if self.running < self.limit and not self._waiters:
            self.running += 1
            return self
        if len(self._waiters) >= self.max_waiting:
            raise Overloaded(
                f"{self.running} calls run and {len(self._waiters)} wait, which is the limit",
                where="model server",
                hint="try again later, or serve with more --concurrency",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the turn was handed over just before the cancellation
            else:
                self._waiters.remove(turn)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)  # the place changes hands
                return
        self.running -= 1


class _Servicer(pb_grpc.ModelServiceServicer):
    def __init__(self, backend: Backend, gate: _Gate) -> None:
        self._backend = backend
        self._gate = gate
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._aborted: set[str] = set()
        self._links: set[asyncio.Future[None]] = set()

    # The method names are those of the protocol.
    async def Chat(
        self,
        request: pb.ChatRequest,
        context: grpc.aio.ServicerContext[pb.ChatRequest, pb.ChatResponse],
    ) -> pb.ChatResponse:
        return await self._run(context, lambda: self._answer(request), gated=False)

    async def _in_turn(self, ask: ChatRequest) -> ChatResult:
        async with self._gate:
            return await self._backend.chat(ask)

    # gRPC takes this form, which reads and writes by itself, as well as a generator.
    async def ChatLink(  # type: ignore[override]
        self,
        request_iterator: Any,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        del request_iterator
        here = asyncio.get_running_loop()
        tasks: dict[int, asyncio.Task[None]] = {}
        room = asyncio.Event()

        async def write(batch: list[pb.ChatReply]) -> None:
            await context.write(pb.ChatReplies(replies=batch))
            room.set()

        outbox = Outbox(write)

        async def answer(call: pb.ChatCall) -> None:
            left = call.deadline_ms / 1000 if call.deadline_ms else _MAX_CALL_S
            reply = pb.ChatReply(id=call.id)
            try:
                async with asyncio.timeout(min(left, _MAX_CALL_S)):
                    reply.response.CopyFrom(await self._answer(call.request))
            except Exception as error:  # whatever the backend raised must reach the caller as a typed error
                reply.error.CopyFrom(to_detail(_told(error)))
            finally:
                tasks.pop(call.id, None)
            outbox.put(reply)

        async def take() -> None:
            while (message := await context.read()) is not grpc.aio.EOF:
                for call in message.calls:
                    if call.HasField("request"):
                        tasks[call.id] = here.create_task(answer(call))
                    elif (task := tasks.get(call.id)) is not None:
                        task.cancel()
                while outbox.unwritten > _MAX_UNREAD:
                    room.clear()
                    await room.wait()

        closing: asyncio.Future[None] = here.create_future()
        self._links.add(closing)
        writer, taker = here.create_task(outbox.run()), here.create_task(take())
        try:
            await asyncio.wait({taker, writer, closing}, return_when=asyncio.FIRST_COMPLETED)
            if closing.done():  # the server drains: no more is taken in, and what runs is answered
                taker.cancel()
                if tasks:
                    await asyncio.wait(tasks.values())
                while outbox.unwritten and not writer.done():
                    room.clear()
                    await room.wait()
        finally:
            self._links.discard(closing)
            running = [taker, writer, *tasks.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def drain(self) -> None:
        """Have the links end once what runs on them is answered."""
        for closing in self._links:
            if not closing.done():
                closing.set_result(None)

    async def _answer(self, message: pb.ChatRequest) -> pb.ChatResponse:
        # Refused before it waits, and abortable while it waits.
        ask = await self._accepted(message)
        result = await self._tracked(ask, self._in_turn(ask))
        return _within_limit(wire.result_to_pb(result, ask.request_id))

    async def ChatStream(
        self,
        request: pb.ChatRequest,
        context: grpc.aio.ServicerContext[pb.ChatRequest, pb.ChatEvent],
    ) -> AsyncIterator[pb.ChatEvent]:
        error: BaseException | None = None
        try:
            async with asyncio.timeout(_time_left(context)):
                ask = await self._accepted(request)
                async with contextlib.aclosing(self._events(ask)) as events:
                    async for event in events:
                        yield _within_limit(event)
                return
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as caught:  # whatever the backend raised must reach the caller as a typed error
            error = caught
        await _fail(context, error)

    async def _events(self, ask: ChatRequest) -> AsyncGenerator[pb.ChatEvent, None]:
        queue: asyncio.Queue[ChatDelta] = asyncio.Queue(_DELTA_QUEUE)

        async def produce() -> ChatResult:
            result: ChatResult | None = None
            async with self._gate, contextlib.aclosing(self._backend.chat_stream(ask)) as deltas:
                async for delta in deltas:
                    result = delta.result or result
                    if delta.text or delta.tokens:
                        await queue.put(delta)
            if result is None:
                raise ModelError("the backend's stream ended without a result", where=self._backend.name)
            return result

        producer = asyncio.ensure_future(self._tracked(ask, produce()))
        try:
            async for text, tokens in _coalesced(queue, producer):
                yield pb.ChatEvent(delta=pb.Delta(text=text, tokens=tokens))
            result = await producer
            yield pb.ChatEvent(
                finished=pb.Finished(
                    finish_reason=wire.finish_to_pb(result.finish_reason),
                    usage=wire.usage_to_pb(result.usage),
                    model=result.model,
                    tool_calls=wire.tool_calls_to_pb(result.tool_calls),
                )
            )
        finally:
            await _stopped(producer)

    async def Embed(
        self,
        request: pb.EmbedRequest,
        context: grpc.aio.ServicerContext[pb.EmbedRequest, pb.EmbedResponse],
    ) -> pb.EmbedResponse:
        async def work() -> pb.EmbedResponse:
            info = await self._backend.model(request.model)
            if not info.embeddings:
                raise UnsupportedFeature(
                    f"model {info.id!r} makes no embeddings", hint="use a model that advertises them"
                )
            if len(request.texts) > _MAX_TEXTS:
                raise ConfigError(
                    f"{len(request.texts)} texts, at most {_MAX_TEXTS} are allowed",
                    where="EmbedRequest.texts",
                    hint="send them in batches",
                )
            found = await self._backend.embed(list(request.texts), model=request.model)
            return _within_limit(
                pb.EmbedResponse(
                    model=found.model,
                    dimension=found.vectors.shape[1],
                    vectors=wire.vectors_to_bytes(found.vectors),
                    usage=wire.usage_to_pb(found.usage),
                )
            )

        return await self._run(context, work)

    async def CountTokens(
        self,
        request: pb.CountTokensRequest,
        context: grpc.aio.ServicerContext[pb.CountTokensRequest, pb.CountTokensResponse],
    ) -> pb.CountTokensResponse:
        async def work() -> pb.CountTokensResponse:
            await self._backend.model(request.model)
            count = await self._backend.count_tokens(
                wire.messages_from_pb(request.messages),
                wire.documents_from_pb(request.documents),
                model=request.model,
            )
            return pb.CountTokensResponse(tokens=count.tokens, exact=count.exact)

        return await self._run(context, work, gated=False)

    async def ListModels(
        self,
        request: pb.ListModelsRequest,
        context: grpc.aio.ServicerContext[pb.ListModelsRequest, pb.ListModelsResponse],
    ) -> pb.ListModelsResponse:
        async def work() -> pb.ListModelsResponse:
            return pb.ListModelsResponse(models=[wire.info_to_pb(i) for i in await self._backend.models()])

        return await self._run(context, work, gated=False)

    async def Abort(
        self,
        request: pb.AbortRequest,
        context: grpc.aio.ServicerContext[pb.AbortRequest, pb.AbortResponse],
    ) -> pb.AbortResponse:
        task = self._running.get(request.request_id)
        if task is None:
            return pb.AbortResponse(found=False)
        self._aborted.add(request.request_id)
        task.cancel()
        return pb.AbortResponse(found=True)

    async def _accepted(self, message: pb.ChatRequest) -> ChatRequest:
        """The request, once it is sure that the backend can honour every part of it."""
        request = wire.request_from_pb(message)
        info = await self._backend.model(request.model)
        if not info.chat:
            raise UnsupportedFeature(f"model {info.id!r} does not chat", hint="use a chat model")
        if request.tools and request.tool_choice != "none" and not info.tools:
            raise UnsupportedFeature(
                f"model {info.id!r} calls no tools",
                where="tools",
                hint="ask for JSON output, or drop the tools",
            )
        if request.output is not None and constraint_name(request.output) not in info.structured_output:
            offered = ", ".join(info.structured_output) or "none"
            raise UnsupportedFeature(
                f"model {info.id!r} cannot constrain its output by {constraint_name(request.output)}",
                where="structured_output",
                hint=f"it can by: {offered}",
            )
        if isinstance(request.output, JsonSchema):
            check_schema(request.output.schema, where="structured_output.json_schema")
        return request

    async def _tracked(self, request: ChatRequest, work: Coroutine[Any, Any, _T]) -> _T:
        """Do ``work`` in a task that `Abort` can find: this one. An abort ends it as `Cancelled`."""
        key = request.request_id
        if key in self._running:
            work.close()
            raise StateError(
                f"request {key!r} is running already", where="request_id", hint="use a new id per request"
            )
        task = asyncio.current_task()
        assert task is not None
        if key:
            self._running[key] = task
        try:
            return await work
        except asyncio.CancelledError:
            if key in self._aborted:
                task.uncancel()  # the call goes on, to tell its caller so
                raise Cancelled(f"request {key} was aborted", where="model server") from None
            raise
        finally:
            self._running.pop(key, None)
            self._aborted.discard(key)

    async def _run(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        work: Callable[[], Awaitable[_T]],
        *,
        gated: bool = True,
    ) -> _T:
        try:
            async with asyncio.timeout(_time_left(context)):
                if not gated:
                    return await work()
                async with self._gate:
                    return await work()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever the backend raised must reach the caller as a typed error
            await _fail(context, error)


def _time_left(context: grpc.aio.ServicerContext[Any, Any]) -> float:
    left = context.time_remaining()
    # gRPC reports a huge number when the client gave no deadline.
    return _MAX_CALL_S if left is None else max(0.0, min(left, _MAX_CALL_S))


async def _fail(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    told = _told(error)
    await context.abort(status_code(told), told.message[:200], trailers(told))
    raise AssertionError("unreachable: abort raises")


def _told(error: BaseException) -> PandacoreError:
    """What the caller learns of a failure."""
    if isinstance(error, TimeoutError) and not isinstance(error, PandacoreError):
        error = DeadlineExceeded(
            "the deadline passed and the generation was stopped",
            where="model server",
            hint="give the call more time",
        )
    if not isinstance(error, PandacoreError):
        _log.error("backend failed", exc_info=error)
        error = ModelError(f"the backend failed: {type(error).__name__}: {error}", where="model server")
    # A provider's error text may quote the key it was given.
    error.message = redact(error.message)[:_DETAIL_TEXT]
    error.hint = error.hint and redact(error.hint)[:200]
    error.where = error.where and redact(error.where)[:200]
    return error


def _within_limit(message: _T) -> _T:
    size = message.ByteSize()  # type: ignore[attr-defined]
    if size > MAX_MESSAGE_BYTES:
        raise PayloadTooLarge(
            f"the answer has {size} bytes, and {MAX_MESSAGE_BYTES} are allowed",
            size=size,
            limit=MAX_MESSAGE_BYTES,
            producer="model server",
            hint="ask for less (max_tokens, fewer texts)",
        )
    return message


async def _coalesced(
    queue: asyncio.Queue[ChatDelta], producer: asyncio.Future[Any]
) -> AsyncIterator[tuple[str, int]]:
    """Join pieces until 8 tokens or 20 ms have gathered: each message costs about 80 µs of CPU.

    The first piece goes out at once, so that the time to the first token does not suffer.
    """
    last = -1.0
    while True:
        texts, tokens = [], 0
        first = await _next(queue, producer, None)
        if first is None:
            return
        while first is not None:
            texts.append(first.text)
            tokens += first.tokens
            wait = last + _COALESCE_S - time.monotonic()
            if tokens >= _COALESCE_TOKENS or last < 0 or wait <= 0:
                break
            first = await _next(queue, producer, wait)
        last = time.monotonic()
        yield "".join(texts), tokens


async def _next(
    queue: asyncio.Queue[ChatDelta], producer: asyncio.Future[Any], timeout_s: float | None
) -> ChatDelta | None:
    """The next piece; None when there is none in time, or none will come any more."""
    if not queue.empty():
        return queue.get_nowait()
    if producer.done():
        return None
    getter = asyncio.ensure_future(queue.get())
    try:
        await asyncio.wait({getter, producer}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if getter.done():
            return getter.result()
    finally:
        if not getter.done():
            getter.cancel()
    return None if queue.empty() else queue.get_nowait()


async def _stopped(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it is over; its outcome was or will be seen elsewhere."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


class ModelServer:
    """A `ModelService` on a socket.

    Parameters
    ----------
    backend : Backend
        Started and closed by the server.
    host, port : str, int
        Loopback by default; port 0 lets the system choose. The protocol has no authentication of its own, so
        any other host needs ``allow_remote``.
    concurrency : int, optional
        Calls that run at once; the backend's own number by default.
    waiting : int
        Calls that may wait; the next is refused as `Overloaded`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        concurrency: int | None = None,
        waiting: int = 256,
        allow_remote: bool = False,
    ) -> None:
        if not allow_remote and not _is_loopback(host):
            raise ConfigError(
                f"{host} is reachable from other machines, and the model service asks for no password",
                where="host",
                hint="use 127.0.0.1, or pass allow_remote (--allow-remote) behind a firewall",
            )
        if concurrency is not None and concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}", where="concurrency", hint="use 1 or more")
        self.backend = backend
        self._host = host
        self._port = port
        self._gate = _Gate(concurrency or backend.concurrency, waiting)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._servicer: _Servicer | None = None

    @property
    def address(self) -> str:
        """``host:port``; known once started."""
        if self._server is None:
            raise StateError("the model server is not started", hint="await start() first")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def load(self) -> tuple[int, int]:
        """(calls that run, calls that wait)."""
        return self._gate.running, self._gate.waiting

    async def start(self) -> None:
        """Start the backend, then listen."""
        if self._server is not None:
            raise StateError("the model server is started already")
        await self.backend.start()
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                # Two servers on one port would share the calls between them.
                ("grpc.so_reuseport", 0),
            ]
        )
        self._servicer = _Servicer(self.backend, self._gate)
        pb_grpc.add_ModelServiceServicer_to_server(self._servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        try:
            host = f"[{self._host}]" if ":" in self._host else self._host
            self._port = server.add_insecure_port(f"{host}:{self._port}")
        except RuntimeError as error:
            await self.backend.aclose()
            raise ConfigError(
                f"cannot listen: {error}", where=f"{self._host}:{self._port}", hint="use a free port, or 0"
            ) from None
        await server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._server = server

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls, give running ones ``grace_s`` seconds, then cancel them and free the backend."""
        server, self._server = self._server, None
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        if self._servicer is not None:
            self._servicer.drain()
        await server.stop(grace_s)
        await self.backend.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(0.5)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve(
    backend: Backend,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    concurrency: int | None = None,
    waiting: int = 256,
    allow_remote: bool = False,
    grace_s: float = 5.0,
    stop: asyncio.Event | None = None,
    lifeline: bool = False,
) -> None:
    """Serve until SIGTERM, SIGINT or ``stop``, then drain.

    Prints one line of JSON to stdout when ready: ``{"ready": true, "address": "127.0.0.1:PORT", …}``.

    Parameters
    ----------
    lifeline : bool
        Also stop when stdin ends: a parent that dies, however it dies, then leaves no server behind.
    """
    stop = stop or asyncio.Event()
    server = ModelServer(
        backend, host=host, port=port, concurrency=concurrency, waiting=waiting, allow_remote=allow_remote
    )
    await server.start()
    with _stop_signals(stop):
        if lifeline:
            loop.watch_stdin(stop)
        models = [info.id for info in await backend.models()]
        ready = {
            "ready": True,
            "address": server.address,
            "backend": backend.name,
            "models": models,
            "pid": os.getpid(),
        }
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        await stop.wait()
        await server.stop(grace_s)


@contextlib.contextmanager
def _stop_signals(stop: asyncio.Event) -> Any:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    try:
        for number in signals:
            loop.add_signal_handler(number, stop.set)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def build_backend(
    name: str, *, model: str | None = None, options: Mapping[str, str] | None = None
) -> Backend:
    """Make a backend from its name.

    Parameters
    ----------
    name : str
        One of `BACKENDS`.
    model : str, optional
        llama: a GGUF path or a name of the catalogue; openai: the model to ask for; scripted: a JSON file or
        ``module:attribute``.
    options : mapping of str to str
        Further settings of the backend, as in ``--option key=value``.

    Raises
    ------
    ConfigError
        The backend or an option is unknown, or a value has the wrong type.
    """
    given = dict(options or {})
    match name:
        case "extractive":
            from pandacore.models.backends.extractive import ExtractiveBackend

            _no_more(given, name)
            return ExtractiveBackend()
        case "scripted":
            from pandacore.models.backends.scripted import ScriptedBackend

            delay_s = float(given.pop("delay_s", "0"))
            _no_more(given, name)
            if not model:
                raise ConfigError("no script", where="--model", hint="give a JSON file or module:attribute")
            if model.endswith(".json"):
                return ScriptedBackend.from_file(model, delay_s=delay_s)
            return ScriptedBackend.from_name(model, delay_s=delay_s)
        case "openai":
            from pandacore.models.backends.openai import OpenAIBackend

            return OpenAIBackend.from_options(model, given)
        case "llama":
            from pandacore.models.backends.llama import LlamaBackend

            return LlamaBackend.from_options(model, given)
    from pandacore.names import suggestions

    close = suggestions(name, BACKENDS, 1)
    raise ConfigError(
        f"no backend {name!r}; there are {', '.join(BACKENDS)}",
        where="backend",
        hint=f"did you mean {close[0]!r}?" if close else "use one of these",
    )


def _no_more(options: Mapping[str, str], backend: str) -> None:
    if options:
        raise ConfigError(f"the {backend} backend knows no option {next(iter(options))!r}", where="--option")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server from the command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pandacore.models.server", description=__doc__)
    parser.add_argument("--backend", required=True, help=f"one of {', '.join(BACKENDS)}")
    parser.add_argument("--model", help="what the backend serves; see build_backend")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--concurrency", type=int, help="calls that run at once")
    parser.add_argument("--waiting", type=int, default=256, help="calls that may wait")
    parser.add_argument("--grace-s", type=float, default=5.0, help="seconds for running calls at the end")
    parser.add_argument("--allow-remote", action="store_true", help="allow a host that is not loopback")
    parser.add_argument("--lifeline", action="store_true", help="stop when stdin ends")
    parser.add_argument("--log-level", default="WARNING")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=arguments.log_level.upper(), stream=sys.stderr)
    try:
        options = {}
        for item in arguments.option:
            key, separator, value = item.partition("=")
            if not separator:
                raise ConfigError(f"{item!r} is no KEY=VALUE", where="--option")
            options[key] = value
        backend = build_backend(arguments.backend, model=arguments.model, options=options)
        coroutine = serve(
            backend,
            arguments.host,
            arguments.port,
            concurrency=arguments.concurrency,
            waiting=arguments.waiting,
            allow_remote=arguments.allow_remote,
            grace_s=arguments.grace_s,
            lifeline=arguments.lifeline,
        )
        loop.run(coroutine)
    except PandacoreError as error:
        # One line that the parent process can read: it raises the same error.
        report = {
            "ready": False,
            "type": type(error).__name__,
            "message": redact(error.message),
            "where": error.where and redact(error.where),
            "hint": error.hint,
        }
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        sys.stderr.write(f"error: {redact(str(error))}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
