"""From a short text to a model that can be asked: ``connect("extractive")``, ``connect("llama:NAME")``."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Final, Self

from pandacore.config import Secret
from pandacore.errors import ConfigError, StateError
from pandacore.models.client import ModelClient, ModelClientConfig
from pandacore.models.process import ModelProcess, ServerSpec, spawn
from pandacore.names import suggestions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["ModelHandle", "connect"]

_ADDRESS: Final = re.compile(
    r"(?:grpc://)?(?P<target>(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+):\d{1,5})(?:/(?P<model>.+))?"
)
_FORMS: Final = "extractive, llama:NAME_OR_PATH, openai:MODEL, or grpc://HOST:PORT[/MODEL]"


class ModelHandle:
    """A model server that may have to be started, and the client to it.

    Made by `connect`; an async context manager. What it started it also stops; a client or server that was
    there before is left as it was.
    """

    def __init__(
        self,
        spec: str,
        *,
        server: ServerSpec | None = None,
        client: ModelClient | None = None,
        target: str = "",
        model: str = "",
        config: ModelClientConfig | None = None,
        env: Mapping[str, str] | None = None,
        deadline_s: float = 120.0,
    ) -> None:
        self.spec = spec
        self._server = server
        self._client = client
        self._own_client = client is None
        self._target = target
        self._model = model
        self._config = config
        self._env = env
        self._deadline_s = deadline_s
        self._process: ModelProcess | None = None
        self._closed = False
        self._starting = asyncio.Lock()

    @property
    def client(self) -> ModelClient:
        """The client.

        Raises
        ------
        StateError
            Not started yet, or closed.
        """
        if self._client is None or self._closed:
            state = "closed" if self._closed else "not started"
            raise StateError(
                f"the model {self.spec} is {state}", hint="use `async with connect(...) as model`"
            )
        return self._client

    @property
    def process(self) -> ModelProcess | None:
        """The server that was started for this handle; None if it was there before."""
        return self._process

    async def start(self) -> Self:
        """Start the server if there is one to start; does nothing when started."""
        async with self._starting:
            if self._closed:
                raise StateError(f"the model {self.spec} is closed", hint="connect again")
            if self._client is None:
                if self._server is not None:
                    env = None if self._env is None else {**os.environ, **self._env}
                    self._process = await _spawned(self._server, self._deadline_s, env)
                    self._target = self._process.address
                self._client = ModelClient(self._target, model=self._model, config=self._config)
        return self

    async def aclose(self) -> None:
        """Close the client and end the server, if they are this handle's own. Safe to call twice."""
        self._closed = True
        client, self._client = self._client, None
        process, self._process = self._process, None
        try:
            if client is not None and self._own_client:
                await client.aclose()
        finally:
            if process is not None:
                await process.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._client is not None else "not started"
        return f"<ModelHandle {self.spec} {state}>"


async def _spawned(spec: ServerSpec, deadline_s: float, env: Mapping[str, str] | None) -> ModelProcess:
    """`spawn` in a thread; a caller that is cancelled meanwhile leaves no server behind."""
    task = asyncio.ensure_future(asyncio.to_thread(spawn, spec, deadline_s=deadline_s, env=env))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: None if done.exception() else done.result().close(grace_s=0.5))
        raise


def connect(
    model: str | ModelClient | ModelHandle,
    *,
    config: ModelClientConfig | None = None,
    base_url: str | None = None,
    api_key: Secret | None = None,
    options: Mapping[str, str] | None = None,
    concurrency: int | None = None,
    deadline_s: float = 120.0,
) -> ModelHandle:
    """Describe the way to a model; nothing is started until the handle is entered.

    Parameters
    ----------
    model : str, ModelClient or ModelHandle
        ``extractive``: no weights, quotes the documents of the request. ``llama:NAME_OR_PATH``: a GGUF file
        or a name of the catalogue, run in a child process (extra ``[local]``). ``openai:MODEL``: any
        OpenAI-compatible HTTP server. ``grpc://host:port[/model]`` or ``host:port``: a running
        ``pandacore model serve``. A handle is returned as it is.
    config : ModelClientConfig, optional
    base_url, api_key : optional
        For ``openai:``; otherwise taken from ``PANDACORE__MODEL__BASE_URL`` / ``_API_KEY`` (also with
        ``_FILE``), then from ``OPENAI_BASE_URL`` / ``OPENAI_API_KEY`` (also with ``_FILE``).
    options : mapping of str to str, optional
        Further settings of the backend; see docs/models.md.
    concurrency : int, optional
        Calls that the started server runs at once.
    deadline_s : float
        Seconds that the started server may take to get ready.

    Raises
    ------
    ConfigError
        The text has none of these forms.

    Examples
    --------
    >>> connect("extractive")
    <ModelHandle extractive not started>
    """
    if isinstance(model, ModelHandle):
        return model
    if isinstance(model, ModelClient):
        return ModelHandle(repr(model), client=model)
    text = model.strip()
    backend, _, name = text.partition(":")
    if backend in ("extractive", "llama", "openai") and not _is_port(backend, name):
        if backend == "extractive" and name:
            raise ConfigError(
                f"extractive takes no model, got {name!r}", where="model", hint="write extractive"
            )
        if backend == "llama" and not name:
            raise ConfigError("no model named", where="model", hint="write llama:NAME_OR_PATH")
        env: dict[str, str] = {}
        if base_url is not None:
            env["PANDACORE__MODEL__BASE_URL"] = base_url
        if api_key is not None:
            env["PANDACORE__MODEL__API_KEY"] = api_key.reveal()
        server = ServerSpec(backend, name or None, dict(options or {}), concurrency)
        return ModelHandle(text, server=server, config=config, env=env or None, deadline_s=deadline_s)
    match = _ADDRESS.fullmatch(text)
    if match:
        return ModelHandle(text, target=match["target"], model=match["model"] or "", config=config)
    close = suggestions(backend, ("extractive", "llama", "openai", "grpc"), 1)
    raise ConfigError(
        f"{text[:80]!r} names no model",
        where="model",
        hint=f"did you mean {close[0]!r}? Forms: {_FORMS}" if close else f"use {_FORMS}",
    )


def _is_port(host: str, rest: str) -> bool:
    """``llama:50051`` is an address only if nobody would call a model so; a number alone is a port."""
    return rest.isdigit() and host not in ("llama", "openai")
