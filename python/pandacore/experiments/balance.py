"""``pandacore experiment balance``: waiting and fairness of load balancers, with fresh and with stale loads.

A seeded simulation: agents whose speeds differ by a factor of four, lognormal service times, offered load
0.9, several entry points. Times are in mean service times; ``refresh`` is how often an agent's load becomes
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pandacore.bench.frame import Option
from pandacore.experiments.frame import Experiment, Row
from pandacore.probing import simulate_balance

__all__ = ["OPTIONS", "plot", "run"]

OPTIONS = (
    Option("agents", int, 1000, "agents"),
    Option("jobs", int, 400_000, "jobs of each run; the first quarter is not counted"),
)

_FRESH: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("pandacore", "idle_first_two_stage", {"blocks": 2}),
    ("pandacore, 4 blocks", "idle_first_two_stage", {"blocks": 4}),
    ("random", "random", {}),
    ("2 choices", "choices", {"d": 2}),
    ("8 choices", "choices", {"d": 8}),
    ("shortest queue", "shortest", {}),
    ("idle queue", "idle_queue", {}),
    ("prequal", "prequal", {}),
)
_STALE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("pandacore", "idle_first_two_stage", {}),
    ("random", "random", {}),
    ("2 choices", "choices", {"d": 2}),
    ("8 choices", "choices", {"d": 8}),
    ("shortest queue", "shortest", {}),
)
_REFRESH = (0.05, 0.5, 2.0, 10.0)
_METRICS = ("mean_wait", "p99_wait", "p999_wait", "mean_response", "longest_queue", "fairness", "messages")


def run(experiment: Experiment) -> None:
    """Run all balancers, fresh with 16 entry points and stale with 64."""
    agents = int(str(experiment.options["agents"]))
    jobs = 60_000 if experiment.quick else int(str(experiment.options["jobs"]))
    for name, balancer, options in _FRESH:
        _one(experiment, name, balancer, agents=agents, jobs=jobs, entries=16, refresh=0.0, **options)
    for refresh in _REFRESH:
        for name, balancer, options in _STALE:
            _one(experiment, name, balancer, agents=agents, jobs=jobs, entries=64, refresh=refresh, **options)


def _one(experiment: Experiment, name: str, balancer: str, **conditions: Any) -> None:
    outcome = simulate_balance(balancer, seed=experiment.seed, **conditions)
    shown = {key: conditions[key] for key in ("agents", "jobs", "entries", "refresh")}
    for metric in _METRICS:
        experiment.emit(metric, outcome[metric], balancer=name, **shown)


def plot(rows: Sequence[Row], figure: Any) -> None:
    """Draw the 99th percentile of the wait against the age of loads."""
    axes = figure.add_subplot()
    shown = [r for r in rows if r.metric == "p99_wait" and r.conditions["refresh"]]
    for name in dict.fromkeys(str(r.conditions["balancer"]) for r in shown):
        points = [(r.conditions["refresh"], r.value) for r in shown if r.conditions["balancer"] == name]
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="load refreshed every (service times)", ylabel="p99 wait")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
