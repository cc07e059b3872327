"""Failures that others met in the field, and long runs against a plain model."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pandacore.errors import DuplicateId, UnknownAgent
from pandacore.registry import Registry, TeamSpec

NAMES = [f"c{n}" for n in range(6)]


def agent(n: int) -> bytes:
    return n.to_bytes(32, "little")


def test_fc_01_an_agent_added_again_is_there_also_after_a_restart(tmp_path: Path) -> None:
    registry = Registry()
    for n in range(1_000):
        name = f"skill{n % 7}"
        registry.announce(agent(3), [name], load=n)
        registry.withdraw(agent(3))
        if n % 10 == 0:
            registry.snapshot(tmp_path / "registry")
            registry = Registry.restore(tmp_path / "registry")
        registry.announce(agent(3), [name, "again"], load=n)
        record = registry.get(agent(3))
        assert record is not None
        assert (set(record.capabilities), record.load) == ({name, "again"}, n)
        assert registry.holders(name) == [agent(3)]
        assert [len(registry.holders(f"skill{k}")) for k in range(7)].count(1) == 1
        assert len(registry) == 1
        assert registry.assemble([name]).members[0].agent_id == agent(3)


def test_fc_05_a_missing_key_never_shows_another_agents_data() -> None:
    registry = Registry()
    assert registry.get(agent(1)) is None
    for n in range(20):
        registry.announce(agent(n), [NAMES[n % 6]])
    registry.withdraw(agent(7))
    assert registry.get(agent(7)) is None
    assert registry.get(agent(99)) is None
    assert registry.get(10_000) is None
    for key in (-1, 2**63):
        with pytest.raises((TypeError, OverflowError)):
            registry.get(key)
    with pytest.raises(UnknownAgent):
        registry.id_of(10_000)
    assert agent(7) not in registry.holders("c1")


def test_fc_07_one_id_from_two_threads_or_twice_in_a_batch_is_one_entry() -> None:
    registry = Registry()
    ids = np.zeros((3, 32), np.uint8)
    ids[1, 0] = 1
    handle = registry.capability("a").index
    columns = (np.arange(4, dtype=np.int64), np.full(3, handle, np.uint32))
    with pytest.raises(DuplicateId, match="0 and 2"):
        registry.announce_many(ids, *columns)
    assert len(registry) == 0
    ids[2, 0] = 2
    start = threading.Barrier(2)

    def announce(name: str) -> None:
        start.wait(10)
        for version in range(1, 500):
            registry.announce(agent(5), [name], version=version)
            registry.announce_many(ids, *columns, versions=np.full(3, version, np.uint64))

    threads = [threading.Thread(target=announce, args=(name,)) for name in ("x", "y")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(registry) == 4
    record = registry.get(agent(5))
    assert record is not None
    assert record.version == 499
    assert len(registry.holders("x")) + len(registry.holders("y")) == 1
    assert sorted(registry.holders("a")) == sorted(bytes(row) for row in ids)
    assert len(registry.assemble({"a": 4})) == 3


def busy(directory: Path, seconds: float) -> None:
    """Eight threads search, two announce, one withdraws, one saves; then all must equal the serial state."""
    registry = Registry(seed=1)
    steady = 3_000
    for n in range(steady):
        registry.announce(agent(n), [NAMES[n % 6], NAMES[(n + 1) % 6]], load=n % 9)
    specs = [
        registry.prepare(TeamSpec(dict.fromkeys(NAMES, 2), mode=mode))
        for mode in ("dedicated", "consolidated")
    ]
    end = time.monotonic() + seconds
    failures: list[BaseException] = []

    def search() -> None:
        while time.monotonic() < end:
            for spec in specs:
                team = registry.assemble(spec)
                assert team.complete
                assert len(set(team.slots.tolist())) == len(team)

    def announce(first: int) -> None:
        k = 0
        while time.monotonic() < end:
            registry.announce(agent(first + k % 500), [NAMES[k % 6], NAMES[k % 5]])
            k += 1
        for n in range(500):
            registry.announce(agent(first + n), ["last"])

    def withdraw() -> None:
        k = 0
        while time.monotonic() < end:
            registry.announce(agent(900_000 + k % 50_000), ["gone"])
            assert registry.withdraw(agent(900_000 + k % 50_000))
            k += 1

    def save() -> None:
        while time.monotonic() < end:
            registry.snapshot(directory / "registry")
            other = Registry.restore(directory / "registry")
            assert len(other) >= steady
            assert other.assemble(dict.fromkeys(NAMES, 2)).complete

    def guarded(work: object, *arguments: int) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [guarded(search) for _ in range(8)]
    threads += [guarded(announce, 100_000), guarded(announce, 200_000), guarded(withdraw), guarded(save)]
    for thread in threads:
        thread.join(seconds + 120)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    assert len(registry) == steady + 1_000
    assert registry.holders("gone") == []
    assert len(registry.holders("last")) == 1_000
    assert sum(len(registry.holders(name)) for name in NAMES) == 2 * steady


def test_fc_10_readers_writers_and_a_saver_at_once(tmp_path: Path) -> None:
    busy(tmp_path, 1.0)


@pytest.mark.soak
def test_fc_10_readers_writers_and_a_saver_at_once_for_a_minute(tmp_path: Path) -> None:
    busy(tmp_path, 60.0)


def test_fc_13_nobody_and_nothing_wanted_have_defined_answers(tmp_path: Path) -> None:
    Registry().snapshot(tmp_path / "empty")
    for registry in (Registry(), Registry.restore(tmp_path / "empty")):
        for mode in ("dedicated", "consolidated"):
            nothing = registry.assemble({}, mode=mode)
            assert nothing.complete
            assert len(nothing) == 0
            assert list(nothing) == []
            nobody = registry.assemble({"a": 2}, mode=mode)
            assert nobody.missing == {"a": 2}
            assert nobody.certificate is not None
            assert nobody.certificate.short == 2
        assert repr(registry)
        assert registry.viewer().assemble(["a"]).missing == {"a": 1}


def test_a_hundred_thousand_random_operations_agree_with_a_plain_dict() -> None:
    rng = random.Random(20)
    registry = Registry(seed=2)
    model: dict[bytes, tuple[frozenset[str], int, bool, bool]] = {}
    for turn in range(100_000):
        who = agent(rng.randrange(400))
        known = model.get(who)
        kind = rng.randrange(10)
        if kind < 3:
            held, load = frozenset(rng.sample(NAMES, rng.randrange(1, 5))), rng.randrange(50)
            registry.announce(who, sorted(held), load=load)
            model[who] = (held, load, True, known[3] if known else True)
        elif kind == 3:
            if known:
                assert registry.withdraw(who)
                del model[who]
            else:
                with pytest.raises(UnknownAgent):
                    registry.withdraw(who)
        elif kind < 7:
            if known:
                held, load, alive, trusted = known
                if kind == 4:
                    load = rng.randrange(50)
                    registry.set_load(who, load)
                elif kind == 5:
                    alive = rng.random() < 0.6
                    registry.set_alive(who, alive)
                else:
                    trusted = rng.random() < 0.6
                    registry.set_trusted(who, trusted)
                model[who] = (held, load, alive, trusted)
        elif kind < 9:
            name, count = rng.choice(NAMES), rng.randrange(1, 5)
            team = registry.assemble({name: count}, mode=rng.choice(["dedicated", "consolidated"]))
            chosen = [member.agent_id for member in team.members]
            assert len(set(chosen)) == len(chosen)
            for other in chosen:
                held, _, alive, trusted = model[other]
                assert name in held
                assert alive
                assert trusted
            if len(chosen) < count:
                usable = sum(name in h and a and t for h, _, a, t in model.values())
                assert len(chosen) == usable
                assert team.missing == {name: count - usable}
        else:
            record = registry.get(who)
            assert (record is None) == (known is None)
            if record is not None and known is not None:
                assert frozenset(record.capabilities) == known[0]
                assert (record.load, record.alive, record.trusted) == known[1:]
        if turn % 5_000 == 0:
            assert len(registry) == len(model)
            for name in NAMES:
                assert set(registry.holders(name)) == {w for w, m in model.items() if name in m[0]}
                assert registry.available(name) == sum(name in h and a and t for h, _, a, t in model.values())
