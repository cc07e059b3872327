"""The shipped passages and questions, and the team on them over real gRPC."""

from __future__ import annotations

import re
from typing import Any

import pytest

import pandacore as pc
from pandacore.demo import documents, questions
from pandacore.demo.agents import TEAM, question_plan
from pandacore.evals import answer_score, support_score
from pandacore.models.prompts import render_documents
from pandacore.models.types import ChatRequest, Document
from pandacore.testing import ScriptedModel


def test_the_corpus_is_what_it_says() -> None:
    found = documents()
    assert len(found) >= 40
    assert len({d.id for d in found}) == len({d.title for d in found}) == len(found)
    assert all(3 <= len(d.sentences) <= 6 for d in found)
    assert all(re.fullmatch(r"[a-z0-9-]+", d.id) for d in found)


def test_passages_refer_to_each_other() -> None:
    found = documents()
    linked = [
        d for d in found if any(o.title in " ".join(d.sentences) for o in found if o.title not in d.title)
    ]
    assert len(linked) >= 0.9 * len(found)


def test_every_question_has_two_passages_that_prove_it() -> None:
    by_title = {d.title: d for d in documents()}
    assert len(questions()) == 10
    for question in questions():
        facts = [by_title[title].sentences[i] for title, i in question.supporting_facts]
        assert len({title for title, _ in question.supporting_facts}) == 2
        if question.answer not in ("yes", "no") and question.type == "bridge":
            assert question.answer in " ".join(facts)
    kinds = {q.type for q in questions()}
    assert kinds == {"bridge", "comparison"}


async def test_the_team_answers_nine_of_ten_with_the_extractive_model() -> None:
    right, support = 0.0, []
    async with pc.Collective.local(model="extractive", seed=1) as c:
        c.add(*TEAM)
        for question in questions():
            result = await c.run(pc.Task(question.question, documents=documents()))
            right += answer_score(result.output["answer"], question.answer).em
            said = {(e["title"], e["sentence"]) for e in result.output["evidence"]}
            support.append(support_score(said, set(question.supporting_facts)).f1)
            assert result.usage.total_tokens > 0
            by_title = {d.title: d for d in documents()}
            for fact in result.output["evidence"]:
                assert by_title[fact["title"]].sentences[fact["sentence"]] == fact["text"]
    assert right >= 9
    assert sum(support) / len(support) >= 0.6


async def test_a_comparison_runs_its_two_searches_side_by_side() -> None:
    async with pc.Collective.local(model="extractive", seed=1) as c:
        c.add(*TEAM)
        result = await c.run(
            pc.Task("Who was born earlier, Ilse Hartwin or Jonas Pell?", documents=documents())
        )
    assert result.plan is not None
    free = [s.capability for s in result.plan.subtasks if not s.depends_on]
    assert free == ["retrieve.passages", "retrieve.passages"]
    assert "ilse-hartwin" in result.outputs["s1"]["documents"]
    assert "jonas-pell" in result.outputs["s2"]["documents"]


async def test_a_question_beyond_the_passages_is_not_made_up() -> None:
    async with pc.Collective.local(model="extractive", seed=1) as c:
        c.add(*TEAM)
        result = await c.run(pc.Task("Zxqv wvut?", documents=documents()))
    assert result.output == {"answer": "", "evidence": [], "confidence": 0.0}


async def test_without_documents_the_run_fails_with_the_next_step() -> None:
    async with pc.Collective.local(model="extractive", seed=1) as c:
        c.add(*TEAM)
        result = await c.run(pc.Task("Who designed the Ravenhook Bridge?"))
    assert result.status == "failed"
    assert "no documents" in result.failures[0].message
    assert result.failures[0].hint


async def test_a_generative_model_sees_few_passages_and_copies_labels() -> None:
    question = "In which village was the designer of the Ravenhook Bridge born?"

    def script(request: ChatRequest) -> Any:
        born = [d.title for d in request.documents].index("Tobias Rook") + 1
        return {"answer": "Kelby", "evidence": [f"{born}.0", f"{born}.0"]}

    async with (
        ScriptedModel(script) as model,
        pc.Collective.local(model=model.client, seed=1) as c,
    ):
        c.add(*TEAM)
        result = await c.run(pc.Task(question, documents=documents(), plan=question_plan(question)))
        requests = list(model.requests)
    assert result.output["answer"] == "Kelby"
    # The sentence that was cited, and the one that leads there.
    cited = [(e["document"], e["sentence"]) for e in result.output["evidence"]]
    assert cited == [("ravenhook-bridge", 1), ("tobias-rook", 0)]
    assert [request.metadata["task"] for request in requests] == ["answer"]
    for request in requests:
        assert [d.id for d in request.documents] == [str(i + 1) for i in range(len(request.documents))]
        assert len(request.documents) <= 6
        assert question in request.messages[-1].content
        labels = request.output.schema["properties"]["evidence"]["items"]["enum"]  # type: ignore[union-attr]
        shown = render_documents(request.documents)
        assert [f"({label})" for label in labels] == re.findall(r"^\([0-9.]+\)", shown, re.MULTILINE)


async def test_calls_of_a_run_begin_alike_for_the_prefix_cache() -> None:
    question = "Who was born earlier, Ilse Hartwin or Jonas Pell?"

    def script(request: ChatRequest) -> Any:
        if request.metadata["task"] == "compare":
            return {"facts": ["1.0"], "verdict": "Jonas Pell"}
        return {"answer": "Jonas Pell", "evidence": ["1.0"]}

    async with (
        ScriptedModel(script) as model,
        pc.Collective.local(model=model.client, seed=1) as c,
    ):
        c.add(*TEAM)
        await c.run(pc.Task(question, documents=documents(), plan=question_plan(question)))
        compared, answered = model.requests
    assert compared.messages[0] == answered.messages[0]
    assert compared.documents == answered.documents
    assert "Jonas Pell" in answered.messages[-1].content


async def test_labels_of_long_documents_are_a_pattern_and_those_that_point_nowhere_are_left_out() -> None:
    long = Document("long", "The Mill", tuple(f"The mill ground sack {i}." for i in range(300)))

    async with (
        ScriptedModel([{"answer": "sacks", "evidence": ["1.299", "1.300", "9.0"]}]) as model,
        pc.Collective.local(model=model.client, seed=1) as c,
    ):
        c.add(*TEAM)
        question = "What did the mill grind?"
        result = await c.run(pc.Task(question, documents=(long,), plan=question_plan(question)))
    assert [e["sentence"] for e in result.output["evidence"]] == [299]


@pytest.mark.parametrize("question", [q.question for q in questions()])
def test_the_rules_plan_ends_in_the_answer(question: str) -> None:
    plan = question_plan(question)
    assert len(plan.sinks) == 1
    assert plan[plan.sinks[0]].capability == "answer.question"
