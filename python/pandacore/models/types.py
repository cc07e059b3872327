"""What is said to a model and what it answers: plain frozen data, no I/O.

These are the Python faces of ``proto/pandacore/rpc/v1/model.proto``; `pandacore.models.wire` translates.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from pandacore.errors import ConfigError

__all__ = [
    "CONSTRAINTS",
    "ChatDelta",
    "ChatRequest",
    "ChatResult",
    "Choice",
    "Document",
    "Embeddings",
    "FinishReason",
    "Grammar",
    "JsonObject",
    "JsonSchema",
    "Message",
    "ModelInfo",
    "Regex",
    "Role",
    "Sampling",
    "TokenCount",
    "Tool",
    "ToolCall",
    "Usage",
    "constraint_name",
]


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class FinishReason(StrEnum):
    """Why the model stopped. Anything but ``STOP`` and ``TOOL_CALLS`` means that the output is not whole."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model's wish to call a tool; ``arguments`` is a whole, parsed JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Parameters
    ----------
    role : Role or str
    content : str
    tool_calls : sequence of ToolCall
        Only with role ``assistant``.
    tool_call_id : str, optional
        With role ``tool``: the call that this message answers.
    name : str, optional
        Who speaks, where several speakers share a role.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "role", Role(self.role))
        except ValueError:
            roles = ", ".join(Role)
            raise ConfigError(f"unknown role {self.role!r}", hint=f"use one of {roles}") from None
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))

    @classmethod
    def system(cls, content: str) -> Message:
        """An instruction to the model."""
        return cls(Role.SYSTEM, content)

    @classmethod
    def user(cls, content: str) -> Message:
        """What the user says."""
        return cls(Role.USER, content)

    @classmethod
    def assistant(cls, content: str, tool_calls: Sequence[ToolCall] = ()) -> Message:
        """What the model said earlier."""
        return cls(Role.ASSISTANT, content, tuple(tool_calls))

    @classmethod
    def tool(cls, content: str, *, call: ToolCall) -> Message:
        """A tool's answer to ``call``."""
        return cls(Role.TOOL, content, tool_call_id=call.id, name=call.name)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may ask for; ``parameters`` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """A passage that the answer should rest on, already cut into sentences."""

    id: str
    title: str
    sentences: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.sentences, str):
            raise ConfigError(
                "sentences is a str; its characters would count as sentences",
                where=f"document {self.id!r}",
                hint="pass a tuple of sentences",
            )
        object.__setattr__(self, "sentences", tuple(self.sentences))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. None means the backend's own default, and 0 means 0."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is one JSON value that satisfies ``schema`` (draft 2020-12)."""

    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The output is one JSON object, of any shape."""


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole output matches ``pattern``."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output is a sentence of a GBNF grammar."""

    gbnf: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The output is one of ``options``."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise ConfigError("a choice without options", hint="give at least one option")


CONSTRAINTS: Final[Mapping[type, str]] = MappingProxyType(
    {
        JsonSchema: "json_schema",
        JsonObject: "json_object",
        Regex: "regex",
        Grammar: "grammar",
        Choice: "choice",
    }
)
"""Constraint class to the name under which a backend advertises it (`ModelInfo.structured_output`)."""


def constraint_name(output: JsonSchema | JsonObject | Regex | Grammar | Choice) -> str:
    """The advertised name of an output constraint, such as ``json_schema``."""
    return CONSTRAINTS[type(output)]


def _new_request_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question to a model. Sequences are kept as tuples.

    Parameters
    ----------
    messages : sequence of Message
        At least one.
    model : str
        Name at the server; empty for the server's default.
    tools : sequence of Tool
    tool_choice : str
        ``auto``, ``none``, ``required`` or the name of one tool.
    sampling : Sampling
    max_tokens : int, optional
        Most tokens to generate; at least 1.
    stop : sequence of str
        Texts that end the output; they are not part of it.
    output : constraint, optional
        What shape the output must have. A backend that cannot honour it refuses.
    documents : sequence of Document
        Passages to rest on. Backends without a notion of documents render them into the prompt.
    metadata : mapping of str to str
        ``task`` names the job for backends that are no general model; see docs/models.md.
    request_id : str
        Made up when not given. A retry carries the same id.
    """

    messages: Sequence[Message]
    model: str = field(default="", kw_only=True)
    tools: Sequence[Tool] = field(default=(), kw_only=True)
    tool_choice: str = field(default="auto", kw_only=True)
    sampling: Sampling = field(default=Sampling(), kw_only=True)
    max_tokens: int | None = field(default=None, kw_only=True)
    stop: Sequence[str] = field(default=(), kw_only=True)
    output: JsonSchema | JsonObject | Regex | Grammar | Choice | None = field(default=None, kw_only=True)
    documents: Sequence[Document] = field(default=(), kw_only=True)
    metadata: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    request_id: str = field(default_factory=_new_request_id, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("messages", "tools", "stop", "documents"):
            value = getattr(self, name)
            if type(value) is tuple:
                continue
            if isinstance(value, str):
                raise ConfigError(f"{name} is a str, not a sequence", where=f"ChatRequest.{name}")
            object.__setattr__(self, name, tuple(value))
        if not self.messages:
            raise ConfigError("no message", where="ChatRequest.messages", hint="give at least one message")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(
                f"max_tokens is {self.max_tokens}", where="ChatRequest.max_tokens", hint="use 1 or more"
            )
        names = [tool.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise ConfigError("two tools share a name", where="ChatRequest.tools", hint="rename one of them")
        if self.tool_choice not in ("auto", "none", "required", *names):
            raise ConfigError(
                f"tool_choice {self.tool_choice!r} is none of the tools",
                where="ChatRequest.tool_choice",
                hint="use auto, none, required or the name of a tool of the request",
            )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. ``total_tokens`` is prompt and completion together; ``cost`` is in the currency of
    ``Budget.prices``, 0 where no prices are known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.cached_prompt_tokens + other.cached_prompt_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A model's whole answer.

    ``value`` is the parsed and validated JSON when the output was constrained to JSON, else None.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    model: str = ""
    request_id: str = ""
    value: Any = None


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """A piece of an answer while it is made. Only the last one has ``result``, and it has no text."""

    text: str = ""
    tokens: int = 0
    result: ChatResult | None = None


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of a prompt; ``exact`` is False when the backend has no tokeniser at hand and estimated."""

    tokens: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Embeddings:
    """``vectors`` is float32, shape (texts, dimension), rows of length 1."""

    vectors: Any
    model: str
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server can do with one model.

    ``structured_output`` holds names of `CONSTRAINTS`. ``generative`` is False for a backend that can only
    quote what it was given. ``context_tokens`` and ``embedding_dimension`` are 0 when unknown.
    """

    id: str
    backend: str
    context_tokens: int = 0
    chat: bool = True
    embeddings: bool = False
    tools: bool = False
    structured_output: tuple[str, ...] = ()
    embedding_dimension: int = 0
    generative: bool = True
