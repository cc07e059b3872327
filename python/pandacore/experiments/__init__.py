"""Studies that run from the command line: ``pandacore experiment NAME``.

`EXPERIMENTS` maps each name to the module that holds it and one line about it; nothing is imported until
asked for. A module has a function ``run(experiment: Experiment) -> None``; a tuple ``OPTIONS`` of `Option`,
if it has options of its own; and ``plot(rows, figure) -> None``, if it can be drawn.
"""

from __future__ import annotations

__all__ = ["EXPERIMENTS"]

# One line per experiment, in alphabetical order.
EXPERIMENTS: dict[str, tuple[str, str]] = {
    "assembly": (
        "pandacore.experiments.assembly",
        "time to put a team together, by collective and team size",
    ),
    "balance": ("pandacore.experiments.balance", "waiting under load balancers, with fresh and stale loads"),
    "crashes": ("pandacore.experiments.crashes", "answers while hosts are killed in the middle of steps"),
    "faults": ("pandacore.experiments.faults", "answers while a member talks about something else"),
    "governance": ("pandacore.experiments.governance", "recall, precision and Sybils of trust policies"),
    "hotpotqa": ("pandacore.experiments.hotpotqa", "one agent alone beside teams, by pattern, on HotPotQA"),
    "reputation": ("pandacore.experiments.reputation", "six attacks on a reputation system"),
}
