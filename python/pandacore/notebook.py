"""What a notebook shows of a collective, a team and a result: small, static HTML, escaped, no network."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pandacore.agent import Agent
    from pandacore.task import Result, TeamView

__all__ = ["collective_html", "result_html", "team_html"]

MAX_ROWS = 50
"""Rows of any table; the rest is counted in one line."""
_WIDTH = 480
_BAR = 18


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left_out: int = 0) -> str:
    cells = "".join(f"<th style='text-align:left'>{escape(h)}</th>" for h in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows[:MAX_ROWS]
    )
    left_out += max(len(rows) - MAX_ROWS, 0)
    more = f"<tr><td colspan='{len(head)}'>… {left_out} more</td></tr>" if left_out else ""
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}{more}</tbody></table>"


def _short(text: object, limit: int = 120) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def collective_html(state: str, agents: Iterable[Agent], loads: dict[bytes, int]) -> str:
    """Counts, and a table of the capabilities with their agents and loads."""
    holders: Counter[str] = Counter()
    load: Counter[str] = Counter()
    total = 0
    for agent in agents:
        total += 1
        for name in agent.capabilities:
            holders[name] += 1
            load[name] += loads.get(agent.id, 0)
    rows = [[name, str(count), str(load[name])] for name, count in holders.most_common(MAX_ROWS)]
    table = _table(["capability", "agents", "load"], rows, left_out=len(holders) - len(rows))
    return f"<b>Collective</b> {escape(state)}, {total} agents{table}"


def team_html(team: TeamView) -> str:
    """A row per member: who, for what, and why."""
    return _table(
        ["agent", "capability", "why chosen"], [[m.name, m.capability, m.why] for m in team.members]
    )


def result_html(result: Result) -> str:
    """Status, output or failures, and a bar per subtask over the time of the run."""
    from pandacore.task import SubtaskCompleted, SubtaskFailed, SubtaskStarted

    shown = _short(result.value, 500) if result.ok else "; ".join(_short(f) for f in result.failures)
    began: dict[str, tuple[float, str]] = {}
    bars: list[tuple[str, str, float, float, bool]] = []
    for event in result.events:
        if isinstance(event, SubtaskStarted):
            began[event.subtask_id] = (event.ts, event.agent)
        elif isinstance(event, SubtaskCompleted | SubtaskFailed) and event.subtask_id in began:
            start, agent = began.pop(event.subtask_id)
            bars.append((event.subtask_id, agent, start, event.ts, isinstance(event, SubtaskCompleted)))
    scale = _WIDTH / max(result.wall_s, 1e-9)
    drawn = "".join(
        f"<rect x='{start * scale:.1f}' y='{i * _BAR}' width='{max((end - start) * scale, 2):.1f}' "
        f"height='{_BAR - 4}' fill='{'#4477aa' if ok else '#cc6677'}'/>"
        f"<text x='{_WIDTH + 8}' y='{i * _BAR + 12}' font-size='12' fill='currentColor'>"
        f"{escape(_short(f'{name} · {agent} · {end - start:.2f} s', 60))}</text>"
        for i, (name, agent, start, end, ok) in enumerate(bars[:MAX_ROWS])
    )
    height = max(min(len(bars), MAX_ROWS), 1) * _BAR
    return (
        f"<b>{escape(str(result.status))}</b> in {result.wall_s:.2f} s, {result.usage.total_tokens} tokens"
        f"<br>{escape(shown)}<br><svg role='img' aria-label='timeline of {len(bars)} subtasks' "
        f"width='{_WIDTH + 420}' height='{height}'>{drawn}</svg>{team_html(result.team)}"
    )
