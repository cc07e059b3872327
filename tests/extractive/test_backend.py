"""The extractive backend: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from pandacore import errors
from pandacore.models.backends.extractive import MAX_DOCUMENTS, ExtractiveBackend
from pandacore.models.client import ModelClient
from pandacore.models.prompts import render_documents
from pandacore.models.server import ModelServer
from pandacore.models.types import (
    ChatRequest,
    ChatResult,
    Choice,
    Document,
    FinishReason,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    Regex,
    Tool,
)
from pandacore.planning import PLAN_SCHEMA

DOCUMENTS = (
    Document("m", "Red Mill", ("Red Mill is a theatre in Oakham.", "It was designed by Ann Lee.")),
    Document(
        "a",
        "Ann Lee",
        ("Ann Lee (2 May 1850 - 3 June 1900) was a Danish architect.", "She was born in Ribe."),
    ),
    Document("o", "Oakham", ("Oakham is a town on the river Wend.", "It has 8,100 inhabitants.")),
    Document("b", "Bo Diaz", ("Bo Diaz (born 9 July 1921) is a Danish painter.",)),
)
QUESTION = "Where was the architect who designed the Red Mill born?"
TEAM = ["retrieve.passages", "read.passages", "reason.compare", "answer.question"]


def request(question: str = QUESTION, **options: Any) -> ChatRequest:
    options.setdefault("documents", DOCUMENTS)
    messages = (Message.system("Answer."), Message.user(question))
    return ChatRequest(options.pop("messages", messages), **options)


def chat(wanted: ChatRequest) -> ChatResult:
    return asyncio.run(ExtractiveBackend().chat(wanted))


def value(question: str = QUESTION, **options: Any) -> dict[str, Any]:
    metadata = options.pop("metadata", {})
    loaded: dict[str, Any] = json.loads(
        chat(request(question, output=JsonObject(), metadata=metadata, **options)).text
    )
    return loaded


def test_it_says_that_it_is_not_generative() -> None:
    [info] = asyncio.run(ExtractiveBackend().models())
    assert (info.id, info.generative, info.tools, info.embeddings) == ("extractive", False, False, False)
    assert info.structured_output == ("json_schema", "json_object")


def test_an_answer_quotes_and_cites() -> None:
    found = value()
    assert found["answer"] == "Ribe"
    assert {"document": "a", "sentence": 1} in found["evidence"]
    assert 0 < found["confidence"] <= 1


def test_without_a_constraint_the_text_is_the_answer() -> None:
    assert chat(request()).text == "Ribe"


def test_the_last_user_message_asks_unless_metadata_does() -> None:
    said = (Message.user("Who is Bo Diaz?"), Message.assistant("A painter."), Message.user(QUESTION))
    assert value(messages=said)["answer"] == "Ribe"
    wrapped = (Message.user("Answer politely, please."),)
    assert value(messages=wrapped, metadata={"question": QUESTION})["answer"] == "Ribe"


def test_retrieval_ranks_the_bridge_and_its_end_first() -> None:
    found = value(metadata={"task": "retrieve", "limit": "3"})
    assert found["documents"][:2] == ["m", "a"]
    assert len(found["documents"]) == len(found["scores"]) == 3
    assert found["scores"] == sorted(found["scores"], reverse=True)


def test_reading_gives_sentences_and_names_that_lead_on() -> None:
    found = value(metadata={"task": "read"}, documents=DOCUMENTS[:1])
    assert "Ann Lee" in found["names"]
    assert {"document": "m", "sentence": 1, "text": "It was designed by Ann Lee."} in found["facts"]


def test_comparison_names_one_side_with_both_facts() -> None:
    found = value("Who was born later, Ann Lee or Bo Diaz?", metadata={"task": "compare"})
    assert found["verdict"] == "Bo Diaz"
    assert {fact["document"] for fact in found["facts"]} == {"a", "b"}


def test_comparison_of_unknown_things_has_no_verdict() -> None:
    assert value("Who is older, Zed Zy or Qu Qua?", metadata={"task": "compare"})["verdict"] == ""


def plan(question: str, capabilities: list[str]) -> list[dict[str, Any]]:
    found = chat(
        request(
            question,
            documents=(),
            output=JsonSchema(PLAN_SCHEMA),
            metadata={"task": "plan", "capabilities": json.dumps(capabilities)},
        )
    )
    subtasks: list[dict[str, Any]] = json.loads(found.text)["subtasks"]
    return subtasks


def test_a_bridge_question_is_planned_as_a_chain() -> None:
    steps = plan(QUESTION, TEAM)
    assert [s["capability"].split(".")[0] for s in steps] == ["retrieve", "read", "retrieve", "answer"]
    assert steps[-1]["instruction"] == QUESTION
    assert all(s["depends_on"] for s in steps[1:])


def test_a_comparison_is_planned_with_two_branches() -> None:
    steps = plan("Who was born later, Ann Lee or Bo Diaz?", TEAM)
    assert [s["capability"].split(".")[0] for s in steps] == ["retrieve", "retrieve", "reason", "answer"]
    assert steps[0]["depends_on"] == steps[1]["depends_on"] == []
    assert "Ann Lee" in steps[0]["instruction"]
    assert "Bo Diaz" in steps[1]["instruction"]


@pytest.mark.parametrize("question", [QUESTION, "Who was born later, Ann Lee or Bo Diaz?"])
@pytest.mark.parametrize("missing", range(4))
def test_plans_make_do_with_fewer_capabilities(question: str, missing: int) -> None:
    names = [name for i, name in enumerate(TEAM) if i != missing]
    if missing == 3:
        with pytest.raises(errors.UnsupportedFeature, match="no capability"):
            plan(question, names)
        return
    steps = plan(question, names)
    if missing == 1 and question == QUESTION:
        assert [s["capability"].split(".")[0] for s in steps] == ["retrieve", "retrieve", "answer"]
    assert {s["capability"] for s in steps} <= set(names)
    assert steps[-1]["capability"] == "answer.question"


def test_other_tasks_become_a_chain_by_their_words() -> None:
    steps = plan(
        "Translate the notes, then summarise them", ["text.summarise", "text.translate", "web.search"]
    )
    assert [(s["capability"], s["depends_on"]) for s in steps] == [
        ("text.translate", []),
        ("text.summarise", ["s1"]),
    ]


def test_a_planner_told_of_a_mistake_plans_the_first_message() -> None:
    messages = (Message.user(QUESTION), Message.assistant("{}"), Message.user("That plan is not valid."))
    again = chat(
        request(
            documents=(),
            messages=messages,
            output=JsonObject(),
            metadata={"task": "plan", "capabilities": json.dumps(TEAM)},
        )
    )
    assert json.loads(again.text)["subtasks"][-1]["instruction"] == QUESTION


@pytest.mark.parametrize("raw", ["nonsense", '{"a": 1}', "[1]"])
def test_capabilities_must_be_a_list_of_names(raw: str) -> None:
    with pytest.raises(errors.InvalidOutput, match="capabilities"):
        value(metadata={"task": "plan", "capabilities": raw})


@pytest.mark.parametrize(
    "options",
    [
        {"documents": ()},
        {"documents": (Document("e", "empty", ()),)},
        {"metadata": {"task": "poem"}},
        {"tools": (Tool("f", "", {}),)},
        {"output": Regex("a+")},
        {"output": Grammar("root ::= x")},
        {"output": Choice(("a", "b"))},
        {"output": JsonSchema({"type": "object", "required": ["mood"]})},
        {"output": JsonSchema({"type": "array"})},
        {"output": JsonSchema({"type": 7})},
        {"metadata": {"task": "retrieve", "limit": "many"}},
        {"messages": (Message.system("Only a system message."),)},
        {"documents": (Document("d", "t", ("s",)),) * (MAX_DOCUMENTS + 1)},
    ],
)
def test_what_quoting_cannot_do_is_refused_with_a_next_step(options: dict[str, Any]) -> None:
    with pytest.raises(errors.UnsupportedFeature) as caught:
        chat(request(**options))
    assert caught.value.where


def test_refusal_without_documents_says_that_it_only_quotes() -> None:
    with pytest.raises(errors.UnsupportedFeature, match="can only quote what it was given"):
        chat(request(documents=()))


def test_nothing_found_is_an_empty_answer_in_json_and_an_error_in_prose() -> None:
    lost = {"documents": (Document("x", "Wend", ("A river flows.",)),)}
    assert value("Zxqv?", **lost) == {"answer": "", "evidence": [], "confidence": 0.0}
    with pytest.raises(errors.ModelError, match="nothing in the documents fits"):
        chat(request("Zxqv?", **lost))


def test_a_closed_schema_gets_only_its_keys() -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    assert json.loads(chat(request(output=JsonSchema(schema))).text) == {"answer": "Ribe"}


def test_facts_are_labels_where_a_schema_wants_strings() -> None:
    shown = re.findall(r"^\(([0-9.]+)\) (.*)", render_documents(DOCUMENTS), re.MULTILINE)
    labels = {"type": "array", "items": {"type": "string", "enum": [label for label, _ in shown]}}
    schema = {"type": "object", "properties": {"answer": {"type": "string"}, "evidence": labels}}
    found = json.loads(chat(request(output=JsonSchema(schema))).text)
    assert "She was born in Ribe." in [dict(shown)[label] for label in found["evidence"]]


def test_a_cap_cuts_and_says_so() -> None:
    cut = chat(request(output=JsonObject(), max_tokens=5))
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.usage.completion_tokens <= 5


def test_stop_texts_end_the_output() -> None:
    assert chat(request(stop=("b",))).text == "Ri"


def test_usage_adds_up() -> None:
    usage = chat(request()).usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 30


def test_counts_are_marked_as_estimates() -> None:
    count = asyncio.run(ExtractiveBackend().count_tokens((Message.user("How many words?"),), DOCUMENTS))
    assert not count.exact
    assert count.tokens > 30


async def test_over_grpc_the_same_answer_and_the_same_refusal() -> None:
    async with ModelServer(ExtractiveBackend()) as server, ModelClient(server.address) as client:
        assert (await client.chat(request())).text == "Ribe"
        with pytest.raises(errors.UnsupportedFeature, match="can only quote"):
            await client.chat(request(documents=()))


async def test_many_calls_at_once_agree() -> None:
    backend = ExtractiveBackend()
    texts = await asyncio.gather(*(backend.chat(request()) for _ in range(40)))
    assert {t.text for t in texts} == {"Ribe"}
