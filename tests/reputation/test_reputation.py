"""Ratings, decisions and signed reports through Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pandacore.errors import (
    BadSignature,
    ConfigError,
    ForeignCollective,
    ImpossibleReport,
    MalformedRecord,
    Overloaded,
    PandacoreError,
    SelfStatement,
    ShapeError,
    StaleReport,
    UntrustedWitness,
)
from pandacore.reputation import Rating, Report, Reputation, ReputationPolicy
from pandacore.trust import Certificate, Genesis, KeyPair, TrustedSet, TrustPolicy, TrustStore

ME, PEER = 0, 1


def after(policy: ReputationPolicy, events: str, epoch: int = 0) -> Reputation:
    store = Reputation(policy)
    for event in events:
        store.observe(ME, PEER, bad=event == "b", epoch=epoch)
    return store


@pytest.mark.parametrize(
    ("events", "x", "y", "mean"),
    [
        ("b", 1.9, 0.9, 0.678571),
        ("bb", 2.71, 0.81, 0.769886),
        ("bbb", 3.439, 0.729, 0.825096),
        ("bbbb", 4.0951, 0.6561, 0.861909),
        ("g", 0.9, 1.9, 0.321429),
        ("gg", 0.81, 2.71, 0.230114),
        ("ggg", 0.729, 3.439, 0.174904),
    ],
)
def test_published_values(events: str, x: float, y: float, mean: float) -> None:
    standing = after(ReputationPolicy.raps(), events).standing(ME, PEER, epoch=0)
    assert standing.first_hand == pytest.approx((x, y), abs=1e-12)
    assert standing.combined.mean == pytest.approx(mean, abs=5e-7)


@pytest.mark.parametrize(
    "policy", [ReputationPolicy.raps(), ReputationPolicy.robust()], ids=["raps", "robust"]
)
def test_constant_liar_is_excluded_after_two_observations(policy: ReputationPolicy) -> None:
    assert not after(policy, "b").excluded(ME, PEER, epoch=0)
    assert after(policy, "bb").excluded(ME, PEER, epoch=0)


@pytest.mark.parametrize("events", ["bb", "bbb", "b" * 100, "g" * 50 + "b" * 20])
def test_reformed_peer_is_back_within_twelve_idle_epochs(events: str) -> None:
    store = after(ReputationPolicy.robust(), events)
    assert store.excluded(ME, PEER, epoch=0)
    idle = next(idle for idle in range(100) if not store.excluded(ME, PEER, epoch=idle + 1))
    assert 1 <= idle <= 12
    # The published scheme never forgets.
    assert after(ReputationPolicy.raps(), events).excluded(ME, PEER, epoch=1000)


def test_float_ratings_equal_exact_fractions_over_ten_thousand_operations() -> None:
    rng = np.random.default_rng(5)
    agents, decay, weight = 12, Fraction(9, 10), Fraction(1, 10)
    policy = ReputationPolicy.raps(deviation=0.25)
    store = Reputation(policy)
    one = (Fraction(1), Fraction(1))
    first: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
    combined: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
    witnesses: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}

    def mean(rating: tuple[Fraction, Fraction]) -> Fraction:
        return rating[0] / (rating[0] + rating[1])

    def event(rating: tuple[Fraction, Fraction], bad: bool) -> tuple[Fraction, Fraction]:
        pair = (decay * rating[0] + bad, decay * rating[1] + (not bad))
        # Rounded far below what is compared, or the fractions would grow without bound.
        return Fraction(round(pair[0] * 10**40), 10**40), Fraction(round(pair[1] * 10**40), 10**40)

    for step in range(10_000):
        i, j, k = (int(n) for n in rng.choice(agents, 3, replace=False))
        if rng.random() < 0.6:
            bad = bool(rng.random() < 0.3)
            store.observe(i, j, bad=bad, epoch=0)
            first[i, j] = event(first.get((i, j), one), bad)
            combined[i, j] = event(combined.get((i, j), one), bad)
        elif (k, j) in first:
            told = first[k, j]
            heard = store.hear_numbers(
                i, k, j, (float(told[0]), float(told[1])), counter=step + 1, written=step, epoch=step
            )
            deviation = abs(mean(told) - mean(combined.get((i, j), one)))
            assert abs(heard.deviation - float(deviation)) < 1e-12
            disagrees = deviation >= Fraction(1, 4)
            witnesses[i, k] = event(witnesses.get((i, k), one), disagrees)
            if mean(witnesses[i, k]) < Fraction(1, 2) or not disagrees:
                assert heard.merged
                base = combined.get((i, j), first.get((i, j), one))
                combined[i, j] = (base[0] + weight * told[0], base[1] + weight * told[1])
            else:
                assert not heard.merged
    assert len(first) == agents * (agents - 1)
    for (i, j), rating in first.items():
        standing = store.standing(i, j, epoch=0)
        assert standing.first_hand == pytest.approx([float(v) for v in rating], abs=1e-12)
        assert standing.combined == pytest.approx([float(v) for v in combined[i, j]], rel=1e-12)
    for (i, k), rating in witnesses.items():
        assert store.witness(i, k) == pytest.approx([float(v) for v in rating], abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 3))
def test_ratings_are_probabilities_and_evidence_moves_them_the_right_way(
    events: list[bool], gap: int
) -> None:
    store = Reputation()
    for step, bad in enumerate(events):
        epoch = step * gap
        before = store.standing(ME, PEER, epoch=epoch).first_hand.mean
        store.observe(ME, PEER, bad=bad, epoch=epoch)
        standing = store.standing(ME, PEER, epoch=epoch)
        assert (standing.first_hand.mean > before) == bad
        assert 0 < standing.combined.mean < 1
        assert 0 <= standing.score <= 1
        assert standing.first_hand.mass <= 10 + 1e-9
        assert standing.observations == step + 1


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=40))
def test_rank_filters_first_and_never_lists_an_excluded_peer(events: list[tuple[int, bool]]) -> None:
    store = Reputation()
    for peer, bad in events:
        store.observe(ME, peer, bad=bad, epoch=0)
    ranked = store.rank(ME, np.arange(1, 9), epoch=0).tolist()
    scores, excluded = store.scores(np.zeros(8, np.uint32), np.arange(1, 9), epoch=0)
    assert sorted(ranked) == (1 + np.flatnonzero(~excluded)).tolist()
    assert [scores[n - 1] for n in ranked] == sorted(scores[n - 1] for n in ranked)


@settings(max_examples=50)
@given(
    st.lists(st.booleans(), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(2, 5), st.floats(0.01, 4.9), st.floats(0.01, 4.9)), max_size=20),
)
def test_hearsay_never_touches_the_first_hand_and_weighs_a_third_at_most(
    events: list[bool], reports: list[tuple[int, float, float]]
) -> None:
    store = Reputation()
    for bad in events:
        store.observe(ME, PEER, bad=bad, epoch=0)
    first = store.standing(ME, PEER, epoch=0).first_hand
    others = store.standing(2, PEER, epoch=0)
    for counter, (witness, x, y) in enumerate(reports, 1):
        before = store.standing(ME, PEER, epoch=0)
        try:
            heard = store.hear_numbers(ME, witness, PEER, (x, y), counter=counter, written=0, epoch=0)
        except PandacoreError:
            assert store.standing(ME, PEER, epoch=0) == before
            continue
        now = store.standing(ME, PEER, epoch=0)
        assert now.first_hand == first
        assert now.combined.mass - first.mass <= now.combined.mass / 3 + 1e-12
        if not heard.merged:
            assert now == before
    assert store.standing(2, PEER, epoch=0) == others


def test_hearsay_alone_excludes_nobody() -> None:
    store = Reputation()
    for witness in range(2, 40):
        store.hear_numbers(ME, witness, PEER, (6.0, 3.9), counter=40, written=0, epoch=0)
    standing = store.standing(ME, PEER, epoch=0)
    assert standing.second_hand.mass > 2
    assert standing.combined.mass <= 4
    assert not standing.excluded


def test_watchdog_errors_are_taken_off_the_estimate() -> None:
    policy = ReputationPolicy.robust(false_positive=0.05, false_negative=0.10)
    standing = after(policy, "b").standing(ME, PEER, epoch=0)
    assert standing.estimate == pytest.approx((1.9 / 2.8 - 0.05) / 0.85)
    assert after(policy, "g" * 100).standing(ME, PEER, epoch=0).estimate == 0
    with pytest.raises(ConfigError):
        ReputationPolicy.robust(false_positive=0.5, false_negative=0.5)


def test_somebody_excluded_is_tried_at_the_given_rate() -> None:
    store = after(ReputationPolicy.robust(), "bb")
    assert store.probation(ME, [PEER, 2], epoch=0, draw=0.019) == PEER
    assert store.probation(ME, [PEER, 2], epoch=0, draw=0.021) is None
    assert store.probation(ME, [2, 3], epoch=0, draw=0.0) is None
    assert store.probation(ME, [PEER], epoch=0, draw=0.5, rate=1.0) == PEER


def test_certifiers_answer_for_whom_they_vouched_for() -> None:
    store = Reputation()
    store.certifier_event(7, bad=True)
    assert store.certifier(7) == (1.9, 0.9)
    assert store.certifier(8) == (1.0, 1.0)
    assert store.standing(ME, 7, epoch=0).combined == (1.0, 1.0)


def test_full_store_and_forgetting() -> None:
    store = Reputation(capacity=2)
    store.observe(ME, 1, bad=True, epoch=0)
    store.observe(ME, 2, bad=True, epoch=0)
    with pytest.raises(Overloaded):
        store.observe(ME, 3, bad=True, epoch=0)
    assert store.forget(epoch=100) == 2
    store.observe(ME, 3, bad=True, epoch=100)
    assert len(store) == 1


def test_arrays_are_checked() -> None:
    store = Reputation()
    store.observe_many([0, 0, 1], [1, 2, 0], np.array([True, False, True]), epoch=0)
    assert len(store) == 3
    with pytest.raises(ShapeError):
        store.observe_many([0, 0], [1], np.array([True, False]), epoch=0)
    with pytest.raises(ShapeError):
        store.observe_many([0], [1], np.array([1]), epoch=0)
    with pytest.raises(ShapeError):
        store.rank(0, np.array([0.5]), epoch=0)
    with pytest.raises(ShapeError):
        store.rank(0, [-1], epoch=0)
    with pytest.raises(SelfStatement):
        store.observe_many([0, 5], [1, 5], np.array([True, True]), epoch=0)
    assert store.rank(0, [], epoch=0).tolist() == []
    assert store.rank(0, np.arange(20, dtype=np.int64)[1:7:2], epoch=0).tolist() == [3, 5]


def test_policies_are_checked_and_plain_data() -> None:
    for wrong in (
        {"decay": 0.0},
        {"decay": 1.1},
        {"weight": 1.0},
        {"second_hand": "rumours"},
        {"report_age": -1},
    ):
        with pytest.raises(ConfigError):
            ReputationPolicy.robust(**wrong)
    with pytest.raises(ConfigError, match="unknown field"):
        ReputationPolicy.raps(colour=1)
    with pytest.raises(ConfigError):
        Reputation(capacity=0)
    assert json.dumps(Rating(1.0, 2.0)) == "[1.0, 2.0]"


KEYS = [KeyPair.from_seed(bytes([n + 1]) * 32) for n in range(4)]
GENESIS = Genesis([KEYS[0].public], threshold=1, label="reports")


class Host:
    """A receiver (agent 0) that trusts agents 1 and 2, but not 3."""

    def __init__(self) -> None:
        self.store = TrustStore(GENESIS, now_s=0, policy=TrustPolicy.strict(threshold=1, quota=None))
        for subject in (1, 2):
            offer = Certificate.issue(
                KEYS[0], KEYS[subject].public, GENESIS.collective_id, not_before=0, not_after=100
            )
            self.store.ingest(offer.consented(KEYS[subject]))
        self.trusted: TrustedSet = self.store.trusted()
        self.numbers = self.store.number(key.public for key in KEYS).tolist()
        self.reputation = Reputation()
        self.reputation.observe(self.numbers[0], self.numbers[2], bad=False, epoch=5)

    def hear(self, report: Report | bytes, epoch: int = 5) -> bool:
        heard = self.reputation.hear(
            self.numbers[0], report, store=self.store, trusted=self.trusted, epoch=epoch
        )
        return heard.merged

    def state(self) -> object:
        pairs = [(self.numbers[0], n) for n in self.numbers[1:]]
        standings = [self.reputation.standing(i, j, epoch=5) for i, j in pairs]
        return standings, [self.reputation.witness(i, j) for i, j in pairs], len(self.reputation)


def report(witness: int, subject: int, *, epoch: int = 5, observed: str = "gg") -> Report:
    seen = Reputation()
    for event in observed:
        seen.observe(0, 1, bad=event == "b", epoch=0)
    standing = seen.standing(0, 1, epoch=0)
    return Report.sign(
        KEYS[witness], KEYS[subject].public, GENESIS.collective_id, epoch=epoch, standing=standing
    )


def test_signed_report_of_a_trusted_witness_counts_once() -> None:
    host = Host()
    sent = report(1, 2)
    assert host.hear(sent)
    before = host.state()
    with pytest.raises(StaleReport):
        host.hear(sent)
    assert host.state() == before
    assert host.hear(report(1, 2, epoch=6, observed="ggg").record, epoch=6)


def _tampered() -> bytes:
    record = bytearray(report(1, 2).record)
    record[112] ^= 1  # the rating
    return bytes(record)


def _foreign() -> bytes:
    seen = Reputation()
    seen.observe(0, 1, bad=False, epoch=0)
    standing = seen.standing(0, 1, epoch=0)
    return Report.sign(KEYS[1], KEYS[2].public, bytes(32), epoch=5, standing=standing).record


def _boast() -> bytes:
    return KEYS[1]._core.report(GENESIS.collective_id, KEYS[2].public, 5, 3, 500.0, 1.0)


REFUSED: list[tuple[type[PandacoreError], Callable[[], bytes]]] = [
    (BadSignature, _tampered),
    (ForeignCollective, _foreign),
    (MalformedRecord, lambda: report(1, 2).record[:-1]),
    (MalformedRecord, lambda: report(1, 2).record + bytes(1 << 20)),
    (UntrustedWitness, lambda: report(3, 2).record),
    (SelfStatement, lambda: report(1, 1).record),
    (SelfStatement, lambda: report(1, 0).record),
    (StaleReport, lambda: report(1, 2, epoch=0).record),
    (StaleReport, lambda: report(1, 2, epoch=6).record),
    (ImpossibleReport, _boast),
]


@pytest.mark.parametrize(
    ("error", "make"), REFUSED, ids=[f"{n}-{e.__name__}" for n, (e, _) in enumerate(REFUSED)]
)
def test_refused_reports_leave_every_rating_as_it_was(
    error: type[PandacoreError], make: Callable[[], bytes]
) -> None:
    host = Host()
    before = host.state()
    with pytest.raises(error):
        host.hear(make())
    assert host.state() == before


def test_witness_whose_certificate_expired_may_not_testify() -> None:
    host = Host()
    host.store.advance(100)
    with pytest.raises(UntrustedWitness):
        host.hear(report(1, 2))


def test_nothing_seen_is_nothing_to_report() -> None:
    with pytest.raises(ConfigError):
        report(1, 2, observed="")
