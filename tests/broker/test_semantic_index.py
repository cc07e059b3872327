"""The semantic index through Python; recall, damage and races are tested in the core as well."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pandacore import errors
from pandacore.broker import SemanticIndex, Subset

DIM = 48


def some_vectors(count: int, seed: int = 0, dim: int = DIM) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(12, dim))
    found = centres[rng.integers(12, size=count)] + 0.7 * rng.normal(size=(count, dim))
    return found.astype(np.float32)


def nearest(vectors: NDArray[np.float32], query: NDArray[np.float32], k: int) -> list[int]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit.astype(np.float64) @ (query / np.linalg.norm(query))
    return [int(i) for i in np.argsort(-scores, kind="stable")[:k]]


@pytest.fixture
def index() -> SemanticIndex:
    found = SemanticIndex(DIM, model_id="toy", rerank="f32")
    found.add(np.arange(500), some_vectors(500))
    return found


@pytest.mark.parametrize("executor", ["scan", "batch", "graph", "two_hop", None])
def test_executors_agree_with_numpy(executor: str | None) -> None:
    vectors = some_vectors(400, seed=1)
    index = SemanticIndex(DIM, rerank="f32")
    index.add(np.arange(400), vectors)
    queries = some_vectors(20, seed=2)
    found = index.search_batch(queries, 10, ef=400, rerank_depth=400, executor=executor)  # type: ignore[arg-type]
    for query, row in zip(queries, found.ids, strict=True):
        assert row.tolist() == nearest(vectors, query, 10)
    assert found.version == 1


def test_batch_rows_equal_single_searches(index: SemanticIndex) -> None:
    queries = some_vectors(9, seed=3)
    batch = index.search_batch(queries, 5, executor="scan", threads=2)
    for row, query in enumerate(queries):
        one = index.search(query, 5, executor="scan")
        assert batch[row].ids.tolist() == one.ids.tolist()
        assert batch[row].scores.tolist() == one.scores.tolist()


def test_filters_combine(index: SemanticIndex) -> None:
    index.set_flag("trusted", np.arange(0, 500, 2), False)
    index.set_flag("alive", [7, 9], [False, True])
    query = some_vectors(1, seed=4)[0]
    found = index.search(query, 500, where=("trusted", "alive"), exclude=[9, 11], within=np.arange(100))
    assert sorted(found.ids.tolist()) == [i for i in range(1, 100, 2) if i not in (7, 9, 11)]
    untrusted = index.search(query, 500, where_not="trusted")
    assert sorted(untrusted.ids.tolist()) == list(range(0, 500, 2))
    assert index.flags_of(7) == {"alive": False, "trusted": True, "free": True, "reputable": True}


def test_threshold_and_fewer_than_k(index: SemanticIndex) -> None:
    query = some_vectors(500)[17]
    found = index.search(query, 400, threshold=0.5, recall=1.0)
    assert 0 < len(found) < 400
    assert found.scores.min() >= 0.5
    assert len(index.search(query, 10_000)) == 500


def test_subset_follows_replacement_and_removal(index: SemanticIndex) -> None:
    subset = Subset([3, 4, 5, 600])
    query = some_vectors(1, seed=5)[0]
    assert sorted(index.search(query, within=subset).ids.tolist()) == [3, 4, 5]
    index.update([4], [query])
    assert index.search(query, 1, within=subset).ids.tolist() == [4]
    index.remove([3])
    index.add([600], [query + 0.01])
    assert sorted(index.search(query, within=subset).ids.tolist()) == [4, 5, 600]


def test_new_vectors_get_the_given_flags(index: SemanticIndex) -> None:
    index.add([900], some_vectors(1, seed=6), flags=["alive"])
    assert index.flags_of(900) == {"alive": True, "trusted": False, "free": False, "reputable": False}
    index.update([900], some_vectors(1, seed=7))
    assert index.flags_of(900) == {"alive": True, "trusted": False, "free": False, "reputable": False}


def test_inner_product_prefers_long_vectors() -> None:
    index = SemanticIndex(2, metric="ip")
    index.add([1, 2], [[1.0, 0.0], [5.0, 5.0]])
    found = index.search([1.0, 0.0])
    assert found.ids.tolist() == [2, 1]
    assert found.scores.tolist() == pytest.approx([5.0, 1.0], rel=1e-3)


@pytest.mark.parametrize(
    ("rerank", "error"), [("f32", 1e-6), ("int16", 1e-4), ("bf16", 1e-2), ("none", 5e-2)]
)
def test_get_returns_the_vector(rerank: str, error: float) -> None:
    vectors = some_vectors(20)
    index = SemanticIndex(DIM, rerank=rerank)  # type: ignore[arg-type]
    index.add(np.arange(20), vectors)
    kept = index.get(7)
    assert kept is not None
    np.testing.assert_allclose(kept, vectors[7] / np.linalg.norm(vectors[7]), atol=error)


def test_strided_and_wide_input_is_taken(index: SemanticIndex) -> None:
    wide = np.asfortranarray(some_vectors(10, seed=8).astype(np.float64))
    index.add(np.arange(1000, 1020, 2), wide)
    assert index.search(wide[3], 1).ids.tolist() == [1006]
    assert index.search(np.repeat(wide[3], 2)[::2], 1).ids.tolist() == [1006]


def test_tune_measures_recall(index: SemanticIndex) -> None:
    measured = index.tune(some_vectors(50, seed=9))
    assert max(measured.values()) >= 0.99
    assert all(0 <= value <= 1 for value in measured.values())


# -- field cases


def test_fc_02_unready_handle_raises_and_never_crashes() -> None:
    half = SemanticIndex.__new__(SemanticIndex)
    vector = np.ones(DIM, dtype=np.float32)
    calls: list[Callable[[], object]] = [
        lambda: half.add([1], [vector]),
        lambda: half.update([1], [vector]),
        lambda: half.remove([1]),
        lambda: half.search(vector),
        lambda: half.search_batch([vector]),
        lambda: half.get(1),
        half.ids,
        lambda: half.save("x"),
        half.consolidate,
        lambda: half.set_flag("alive", [1]),
        lambda: half.dim,
        lambda: len(half),
        lambda: half.tune([vector]),
    ]
    for call in calls:
        with pytest.raises(errors.StateError, match="never created"):
            call()
    assert "not created" in repr(half)
    with pytest.raises(errors.ConfigError):
        SemanticIndex(0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_fc_03_bad_rows_are_refused_by_number(index: SemanticIndex, bad: float) -> None:
    queries = some_vectors(5, seed=10)
    before = index.search_batch(queries).ids
    rows = some_vectors(1000, seed=11)
    rows[123, 5] = bad
    rows[777] = 0
    with pytest.raises(errors.InvalidVector) as caught:
        index.add(np.arange(10_000, 11_000), rows)
    assert caught.value.rows == (123, 777)
    assert caught.value.count == 2
    assert len(index) == 500
    assert index.search_batch(queries).ids.tolist() == before.tolist()
    with pytest.raises(errors.InvalidVector):
        index.search(rows[123])
    with pytest.raises(errors.InvalidVector):
        index.search(np.zeros(DIM, dtype=np.float32))


def test_fc_03_extreme_finite_vectors_are_vectors(index: SemanticIndex) -> None:
    index.add([800, 801], np.array([[1e38] * DIM, [1e-41] * DIM], dtype=np.float32))
    found = index.search(np.ones(DIM, dtype=np.float32), 2)
    assert found.ids.tolist() == [800, 801]
    assert np.isfinite(found.scores).all()
    with pytest.raises(errors.InvalidVector):  # too large for float32
        index.add([802], np.full((1, DIM), 1e300))


@pytest.mark.parametrize("length", [0, 1, DIM - 1, DIM + 1, 2 * DIM])
def test_fc_04_other_dimension_is_refused(index: SemanticIndex, length: int, tmp_path: Path) -> None:
    vector = np.ones(length, dtype=np.float32)
    with pytest.raises(errors.DimensionMismatch) as caught:
        index.search(vector)
    assert (caught.value.expected, caught.value.got, caught.value.model) == (DIM, length, "toy")
    if length:
        with pytest.raises(errors.DimensionMismatch):
            index.add([1_000], [vector])
    index.save(tmp_path / "index")
    with pytest.raises(errors.DimensionMismatch):
        SemanticIndex.load(tmp_path / "index", dim=length)
    with pytest.raises(errors.ModelMismatch) as other:
        SemanticIndex.load(tmp_path / "index", model_id="another")
    assert (other.value.expected, other.value.got) == ("another", "toy")


def test_fc_05_missing_ids_have_no_data(index: SemanticIndex) -> None:
    index.remove([5])
    for missing in (5, 500, -1, 2**63, 2**64, 10**30):
        assert index.get(missing) is None
        assert missing not in index
        assert index.flags_of(missing) is None
    with pytest.raises(errors.UnknownId):
        index.remove([5])
    with pytest.raises(errors.UnknownId):
        index.update([5], some_vectors(1))
    with pytest.raises(errors.UnknownId):
        index.set_flag("alive", [5])
    assert 5 not in index.search(some_vectors(1)[0], 500).ids
    with pytest.raises(errors.ConfigError):
        index.remove([-1])
    assert SemanticIndex(DIM).get(0) is None


def test_fc_07_an_id_has_one_live_entry(index: SemanticIndex) -> None:
    twice = some_vectors(2, seed=12)
    with pytest.raises(errors.DuplicateId):
        index.add([900, 900], twice)
    with pytest.raises(errors.DuplicateId):
        index.add([3], twice[:1])
    assert len(index) == 500
    index.add([3, 900], twice, replace=True)
    assert len(index) == 501
    found = index.search(twice[0], 600)
    assert sorted(found.ids.tolist()) == [*range(500), 900]
    assert found.ids[0] == 3


def test_fc_07_two_threads_adding_one_id_leave_one(index: SemanticIndex) -> None:
    vectors = some_vectors(40, seed=13)
    refused = []

    def add(row: int) -> None:
        try:
            index.add([5_000], vectors[row : row + 1])
        except errors.DuplicateId as error:
            refused.append(error)

    threads = [threading.Thread(target=add, args=(row,)) for row in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 39
    assert index.ids().tolist().count(5_000) == 1


def test_fc_01_an_id_used_again_has_the_new_vector_only(index: SemanticIndex) -> None:
    vectors = some_vectors(200, seed=14)
    for turn in range(200):
        index.remove([3])
        assert 3 not in index
        index.add([3], vectors[turn : turn + 1])
        assert index.search(vectors[turn], 1).ids.tolist() == [3]
        assert len(index) == 500


def test_fc_09_damaged_files_are_refused_with_their_path(index: SemanticIndex, tmp_path: Path) -> None:
    path = tmp_path / "index"
    index.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(15)
    for bit in rng.integers(len(whole) * 8, size=200):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        with pytest.raises(errors.CorruptFile) as caught:
            SemanticIndex.load(path)
        assert caught.value.where == str(path)
    for cut in [0, 1, 7, 8, 100, *rng.integers(len(whole), size=100)]:
        path.write_bytes(whole[: int(cut)])
        with pytest.raises(errors.CorruptFile):
            SemanticIndex.load(path)
    path.write_bytes(whole)
    assert SemanticIndex.load(path).ids().tolist() == index.ids().tolist()
    for nothing in (tmp_path, tmp_path / "missing"):
        with pytest.raises(errors.ConfigError):
            SemanticIndex.load(nothing)


def test_saving_replaces_the_old_file_whole_or_not_at_all(index: SemanticIndex, tmp_path: Path) -> None:
    path = tmp_path / "index"
    index.save(path)
    index.remove([1, 2])
    index.save(path)
    assert len(SemanticIndex.load(path)) == 498
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]
    with pytest.raises(errors.ConfigError):
        index.save(tmp_path / "no" / "such" / "folder")


def test_fc_13_an_empty_index_and_an_empty_filter_answer_nothing(tmp_path: Path) -> None:
    index = SemanticIndex(DIM)
    query = np.ones(DIM, dtype=np.float32)
    assert len(index.search(query)) == 0
    assert index.search_batch(np.ones((3, DIM), dtype=np.float32)).ids.shape == (3, 0)
    assert index.search_batch(np.empty((0, DIM), dtype=np.float32)).ids.shape[0] == 0
    assert index.ids().tolist() == []
    assert "0 vectors" in repr(index)
    index.save(tmp_path / "empty")
    loaded = SemanticIndex.load(tmp_path / "empty")
    assert len(loaded) == 0
    loaded.add([1], [query])
    assert len(loaded.search(query, within=[])) == 0
    assert len(loaded.search(query, where_not="alive")) == 0
    assert index.add([], np.empty((0, DIM))) == 0
    for executor in ("scan", "batch", "graph", "two_hop"):
        assert len(index.search(query, executor=executor)) == 0
    with pytest.raises(errors.StateError):
        index.tune([query])
    with pytest.raises(errors.ConfigError):
        index.search(query, 0)
    with pytest.raises(errors.ConfigError):
        index.search(query, -1)


def stress(seconds: float, path: Path) -> None:
    """FC-10: eight searching threads beside one that adds, one that removes and one that saves."""
    index = SemanticIndex(DIM, rerank="f32")
    base = some_vectors(1_000, seed=16)
    index.add(np.arange(1_000), base)
    stop = threading.Event()
    problems: list[BaseException] = []
    lock = threading.Lock()
    extra: list[int] = []

    def guarded(work: object) -> threading.Thread:
        def loop() -> None:
            try:
                while not stop.is_set():
                    work()  # type: ignore[operator]
            except BaseException as error:
                problems.append(error)
                stop.set()

        return threading.Thread(target=loop)

    def search() -> None:
        queries = some_vectors(8, seed=time.perf_counter_ns() % 2**32)
        for answer in (index.search(queries[0], 20), *index.search_batch(queries, 20)):
            assert len(set(answer.ids.tolist())) == len(answer) == 20

    def add() -> None:
        with lock:
            new = [max(extra, default=10_000) + 1 + at for at in range(5)]
            index.add(new, some_vectors(5, seed=new[0]))
            extra.extend(new)
            index.update([new[0] % 1_000], base[[new[0] % 1_000]])

    def remove() -> None:
        with lock:
            if len(extra) > 50:
                index.remove(extra[:20])
                del extra[:20]

    threads = [guarded(search) for _ in range(8)] + [guarded(add), guarded(add), guarded(remove)]
    threads.append(guarded(lambda: index.save(path)))
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    # At rest the answers are those of an index that was built in one go.
    if extra:
        index.remove(extra)
    assert index.ids().tolist() == list(range(1_000))
    queries = some_vectors(50, seed=17)
    found = index.search_batch(queries, 10, recall=1.0)
    for row, query in enumerate(queries):
        assert found.ids[row].tolist() == nearest(base, query, 10)
    assert len(SemanticIndex.load(path)) >= 1_000


def test_fc_10_threads_search_while_others_write(tmp_path: Path) -> None:
    stress(3, tmp_path / "index")


@pytest.mark.soak
def test_fc_10_threads_search_while_others_write_for_a_minute(tmp_path: Path) -> None:
    stress(60, tmp_path / "index")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fc_60_a_forked_child_may_search_but_not_write(index: SemanticIndex) -> None:
    # The handle tells a child by the process id it remembers; a real fork under other threads is no test.
    index._pid += 1
    query = some_vectors(1)[0]
    assert len(index.search(query)) == 10
    with pytest.raises(errors.StateError, match="fork"):
        index.add([9_999], [query])
