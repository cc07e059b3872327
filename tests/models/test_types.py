"""The plain data of the contract, and its translation to the wire and back."""

from __future__ import annotations

import dataclasses
import doctest
import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pandacore.models
from pandacore.errors import ConfigError, ProtocolError
from pandacore.models import (
    ChatRequest,
    Choice,
    Document,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    Regex,
    Role,
    Sampling,
    Tool,
    ToolCall,
    Usage,
)
from pandacore.models.prompts import messages_with_documents
from pandacore.models.wire import request_from_pb, request_to_pb, vectors_from_bytes, vectors_to_bytes
from pandacore.rpc.v1 import model_pb2 as pb

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=3)
messages = st.builds(
    Message,
    st.sampled_from(Role),
    texts,
    st.lists(st.builds(ToolCall, texts, texts, objects), max_size=2).map(tuple),
)
half = st.floats(0, 2, width=32)
requests = st.builds(
    ChatRequest,
    st.lists(messages, min_size=1, max_size=3),
    model=texts,
    tools=st.lists(st.builds(Tool, texts, texts, objects), max_size=2, unique_by=lambda tool: tool.name),
    tool_choice=st.sampled_from(["auto", "none", "required"]),
    sampling=st.builds(
        Sampling,
        temperature=st.none() | half,
        top_k=st.none() | st.integers(0, 100),
        seed=st.none() | st.integers(0, 2**64 - 1),
    ),
    max_tokens=st.none() | st.integers(1, 2**31),
    stop=st.lists(texts, max_size=2),
    output=st.none()
    | st.builds(JsonSchema, objects)
    | st.builds(JsonObject)
    | st.builds(Regex, texts)
    | st.builds(Grammar, texts)
    | st.builds(Choice, st.lists(texts, min_size=1, max_size=3).map(tuple)),
    documents=st.lists(st.builds(Document, texts, texts, st.lists(texts, max_size=3).map(tuple)), max_size=2),
    metadata=st.dictionaries(texts, texts, max_size=2),
)


@given(requests)
def test_every_request_survives_the_wire(request: ChatRequest) -> None:
    wire = pb.ChatRequest.FromString(request_to_pb(request).SerializeToString())
    assert request_from_pb(wire) == request


def test_unset_is_not_zero() -> None:
    wire = request_to_pb(ChatRequest([Message.user("x")], sampling=Sampling(temperature=0.0)))
    back = request_from_pb(wire).sampling
    assert (back.temperature, back.top_p) == (0.0, None)


def test_order_of_schema_properties_is_kept() -> None:
    schema: dict[str, dict[str, object]] = {"properties": {"z": {}, "a": {}, "m": {}}}
    request = ChatRequest([Message.user("x")], output=JsonSchema(schema))
    back = request_from_pb(request_to_pb(request)).output
    assert isinstance(back, JsonSchema)
    assert list(back.schema["properties"]) == ["z", "a", "m"]


@pytest.mark.parametrize("data", [b"", b"\0" * 20, np.array([np.nan] * 6, "<f4").tobytes()])
def test_vectors_of_the_wrong_size_or_not_finite_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        vectors_from_bytes(data, 2, 3)


def test_vectors_keep_their_shape_and_own_their_memory() -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    back = vectors_from_bytes(vectors_to_bytes(given[:, ::-1]), 2, 3)
    assert np.array_equal(back, given[:, ::-1])
    back[0, 0] = 9.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChatRequest([]),
        lambda: ChatRequest("hello"),  # type: ignore[arg-type]
        lambda: ChatRequest([Message.user("x")], max_tokens=0),
        lambda: ChatRequest([Message.user("x")], stop="end"),
        lambda: ChatRequest([Message.user("x")], tool_choice="missing"),
        lambda: ChatRequest([Message.user("x")], tools=[Tool("a", "", {}), Tool("a", "", {})]),
        lambda: Message("robot", "x"),  # type: ignore[arg-type]
        lambda: Document("d", "t", "one sentence"),  # type: ignore[arg-type]
        lambda: Choice(()),
    ],
)
def test_what_cannot_be_meant_is_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_data_is_frozen() -> None:
    request = ChatRequest([Message.user("x")])
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.model = "y"  # type: ignore[misc]
    assert isinstance(request.messages, tuple)
    assert request.request_id != ChatRequest([Message.user("x")]).request_id
    assert Usage(1, 2, 3, 4, 5) + Usage(1, 1, 1, 1, 1) == Usage(2, 3, 4, 5, 6)


def test_documents_stand_before_the_question_and_after_the_system_message() -> None:
    request = ChatRequest(
        [Message.system("S"), Message.user("Q")],
        documents=[Document("d", "", ("One. ",)), Document("e", "E", ())],
    )
    system, user = messages_with_documents(request)
    assert system.content == "S"
    assert user.content == "Passages:\n\n[1] d\n(1.0) One.\n\n[2] E\n\nQ"
    only_system = ChatRequest([Message.system("S")], documents=request.documents)
    assert messages_with_documents(only_system)[-1].role is Role.USER


def test_all_public_names_are_there() -> None:
    for name in pandacore.models.__all__:
        assert getattr(pandacore.models, name).__name__ == name
    with pytest.raises(AttributeError):
        pandacore.models.nothing  # noqa: B018


@pytest.mark.parametrize(
    "module", ["models.prompts", "models.embedders", "models.handle", "testing.scripted"]
)
def test_examples_in_the_docstrings_hold(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"pandacore.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
