"""A team for questions over passages: it retrieves, reads, compares and answers.

The same code works with a generative model and with the extractive backend: every call carries a real
prompt and a JSON schema, and ``metadata`` for a backend that follows no prompts. Retrieval is a tool, BM25
and the links between passages, and calls no model: ranking every passage with a language model would cost
more than all the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from pandacore.agent import AgentContext, agent
from pandacore.errors import ConfigError
from pandacore.models.extractive.cite import support
from pandacore.models.extractive.hops import first_hop, second_hop
from pandacore.models.extractive.planning import plan_question
from pandacore.models.extractive.question import analyse
from pandacore.models.extractive.retrieve import Library
from pandacore.models.extractive.text import Passage
from pandacore.models.types import Document, Message
from pandacore.plan import Plan, Subtask
from pandacore.task import Task

__all__ = ["CAPABILITIES", "TEAM", "answerer", "comparer", "question_plan", "reader", "retriever"]

CAPABILITIES: Final = ("retrieve.passages", "read.passages", "reason.compare", "answer.question")
"""What the team can do, in the order of the work."""
MAX_SENT: Final = 6
"""Most passages that are sent to the model in one call."""

_MAX_LISTED: Final = 200  # labels that a schema spells out; a grammar of thousands is slow to follow
_ANSWER_TOKENS: Final = 256
_FIRST_HOP: Final = 3
_SECOND_HOP: Final = 4
_UNREAD: Final = 3  # of the second hop where nobody read in between: that plan is to save tokens

# Calls of one run share this text and then the passages, so an engine with a prefix cache reads them once.
_SYSTEM: Final = "You answer questions from passages. Each sentence begins with its label in brackets."
_READ_PROMPT: Final = (
    "Question: {question}\n"
    "Reply as JSON with two keys. facts: the labels of the sentences that bear on the question. names: the "
    "names in them, not in the question, that lead on to the answer."
)
_COMPARE_PROMPT: Final = (
    "Question: {question}\n"
    "Reply as JSON with two keys. facts: the labels of the sentences that state the compared property of "
    "each side. verdict: {form}."
)
# The evidence comes first: what a model has just copied it can answer from.
_ANSWER_PROMPT: Final = (
    "Question: {question}\n{found}"
    "Reply as JSON with two keys. evidence: the labels of two or three sentences, from two passages, that "
    "lead from the question to the answer. answer: what the question asks for and nothing else: {form}."
)


def _form(question: str) -> str:
    """What an answer looks like, by the question's wording: small models say "yes" where a name is asked."""
    asked = analyse(question)
    if asked.kind == "yesno":
        return "yes or no"
    if asked.kind == "choice" and len(asked.options) == 2:
        return " or ".join(asked.options)
    return "a name, date, number or few words exactly as the passages write them"


def _labels(documents: Sequence[Document]) -> list[str]:
    """The labels under which models see the sentences, see `pandacore.models.prompts`."""
    return [f"{n}.{i}" for n, d in enumerate(documents, 1) for i in range(len(d.sentences))]


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name != "confidence"],
        "additionalProperties": False,
    }


def _facts(documents: Sequence[Document]) -> dict[str, Any]:
    """The schema of a list of sentences. A label is copied whole: small models misread a pair of numbers."""
    labels = _labels(documents)
    listed = {"enum": labels} if 0 < len(labels) <= _MAX_LISTED else {"pattern": r"^[0-9]+\.[0-9]+$"}
    return {"type": "array", "maxItems": 8, "items": {"type": "string", **listed}}


def _read_schema(documents: Sequence[Document]) -> dict[str, Any]:
    names = {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 80}}
    return _object(facts=_facts(documents), names=names)


def _compare_schema(documents: Sequence[Document]) -> dict[str, Any]:
    return _object(facts=_facts(documents), verdict={"type": "string", "maxLength": 200})


def _answer_schema(documents: Sequence[Document]) -> dict[str, Any]:
    # The prompt does not ask for the confidence: a language model's own estimate says little.
    return _object(
        evidence=_facts(documents),
        answer={"type": "string", "maxLength": 300},
        confidence={"type": "number", "minimum": 0, "maximum": 1},
    )


@lru_cache(maxsize=32)
def _library(documents: tuple[Document, ...]) -> Library:
    return Library([Passage(d.id, d.title or d.id, d.sentences) for d in documents])


