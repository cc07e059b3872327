"""The six attacks: what our policy promises, and that the published one does not keep it."""

from __future__ import annotations

import numpy as np
import pytest

from pandacore.experiments.frame import run_experiment
from pandacore.experiments.reputation import ATTACKS, Setting, policies, simulate

pytestmark = pytest.mark.slow

SETTING = Setting()


@pytest.mark.parametrize("attack", ATTACKS)
def test_robust_policy_keeps_its_promises(attack: str) -> None:
    policy = policies(SETTING)["robust"]
    runs = [simulate(attack, policy, SETTING, np.random.default_rng([9, n])) for n in range(6)]
    assert np.mean([run.contamination for run in runs]) <= 0.10
    assert np.mean([run.false_exclusion for run in runs]) <= 0.005
    if attack != "on-off":
        # The watchdog misses one lie in ten; without errors it takes exactly two.
        assert np.mean([run.first_exclusion for run in runs]) <= 2.0


def test_published_policy_is_beaten_by_alternating_attackers() -> None:
    compared = policies(SETTING)
    for attack in ("on-off", "whitewash"):
        raps, robust = (
            np.mean(
                [
                    simulate(attack, compared[name], SETTING, np.random.default_rng([9, n])).contamination
                    for n in range(3)
                ]
            )
            for name in ("raps", "robust")
        )
        assert raps > 2 * robust


def test_experiment_repeats_and_names_its_attacks() -> None:
    rows = run_experiment("reputation", quick=True, options={"agents": "20", "steps": "40"})
    again = run_experiment("reputation", quick=True, options={"agents": "20", "steps": "40"})
    assert [row.as_json() for row in rows] == [row.as_json() for row in again]
    assert {row.conditions["attack"] for row in rows} == set(ATTACKS)
    assert {row.metric for row in rows} >= {"contamination", "false_exclusion"}
