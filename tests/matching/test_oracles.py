"""Assembly against independent solvers: scipy's assignment and HiGHS, on random tight instances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from pandacore.registry import Registry, TeamSpec

optimize = pytest.importorskip("scipy.optimize", reason="scipy is not installed")


@dataclass(frozen=True)
class Instance:
    """Agents by capabilities (bool), agents' scores as the registry has them, and what is wanted."""

    registry: Registry
    holds: NDArray[np.bool_]
    scores: NDArray[np.int64]
    wanted: dict[int, int]

    def spec(self, **options: object) -> TeamSpec:
        return TeamSpec({f"c{c}": n for c, n in self.wanted.items()}, **options)  # type: ignore[arg-type]


def instances(seed: int, count: int, *, widest: int, agents: tuple[int, int]) -> Iterator[Instance]:
    """A few requests on each of many small collectives; few agents for much work."""
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        capabilities = int(rng.integers(3, widest + 1))
        n = int(rng.integers(*agents))
        weight = 1.0 / np.arange(1, capabilities + 1)
        holds = rng.random((n, capabilities)) < np.clip(2.5 * weight / weight.sum(), 0.05, 0.7)
        holds[~holds.any(axis=1), 0] = True
        loads = rng.integers(0, 12, n)
        registry = Registry(seed=int(rng.integers(2**32)))
        slots = []
        for k in range(n):
            held = [f"c{c}" for c in np.flatnonzero(holds[k])]
            slots.append(registry.announce(k.to_bytes(32, "little"), held, load=int(loads[k])))
        assert slots == list(range(n))
        records = [registry.get(slot) for slot in slots]
        scores = np.array([record.score for record in records if record is not None], np.int64)
        for _ in range(5):
            chosen = rng.choice(capabilities, int(rng.integers(1, capabilities + 1)), replace=False)
            yield Instance(registry, holds, scores, {int(c): int(rng.integers(1, 3)) for c in chosen})
            made += 1


def check_dedicated(seed: int, count: int) -> tuple[int, int]:
    """No feasible request is refused, and the exact path's total score is the optimum of the assignment."""
    feasible = refused = 0
    for case in instances(seed, count, widest=6, agents=(4, 30)):
        rows = [c for c, n in case.wanted.items() for _ in range(n)]
        team = case.registry.assemble(case.spec(quality="optimal"))
        quick = case.registry.assemble(case.spec())
        # Slots by agents; an agent that cannot serve a slot costs more than any team.
        far = int(case.scores.sum()) + 1
        cost = np.where(case.holds[:, rows].T, case.scores[None, :], far)
        if len(rows) > cost.shape[1]:
            cost = np.pad(cost, ((0, 0), (0, len(rows) - cost.shape[1])), constant_values=far)
        left, right = optimize.linear_sum_assignment(cost)
        served = cost[left, right] < far
        assert len(team) == len(quick) == served.sum()
        assert team.complete == quick.complete == served.all()
        assert int(team.scores.sum(dtype=np.int64)) == int(cost[left, right][served].sum())
        if team.complete:
            assert team.optimal
            feasible += 1
        else:
            proof = team.certificate
            assert proof is not None
            assert proof.short == len(rows) - served.sum()
            names = [int(name[1:]) for name in proof.capabilities]
            assert proof.wanted == sum(case.wanted[c] for c in names)
            refused += 1
        for some in (team, quick):
            members = some.members
            assert len({m.slot for m in members}) == len(members)
            assert all(case.holds[m.slot, int(m.capability[1:])] for m in members)
    return feasible, refused


def check_consolidated(seed: int, count: int) -> tuple[float, float, int]:
    """Sizes relative to the optimum of HiGHS: mean and largest; and how often the flag was set."""
    ratios = []
    flagged = 0
    for case in instances(seed, count, widest=12, agents=(10, 60)):
        columns = list(case.wanted)
        need = np.array([case.wanted[c] for c in columns])
        covers = case.holds[:, columns].astype(np.float64)
        team = case.registry.assemble(case.spec(mode="consolidated", quality="best"))
        exact = case.registry.assemble(case.spec(mode="consolidated", quality="optimal"))
        feasible = bool((covers.sum(axis=0) >= need).all())
        assert team.complete == exact.complete == feasible
        if not feasible:
            continue
        n = len(covers)
        answer = optimize.milp(
            np.ones(n),
            constraints=optimize.LinearConstraint(covers.T, lb=need),
            integrality=np.ones(n),
            bounds=optimize.Bounds(0, 1),
        )
        assert answer.success
        optimum = round(answer.fun)
        for some in (team, exact):
            have = case.holds[some.slots][:, columns].sum(axis=0)
            assert (have >= need).all()
            assert some.lower_bound <= optimum <= len(some)
            if some.optimal:
                assert len(some) == optimum, "the flag was wrong"
                flagged += 1
        ratios.append(len(team) / optimum)
    return float(np.mean(ratios)), float(np.max(ratios)), flagged


def test_dedicated_equals_the_assignment_optimum() -> None:
    feasible, refused = check_dedicated(seed=1, count=3_000)
    assert min(feasible, refused) > 300


def test_consolidated_is_near_the_optimum_of_highs() -> None:
    mean, largest, flagged = check_consolidated(seed=2, count=250)
    assert mean <= 1.02
    assert largest <= 1.2
    assert flagged > 100


@pytest.mark.soak
def test_dedicated_equals_the_assignment_optimum_on_a_hundred_thousand() -> None:
    feasible, refused = check_dedicated(seed=3, count=100_000)
    assert min(feasible, refused) > 10_000


@pytest.mark.soak
def test_consolidated_is_near_the_optimum_of_highs_on_many() -> None:
    mean, largest, _ = check_consolidated(seed=4, count=100_000)
    assert mean <= 1.02
    assert largest <= 1.2
