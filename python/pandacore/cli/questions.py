"""Asks a team one question after another and prints what came of it; shared by ``demo`` and ``solve``."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pandacore.cli import runs
from pandacore.cli.output import Exit, clean, fail, json_line, say, style
from pandacore.config import Settings, redact
from pandacore.errors import ConfigError
from pandacore.task import Status, Task

if TYPE_CHECKING:
    from pandacore.agent import Agent
    from pandacore.collective import Collective
    from pandacore.models.handle import ModelHandle
    from pandacore.models.types import Document
    from pandacore.task import Result

__all__ = ["Asked", "Ways", "ask_all"]

PLANNERS = ("auto", "model", "rules")


@dataclass(frozen=True, slots=True)
class Asked:
    """One question; ``expected`` is its known answer, if there is one."""

    text: str
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Ways:
    """How the questions are answered and shown."""

    pattern: str = "star"
    model: str | None = None
    planner: str = "auto"
    seed: int | None = None
    hosts: int = 0
    """Host processes that the agents run in; 0: this one."""
    as_json: bool = False
    brief: bool = False

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise ConfigError(
                f"no planner {self.planner!r}", where="--planner", hint=f"use {', '.join(PLANNERS)}"
            )


async def ask_all(
    questions: Sequence[Asked], documents: Sequence[Document], settings: Settings, ways: Ways
) -> Exit:
    """Answer the questions with the built-in team, one after another, and return the exit code.

    With several questions a failed one does not stop the rest; the last line counts the right ones.
    """
    from pandacore.agent import Agent
    from pandacore.collective import Collective

    codes = []
    right = 0
    # The model server takes a second to start; meanwhile this process loads what it needs itself.
    loading = asyncio.create_task(asyncio.to_thread(_load_runtime))
    async with runs.model(settings, ways.model) as model, contextlib.AsyncExitStack() as stack:
        begin = Collective.join if ways.hosts else Collective.local
        collective = await stack.enter_async_context(
            begin(model=model.client, journal=settings.paths.journal, seed=ways.seed)
        )
        await loading
        from pandacore.demo.agents import CAPABILITIES, TEAM, question_plan

        places: dict[str, str] = {}
        if ways.hosts:
            places = await _start_hosts(collective, model, settings, ways, stack)
            await collective.wait_for(*CAPABILITIES)
        else:
            collective.add(*(_fitted(Agent.of(member), settings) for member in TEAM))
        # The extractive model plans by the same rules; a generative one would spend tokens on it.
        by_rules = ways.planner == "rules" or (ways.planner == "auto" and await runs.generates(model))
        for asked in questions:
            if not ways.as_json:
                say(f"{style('question', 'bold')}  {clean(asked.text)}")
            plan = question_plan(asked.text) if by_rules else None
            task = Task(asked.text, documents=documents, plan=plan)
            with runs.view(quiet=ways.as_json or ways.brief, places=places) as shown:
                result = await runs.follow(
                    collective,
                    task,
                    shown=shown,
                    pattern=ways.pattern,
                    budget=runs.budget(settings),
                    planner="model" if ways.planner == "model" else "auto",
                )
            found = _answer(result)
            is_right = asked.expected is not None and _same(found.text, asked.expected)
            right += is_right
            if ways.as_json:
                json_line(_as_json(asked, found, result, is_right, places))
            else:
                _print(asked, found, result, brief=ways.brief, is_right=is_right)
            code = runs.exit_code(result, settings)
            if code is Exit.OK and not found.text:
                code = Exit.FAILED
                fail(
                    "the passages do not answer this",
                    "give other documents, or a generative model with --model",
                )
            codes.append(code)
    if len(questions) > 1 and not ways.as_json:
        say(f"\n{right} of {len(questions)} right")
    return max(codes, default=Exit.OK)


def _load_runtime() -> None:
    for name in ("registry", "demo.agents", "team.driver", "team.host", "team.assembly"):
        importlib.import_module(f"pandacore.{name}")


async def _start_hosts(
    collective: Collective,
    model: ModelHandle,
    settings: Settings,
    ways: Ways,
    stack: contextlib.AsyncExitStack,
) -> dict[str, str]:
    """Start processes that share the team among them; answers what to call each, by its host's id."""
    from pandacore.demo.agents import TEAM
    from pandacore.launchers import HostSpec, LocalLauncher

    launcher = await stack.enter_async_context(LocalLauncher())
    served = f"grpc://{model.process.address}" if model.process is not None else model.spec
    names = [f"pandacore.demo.agents:{member.__name__}" for member in TEAM]
    cuts = [number * len(names) // ways.hosts for number in range(ways.hosts + 1)]
    hosts = await asyncio.gather(
        *(
            launcher.start(
                HostSpec(
                    collective.id,
                    agents=tuple(names[cuts[number] : cuts[number + 1]]),
                    limits=_limits(settings),
                    model=served,
                    seeds=(collective.seed_address.partition("/")[0],),
                )
            )
            for number in range(ways.hosts)
        )
    )
    return {host.did: f"process {host.pid}" for host in hosts}


def _limits(settings: Settings) -> dict[str, int]:
    """Return the limits of agents that the settings give, and not only by default."""
    return {
        name: getattr(settings.agents, name)
        for name in ("concurrency", "queue_limit")
        if settings.origin(f"agents.{name}").source != "default"
    }


def _fitted(member: Agent, settings: Settings) -> Agent:
    """Return the agent with the limits of the settings, where those give any."""
    limits = _limits(settings)
    return member.with_limits(**limits) if limits else member


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    evidence: tuple[dict[str, Any], ...] = ()
    confidence: float | None = None


def _answer(result: Result) -> _Answer:
    """Return the answer in a run's output; empty when the run failed or found nothing."""
    if result.status is not Status.COMPLETED:
        return _Answer("")
    match result.value:
        case {"answer": str(text), **more}:
            evidence = more.get("evidence")
            confidence = more.get("confidence")
            return _Answer(
                text.strip(),
                tuple(item for item in evidence if isinstance(item, dict))
                if isinstance(evidence, list)
                else (),
                float(confidence) if isinstance(confidence, int | float) else None,
            )
        case str(text):
            return _Answer(text.strip())
    return _Answer(str(result.value) if result.value is not None else "")


def _same(answer: str, expected: str) -> bool:
    from pandacore.evals.scoring import exact_match

    return exact_match(answer, expected) == 1.0


def _as_json(
    asked: Asked, found: _Answer, result: Result, is_right: bool, places: Mapping[str, str]
) -> dict[str, object]:
    row: dict[str, object] = {
        "question": asked.text,
        "answer": found.text,
        "status": str(result.status),
        "evidence": list(found.evidence),
        "confidence": found.confidence,
    }
    if asked.expected is not None:
        row |= {"expected": asked.expected, "right": is_right}
    return row | {
        "wall_s": round(result.wall_s, 4),
        "usage": asdict(result.usage),
        "failures": [{**asdict(failure), "message": redact(failure.message)} for failure in result.failures],
        "team": [
            {
                "name": m.name,
                "did": m.did,
                "capability": m.capability,
                "why": m.why,
                "address": m.address,
                "place": runs.place_of(m, places),
            }
            for m in result.team.members
        ],
        "plan": result.plan.to_dict()["subtasks"] if result.plan is not None else [],
        "run_id": result.run_id,
    }


def _print(asked: Asked, found: _Answer, result: Result, *, brief: bool, is_right: bool) -> None:
    if found.text:
        note = ""
        if asked.expected is not None:
            note = style("  right", "green") if is_right else style(f"  expected: {asked.expected}", "yellow")
        gap = "" if brief else "\n"
        say(f"{gap}{style('answer', 'bold')}    {style(clean(found.text), 'cyan')}{note}")
        for item in found.evidence if not brief else ():
            title = clean(str(item.get("title", item.get("document", ""))))
            text = f"{title}: {clean(str(item.get('text', '')))}"
            say(
                textwrap.fill(
                    text, 96, initial_indent="evidence  ", subsequent_indent=" " * 10, break_long_words=False
                )
            )
    if not brief:
        say()
    say(style(runs.tail(result), "dim"))
