"""The registry through Python."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pandacore.errors import (
    ConfigError,
    CorruptFile,
    DuplicateId,
    InvalidName,
    ShapeError,
    StateError,
    UnknownAgent,
    UnknownCapability,
)
from pandacore.registry import NO_AGENT, PreparedSpec, Registry, Team


def agent(n: int) -> bytes:
    return n.to_bytes(32, "little")


def columns(n: int, capability: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.zeros((n, 32), np.uint8)
    ids[:, :4] = np.arange(n, dtype="<u4").view(np.uint8).reshape(n, 4)
    return ids, np.arange(n + 1, dtype=np.int64), np.full(n, capability, np.uint32)


def test_empty_registry_has_defined_answers() -> None:
    registry = Registry()
    assert len(registry) == 0
    assert agent(1) not in registry
    assert registry.capabilities() == []
    assert registry.holders("search") == []
    assert registry.available("search") == 0
    assert registry.get(agent(1)) is None
    assert registry.get(7) is None
    assert registry.slot_of(agent(1)) is None
    assert registry.assemble({}).complete
    assert registry.assemble({"search": 2}).missing == {"search": 2}
    assert registry.assemble({"search": 2}, mode="consolidated").missing == {"search": 2}
    assert registry.assemble({"search": 0}).complete
    assert "0 agents" in repr(registry)
    slots, complete = registry.assemble_many(np.zeros((3, 0), np.uint32))
    assert slots.shape == (3, 0)
    assert complete.all()
    registry.set_loads([], [])
    assert registry.announce_many(*columns(0, 0)).shape == (0,)


@pytest.mark.parametrize("key", [-1, 2**63, 2**32])
def test_keys_that_are_no_slot_are_refused_by_type(key: int) -> None:
    registry = Registry()
    with pytest.raises((TypeError, OverflowError)):
        registry.get(key)
    with pytest.raises((TypeError, OverflowError)):
        registry.set_load(key, 1)


def test_unknown_and_withdrawn_agents_raise_unknown_agent() -> None:
    registry = Registry()
    registry.announce(agent(1), ["search"])
    registry.withdraw(agent(1))
    for missing in (agent(1), agent(2), 0, 5, 2**32 - 1):
        with pytest.raises(UnknownAgent):
            registry.set_load(missing, 1)
        with pytest.raises(UnknownAgent):
            registry.set_alive(missing, True)
    with pytest.raises(UnknownAgent):
        registry.withdraw(agent(1))
    with pytest.raises(UnknownAgent):
        registry.id_of(0)
    with pytest.raises(UnknownAgent):
        registry.set_loads([0], [1])
    assert registry.get(agent(1)) is None


def test_announced_again_after_withdrawal_shows_only_the_new_capabilities() -> None:
    registry = Registry()
    for n in range(1000):
        registry.announce(agent(3), [f"skill{n % 7}"])
        assert registry.holders(f"skill{n % 7}") == [agent(3)]
        assert sum(len(registry.holders(f"skill{k}")) for k in range(7)) == 1
        assert registry.assemble([f"skill{n % 7}"]).members[0].agent_id == agent(3)
        registry.withdraw(agent(3))
        assert len(registry) == 0
        assert registry.assemble([f"skill{n % 7}"]).missing == {f"skill{n % 7}": 1}


def test_versions_decide_and_duplicates_change_nothing() -> None:
    registry = Registry()
    slot = registry.announce(agent(1), ["a"], version=5, load=3)
    assert registry.announce(agent(1), ["b"], version=5) == slot
    assert registry.announce(agent(1), ["b"], version=4) == slot
    record = registry.get(agent(1))
    assert record is not None
    assert (record.capabilities, record.version, record.load) == (("a",), 5, 3)
    assert not registry.withdraw(agent(1), version=4)
    assert registry.withdraw(agent(1), version=8)
    registry.announce(agent(1), ["b"], version=8)
    assert agent(1) not in registry
    registry.announce(agent(1), ["b"])
    record = registry.get(agent(1))
    assert record is not None
    assert record.version == 9


def test_children_satisfy_their_parents_and_records_name_the_leaves() -> None:
    registry = Registry()
    registry.announce(agent(1), ["search.web", "search", "reason"], tags=["lang:de"])
    record = registry.get(agent(1))
    assert record is not None
    assert record.capabilities == ("reason", "search.web")
    assert record.tags == ("lang:de",)
    assert registry.holders("search") == [agent(1)]
    assert registry.holders("search.files") == []
    assert registry.capabilities() == ["search", "search.web", "reason"]
    assert registry.tags() == ["lang:de"]


@pytest.mark.parametrize("name", ["", " ", " a", "a. b", "a..b", ".a", "a.", "a\n", "#a", "x" * 129, "a#b"])
def test_malformed_capability_names_are_refused(name: str) -> None:
    registry = Registry()
    with pytest.raises(InvalidName):
        registry.announce(agent(1), ["fine", name])
    assert agent(1) not in registry


def test_wrong_arguments_raise_typed_errors() -> None:
    registry = Registry()
    registry.announce(agent(1), ["a"])
    with pytest.raises(ShapeError):
        registry.announce(b"short", ["a"])
    with pytest.raises(ConfigError):
        registry.announce(agent(2), ["a"], service_s=float("nan"))
    with pytest.raises(ConfigError):
        registry.announce(agent(2), ["a"], rtt_s=-1.0)
    with pytest.raises(ConfigError):
        registry.announce(agent(2), [f"c{n}" for n in range(200)])
    with pytest.raises((TypeError, OverflowError)):
        registry.announce(agent(2), ["a"], domain=70_000)
    with pytest.raises(TypeError):
        registry.announce(agent(2), "a")
    with pytest.raises(ConfigError):
        Registry(seed=-1)
    with pytest.raises(ConfigError):
        registry.set_flags("awake", [0], [True])  # type: ignore[arg-type]
    assert len(registry) == 1


def test_batch_columns_are_checked_before_anything_changes() -> None:
    registry = Registry()
    ids, offsets, capabilities = columns(4, registry.capability("a").index)
    bad: list[tuple[type[Exception], dict[str, object]]] = [
        (ShapeError, {"ids": ids[:, :31]}),
        (ShapeError, {"ids": ids[0]}),
        (ShapeError, {"ids": ids.astype(np.float64)}),
        (ShapeError, {"offsets": offsets[:-1]}),
        (ShapeError, {"offsets": offsets[::-1].copy()}),
        (ShapeError, {"offsets": offsets.astype(np.float32)}),
        (ShapeError, {"capabilities": capabilities[:-1]}),
        (ShapeError, {"capabilities": np.array([-1, 0, 0, 0])}),
        (UnknownCapability, {"capabilities": capabilities + 9}),
        (ShapeError, {"loads": [1, 2, 3]}),
        (ShapeError, {"loads": [1, 2, 3, 70_000]}),
        (ShapeError, {"loads": [1.5, 2, 3, 4]}),
        (ShapeError, {"trusted": [1, 0, 1, 1]}),
        (ConfigError, {"service_s": [1.0, np.inf, 1.0, 1.0]}),
        (DuplicateId, {"ids": ids[[0, 1, 0, 2]]}),
    ]
    for error, change in bad:
        arguments = {"ids": ids, "offsets": offsets, "capabilities": capabilities, **change}
        with pytest.raises(error):
            registry.announce_many(**arguments)  # type: ignore[arg-type]
        assert len(registry) == 0
    with pytest.raises(DuplicateId, match="rows 0 and 2"):
        registry.announce_many(ids[[0, 1, 0, 2]], offsets, capabilities)
    assert registry.announce_many(ids, offsets, capabilities).tolist() == [0, 1, 2, 3]


def test_batches_take_non_contiguous_columns_and_other_integer_types() -> None:
    registry = Registry()
    ids, offsets, capabilities = columns(6, registry.capability("a").index)
    wide = np.zeros((6, 64), np.uint8)
    wide[:, ::2] = ids
    slots = registry.announce_many(
        wide[:, ::2],
        offsets.astype(np.int32),
        capabilities.astype(np.int64),
        loads=np.arange(12)[::2],
        service_s=np.arange(1, 7, dtype=np.float32),
        alive=np.array([True] * 5 + [False]),
    )
    records = [registry.get(int(slot)) for slot in slots]
    assert [r.load for r in records if r] == [0, 2, 4, 6, 8, 10]
    assert [r.alive for r in records if r] == [True] * 5 + [False]
    assert [round(r.service_s, 3) for r in records if r] == pytest.approx([1, 2, 3, 4, 5, 6], rel=1e-3)
    assert [r.agent_id for r in records if r] == [bytes(i) for i in ids]
    assert registry.available("a") == 5


def test_flags_decide_who_can_be_chosen() -> None:
    registry = Registry(trust_by_default=False)
    for n in range(4):
        registry.announce(agent(n), ["a"])
    assert registry.available("a") == 0
    registry.set_trusted_bitmap(np.array([True, True, False, True]))
    assert {m.agent_id for m in registry.assemble({"a": 3}).members} == {agent(0), agent(1), agent(3)}
    registry.set_alive(agent(0), False)
    registry.set_draining(agent(1), True)
    assert [m.agent_id for m in registry.assemble({"a": 1}).members] == [agent(3)]
    registry.set_flags("alive", [0], [True])
    registry.set_flags("draining", [1], [False])
    registry.set_trusted(agent(3), False)
    assert registry.available("a") == 2
    registry.announce(agent(0), ["a"])
    record = registry.get(agent(0))
    assert record is not None
    assert record.trusted


def test_handles_belong_to_one_registry() -> None:
    one, two = Registry(), Registry()
    capability = one.capability("a")
    assert capability == one.capability("a")
    assert capability != two.capability("a")
    assert (str(capability), int(capability), capability.index) == ("a", 0, 0)
    one.announce(agent(1), [capability])
    with pytest.raises(StateError):
        two.announce(agent(1), [capability])
    with pytest.raises(StateError):
        two.assemble(one.prepare(["a"]))


def test_types_that_only_a_registry_makes_cannot_be_made_by_hand() -> None:
    for kind in (Team, PreparedSpec):
        with pytest.raises(TypeError):
            kind()


def test_many_teams_at_once_equal_single_ones_in_what_they_guarantee() -> None:
    registry = Registry(seed=3)
    handles = [registry.capability(f"c{n}").index for n in range(5)]
    for n in range(60):
        registry.announce(agent(n), [f"c{n % 5}"], load=n % 7)
    rows = np.array([[handles[0], handles[3]], [handles[1], handles[1]], [handles[2], 99]], np.uint32)
    batch = registry.assemble_many(rows, per_capability=2, seed=5)
    assert batch.complete.tolist() == [True, True, False]
    assert batch.slots.shape == (3, 4)
    assert [int(s) % 5 for s in batch.slots[0]] == [0, 0, 3, 3]
    assert len(set(batch.slots[1].tolist())) == 4
    assert batch.slots[2, 2:].tolist() == [NO_AGENT, NO_AGENT]
    again = registry.assemble_many(rows, per_capability=2, seed=5)
    assert np.array_equal(batch.slots, again.slots)
    with pytest.raises(ConfigError):
        registry.assemble_many(np.zeros((1, 65), np.uint32))
    with pytest.raises(ShapeError):
        registry.assemble_many(np.zeros(3, np.uint32))


def test_one_registry_used_by_many_threads_ends_in_the_serial_state() -> None:
    """Eight threads search while others announce, withdraw and update: nothing breaks."""
    registry = Registry()
    names = [f"c{n}" for n in range(6)]
    for n in range(600):
        registry.announce(agent(n), [names[n % 6]])
    spec = registry.prepare(dict.fromkeys(names, 2))
    slots = np.array([registry.slot_of(agent(n)) for n in range(600)], np.uint32)
    done = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: object) -> threading.Thread:
        def run() -> None:
            try:
                work()  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def search() -> None:
        while not done.is_set():
            team = registry.assemble(spec)
            assert len(set(team.slots.tolist())) == len(team)
            assert team.complete
            registry.assemble_many(np.zeros((50, 1), np.uint32))

    def announce(first: int) -> None:
        for k in range(2000):
            registry.announce(agent(first + k % 300), [names[k % 6]])

    def withdraw() -> None:
        for k in range(2000):
            registry.announce(agent(5000 + k), ["gone"])
            registry.withdraw(agent(5000 + k))

    def update() -> None:
        for k in range(200):
            registry.set_loads(slots, np.full(600, k % 9, np.uint16))

    searchers = [guarded(search) for _ in range(8)]
    writers = [
        guarded(lambda: announce(1000)),
        guarded(lambda: announce(2000)),
        guarded(withdraw),
        guarded(update),
    ]
    for thread in writers:
        thread.join(120)
    done.set()
    for thread in searchers:
        thread.join(120)
    assert not failures
    assert not any(thread.is_alive() for thread in (*writers, *searchers))
    assert len(registry) == 1200
    assert registry.holders("gone") == []
    assert {r.load for n in range(600) if (r := registry.get(agent(n)))} == {199 % 9}


def test_snapshot_and_restore(tmp_path: Path) -> None:
    registry = Registry(seed=4, trust_by_default=False)
    for n in range(50):
        registry.announce(agent(n), [f"p.c{n % 7}"], load=n % 5, domain=n % 3, service_s=1.5, tags=["t"])
        registry.set_trusted(agent(n), n % 2 == 0)
    registry.withdraw(agent(9), version=30)
    path = tmp_path / "registry.bin"
    registry.snapshot(path)
    registry.snapshot(path)
    assert [p.name for p in tmp_path.iterdir()] == ["registry.bin"]
    other = Registry.restore(path)
    assert len(other) == 49
    assert other.capabilities() == registry.capabilities()
    for n in range(50):
        if n != 9:
            mine, theirs = registry.get(agent(n)), other.get(agent(n))
            assert mine is not None
            assert theirs is not None
            for name in (
                "version",
                "capabilities",
                "tags",
                "load",
                "domain",
                "service_s",
                "alive",
                "trusted",
            ):
                assert getattr(mine, name) == getattr(theirs, name)
    other.announce(agent(9), ["p.c1"], version=30)
    assert agent(9) not in other


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_damaged_snapshot_is_refused_with_its_path(tmp_path: Path, damage: str) -> None:
    registry = Registry()
    registry.announce(agent(1), ["a"])
    path = tmp_path / "registry.bin"
    registry.snapshot(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    changed = {"flip": bytes(data), "cut": path.read_bytes()[:-9], "empty": b"", "other": b"{}" * 40}[damage]
    path.write_bytes(changed)
    with pytest.raises(CorruptFile, match=r"registry\.bin"):
        Registry.restore(path)
    assert path.read_bytes() == changed
    with pytest.raises(IsADirectoryError):
        Registry.restore(tmp_path)


def test_empty_registry_survives_a_snapshot(tmp_path: Path) -> None:
    Registry().snapshot(tmp_path / "empty")
    other = Registry.restore(tmp_path / "empty")
    assert len(other) == 0
    assert other.assemble(["a"]).missing == {"a": 1}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sets(st.integers(0, 6), max_size=5)), max_size=40),
    st.randoms(use_true_random=False),
)
def test_bulk_and_single_announcements_agree(rows: list[tuple[int, set[int]]], random: object) -> None:
    rows = list({n: (n, held) for n, held in rows}.values())
    one, bulk = Registry(), Registry()
    handles = [bulk.capability(f"x.c{c}").index for c in range(7)]
    for n, held in rows:
        one.announce(agent(n), [f"x.c{c}" for c in sorted(held)])
    offsets = np.zeros(len(rows) + 1, np.int64)
    offsets[1:] = np.cumsum([len(held) for _, held in rows])
    flat = [handles[c] for _, held in rows for c in sorted(held)]
    ids = np.frombuffer(b"".join(agent(n) for n, _ in rows), np.uint8).reshape(len(rows), 32)
    bulk.announce_many(ids, offsets, np.array(flat, np.uint32))
    for name in ["x", *(f"x.c{c}" for c in range(7))]:
        assert sorted(one.holders(name)) == sorted(bulk.holders(name))


class RegistryModel(RuleBasedStateMachine):
    """The registry beside a plain dict."""

    agents = Bundle("agents")

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.model: dict[bytes, tuple[frozenset[str], int, bool]] = {}

    @rule(target=agents, n=st.integers(0, 20))
    def pick(self, n: int) -> bytes:
        return agent(n)

    @rule(who=agents, held=st.frozensets(st.sampled_from("abcdef"), min_size=1), load=st.integers(0, 9))
    def announce(self, who: bytes, held: frozenset[str], load: int) -> None:
        self.registry.announce(who, sorted(held), load=load)
        self.model[who] = (held, load, True)

    @rule(who=agents)
    def withdraw(self, who: bytes) -> None:
        if who in self.model:
            assert self.registry.withdraw(who)
            del self.model[who]
        else:
            with pytest.raises(UnknownAgent):
                self.registry.withdraw(who)

    @rule(who=agents, load=st.integers(0, 9))
    def set_load(self, who: bytes, load: int) -> None:
        if who in self.model:
            self.registry.set_load(who, load)
            held, _, alive = self.model[who]
            self.model[who] = (held, load, alive)

    @rule(who=agents, alive=st.booleans())
    def set_alive(self, who: bytes, alive: bool) -> None:
        if who in self.model:
            self.registry.set_alive(who, alive)
            held, load, _ = self.model[who]
            self.model[who] = (held, load, alive)

    @rule(name=st.sampled_from("abcdef"), count=st.integers(1, 4))
    def assemble(self, name: str, count: int) -> None:
        usable = {who for who, (held, _, alive) in self.model.items() if name in held and alive}
        team = self.registry.assemble({name: count})
        chosen = {m.agent_id for m in team.members}
        assert chosen <= usable
        assert len(chosen) == min(count, len(usable))
        assert team.missing == ({} if count <= len(usable) else {name: count - len(usable)})

    @invariant()
    def same(self) -> None:
        assert len(self.registry) == len(self.model)
        for name in "abcdef":
            assert set(self.registry.holders(name)) == {w for w, (h, _, _) in self.model.items() if name in h}


RegistryModel.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestRegistryModel = RegistryModel.TestCase