async def _indexed(task: Task) -> Library:
    if not task.documents:
        raise ConfigError(
            "the task has no documents to search",
            where="Task.documents",
            hint="pass documents=…, or `--docs` on the command line",
        )
    # Indexing a large set takes a while: a thread keeps the agents' loop free.
    return await asyncio.to_thread(_library, tuple(task.documents))


def _gathered(task: Task, key: str) -> list[str]:
    """The strings that the inputs list under a key, each once, in order."""
    found: dict[str, None] = {}
    for output in task.inputs.values():
        items = output.get(key) if isinstance(output, Mapping) else None
        if isinstance(items, Sequence) and not isinstance(items, str):
            found |= {item: None for item in items if isinstance(item, str)}
    return list(found)


def _question(task: Task) -> str:
    return task.root_text or task.text


def _named_in(library: Library, instruction: str, question: str) -> str:
    """The one thing that an instruction singles out from the question: quoted, or a passage's title."""
    quoted = re.search(r'"([^"]+)"', instruction)
    if quoted and instruction.strip() != question.strip() and question not in instruction:
        return quoted.group(1)
    claimed = library.claims(instruction)
    elsewhere = library.claims(question)
    if question in instruction or len(claimed) != 1 or set(claimed) == set(elsewhere):
        return ""
    return library.passages[next(iter(claimed))].title


@agent(
    capabilities=["retrieve.passages"],
    name="retriever",
    description="finds the passages that a question or a name needs",
    concurrency=4,
)
async def retriever(task: Task, ctx: AgentContext) -> dict[str, Any]:
    """Find passages: those the question names, or, once something was read, those to answer from."""
    library = await _indexed(task)
    question = _question(task)
    positions = {passage.id: i for i, passage in enumerate(library.passages)}
    started = [positions[d] for d in _gathered(task, "documents") if d in positions]
    if started:
        was_read = any(isinstance(output, Mapping) and "names" in output for output in task.inputs.values())
        limit = _SECOND_HOP if was_read else _UNREAD
        names = _gathered(task, "names")
        hits = await asyncio.to_thread(
            second_hop, library, question, started=started, names=names, limit=limit
        )
    else:
        about = _named_in(library, task.text, question)
        limit = 2 if about else _FIRST_HOP
        hits = await asyncio.to_thread(first_hop, library, question, about=about, limit=limit)
    titles = [library.passages[hit.index].title for hit in hits]
    ctx.progress("found " + "; ".join(titles) if titles else "nothing fits")
    return {
        "documents": [library.passages[hit.index].id for hit in hits],
        "scores": [hit.score for hit in hits],
    }


async def _passages(task: Task) -> list[Document]:
    """The documents that the inputs chose; without a choice, the best ones for the question."""
    by_id = {document.id: document for document in task.documents}
    chosen = [by_id[d] for d in _gathered(task, "documents") if d in by_id]
    if not chosen:
        library = await _indexed(task)
        question = _question(task)
        started = [hit.index for hit in first_hop(library, question)]
        hits = await asyncio.to_thread(second_hop, library, question, started=started, limit=_SECOND_HOP)
        chosen = [by_id[library.passages[hit.index].id] for hit in hits]
    return chosen[:MAX_SENT]


async def _ask(
    ctx: AgentContext,
    task: Task,
    documents: Sequence[Document],
    schema: Mapping[str, Any],
    *,
    name: str,
    prompt: str,
) -> dict[str, Any]:
    # Models see passages by number; numbered ids make every backend answer alike.
    numbered = [Document(str(i), d.title, d.sentences) for i, d in enumerate(documents, 1)]
    result = await ctx.model.generate_json(
        [Message.system(_SYSTEM), Message.user(prompt)],
        schema,
        documents=numbered,
        metadata={**task.metadata, "task": name, "question": _question(task)},
        max_tokens=_ANSWER_TOKENS,
    )
    value: dict[str, Any] = result.value
    return value


def _cited(documents: Sequence[Document], labels: Sequence[str]) -> list[tuple[int, int]]:
    """Labels as (document, sentence) positions, each once. What points nowhere is left out."""
    places = {f"{n + 1}.{i}": (n, i) for n, d in enumerate(documents) for i in range(len(d.sentences))}
    return list(dict.fromkeys(places[label] for label in labels if label in places))


