"""Any OpenAI-compatible HTTP server: hosted, llama-server, vLLM, Ollama and others.

One request of ours is one HTTP request: this backend never retries and never follows a redirect (the key
would go along). Keys are held as `Secret`, and every text that comes from the server is redacted before it
reaches an error or a log.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import math
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn
from urllib.parse import unquote

import numpy as np

from pandacore.config import Secret, redact
from pandacore.errors import (
    AuthenticationFailed,
    ConfigError,
    InvalidOutput,
    ModelError,
    ModelNotFound,
    ModelUnavailable,
    PayloadTooLarge,
    RateLimited,
    StateError,
    Truncated,
    UnsupportedFeature,
)
from pandacore.models.backends.base import Backend, estimate_tokens
from pandacore.models.prompts import messages_with_documents
from pandacore.models.strict_json import parse_strict
from pandacore.models.types import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    Choice,
    Embeddings,
    FinishReason,
    JsonObject,
    JsonSchema,
    Message,
    ModelInfo,
    Regex,
    Role,
    ToolCall,
    Usage,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["OpenAIBackend", "OpenAIOptions", "retry_after"]

_DEFAULT_URL: Final = "https://api.openai.com/v1"
_MAX_BODY: Final = 4 * 1024 * 1024
"""Longest answer that is read, in bytes: it could not be passed on over gRPC anyway."""
_MAX_EMBED_BODY: Final = 64 * 1024 * 1024
"""Vectors as JSON text take about six times their size in bytes."""
_ERROR_TEXT: Final = 400
_ERROR_BODY: Final = 65_536
_CAPABILITIES: Final = ("json_schema", "json_object", "regex", "grammar", "choice")
_FINISH: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """Settings of the backend (``--option key=value``).

    Attributes
    ----------
    structured_output : str
        Constraints the server honours, joined by commas: ``json_schema``, ``json_object``; and for servers
        with vLLM's extensions ``regex``, ``choice``, ``grammar``.
    tools, embeddings : bool
        Whether the server has them.
    embedding_model : str
        Model for embeddings, where it is another one.
    context : int
        Context of the model in tokens, 0 if unknown; it is only told to clients.
    strict : bool
        Ask for ``strict`` schemas. OpenAI then wants every property required and no additional ones.
    max_tokens_field : str
        ``max_tokens``, or ``max_completion_tokens`` for OpenAI's reasoning models.
    connect_timeout_s : float
        Seconds to open a connection. The rest of a call is bounded by its deadline.
    concurrency : int
        Calls at once.
    """

    structured_output: str = "json_schema,json_object"
    tools: bool = True
    embeddings: bool = True
    embedding_model: str = ""
    context: int = 0
    strict: bool = False
    max_tokens_field: str = "max_tokens"
    connect_timeout_s: float = 10.0
    concurrency: int = 32


class OpenAIBackend(Backend):
    """Bridges to ``/chat/completions``, ``/embeddings`` and ``/models`` below ``base_url``.

    Parameters
    ----------
    model : str, optional
        What to ask for by default; the server's first model if not given.
    base_url : str
        With its ``/v1``. User info in it is sent as basic authentication and never shown.
    api_key : Secret, optional
        Sent as a bearer token.
    options : OpenAIOptions
    """

    name: ClassVar[str] = "openai"

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str = _DEFAULT_URL,
        api_key: Secret | None = None,
        options: OpenAIOptions | None = None,
    ) -> None:
        self._options = options or OpenAIOptions()
        self._model = model or ""
        self._base_url, self._user = _split_userinfo(base_url)
        # The password alone is a secret as well: a server may quote it without the user's name.
        self._password = Secret(self._user.reveal().partition(":")[2]) if self._user else None
        self._key = api_key
        self.concurrency = self._options.concurrency
        self._constraints = tuple(filter(None, self._options.structured_output.replace(" ", "").split(",")))
        for constraint in self._constraints:
            if constraint not in _CAPABILITIES:
                raise ConfigError(
                    f"unknown constraint {constraint!r}",
                    where="--option structured_output",
                    hint=f"use {', '.join(_CAPABILITIES)}",
                )
        self._http: httpx.AsyncClient | None = None
        self._known: tuple[str, ...] | None = None

    @classmethod
    def from_options(cls, model: str | None, options: Mapping[str, str]) -> OpenAIBackend:
        """Make it from command-line texts; the base URL and the key come from the environment."""
        known = OpenAIOptions()
        given: dict[str, Any] = {}
        for key, text in options.items():
            if not hasattr(known, key):
                raise ConfigError(
                    f"the openai backend knows no option {key!r}",
                    where="--option",
                    hint=f"it knows {', '.join(OpenAIOptions.__dataclass_fields__)}; "
                    "base URL and key come from OPENAI_BASE_URL and OPENAI_API_KEY",
                )
            given[key] = _converted(text, getattr(known, key), key)
        key_text = _from_env("API_KEY")
        return cls(
            model,
            base_url=_from_env("BASE_URL") or _DEFAULT_URL,
            api_key=Secret(key_text) if key_text else None,
            options=OpenAIOptions(**given),
        )

    def __repr__(self) -> str:
        return f"<OpenAIBackend {self._model or 'default model'} at {redact(self._base_url)}>"

    async def start(self) -> None:
        import httpx

        for name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy"):
            logger = logging.getLogger(name)
            if _redacting not in logger.filters:
                logger.addFilter(_redacting)
        headers = {"User-Agent": "pandacore", "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        auth = None if self._user is None else httpx.BasicAuth(*self._user_pair())
        limit = self._options.concurrency
        self._http = httpx.AsyncClient(
            base_url=self._base_url,
            headers=headers,
            auth=auth,
            # Deadlines are kept by cancelling; only opening a connection has a limit of its own.
            timeout=httpx.Timeout(None, connect=self._options.connect_timeout_s),
            limits=httpx.Limits(max_connections=limit, max_keepalive_connections=limit),
            follow_redirects=False,
        )

    def _user_pair(self) -> tuple[str, str]:
        assert self._user is not None
        name, _, word = self._user.reveal().partition(":")
        return unquote(name), unquote(word)

    async def aclose(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    # --- models ----------------------------------------------------------------------------------------

    async def models(self) -> Sequence[ModelInfo]:
        if self._known is None:
            self._known = await self._ask_models()
        names = list(self._known)
        if self._model:
            names = [self._model, *(name for name in names if name != self._model)]
        elif not names:
            raise ModelNotFound(
                "the server lists no model", where=self._base_url, hint="name one, as in openai:MODEL"
            )
        options = self._options
        return [
            ModelInfo(
                name,
                self.name,
                context_tokens=options.context,
                embeddings=options.embeddings,
                tools=options.tools,
                structured_output=self._constraints,
            )
            for name in names
        ]

    async def _ask_models(self) -> tuple[str, ...]:
        """What ``/models`` lists; nothing when the server has no such page and a model was named."""
        try:
            async with asyncio.timeout(30.0):
                status, headers, body = await self._request("GET", "models", None, _MAX_BODY)
        except TimeoutError:
            raise ModelUnavailable("no answer to /models", where=self._base_url) from None
        if status != 200:
            if self._model and status in (404, 405, 501):
                return ()
            self._fail(status, headers, body)
        data = self._json(body)
        rows = data.get("data") if isinstance(data, dict) else None
        names = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return tuple(name for name in names if isinstance(name, str))[:1_000]

    async def model(self, name: str) -> ModelInfo:
        # The configured model is asked for without looking at the list: many gateways list only a part.
        if self._model and name in ("", self._model):
            options = self._options
            return ModelInfo(
                self._model,
                self.name,
                context_tokens=options.context,
                embeddings=options.embeddings,
                tools=options.tools,
                structured_output=self._constraints,
            )
        return await super().model(name)

    # --- chat ------------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> ChatResult:
        model = (await self.model(request.model)).id
        body = self._body(request, model)
        status, headers, raw = await self._request("POST", "chat/completions", body, _MAX_BODY)
        if status != 200:
            self._fail(status, headers, raw)
        try:
            data = self._json(raw)
        except InvalidOutput as error:
            if "content-length" in headers or "transfer-encoding" in headers:
                raise
            # The end of such a body is the end of the connection: a cut looks like bad JSON.
            raise Truncated(error.message, where=self._base_url, hint="ask again") from None
        try:
            choice = data["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            refusal = message.get("refusal")
            finish = choice.get("finish_reason")
            calls = [_PartialCall.of(call) for call in message.get("tool_calls") or ()]
        except (KeyError, IndexError, TypeError, AttributeError):
            raise InvalidOutput(
                "the answer is no chat completion", where=self._base_url, hint="is the base URL right?"
            ) from None
        if refusal:
            raise InvalidOutput(f"the model refused: {redact(str(refusal))[:_ERROR_TEXT]}", where=model)
        name = data.get("model") or model
        return self._result(request, name, str(text), finish=finish, calls=calls, usage=_usage(data))

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        model = (await self.model(request.model)).id
        body = {**self._body(request, model), "stream": True, "stream_options": {"include_usage": True}}
        text: list[str] = []
        calls: dict[int, _PartialCall] = {}
        finish: Any = None
        usage: Usage | None = None
        async for event in self._events(body):
            model = event.get("model") or model
            usage = _usage(event) or usage
            choices = event.get("choices")
            if not isinstance(choices, list) or not choices:
                continue
            delta = choices[0].get("delta") or {}
            finish = choices[0].get("finish_reason") or finish
            for call in delta.get("tool_calls") or ():
                calls.setdefault(call.get("index", len(calls)), _PartialCall()).add(call)
            piece = delta.get("content")
            if piece:
                text.append(piece)
                yield ChatDelta(piece, 1)
        ordered = [calls[index] for index in sorted(calls)]
        whole = "".join(text)
        yield ChatDelta(result=self._result(request, model, whole, finish=finish, calls=ordered, usage=usage))

    def _result(
        self,
        request: ChatRequest,
        model: str,
        text: str,
        *,
        finish: Any,
        calls: Sequence[_PartialCall],
        usage: Usage | None,
    ) -> ChatResult:
        if finish == "content_filter":
            raise InvalidOutput("the server's content filter stopped the answer", where=model)
        reason = _FINISH.get(finish) if isinstance(finish, str) else None
        if reason is None:
            # An unknown or missing reason may be a cut: the answer is not to be trusted as whole.
            raise Truncated(
                f"the answer has the finish reason {finish!r}", where=self._base_url, hint="ask again"
            )
        if usage is None:
            prompt = estimate_tokens(request.messages, request.documents)
            completion = -(-len(text.encode()) // 4)
            usage = Usage(prompt, completion, prompt + completion)
        if reason is FinishReason.LENGTH:
            calls = ()  # what was cut off is never a call
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS  # some servers say "stop" for a call
        return ChatResult(
            text, tuple(call.whole() for call in calls), reason, usage, model, request.request_id
        )

    def _body(self, request: ChatRequest, model: str) -> dict[str, Any]:
        messages = messages_with_documents(request)
        body: dict[str, Any] = {"model": model, "messages": [_message(item) for item in messages]}
        if request.max_tokens is not None:
            body[self._options.max_tokens_field] = request.max_tokens
        if request.stop:
            body["stop"] = list(request.stop)
        sampling = request.sampling
        # top_k, min_p and repetition_penalty are extensions: sent only when they are asked for.
        for field in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        ):
            value = getattr(sampling, field)
            if value is not None:
                body[field] = value
        if request.tools and request.tool_choice != "none":
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": dict(tool.parameters),
                    },
                }
                for tool in request.tools
            ]
            choice = request.tool_choice
            body["tool_choice"] = (
                choice
                if choice in ("auto", "required")
                else {"type": "function", "function": {"name": choice}}
            )
        match request.output:
            case JsonSchema(schema):
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "output",
                        "schema": dict(schema),
                        "strict": self._options.strict,
                    },
                }
            case JsonObject():
                body["response_format"] = {"type": "json_object"}
            case Choice(options):
                body["structured_outputs"] = {"choice": list(options)}
            case Regex(pattern):
                body["structured_outputs"] = {"regex": pattern}
            case None:
                pass
            case grammar:
                body["structured_outputs"] = {"grammar": grammar.gbnf}
        return body

    # --- embeddings ------------------------------------------------------------------------------------

    async def embed(self, texts: Sequence[str], *, model: str = "") -> Embeddings:
        name = self._options.embedding_model or (await self.model(model)).id
        body = {"model": name, "input": list(texts), "encoding_format": "float"}
        status, headers, raw = await self._request("POST", "embeddings", body, _MAX_EMBED_BODY)
        if status != 200:
            self._fail(status, headers, raw)
        data = self._json(raw)
        try:
            rows = sorted(data["data"], key=lambda row: row["index"])
            vectors = np.asarray([row["embedding"] for row in rows], dtype=np.float32)
        except (KeyError, TypeError, ValueError):
            raise InvalidOutput("the answer has no embeddings", where=self._base_url) from None
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise InvalidOutput(
                f"{len(texts)} texts gave vectors of shape {vectors.shape}", where=self._base_url
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return Embeddings(vectors / np.maximum(lengths, 1e-12), name, _usage(data) or Usage())

    # --- HTTP ------------------------------------------------------------------------------------------

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            raise StateError("the openai backend is not started", hint="await start() first")
        return self._http

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, limit: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One HTTP request: (status, headers, whole body)."""
        import httpx

        received = False
        try:
            async with self._client().stream(method, path, json=body) as response:
                received = True
                raw = await self._read(response, limit)
                return response.status_code, response.headers, raw
        except httpx.HTTPError as error:
            raise self._broken(error, received) from None

    async def _read(self, response: httpx.Response, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > limit:
                raise self._too_large(max(size, int(response.headers.get("content-length") or 0)), limit)
            parts.append(part)
        raw = b"".join(parts)
        if response.status_code != 200:
            # At once, so that not even a traceback with local variables can show what it quotes.
            return redact(raw[:_ERROR_BODY].decode("utf-8", "replace")).encode()
        return raw

    def _too_large(self, size: int, limit: int) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the answer has at least {size} bytes, and {limit} are allowed",
            size=size,
            limit=limit,
            producer=self._base_url,
            where=self._base_url,
            hint="ask for less (max_tokens)",
        )

    async def _events(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The server-sent events of one chat; ends at ``[DONE]``, and a stream without it was cut."""
        import httpx

        received = False
        try:
            async with self._client().stream("POST", "chat/completions", json=body) as response:
                if response.status_code != 200:
                    raw = await self._read(response, _MAX_BODY)
                    self._fail(response.status_code, response.headers, raw)
                received = True
                async for data in _sse(response, self._too_large):
                    if data == "[DONE]":
                        return
                    event = self._json(data.encode())
                    if not isinstance(event, dict):
                        raise InvalidOutput("an event is no JSON object", where=self._base_url)
                    if event.get("error"):
                        self._fail(_status_of(event), {}, json.dumps(event).encode())
                    yield event
        except httpx.HTTPError as error:
            raise self._broken(error, received) from None
        raise Truncated("the stream ended without [DONE]", where=self._base_url, hint="ask again")

    def _broken(self, error: httpx.HTTPError, received: bool) -> ModelError:
        why = f"{type(error).__name__}: {redact(str(error))[:_ERROR_TEXT]}"
        if received:
            return Truncated(f"the answer broke off: {why}", where=self._base_url, hint="ask again")
        return ModelUnavailable(
            why, where=self._base_url, hint="check OPENAI_BASE_URL and that the server runs"
        )

    def _json(self, raw: bytes) -> Any:
        try:
            return parse_strict(raw.decode("utf-8"), where=self._base_url)
        except UnicodeDecodeError:
            raise InvalidOutput("the answer is not UTF-8", where=self._base_url) from None
        except InvalidOutput as error:
            # The parser's message quotes the text, which may hold a key.
            error.message = redact(error.message)
            raise

    def _fail(self, status: int, headers: Mapping[str, str], raw: bytes) -> NoReturn:
        """Raise the error of the tree for an HTTP status."""
        message, code = _error_text(raw)
        text = f"HTTP {status}: {message}" if message else f"HTTP {status}"
        where = self._base_url
        if status == 429:
            if code in ("insufficient_quota", "billing_hard_limit_reached"):
                raise ModelError(text, where=where, hint="the account has no credit left: check its plan")
            raise RateLimited(text, retry_after_s=retry_after(headers), where=where, hint="make fewer calls")
        if status in (401, 403):
            raise AuthenticationFailed(text, where=where, hint="check OPENAI_API_KEY")
        if status == 404:
            raise ModelNotFound(text, where=where, hint="check the model's name and OPENAI_BASE_URL")
        if status == 413:
            raise PayloadTooLarge(text, producer="client", where=where, hint="send less")
        if status in (501, 405):
            raise UnsupportedFeature(text, where=where)
        if status in (408, 409, 425) or status >= 500:
            if status == 503 and (wait := retry_after(headers)) is not None:
                raise RateLimited(text, retry_after_s=wait, where=where)
            raise ModelUnavailable(text, where=where, hint="try again")
        if 300 <= status < 400:
            raise ConfigError(
                f"{text}: the server redirects, which is not followed", where=where, hint="use the final URL"
            )
        if code == "context_length_exceeded" or "context length" in message.lower():
            raise ConfigError(text, where=where, hint="send less")
        raise ModelError(text, where=where, hint="the server refuses the request")


class _PartialCall:
    """A tool call whose pieces arrive one by one; worth nothing before the last."""

    def __init__(self) -> None:
        self._id = self._name = self._arguments = ""

    @classmethod
    def of(cls, call: Mapping[str, Any]) -> _PartialCall:
        found = cls()
        found.add(call)
        return found

    def add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        self._id = self._id or str(piece.get("id") or "")
        self._name += function.get("name") or ""
        self._arguments += function.get("arguments") or ""

    def whole(self) -> ToolCall:
        where = f"arguments of tool call {self._name!r}"
        arguments = parse_strict(self._arguments, where=where)
        if not isinstance(arguments, dict):
            raise InvalidOutput("the arguments are no JSON object", where=where, hint="ask again")
        return ToolCall(self._id or f"call_{self._name}", self._name, arguments)


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds to wait as ``Retry-After`` says: a number of seconds, or a date.

    None without the header, or when it is neither; 0 for a date that has passed.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = (headers.get(name) or "").strip()
        if not text:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                at = email.utils.parsedate_to_datetime(text).timestamp()
            except (TypeError, ValueError):
                continue
            seconds = at - (time.time() if now is None else now)
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


async def _sse(response: httpx.Response, too_large: Any) -> AsyncIterator[str]:
    """The data of server-sent events; lines and the whole are bounded."""
    size = 0
    pending = b""
    data: list[str] = []
    async for part in response.aiter_bytes():
        size += len(part)
        if size > _MAX_EMBED_BODY or len(pending) > _MAX_BODY:
            raise too_large(size, _MAX_BODY)
        pending += part
        *lines, pending = re.split(rb"\r\n|\n", pending)
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            if not line:
                if data:
                    yield "\n".join(data)
                    data = []
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))


def _message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": str(message.role), "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
                },
            }
            for call in message.tool_calls
        ]
    if message.role is Role.TOOL:
        found["tool_call_id"] = message.tool_call_id or ""
    elif message.name:
        found["name"] = message.name
    return found


def _usage(data: Mapping[str, Any]) -> Usage | None:
    usage = data.get("usage")
    if not isinstance(usage, Mapping):
        return None

    def count(table: Any, key: str) -> int:
        value = table.get(key) if isinstance(table, Mapping) else None
        return value if isinstance(value, int) and value >= 0 else 0

    prompt, completion = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    return Usage(
        prompt,
        completion,
        count(usage, "total_tokens") or prompt + completion,
        count(usage.get("prompt_tokens_details"), "cached_tokens"),
        count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _error_text(raw: bytes) -> tuple[str, str]:
    """(message, code) of an error body, redacted and short."""
    text = raw[:_ERROR_BODY].decode("utf-8", "replace")
    message, code = text, ""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if isinstance(data, dict):
        error = data.get("error", data)
        if isinstance(error, dict):
            message = str(error.get("message") or error.get("detail") or "")
            code = str(error.get("code") or error.get("type") or "")
        else:
            message = str(error)
    return " ".join(redact(message).split())[:_ERROR_TEXT], code[:100]


def _status_of(event: Mapping[str, Any]) -> int:
    """The HTTP status that an error inside of a stream stands for."""
    error = event.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _split_userinfo(url: str) -> tuple[str, Secret | None]:
    match = re.fullmatch(r"(?i)(https?://)(?:([^/@\s]*)@)?([^/@\s]+)(/[^?#\s]*)?/?", url.strip())
    if match is None:
        raise ConfigError(
            f"{redact(url.strip())[:200]!r} is no base URL",
            where="base_url",
            hint="write http://host:port/v1, without query or fragment",
        )
    path = (match[4] or "").rstrip("/")
    return f"{match[1]}{match[3]}{path}/", Secret(match[2]) if match[2] else None


def _converted(text: str, default: object, key: str) -> Any:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
                text.lower()
            ]
        return type(default)(text)  # type: ignore[call-arg]
    except (ValueError, KeyError):
        raise ConfigError(f"{text!r} is no {type(default).__name__}", where=f"--option {key}") from None


def _from_env(name: str) -> str | None:
    """``PANDACORE__MODEL__NAME``, its ``_FILE`` variant, then the same of ``OPENAI_NAME``."""
    for prefix in ("PANDACORE__MODEL__", "OPENAI_"):
        if value := os.environ.get(prefix + name):
            return value.strip()
        if file := os.environ.get(f"{prefix}{name}_FILE"):
            try:
                return Path(file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"cannot read the file: {type(error).__name__}", where=f"{prefix}{name}_FILE"
                ) from None
    return None


class _Redacting(logging.Filter):
    """Keeps secrets out of the log records of the HTTP library, which logs URLs and headers at DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            record.msg, record.args = redact(record.getMessage()), None
        except (TypeError, ValueError):  # a malformed record of a library must not stop a call
            record.msg, record.args = "(unreadable log record)", None
        return True


_redacting: Final = _Redacting()
