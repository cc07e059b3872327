"""Tool calls for models whose own chat template cannot be trusted with them.

The tools go into the system message, and the answer is constrained to a JSON object that is either a call
or a plain answer. This works with any model that can be constrained; some published templates describe tool
calls with broken JSON, which small models then copy.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from pandacore.errors import InvalidOutput
from pandacore.models.strict_json import parse_output
from pandacore.models.types import Message, Role, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pandacore.models.types import ChatRequest, Tool

__all__ = ["offers_tools", "parse_answer", "tool_messages", "tool_schema"]


def offers_tools(request: ChatRequest) -> bool:
    """Whether the model may call a tool."""
    return bool(request.tools) and request.tool_choice != "none"


def _offered(request: ChatRequest) -> Sequence[Tool]:
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return [tool for tool in request.tools if tool.name == request.tool_choice]


def tool_schema(request: ChatRequest) -> dict[str, Any]:
    """The JSON Schema of an answer: one of the calls, or with ``auto`` a text."""
    options: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {
                "tool": {"const": tool.name},
                "arguments": dict(tool.parameters) or {"type": "object"},
            },
            "required": ["tool", "arguments"],
            "additionalProperties": False,
        }
        for tool in _offered(request)
    ]
    if request.tool_choice == "auto":
        options.append(
            {
                "type": "object",
                "properties": {"answer": {"type": "string"}},
                "required": ["answer"],
                "additionalProperties": False,
            }
        )
    return options[0] if len(options) == 1 else {"anyOf": options}


def tool_messages(request: ChatRequest, messages: Sequence[Message]) -> list[Message]:
    """The conversation with the tools explained, and earlier calls and results written as plain turns."""
    lines = ["You can call these tools:"]
    for tool in _offered(request):
        parameters = json.dumps(dict(tool.parameters), ensure_ascii=False)
        lines.append(f"- {tool.name}: {tool.description} Arguments (JSON Schema): {parameters}")
    lines.append('To call a tool, answer with {"tool": NAME, "arguments": {…}}.')
    if request.tool_choice == "auto":
        lines.append('If no tool is needed, answer with {"answer": TEXT}.')
    manual = "\n".join(lines)
    found: list[Message] = []
    for message in messages:
        if message.tool_calls:
            calls = [{"tool": c.name, "arguments": dict(c.arguments)} for c in message.tool_calls]
            text = "\n".join(json.dumps(call, ensure_ascii=False) for call in calls)
            found.append(Message.assistant(f"{message.content}\n{text}".strip()))
        elif message.role is Role.TOOL:
            found.append(Message.user(f"Result of {message.name or message.tool_call_id}: {message.content}"))
        else:
            found.append(message)
    if found[0].role is Role.SYSTEM:
        found[0] = Message.system(f"{found[0].content}\n\n{manual}")
    else:
        found.insert(0, Message.system(manual))
    return found


def parse_answer(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """(answer, calls): exactly one of them is filled.

    Raises
    ------
    InvalidOutput
        The text is neither a call nor an answer.
    """
    value = parse_output(text, where="tool call")
    match value:
        case {"tool": str(name), "arguments": dict(arguments)}:
            return "", (ToolCall(f"call_{uuid.uuid4().hex[:12]}", name, arguments),)
        case {"answer": str(answer)}:
            return answer, ()
    raise InvalidOutput("neither a tool call nor an answer", where="tool call", hint="ask again")