def _quoted(documents: Sequence[Document], places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Facts by the documents' own ids, with their text."""
    return [
        {
            "document": documents[n].id,
            "title": documents[n].title,
            "sentence": i,
            "text": documents[n].sentences[i].strip(),
        }
        for n, i in places
    ]


@agent(
    capabilities=["read.passages"],
    name="reader",
    description="reads passages for what bears on a question, and for names that lead on",
    concurrency=4,
)
async def reader(task: Task, ctx: AgentContext) -> dict[str, Any]:
    """Read the passages found so far; say which sentences matter and which names lead on."""
    documents = await _passages(task)
    if not documents:
        return {"facts": [], "names": []}
    value = await _ask(
        ctx,
        task,
        documents,
        _read_schema(documents),
        name="read",
        prompt=_READ_PROMPT.format(question=_question(task)),
    )
    facts = _quoted(documents, _cited(documents, value["facts"]))
    if value["names"]:
        ctx.progress("leads on to " + "; ".join(value["names"][:3]))
    return {"facts": facts, "names": value["names"]}


@agent(
    capabilities=["reason.compare"],
    name="comparer",
    description="compares two things by what passages say about them",
    concurrency=4,
)
async def comparer(task: Task, ctx: AgentContext) -> dict[str, Any]:
    """Compare two things; the verdict is one of them, or yes or no."""
    documents = await _passages(task)
    if not documents:
        return {"facts": [], "verdict": "", "documents": []}
    value = await _ask(
        ctx,
        task,
        documents,
        _compare_schema(documents),
        name="compare",
        prompt=_COMPARE_PROMPT.format(question=_question(task), form=_form(_question(task))),
    )
    ctx.progress(f"verdict: {value['verdict'] or 'the passages do not say'}")
    return {
        "facts": _quoted(documents, _cited(documents, value["facts"])),
        "verdict": value["verdict"],
        "documents": [document.id for document in documents],
    }


def _proof(
    documents: Sequence[Document], question: str, answer: str, cited: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, int]]:
    library = Library([Passage(str(n), d.title or d.id, d.sentences) for n, d in enumerate(documents)])
    return support(library, question, answer, cited)


@agent(
    capabilities=["answer.question"],
    name="answerer",
    description="answers a question from passages, with the sentences that prove it",
    concurrency=4,
)
async def answerer(task: Task, ctx: AgentContext) -> dict[str, Any]:
    """Answer the whole question. An empty answer with confidence 0 says that the passages do not tell.

    The model answers and cites; rules then correct and complete what it cites, see
    `pandacore.models.extractive.cite`.
    """
    documents = await _passages(task)
    if not documents:
        ctx.progress("no passage has anything in common with the question")
        return {"answer": "", "evidence": [], "confidence": 0.0}
    verdicts = [
        output["verdict"]
        for output in task.inputs.values()
        if isinstance(output, Mapping) and isinstance(output.get("verdict"), str) and output["verdict"]
    ]
    found = f"A colleague compared and found: {'; '.join(verdicts)}\n" if verdicts else ""
    value = await _ask(
        ctx,
        task,
        documents,
        _answer_schema(documents),
        name="answer",
        prompt=_ANSWER_PROMPT.format(question=_question(task), form=_form(_question(task)), found=found),
    )
    answer = value["answer"].strip()
    cited = _cited(documents, value["evidence"])
    proof = await asyncio.to_thread(_proof, documents, _question(task), answer, cited)
    return {
        "answer": answer,
        "evidence": _quoted(documents, proof),
        "confidence": value.get("confidence"),
    }


TEAM: Final = (retriever, reader, comparer, answerer)
"""All four, to be given to `Collective.add`."""


def question_plan(question: str) -> Plan:
    """A plan for a generative model, by rules of the question's wording; costs no call.

    The extractive backend plans by the same rules, with a reader. Here nobody only reads: a language model
    would take nearly as long to read as to answer, and the links between passages lead on as well.
    """
    members = [name for name in CAPABILITIES if name != "read.passages"]
    return Plan(
        [
            Subtask(step.id, step.capability, step.instruction, step.depends_on)
            for step in plan_question(question, members)
        ]
    )
