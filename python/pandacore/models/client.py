"""The client of a model server: deadlines, bounded retries, shared load control, budgets, checked output."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import grpc
import grpc.aio

from pandacore import names
from pandacore.errors import (
    AuthenticationFailed,
    BudgetExceeded,
    Cancelled,
    CircuitOpen,
    ConfigError,
    DeadlineExceeded,
    ForkError,
    InvalidOutput,
    ModelError,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    PandacoreError,
    PayloadTooLarge,
    ProtocolError,
    RateLimited,
    StateError,
    Truncated,
    UnknownCapability,
    UnknownOutcome,
    UnsupportedFeature,
)
from pandacore.models import wire
from pandacore.models.backends.base import estimate_tokens
from pandacore.models.limits import Clock, Endpoint, LimitConfig, Outcome, SystemClock, endpoint
from pandacore.models.link import ChatLink
from pandacore.models.strict_json import check_schema, parse_output, validate
from pandacore.models.types import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    Choice,
    Document,
    FinishReason,
    JsonObject,
    JsonSchema,
    Message,
    ModelInfo,
    Sampling,
    TokenCount,
    ToolCall,
    Usage,
)
from pandacore.rpc.errors import error_of_call
from pandacore.rpc.v1 import model_pb2 as pb
from pandacore.rpc.v1 import model_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from google.protobuf.message import Message as ProtoMessage
    from numpy.typing import NDArray

    from pandacore.models.budget import Reservation, TokenLedger

__all__ = ["MAX_MESSAGE_BYTES", "ModelClient", "ModelClientConfig"]

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Longest encoded message, either way; the default of gRPC."""

_T = TypeVar("_T")
_TOO_LARGE: Final = re.compile(r"larger than max \((\d+) vs\.? (\d+)\)")
_LARGE: Final = 256 * 1024
"""Requests of more bytes do not go over the link, so that small ones need not wait behind them."""
_SHOWN_BACK: Final = 2_000
"""Characters of a bad answer that are shown to the model when it is asked again."""


@dataclass(frozen=True, slots=True)
class ModelClientConfig:
    """How patient a client is.

    Attributes
    ----------
    deadline_s : float
        Deadline of a call that names none, retries and waiting included; in seconds.
    max_retries : int
        Repeats of one call after failures that may pass.
    backoff_base_s, backoff_cap_s : float
        Before the k-th repeat the client waits a random time in [0, min(cap, base · 2^k)] (full jitter).
    default_max_tokens : int
        ``max_tokens`` of a request that names none, when a budget must be reserved for it.
    repairs : int
        Times that `ModelClient.generate_json` asks again after output that breaks the schema.
    limits : LimitConfig
        Load control; the first client of an address decides for all clients of that address.
    """

    deadline_s: float = 60.0
    max_retries: int = 5
    backoff_base_s: float = 0.2
    backoff_cap_s: float = 10.0
    default_max_tokens: int = 1024
    repairs: int = 2
    limits: LimitConfig = field(default_factory=LimitConfig)


