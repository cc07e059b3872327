"""Certificates, trusted sets and explanations through Python, on the worked example of the design."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from pandacore.errors import (
    BadConsent,
    BadSignature,
    ConfigError,
    DuplicateStatement,
    Expired,
    ForeignCollective,
    InvalidKey,
    MalformedRecord,
    NotAuthorised,
    NotYetValid,
    QuotaExceeded,
    RefusedStatement,
    SelfStatement,
    ShapeError,
    StateError,
    UnknownAgent,
)
from pandacore.trust import (
    UNREACHED,
    Certificate,
    Genesis,
    KeyPair,
    Revocation,
    TrustGraph,
    TrustPolicy,
    TrustStore,
    choose_certifiers,
    verify_chain,
)

NAMES = ("g1", "g2", "a", "b", "c", "d", "e", "f")
CERTIFICATES = [
    tuple(pair.split("-"))
    for pair in ["g1-a", "g2-a", "g1-b", "a-b", "a-c", "b-c", "b-d", "c-d", "c-e", "d-e", "a-f"]
]
KEYS = {name: KeyPair.from_seed(bytes([n + 1]) * 32) for n, name in enumerate(NAMES)}
WHO = {key.public: name for name, key in KEYS.items()}
GENESIS = Genesis([KEYS["g1"].public, KEYS["g2"].public], threshold=2, label="worked")
PATH = TrustPolicy.panda(reading="directed", grace_s=0)


def certificate(
    issuer: str, subject: str, *, until: int = 1000, begin: int = 0, serial: int = 1
) -> Certificate:
    offer = Certificate.issue(
        KEYS[issuer],
        KEYS[subject].public,
        GENESIS.collective_id,
        not_before=begin,
        not_after=until,
        serial=serial,
    )
    return offer.consented(KEYS[subject])


def worked(policy: TrustPolicy = PATH, **ends: int) -> TrustStore:
    store = TrustStore(GENESIS, now_s=0, policy=policy)
    made = [certificate(i, s, until=ends.get(f"{i}_{s}", 1000)) for i, s in CERTIFICATES]
    assert store.ingest_many(made) == [None] * len(made)
    return store


def names(agents: list[bytes] | tuple[bytes, ...]) -> str:
    return " ".join(sorted((WHO[agent] for agent in agents), key=NAMES.index))


@pytest.mark.parametrize(
    ("policy", "anchor", "accepted"),
    [
        (PATH, None, "g1 g2 a b c d e"),
        (TrustPolicy.panda(reading="directed", max_depth=2), None, "g1 g2 a b c d"),
        (TrustPolicy.panda(reading="directed", max_depth=1), None, "g1 g2 a b"),
        (TrustPolicy.strict(quota=None), None, "g1 g2 a b c"),
        (TrustPolicy.strict(quota=None, max_depth=None), None, "g1 g2 a b c d e"),
        (TrustPolicy.strict(quota=None, anchor_weight=2), None, "g1 g2 a b c d"),
        (TrustPolicy.panda(reading="directed", max_depth=1), "b", "b c d"),
        (TrustPolicy.panda(reading="directed", max_depth=2), "b", "b c d e"),
        (TrustPolicy.panda(max_depth=1), "b", "g1 a b c d"),
        (TrustPolicy.panda(max_depth=2), "b", "g1 g2 a b c d e"),
    ],
)
def test_worked_example(policy: TrustPolicy, anchor: str | None, accepted: str) -> None:
    store = worked()
    start = None if anchor is None else KEYS[anchor].public
    with store.trusted(policy=policy, anchor=start) as trusted:
        assert names(trusted.agents()) == accepted
        assert all(trusted.contains(KEYS[name].public) == (name in accepted.split()) for name in NAMES)
        assert len(trusted) == len(accepted.split())


def test_set_follows_revocation_expiry_and_retirement() -> None:
    store = worked(g1_b=100)
    trusted = store.trusted()
    store.advance(99)
    assert names(trusted.agents()) == "g1 g2 a b c d e"
    store.advance(100)
    assert names(trusted.agents()) == "g1 g2 a"
    store.ingest(certificate("g1", "b", serial=2, begin=100))
    assert names(trusted.agents()) == "g1 g2 a b c d e"
    store.ingest(Revocation.retire(KEYS["b"], GENESIS.collective_id, at=200))
    store.advance(199)
    assert trusted.contains(KEYS["b"].public)
    store.advance(200)
    assert names(trusted.agents()) == "g1 g2 a c d e"
    assert trusted.explain(KEYS["b"].public).reason == "retired"
    store.ingest(Revocation.compromised(KEYS["b"], GENESIS.collective_id, at=200))
    assert names(trusted.agents()) == "g1 g2 a"
    assert trusted.explain(KEYS["b"].public).reason == "compromised"
    store.ingest(Revocation.of(certificate("g2", "a"), KEYS["a"], at=200))
    assert names(trusted.agents()) == "g1 g2"


def test_explanations_give_the_reason_and_what_it_rests_on() -> None:
    store = worked()
    path, strict = store.trusted(), store.trusted(policy=TrustPolicy.strict(quota=None))
    why = path.explain(KEYS["e"].public)
    assert (why.trusted, why.reason, why.layer, why.reference_time_s) == (True, "accepted", 3, 0)
    assert len(why.path) == 4
    assert why.path == path.witness(KEYS["e"].public)
    assert {WHO[c.issuer] for c in why.certificates} == {"c", "d"}
    assert path.explain(KEYS["g1"].public).reason == "anchor"
    assert path.explain(KEYS["f"].public).reason == "not a member"
    assert path.explain(KeyPair.from_seed(bytes(32)).public).reason == "unknown"
    near = store.trusted(policy=TrustPolicy.panda(reading="directed", max_depth=1))
    assert near.explain(KEYS["c"].public).reason == "too far"
    assert strict.explain(KEYS["f"].public).reason == "too few certificates"
    support = [(WHO[i], WHO[s]) for i, s in strict.explain(KEYS["c"].public).support]
    assert support == [("g1", "a"), ("g2", "a"), ("g1", "b"), ("a", "b"), ("a", "c"), ("b", "c")] or set(
        support
    ) == {("g1", "a"), ("g2", "a"), ("g1", "b"), ("a", "b"), ("a", "c"), ("b", "c")}
    # The support alone gives the same layer.
    alone = TrustStore(GENESIS, now_s=0, policy=TrustPolicy.strict(quota=None))
    alone.ingest_many([certificate(i, s) for i, s in support])
    assert alone.trusted().layer(KEYS["c"].public) == strict.layer(KEYS["c"].public) == 3


def test_explanation_names_certificates_that_no_budget_has_room_for() -> None:
    policy = TrustPolicy.strict(quota=2, quota_window_s=500)
    store = TrustStore(GENESIS, now_s=2, policy=policy)
    for begin, subject in enumerate("abc"):
        for founder in ("g1", "g2"):
            store.ingest(certificate(founder, subject, begin=begin))
    why = store.trusted().explain(KEYS["c"].public)
    assert (why.reason, why.certificates) == ("over quota", ())
    assert {WHO[c.issuer] for c in why.uncounted} == {"g1", "g2"}
    # Too short a life takes no place either; one that never takes one is told from one that is missing.
    store = TrustStore(GENESIS, now_s=0, policy=policy)
    store.ingest(certificate("g1", "a", until=400))
    assert store.trusted().explain(KEYS["a"].public).reason == "too few certificates"
    store.ingest(certificate("g2", "a", until=400))
    why = store.trusted().explain(KEYS["a"].public)
    assert (why.reason, len(why.uncounted)) == ("over quota", 2)
    store.ingest(Revocation.of(certificate("g2", "a", until=400), KEYS["g2"], at=0))
    assert len(store.trusted().explain(KEYS["a"].public).uncounted) == 1


def test_witness_path_is_reverified_from_its_certificates_alone() -> None:
    store = worked()
    path = store.trusted().witness(KEYS["e"].public)
    assert path is not None
    chain = store.chain([agent for agent in path if isinstance(agent, bytes)])

    def checks(certificates: list[Certificate], now_s: int = 0, max_depth: int | None = 3) -> bool:
        return verify_chain(
            certificates,
            anchors=GENESIS.members,
            collective_id=GENESIS.collective_id,
            now_s=now_s,
            max_depth=max_depth,
        )

    assert checks(chain)
    assert not checks(chain, now_s=1000)
    assert not checks(chain, max_depth=2)
    assert not checks(chain[1:])
    assert not checks([])
    forged = bytearray(chain[1].record)
    forged[-1] ^= 1
    assert not checks([chain[0], Certificate.parse(bytes(forged)), *chain[2:]])


def _foreign() -> bytes:
    other = Genesis([KEYS["g1"].public], threshold=1).collective_id
    offer = Certificate.issue(KEYS["g1"], KEYS["f"].public, other, not_before=0, not_after=1000)
    return offer.consented(KEYS["f"]).record


def _forged() -> bytes:
    record = bytearray(certificate("e", "f").record)
    record[1 + 96] ^= 1  # the serial
    return bytes(record)


def _own() -> bytes:
    key = KEYS["e"]
    offer = Certificate.issue(key, key.public, GENESIS.collective_id, not_before=0, not_after=1000)
    return offer.consented(key).record


def _unconsented() -> bytes:
    public = KEYS["f"].public
    return Certificate.issue(KEYS["e"], public, GENESIS.collective_id, not_before=0, not_after=1000).record


REFUSALS: list[tuple[type[RefusedStatement], Callable[[], bytes]]] = [
    (ForeignCollective, _foreign),
    (BadSignature, _forged),
    (BadConsent, _unconsented),
    (SelfStatement, _own),
    (Expired, lambda: certificate("e", "f", until=50).record),
    (NotYetValid, lambda: certificate("e", "f", begin=200).record),
    (DuplicateStatement, lambda: certificate("g1", "a").record),
    (MalformedRecord, lambda: b""),
    (MalformedRecord, lambda: certificate("e", "f").record + bytes(5_000_000)),
    (MalformedRecord, lambda: b"\x09" * 40),
]


@pytest.mark.parametrize(("error", "make"), REFUSALS, ids=[error.__name__ for error, _ in REFUSALS])
def test_refused_statements_change_nothing(error: type[RefusedStatement], make: Callable[[], bytes]) -> None:
    store = worked()
    store.advance(100)
    before = store.digest(), store.export(), store.trusted().agents(), len(store)
    with pytest.raises(error):
        store.ingest(make())
    assert [type(answer) for answer in store.ingest_many([make()])] == [error]
    assert (store.digest(), store.export(), store.trusted().agents(), len(store)) == before


def test_quota_of_stored_statements() -> None:
    store = TrustStore(GENESIS, now_s=0, policy=PATH, per_signer=2)
    store.ingest(certificate("g1", "a", serial=1))
    store.ingest(certificate("g1", "a", serial=2))
    with pytest.raises(QuotaExceeded):
        store.ingest(certificate("g1", "a", serial=3))


def test_export_and_import_give_the_same_store() -> None:
    store = worked()
    store.ingest(Revocation.of(certificate("b", "c"), KEYS["c"], at=0))
    other = TrustStore(GENESIS, now_s=0, policy=PATH)
    assert other.ingest_many(store.export()[::-1], threads=2) == [None] * len(store)
    assert other.digest() == store.digest()
    assert other.trusted().agents() == store.trusted().agents()


def test_only_the_right_keys_can_speak() -> None:
    offer = Certificate.issue(KEYS["a"], KEYS["b"].public, GENESIS.collective_id, not_before=0, not_after=9)
    with pytest.raises(NotAuthorised):
        offer.consented(KEYS["c"])
    with pytest.raises(NotAuthorised):
        Revocation.of(offer, KEYS["c"], at=0)
    with pytest.raises(InvalidKey):
        Certificate.issue(KEYS["a"], bytes(32), GENESIS.collective_id, not_before=0, not_after=9)
    with pytest.raises(MalformedRecord):
        Revocation.parse(offer.record)
    assert Revocation.parse(Revocation.of(offer, KEYS["b"], at=3).record).kind == "revoked"


def test_renewal_is_due_at_two_thirds_of_the_lifetime() -> None:
    store = worked()
    store.advance(666)
    assert store.due_for_renewal(KEYS["a"].public) == ()
    store.advance(667)
    assert len(store.due_for_renewal(KEYS["a"].public)) == 2
    assert store.issued(KEYS["a"].public) == 3


def test_bitmap_is_one_snapshot_until_something_changes() -> None:
    store = worked()
    trusted = store.trusted()
    first = trusted.bitmap()
    assert first is trusted.bitmap()
    assert not first.flags.writeable
    order = store.number(key.public for key in KEYS.values())
    bits = trusted.bitmap(order)
    assert [bool(int(bits[0]) >> n & 1) for n in range(len(NAMES))] == [True] * 7 + [False]
    store.ingest(Revocation.of(certificate("g1", "b"), KEYS["g1"], at=0))
    assert trusted.bitmap() is not first


def test_closed_set_cannot_be_asked() -> None:
    trusted = worked().trusted()
    trusted.close()
    trusted.close()
    with pytest.raises(StateError):
        trusted.contains(KEYS["a"].public)


def test_time_never_goes_back() -> None:
    store = worked()
    store.advance(10)
    with pytest.raises(StateError, match="never goes back"):
        store.advance(9)


def test_policies_are_checked() -> None:
    store = worked()
    with pytest.raises(ConfigError, match="never reach"):
        store.trusted(policy=TrustPolicy.strict(), anchor=KEYS["a"].public)
    with pytest.raises(ConfigError, match="self"):
        store.trusted(policy=TrustPolicy.strict(anchor="self"))
    mine = TrustStore(GENESIS, now_s=0, policy=TrustPolicy.strict(anchor="self"), me=KEYS["a"].public)
    assert names(mine.trusted().agents()) == "a"
    for wrong in ({"rule": "mood"}, {"threshold": 0}, {"renew_at": 0.0}, {"anchor": "none"}, {"quota": -1}):
        with pytest.raises(ConfigError):
            TrustPolicy.strict(**wrong)
    with pytest.raises(ConfigError, match="unknown field"):
        TrustPolicy.panda(colour=1)
    with pytest.raises(ConfigError):
        Genesis([], threshold=2)
    with pytest.raises(InvalidKey):
        Genesis([b"short"])


def test_collective_id_depends_on_all_of_the_descriptor() -> None:
    members = [KEYS["a"].public, KEYS["b"].public]
    base = Genesis(members, 2, "x")
    assert base.collective_id == Genesis([*members[::-1], members[0]], 2, "x").collective_id
    others = [Genesis(members[:1], 2, "x"), Genesis(members, 1, "x"), Genesis(members, 2, "y")]
    assert len({base.collective_id, *(other.collective_id for other in others)}) == 4


def test_graph_and_store_agree() -> None:
    graph = TrustGraph(8, genesis=2, policy=PATH)
    pairs = [(NAMES.index(i), NAMES.index(s)) for i, s in CERTIFICATES]
    issuers, subjects = np.array(pairs).T
    assert graph.add(issuers, subjects, not_before=0, not_after=1000).all()
    assert not graph.add(issuers, subjects, not_before=0, not_after=1000).any()
    assert graph.trusted().nodes().tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert graph.members().tolist() == [True] * 7 + [False]
    assert graph.trusted().layers().tolist() == [0, 0, 1, 1, 2, 2, 3, UNREACHED]
    assert graph.distance(0, 6) == 3
    assert graph.distances([0, 0, 3], [6, 7, 0]).tolist() == [3, -1, -1]
    assert graph.reach(0).tolist()[0] == 0
    assert graph.reach_count(3) == 4
    assert graph.reach_sizes([3, 7]).tolist() == [4, 1]
    assert graph.reach_sizes([3], among=np.arange(8) > 4).tolist() == [2]
    assert graph.trusted().witness(6) == (0, 2, 4, 6)
    assert graph.flow([0, 1], 2) == 120
    graph.end([1], [2], at_s=0)
    assert graph.trusted().nodes().tolist() == [0, 1]
    graph.void([0])
    assert graph.trusted().nodes().tolist() == [1]


def test_loaded_graph_follows_events() -> None:
    graph = TrustGraph(6, genesis=2, policy=TrustPolicy.strict(quota=None))
    graph.load([0, 1, 0], [2, 2, 3], not_before=0, not_after=100)
    trusted = graph.trusted()
    assert trusted.nodes().tolist() == [0, 1, 2]
    graph.apply([0, 2], [2, 0], [3, 0], not_before=[5, 6], not_after=[50, 0])
    assert trusted.nodes().tolist() == [0, 1, 2, 3]
    assert graph.now_s == 6
    graph.apply([1], [0], [2], not_before=[6], not_after=0)
    assert trusted.nodes().tolist() == [0, 1]
    with pytest.raises(UnknownAgent):
        graph.apply([0], [0], [6], not_before=0, not_after=100)
    with pytest.raises(UnknownAgent):
        graph.load([0], [99], not_before=0, not_after=100)


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2), np.uint32), np.array([0.5]), np.array([-1]), np.array([2**40]), np.array(["x"])]
)
def test_wrong_arrays_raise_shape_error(bad: np.ndarray) -> None:
    graph = TrustGraph(4, policy=PATH)
    with pytest.raises(ConfigError, match="path rule"):
        graph.distance(0, 1, policy=TrustPolicy.strict())
    with pytest.raises(ShapeError):
        graph.distances(bad, [0])
    with pytest.raises(ShapeError):
        graph.distances([0, 1], [0])


def test_strided_and_wider_arrays_are_taken() -> None:
    graph = TrustGraph(8, genesis=2, policy=PATH)
    pairs = np.array([(NAMES.index(i), NAMES.index(s)) for i, s in CERTIFICATES], np.int64)
    graph.add(pairs[:, 0], pairs[:, 1], not_before=0, not_after=1000)
    targets = np.arange(16, dtype=np.uint32)[::2][:4]
    assert graph.distances(np.zeros(4, np.uint32), targets).tolist() == [0, 1, 2, 3]


def test_certifiers_come_from_the_lowest_layer_with_room() -> None:
    layers = np.array([0, 0, 1, 1, 1, UNREACHED], np.uint32)
    spare = np.array([1, 0, 2, 5, 0, 9])
    assert choose_certifiers(layers, spare, 2).tolist() == [3, 2]
    assert choose_certifiers(layers, spare, 1).tolist() == [0]
    assert sorted(choose_certifiers(layers, spare, 3).tolist()) == [0, 2, 3]
    assert choose_certifiers(layers, spare, 4).tolist() == []


def test_threads_can_ask_while_another_tells() -> None:
    store = TrustStore(GENESIS, now_s=0, policy=PATH)
    trusted = store.trusted()
    made = [certificate(i, s, serial=n) for n in range(2, 30) for i, s in CERTIFICATES]
    failures: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                sizes = len(trusted.agents()), len(trusted)
                assert all(2 <= size <= 7 for size in sizes)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for one in made:
        store.ingest(one)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(trusted) == 7
