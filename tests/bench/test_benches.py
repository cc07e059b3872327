"""The benches themselves, at a size that shows only that they work, and the population they use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pandacore import build
from pandacore.bench import BENCHES
from pandacore.bench.frame import load_bench, run_bench
from pandacore.bench.world import MOST, World
from pandacore.errors import ConfigError
from pandacore.registry import Registry

METRICS = {
    "assembly": {
        "dedicated_rust_p50",
        "dedicated_rust_p99",
        "dedicated_python_p50",
        "batch_teams_per_second",
        "consolidated_p50",
        "consolidated_size_ratio",
    },
    "registry": {
        "load_seconds",
        "bytes_per_agent",
        "load_updates_per_second",
        "flips_per_second",
        "announces_per_second",
        "snapshot_restore_seconds",
        "assembly_p50_under_updates",
    },
}


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "RELEASE_BUILD", True)  # the figures are not looked at


@pytest.mark.parametrize("name", METRICS)
def test_bench_reports_its_metrics_and_names_its_peers(name: str) -> None:
    rows = run_bench(name, agents=[2_000], quick=True)
    assert {row.metric for row in rows} == METRICS[name]
    peers = {row.peer for row in rows if row.peer is not None}
    assert peers
    assert peers <= set(load_bench(name).peers)
    for row in rows:
        line = json.loads(json.dumps(row.as_json(), allow_nan=False))
        assert line["value"] > 0
        assert line["agents"] == 2_000
        assert (line["ratio"] is None) == (line["peer"] is None)


def test_the_broker_is_searched_beside_a_writer_and_right_at_rest() -> None:
    rows = {row.metric: row for row in run_bench("broker", quick=True, options={"parts": "beside"})}
    assert set(rows) == {"search_p50_beside_writer", "search_p99_beside_writer", "recall_at_rest"}
    assert rows["recall_at_rest"].value > 0.999
    written = rows["recall_at_rest"].conditions["written"]
    assert isinstance(written, int)
    assert written > 0


def test_the_broker_keeps_what_a_peer_built_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("hnswlib", reason="the bench extra is not installed")
    kept = []
    for _ in range(2):
        options = {"parts": "sizes", "keep": str(tmp_path / "kept")}
        rows = run_bench("broker", agents=[1_000], against=["hnswlib"], quick=True, options=options)
        kept += [row for row in rows if row.metric == "build_seconds"]
    assert [row.conditions["kept"] for row in kept] == [False, True]
    assert kept[0].peer_value == kept[1].peer_value


@pytest.mark.slow
def test_orchestration_reports_its_figures_and_the_kill_is_answered() -> None:
    rows = run_bench("orchestration", quick=True)
    found = {row.metric for row in rows}
    latencies = {f"{name}_latency_{stat}" for name in ("added", "run") for stat in ("p50", "p99")}
    assert found == {
        "subtasks_per_second",
        "journal_cost",
        "over_critical_path",
        "answer_after_kill",
        *latencies,
    }
    assert {row.conditions["outcome"] for row in rows if row.metric == "answer_after_kill"} == {
        "typed error",
        "swap",
    }
    assert all(row.value > 0 for row in rows if row.metric == "subtasks_per_second")


def test_growth_is_measured_against_the_smallest_collective() -> None:
    rows = run_bench("assembly", agents=[1_000, 2_000], quick=True, against=["numpy"])
    (growth,) = (row for row in rows if row.metric == "dedicated_growth")
    assert (growth.agents, growth.conditions["smallest"]) == (2_000, 1_000)
    assert growth.value > 0


def test_only_the_named_peer_runs() -> None:
    rows = run_bench("assembly", agents=[2_000], quick=True, against=["numpy"])
    assert {row.peer for row in rows} == {"numpy", None}


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_can_be_loaded_and_has_options_of_its_own(name: str) -> None:
    entry = load_bench(name)
    assert callable(entry.run)
    with pytest.raises(ConfigError, match="no option --nonsense"):
        run_bench(name, options={"nonsense": "1"})


def test_population_repeats_and_has_the_stated_shape() -> None:
    world = World.make(5_000, np.random.default_rng(1))
    again = World.make(5_000, np.random.default_rng(1))
    assert (world.capabilities == again.capabilities).all()
    counts = np.diff(world.offsets)
    assert 1 <= counts.min() <= counts.max() <= MOST
    assert 4.0 < counts.mean() < 4.6
    assert np.unique(world.ids, axis=0).shape == world.ids.shape
    assert 0.87 < world.eligible.mean() < 0.93
    for i in range(0, 5_000, 97):
        own = world.capabilities[world.offsets[i] : world.offsets[i + 1]]
        assert np.unique(own).size == own.size
    frequency = np.bincount(world.capabilities, minlength=world.vocabulary)
    assert frequency[0] > 1.6 * frequency[1] > 0


def test_requests_are_distinct_and_can_be_served() -> None:
    world = World.make(5_000, np.random.default_rng(1))
    rows = world.requests(300, 8, np.random.default_rng(2))
    assert rows.shape == (300, 8)
    for row in rows:
        assert np.unique(row).size == 8
        assert all(len(world.pools[c]) >= 16 for c in row)


def test_pools_of_the_peers_are_those_of_the_registry() -> None:
    world = World.make(2_000, np.random.default_rng(3))
    registry = Registry(seed=1)
    world.load_into(registry, world.handles(registry))
    for number in (0, 1, 10, 500):
        assert registry.available(world.name(number)) == len(world.pools[number])
