"""The governance study: published figures under PANDA's policy, better ones under ours."""

from __future__ import annotations

import numpy as np
import pytest

from pandacore.experiments.frame import run_experiment
from pandacore.experiments.governance import World, _attack
from pandacore.trust import TrustPolicy

pytestmark = pytest.mark.slow


def grown(policy: TrustPolicy, founders: int, agents: int, seed: int, room: int = 0) -> World:
    rng = np.random.default_rng(seed)
    world = World(policy, founders, agents + room, rng, policy.lifetime_s)
    world.grow(agents)
    return world


@pytest.mark.parametrize(
    ("t", "founders", "directed", "mutual"), [(2, 5, 0.668, 0.715), (3, 5, 0.906, 0.935)]
)
def test_panda_reproduces_the_rebuilt_figures(t: int, founders: int, directed: float, mutual: float) -> None:
    policy = TrustPolicy.panda(threshold=t, grace_s=0)
    worlds = [grown(policy, founders, 1000, seed) for seed in range(5)]
    one_way = TrustPolicy.panda(threshold=t, grace_s=0, reading="directed")
    assert np.mean([w.recall(one_way, own=False) for w in worlds]) == pytest.approx(directed, abs=0.03)
    assert np.mean([w.recall(policy, own=False) for w in worlds]) == pytest.approx(mutual, abs=0.03)


def test_panda_with_one_founder_and_one_certifier_accepts_a_hundred_of_a_thousand() -> None:
    # Closed form for the uniform recursive tree: 99.8. One tree varies a lot, so many are averaged.
    policy = TrustPolicy.panda(threshold=1, grace_s=0, reading="directed")
    shares = [grown(policy, 1, 1000, seed).recall(policy, own=False)[0] for seed in range(30)]
    assert np.mean(shares) == pytest.approx(0.100, abs=0.03)


def test_strict_accepts_everybody_at_depth_three() -> None:
    policy = TrustPolicy.strict()
    assert grown(policy, 5, 1000, 0).recall(policy, own=False)[0] == 1.0


@pytest.mark.parametrize("colluders", [1, 2, 10])
def test_strict_bounds_sybils_and_panda_does_not(colluders: int) -> None:
    strict = [_attack(grown(TrustPolicy.strict(), 5, 1000, seed, 400), colluders, 400) for seed in range(3)]
    assert max(strict) <= (0 if colluders == 1 else 80)
    panda = [
        _attack(grown(TrustPolicy.panda(grace_s=0), 5, 300, seed, 100), colluders, 100) for seed in range(3)
    ]
    assert max(panda) == (0 if colluders == 1 else 100)


def test_experiment_reports_every_condition_and_repeats() -> None:
    rows = run_experiment("governance", quick=True, seed=1)
    again = run_experiment("governance", quick=True, seed=1)
    assert [row.as_json() for row in rows] == [row.as_json() for row in again]
    for row in rows:
        assert {"policy", "agents", "t", "n", "anchor", "churn", "genesis", "reading", "attachment"} <= set(
            row.conditions
        )
    strict = {row.metric: row.value for row in rows if row.conditions["policy"] == "strict"}
    assert strict.keys() >= {"recall", "precision", "sybils"}
