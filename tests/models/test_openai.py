"""The OpenAI-compatible backend: what it sends, what it understands, and what it never shows."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import string
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from pandacore.config import Secret
from pandacore.errors import (
    AuthenticationFailed,
    ConfigError,
    InvalidOutput,
    ModelError,
    ModelNotFound,
    ModelUnavailable,
    PandacoreError,
    PayloadTooLarge,
    Truncated,
    UnsupportedFeature,
)
from pandacore.models import (
    ChatRequest,
    Choice,
    Document,
    JsonSchema,
    Message,
    ModelClient,
    ModelClientConfig,
    Regex,
    Sampling,
    Tool,
    ToolCall,
    connect,
)
from pandacore.models.backends.openai import OpenAIBackend, OpenAIOptions, retry_after
from pandacore.models.server import ModelServer
from pandacore.testing import ChaosModel, Fault

HttpPath = Callable[..., AbstractAsyncContextManager[ModelClient]]
ONCE = ModelClientConfig(max_retries=0)


def ask(text: str = "hello", **options: Any) -> ChatRequest:
    return ChatRequest([Message.user(text)], **options)


async def test_request_is_written_as_the_protocol_wants(http_path: HttpPath) -> None:
    call = ToolCall("c1", "lookup", {"q": "é"})
    tool = Tool("lookup", "Looks up.", {"type": "object", "properties": {"q": {"type": "string"}}})
    request = ChatRequest(
        [
            Message.system("Be brief."),
            Message.user("Where?"),
            Message.assistant("", [call]),
            Message.tool("There.", call=call),
        ],
        tools=[tool],
        tool_choice="lookup",
        sampling=Sampling(temperature=0.0, top_p=0.5, seed=3),
        max_tokens=9,
        stop=["."],
        documents=[Document("d", "Title", ("One.",))],
    )
    async with (
        ChaosModel([Fault.tool_call("lookup", '{"q": "x"}')]) as chaos,
        http_path(chaos, api_key=Secret("sk-test-key-123")) as client,
    ):
        result = await client.chat(request)
        headers, body = chaos.requests[0]
    assert headers["authorization"] == "Bearer sk-test-key-123"
    assert body["model"] == "chaos"
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][1]["content"] == "Passages:\n\n[1] Title\n(1.0) One.\n\nWhere?"
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "lookup", "arguments": '{"q": "é"}'}
    assert body["messages"][3]["tool_call_id"] == "c1"
    assert body["tools"][0]["function"]["parameters"] == dict(tool.parameters)
    assert body["tool_choice"] == {"type": "function", "function": {"name": "lookup"}}
    assert (body["max_tokens"], body["stop"], body["temperature"], body["seed"]) == (9, ["."], 0.0, 3)
    assert "top_k" not in body
    assert result.tool_calls == (ToolCall("call_1", "lookup", {"q": "x"}),)
    assert (result.usage.prompt_tokens, result.usage.total_tokens) == (10, 15)


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_call_of_a_stream_equals_that_of_a_whole_answer(stream: bool, http_path: HttpPath) -> None:
    tool = Tool("lookup", "", {"type": "object"})
    async with ChaosModel([Fault.tool_call("lookup", '{"q": 1}')]) as chaos, http_path(chaos) as client:
        if stream:
            deltas = [delta async for delta in client.chat_stream(ask(tools=[tool]))]
            result = deltas[-1].result
            assert chaos.requests[0][1]["stream_options"] == {"include_usage": True}
        else:
            result = await client.chat(ask(tools=[tool]))
        assert result is not None
        assert result.tool_calls == (ToolCall("call_1", "lookup", {"q": 1}),)


async def test_constraints_travel_or_are_refused(http_path: HttpPath) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}
    async with ChaosModel([Fault.none('{"b": "1"}')]) as chaos:
        async with http_path(chaos) as client:
            await client.chat(ask(output=JsonSchema(schema)))
            sent = chaos.requests[0][1]["response_format"]["json_schema"]["schema"]
            assert sent == schema
            assert list(sent["properties"]) == ["b", "a"]  # order matters to constrained decoding
            with pytest.raises(UnsupportedFeature, match="json_schema"):
                await client.chat(ask(output=Regex("a+")))
        options = OpenAIOptions(structured_output="json_schema,regex,choice")
        async with http_path(chaos, options=options) as client:
            await client.chat(ask(output=Regex("a+")))
            assert chaos.requests[-1][1]["structured_outputs"] == {"regex": "a+"}
            with pytest.raises(InvalidOutput):
                await client.chat(ask(output=Choice(("yes", "no"))))
            assert chaos.requests[-1][1]["structured_outputs"] == {"choice": ["yes", "no"]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, ModelError),
        (401, AuthenticationFailed),
        (403, AuthenticationFailed),
        (404, ModelNotFound),
        (408, ModelUnavailable),
        (413, PayloadTooLarge),
        (418, ModelError),
        (500, ModelUnavailable),
        (501, UnsupportedFeature),
        (502, ModelUnavailable),
        (503, ModelUnavailable),
        (529, ModelUnavailable),
    ],
)
async def test_each_status_is_its_error(
    status: int, expected: type[PandacoreError], http_path: HttpPath
) -> None:
    async with (
        ChaosModel([Fault.status(status, "because")]) as chaos,
        http_path(chaos, config=ONCE) as client,
    ):
        with pytest.raises(expected, match="because") as caught:
            await client.chat(ask(), deadline_s=5.0)
        assert type(caught.value) is expected
        with pytest.raises(expected):
            async for _ in client.chat_stream(ask(), deadline_s=5.0):
                pass


async def test_server_that_is_not_there_is_unavailable() -> None:
    backend = OpenAIBackend("m", base_url="http://127.0.0.1:9/v1")
    async with ModelServer(backend) as server, ModelClient(server.address, config=ONCE) as client:
        with pytest.raises(ModelUnavailable, match="ConnectError"):
            await client.chat(ask(), deadline_s=5.0)


async def test_models_are_listed_and_the_first_is_the_default() -> None:
    async with ChaosModel([Fault.none()]) as chaos:
        backend = OpenAIBackend(base_url=chaos.base_url)
        async with ModelServer(backend) as server, ModelClient(server.address) as client:
            assert [info.id for info in await client.list_models()] == ["chaos"]
            await client.chat(ask())
            assert chaos.requests[0][1]["model"] == "chaos"
            with pytest.raises(ModelNotFound):
                await client.chat(ask(model="other"))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "5"}, 5.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e9"}, 1e9),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:40 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=10.0) == seconds


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://x/v1", "http://", "http://x/v1?key=abc", "http://x/#a", "http://x y/"]
)
def test_bad_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        OpenAIBackend("m", base_url=url)


async def test_stream_cut_before_done_is_truncated(http_path: HttpPath) -> None:
    async with ChaosModel([Fault.none("text", None)]) as chaos, http_path(chaos) as client:
        with pytest.raises(Truncated):
            async for _ in client.chat_stream(ask(), deadline_s=5.0):
                pass


# --- FC-64: secrets -----------------------------------------------------------------------------------

_RNG = random.Random(64)


def _word(length: int = 24) -> str:
    return "".join(_RNG.choices(string.ascii_letters + string.digits, k=length))


CANARIES = {
    "openai key": f"sk-proj-{_word()}",
    "user info": f"{_word(16)}",
    "env token": _word(),
    "env password": _word(),
    **{f"key in an error body {n}": f"sk-{_word()}" for n in range(6)},
    **{f"bearer {n}": _word(32) for n in range(4)},
    **{f"pair {n}": _word(20) for n in range(6)},
    **{f"url user info {n}": _word(12) for n in range(4)},
    **{f"hugging face {n}": f"hf_{_word(34)}" for n in range(2)},
    **{f"github {n}": f"ghp_{_word(36)}" for n in range(2)},
    **{f"x-api-key {n}": _word(40) for n in range(2)},
}


def _error_bodies() -> list[str]:
    c = CANARIES
    return [
        f"Incorrect API key provided: {c['openai key']}. Find yours at …",
        *(f"key {c[f'key in an error body {n}']} is over its limit" for n in range(6)),
        *(f"Authorization: Bearer {c[f'bearer {n}']} was refused" for n in range(4)),
        *(f"api_key={c[f'pair {n}']} is unknown" for n in range(6)),
        *(f"upstream http://user:{c[f'url user info {n}']}@gateway.internal/v1 failed" for n in range(4)),
        *(f"token {c[f'hugging face {n}']} expired" for n in range(2)),
        *(f"token {c[f'github {n}']} expired" for n in range(2)),
        *(f"x-api-key: {c[f'x-api-key {n}']}" for n in range(2)),
        f"secrets of the server: {c['env token']} {c['env password']} {c['user info']}",
    ]


def _assert_clean(text: str, where: str) -> None:
    hits = [name for name, value in CANARIES.items() if value in text]
    around = [text[max(0, text.find(CANARIES[hit]) - 60) :][:140] for hit in hits]
    assert not hits, f"{where} shows {hits}: {around}"


def _trace(error: BaseException) -> str:
    """The traceback with the locals of each frame but this test's own, which holds the canaries."""
    assert error.__traceback__ is not None
    frames = error.__traceback__.tb_next
    trace = traceback.TracebackException(type(error), error, frames, capture_locals=True)
    return "".join(trace.format())


