"""pytest fixtures, with ``pytest_plugins = ["pandacore.testing.fixtures"]``; needs pytest-asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from pandacore.testing.chaos import ChaosModel
from pandacore.testing.scripted import ScriptedModel

__all__ = ["chaos_model", "scripted_model"]


@pytest_asyncio.fixture
async def scripted_model() -> AsyncIterator[Callable[..., Awaitable[ScriptedModel]]]:
    """Start scripted models: ``model = await scripted_model(["an answer"])``. Ended after the test."""
    async with AsyncExitStack() as stack:

        async def start(*arguments: Any, **options: Any) -> ScriptedModel:
            return await stack.enter_async_context(ScriptedModel(*arguments, **options))

        yield start


@pytest_asyncio.fixture
async def chaos_model() -> AsyncIterator[Callable[..., Awaitable[ChaosModel]]]:
    """Start misbehaving models: ``chaos = await chaos_model([Fault.reset()])``. Ended after the test."""
    async with AsyncExitStack() as stack:

        async def start(*arguments: Any) -> ChaosModel:
            return await stack.enter_async_context(ChaosModel(*arguments))

        yield start
