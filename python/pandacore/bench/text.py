"""Plain-text tables, without a dependency: for reports in pipes, logs and narrow consoles."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence

__all__ = ["columns", "number", "width"]


def width(text: str) -> int:
    """Return how many terminal cells a text takes: East Asian wide characters take two, marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def columns(head: Sequence[str], body: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Align rows of text under a head; the columns numbered in ``right`` are set flush right."""
    widths = [max([width(title), *(width(line[i]) for line in body)]) for i, title in enumerate(head)]
    lines = []
    for line in (head, ["-" * w for w in widths], *body):
        cells = []
        for i, cell in enumerate(line):
            gap = " " * (widths[i] - width(cell))
            cells.append(gap + cell if i in right else cell + gap)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Return a number short enough for a table; empty for None."""
    if value is None:
        return ""
    if value and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
