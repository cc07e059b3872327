"""Shows runs as they happen: a live table for a person at a terminal, plain lines for everything else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pandacore.bench.text import columns, width
from pandacore.cli.output import Exit, clean, exit_code_of_kind, fail, say, style, switches, uses_terminal
from pandacore.config import Secret, redact
from pandacore.task import (
    PlanReady,
    QuestionAnswered,
    QuestionAsked,
    RunFinished,
    Status,
    SubtaskCompleted,
    SubtaskFailed,
    SubtaskProgress,
    SubtaskStarted,
    TeamFormed,
)

if TYPE_CHECKING:
    from pandacore.collective import Collective
    from pandacore.config import Settings
    from pandacore.models.handle import ModelHandle
    from pandacore.plan import Plan
    from pandacore.task import Budget, Event, Failure, Member, Result, Task, TeamView

__all__ = [
    "View",
    "blocking",
    "budget",
    "exit_code",
    "follow",
    "generates",
    "handle",
    "model",
    "place_of",
    "share",
    "spec",
    "tail",
    "view",
]

T = TypeVar("T")
_SHOWN: int = 72  # characters of an instruction or output in one line


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; Ctrl-C cancels it and lets it clean up first."""
    return asyncio.run(work)


def spec(settings: Settings, wanted: str | None) -> str:
    """Return the model to use: the one asked for, or the settings'; ``openai`` alone takes their name."""
    found = wanted or settings.model.spec
    return f"openai:{settings.model.name}" if found == "openai" and settings.model.name else found


def share(settings: Settings) -> None:
    """Let a model server that this process starts see what only files of settings say."""
    for name in ("base_url", "api_key"):
        value = getattr(settings.model, name)
        # What is in the environment is seen anyway; setting it twice would contradict its _FILE form.
        if value is not None and settings.origin(f"model.{name}").source != "env":
            text = value.reveal() if isinstance(value, Secret) else value
            os.environ[f"PANDACORE__MODEL__{name.upper()}"] = text


def handle(settings: Settings, wanted: str | None) -> ModelHandle:
    """Return the way to the model of the settings, or to another with the rest of the settings; not started.

    Raises
    ------
    ConfigError
        The text names no model.
    """
    from pandacore.models import ModelClientConfig, connect

    share(settings)
    return connect(
        spec(settings, wanted),
        config=ModelClientConfig(deadline_s=settings.model.timeout_s, max_retries=settings.model.retries),
    )


@contextlib.asynccontextmanager
async def model(settings: Settings, wanted: str | None) -> AsyncIterator[ModelHandle]:
    """Enter `handle`, and make sure that a server which was there before answers.

    Raises
    ------
    ConfigError
        The text names no model.
    ModelUnavailable
        The server cannot be started, or does not answer.
    """
    async with handle(settings, wanted) as entered:
        if entered.process is None:
            # A server of somebody else's: learn now, and not in the middle of a run, that it is not there.
            await entered.client.list_models(deadline_s=min(10.0, settings.model.timeout_s))
        yield entered


async def generates(model: ModelHandle) -> bool:
    """Say if the model writes text of its own, rather than quote."""
    known = await model.client.list_models()
    return bool(known) and known[0].generative


def budget(settings: Settings) -> Budget:
    """Return the caps of a run that the settings give."""
    from pandacore.task import Budget

    return Budget(tokens=settings.run.tokens, wall_s=settings.run.deadline_s, steps=settings.run.steps)


async def follow(
    collective: Collective,
    task: Task,
    *,
    shown: View,
    pattern: str = "star",
    budget: Budget | None = None,
    planner: str = "auto",
) -> Result:
    """Run a task, show each event, and return the result."""
    result: Result | None = None
    async with collective.stream(task, pattern=pattern, budget=budget, planner=planner) as events:
        async for event in events:
            shown.event(event)
            if isinstance(event, RunFinished):
                result = event.result
    assert result is not None  # RunFinished is the last event of every run
    return result


class View(Protocol):
    """Takes the events of one run; a context manager around it."""

    def event(self, event: Event) -> None:
        """Show one event."""

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...


def view(*, quiet: bool = False, places: Mapping[str, str] | None = None) -> View:
    """Return what fits the place: nothing when quiet, a live table on a terminal, otherwise lines.

    ``places`` says what to call hosts, by their ``did:key``; the team is then shown with them.
    """
    if quiet:
        return _Nothing()
    return _Live(places or {}) if uses_terminal() else _Lines(places or {})


def place_of(member: Member, places: Mapping[str, str]) -> str:
    """Return what the host of a member is called: its name in ``places``, or its plain address."""
    did, _, address = member.address.rpartition("@")
    return places.get(did, address)


