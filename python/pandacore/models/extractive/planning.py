"""A plan for a question, from its wording and the capabilities at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pandacore.models.extractive.question import analyse
from pandacore.models.extractive.text import fold, stem, tokenize

__all__ = ["Step", "plan_question"]

# What a capability's name may say for each part of the work.
_ROLES = {
    "retrieve": "retrieve retrieval search find lookup fetch",
    "read": "read reading extract quote",
    "compare": "compare comparison",
    "answer": "answer answering reply respond",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One subtask: ``depends_on`` holds ids of earlier steps."""

    id: str
    capability: str
    instruction: str
    depends_on: tuple[str, ...] = ()


def _role(capabilities: Sequence[str], role: str) -> str:
    wanted = {stem(word) for word in _ROLES[role].split()}
    for name in capabilities:
        if wanted & {stem(word) for word in fold_words(name)}:
            return name
    return ""


def fold_words(name: str) -> list[str]:
    """The words of a capability's name.

    Examples
    --------
    >>> fold_words("retrieve.passages")
    ['retrieve', 'passages']
    """
    return [
        fold(token.text) for token in tokenize(name.replace(".", " ").replace("_", " ").replace("-", " "))
    ]


def plan_question(question: str, capabilities: Sequence[str]) -> list[Step]:
    """Split a task into steps over the given capabilities.

    A question over passages becomes retrieve, read, retrieve, answer (without a reader, the second search
    goes by the links between passages alone); a comparison of two named things
    becomes two retrievals side by side, a comparison and an answer. Other tasks become a chain of the
    capabilities whose words the text uses, in the order of the text.

    Returns
    -------
    list of Step
        Empty if no capability fits.
    """
    retrieve, answer = _role(capabilities, "retrieve"), _role(capabilities, "answer")
    if answer:
        return _question_steps(question, capabilities, retrieve, answer)
    words = [stem(token.text) for token in tokenize(question)]
    placed: list[tuple[int, str]] = []
    for name in capabilities:
        at = [words.index(stem(word)) for word in fold_words(name) if stem(word) in words]
        if at:
            placed.append((min(at), name))
    placed.sort()
    return [
        Step(f"s{i}", name, question, (f"s{i - 1}",) if i > 1 else ())
        for i, (_, name) in enumerate(placed, 1)
    ]


def _question_steps(question: str, capabilities: Sequence[str], retrieve: str, answer: str) -> list[Step]:
    asked = analyse(question)
    if not retrieve:
        return [Step("s1", answer, question)]
    compare, read = _role(capabilities, "compare"), _role(capabilities, "read")
    if len(asked.options) == 2:
        first, second = asked.options
        steps = [
            Step("s1", retrieve, f'Find the passages about "{first}".'),
            Step("s2", retrieve, f'Find the passages about "{second}".'),
        ]
        if compare:
            steps.append(Step("s3", compare, f'Compare "{first}" and "{second}": {question}', ("s1", "s2")))
        steps.append(Step(f"s{len(steps) + 1}", answer, question, tuple(s.id for s in steps)))
        return steps
    steps = [Step("s1", retrieve, f"Find the passages that the question names: {question}")]
    if not read:
        return [
            *steps,
            Step("s2", retrieve, f"Find the passages that those lead on to: {question}", ("s1",)),
            Step("s3", answer, question, ("s2",)),
        ]
    return [
        *steps,
        Step("s2", read, f"Read them and name what the question leads on to: {question}", ("s1",)),
        Step("s3", retrieve, f"Find the passages about what was found: {question}", ("s1", "s2")),
        Step("s4", answer, question, ("s2", "s3")),
    ]
