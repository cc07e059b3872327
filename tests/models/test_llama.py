"""The llama backend on a small real model, where it and the weights are there."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pandacore.errors import ConfigError, DeadlineExceeded, ModelNotFound, Truncated, UnsupportedFeature
from pandacore.models import (
    ChatRequest,
    Choice,
    FinishReason,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    ModelClient,
    ModelEmbedder,
    Regex,
    Sampling,
    Tool,
    ToolCall,
    connect,
)
from pandacore.models.backends.llama import LlamaBackend, LlamaOptions
from pandacore.models.catalog import installed
from pandacore.models.gguf import read_metadata
from pandacore.models.tool_prompt import parse_answer, tool_messages, tool_schema

MODEL = "smollm2-135m"
GREEDY = Sampling(temperature=0.0)


def ask(text: str, **options: Any) -> ChatRequest:
    return ChatRequest([Message.user(text)], **{"sampling": GREEDY, "max_tokens": 40, **options})


def _weights() -> bool:
    return any(model.name == MODEL for model in installed())


@pytest_asyncio.fixture
async def client() -> AsyncIterator[ModelClient]:
    pytest.importorskip("xllamacpp", reason="the extra [local] is not installed")
    if not await asyncio.to_thread(_weights):
        pytest.skip(f"weights are not in the cache; `pandacore model get {MODEL}` gets them")
    async with connect(f"llama:{MODEL}", options={"context": "2048"}) as model:
        yield model.client


@pytest.mark.slow
async def test_real_model_honours_every_constraint_it_advertises(client: ModelClient) -> None:
    (info,) = await client.list_models()
    assert (info.id, info.context_tokens, info.embeddings) == (MODEL, 2048, False)
    schema = {
        "type": "object",
        "properties": {
            "size": {"type": "string", "enum": ["small", "large"]},
            "count": {"$ref": "#/$defs/n"},
        },
        "required": ["size", "count"],
        "additionalProperties": False,
        "$defs": {"n": {"type": "integer"}},
    }
    result = await client.chat(ask("Describe a box.", output=JsonSchema(schema)), deadline_s=60)
    assert result.value["size"] in ("small", "large")
    assert result.usage.prompt_tokens > 10
    assert result.usage.total_tokens == result.usage.prompt_tokens + result.usage.completion_tokens
    assert (await client.chat(ask("Is it?", output=Choice(("yes", 'n"o'))), deadline_s=60)).text in (
        "yes",
        'n"o',
    )
    grammar = Grammar('root ::= [0-9] [0-9] "!"')
    assert (await client.chat(ask("A number!", output=grammar), deadline_s=60)).text[2] == "!"
    with contextlib.suppress(Truncated):
        assert isinstance((await client.chat(ask("Any.", output=JsonObject()), deadline_s=60)).value, dict)
    for refused in (Regex("a+"), Grammar("root ::= nothing")):
        with pytest.raises(UnsupportedFeature):
            await client.chat(ask("x", output=refused), deadline_s=60)


@pytest.mark.slow
async def test_real_model_calls_a_tool_and_is_counted_exactly(client: ModelClient) -> None:
    tool = Tool(
        "weather",
        "Current weather of a city.",
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    )
    request = ask("What is the weather in Paris?", tools=[tool], tool_choice="required", max_tokens=80)
    result = await client.chat(request, deadline_s=60)
    assert result.finish_reason is FinishReason.TOOL_CALLS
    assert result.tool_calls[0].name == "weather"
    count = await client.count_tokens("hello world")
    plain = await client.chat(ask("hello world", max_tokens=1), deadline_s=60)
    assert count.exact
    assert count.tokens == plain.usage.prompt_tokens


@pytest.mark.slow
async def test_real_model_streams_and_stops_when_left(client: ModelClient) -> None:
    deltas = [d async for d in client.chat_stream(ask("Count to ten.", max_tokens=20), deadline_s=60)]
    assert deltas[-1].result is not None
    assert deltas[-1].result.text == "".join(delta.text for delta in deltas)
    assert deltas[-1].result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    stream = client.chat_stream(ask("Count to a thousand.", max_tokens=1500), deadline_s=60)
    async with contextlib.aclosing(stream) as left:
        async for _ in left:
            break
    started = time.monotonic()
    long_prompt = ask("word " * 1500)
    with pytest.raises(DeadlineExceeded):  # stopped while the prompt is read
        await client.chat(long_prompt, deadline_s=0.5)
    assert time.monotonic() - started < 1.5
    result = await client.chat(ask("Say hi.", max_tokens=3), deadline_s=30)
    assert result.usage.completion_tokens <= 3
    with pytest.raises(ConfigError, match="too long"):
        await client.chat(ask("word " * 3000), deadline_s=60)


# --- without weights ----------------------------------------------------------------------------------


def _gguf(path: Path, *, magic: bytes = b"GGUF", version: int = 3, **values: str) -> Path:
    def text(value: str) -> bytes:
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    body = b""
    for key, value in values.items():
        body += text(key.replace("__", ".")) + struct.pack("<I", 8) + text(value)
    tokens = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    path.write_bytes(magic + struct.pack("<IQQ", version, 0, len(values) + 1) + tokens + body)
    return path


def test_header_is_read_and_arrays_are_skipped(tmp_path: Path) -> None:
    path = _gguf(tmp_path / "m.gguf", general__architecture="llama", tokenizer__chat_template="{{ x }}")
    assert read_metadata(path) == {
        "tokenizer.ggml.tokens": 2,
        "general.architecture": "llama",
        "tokenizer.chat_template": "{{ x }}",
    }


@pytest.mark.parametrize("damage", ["magic", "version", "cut", "missing"])
def test_file_that_is_no_model_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.gguf"
    match damage:
        case "magic":
            _gguf(path, magic=b"GGML")
        case "version":
            _gguf(path, version=9)
        case "cut":
            _gguf(path, general__architecture="llama")
            path.write_bytes(path.read_bytes()[:-4])
            path.write_bytes(path.read_bytes()[:30])
    with pytest.raises((ConfigError, ModelNotFound)):
        LlamaBackend(str(path))


def test_options_are_checked(tmp_path: Path) -> None:
    path = str(_gguf(tmp_path / "m.gguf", general__architecture="llama"))
    backend = LlamaBackend.from_options(path, {"context": "512", "parallel": "1"})
    assert backend.concurrency == 1
    for bad in ({"context": "big"}, {"contxt": "1"}, {"parallel": "0"}):
        with pytest.raises(ConfigError):
            LlamaBackend.from_options(path, bad)
    with pytest.raises(ConfigError):
        LlamaBackend.from_options(None, {})
    with pytest.raises(ConfigError):
        LlamaBackend(path, LlamaOptions(batch=0))


async def test_base_model_without_a_template_does_not_chat(tmp_path: Path) -> None:
    path = str(_gguf(tmp_path / "base.gguf", general__architecture="llama"))
    (info,) = await LlamaBackend(path).models()
    assert (info.id, info.chat, info.tools) == ("base", False, False)


def test_tools_become_instructions_and_a_schema() -> None:
    tools = [Tool("a", "Does a.", {"type": "object"}), Tool("b", "Does b.", {"type": "object"})]
    call = ToolCall("c", "a", {"x": 1})
    turns = [
        Message.system("Sys."),
        Message.user("q"),
        Message.assistant("", [call]),
        Message.tool("r", call=call),
    ]
    request = ChatRequest(turns, tools=tools)
    messages = tool_messages(request, request.messages)
    assert messages[0].content.startswith("Sys.\n\nYou can call these tools:\n- a: Does a.")
    assert messages[2].content == '{"tool": "a", "arguments": {"x": 1}}'
    assert messages[3] == Message.user("Result of a: r")
    assert len(tool_schema(request)["anyOf"]) == 3
    assert len(tool_schema(ChatRequest(turns, tools=tools, tool_choice="required"))["anyOf"]) == 2
    assert tool_schema(ChatRequest(turns, tools=tools, tool_choice="b"))["properties"]["tool"] == {
        "const": "b"
    }
    assert parse_answer('{"answer": "x"}') == ("x", ())
    assert parse_answer('{"tool": "a", "arguments": {}}')[1][0].name == "a"


@pytest.mark.slow
async def test_sentence_encoder_embeds_texts_of_any_length() -> None:
    pytest.importorskip("xllamacpp", reason="the extra [local] is not installed")
    name = "all-minilm-l6-v2"
    if not await asyncio.to_thread(lambda: any(model.name == name for model in installed())):
        pytest.skip(f"weights are not in the cache; `pandacore model get {name}` gets them")
    async with connect(f"llama:{name}") as model:
        embedder = await ModelEmbedder.of(model.client)
        assert embedder.dimension == 384
        texts = ["hello world", "Hello, world!", "solving integrals", "word " * 2000, ""]
        vectors = await embedder.embed(texts)
        # The reference values come from an independent implementation of the same weights.
        assert vectors[0][:2].tolist() == pytest.approx([-0.0345, 0.0309], abs=2e-4)
        assert vectors[0] @ vectors[1] > 0.8
        assert vectors[0] @ vectors[2] < 0.2
        with pytest.raises(UnsupportedFeature):
            await model.client.chat(ask("hi"))
        assert (await model.client.count_tokens("hello world")).tokens == 4