class _Nothing:
    def __init__(self, places: Mapping[str, str] | None = None) -> None:
        self._places = places or {}

    def event(self, event: Event) -> None:
        pass

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Lines(_Nothing):
    """One line an event, in the order of their happening."""

    def event(self, event: Event) -> None:
        match event:
            case PlanReady(_, _, _, plan, source):
                say(f"\nplan (by {source})")
                say(_plan_table(plan))
            case TeamFormed(_, _, _, team):
                say("\nteam")
                say(_team_table(team, self._places))
                say("\nrun")
            case SubtaskStarted(_, ts, _, subtask_id, agent, attempt, capability, _):
                again = f", attempt {attempt}" if attempt > 1 else ""
                say(f"  {ts:6.2f} s  {subtask_id}  {_short(agent)} starts {capability}{again}")
            case SubtaskProgress(_, ts, _, subtask_id, agent, text):
                say(f"  {ts:6.2f} s  {subtask_id}  {_short(agent)}: {_short(text)}")
            case SubtaskCompleted(_, ts, _, subtask_id, agent, output, usage, _, _):
                tokens = f" ({usage.total_tokens} tokens)" if usage.total_tokens else ""
                say(f"  {ts:6.2f} s  {subtask_id}  {_short(agent)} done{tokens}: {_short(_brief(output))}")
            case SubtaskFailed(_, ts, _, subtask_id, agent, _, failure, retrying):
                then = "another agent takes over" if retrying else "given up"
                say(f"  {ts:6.2f} s  {subtask_id}  {_short(agent)} failed, {then}: {_reason(failure)}")
            case QuestionAsked(_, ts, run_id, question):
                asked = f"{_short(question.agent)} asks: {_short(question.text)}"
                say(f"  {ts:6.2f} s  {question.subtask_id}  {asked}")
                say(f"            pandacore answer {run_id} {shlex.quote(question.id)} VALUE")
            case QuestionAnswered(_, ts, _, question_id):
                say(f"  {ts:6.2f} s  {question_id} is answered")
            case _:
                pass


class _Live(_Nothing):
    """The plan as a table that changes in place; rich is imported only here."""

    def __init__(self, places: Mapping[str, str] | None = None) -> None:
        super().__init__(places)
        from rich.console import Console
        from rich.live import Live

        # rich would draw with characters that an ASCII console cannot show; it asks the stream's encoding.
        self._console = Console(no_color=switches.no_color or None, highlight=False, soft_wrap=False)
        self._live = Live(console=self._console, refresh_per_second=10, transient=False)
        self._rows: dict[str, list[str]] = {}
        self._started: dict[str, float] = {}
        self._on = False

    def event(self, event: Event) -> None:
        match event:
            case PlanReady(_, _, _, plan, source):
                say(f"\n{style('plan', 'bold')} (by {source})")
                say(_plan_table(plan))
                for subtask in plan.subtasks:
                    self._rows[subtask.id] = [subtask.id, subtask.capability, "", "waiting", "", ""]
            case TeamFormed(_, _, _, team):
                say(f"\n{style('team', 'bold')}")
                say(_team_table(team, self._places))
                say()
                self._live.start()
                self._on = True
            case SubtaskStarted(_, ts, _, subtask_id, agent, attempt, _, _):
                self._started[subtask_id] = ts
                state = "working" if attempt == 1 else f"attempt {attempt}"
                self._set(subtask_id, agent, state, "", "")
            case SubtaskProgress(_, ts, _, subtask_id, agent, text):
                self._set(subtask_id, agent, "working", self._took(subtask_id, ts), _short(text))
            case SubtaskCompleted(_, ts, _, subtask_id, agent, output, _, _, _):
                self._set(subtask_id, agent, "done", self._took(subtask_id, ts), _short(_brief(output)))
            case SubtaskFailed(_, ts, _, subtask_id, agent, _, failure, retrying):
                state = "retrying" if retrying else "failed"
                self._set(subtask_id, agent, state, self._took(subtask_id, ts), _reason(failure))
            case QuestionAsked(_, ts, _, question):
                told = f"{question.id}: {_short(question.text)}"
                self._set(
                    question.subtask_id, question.agent, "asks", self._took(question.subtask_id, ts), told
                )
            case _:
                pass

    def __exit__(self, *_: object) -> None:
        if self._on:
            self._live.stop()
            self._on = False

    def _took(self, subtask_id: str, ts: float) -> str:
        return f"{ts - self._started.get(subtask_id, ts):.2f} s"

    def _set(self, subtask_id: str, agent: str, state: str, took: str, text: str) -> None:
        row = self._rows.setdefault(subtask_id, [subtask_id, "", "", "", "", ""])
        row[2:] = [_short(agent), state, took, text]
        self._draw()

    def _draw(self) -> None:
        from rich.table import Table
        from rich.text import Text

        colors = {
            "asks": "magenta",
            "done": "green",
            "failed": "red",
            "retrying": "yellow",
            "working": "cyan",
        }
        rows = list(self._rows.values())[:200]  # a screen shows no more, and drawing must stay cheap
        table = Table(box=None, pad_edge=False)
        for i, title in enumerate(("", "capability", "agent", "state", "took", "")):
            # The last column gives way on a narrow screen, the others stay whole.
            needed = max([width(title), *(width(row[i]) for row in rows)]) if i < 5 else None
            table.add_column(title, no_wrap=True, overflow="ellipsis", min_width=needed)
        for row in rows:
            cells = [Text(cell) for cell in row]  # Text, so that brackets in outputs are not markup
            cells[3].stylize(colors.get(row[3], ""))
            table.add_row(*cells)
        self._live.update(table)


