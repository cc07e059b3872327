"""The bench frame: order, figures, ratios, refusals, rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pandacore import build
from pandacore.bench import BENCHES, frame
from pandacore.bench.frame import Bench, Case, Option, Row, run_bench, table
from pandacore.bench.text import columns, number, width
from pandacore.errors import ConfigError, StateError


def timed(*seconds: float) -> Callable[[int], Any]:
    """A case whose calls take these times, over and over: no clock is involved."""
    return lambda calls: np.resize(np.array(seconds), calls)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A registered bench whose ``run`` a test sets."""
    module = ModuleType("toy_bench")
    monkeypatch.setitem(sys.modules, "toy_bench", module)
    monkeypatch.setitem(BENCHES, "toy", ("toy_bench", "a toy"))
    monkeypatch.setattr(build, "RELEASE_BUILD", True)
    module.__dict__["PEERS"] = ("slow", "missing_peer")
    return module


def rows_of(toy: ModuleType, run: Callable[[Bench], object], **arguments: Any) -> list[Row]:
    toy.__dict__["run"] = run
    return run_bench("toy", quick=True, **arguments)


def test_blocks_alternate_in_abba_order() -> None:
    order: list[str] = []

    def case(name: str) -> Case:
        return Case(name, timed=timed(1e-6), before=lambda: order.append(name), max_calls=5)

    Bench("toy", quick=True).measure([case("a"), case("b"), case("c")], rounds=4)
    warm_up, blocks = order[:3], order[3:]
    assert warm_up == ["a", "b", "c"]
    assert "".join(blocks) == "abc" + "cba" + "abc" + "cba"


def test_percentiles_are_of_single_calls() -> None:
    # 99 calls of 1 us and one of 1 ms: an average would hide the slow one, the p99 must not.
    sample = Bench("toy", quick=True).measure(
        [Case("a", timed=timed(*([1e-6] * 49), 1e-3), max_calls=500)], rounds=2
    )["a"]
    assert sample.p50 == pytest.approx(1e-6)
    assert sample.p99 == pytest.approx(1e-3)


def test_batch_counts_its_operations() -> None:
    sample = Bench("toy", quick=True).measure([Case("a", timed=timed(1e-3), per_call=1000, max_calls=5)])["a"]
    assert sample.p50 == pytest.approx(1e-6)


def test_garbage_collector_is_off_inside_blocks_and_back_on_after() -> None:
    import gc

    states: set[bool] = set()

    def op() -> None:
        states.add(gc.isenabled())

    bench = Bench("toy", quick=True)
    bench.measure([Case("a", op=op, max_calls=5)], rounds=1)
    assert gc.isenabled()
    assert False in states  # the warm-up may run with it on


def test_op_is_called_and_costs_something() -> None:
    calls = 0

    def op() -> None:
        nonlocal calls
        calls += 1

    sample = Bench("toy", quick=True).measure([Case("a", op=op, max_calls=10)], rounds=3)["a"]
    assert sample.seconds.size == 30
    assert calls >= 30
    assert (sample.seconds > 0).all()


@pytest.mark.parametrize(
    ("unit", "ratio", "expected", "value"),
    [
        ("us", "times_faster", 4.0, 1.0),
        ("us", "ours/theirs", 0.25, 1.0),
        ("ops/s", "times_faster", 4.0, 1e6),
    ],
)
def test_ratio_says_how_ours_compares(
    toy: ModuleType, unit: str, ratio: Any, expected: float, value: float
) -> None:
    (row,) = rows_of(
        toy,
        lambda bench: bench.compare(
            "m",
            Case("pandacore", timed=timed(1e-6), max_calls=5),
            [Case("slow", timed=timed(4e-6), max_calls=5)],
            unit=unit,
            ratio=ratio,
            agents=10,
        ),
    )
    assert row.value == pytest.approx(value)
    assert row.ratio == pytest.approx(expected)
    assert row.ratio_is == ratio
    assert (row.peer, row.agents, row.unit) == ("slow", 10, unit)


def test_size_ratio_is_a_fraction(toy: ModuleType) -> None:
    (row,) = rows_of(toy, lambda bench: bench.emit("bytes", 30, "B", peer="slow", peer_value=120.0))
    assert row.ratio == pytest.approx(0.25)
    assert row.ratio_is == "ours/theirs"


def test_best_peer_alone_or_each_with_a_mark(toy: ModuleType) -> None:
    def compare(rows: Any) -> Callable[[Bench], object]:
        return lambda bench: bench.compare(
            {"p50": "p50", "p99": "p99"},
            Case("pandacore", timed=timed(1e-6), max_calls=5),
            [
                Case("slow", timed=timed(4e-6), max_calls=5),
                Case("slower", timed=timed(8e-6), max_calls=5),
            ],
            rows=rows,
        )

    best = rows_of(toy, compare("best"))
    assert [(r.metric, r.peer) for r in best] == [("p50", "slow"), ("p99", "slow")]
    peers = best[0].conditions["peers"]
    assert isinstance(peers, dict)
    assert peers["slower"] == pytest.approx(8.0)
    each = rows_of(toy, compare("each"))
    assert [(r.peer, r.conditions["fastest_peer"]) for r in each[:2]] == [("slow", True), ("slower", False)]


