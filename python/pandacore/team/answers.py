"""Answers to what agents ask: which are taken, and which are refused, by which error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pandacore import errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pandacore.task import Question

__all__ = ["check_answer"]


def check_answer(questions: Iterable[Question], known: Collection[str], question_id: str, value: Any) -> None:
    """Refuse an answer to nothing, a second answer, and one that breaks the question's schema.

    Raises
    ------
    UnknownQuestion, DuplicateAnswer, InvalidAnswer
        It counts for nothing.
    """
    from pandacore.models.strict_json import validate

    if question_id in known:
        raise errors.DuplicateAnswer(
            f"question {question_id!r} has its answer already", hint="the first answer stands"
        )
    asked = {question.id: question for question in questions}
    if question_id not in asked:
        raise errors.UnknownQuestion(
            f"no question {question_id!r} is open; open: {', '.join(asked) or 'none'}",
            hint="list them with `pandacore show RUN`",
        )
    schema = asked[question_id].schema
    try:
        json.dumps(value, allow_nan=False)
        if schema is not None:
            validate(value, schema)
    except (errors.InvalidOutput, TypeError, ValueError) as error:
        raise errors.InvalidAnswer(
            f"the answer does not fit: {getattr(error, 'message', error)}",
            where=f"question {question_id!r}",
            hint="see the schema of the question",
        ) from error
