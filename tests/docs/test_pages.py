"""What README and pages claim is executed: Python blocks run, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?!https?:|#|mailto:)([^)#\s]+)")
COMMAND = re.compile(r"^(?:\$ )?pandacore ([a-z]+)", re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    """Every Python block that is not marked ``no-run``, with the place it stands at."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text[: match.start()].count("\n") + 2
            if not match[1]:
                found.append((f"{page.relative_to(ROOT)}:{line}", match[2]))
    return found


@pytest.mark.parametrize(("place", "code"), blocks(), ids=[place for place, _ in blocks()])
def test_python_block_runs_as_a_program(place: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{place}:\n{done.stderr}"
    # A block says in a comment what its prints show.
    for expected in re.findall(r"print\(.*\)  # (.+)", code):
        assert expected in done.stdout, f"{place}: {expected!r} is not in {done.stdout!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    if commands := set(COMMAND.findall(text)):
        shown = subprocess.run(
            [sys.executable, "-m", "pandacore.cli.main", "--help"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for command in commands:
            assert re.search(rf"^\W*{command}\b", shown, re.MULTILINE), f"no command {command!r}"


def test_the_quickstart_is_at_most_ten_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    match = BLOCK.search(text)
    assert match is not None
    assert len([line for line in match[2].splitlines() if line.strip()]) <= 10
