"""Where a plan comes from: the user, a model, or a rule over the capabilities."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from pandacore.errors import InvalidOutput, InvalidPlan, UnknownCapability
from pandacore.models.types import Message
from pandacore.names import resolve
from pandacore.plan import Plan, Subtask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandacore.models.bound import BoundModel
    from pandacore.task import Task

__all__ = ["MAX_PLANNED", "match_capability", "plan_by_model", "plan_by_rule", "rank_by_model"]

MAX_PLANNED: Final = 64
"""Most subtasks that a model may plan."""
MAX_VOCABULARY: Final = 200
"""Most capabilities that are shown to a planning model."""
MAX_TITLES: Final = 50
"""Most document titles that a planning model is told; the texts go to the agents, not to the planner."""
_SHOWN: Final = 4_000
_REPAIRS: Final = 2

PLAN_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "subtasks": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PLANNED,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "minLength": 1, "maxLength": 32},
                    "capability": {"type": "string", "minLength": 1},
                    "instruction": {"type": "string", "minLength": 1},
                    "depends_on": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["id", "capability", "instruction", "depends_on"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["subtasks"],
    "additionalProperties": False,
}


def plan_by_rule(task: Task, vocabulary: Mapping[str, str]) -> Plan:
    """One subtask per wanted capability, all with the task's text and none waiting for another.

    Without wanted capabilities there is one subtask, for the capability whose words fit the text best.

    Raises
    ------
    UnknownCapability
        Nothing fits, or two capabilities fit equally well.
    """
    wanted = tuple(task.capabilities) or (match_capability(task.text, vocabulary),)
    return Plan([Subtask(f"s{i}", name, task.text) for i, name in enumerate(wanted, 1)])


def match_capability(text: str, vocabulary: Mapping[str, str]) -> str:
    """The capability that shares most words with ``text``, by its name first and its description second.

    Raises
    ------
    UnknownCapability
        No capability shares a word, or two tie.
    """
    if len(vocabulary) == 1:
        return next(iter(vocabulary))
    words = _words(text)
    scores = {
        name: (len(words & _words(name)), len(words & _words(description)))
        for name, description in vocabulary.items()
    }
    best = max(scores.values(), default=(0, 0))
    fits = sorted(name for name, score in scores.items() if score == best)
    if best == (0, 0) or len(fits) > 1:
        tied = best != (0, 0)
        listed = ", ".join(fits[:8] if tied else sorted(vocabulary)[:8])
        raise UnknownCapability(
            f"the text fits {'several capabilities' if tied else 'none of the capabilities'}: {listed}",
            where="Task.capabilities",
            hint="name the capabilities in the task, give a plan, or start the collective with a model",
        )
    return fits[0]


def _words(text: str) -> set[str]:
    # Six letters stand for a word, so that "summarise", "Summary" and "summarises" meet.
    return {w[:6] for w in re.findall(r"[^\W_]+", text.casefold()) if len(w) > 2}


async def plan_by_model(
    task: Task,
    vocabulary: Mapping[str, str],
    model: BoundModel,
    stuck: Mapping[str, Any] | None = None,
) -> Plan:
    """Ask the model for a plan over the known capabilities.

    ``stuck`` is what a run knows when its plan got stuck: the finished ``outputs`` and the ``errors``; the
    new plan shall repeat finished subtasks word by word, so that their outputs are kept.

    The output is constrained to :data:`PLAN_SCHEMA`. Names are resolved in code (`pandacore.names.resolve`);
    a plan with an unknown name, a cycle or a dangling dependency is sent back with the reason, twice at most.

    Raises
    ------
    InvalidOutput
        No valid plan after the repairs.
    ModelError, BudgetExceeded
        The model call itself failed.
    """
    names = list(task.capabilities) or list(vocabulary)
    shown = {name: vocabulary.get(name, "") for name in names[:MAX_VOCABULARY]}
    titles = "; ".join(d.title for d in task.documents[:MAX_TITLES])
    listing = "\n".join(f"- {name}: {text}" if text else f"- {name}" for name, text in shown.items())
    messages = [
        Message.system(
            "Split the task into the fewest subtasks that agents with the listed capabilities can do. Use "
            "each capability name exactly as listed. A subtask gets the outputs of those it depends on. The "
            f"last subtask gives the answer.\n\nCapabilities:\n{listing}"
            + (f"\n\nDocuments at hand: {titles}" if titles else "")
        ),
        Message.user(task.text),
    ]
    if stuck is not None:
        messages.append(Message.user(_stuck_text(stuck)))
    metadata = {**task.metadata, "task": "plan", "capabilities": json.dumps(list(shown), ensure_ascii=False)}
    for repair in range(_REPAIRS + 1):
        result = await model.generate_json(messages, PLAN_SCHEMA, metadata=metadata, max_tokens=1024)
        try:
            return _checked(result.value, shown)
        except (InvalidPlan, UnknownCapability) as error:
            if repair == _REPAIRS:
                raise InvalidOutput(
                    f"no valid plan in {_REPAIRS + 1} answers; the last: {error}",
                    where="planning",
                    hint="give the task a plan or its capabilities",
                ) from error
            messages = [
                *messages,
                Message.assistant(result.text),
                Message.user(f"That plan is not valid: {error}. Give the corrected plan."),
            ]
    raise AssertionError("unreachable")


async def rank_by_model(task: Task, proposals: Mapping[str, Any], model: BoundModel) -> list[str]:
    """Ask the model which of the proposed plans fit the task best.

    Raises
    ------
    InvalidOutput
        The answer names something else.
    ModelError, BudgetExceeded
        The model call itself failed.
    """
    names = sorted(proposals)
    labels = {f"plan {n}": digest for n, digest in enumerate(names, 1)}
    listing = "\n\n".join(
        f"{label}: {json.dumps(proposals[digest], ensure_ascii=False)[:_SHOWN]}"
        for label, digest in labels.items()
    )
    schema = {
        "type": "object",
        "properties": {"ranking": {"type": "array", "items": {"enum": list(labels)}}},
        "required": ["ranking"],
        "additionalProperties": False,
    }
    messages = [
        Message.system("Rank the plans for the task, best first: the fewest steps that surely answer it."),
        Message.user(f"Task: {task.text}\n\n{listing}"),
    ]
    metadata = {**task.metadata, "task": "rank"}
    result = await model.generate_json(messages, schema, metadata=metadata, max_tokens=256)
    return list(dict.fromkeys(labels[label] for label in result.value["ranking"]))


def _stuck_text(stuck: Mapping[str, Any]) -> str:
    plan = json.dumps(stuck.get("plan"), ensure_ascii=False)[:_SHOWN]
    failed = "; ".join(f"{k or 'run'}: {e.get('message', '')}" for k, e in stuck.get("errors", {}).items())
    done = ", ".join(stuck.get("outputs", {})) or "none"
    return (
        f"The plan {plan} got stuck: {failed[:_SHOWN]}. Finished subtasks: {done}. Give another plan; repeat "
        "the finished subtasks exactly, and find another way for the rest."
    )


def _checked(value: Mapping[str, Any], vocabulary: Mapping[str, str]) -> Plan:
    # Resolved before the plan checks names: what a model decorates a name with may not be part of one.
    subtasks = [{**item, "capability": resolve(item["capability"], vocabulary)} for item in value["subtasks"]]
    return Plan.from_dict({"subtasks": subtasks})