class ModelClient:
    """Calls one model server.

    Bound to the event loop on which it is first used, and to the process that made it.

    Parameters
    ----------
    target : str
        ``host:port``.
    model : str
        Model for requests that name none; empty for the server's default.
    config : ModelClientConfig
    clock : Clock
        Where time comes from; for tests.
    rng : random.Random
        Jitter; for tests.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        config: ModelClientConfig | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if not re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/@]+):\d{1,5}", target):
            raise ConfigError(f"{target!r} is no address", where="ModelClient.target", hint="write host:port")
        self.target = target
        self.model = model
        self._default = ""
        self.config = config or ModelClientConfig()
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._calls: pb_grpc.ModelServiceStub | None = None
        self._link: ChatLink | None = None
        self._no_link = False  # the server knows no links
        self._closed = False
        self._no_schema = False  # the server said that it cannot constrain to a schema
        self._endpoint: Endpoint = endpoint(target, self._new_endpoint)

    def _new_endpoint(self) -> Endpoint:
        return Endpoint(self.target, self.config.limits, clock=self._clock, rng=self._rng)

    # --- what users call -------------------------------------------------------------------------------

    async def chat(
        self,
        request: ChatRequest,
        *,
        deadline_s: float | None = None,
        budget: TokenLedger | None = None,
        idempotent: bool = True,
    ) -> ChatResult:
        """Ask and wait for the whole, checked answer.

        Parameters
        ----------
        request : ChatRequest
        deadline_s : float, optional
            Seconds for everything: waiting, calls and retries.
        budget : TokenLedger, optional
            Prompt estimate plus ``max_tokens`` are reserved before the call, and settled by the usage after.
        idempotent : bool
            False if the call must not be made twice: a call that may have been executed is then not
            repeated, but ends as `UnknownOutcome`.

        Returns
        -------
        ChatResult
            With ``value`` parsed and validated when the output was constrained to JSON, and tool calls whose
            names and arguments were checked against the request's tools.

        Raises
        ------
        Truncated
            The answer was cut off, and it was to be parsed (constraint or tools) or the stream broke.
        InvalidOutput
            The answer breaks the constraint or a tool's schema.
        RateLimited, Overloaded, ModelUnavailable, CircuitOpen
            After the retries that deadline and retry budget allow.
        DeadlineExceeded, BudgetExceeded, PayloadTooLarge, UnsupportedFeature, ModelNotFound, Cancelled
        """
        response = await self._chat_call(request, self._deadline(deadline_s), budget, idempotent)
        return self._checked(request, response)

    async def chat_stream(
        self,
        request: ChatRequest,
        *,
        deadline_s: float | None = None,
        budget: TokenLedger | None = None,
    ) -> AsyncGenerator[ChatDelta, None]:
        """The same answer in pieces; the last piece has the checked ``result``.

        Failures before the first piece are retried; later ones are not, since the pieces were seen. Close the
        iterator (``contextlib.aclosing``) to cancel the call.
        """
        deadline = self._deadline(deadline_s)
        request = self._named(request)
        max_tokens, reservation = self._reserve(request, budget)
        message = self._sized(wire.request_to_pb(request))
        if max_tokens is not None:
            message.stopping.max_tokens = max_tokens
        text: list[str] = []
        usage: Usage | None = None
        seen = _Seen()
        try:
            attempt = 0
            while True:
                started = await self._endpoint.acquire(deadline)
                outcome = _Verdict()
                call = None
                try:
                    call = self._stub().ChatStream(message, timeout=max(0.001, deadline - self._clock.now()))
                    async for event in call:
                        if event is None:
                            raise self._garbled()
                        if event.WhichOneof("event") == "delta":
                            seen.deltas += 1
                            seen.tokens += event.delta.tokens
                            text.append(event.delta.text)
                            yield ChatDelta(event.delta.text, event.delta.tokens)
                        elif event.WhichOneof("event") == "finished":
                            usage = wire.usage_from_pb(event.finished.usage)
                            outcome.success()
                            response = pb.ChatResponse(
                                request_id=request.request_id,
                                model=event.finished.model,
                                text="".join(text),
                                tool_calls=event.finished.tool_calls,
                                finish_reason=event.finished.finish_reason,
                                usage=event.finished.usage,
                            )
                            yield ChatDelta(result=self._checked(request, response))
                            return
                    cut = Truncated(
                        f"the stream ended after {seen.deltas} pieces without a finish reason",
                        where=self.target,
                        hint="ask again",
                    )
                    outcome.failure(cut)
                    raise cut
                except grpc.aio.AioRpcError as error:
                    typed = self._typed(error, idempotent=True)
                    if seen.deltas and isinstance(typed, ModelUnavailable):
                        typed = Truncated(
                            f"the stream broke after {seen.deltas} pieces: {typed.message}",
                            where=self.target,
                            hint="ask again",
                        )
                    outcome.failure(typed)
                    if seen.deltas or not self._retryable(typed, attempt):
                        raise typed from None
                finally:
                    if call is not None:
                        call.cancel()
                    outcome.report(self._endpoint, started)
                attempt += 1
                await self._back_off(outcome.error, attempt, deadline)
        finally:
            if reservation is not None:
                if usage is not None:
                    reservation.settle(usage.total_tokens)
                elif seen.deltas:
                    reservation.settle(estimate_tokens(request.messages, request.documents) + seen.tokens)
                else:
                    reservation.release()

    async def generate_json(
        self,
        messages: Sequence[Message] | str,
        schema: Mapping[str, Any],
        *,
        model: str = "",
        documents: Sequence[Document] = (),
        sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008 - frozen
        max_tokens: int | None = None,
        metadata: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        budget: TokenLedger | None = None,
        repairs: int | None = None,
    ) -> ChatResult:
        """Ask for one JSON value that satisfies ``schema``.

        Output that breaks the schema is shown to the model together with the error, at most ``repairs``
        times. An answer that was cut off is asked for once more, with the request to be shorter. A server
        that cannot constrain its output to a schema gets the schema in the prompt; the answer is checked
        all the same.

        Returns
        -------
        ChatResult
            ``value`` is the validated value; ``usage`` is the sum over all attempts.

        Raises
        ------
        InvalidOutput
            The last answer still breaks the schema. Never an empty value instead.
        Truncated
            Cut off twice.
        ConfigError
            The schema is not valid; no call was made.
        And as `chat`.
        """
        check_schema(schema, where="schema")
        deadline = self._deadline(deadline_s)
        turns = [Message.user(messages)] if isinstance(messages, str) else list(messages)
        base = ChatRequest(
            turns,
            model=model,
            sampling=sampling,
            max_tokens=max_tokens,
            output=JsonSchema(schema),
            documents=tuple(documents),
            metadata=dict(metadata or {}),
        )
        left = self.config.repairs if repairs is None else repairs
        shortened = False
        spent = Usage()
        correction: tuple[Message, ...] = ()
        in_prompt = self._no_schema
        while True:
            request = replace(base, messages=(*base.messages, *correction))
            if in_prompt:
                request = _schema_in_prompt(request, schema)
            try:
                response = await self._chat_call(request, deadline, budget, idempotent=True)
            except UnsupportedFeature:
                if in_prompt:
                    raise
                in_prompt = True
                continue
            spent += wire.usage_from_pb(response.usage)
            try:
                result = self._checked(replace(request, output=base.output), response)
            except Truncated:
                if shortened:
                    raise
                shortened = True
                made = response.usage.completion_tokens
                correction = (
                    Message.user(
                        f"Your answer was cut off after {made} tokens. Answer again from the start, in at "
                        f"most {max(8, made // 2)} tokens, as one JSON value."
                    ),
                )
                continue
            except InvalidOutput as error:
                if left <= 0:
                    raise
                left -= 1
                correction = (
                    Message.assistant(response.text[:_SHOWN_BACK]),
                    Message.user(
                        f"That was refused: {error.message[:500]}. Answer again with one JSON value that "
                        "satisfies the schema, and nothing else."
                    ),
                )
                continue
            # Known for good only now: what was refused may have been something else, like the task.
            self._no_schema = in_prompt
            return replace(result, usage=spent)

    async def embed(
        self, texts: Sequence[str], *, model: str = "", deadline_s: float | None = None
    ) -> NDArray[np.float32]:
        """Embed texts.

        Returns
        -------
        float32, shape (len(texts), dimension)
            Rows of length 1, in the order of the texts. Shape (0, 0) for no texts.
        """
        import numpy as np

        if isinstance(texts, str):
            raise ConfigError("texts is a str, not a sequence", where="embed", hint="pass [text]")
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        message = self._sized(pb.EmbedRequest(model=model or self.model, texts=texts))
        response = await self._call(
            lambda stub, timeout: stub.Embed(message, timeout=timeout), self._deadline(deadline_s)
        )
        return wire.vectors_from_bytes(response.vectors, len(texts), response.dimension)

    async def count_tokens(
        self,
        messages: Sequence[Message] | str,
        documents: Sequence[Document] = (),
        *,
        model: str = "",
        deadline_s: float | None = None,
    ) -> TokenCount:
        """Tokens that messages and documents take in a prompt."""
        turns = [Message.user(messages)] if isinstance(messages, str) else messages
        message = self._sized(
            pb.CountTokensRequest(
                model=model or self.model,
                messages=wire.messages_to_pb(turns),
                documents=wire.documents_to_pb(documents),
            )
        )
        response = await self._call(
            lambda stub, timeout: stub.CountTokens(message, timeout=timeout), self._deadline(deadline_s)
        )
        return TokenCount(response.tokens, response.exact)

    async def list_models(self, *, deadline_s: float | None = None) -> tuple[ModelInfo, ...]:
        """The models of the server and what they can do, the default first."""
        response = await self._call(
            lambda stub, timeout: stub.ListModels(pb.ListModelsRequest(), timeout=timeout),
            self._deadline(deadline_s),
        )
        return tuple(wire.info_from_pb(info) for info in response.models)

    async def default_model(self) -> str:
        """The model that answers requests which name none. Asked for once."""
        if not self.model and not self._default:
            models = await self.list_models()
            self._default = models[0].id if models else ""
        return self.model or self._default

    async def abort(self, request_id: str, *, deadline_s: float = 5.0) -> bool:
        """Stop the call with this request id, from outside of it; False if the server knows none.

        Passes by the limiter: it must work while all permits are taken.
        """
        try:
            response = await self._stub().Abort(pb.AbortRequest(request_id=request_id), timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            raise self._typed(error, idempotent=True) from None
        return response.found

    async def aclose(self) -> None:
        """Close the connection; running calls are cancelled. Safe to call twice."""
        self._own_process()
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        channel, self._channel, self._calls = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<ModelClient {self.target}{f' model={self.model}' if self.model else ''}>"

    # --- calls -----------------------------------------------------------------------------------------

    def _deadline(self, deadline_s: float | None) -> float:
        seconds = self.config.deadline_s if deadline_s is None else deadline_s
        if not seconds > 0:
            raise DeadlineExceeded(f"the deadline of {seconds} s is already over", where=self.target)
        return self._clock.now() + seconds

    def _own_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkError(
                f"this client was made in process {self._pid}, and this is its child {os.getpid()}",
                where=self.target,
                hint="make a new client after the fork, or start processes with 'spawn'",
            )

    def _stub(self) -> pb_grpc.ModelServiceStub:
        self._own_process()
        if self._closed:
            raise StateError("the client is closed", where=self.target, hint="make a new client")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise StateError(
                f"this client belongs to {self._loop!r}, and was called on {loop!r}",
                where=self.target,
                hint="make one client per event loop",
            )
        if self._calls is None:  # made once: a stub looks up every method it has
            self._channel = grpc.aio.insecure_channel(
                self.target,
                options=[
                    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                    ("grpc.enable_retries", 0),  # retries are ours: they must know the budget
                    ("grpc.enable_http_proxy", 0),
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    ("grpc.min_reconnect_backoff_ms", 100),
                    ("grpc.max_reconnect_backoff_ms", 5_000),
                ],
            )
            self._calls = pb_grpc.ModelServiceStub(self._channel)
        return self._calls

    def _named(self, request: ChatRequest) -> ChatRequest:
        return request if request.model or not self.model else replace(request, model=self.model)

    def _sized(self, message: _M) -> _M:
        size = message.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            raise PayloadTooLarge(
                f"the request has {size} bytes, and {MAX_MESSAGE_BYTES} are allowed",
                size=size,
                limit=MAX_MESSAGE_BYTES,
                producer="client",
                where=self.target,
                hint="send fewer or shorter documents",
            )
        return message

    def _reserve(
        self, request: ChatRequest, budget: TokenLedger | None
    ) -> tuple[int | None, Reservation | None]:
        """The tokens that the answer may have, and what was reserved for it."""
        if budget is None:
            return request.max_tokens, None
        most = self.config.default_max_tokens if request.max_tokens is None else request.max_tokens
        return most, budget.reserve(estimate_tokens(request.messages, request.documents) + most)

    async def _chat_call(
        self, request: ChatRequest, deadline: float, budget: TokenLedger | None, idempotent: bool
    ) -> pb.ChatResponse:
        request = self._named(request)
        message = self._sized(wire.request_to_pb(request))
        max_tokens, reservation = self._reserve(request, budget)
        if max_tokens is not None:
            message.stopping.max_tokens = max_tokens
        if reservation is None:
            return await self._call(
                lambda stub, timeout: self._send_chat(stub, message, timeout), deadline, idempotent=idempotent
            )
        with reservation:
            try:
                response = await self._call(
                    lambda stub, timeout: self._send_chat(stub, message, timeout),
                    deadline,
                    idempotent=idempotent,
                )
            except (DeadlineExceeded, asyncio.CancelledError, Truncated, UnknownOutcome, Cancelled):
                # The prompt was most likely read, so it is charged; what else was made is not known.
                reservation.settle(estimate_tokens(request.messages, request.documents))
                raise
            reservation.settle(response.usage.total_tokens)
            return response

    async def _send_chat(
        self, stub: pb_grpc.ModelServiceStub, message: pb.ChatRequest, timeout_s: float
    ) -> pb.ChatResponse:
        """One chat: over the link, or as a call of its own where it is large or the server knows no links."""
        if not self._no_link and message.ByteSize() <= _LARGE:
            if self._link is None:
                self._link = ChatLink(self.target, lambda: self._stub().ChatLink())
            try:
                return await self._link.chat(message, timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                self._no_link = True
        return await stub.Chat(message, timeout=timeout_s)

    async def _call(
        self,
        send: Callable[[pb_grpc.ModelServiceStub, float], Awaitable[_T]],
        deadline: float,
        *,
        idempotent: bool = True,
    ) -> _T:
        self._own_process()
        attempt = 0
        while True:
            started = await self._endpoint.acquire(deadline)
            verdict = _Verdict()
            try:
                response = await send(self._stub(), max(0.001, deadline - self._clock.now()))
                verdict.success()
            except (grpc.aio.AioRpcError, PandacoreError) as error:
                typed = self._typed(error, idempotent=idempotent)
                verdict.failure(typed)
                if not self._retryable(typed, attempt):
                    raise typed from None
            else:
                if response is None:  # what gRPC makes of bytes that are not the message
                    raise self._garbled()
                return response
            finally:
                verdict.report(self._endpoint, started)
            attempt += 1
            await self._back_off(verdict.error, attempt, deadline)

    def _garbled(self) -> ProtocolError:
        return ProtocolError(
            "the answer is not of the protocol", where=self.target, hint="is this a pandacore model server?"
        )

    def _retryable(self, error: PandacoreError, attempt: int) -> bool:
        may_pass = (
            isinstance(error, (RateLimited, Overloaded))
            or (isinstance(error, ModelUnavailable) and not isinstance(error, CircuitOpen))
            # A connection that was cut in the middle of an answer; once, as cuts tend to repeat.
            or (isinstance(error, Truncated) and attempt == 0)
        )
        return may_pass and attempt < self.config.max_retries and self._endpoint.may_retry()

    async def _back_off(self, error: PandacoreError | None, attempt: int, deadline: float) -> None:
        if isinstance(error, RateLimited | Overloaded):
            return  # the limiter makes everybody wait, this call included
        ceiling = min(self.config.backoff_cap_s, self.config.backoff_base_s * 2.0**attempt)
        wait = self._rng.random() * ceiling
        if error is not None and self._clock.now() + wait >= deadline:
            raise error  # the retry would come too late, so the real cause is the better answer
        await self._clock.wait(None, wait)

    def _typed(self, error: grpc.aio.AioRpcError | PandacoreError, *, idempotent: bool) -> PandacoreError:
        """The error of the tree for a failed call."""
        if isinstance(error, PandacoreError):
            return error
        typed = error_of_call(error, where=self.target)
        if typed is not None:
            return typed
        code, text = error.code(), (error.details() or "").strip()[:500]
        status = grpc.StatusCode
        if code is status.RESOURCE_EXHAUSTED and (sizes := _TOO_LARGE.search(text)):
            return PayloadTooLarge(
                f"a message of {sizes[1]} bytes passes the limit of {sizes[2]}",
                size=int(sizes[1]),
                limit=int(sizes[2]),
                producer="client" if text.startswith("SERVER") else "server",
                where=self.target,
                hint="ask for a shorter answer, or send less",
            )
        match code:
            case status.DEADLINE_EXCEEDED:
                return DeadlineExceeded(
                    "no answer before the deadline", where=self.target, hint="give the call more time"
                )
            case status.CANCELLED:
                return Cancelled("the call was cancelled", where=self.target)
            case status.RESOURCE_EXHAUSTED:
                return Overloaded(text or "the server is full", where=self.target, hint="try again later")
            case status.UNIMPLEMENTED:
                return UnsupportedFeature(text, where=self.target, hint="see `pandacore model list --server`")
            case status.NOT_FOUND:
                return ModelNotFound(text, where=self.target)
            case status.UNAUTHENTICATED | status.PERMISSION_DENIED:
                return AuthenticationFailed(text, where=self.target, hint="check the server's credentials")
            case status.INVALID_ARGUMENT | status.OUT_OF_RANGE | status.FAILED_PRECONDITION:
                return ProtocolError(text, where=self.target)
            case status.DATA_LOSS:
                return Truncated(text, where=self.target)
            case status.UNAVAILABLE | status.INTERNAL | status.ABORTED:
                refused = "failed to connect" in text.lower()
                if not (idempotent or refused):
                    return UnknownOutcome(
                        f"the server vanished during the call: {text}",
                        where=self.target,
                        hint="check what happened before asking again",
                    )
                return ModelUnavailable(
                    text or code.name.lower(), where=self.target, hint="check that the model server runs"
                )
        return ModelError(f"{code.name.lower()}: {text}", where=self.target)

    # --- checks ----------------------------------------------------------------------------------------

    def _checked(self, request: ChatRequest, response: pb.ChatResponse) -> ChatResult:
        """The answer, after every check that the request calls for."""
        reason = wire.finish_from_pb(response.finish_reason)
        if reason is None:
            raise Truncated("the answer has no finish reason", where=self.target, hint="ask again")
        if reason is FinishReason.CANCELLED:
            raise Cancelled(f"request {response.request_id} was aborted", where=self.target)
        if reason is FinishReason.DEADLINE:
            raise DeadlineExceeded(
                "the server stopped at the deadline", where=self.target, hint="give the call more time"
            )
        structured = request.output is not None or bool(request.tools and request.tool_choice != "none")
        if reason is FinishReason.LENGTH and (structured or response.tool_calls):
            raise Truncated(
                f"the answer was cut off after {response.usage.completion_tokens} tokens, and is not parsed",
                where=self.target,
                hint="allow more tokens (max_tokens), or ask for less",
            )
        calls = self._checked_calls(request, wire.tool_calls_from_pb(response.tool_calls))
        text, value = response.text, None
        if not calls:
            match request.output:
                case JsonSchema(schema):
                    value = parse_output(text)
                    validate(value, schema)
                case JsonObject():
                    value = parse_output(text)
                    if not isinstance(value, dict):
                        raise InvalidOutput(
                            f"a JSON {type(value).__name__}, not an object", where="output", hint="ask again"
                        )
                case Choice(options):
                    text = _resolved(text, options, "output")
        return ChatResult(
            text,
            calls,
            reason,
            wire.usage_from_pb(response.usage),
            response.model,
            response.request_id or request.request_id,
            value,
        )

    @staticmethod
    def _checked_calls(request: ChatRequest, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        if not calls:
            return ()
        tools = {tool.name: tool for tool in request.tools}
        found = []
        for call in calls:
            name = _resolved(call.name, tuple(tools), "tool call")
            validate(call.arguments, tools[name].parameters, where=f"arguments of tool call {name!r}")
            found.append(replace(call, name=name))
        return tuple(found)


_M = TypeVar("_M", bound="ProtoMessage")


@dataclass(slots=True)
class _Seen:
    """What of a stream has already reached the caller."""

    deltas: int = 0
    tokens: int = 0


class _Verdict:
    """What the endpoint's load control learns from one attempt."""

    __slots__ = ("_outcome", "_retry_after_s", "error")

    def __init__(self) -> None:
        self._outcome = Outcome.NEUTRAL  # cancelled, or a bug of ours: says nothing about the server
        self._retry_after_s: float | None = None
        self.error: PandacoreError | None = None

    def success(self) -> None:
        self._outcome = Outcome.SUCCESS

    def failure(self, error: PandacoreError) -> None:
        self.error = error
        match error:
            case RateLimited():
                self._outcome, self._retry_after_s = Outcome.RATE_LIMITED, error.retry_after_s
            case Overloaded():
                self._outcome = Outcome.OVERLOADED
            case ModelUnavailable() | DeadlineExceeded() | UnknownOutcome() | Truncated():
                self._outcome = Outcome.FAILURE
            case BudgetExceeded() | PandacoreError():
                self._outcome = Outcome.NEUTRAL

    def report(self, endpoint: Endpoint, started: float) -> None:
        endpoint.release(self._outcome, started, retry_after_s=self._retry_after_s)


def _resolved(written: str, known: Sequence[str], where: str) -> str:
    """The one name that the model meant; quotes, case and Markdown are forgiven, a guess is not made."""
    try:
        return names.resolve(written, known)
    except UnknownCapability:
        shown = ", ".join(known[:20]) or "none"
        raise InvalidOutput(
            f"{written[:80]!a} is none of: {shown}", where=where, hint="ask again with the list"
        ) from None


def _schema_in_prompt(request: ChatRequest, schema: Mapping[str, Any]) -> ChatRequest:
    """The request for a server that cannot constrain its output: the schema goes into the prompt."""
    text = json.dumps(dict(schema), ensure_ascii=False)
    ask = Message.user(
        f"Answer with one JSON value that satisfies this JSON Schema, and nothing else: {text}"
    )
    return replace(request, output=None, messages=(*request.messages, ask))
