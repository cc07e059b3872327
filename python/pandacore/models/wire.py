"""Translation between `pandacore.models.types` and the protobuf messages; no policy, no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pandacore.errors import InvalidOutput, ProtocolError
from pandacore.models.strict_json import parse_strict
from pandacore.models.types import (
    ChatRequest,
    ChatResult,
    Choice,
    Document,
    FinishReason,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    ModelInfo,
    Regex,
    Role,
    Sampling,
    Tool,
    ToolCall,
    Usage,
)
from pandacore.rpc.v1 import model_pb2 as pb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "documents_from_pb",
    "documents_to_pb",
    "finish_from_pb",
    "finish_to_pb",
    "info_from_pb",
    "info_to_pb",
    "messages_from_pb",
    "messages_to_pb",
    "request_from_pb",
    "request_to_pb",
    "result_to_pb",
    "tool_calls_from_pb",
    "tool_calls_to_pb",
    "usage_from_pb",
    "usage_to_pb",
    "vectors_from_bytes",
    "vectors_to_bytes",
]

_ROLES: Final[Mapping[Role, pb.Role]] = {
    Role.SYSTEM: pb.ROLE_SYSTEM,
    Role.USER: pb.ROLE_USER,
    Role.ASSISTANT: pb.ROLE_ASSISTANT,
    Role.TOOL: pb.ROLE_TOOL,
}
_ROLES_BACK: Final = {value: key for key, value in _ROLES.items()}
_FINISH: Final[Mapping[FinishReason, pb.FinishReason]] = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.TOOL_CALLS: pb.FINISH_REASON_TOOL_CALLS,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
}
_FINISH_BACK: Final = {value: key for key, value in _FINISH.items()}
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


_NO_WISHES: Final = Sampling()


def finish_to_pb(reason: FinishReason) -> pb.FinishReason:
    """The wire value of a finish reason."""
    return _FINISH[reason]


def finish_from_pb(reason: int) -> FinishReason | None:
    """The finish reason, or None when the peer gave none that is known: the answer then counts as cut."""
    return _FINISH_BACK.get(reason)  # type: ignore[call-overload, no-any-return]


def tool_calls_to_pb(calls: Iterable[ToolCall]) -> list[pb.ToolCall]:
    """Wire form of tool calls; the arguments travel as JSON."""
    return [
        pb.ToolCall(id=call.id, name=call.name, arguments_json=json.dumps(call.arguments, ensure_ascii=False))
        for call in calls
    ]


def tool_calls_from_pb(calls: Iterable[pb.ToolCall]) -> tuple[ToolCall, ...]:
    """Tool calls with parsed arguments.

    Raises
    ------
    InvalidOutput
        Arguments that are not one JSON object; never replaced by an empty one.
    """
    found = []
    for call in calls:
        arguments = parse_strict(call.arguments_json, where=f"arguments of tool call {call.name!r}")
        if not isinstance(arguments, dict):
            raise InvalidOutput(
                f"the arguments are a JSON {type(arguments).__name__}, not an object",
                where=f"arguments of tool call {call.name!r}",
                hint="ask the model again",
            )
        found.append(ToolCall(call.id, call.name, arguments))
    return tuple(found)


def messages_to_pb(messages: Iterable[Message]) -> list[pb.Message]:
    """Wire form of a conversation."""
    return [
        pb.Message(
            role=_ROLES[message.role],
            content=message.content,
            tool_calls=tool_calls_to_pb(message.tool_calls) if message.tool_calls else None,
            tool_call_id=message.tool_call_id,
            name=message.name,
        )
        for message in messages
    ]


def messages_from_pb(messages: Iterable[pb.Message]) -> tuple[Message, ...]:
    """A conversation from the wire; an unknown role is refused."""
    found = []
    for index, message in enumerate(messages):
        role = _ROLES_BACK.get(message.role)
        if role is None:
            raise ProtocolError(f"unknown role {message.role}", where=f"messages[{index}].role")
        found.append(
            Message(
                role,
                message.content,
                tool_calls_from_pb(message.tool_calls),
                message.tool_call_id or None,
                message.name or None,
            )
        )
    return tuple(found)


def documents_to_pb(documents: Iterable[Document]) -> list[pb.Document]:
    return [pb.Document(id=item.id, title=item.title, sentences=item.sentences) for item in documents]


def documents_from_pb(documents: Iterable[pb.Document]) -> tuple[Document, ...]:
    """Documents from the wire."""
    return tuple(Document(item.id, item.title, tuple(item.sentences)) for item in documents)


def request_to_pb(request: ChatRequest) -> pb.ChatRequest:
    """Wire form of a request."""
    wire = pb.ChatRequest(
        request_id=request.request_id,
        model=request.model,
        messages=messages_to_pb(request.messages),
        tool_choice=request.tool_choice,
        stopping=pb.Stopping(max_tokens=request.max_tokens, stop=request.stop),
    )
    if request.sampling != _NO_WISHES:
        for name in _SAMPLING:
            if (value := getattr(request.sampling, name)) is not None:
                setattr(wire.sampling, name, value)
    for tool in request.tools:
        wire.tools.add(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=json.dumps(dict(tool.parameters), ensure_ascii=False),
        )
    if request.documents:
        wire.documents.extend(documents_to_pb(request.documents))
    if request.metadata:
        wire.metadata.update(request.metadata)
    match request.output:
        case JsonSchema(schema):
            wire.structured_output.json_schema = json.dumps(dict(schema), ensure_ascii=False)
        case JsonObject():
            wire.structured_output.json_object = True
        case Regex(pattern):
            wire.structured_output.regex = pattern
        case Grammar(gbnf):
            wire.structured_output.grammar = gbnf
        case Choice(options):
            wire.structured_output.choice.options.extend(options)
        case None:
            pass
    return wire


def request_from_pb(wire: pb.ChatRequest) -> ChatRequest:
    """A request from the wire.

    Raises
    ------
    ProtocolError, ConfigError, InvalidOutput
        Something in it is not allowed; the message says where.
    """
    sampling = {name: getattr(wire.sampling, name) for name in _SAMPLING if wire.sampling.HasField(name)}
    return ChatRequest(
        messages_from_pb(wire.messages),
        model=wire.model,
        tools=tuple(
            Tool(
                tool.name,
                tool.description,
                _schema(tool.parameters_json_schema or "{}", f"tools[{i}].parameters"),
            )
            for i, tool in enumerate(wire.tools)
        ),
        tool_choice=wire.tool_choice or "auto",
        sampling=Sampling(**sampling),
        max_tokens=wire.stopping.max_tokens if wire.stopping.HasField("max_tokens") else None,
        stop=tuple(wire.stopping.stop),
        output=_output(wire.structured_output),
        documents=documents_from_pb(wire.documents),
        metadata=MappingProxyType(dict(wire.metadata)),
        request_id=wire.request_id,
    )


def _output(wire: pb.StructuredOutput) -> JsonSchema | JsonObject | Regex | Grammar | Choice | None:
    match wire.WhichOneof("constraint"):
        case "json_schema":
            return JsonSchema(_schema(wire.json_schema, "structured_output.json_schema"))
        case "json_object":
            return JsonObject() if wire.json_object else None
        case "regex":
            return Regex(wire.regex)
        case "grammar":
            return Grammar(wire.grammar)
        case "choice":
            return Choice(tuple(wire.choice.options))
        case _:
            return None


def _schema(text: str, where: str) -> dict[str, Any]:
    try:
        schema = parse_strict(text, where=where)
    except InvalidOutput as error:
        raise ProtocolError(f"the schema is not JSON: {error.message}", where=where) from None
    if not isinstance(schema, dict):
        raise ProtocolError("the schema is not a JSON object", where=where)
    return schema


def usage_to_pb(usage: Usage) -> pb.Usage:
    """Wire form of a usage."""
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens or usage.prompt_tokens + usage.completion_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost=usage.cost,
    )


def usage_from_pb(usage: pb.Usage) -> Usage:
    """A usage from the wire."""
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        usage.cached_prompt_tokens,
        usage.reasoning_tokens,
        usage.cost,
    )


def result_to_pb(result: ChatResult, request_id: str) -> pb.ChatResponse:
    """Wire form of a whole answer."""
    return pb.ChatResponse(
        request_id=request_id,
        model=result.model,
        text=result.text,
        tool_calls=tool_calls_to_pb(result.tool_calls),
        finish_reason=finish_to_pb(result.finish_reason),
        usage=usage_to_pb(result.usage),
    )


def info_to_pb(info: ModelInfo) -> pb.ModelInfo:
    """Wire form of what a model can do."""
    return pb.ModelInfo(
        id=info.id,
        backend=info.backend,
        context_tokens=info.context_tokens,
        chat=info.chat,
        embeddings=info.embeddings,
        tools=info.tools,
        structured_output=info.structured_output,
        embedding_dimension=info.embedding_dimension,
        generative=info.generative,
    )


def info_from_pb(info: pb.ModelInfo) -> ModelInfo:
    """What a model can do, from the wire."""
    return ModelInfo(
        info.id,
        info.backend,
        info.context_tokens,
        info.chat,
        info.embeddings,
        info.tools,
        tuple(info.structured_output),
        info.embedding_dimension,
        info.generative,
    )


def vectors_to_bytes(vectors: NDArray[np.float32]) -> bytes:
    """Row-major little-endian float32."""
    import numpy as np  # only now: it would be a third of a model server's start

    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def vectors_from_bytes(data: bytes, count: int, dimension: int) -> NDArray[np.float32]:
    """The array of shape (count, dimension).

    Raises
    ------
    ProtocolError
        The length does not fit the shape, or a value is not finite.
    """
    if len(data) != 4 * count * dimension:
        raise ProtocolError(
            f"{len(data)} bytes are no {count} vectors of dimension {dimension}",
            where="EmbedResponse.vectors",
        )
    import numpy as np

    vectors = np.frombuffer(data, dtype="<f4").reshape(count, dimension).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ProtocolError("an embedding has values that are not finite", where="EmbedResponse.vectors")
    return vectors
