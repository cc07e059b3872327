"""``pandacore experiment assembly``: time to put a team together against collective and team size.

The question of PANDA's figure 3. One request of 8 capabilities at growing numbers of agents, and requests of
2 to 32 capabilities at the largest number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pandacore.bench.frame import Option
from pandacore.bench.world import CANDIDATES, World
from pandacore.experiments.frame import Experiment, Row
from pandacore.registry import Registry

__all__ = ["OPTIONS", "plot", "run"]

OPTIONS = (Option("largest", int, 10_000_000, "agents of the largest collective"),)

_CHUNK = 25


def run(experiment: Experiment) -> None:
    """Measure both series."""
    largest = 10_000 if experiment.quick else int(str(experiment.options["largest"]))
    sizes = [10**k for k in range(2, 9) if 10**k <= largest]
    for agents in sizes:
        world = World.make(agents, experiment.rng(agents))
        registry = Registry(seed=experiment.seed)
        handles = world.handles(registry)
        world.load_into(registry, handles)
        for team in (2, 4, 8, 16, 32) if agents == sizes[-1] else (8,):
            _measure(experiment, world, registry, handles, team)


def _measure(
    experiment: Experiment, world: World, registry: Registry, handles: np.ndarray[Any, Any], team: int
) -> None:
    # Small collectives have few capabilities with many holders; two are enough to choose from.
    count = 200 if experiment.quick else 4_000
    rows = handles[world.requests(count, team, experiment.rng(team), holders=2)]
    for mode in ("dedicated", "consolidated"):
        few = rows if mode == "dedicated" else rows[: max(50, count // 10)]
        for _ in range(2):  # the first pass warms up
            nanoseconds, members = registry.time_assembly(
                few, mode=mode, per_capability=1, probes=CANDIDATES, chunk=_CHUNK, seed=1
            )
        conditions = {"mode": mode, "agents": world.agents, "capabilities": team}
        experiment.emit("p50_us", float(np.median(nanoseconds)) / 1e3, **conditions)
        experiment.emit("p99_us", float(np.quantile(nanoseconds, 0.99)) / 1e3, **conditions)
        experiment.emit("members", members, **conditions)


def plot(rows: Sequence[Row], figure: Any) -> None:
    """Draw time against collective size, and against team size at the largest."""
    by_agents, by_team = figure.subplots(1, 2)
    largest = max(int(str(r.conditions["agents"])) for r in rows)
    for mode in ("dedicated", "consolidated"):
        mine = [r for r in rows if r.metric == "p50_us" and r.conditions["mode"] == mode]
        first = [(r.conditions["agents"], r.value) for r in mine if r.conditions["capabilities"] == 8]
        second = [(r.conditions["capabilities"], r.value) for r in mine if r.conditions["agents"] == largest]
        by_agents.plot(*zip(*first, strict=True), marker="o", label=mode)
        by_team.plot(*zip(*second, strict=True), marker="o", label=mode)
    by_agents.set(xscale="log", yscale="log", xlabel="agents", ylabel="p50, us", title="8 capabilities")
    by_team.set(xscale="log", yscale="log", xlabel="capabilities", title=f"{largest:,} agents")
    sizes = sorted({int(str(r.conditions["capabilities"])) for r in rows})
    by_team.set_xticks(sizes, labels=[str(size) for size in sizes])
    by_team.minorticks_off()
    by_agents.legend()
