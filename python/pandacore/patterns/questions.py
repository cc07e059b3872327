"""Subtasks that wait for an answer from outside: what is asked, what was answered, what is still open.

A *pause* is the durable state of one such subtask, a JSON object: its ``id``, the ``agent`` that asked, the
``state`` that the agent wants back, the ``questions`` by their own id and the ``answers`` so far. The same
functions serve star, chain and mesh, which only differ in where they keep their pauses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pandacore import errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pandacore.patterns.base import Asked

__all__ = ["answered", "loop_of", "open_questions", "paused", "question_id", "resumption", "waiting"]


def question_id(subtask_id: str, own_id: str) -> str:
    """The id of a question in its run: ids of different subtasks never clash."""
    return f"{subtask_id}:{own_id}"


def paused(pause: Mapping[str, Any] | None, asked: Asked, agent: str | None) -> dict[str, Any]:
    """The pause of a subtask after its agent has asked (again). Answers that are there stay."""
    old = pause or {"questions": {}, "answers": {}}
    return {
        "id": asked.subtask_id,
        "agent": agent,
        "state": asked.state,
        "questions": {**old["questions"], **{str(q["id"]): dict(q) for q in asked.questions}},
        "answers": dict(old["answers"]),
    }


def loop_of(given: Collection[str], asked: Asked) -> errors.LoopDetected | None:
    """The error of an agent that was given every answer to what it asks: it would ask for ever."""
    known = [str(q["id"]) for q in asked.questions]
    if not all(own in given for own in known):
        return None
    cycle = [f"{asked.subtask_id} asks {own}" for own in (*known, known[0])]
    return errors.LoopDetected(
        f"{asked.subtask_id!r} asked again what was answered: {', '.join(known)}",
        cycle=cycle,
        where=f"subtask {asked.subtask_id!r}",
        hint="read Task.answers before asking, or give the next question an id of its own",
    )


def waiting(pause: Mapping[str, Any] | None) -> list[str]:
    """The questions of a pause that have no answer, by their own ids."""
    return [] if pause is None else [own for own in pause["questions"] if own not in pause["answers"]]


def resumption(pause: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent that goes on gets in its inputs, under ``_answers``."""
    return {"values": dict(pause["answers"]), "state": pause["state"]}


def answered(pauses: Mapping[str, Mapping[str, Any]], question: str) -> tuple[str, str] | None:
    """Where an open question is: the key of its pause, and its own id there."""
    for key, pause in pauses.items():
        for own in waiting(pause):
            if question_id(pause["id"], own) == question:
                return key, own
    return None


def open_questions(pauses: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every question without an answer, with its id in the run, its subtask, and who asked."""
    return [
        {
            **pause["questions"][own],
            "id": question_id(pause["id"], own),
            "subtask": pause["id"],
            "agent": pause["agent"],
        }
        for pause in pauses
        for own in waiting(pause)
    ]
