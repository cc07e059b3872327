"""Any GGUF model through llama.cpp, in this process: needs the extra ``[local]`` (`xllamacpp`).

This backend runs inside the model server's own process. llama.cpp's HTTP port stays on loopback behind a
random key; it is used for exact token counts only.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from pandacore.errors import (
    ConfigError,
    InvalidOutput,
    ModelError,
    ModelUnavailable,
    PandacoreError,
    StateError,
    UnsupportedFeature,
)
from pandacore.models.backends.base import Backend
from pandacore.models.catalog import resolve
from pandacore.models.gguf import read_metadata
from pandacore.models.prompts import messages_with_documents
from pandacore.models.tool_prompt import offers_tools, parse_answer, tool_messages, tool_schema
from pandacore.models.types import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    Choice,
    Document,
    Embeddings,
    FinishReason,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    ModelInfo,
    TokenCount,
    Usage,
)

__all__ = ["LlamaBackend", "LlamaOptions"]

_ENCODERS: Final = ("bert", "nomic-bert", "jina-bert-v2", "modern-bert", "t5encoder")
_PROMPT_CACHE_MIB: Final = 512
_DEFAULT_MAX_TOKENS: Final = 1024
"""When a request names no limit: a small model that runs on must not fill its whole context."""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """Settings of the backend (``--option key=value``).

    Attributes
    ----------
    threads : int
        Threads that compute; cores minus one by default. More than there are free cores makes llama.cpp many
        times slower, since its threads spin at barriers.
    parallel : int
        Calls that run at once, batched together.
    context : int
        Tokens of prompt and answer of one call, at most what the model was trained for.
    batch : int
        Prompt tokens read in one go. A cancelled call stops after at most one batch, and on a CPU larger
        batches are no faster.
    gpu_layers : int
        Layers to put on a GPU, where the installed build has one.
    chat_template : str
        Path of a Jinja chat template to use instead of the model's own.
    """

    threads: int = 0
    parallel: int = 2
    context: int = 4096
    batch: int = 64
    gpu_layers: int = 0
    chat_template: str = ""


class LlamaBackend(Backend):
    """Serves one GGUF file.

    Parameters
    ----------
    model : str
        Path of a ``.gguf`` file, or a name of the catalogue that is in the cache.
    options : LlamaOptions
    """

    name: ClassVar[str] = "llama"

    def __init__(self, model: str, options: LlamaOptions | None = None) -> None:
        self._options = options or LlamaOptions()
        self._path = resolve(model)
        self._id = model if Path(model).name == model and not model.endswith(".gguf") else self._path.stem
        self._metadata = read_metadata(self._path)
        self.concurrency = self._options.parallel
        self._server: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._key = secrets.token_urlsafe(24)
        self._http: Any = None
        for name in ("parallel", "context", "batch"):
            if getattr(self._options, name) < 1:
                raise ConfigError(
                    f"{name} is {getattr(self._options, name)}", where="--option", hint="use 1 or more"
                )

    @classmethod
    def from_options(cls, model: str | None, options: Mapping[str, str]) -> LlamaBackend:
        """Make it from command-line texts."""
        if not model:
            raise ConfigError(
                "no model named",
                where="--model",
                hint="give a .gguf file or a name of `pandacore model list`",
            )
        known = LlamaOptions()
        given: dict[str, Any] = {}
        for key, text in options.items():
            if not hasattr(known, key):
                raise ConfigError(
                    f"the llama backend knows no option {key!r}",
                    where="--option",
                    hint=f"it knows {', '.join(LlamaOptions.__dataclass_fields__)}",
                )
            try:
                given[key] = type(getattr(known, key))(text)
            except ValueError:
                raise ConfigError(f"{text!r} is no number", where=f"--option {key}") from None
        return cls(model, LlamaOptions(**given))

    @property
    def _encoder(self) -> bool:
        return self._metadata.get("general.architecture") in _ENCODERS

    def _trained_context(self) -> int:
        return int(self._metadata.get(f"{self._metadata.get('general.architecture')}.context_length", 0))

    @property
    def _context(self) -> int:
        return min(self._options.context, self._trained_context() or self._options.context)

    async def start(self) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise ConfigError(
                "the llama backend needs xllamacpp", hint="install it with `pip install 'pandacore[local]'`"
            ) from None
        options = self._options
        params = xllamacpp.CommonParams()
        params.model.path = str(self._path)
        params.n_parallel = options.parallel
        params.n_ctx = self._context * options.parallel
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads or max(
            1, _cores() - 1
        )
        params.n_gpu_layers = options.gpu_layers
        params.n_threads_http = 1
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.api_keys = [self._key]
        params.ui = False
        params.endpoint_slots = False
        params.cache_ram_mib = _PROMPT_CACHE_MIB
        params.verbosity = 0
        params.warmup = False
        if self._encoder:
            params.embedding = True
            # An encoder sees its whole text at once, so a batch must hold it.
            params.n_batch = params.n_ubatch = params.n_ctx
        else:
            params.n_batch = params.n_ubatch = min(options.batch, params.n_ctx)
        if options.chat_template:
            params.chat_template = await asyncio.to_thread(_template, options.chat_template)
        try:
            self._server = await asyncio.to_thread(xllamacpp.Server, params)
        except (RuntimeError, ValueError) as error:
            raise ModelUnavailable(
                f"llama.cpp cannot load it: {error}", where=str(self._path), hint="try another GGUF file"
            ) from None
        self._pool = ThreadPoolExecutor(options.parallel, thread_name_prefix="pandacore-llama")

    async def aclose(self) -> None:
        if self._pool is not None:
            await asyncio.to_thread(self._pool.shutdown)
        if self._http is not None:
            await self._http.aclose()
        server, self._server = self._server, None
        # Freeing the model joins llama.cpp's threads, which blocks.
        await asyncio.to_thread(lambda held: held.clear(), [server])
        del server

    async def models(self) -> Sequence[ModelInfo]:
        width = int(self._metadata.get(f"{self._metadata.get('general.architecture')}.embedding_length", 0))
        chats = not self._encoder and bool(
            self._metadata.get("tokenizer.chat_template") or self._options.chat_template
        )
        return [
            ModelInfo(
                self._id,
                self.name,
                context_tokens=self._context,
                chat=chats,
                embeddings=self._encoder,
                tools=chats,
                structured_output=("json_schema", "json_object", "grammar", "choice") if chats else (),
                embedding_dimension=width if self._encoder else 0,
                generative=chats,
            )
        ]

    async def chat(self, request: ChatRequest) -> ChatResult:
        result: ChatResult | None = None
        async for delta in self.chat_stream(request):
            result = delta.result or result
        if result is None:
            raise ModelError("llama.cpp ended without a result", where=self._id)
        return result

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        tools = offers_tools(request)
        body = self._body(request)
        text: list[str] = []
        finish: str | None = None
        usage = Usage()
        async for chunk in self._chunks(body):
            usage = _usage(chunk) or usage
            for choice in chunk.get("choices", ()):
                finish = choice.get("finish_reason") or finish
                piece = choice.get("delta", {}).get("content")
                if piece:
                    text.append(piece)
                    if not tools:  # a tool call is shown whole or not at all
                        yield ChatDelta(piece, 1)
        result = self._result(request, "".join(text), finish, usage)
        if tools and result.text:
            yield ChatDelta(result.text, usage.completion_tokens)
        yield ChatDelta(result=result)

    def _result(self, request: ChatRequest, text: str, finish: str | None, usage: Usage) -> ChatResult:
        reason = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}.get(finish or "")
        if reason is None:
            raise ModelError(f"llama.cpp gave the finish reason {finish!r}", where=self._id)
        result = ChatResult(text, (), reason, usage, self._id, request.request_id)
        if not offers_tools(request) or reason is FinishReason.LENGTH:
            return result
        answer, calls = parse_answer(text)
        if calls:
            return replace(result, text="", tool_calls=calls, finish_reason=FinishReason.TOOL_CALLS)
        return replace(result, text=answer)

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        messages: Sequence[Message] = messages_with_documents(request)
        body: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,  # so that a call can be cancelled while its prompt is read
            "max_tokens": request.max_tokens or _DEFAULT_MAX_TOKENS,
            "cache_prompt": True,
        }
        if offers_tools(request):
            if request.output is not None:
                raise UnsupportedFeature(
                    "tools and an output constraint cannot be combined",
                    where="structured_output",
                    hint="let the model call tools first, then ask for the constrained output",
                )
            messages = tool_messages(request, messages)
            body["response_format"] = _schema_format(tool_schema(request))
        match request.output:
            case JsonSchema(schema):
                body["response_format"] = _schema_format(schema)
            case JsonObject():
                body["response_format"] = _schema_format({"type": "object"})
            case Grammar(gbnf):
                body["grammar"] = gbnf
            case Choice(options):
                literals = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
                body["grammar"] = f"root ::= {literals}"
        body["messages"] = [_message(message) for message in messages]
        if request.stop:
            body["stop"] = list(request.stop)
        sampling = request.sampling
        for field, key in (
            ("temperature", "temperature"),
            ("top_p", "top_p"),
            ("top_k", "top_k"),
            ("min_p", "min_p"),
            ("seed", "seed"),
            ("presence_penalty", "presence_penalty"),
            ("frequency_penalty", "frequency_penalty"),
            ("repetition_penalty", "repeat_penalty"),
        ):
            value = getattr(sampling, field)
            if value is not None:
                body[key] = value
        return body

    async def _chunks(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """llama.cpp's stream: made in a thread, stopped when this generator is closed."""
        server = self._running()
        loop = asyncio.get_running_loop()
        # Bounded by the tokens of one answer.
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        stop = threading.Event()

        def on_chunk(chunk: dict[str, Any]) -> bool:
            if not stop.is_set():
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            return stop.is_set()

        def work() -> Any:
            try:
                return None if stop.is_set() else server.handle_chat_completions(body, on_chunk)
            finally:
                loop.call_soon_threadsafe(queue.put_nowait, None)

        done = loop.run_in_executor(self._pool, work)
        try:
            while (chunk := await queue.get()) is not None:
                _raise_error(chunk, self._id)
                yield chunk
            _raise_error(await _translated(done, self._id), self._id)
        finally:
            stop.set()
            if not done.done():
                # The place in the engine is free only when its thread is back: at most one batch later.
                await asyncio.wait({done})
            if not done.cancelled():
                done.exception()

    def _running(self) -> Any:
        if self._server is None:
            raise StateError("the llama backend is not started", hint="await start() first")
        return self._server

    async def embed(self, texts: Sequence[str], *, model: str = "") -> Embeddings:
        server = self._running()
        loop = asyncio.get_running_loop()
        body = {"input": [await self._fitting(text) for text in texts], "encoding_format": "float"}
        found = await _translated(loop.run_in_executor(self._pool, server.handle_embeddings, body), self._id)
        _raise_error(found, self._id)
        rows = sorted(found["data"], key=lambda item: item["index"])
        vectors = np.asarray([row["embedding"] for row in rows], dtype=np.float32)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return Embeddings(vectors, self._id, _usage(found) or Usage())

    async def _fitting(self, text: str) -> str | list[int]:
        """The text, or its first tokens when it is longer than the encoder's context."""
        limit = self._context
        if len(text.encode("utf-8", "replace")) < limit - 2:  # a token takes a byte at least
            return text
        tokens: list[int] = (await self._post("/tokenize", {"content": text, "add_special": True}))["tokens"]
        return text if len(tokens) <= limit else [*tokens[: limit - 1], tokens[-1]]

    async def count_tokens(
        self, messages: Sequence[Message], documents: Sequence[Document] = (), *, model: str = ""
    ) -> TokenCount:
        turns = messages_with_documents(ChatRequest(messages, documents=documents))
        if self._encoder:
            prompt = "\n".join(turn.content for turn in turns)
        else:
            asked = {"messages": [_message(turn) for turn in turns]}
            prompt = (await self._post("/apply-template", asked))["prompt"]
        tokens = await self._post("/tokenize", {"content": prompt, "add_special": True})
        return TokenCount(len(tokens["tokens"]), exact=True)

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        import httpx

        address = self._running().listening_address
        if self._http is None:
            self._http = httpx.AsyncClient(
                base_url=address,
                headers={"Authorization": f"Bearer {self._key}"},
                timeout=30.0,
                trust_env=False,
            )
        try:
            response = await self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise ModelUnavailable(f"llama.cpp: {type(error).__name__}", where=path) from None
        found = response.json()
        _raise_error(found, self._id)
        return found


