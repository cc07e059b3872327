"""The backend without weights: it answers by quoting the passages of the request, by rules alone.

It is deterministic and says so: the same request gets the same answer, and nothing is made up. What it cannot
do, it refuses with a typed error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

import jsonschema_rs

from pandacore.errors import InvalidOutput, ModelError, UnsupportedFeature
from pandacore.models.backends.base import Backend
from pandacore.models.extractive import Library, Passage, analyse, compare, estimate_tokens, solve
from pandacore.models.extractive.hops import first_hop, read, second_hop
from pandacore.models.extractive.planning import plan_question
from pandacore.models.types import (
    ChatRequest,
    ChatResult,
    Document,
    FinishReason,
    JsonObject,
    JsonSchema,
    Message,
    ModelInfo,
    Role,
    TokenCount,
    Usage,
    constraint_name,
)

__all__ = ["ExtractiveBackend"]

MAX_DOCUMENTS: Final = 5_000
"""Most documents of one request; the work grows a little faster than their number."""
_LIBRARIES: Final = 16  # indexed document sets that are kept: the agents of a run ask about the same ones

_ONLY_QUOTES: Final = "the extractive model can only quote what it was given"


@lru_cache(maxsize=_LIBRARIES)
def _library(documents: tuple[Document, ...]) -> Library:
    return Library([Passage(d.id, d.title or d.id, d.sentences) for d in documents])


class ExtractiveBackend(Backend):
    """Questions about given passages, answered without a model's weights.

    Parameters
    ----------
    concurrency : int
        Requests that are worked on at once; each takes one thread and a few milliseconds.

    Notes
    -----
    ``metadata["task"]`` says what to do; the question is ``metadata["question"]`` if that is given, else the
    last user message. Every task gives a JSON object:

    ``plan``
        ``{"subtasks": [{"id", "capability", "instruction", "depends_on"}]}`` over the capabilities that
        ``metadata["capabilities"]`` lists as JSON; needs no documents.
    ``retrieve``
        ``{"documents": [id], "scores": [number]}``, best first, at most ``metadata["limit"]`` (default 4).
    ``read``
        ``{"facts": [{"document", "sentence", "text"}], "names": [str]}``: sentences that bear on the
        question, and names that may lead on to other passages.
    ``compare``
        ``{"verdict": str, "reason": str, "facts": […]}``.
    ``answer`` (the default)
        ``{"answer": str, "evidence": [{"document", "sentence"}], "confidence": number}``; an empty answer
        with confidence 0 if nothing in the documents fits. Without a JSON constraint the text is the answer
        alone.

    Sentences count from 0. Where a schema wants a string in place of a fact's object, the fact is given by
    its label in `pandacore.models.prompts`: ``"2.0"`` is the first sentence of the second document. Token
    counts are estimates of word pieces.
    """

    name: ClassVar[str] = "extractive"

    def __init__(self, *, concurrency: int = 4) -> None:
        self.concurrency = concurrency
        self._tasks: Mapping[str, Callable[[ChatRequest, str], dict[str, Any]]] = {
            "plan": _plan,
            "retrieve": _retrieve,
            "read": _read,
            "compare": _compare,
            "answer": _answer,
        }

    async def models(self) -> Sequence[ModelInfo]:
        """The one model, ``extractive``."""
        return [
            ModelInfo(
                "extractive",
                self.name,
                structured_output=("json_schema", "json_object"),
                generative=False,
            )
        ]

    async def chat(self, request: ChatRequest) -> ChatResult:
        """Answer by quoting.

        Raises
        ------
        UnsupportedFeature
            No documents, an unknown task, tools, or an output constraint that quoting cannot satisfy.
        """
        # A thread keeps the server's loop free; the work is a few milliseconds and cannot be interrupted.
        return await asyncio.to_thread(self._chat, request)

    async def count_tokens(
        self, messages: Sequence[Message], documents: Sequence[Document] = (), *, model: str = ""
    ) -> TokenCount:
        """Estimated word pieces of a prompt."""
        return TokenCount(_prompt_tokens(messages, documents), exact=False)

    def _chat(self, request: ChatRequest) -> ChatResult:
        if request.tools and request.tool_choice != "none":
            raise UnsupportedFeature(
                f"{_ONLY_QUOTES}; it calls no tools",
                where="tools",
                hint="use a generative model (`pandacore model --help`)",
            )
        if request.output is not None and not isinstance(request.output, JsonSchema | JsonObject):
            raise UnsupportedFeature(
                f"{_ONLY_QUOTES}; it cannot follow a {constraint_name(request.output)} constraint",
                where="structured_output",
                hint="ask for a JSON schema, or use a generative model",
            )
        task = request.metadata.get("task", "answer")
        work = self._tasks.get(task)
        if work is None:
            raise UnsupportedFeature(
                f"{_ONLY_QUOTES}; it knows no task {task!r}",
                where="metadata.task",
                hint=f"use one of {', '.join(self._tasks)}, or a generative model",
            )
        if task != "plan":
            _check_documents(request)
        value = work(request, _question(request, task))
        match request.output:
            case JsonSchema(schema):
                text = json.dumps(_conform(value, schema, request, task), ensure_ascii=False)
            case JsonObject():
                text = json.dumps(value, ensure_ascii=False)
            case _:
                text = _as_text(value, task)
        return _result(request, text)


def _check_documents(request: ChatRequest) -> None:
    if not any(document.sentences for document in request.documents):
        raise UnsupportedFeature(
            f"{_ONLY_QUOTES}, and the request has no documents",
            where="documents",
            hint="give it documents (`--docs`), or use a generative model (`pandacore model --help`)",
        )
    if len(request.documents) > MAX_DOCUMENTS:
        raise UnsupportedFeature(
            f"{len(request.documents)} documents, at most {MAX_DOCUMENTS} are searched at once",
            where="documents",
            hint="retrieve first and send fewer",
        )


def _question(request: ChatRequest, task: str) -> str:
    given = request.metadata.get("question", "").strip()
    if given:
        return given
    said = [m.content.strip() for m in request.messages if m.role is Role.USER and m.content.strip()]
    if not said:
        raise UnsupportedFeature(
            f"{_ONLY_QUOTES}, and no user message asks for anything",
            where="messages",
            hint="put the question into the last user message",
        )
    # A planner that was told why its plan is bad gets the same question again: the first one.
    return said[0] if task == "plan" else said[-1]


def _plan(request: ChatRequest, question: str) -> dict[str, Any]:
    raw = request.metadata.get("capabilities", "")
    try:
        names = json.loads(raw) if raw else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidOutput(
            "capabilities is not a JSON list of names",
            where="metadata.capabilities",
            hint='send something like ["retrieve.passages", "answer.question"]',
        )
    steps = plan_question(question, names)
    if not steps:
        raise UnsupportedFeature(
            f"{_ONLY_QUOTES}: it plans questions over passages, and no capability of "
            f"[{', '.join(names[:8])}] fits the words of this task",
            where="metadata.capabilities",
            hint="give the task its capabilities or a plan, or use a generative model",
        )
    return {
        "subtasks": [
            {
                "id": step.id,
                "capability": step.capability,
                "instruction": step.instruction,
                "depends_on": list(step.depends_on),
            }
            for step in steps
        ]
    }


def _retrieve(request: ChatRequest, question: str) -> dict[str, Any]:
    library = _library(request.documents)
    started = [hit.index for hit in first_hop(library, question)]
    hits = second_hop(library, question, started=started, limit=_limit(request))
    return {
        "documents": [library.passages[hit.index].id for hit in hits],
        "scores": [hit.score for hit in hits],
    }


def _limit(request: ChatRequest) -> int:
    raw = request.metadata.get("limit", "4")
    if not raw.isdigit() or not 1 <= int(raw) <= MAX_DOCUMENTS:
        raise UnsupportedFeature(
            f"limit {raw!r} is not a number from 1 to {MAX_DOCUMENTS}",
            where="metadata.limit",
            hint="leave it out for 4",
        )
    return int(raw)


def _facts(library: Library, evidence: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {
            "document": library.passages[index].id,
            "sentence": position,
            "text": library.passages[index].sentences[position].strip(),
        }
        for index, position in evidence
    ]


def _read(request: ChatRequest, question: str) -> dict[str, Any]:
    library = _library(request.documents)
    reading = read(library, question)
    return {"facts": _facts(library, reading.facts), "names": list(reading.names)}


def _compare(request: ChatRequest, question: str) -> dict[str, Any]:
    library = _library(request.documents)
    outcome = compare(library, analyse(question))
    if outcome is None:
        return {"verdict": "", "reason": "the passages do not say", "facts": []}
    return {
        "verdict": outcome.answer,
        "reason": outcome.reason,
        "facts": _facts(library, outcome.evidence),
    }


def _answer(request: ChatRequest, question: str) -> dict[str, Any]:
    library = _library(request.documents)
    found = solve(library, question)
    if found is None:
        return {"answer": "", "evidence": [], "confidence": 0.0}
    return {
        "answer": found.text,
        "evidence": [
            {"document": library.passages[index].id, "sentence": position}
            for index, position in found.evidence
        ],
        "confidence": round(found.confidence, 3),
    }


def _as_text(value: dict[str, Any], task: str) -> str:
    if task != "answer":
        return json.dumps(value, ensure_ascii=False)
    if not value["answer"]:
        raise ModelError(
            f"{_ONLY_QUOTES}, and nothing in the documents fits the question",
            where="documents",
            hint="give other documents, or use a generative model",
        )
    return str(value["answer"])


def _pruned(value: Any, schema: Any, numbers: Mapping[str, int]) -> Any:
    """A value in the form of a schema, at any depth: no keys that it does not allow, labels for facts."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, dict):
        if schema.get("type") == "string" and {"document", "sentence"} <= value.keys():
            return f"{numbers[value['document']]}.{value['sentence']}"
        known = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False
        return {k: _pruned(v, known.get(k), numbers) for k, v in value.items() if not closed or k in known}
    if isinstance(value, list):
        return [_pruned(item, schema.get("items"), numbers) for item in value]
    return value