def _plan_table(plan: Plan) -> str:
    rows = [
        (s.id, s.capability, ", ".join(s.depends_on) or "-", _short(s.instruction))
        for s in list(plan.subtasks)[:100]
    ]
    if len(plan) > len(rows):
        rows.append(("...", f"{len(plan) - len(rows)} more", "", ""))
    return _indented(columns(("", "capability", "after", "instruction"), rows))


def _team_table(team: TeamView, places: Mapping[str, str]) -> str:
    rows = [(_short(m.name), m.capability, _short(m.why)) for m in team.members]
    if places:
        where = [place_of(m, places) for m in team.members]
        placed = [(name, at, *rest) for (name, *rest), at in zip(rows, where, strict=True)]
        return _indented(columns(("agent", "runs in", "capability", "why chosen"), placed))
    return _indented(columns(("agent", "capability", "why chosen"), rows))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _short(text: str) -> str:
    flat = clean(" ".join(text.split()))
    return flat if len(flat) <= _SHOWN else f"{flat[: _SHOWN - 3]}..."


def _reason(failure: Failure) -> str:
    return _short(redact(str(failure)))


def _brief(output: Any) -> str:
    """Say what an output is in a line: its text, or how many things of what name it holds."""
    match output:
        case str():
            return output
        case {"answer": str(answer)} if answer:
            return answer
        case dict():
            parts = []
            for key, value in output.items():
                parts.append(f"{len(value)} {key}" if isinstance(value, list | dict) else f"{key} {value}")
            return ", ".join(parts)
        case list():
            return f"{len(output)} items"
    return str(output)


def tail(result: Result) -> str:
    """Return the last line of a shown run: time, tokens, agents."""
    usage = result.usage
    tokens = f"{usage.total_tokens} tokens" if usage.total_tokens else "no tokens"
    agents = len({member.agent_id for member in result.team.members})
    return f"{result.wall_s:.2f} s, {tokens}, {agents} agents, run {result.run_id}"


def exit_code(result: Result, settings: Settings) -> Exit:
    """Return the exit code of a run, and print why it failed."""
    if result.status is Status.COMPLETED:
        return Exit.OK
    for failure in result.failures or ():
        fail(_failure_text(failure), _cap_hint(failure, result, settings) or failure.hint)
    if result.outputs:
        done = ", ".join(sorted(result.outputs))
        fail(f"run {result.run_id} {result.status}; finished before that: {done}")
    elif not result.failures:
        fail(f"run {result.run_id} {result.status}")
    codes = {exit_code_of_kind(failure.kind) for failure in result.failures}
    return Exit.UNREACHABLE if codes == {Exit.UNREACHABLE} else Exit.FAILED


_CAPS = {"token": "TOKENS", "subtask exec": "STEPS", "longer than": "DEADLINE_S"}


def _cap_hint(failure: Failure, result: Result, settings: Settings) -> str | None:
    """Say how to raise a cap from the command line; the error itself speaks of the Python argument."""
    if failure.kind == "DeadlineExceeded" and result.wall_s >= settings.run.deadline_s:
        names = ["DEADLINE_S"]  # a call inside the run met the run's own deadline first
    elif failure.kind == "BudgetExceeded":
        names = [name for words, name in _CAPS.items() if words in failure.message] or list(_CAPS.values())
    else:
        return None
    variables = " or ".join(f"PANDACORE__RUN__{name}" for name in names)
    return f"raise the cap of the run with {variables}, or under [run] in pandacore.toml"


def _failure_text(failure: Failure) -> str:
    place = " ".join(part for part in (failure.subtask_id, failure.agent and f"({failure.agent})") if part)
    where = f"{place}: " if place else ""
    return f"{where}{failure.kind}: {failure.message}"
