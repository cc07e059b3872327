"""`make mutants`: its table names every planted fault, and it tells noticed faults from missed ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "mutants.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_every_fault_that_can_be_planted_is_in_the_table() -> None:
    planted: set[str] = set()
    for path in (ROOT / "python" / "pandacore").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        planted |= set(re.findall(r"\"(\w+)\" (?:not )?in (?:self\.planted|Machine\.planted|PLANTED)", text))
        planted |= set(re.findall(r"'(\w+)' (?:not )?in PLANTED", text))
    listed = re.findall(r"Mutant\(\s*\"(\w+)\"", SCRIPT.read_text(encoding="utf-8"))
    assert len(listed) >= 12
    assert set(listed) == planted
    assert len(listed) == len(set(listed))


@pytest.mark.slow
def test_three_quick_faults_are_noticed() -> None:
    done = run("--smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 noticed" in done.stdout
    assert "MISSED" not in done.stdout


def test_an_unknown_fault_is_refused() -> None:
    done = run("nonesuch")
    assert done.returncode == 2
    assert "no such fault: nonesuch" in done.stderr
