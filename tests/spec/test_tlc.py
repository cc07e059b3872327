"""The TLA+ specifications: TLC finds no error in them, and finds each planted one."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> Any:
    """``spec/run.py`` as a module."""
    spec = importlib.util.spec_from_file_location("spec_run", ROOT / "spec" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["spec_run"] = module
    spec.loader.exec_module(module)
    return module


RUN = load()
WHY_NOT = RUN.missing()
SHORT = [r for r in RUN.RUNS if not r.long]
SPECS = sorted((ROOT / "spec").glob("*.tla"))


def test_every_specification_has_a_run_that_must_hold_and_a_bug_that_must_be_found() -> None:
    names = {path.stem for path in SPECS}
    assert names == {r.module for r in SHORT} == {r.module for r in RUN.BUGS}
    # TLC takes long over the many fair steps of TeamMachine; the Rust tests check the code's own liveness.
    assert all(any(r.live and r.module == name for r in SHORT) for name in names - {"TeamMachine"})
    assert any(r.live and r.module == "TeamMachine" for r in RUN.RUNS)
    for path in SPECS:
        bugs = set(re.findall(r'Bug [=#] "(\w+)"', path.read_text(encoding="utf-8")))
        assert bugs, f"{path.name} has no planted bug"


def test_the_specification_of_the_team_machine_is_compared_with_the_code() -> None:
    """Both sides read one table; `the_specification_has_the_same_states` is the Rust half."""
    compared = [r for r in SHORT if r.module == "TeamMachine"]
    assert len(compared) >= 3
    assert all(r.distinct and r.depth for r in compared)
    rust = (ROOT / "rust" / "matching" / "tests" / "team_machine.rs").read_text(encoding="utf-8")
    assert 'include_str!("../../../spec/team_machine.counts")' in rust


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "TLC runs here")
@pytest.mark.parametrize("run", SHORT, ids=lambda r: r.name)
def test_the_protocol_holds(run: Any) -> None:
    outcome = RUN.check(run)
    assert outcome.ok, outcome.text[-4000:]
    # A changed specification is a decision: its number of states says that it was made on purpose.
    assert run.distinct is None or outcome.distinct == run.distinct
    assert run.depth is None or outcome.depth == run.depth


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "TLC runs here")
@pytest.mark.parametrize("run", RUN.BUGS, ids=lambda r: f"{r.module} {r.constants['Bug']} {r.breaks}")
def test_a_planted_bug_is_found(run: Any) -> None:
    outcome = RUN.check(run)
    assert not outcome.ok
    assert outcome.violated == run.breaks, outcome.text[-4000:]
