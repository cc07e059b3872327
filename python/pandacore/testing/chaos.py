"""A model server that misbehaves on purpose, over real HTTP and real gRPC sockets.

`ChaosModel` speaks the OpenAI chat protocol and `ModelService` at once. Each call gets the next `Fault` of a
script; the last one repeats. Calls are counted, so that a test can check how often a client came back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
import grpc.aio

from pandacore.errors import RateLimited, StateError
from pandacore.models.limits import forget_endpoint
from pandacore.rpc.errors import trailers
from pandacore.rpc.v1 import model_pb2 as pb

__all__ = ["ChaosModel", "Fault"]

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["ModelService"].full_name
_ACCEPT_TURNS: Final = 10
"""Turns of the event loop from a socket being accepted to its handler being a task: fewer than that."""
_FINISH: Final = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "tool_calls": pb.FINISH_REASON_TOOL_CALLS,
    None: pb.FINISH_REASON_UNSPECIFIED,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call. Make it by the class methods."""

    kind: str
    text: str = "fine"
    finish: str | None = "stop"
    code: int = 200
    header: str | None = None
    number: float = 0.0
    tool: str | None = None

    @classmethod
    def none(cls, text: str = "fine", finish: str | None = "stop") -> Fault:
        """A proper answer; ``finish`` None leaves the finish reason out."""
        return cls("answer", text, finish)

    @classmethod
    def tool_call(cls, name: str, arguments: str, finish: str | None = "tool_calls") -> Fault:
        """A call of a tool with these arguments, as text: they may be cut."""
        return cls("answer", arguments, finish, tool=name)

    @classmethod
    def rate_limit(cls, retry_after: str | None = None) -> Fault:
        """HTTP 429, with this ``Retry-After`` header; over gRPC a `RateLimited` detail."""
        return cls("status", "slow down", code=429, header=retry_after)

    @classmethod
    def status(cls, code: int, text: str = "chaos") -> Fault:
        """An HTTP status with an error body that has this message."""
        return cls("status", text, code=code)

    @classmethod
    def reset(cls) -> Fault:
        """The connection is reset (RST) once the request has arrived."""
        return cls("reset")

    @classmethod
    def hang(cls) -> Fault:
        """No byte is ever sent."""
        return cls("hang")

    @classmethod
    def drip(cls, interval_s: float = 60.0, text: str = "fine") -> Fault:
        """A proper answer, one byte every ``interval_s`` seconds."""
        return cls("drip", text, number=interval_s)

    @classmethod
    def cut(cls, at: int, text: str = "fine") -> Fault:
        """A proper answer whose connection is closed after ``at`` bytes."""
        return cls("cut", text, number=at)

    @classmethod
    def malformed(cls) -> Fault:
        """Status 200 with a body that is not of the protocol."""
        return cls("malformed", '{"choices": [')

    @classmethod
    def large(cls, size: int) -> Fault:
        """A proper answer with a text of ``size`` bytes."""
        return cls("large", number=size)


