"""The server: capabilities, bounded load, coalescing, standard services, start and drain."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pandacore.errors import (
    ConfigError,
    InvalidOutput,
    ModelError,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    PandacoreError,
    PayloadTooLarge,
    RateLimited,
    Truncated,
    UnsupportedFeature,
)
from pandacore.models import (
    ChatDelta,
    ChatRequest,
    ChatResult,
    Choice,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    ModelClient,
    ModelClientConfig,
    ModelInfo,
    Regex,
    ServerSpec,
    Tool,
    Usage,
    connect,
    spawn,
)
from pandacore.models.backends.base import Backend
from pandacore.models.backends.scripted import ScriptedBackend
from pandacore.models.server import SERVICE, ModelServer, build_backend
from pandacore.rpc.v1 import model_pb2 as pb
from pandacore.testing import ScriptedModel

SCRIPT = '[{"match": "slow", "answer": "late"}, {"match": ".", "answer": "hello"}]'


def ask(text: str = "hello", **options: object) -> ChatRequest:
    return ChatRequest([Message.user(text)], **options)  # type: ignore[arg-type]


class Bare(Backend):
    """A backend that can do nothing beyond plain chat."""

    name = "bare"

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("bare", "bare"), ModelInfo("vectors", "bare", chat=False)]

    async def chat(self, request: ChatRequest) -> ChatResult:
        return ChatResult("fine", usage=Usage(1, 1, 2))


@pytest.mark.parametrize(
    "request_",
    [
        ask(output=JsonSchema({"type": "object"})),
        ask(output=JsonObject()),
        ask(output=Regex("a+")),
        ask(output=Grammar("root ::= 'a'")),
        ask(output=Choice(("a", "b"))),
        ask(tools=[Tool("t", "", {})]),
        ask(model="vectors"),
    ],
    ids=["json_schema", "json_object", "regex", "grammar", "choice", "tools", "chat"],
)
async def test_what_the_backend_cannot_do_is_refused_not_ignored(request_: ChatRequest) -> None:
    async with ModelServer(Bare()) as server, ModelClient(server.address) as client:
        with pytest.raises(UnsupportedFeature):
            await client.chat(request_)
        with pytest.raises(UnsupportedFeature):
            async for _ in client.chat_stream(request_):
                pass
        with pytest.raises(UnsupportedFeature):
            await client.embed(["a"])
        assert (await client.chat(ask(tools=[Tool("t", "", {})], tool_choice="none"))).text == "fine"


@pytest.mark.parametrize(
    "error",
    [
        RateLimited("slow", retry_after_s=99.0),
        Truncated("cut"),
        InvalidOutput("bad", where="$.a", hint="do this"),
        ModelNotFound("gone"),
        UnsupportedFeature("no"),
        ConfigError("long"),
        PayloadTooLarge("big", size=5, limit=4, producer="upstream"),
        ModelError("other"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("stream", [False, True])
async def test_typed_errors_of_a_backend_arrive_as_they_are(error: PandacoreError, stream: bool) -> None:
    config = ModelClientConfig(max_retries=0)
    async with ScriptedModel(lambda _: error, config=config) as model:
        with pytest.raises(type(error)) as caught:
            if stream:
                async for _ in model.client.chat_stream(ask()):
                    pass
            else:
                await model.client.chat(ask(), deadline_s=5.0)
        assert caught.value.message == error.message
        assert caught.value.hint == error.hint
        if isinstance(error, RateLimited):
            assert vars(caught.value)["retry_after_s"] == 99.0


async def test_foreign_exception_of_a_backend_becomes_a_model_error() -> None:
    async with ScriptedModel(lambda _: 1 / 0) as model:
        with pytest.raises(ModelError, match="ZeroDivisionError"):
            await model.client.chat(ask())


async def test_more_calls_than_may_wait_are_refused() -> None:
    config = ModelClientConfig(max_retries=0)
    async with ScriptedModel(lambda _: "word", delay_s=0.3, concurrency=2, waiting=3, config=config) as model:
        tasks = [asyncio.ensure_future(model.client.chat(ask(), deadline_s=10.0)) for _ in range(8)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(r) for r in results if not isinstance(r, ChatResult)] == [Overloaded] * 3
        assert model._server.load == (0, 0)


async def test_overload_is_ridden_out_by_the_clients() -> None:
    async with ScriptedModel(lambda _: "word", delay_s=0.02, concurrency=2, waiting=2) as model:
        results = await asyncio.gather(*(model.client.chat(ask(), deadline_s=30.0) for _ in range(60)))
        assert len(results) == 60


async def test_pieces_are_joined_but_the_first_goes_at_once() -> None:
    class Fast(Bare):
        async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
            for number in range(400):
                yield ChatDelta(f"{number} ", 1)
            yield ChatDelta(result=ChatResult("", usage=Usage(1, 400, 401)))

    async with ModelServer(Fast()) as server, ModelClient(server.address) as client:
        deltas = [delta async for delta in client.chat_stream(ask())]
        texts = [delta.text for delta in deltas if delta.text]
        assert "".join(texts) == "".join(f"{number} " for number in range(400))
        assert texts[0] == "0 "
        assert len(texts) <= 400 / 8 + 2


async def test_answer_is_never_sent_without_a_result() -> None:
    class Cut(Bare):
        async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
            yield ChatDelta("half", 1)

    async with ModelServer(Cut()) as server, ModelClient(server.address) as client:
        with pytest.raises(ModelError, match="without a result"):
            async for _ in client.chat_stream(ask()):
                pass


async def test_health_and_reflection_are_served() -> None:
    async with ScriptedModel() as model, grpc.aio.insecure_channel(model.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

        async def questions() -> AsyncGenerator[reflection_pb2.ServerReflectionRequest, None]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        make: Any = reflection_pb2_grpc.ServerReflectionStub
        stub = make(channel)
        async for answer in stub.ServerReflectionInfo(questions(), timeout=5):
            names = [service.name for service in answer.list_services_response.service]
            assert SERVICE in names
            break


async def test_foreign_client_sees_a_plain_grpc_status() -> None:
    async with ScriptedModel() as model, grpc.aio.insecure_channel(model.address) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/Chat",
            request_serializer=pb.ChatRequest.SerializeToString,
            response_deserializer=pb.ChatResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(pb.ChatRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown_role = pb.ChatRequest(messages=[pb.Message(content="x")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(unknown_role, timeout=5)
        assert "role" in str(caught.value.details())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.com"])
def test_other_hosts_than_loopback_need_consent(host: str) -> None:
    with pytest.raises(ConfigError, match="reachable"):
        ModelServer(ScriptedBackend(), host=host)


async def test_port_in_use_is_a_config_error() -> None:
    async with ScriptedModel() as model:
        port = int(model.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match="listen"):
            await ModelServer(ScriptedBackend(), port=port).start()


@pytest.mark.parametrize(
    ("name", "hint"), [("extractiv", "extractive"), ("lama", "llama"), ("", "use one"), ("zzz", "use one")]
)
def test_unknown_backend_gets_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        build_backend(name)


@pytest.mark.parametrize(
    ("backend", "option"), [("extractive", "x"), ("openai", "api_key"), ("scripted", "y"), ("llama", "z")]
)
def test_unknown_option_is_refused(backend: str, option: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ModelNotFound)):
        build_backend(backend, model="m", options={option: "1"})


# --- as a process -------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.json"
    path.write_text(SCRIPT)
    return str(path)


async def test_spawned_server_answers_and_ends(script: str) -> None:
    process = await asyncio.to_thread(spawn, ServerSpec("scripted", script))
    assert process.alive
    assert process.models == ("scripted",)
    async with ModelClient(process.address) as client:
        assert (await client.chat(ask())).text == "hello"
    await process.aclose()
    await process.aclose()
    assert not process.alive
    assert process._popen.returncode == 0


async def test_spawn_reports_what_the_child_reported() -> None:
    with pytest.raises(ConfigError, match="no backend 'nope'"):
        await asyncio.to_thread(spawn, ServerSpec("nope"))
    with pytest.raises(ConfigError, match="no script"):
        await asyncio.to_thread(spawn, ServerSpec("scripted", "/nonexistent.json"))


async def test_spawn_gives_up_at_its_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(ModelUnavailable, match="not ready"):
        await asyncio.to_thread(spawn, ServerSpec("scripted", "time:time"), deadline_s=0.01)
    assert time.monotonic() - started < 5


async def test_sigterm_drains_running_calls(script: str) -> None:
    spec = ServerSpec("scripted", script, {"delay_s": "0.5"})
    process = await asyncio.to_thread(spawn, spec)
    async with ModelClient(process.address) as client:
        task = asyncio.ensure_future(client.chat(ask("slow"), deadline_s=10.0))
        await until_running(client)
        os.kill(process.pid, signal.SIGTERM)
        assert (await task).text == "late"
    await asyncio.to_thread(process._popen.wait, 10)
    assert process._popen.returncode == 0
    process.close()


async def until_running(client: ModelClient) -> None:
    end = time.monotonic() + 5
    while client._endpoint.in_flight == 0:
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
    await client.list_models()  # a round trip on the same connection: the call before it has arrived


def test_server_of_a_killed_parent_ends_by_itself(script: str) -> None:
    code = (
        "import sys, time\n"
        "from pandacore.models import ServerSpec, spawn\n"
        f"process = spawn(ServerSpec('scripted', {script!r}))\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 10
    while True:
        try:
            os.kill(child, 0)
            state = Path(f"/proc/{child}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except ProcessLookupError:
            return
        assert time.monotonic() < end, "the server outlived its parent"
        time.sleep(0.02)


async def test_connect_starts_the_extractive_server_and_ends_it() -> None:
    async with connect("extractive") as model:
        process = model.process
        assert process is not None
        (info, *_) = await model.client.list_models()
        assert info.backend == "extractive"
        assert not info.generative
    assert not process.alive


async def test_connect_to_a_running_server_leaves_it_running() -> None:
    async with ScriptedModel(["a", "b", "c"]) as model:
        for spec in (model.address, model.spec, f"{model.spec}/scripted"):
            async with connect(spec) as handle:
                assert handle.process is None
                await handle.client.chat(ask())
        async with connect(model.client) as handle:
            assert handle.client is model.client
        await model.client.list_models()


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("extractve", "extractive"),
        ("opnai:gpt", "openai"),
        ("llama:", "NAME_OR_PATH"),
        ("extractive:x", "extractive"),
        ("", "use extractive"),
        ("scripted:x", "use"),
        ("http://host:1/v1", "use"),
    ],
)
def test_bad_model_text_is_refused_with_the_forms(spec: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        connect(spec)