def test_missing_peer_is_skipped_with_the_extra_that_brings_it(toy: ModuleType) -> None:
    notes: list[str] = []

    def run(bench: Bench) -> None:
        assert bench.peer("missing_peer", module="pandacore_no_such_module") is None
        assert bench.peer("missing_peer", module="pandacore_no_such_module") is None
        bench.emit("x", 1, "B")

    rows_of(toy, run, note=notes.append)
    assert notes == ["skipped missing_peer: not installed; pip install 'pandacore[bench]' brings it"]


def test_against_runs_only_the_named_peers(toy: ModuleType) -> None:
    def run(bench: Bench) -> None:
        bench.compare(
            "m",
            Case("pandacore", timed=timed(1e-6), max_calls=5),
            [Case(name, timed=timed(4e-6), max_calls=5) for name in ("slow", "missing_peer")],
        )

    assert [row.peer for row in rows_of(toy, run, against=["slow"])] == ["slow"]
    with pytest.raises(ConfigError, match="no peer 'slwo'") as caught:
        rows_of(toy, run, against=["slwo"])
    assert caught.value.hint == "its peers are: slow, missing_peer"


def test_development_build_is_refused(toy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "RELEASE_BUILD", False)
    with pytest.raises(StateError, match="dev build") as caught:
        rows_of(toy, lambda bench: pytest.fail("it ran"))
    assert caught.value.hint == "build it with: maturin develop --release"


def test_unknown_bench_and_option_are_refused(toy: ModuleType) -> None:
    with pytest.raises(ConfigError, match="no bench 'tyo'"):
        run_bench("tyo")
    toy.__dict__["OPTIONS"] = (Option("loss", float, 0.0, "share of lost messages"),)
    with pytest.raises(ConfigError, match="no option --los"):
        rows_of(toy, lambda bench: None, options={"los": "1"})
    with pytest.raises(ConfigError, match="'x' does not fit") as caught:
        rows_of(toy, lambda bench: None, options={"loss": "x"})
    assert caught.value.where == "--loss"
    seen: list[object] = []
    rows_of(toy, lambda bench: seen.append(bench.options["loss"]), options={"loss": "0.1"})
    rows_of(toy, lambda bench: seen.append(bench.options["loss"]))
    assert seen == [0.1, 0.0]


def test_row_has_the_fixed_keys_then_conditions_and_machine(toy: ModuleType) -> None:
    (row,) = rows_of(
        toy, lambda bench: bench.emit("x", np.float64(2.0), "B", agents=7, candidates=16), seed=3
    )
    line = json.loads(json.dumps(row.as_json()))
    assert list(line)[:8] == ["bench", "metric", "agents", "value", "unit", "peer", "peer_value", "ratio"]
    assert (line["bench"], line["agents"], line["candidates"], line["seed"]) == ("toy", 7, 16, 3)
    assert {"cpu", "cores", "load_1m", "python", "build"} <= line["machine"].keys()
    assert line["machine"]["build"] == "release"


def test_value_that_json_lacks_becomes_null() -> None:
    row = Row("b", "m", None, float("inf"), "B", "p", 0.0, None, None, {"x": float("nan")})
    assert json.loads(json.dumps(row.as_json(), allow_nan=False))["value"] is None


def test_sizes_come_from_the_option_or_the_defaults() -> None:
    assert Bench("toy", agents=[5]).sizes([1], [2]) == (5,)
    assert Bench("toy").sizes([1], [2]) == (1,)
    assert Bench("toy", quick=True).sizes([1], [2]) == (2,)


def test_random_streams_repeat_and_differ() -> None:
    first, again, other = (
        Bench("toy", seed=seed).rng(stream).integers(1 << 60) for seed, stream in [(1, 0), (1, 0), (1, 1)]
    )
    assert first == again
    assert first != other


def test_case_needs_one_way_to_run() -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        Case("a")
    with pytest.raises(ConfigError, match="exactly one"):
        Case("a", op=lambda: None, timed=timed(1.0))
    with pytest.raises(ConfigError, match="share a name"):
        Bench("toy").measure([Case("a", op=lambda: None), Case("a", op=lambda: None)])


def test_table_is_aligned_and_readable() -> None:
    text = table(
        [
            Row("b", "p50", 1000, 0.35, "us", "numpy", 45.5, 130.0, "times_faster", {"candidates": 16}),
            Row("b", "bytes", None, 131.0, "B", conditions={}),
        ]
    )
    lines = text.splitlines()
    assert "130x faster" in lines[2]
    assert "candidates=16" in lines[2]
    assert lines[2].index("us") == lines[3].index("B")


def test_columns_count_cells_not_characters() -> None:
    assert width("助手e\u0301") == 5
    lines = columns(("name", "n"), [("助手", "1"), ("abcd", "22")], right={1}).splitlines()
    assert lines == ["name   n", "----  --", "助手   1", "abcd  22"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0"), (0.35, "0.35"), (1234567.0, "1,234,567"), (0.00012, "1.20e-04")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_machine_facts_name_the_processor() -> None:
    facts = frame.machine_facts()
    assert facts["cpu"]
    assert isinstance(facts["cores"], int)