def _conform(
    value: dict[str, Any], schema: Mapping[str, Any], request: ChatRequest, task: str
) -> dict[str, Any]:
    """The part of a reply that a schema asks for; refused if that does not satisfy the schema."""
    value = _pruned(value, schema, {document.id: n for n, document in enumerate(request.documents, 1)})
    try:
        validator = jsonschema_rs.validator_for(dict(schema))
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise UnsupportedFeature(f"not a valid JSON schema: {error}", where="structured_output") from None
    problem = next(iter(validator.iter_errors(value)), None)
    if problem is not None:
        raise UnsupportedFeature(
            f"{_ONLY_QUOTES}; its reply to task {task!r} does not satisfy the schema: {problem.message}",
            where="structured_output",
            hint="ask for the keys that docs/models.md lists for the task, or use a generative model",
        )
    return value


def _prompt_tokens(messages: Sequence[Message], documents: Sequence[Document]) -> int:
    texts = [message.content for message in messages]
    texts += [part for document in documents for part in (document.title, *document.sentences)]
    return sum(estimate_tokens(text) for text in texts)


def _result(request: ChatRequest, text: str) -> ChatResult:
    finish = FinishReason.STOP
    for mark in request.stop:
        text = text.split(mark, 1)[0] if mark else text
    completion = estimate_tokens(text)
    if request.max_tokens is not None and completion > request.max_tokens:
        finish = FinishReason.LENGTH
        while text and estimate_tokens(text) > request.max_tokens:
            text = text[: max(0, len(text) - max(1, len(text) // 20))]
        completion = estimate_tokens(text)
    prompt = _prompt_tokens(request.messages, request.documents)
    return ChatResult(
        text,
        finish_reason=finish,
        usage=Usage(prompt, completion, prompt + completion),
        model="extractive",
        request_id=request.request_id,
    )
