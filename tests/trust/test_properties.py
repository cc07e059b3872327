"""Laws of trusted sets, against definitions written out in Python."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pandacore.trust import (
    UNREACHED,
    Certificate,
    Genesis,
    KeyPair,
    Revocation,
    TrustGraph,
    TrustPolicy,
    TrustStore,
)

NODES = 8
FOUNDERS = range(3)
DEPTH = 3
KEYS = [KeyPair.from_seed(bytes([n + 1]) * 32) for n in range(NODES)]

node = st.integers(0, NODES - 1)
event = st.one_of(
    st.tuples(st.just("issue"), node, node, st.integers(1, 9)),
    st.tuples(st.just("issue"), node, node, st.integers(1, 9)),
    st.tuples(st.just("withdraw"), node, node, st.integers(1, 9)),
    st.tuples(st.just("end"), st.integers(0, 39), st.just(0), st.just(0)),
    st.tuples(st.just("advance"), st.just(0), st.just(0), st.integers(1, 4)),
)


@dataclass
class Model:
    """Certificates as (issuer, subject, begin, end, amount) and what the rules make of them."""

    t: int
    now: int = 10
    certificates: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def edges(self) -> set[tuple[int, int]]:
        live = [c for c in self.certificates if c[2] <= self.now < c[3]]
        found = set()
        for pair in {c[:2] for c in live}:
            newest = max(c[2] for c in live if c[:2] == pair)
            if all(c[4] for c in live if c[:3] == (*pair, newest)):
                found.add(pair)
        return found

    def members(self) -> set[int]:
        edges, members = self.edges(), set(FOUNDERS)
        while True:
            more = {v for v in range(NODES) if sum((u, v) in edges for u in members) >= self.t} - members
            if not more:
                return members
            members |= more

    def distances(self, anchors: set[int], limit: int) -> dict[int, int]:
        edges, members = self.edges(), self.members()
        found = dict.fromkeys(anchors, 0)
        for step in range(1, limit + 1):
            last = {u for u, d in found.items() if d == step - 1}
            for u, v in edges:
                if u in last and v in members:
                    found.setdefault(v, step)
        return found

    def layers(self, limit: int) -> dict[int, int]:
        edges, found = self.edges(), dict.fromkeys(FOUNDERS, 0)
        for layer in range(1, limit + 1):
            votes = {v: sum((u, v) in edges for u in found) for v in range(NODES) if v not in found}
            found |= {v: layer for v, count in votes.items() if count >= self.t}
        return found


@settings(max_examples=60)
@given(events=st.lists(event, max_size=40), t=st.integers(1, 3))
def test_sets_equal_their_definition_after_every_event(
    events: list[tuple[str, int, int, int]], t: int
) -> None:
    model = Model(t)
    policy = TrustPolicy.panda(reading="directed", grace_s=0, threshold=t)
    graph = TrustGraph(NODES, genesis=len(FOUNDERS), policy=policy, now_s=model.now)
    graph.grow(NODES)
    strict = TrustPolicy.strict(quota=None, threshold=t)
    path, nearer = graph.trusted(), graph.trusted(policy=replace(policy, max_depth=DEPTH - 1))
    layered = graph.trusted(policy=strict)
    for serial, (kind, first, second, number) in enumerate(events):
        before = set(path.nodes().tolist())
        if kind == "advance":
            model.now += number
            graph.advance(model.now)
        elif kind == "end":
            if first < len(model.certificates):
                issuer, subject, begin, end, amount = model.certificates[first]
                model.certificates[first] = (issuer, subject, begin, min(end, model.now), amount)
                graph.end(issuer, subject, at_s=model.now, serial=first)
        else:
            amount = 120 if kind == "issue" else 0
            made = (first, second, model.now, model.now + number, amount)
            fresh = not any(c[:2] == made[:2] for c in model.certificates)
            taken = graph.add(
                first, second, not_before=made[2], not_after=made[3], serial=len(model.certificates),
                amount=amount,
            )  # fmt: skip
            # I7: nobody certifies itself.
            assert taken.tolist() == [first != second], serial
            if first != second:
                model.certificates.append(made)
            if fresh and amount:
                assert before <= set(path.nodes().tolist()), "I4"
        distances, layers = model.distances(set(FOUNDERS), DEPTH), model.layers(DEPTH)
        assert set(path.nodes().tolist()) == distances.keys(), "I8, I9, I12, I13"
        assert {v: d for v, d in enumerate(layered.layers().tolist()) if d != UNREACHED} == layers
        assert set(graph.members().nonzero()[0].tolist()) == model.members()
        assert set(nearer.nodes().tolist()) <= distances.keys(), "I3"
        assert all(distances[v] <= layer for v, layer in layers.items()), "I2"
        assert t > 1 or layers == distances, "I1"
    search, edges, members = graph.search(), model.edges(), model.members()
    for anchor in range(NODES):
        reached = model.distances({anchor}, DEPTH)
        found = {v: search.distance(anchor, v) for v in range(NODES)}
        assert {v: d for v, d in found.items() if d is not None} == reached, "I11"
        assert search.reach_count(anchor) == len(reached)
    for accepted, distance in model.distances(set(FOUNDERS), DEPTH).items():
        chain = path.witness(accepted)
        assert chain is not None
        assert len(chain) == distance + 1 == len(set(chain)), "I10"
        assert chain[0] in FOUNDERS
        assert all(step in edges and step[1] in members for step in pairwise(chain))


pair = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda p: p[0] != p[1])


@settings(max_examples=25)
@given(data=st.data(), pairs=st.lists(st.tuples(pair, st.integers(0, 3)), min_size=1, max_size=12))
def test_order_and_repetition_of_delivery_do_not_matter(
    data: st.DataObject, pairs: list[tuple[tuple[int, int], int]]
) -> None:
    genesis = Genesis([KEYS[0].public, KEYS[1].public], threshold=2)
    other = Genesis([KEYS[0].public, KEYS[1].public], threshold=1)
    records: list[Certificate | Revocation] = []
    for serial, ((issuer, subject), begin) in enumerate(pairs):
        offer = Certificate.issue(
            KEYS[issuer], KEYS[subject].public, genesis.collective_id,
            not_before=begin, not_after=90, serial=serial,
        )  # fmt: skip
        made = offer.consented(KEYS[subject])
        records.append(made)
        if begin == 3:
            records.append(Revocation.of(made, KEYS[subject], at=4))
    stores = []
    for order in (records, data.draw(st.permutations(records)) + records):
        store = TrustStore(genesis, now_s=5, policy=TrustPolicy.strict(quota=2, quota_window_s=10))
        store.ingest_many(order)
        stores.append(store)
    # I5, I6
    assert stores[0].digest() == stores[1].digest()
    exports = [sorted(store.export()) for store in stores]
    assert exports[0] == exports[1]
    assert stores[0].trusted().agents() == stores[1].trusted().agents()
    # I15
    for issuer in range(5):
        served = [
            subject
            for subject in range(5)
            if any(c.issuer == KEYS[issuer].public for c in stores[0].certificates(KEYS[subject].public))
        ]
        assert len(served) <= 2
    # I14
    foreign = TrustStore(other, now_s=5)
    before = foreign.digest(), foreign.export()
    assert all(answer is not None for answer in foreign.ingest_many(records))
    assert (foreign.digest(), foreign.export()) == before
