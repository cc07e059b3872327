"""A real `ModelService` on loopback that answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from pandacore.errors import StateError
from pandacore.models.backends.scripted import Rule, ScriptedBackend
from pandacore.models.client import ModelClient, ModelClientConfig
from pandacore.models.limits import forget_endpoint
from pandacore.models.server import ModelServer
from pandacore.models.types import ChatRequest

__all__ = ["Rule", "ScriptedModel"]


class ScriptedModel:
    """Serve a script over gRPC on a loopback port; an async context manager.

    The server runs on the caller's event loop, so that a script may close over the test's own objects. That
    is for tests only: real models run in processes of their own.

    Parameters
    ----------
    script : callable, sequence, or sequence of Rule
        As for `ScriptedBackend`.
    delay_s : float
        Seconds that each call takes.
    concurrency, waiting : int
        Calls that run at once, and that may wait.
    config : ModelClientConfig, optional
        For `client`.

    Examples
    --------
    >>> import asyncio
    >>> from pandacore.models import ChatRequest, Message
    >>> async def ask():
    ...     async with ScriptedModel(["Paris"]) as model:
    ...         return (await model.client.chat(ChatRequest([Message.user("Capital of France?")]))).text
    >>> asyncio.run(ask())
    'Paris'
    """

    def __init__(
        self,
        script: Callable[[ChatRequest], Any] | Sequence[Any] = (),
        *,
        delay_s: float = 0.0,
        model: str = "scripted",
        concurrency: int = 64,
        waiting: int = 256,
        config: ModelClientConfig | None = None,
    ) -> None:
        self.backend = ScriptedBackend(script, delay_s=delay_s, model=model, concurrency=concurrency)
        self._server = ModelServer(self.backend, concurrency=concurrency, waiting=waiting)
        self._config = config
        self._client: ModelClient | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the server."""
        return self._server.address

    @property
    def spec(self) -> str:
        """What `pandacore.models.connect` takes to reach it."""
        return f"grpc://{self.address}"

    @property
    def client(self) -> ModelClient:
        """A client to it; closed together with the server."""
        if self._client is None:
            raise StateError("the scripted model is not started", hint="use `async with ScriptedModel(...)`")
        return self._client

    @property
    def calls(self) -> int:
        """Chat requests that reached the script."""
        return len(self.backend.requests)

    @property
    def requests(self) -> list[ChatRequest]:
        """These requests, in order."""
        return self.backend.requests

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._client = ModelClient(self.address, config=self._config)
        return self

    async def __aexit__(self, *_: object) -> None:
        address = self._server.address
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        await self._server.stop(0.2)
        forget_endpoint(address)