def test_there_are_thirty_canaries() -> None:
    assert len(set(CANARIES.values())) == 30


async def test_fc_64_no_secret_in_logs_reprs_errors_or_tracebacks(
    http_path: HttpPath, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", CANARIES["env token"])
    monkeypatch.setenv("DB_PASSWORD", CANARIES["env password"])
    caplog.set_level(logging.DEBUG)
    bodies = _error_bodies()
    statuses = [400, 401, 404, 429, 500]
    shown: list[str] = []
    async with ChaosModel(lambda n: Fault.status(statuses[n % 5], bodies[n // 5 % len(bodies)])) as chaos:
        url = chaos.base_url.replace("http://", f"http://me:{CANARIES['user info']}@")
        backend = OpenAIBackend("m", base_url=url, api_key=Secret(CANARIES["openai key"]))
        shown.append(repr(backend))
        async with ModelServer(backend) as server:
            for number in range(5 * len(bodies)):
                # A fresh endpoint per call, so that no pause or breaker stands in the way.
                async with ModelClient(server.address, config=ONCE) as client:
                    client._endpoint = client._new_endpoint()
                    shown.append(repr(client))
                    try:
                        if number % 2:
                            await client.chat(ask(), deadline_s=5.0)
                        else:
                            async for _ in client.chat_stream(ask(), deadline_s=5.0):
                                pass
                    except PandacoreError as error:
                        shown += [str(error), repr(error), repr(vars(error))]
                        shown.append(_trace(error))
                    else:
                        pytest.fail("the fault did not fail")
            # Crash on purpose, in the backend itself.
            with pytest.raises(PandacoreError) as caught:
                await backend.chat(ask())
            shown.append(_trace(caught.value))
        assert chaos.calls == 5 * len(bodies) + 1
        # With user info, basic authentication is sent; the canaries did travel.
        assert any("basic" in headers.get("authorization", "").lower() for headers, _ in chaos.requests)
    assert len(caplog.records) > 100  # the HTTP library did log
    shown.append(caplog.text)
    shown += [f"{record.getMessage()} {record.args}" for record in caplog.records]
    for text in shown:
        _assert_clean(text, "output")


async def test_fc_64_no_secret_in_the_child_process(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(CANARIES["openai key"] + "\n")
    async with ChaosModel([Fault.status(401, _error_bodies()[0])]) as chaos:
        url = chaos.base_url.replace("http://", f"http://me:{CANARIES['user info']}@")
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY_FILE": str(key_file)}
        command = [sys.executable, "-m", "pandacore.models.server", "--lifeline", "--log-level", "DEBUG"]
        server = await asyncio.create_subprocess_exec(
            *command,
            "--backend",
            "openai",
            "--model",
            "m",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert server.stdout is not None
        ready = (await server.stdout.readline()).decode()
        address = re.search(r'"address": "([^"]+)"', ready)
        assert address is not None, ready
        async with ModelClient(address[1], config=ONCE) as client:
            with pytest.raises(AuthenticationFailed):
                await client.chat(ask(), deadline_s=5.0)
        out, err = [part.decode() for part in await server.communicate(b"")]
        assert server.returncode == 0
        assert "HTTP Request" in err  # it did run at DEBUG
        _assert_clean(ready + out + err, "the child")
        authorization = chaos.requests[0][0]["authorization"]
        assert authorization.startswith("Basic")


async def test_connect_passes_key_and_url_by_the_environment_of_the_child_only() -> None:
    async with ChaosModel([Fault.none("hi")]) as chaos:
        key = Secret(CANARIES["openai key"])
        async with connect("openai:m", base_url=chaos.base_url, api_key=key) as model:
            assert (await model.client.chat(ask())).text == "hi"
            assert model.process is not None
            _assert_clean(" ".join(model.process._popen.args), "the command line")  # type: ignore[arg-type]
            _assert_clean(repr(model) + repr(model.process), "repr")
        assert chaos.requests[0][0]["authorization"] == f"Bearer {CANARIES['openai key']}"


def test_key_file_that_cannot_be_read_is_named_without_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY_FILE", "/nonexistent/key")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY_FILE"):
        OpenAIBackend.from_options("m", {})


def test_options_are_typed() -> None:
    backend = OpenAIBackend.from_options("m", {"tools": "no", "context": "4096", "structured_output": ""})
    assert backend._options.tools is False
    assert backend._options.context == 4096
    for bad in ({"context": "many"}, {"tools": "perhaps"}, {"structured_output": "yaml"}):
        with pytest.raises(ConfigError):
            OpenAIBackend.from_options("m", bad)
