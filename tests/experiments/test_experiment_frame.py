"""The experiment frame: rows, seeds, files, plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pandacore.bench.frame import Option
from pandacore.errors import ConfigError
from pandacore.experiments import EXPERIMENTS
from pandacore.experiments.frame import Experiment, Row, run_experiment, save, table


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("toy_study")

    def run(experiment: Experiment) -> None:
        for size in (10, 20):
            experiment.emit(
                "recall", experiment.rng(size).random(), agents=size, loss=experiment.options["loss"]
            )
        experiment.emit("missing", None, agents=0)

    module.__dict__.update(run=run, OPTIONS=(Option("loss", float, 0.0, "share of lost messages"),))
    monkeypatch.setitem(sys.modules, "toy_study", module)
    monkeypatch.setitem(EXPERIMENTS, "toy", ("toy_study", "a toy"))
    return module


@pytest.mark.usefixtures("toy")
def test_same_seed_same_rows() -> None:
    assert run_experiment("toy", seed=1) == run_experiment("toy", seed=1)
    assert run_experiment("toy", seed=1) != run_experiment("toy", seed=2)


@pytest.mark.usefixtures("toy")
def test_row_has_the_fixed_keys_then_its_conditions() -> None:
    line = run_experiment("toy", options={"loss": "0.25"}, quick=True)[0].as_json()
    assert list(line) == ["experiment", "metric", "value", "agents", "loss", "seed", "quick"]
    assert (line["loss"], line["quick"]) == (0.25, True)


@pytest.mark.usefixtures("toy")
def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no experiment 'tyo'"):
        run_experiment("tyo")
    with pytest.raises(ConfigError, match="no option --los"):
        run_experiment("toy", options={"los": "1"})


@pytest.mark.usefixtures("toy")
def test_table_has_a_column_per_condition() -> None:
    lines = table(run_experiment("toy")).splitlines()
    assert lines[0].split() == ["metric", "value", "agents", "loss"]
    assert lines[-1].split() == ["missing", "0"]


@pytest.mark.usefixtures("toy")
def test_rows_are_saved_and_a_study_without_plot_says_so(tmp_path: Path) -> None:
    rows = run_experiment("toy")
    files, missing = save("toy", rows, tmp_path / "out")
    assert [file.name for file in files] == ["toy.jsonl"]
    assert missing == "experiment toy has no plot"
    assert [json.loads(line) for line in files[0].read_text().splitlines()] == [row.as_json() for row in rows]


def test_missing_matplotlib_is_said(toy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.__dict__["plot"] = lambda rows, figure: None
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # makes the import fail
    _, missing = save("toy", run_experiment("toy"), tmp_path)
    assert missing is not None
    assert "pandacore[viz]" in missing


def test_plot_is_drawn_without_a_display(toy: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [viz] is not installed")

    def plot(rows: Sequence[Row], figure: Any) -> None:
        axes = figure.subplots()
        points = [row for row in rows if row.metric == "recall"]
        axes.plot([row.conditions["agents"] for row in points], [row.value for row in points])

    toy.__dict__["plot"] = plot
    files, missing = save("toy", run_experiment("toy"), tmp_path)
    assert missing is None
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("toy")
def test_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        save("toy", [], tmp_path / "file" / "below")
