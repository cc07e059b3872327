"""The agents and the model of ``pandacore bench orchestration``, for host processes to import."""

from __future__ import annotations

import os

from pandacore.agent import AgentContext, agent
from pandacore.models.types import ChatRequest, Message
from pandacore.task import Task

__all__ = ["answer", "asking", "exposed", "plain"]


def answer(request: ChatRequest) -> str:
    """The script of a model that takes no time."""
    return "done"


@agent(capabilities=["bench.ask"], queue_limit=256)
async def asking(task: Task, ctx: AgentContext) -> str:
    """Ask the model once, over gRPC."""
    result = await ctx.model.chat(ChatRequest([Message.user(task.text)]))
    return result.text


@agent(capabilities=["bench.exposed"])
async def exposed(task: Task, ctx: AgentContext) -> str:
    """Say in which process this is, for whoever wants to kill it, and ask the model."""
    ctx.progress(str(os.getpid()))
    return await asking(task, ctx)


@agent(capabilities=["bench.plain"], queue_limit=256)
async def plain(task: Task) -> str:
    """Answer at once, without a model."""
    return task.text
