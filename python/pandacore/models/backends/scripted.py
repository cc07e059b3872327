"""A backend that answers from a script: for tests, deterministic, no model.

A script is a callable, a list of answers, or rules. It is no part of any path that users run by accident:
`pandacore.models.connect` (the function) does not know it.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pandacore.errors import ConfigError, ModelError, PandacoreError
from pandacore.models.backends.base import Backend, estimate_tokens
from pandacore.models.types import (
    CONSTRAINTS,
    ChatDelta,
    ChatRequest,
    ChatResult,
    Embeddings,
    FinishReason,
    ModelInfo,
    ToolCall,
    Usage,
)

__all__ = ["Rule", "ScriptedBackend"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Answers a request whose last message matches ``pattern`` (a regular expression, searched)."""

    pattern: str
    answer: Any


class ScriptedBackend(Backend):
    """Answers from ``script``.

    Parameters
    ----------
    script : callable, sequence, or sequence of Rule
        A callable takes the `ChatRequest`, may be async, and gives an answer. A sequence gives its answers in
        order, and a call after the last one fails. Rules are tried in order, and the first that matches
        answers. An answer is a str, a `ChatResult`, a `ToolCall` or several, an exception (raised), or
        anything else that is then sent as JSON.
    delay_s : float
        Seconds that each call takes, spread over the pieces of a stream.
    model : str
        Name of the only model.
    dimension : int
        Dimension of the embeddings; they depend on nothing but the text.
    """

    name: ClassVar[str] = "scripted"

    def __init__(
        self,
        script: Callable[[ChatRequest], Any] | Sequence[Any] = (),
        *,
        delay_s: float = 0.0,
        model: str = "scripted",
        dimension: int = 16,
        concurrency: int = 64,
    ) -> None:
        self._script = script if callable(script) else list(script)
        self._next = 0
        self._delay_s = delay_s
        self._model = model
        self._dimension = dimension
        self.concurrency = concurrency
        self.requests: list[ChatRequest] = []
        """Every request that reached the backend, in order."""
        self.cancelled: list[str] = []
        """Ids of requests that were stopped before their answer was whole."""

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> ScriptedBackend:
        """Read a JSON script: a list of answers, or of ``{"match": regex, "answer": …}`` rules."""
        try:
            script = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"no script: {error}", where=str(path)) from None
        if not isinstance(script, list):
            raise ConfigError("a script is a JSON list", where=str(path))
        rules = [isinstance(item, Mapping) and set(item) == {"match", "answer"} for item in script]
        if rules and all(rules):
            script = [Rule(item["match"], item["answer"]) for item in script]
        return cls(script, **options)

    @classmethod
    def from_name(cls, name: str, **options: Any) -> ScriptedBackend:
        """Import the script ``module:attribute``."""
        module, _, attribute = name.partition(":")
        try:
            script = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"no script {name!r}: {error}", hint="write module:attribute") from None
        return cls(script, **options)

    async def models(self) -> Sequence[ModelInfo]:
        return [
            ModelInfo(
                self._model,
                self.name,
                context_tokens=32_768,
                embeddings=True,
                tools=True,
                structured_output=tuple(CONSTRAINTS.values()),
                embedding_dimension=self._dimension,
            )
        ]

    async def chat(self, request: ChatRequest) -> ChatResult:
        result: ChatResult | None = None
        if not self._delay_s:  # no pieces that somebody would wait for
            self.requests.append(request)
            try:
                return await self._result(request)
            except asyncio.CancelledError:
                self.cancelled.append(request.request_id)
                raise
        async for delta in self.chat_stream(request):
            result = delta.result or result
        assert result is not None
        return result

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        try:
            result = await self._result(request)
            pieces = re.findall(r"\s*\S+|\s+$", result.text)
            for piece in pieces:
                if self._delay_s:
                    await asyncio.sleep(self._delay_s / len(pieces))
                yield ChatDelta(piece, 1)
            if self._delay_s and not pieces:
                await asyncio.sleep(self._delay_s)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.append(request.request_id)
            raise
        yield ChatDelta(result=result)

    async def _result(self, request: ChatRequest) -> ChatResult:
        answer = self._answer(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        match answer:
            case BaseException():
                raise answer
            case type() if issubclass(answer, PandacoreError):
                raise answer("scripted")
            case ChatResult():
                result = answer
            case str():
                result = ChatResult(answer)
            case ToolCall():
                result = ChatResult("", (answer,), FinishReason.TOOL_CALLS)
            case [ToolCall(), *_]:
                result = ChatResult("", tuple(answer), FinishReason.TOOL_CALLS)
            case _:
                result = ChatResult(json.dumps(answer, ensure_ascii=False))
        if not result.usage.total_tokens:
            prompt = estimate_tokens(request.messages, request.documents)
            completion = len(result.text.split())
            result = replace(result, usage=Usage(prompt, completion, prompt + completion))
        return replace(result, model=self._model, request_id=request.request_id)

    def _answer(self, request: ChatRequest) -> Any:
        if callable(self._script):
            return self._script(request)
        if self._script and all(isinstance(item, Rule) for item in self._script):
            text = request.messages[-1].content
            for rule in self._script:
                if re.search(rule.pattern, text):
                    return rule.answer(request) if callable(rule.answer) else rule.answer
            raise ModelError(f"no rule of the script matches {text[:80]!r}", hint="add a rule")
        if self._next >= len(self._script):
            raise ModelError(
                f"the script has {len(self._script)} answers, and this is call {self._next + 1}",
                hint="add an answer",
            )
        self._next += 1
        return self._script[self._next - 1]

    async def embed(self, texts: Sequence[str], *, model: str = "") -> Embeddings:
        rows = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for index, text in enumerate(texts):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            drawn = np.random.default_rng(seed).standard_normal(self._dimension)
            rows[index] = drawn / np.linalg.norm(drawn)
        tokens = sum(len(text.split()) for text in texts)
        return Embeddings(rows, self._model, Usage(tokens, 0, tokens))
