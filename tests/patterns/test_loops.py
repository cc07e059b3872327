"""FC-69, S16: the same rejected output again and again ends a run, by the same rule in every pattern."""

from __future__ import annotations

from typing import Any

import pytest

from pandacore import errors
from pandacore.patterns import (
    ChainMember,
    ChainRoot,
    Contract,
    Execute,
    Limits,
    Machine,
    MeshMember,
    MeshRoot,
    StarHub,
    StarMember,
)
from pandacore.plan import Plan, Subtask
from pandacore.testing import SimNetwork

PLAN = Plan([Subtask("a", "c", "a")])
TEAM = {"c": ["x", "y", "z"]}
NODES: dict[str, tuple[Any, Any]] = {
    "star": (StarHub, StarMember),
    "chain": (ChainRoot, ChainMember),
    "mesh": (MeshRoot, MeshMember),
}


def ended(pattern: str, answers: Any) -> tuple[dict[str, Any], int]:
    """How a run failed whose judge accepts nothing, and how much was executed for that."""
    entry, member = NODES[pattern]
    options = {"idempotent": True, "contracts": {"a": Contract("a number")}, "limits": Limits(attempts=20)}

    def root() -> Machine:
        machine: Machine = entry("r", "root", PLAN, TEAM, **options)
        return machine

    net = SimNetwork(1, judge=lambda *_: "is no number")
    net.add("root", root, caller=True)
    for name in TEAM["c"]:
        net.add(name, lambda name=name: member("r", name), agent=answers)  # type: ignore[misc]
    report = net.run(until_s=300)
    return dict(report.finishes["root"].failed), len(report.executions)


@pytest.mark.parametrize("pattern", NODES)
def test_an_output_that_is_rejected_a_third_time_is_a_loop(pattern: str) -> None:
    failed, executions = ended(pattern, lambda execute: " seven")
    loop = failed["a"]
    assert isinstance(loop, errors.LoopDetected)
    assert len(loop.cycle) == 3
    assert {step.split(" by ")[0] for step in loop.cycle} == {"a"}
    assert executions == 3


@pytest.mark.parametrize("pattern", NODES)
def test_different_wrong_outputs_are_no_loop(pattern: str) -> None:
    count = iter(range(1000))

    def other(execute: Execute) -> str:
        return f"wrong {next(count)}"

    failed, executions = ended(pattern, other)
    assert failed
    assert not any(isinstance(error, errors.LoopDetected) for error in failed.values())
    assert executions == 6, "each member is asked twice, then swapped"
