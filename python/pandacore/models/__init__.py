"""Models over gRPC: the contract's types, the client, the server and its backends.

Names are loaded on first use, so that importing one does not import gRPC, HTTP and NumPy for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pandacore.models.budget import Reservation, TokenLedger
    from pandacore.models.client import ModelClient, ModelClientConfig
    from pandacore.models.embedders import Embedder, HashingEmbedder, ModelEmbedder
    from pandacore.models.handle import ModelHandle, connect
    from pandacore.models.process import ModelProcess, ServerSpec, spawn
    from pandacore.models.types import (
        ChatDelta,
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
        TokenCount,
        Tool,
        ToolCall,
        Usage,
    )

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "budget": ("Reservation", "TokenLedger"),
    "client": ("ModelClient", "ModelClientConfig"),
    "handle": ("ModelHandle", "connect"),
    "embedders": ("Embedder", "HashingEmbedder", "ModelEmbedder"),
    "process": ("ModelProcess", "ServerSpec", "spawn"),
    "types": (
        "ChatDelta",
        "ChatRequest",
        "ChatResult",
        "Choice",
        "Document",
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
    ),
}
_WHERE: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ChatDelta",
    "ChatRequest",
    "ChatResult",
    "Choice",
    "Document",
    "Embedder",
    "FinishReason",
    "Grammar",
    "HashingEmbedder",
    "JsonObject",
    "JsonSchema",
    "Message",
    "ModelClient",
    "ModelClientConfig",
    "ModelEmbedder",
    "ModelHandle",
    "ModelInfo",
    "ModelProcess",
    "Regex",
    "Reservation",
    "Role",
    "Sampling",
    "ServerSpec",
    "TokenCount",
    "TokenLedger",
    "Tool",
    "ToolCall",
    "Usage",
    "connect",
    "spawn",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
