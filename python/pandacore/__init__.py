"""Decentralised collectives of LLM agents, with a Rust core.

Names are loaded when first used, so that ``import pandacore`` stays fast.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# Eager, and light: `pandacore.agent` is the decorator, and would be the module if that were loaded later.
from pandacore.agent import Agent, AgentContext, agent

# gRPC's handlers would start its threads again in the child of a fork, where the streams of asyncio are not
# supported and crash it. Read when gRPC is loaded; our own objects refuse a child by ForkError.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if TYPE_CHECKING:
    from pandacore.broker import SemanticIndex
    from pandacore.collective import Collective
    from pandacore.errors import InputRequired, PandacoreError
    from pandacore.journal import Journal
    from pandacore.models.client import ModelClient
    from pandacore.models.types import ChatRequest, Document, Message, Usage
    from pandacore.patterns.base import Contract, Machine
    from pandacore.plan import Plan, Subtask
    from pandacore.probing import Probing
    from pandacore.registry import Registry, Team, TeamSpec
    from pandacore.sync import SyncCollective
    from pandacore.task import (
        Budget,
        Event,
        Failure,
        PatternNote,
        PlanReady,
        Question,
        QuestionAnswered,
        QuestionAsked,
        Result,
        RunFinished,
        RunStarted,
        Status,
        SubtaskCompleted,
        SubtaskFailed,
        SubtaskProgress,
        SubtaskStarted,
        Task,
        TeamFormed,
    )
    from pandacore.team.contract import postcondition
    from pandacore.trust import KeyPair

__all__ = [
    "Agent",
    "AgentContext",
    "Budget",
    "ChatRequest",
    "Collective",
    "Contract",
    "Document",
    "Event",
    "Failure",
    "InputRequired",
    "Journal",
    "KeyPair",
    "Machine",
    "Message",
    "ModelClient",
    "PandacoreError",
    "PatternNote",
    "Plan",
    "PlanReady",
    "Probing",
    "Question",
    "QuestionAnswered",
    "QuestionAsked",
    "Registry",
    "Result",
    "RunFinished",
    "RunStarted",
    "SemanticIndex",
    "Status",
    "Subtask",
    "SubtaskCompleted",
    "SubtaskFailed",
    "SubtaskProgress",
    "SubtaskStarted",
    "SyncCollective",
    "Task",
    "Team",
    "TeamFormed",
    "TeamSpec",
    "Usage",
    "__version__",
    "agent",
    "postcondition",
]

_HOME = {
    "pandacore.broker": ("SemanticIndex",),
    "pandacore.collective": ("Collective",),
    "pandacore.errors": ("InputRequired", "PandacoreError"),
    "pandacore.models.client": ("ModelClient",),
    "pandacore.models.types": ("ChatRequest", "Document", "Message", "Usage"),
    "pandacore.journal": ("Journal",),
    "pandacore.patterns.base": ("Contract", "Machine"),
    "pandacore.plan": ("Plan", "Subtask"),
    "pandacore.probing": ("Probing",),
    "pandacore.registry": ("Registry", "Team", "TeamSpec"),
    "pandacore.sync": ("SyncCollective",),
    "pandacore.task": (
        "Budget",
        "Event",
        "Failure",
        "PatternNote",
        "PlanReady",
        "Question",
        "QuestionAnswered",
        "QuestionAsked",
        "Result",
        "RunFinished",
        "RunStarted",
        "Status",
        "SubtaskCompleted",
        "SubtaskFailed",
        "SubtaskProgress",
        "SubtaskStarted",
        "Task",
        "TeamFormed",
    ),
    "pandacore.team.contract": ("postcondition",),
    "pandacore.trust": ("KeyPair",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from pandacore._core import __version__

        return __version__
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'pandacore' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