def _template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the chat template: {error}", where=path) from None


def _schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": dict(schema)}}


def _message(message: Message) -> dict[str, Any]:
    return {"role": str(message.role), "content": message.content}


def _usage(chunk: Mapping[str, Any]) -> Usage | None:
    usage = chunk.get("usage")
    if not isinstance(usage, Mapping):
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return Usage(prompt, completion, usage.get("total_tokens", prompt + completion), cached)


async def _translated(work: asyncio.Future[Any], model: str) -> Any:
    """The outcome of a thread's work, with llama.cpp's exceptions as errors of the tree."""
    try:
        return await work
    except PandacoreError:
        raise
    except ValueError as error:
        raise UnsupportedFeature(
            f"llama.cpp refuses the request: {str(error)[:300]}",
            where=model,
            hint="simplify the schema or grammar",
        ) from None
    except RuntimeError as error:
        raise ModelError(f"llama.cpp failed: {str(error)[:300]}", where=model) from None


def _raise_error(answer: Any, model: str) -> None:
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if error is None:
        return
    if not isinstance(error, Mapping):
        raise ModelError(f"llama.cpp failed: {str(error)[:300]}", where=model)
    message = str(error.get("message"))[:300]
    if error.get("type") == "exceed_context_size_error":
        raise ConfigError(
            f"the prompt is too long: {message}",
            where=model,
            hint="send less, or serve with --option context=N",
        )
    if error.get("code") in (400, 501):
        raise UnsupportedFeature(f"llama.cpp refuses the request: {message}", where=model)
    if error.get("code") == 500:
        raise InvalidOutput(f"llama.cpp cannot read its own output: {message}", where=model, hint="ask again")
    raise ModelUnavailable(f"llama.cpp failed: {message}", where=model)
