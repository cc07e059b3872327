"""Shared by the model tests: the HTTP path from a client through our server to a misbehaving one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from pandacore.config import Secret
from pandacore.models.backends.openai import OpenAIBackend, OpenAIOptions
from pandacore.models.client import ModelClient, ModelClientConfig
from pandacore.models.limits import forget_endpoint
from pandacore.models.server import ModelServer
from pandacore.testing import ChaosModel


@asynccontextmanager
async def _http_path(
    chaos: ChaosModel,
    *,
    config: ModelClientConfig | None = None,
    api_key: Secret | None = None,
    options: OpenAIOptions | None = None,
) -> AsyncIterator[ModelClient]:
    """A client whose calls go over gRPC to our server and from there over HTTP to ``chaos``."""
    backend = OpenAIBackend("chaos", base_url=chaos.base_url, api_key=api_key, options=options)
    async with ModelServer(backend) as server:
        async with ModelClient(server.address, config=config) as client:
            yield client
        forget_endpoint(server.address)


@pytest.fixture
def http_path() -> Callable[..., AbstractAsyncContextManager[ModelClient]]:
    """Give a function that opens a client of our server in front of a `ChaosModel`'s HTTP side."""
    return _http_path


@pytest.fixture
def no_leaked_tasks() -> Callable[[], Awaitable[None]]:
    """Give a function that fails when tasks beyond the current one are still there."""

    async def check(deadline_s: float = 2.0) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline_s
        while True:
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if not left or loop.time() > until:
                assert not left, left
                return
            await asyncio.sleep(0.01)

    return check
