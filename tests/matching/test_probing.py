"""Probing policy and balance simulator through Python."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pandacore._core import simulate_balance
from pandacore.errors import ConfigError
from pandacore.probing import Known, Probing, queue_limit


def sample(age_s: float) -> list[Known]:
    return [Known(load=n % 5, service_s=1 + n / 10, rtt_s=0.05, age_s=age_s) for n in range(16)]


def test_fresh_loads_need_no_probe() -> None:
    advice = Probing().advise(sample(0.0), service_s=1.0, seed=1)
    assert not advice.probe
    assert advice.order == [0, 5, 10]


def test_older_loads_shortlist_whom_to_probe() -> None:
    advice = Probing().advise(sample(0.5), service_s=1.0, seed=1)
    assert advice.probe
    assert advice.order[:4] == [0, 5, 10, 15]
    assert len(advice.order) == 5
    assert advice.timeout_s == pytest.approx(0.1)


@pytest.mark.parametrize("age_s", [2.0, math.inf, math.nan])
def test_very_old_loads_are_not_used(age_s: float) -> None:
    probing = Probing()
    orders = {tuple(probing.advise(sample(age_s), service_s=1.0, seed=n).order) for n in range(20)}
    assert all(len(order) == 8 for order in orders)
    assert len(orders) > 15


def test_choice_takes_idle_agents_first_and_the_fastest_of_them() -> None:
    answered = [Known(1, service_s=0.1), Known(0, service_s=5.0), Known(0, service_s=3.0), Known(9)]
    assert Probing().choose(answered, seed=1) == [2, 1, 0]
    assert Probing("least_loaded").choose(answered, seed=1)[2] == 0
    assert Probing().choose([], seed=1) == []


def test_same_seed_same_advice() -> None:
    probing = Probing("random")
    first = probing.advise(sample(0.0), service_s=1.0, seed=4)
    assert first == probing.advise(sample(0.0), service_s=1.0, seed=4)
    assert first != probing.advise(sample(0.0), service_s=1.0, seed=5)
    assert dataclasses.replace(probing, tries=2).choose(sample(0.0), seed=1).__len__() == 2


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError):
        Probing("best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Probing(tries=0)
    with pytest.raises(ConfigError):
        Probing(timeout_s=(0.3, 0.1))
    with pytest.raises(ConfigError):
        simulate_balance("random", load=1.0)
    assert [queue_limit(n) for n in (0, 1, 2, 3, 8)] == [4, 4, 4, 6, 16]


@pytest.mark.parametrize("refresh", [0.0, 0.5, 10.0])
def test_default_beats_two_choices(refresh: float) -> None:
    ours = simulate_balance("idle_first_two_stage", refresh=refresh, agents=300, jobs=60_000)
    two = simulate_balance("choices", d=2, refresh=refresh, agents=300, jobs=60_000)
    assert ours["p99_wait"] < two["p99_wait"]
    assert ours["mean_response"] < two["mean_response"]
    assert ours["longest_queue"] <= 6
    assert ours == simulate_balance("idle_first_two_stage", refresh=refresh, agents=300, jobs=60_000)
