"""Every example runs as a program, prints something and nothing on stderr."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
NEEDS = {"langgraph_orchestrator": "langgraph"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path: Path) -> None:
    extra = NEEDS.get(path.stem)
    if extra is not None and importlib.util.find_spec(extra) is None:
        pytest.skip(f"{extra} is not installed")
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr == ""


def test_examples_are_short() -> None:
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 80, f"{path.name} is longer than 80 lines"
