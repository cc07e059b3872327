"""Studies of orchestration at a size that shows only that they work: hosts are really killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pandacore.errors import ConfigError
from pandacore.experiments import questions
from pandacore.experiments.frame import run_experiment


@pytest.fixture(autouse=True)
def _built_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(questions, "SAMPLES", tmp_path / "none")


def values(name: str, **options: str) -> dict[tuple[str, str], float | None]:
    """Figures by metric and kind of run."""
    rows = run_experiment(name, options={"patterns": "star", **options})
    assert {row.conditions["data"] for row in rows} == {"built-in"}
    return {(row.metric, str(row.conditions.get("run", ""))): row.value for row in rows}


@pytest.mark.slow
def test_every_question_has_a_crash_and_completes_with_the_clean_answer() -> None:
    found = values("crashes", rows="2")
    assert found["completion_rate", "disturbed"] == 1
    assert (found["crashes", ""] or 0) >= 2
    assert (found["recovery_p50_ms", ""] or 0) > 0
    for name in ("em", "f1"):
        assert found[name, "disturbed"] == found[name, "clean"]
    assert found["em", "clean"] == 1


@pytest.mark.slow
def test_a_member_that_talks_about_something_else_is_swapped() -> None:
    found = values("faults", rows="2")
    assert found["swap_rate", ""] == 1
    assert found["f1_lost_points", ""] == 0


@pytest.mark.slow
def test_one_agent_and_a_team_answer_the_same_questions(tmp_path: Path) -> None:
    options = {"patterns": "single,star", "rows": "2", "records": str(tmp_path / "records")}
    rows = run_experiment("hotpotqa", options=options)
    em = {row.conditions["pattern"]: row for row in rows if row.metric == "em"}
    assert set(em) == {"single", "star"}
    for row in em.values():
        assert row.value is not None
        assert float(str(row.conditions["low"])) <= row.value <= float(str(row.conditions["high"]))
    tokens = {row.conditions["pattern"]: row.value or 0 for row in rows if row.metric == "total_tokens"}
    assert 0 < tokens["single"] < tokens["star"]
    assert len((tmp_path / "records" / "star.jsonl").read_text().splitlines()) == 3
    # Finished questions are not run again.
    assert [r.value for r in run_experiment("hotpotqa", options=options)] == [r.value for r in rows]


def test_unknown_patterns_and_probabilities_are_refused() -> None:
    for name in ("crashes", "faults", "hotpotqa"):
        with pytest.raises(ConfigError, match=r"no (pattern|arm) 'ring'"):
            run_experiment(name, options={"patterns": "ring"})
    with pytest.raises(ConfigError, match="no probability"):
        run_experiment("crashes", options={"probability": "2"})