class ChaosModel:
    """Serve faults on two loopback ports; an async context manager.

    Parameters
    ----------
    script : sequence of Fault, or callable
        Faults in the order of calls, the last one repeating; a callable takes the number of the call, from 0.

    Attributes
    ----------
    calls : int
        Chat calls that arrived, over both protocols.
    requests : list
        The HTTP requests: (headers, parsed body).
    request_ids : list of str
        The request ids of the gRPC calls.
    """

    def __init__(self, script: Sequence[Fault] | Callable[[int], Fault]) -> None:
        self._script = script
        self.calls = 0
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.request_ids: list[str] = []
        self._http: asyncio.Server | None = None
        self._http_tasks: set[asyncio.Task[None]] = set()
        self._grpc: grpc.aio.Server | None = None
        self._proxy = _Proxy()
        self._hang = asyncio.Event()

    @property
    def base_url(self) -> str:
        """For OpenAI-compatible clients."""
        if self._http is None:
            raise StateError("the chaos model is not started", hint="use `async with ChaosModel(...)`")
        return f"http://127.0.0.1:{self._http.sockets[0].getsockname()[1]}/v1"

    @property
    def address(self) -> str:
        """``host:port`` of the gRPC side."""
        return self._proxy.address

    async def __aenter__(self) -> Self:
        self._http = await asyncio.start_server(self._serve_http, "127.0.0.1", 0)
        self._grpc = grpc.aio.server(options=[("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)])
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Chat": grpc.unary_unary_rpc_method_handler(self._chat),
            "ChatStream": grpc.unary_stream_rpc_method_handler(self._chat_stream),
        }
        self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        await self._grpc.start()
        await self._proxy.start(port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hang.set()
        address = self._proxy.address
        if self._http is not None:
            await _end(self._http, self._http_tasks)
        await self._proxy.stop()
        if self._grpc is not None:
            await self._grpc.stop(0)
        forget_endpoint(address)

    def _next(self) -> Fault:
        number = self.calls
        self.calls += 1
        if callable(self._script):
            return self._script(number)
        return self._script[min(number, len(self._script) - 1)]

    # --- HTTP ------------------------------------------------------------------------------------------

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._http_tasks.add(task)
        task.add_done_callback(self._http_tasks.discard)
        try:
            await self._one_request(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            await _closed(writer)

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        if first.split()[1].endswith("/models"):
            await _send(writer, _http(200, json.dumps({"data": [{"id": "chaos"}]}).encode()))
            return
        body = json.loads(raw)
        self.requests.append((headers, body))
        fault = self._next()
        payload = self._http_payload(fault, stream=bool(body.get("stream")))
        match fault.kind:
            case "reset":
                _reset(writer)
            case "hang":
                await self._hang.wait()
            case "drip":
                for at in range(len(payload)):
                    await _send(writer, payload[at : at + 1])
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hang.wait(), fault.number)
            case "cut":
                await _send(writer, payload[: int(fault.number)])
            case _:
                await _send(writer, payload)

    def http_length(self, fault: Fault, *, stream: bool = False) -> int:
        """Bytes of the whole HTTP answer to a fault: what `Fault.cut` may cut."""
        return len(self._http_payload(fault, stream=stream))

    def _http_payload(self, fault: Fault, *, stream: bool) -> bytes:
        if fault.kind == "status":
            extra = f"Retry-After: {fault.header}\r\n" if fault.header is not None else ""
            error = {"error": {"message": fault.text, "type": "chaos", "code": None}}
            return _http(fault.code, json.dumps(error).encode(), extra)
        if fault.kind == "malformed":
            return _http(200, fault.text.encode())
        text = "x" * int(fault.number) if fault.kind == "large" else fault.text
        call = None
        if fault.tool is not None:
            function = {"name": fault.tool, "arguments": text}
            call, text = {"index": 0, "id": "call_1", "type": "function", "function": function}, ""
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not stream:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if call is not None:
                message["tool_calls"] = [call]
            choice = {"index": 0, "message": message, "finish_reason": fault.finish}
            return _http(200, json.dumps({"model": "chaos", "choices": [choice], "usage": usage}).encode())
        delta: dict[str, Any] = {"content": text} if call is None else {"tool_calls": [call]}
        events = [
            {"model": "chaos", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"model": "chaos", "choices": [{"index": 0, "delta": {}, "finish_reason": fault.finish}]},
            {"model": "chaos", "choices": [], "usage": usage},
        ]
        body = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"
        chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + chunk

    # --- gRPC ------------------------------------------------------------------------------------------

    async def _chat(self, raw: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        fault = await self._grpc_fault(raw, context)
        if fault.kind == "malformed":
            return b"\xff\xff\xff"
        return pb.ChatResponse(
            request_id=self.request_ids[-1],
            model="chaos",
            text="" if fault.tool else self._text(fault),
            tool_calls=self._calls(fault),
            finish_reason=_FINISH[fault.finish],
            usage=pb.Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15),
        ).SerializeToString()

    async def _chat_stream(
        self, raw: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        fault = await self._grpc_fault(raw, context)
        if fault.kind == "malformed":
            yield b"\xff\xff\xff"
            return
        if not fault.tool:
            yield pb.ChatEvent(delta=pb.Delta(text=self._text(fault), tokens=5)).SerializeToString()
        if fault.finish is None:
            return  # the stream just ends
        finished = pb.Finished(
            finish_reason=_FINISH[fault.finish],
            usage=pb.Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15),
            model="chaos",
            tool_calls=self._calls(fault),
        )
        yield pb.ChatEvent(finished=finished).SerializeToString()

    @staticmethod
    def _text(fault: Fault) -> str:
        return "x" * int(fault.number) if fault.kind == "large" else fault.text

    @staticmethod
    def _calls(fault: Fault) -> list[pb.ToolCall]:
        return [pb.ToolCall(id="call_1", name=fault.tool, arguments_json=fault.text)] if fault.tool else []

    async def _grpc_fault(self, raw: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> Fault:
        self.request_ids.append(pb.ChatRequest.FromString(raw).request_id)
        fault = self._next()
        match fault.kind:
            case "status" if fault.code == 429:
                with contextlib.suppress(ValueError):
                    after = None if fault.header is None else float(fault.header)
                    error = RateLimited(fault.text, retry_after_s=after)
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, fault.text, trailers(error))
                error = RateLimited(fault.text)
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, fault.text, trailers(error))
            case "status":
                unavailable = fault.code in (502, 503, 504)
                code = grpc.StatusCode.UNAVAILABLE if unavailable else grpc.StatusCode.INTERNAL
                await context.abort(code, fault.text)
            case "hang":
                await self._hang.wait()
            case "reset":
                self._proxy.cut_after(0, reset=True)
            case "cut":
                self._proxy.cut_after(int(fault.number))
            case "drip":
                self._proxy.drip(fault.number)
        return fault


class _Proxy:
    """A TCP proxy in front of the gRPC server, which can harm the bytes that go to the client."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._target = 0
        self._left: int | None = None  # bytes to the client until the cut
        self._reset = False
        self._interval_s = 0.0
        self.address = ""

    async def start(self, port: int) -> None:
        self._target = port
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is None:
            return
        await _end(self._server, self._tasks)

    def cut_after(self, count: int, *, reset: bool = False) -> None:
        """Let ``count`` more bytes through, then break the connection that carries the next one."""
        self._left, self._reset = count, reset

    def drip(self, interval_s: float) -> None:
        """From now on, one byte per interval."""
        self._interval_s = interval_s

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        pumps: list[asyncio.Future[None]] = []
        # Shielded: a connection that is cancelled while it opens would never be closed.
        opening = asyncio.ensure_future(asyncio.open_connection("127.0.0.1", self._target))
        try:
            up_reader, up_writer = await asyncio.shield(opening)
            pumps.append(asyncio.ensure_future(_pump(reader, up_writer)))
            pumps.append(asyncio.ensure_future(self._harm(up_reader, writer)))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (ConnectionError, asyncio.CancelledError):
            pass  # a side is gone, or the test is over
        finally:
            for pump in pumps:
                pump.cancel()
            # Before any await: this task may be cancelled once more at each of them.
            writer.close()
            opening.add_done_callback(_close_opened)
            await asyncio.gather(*pumps, return_exceptions=True)
            await asyncio.wait({opening})
            if (up := _opened(opening)) is not None:
                await _closed(up)
            await _closed(writer)

    async def _harm(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(65_536):
            if self._interval_s:
                for at in range(len(part)):
                    await _send(writer, part[at : at + 1])
                    await asyncio.sleep(self._interval_s)
                continue
            if self._left is None:
                await _send(writer, part)
                continue
            passing, self._left = part[: self._left], self._left - len(part)
            if passing:
                await _send(writer, passing)
            if self._left < 0:
                self._left = None  # the next connection is whole again
                if self._reset:
                    _reset(writer)
                return


def _close_opened(opening: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    if (up := _opened(opening)) is not None:
        up.close()


def _opened(
    opening: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
) -> asyncio.StreamWriter | None:
    return None if opening.cancelled() or opening.exception() else opening.result()[1]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65_536):
            await _send(writer, part)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _end(server: asyncio.Server, tasks: set[asyncio.Task[None]]) -> None:
    """Stop listening and end every connection, those included that were accepted a moment ago."""
    server.close()
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    while tasks:
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
    await server.wait_closed()


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    held = writer.get_extra_info("socket")
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _http(code: int, body: bytes, extra: str = "") -> bytes:
    reason = {200: "OK", 429: "Too Many Requests", 500: "Internal Server Error"}.get(code, "Chaos")
    head = (
        f"HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode() + body
