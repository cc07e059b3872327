"""Plans are checked when they are made, without recursion."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandacore.errors import InvalidName, InvalidPlan
from pandacore.plan import Plan, Subtask


def step(name: str, *needs: str, capability: str = "c") -> Subtask:
    return Subtask(name, capability, f"do {name}", needs)


def test_order_puts_dependencies_first_and_keeps_the_given_order() -> None:
    plan = Plan([step("d", "b", "c"), step("b", "a"), step("c", "a"), step("a")])
    assert plan.order == ("a", "b", "c", "d")
    assert plan.sinks == ("d",)
    assert plan.dependents("a") == ("b", "c")
    assert plan["b"].depends_on == ("a",)


def test_capabilities_are_counted_in_order_of_first_use() -> None:
    plan = Plan([step("a", capability="x"), step("b", capability="y"), step("c", capability="x")])
    assert plan.capabilities == {"x": 2, "y": 1}


def test_a_cycle_is_named() -> None:
    with pytest.raises(InvalidPlan, match=r"b -> c -> d -> b|c -> d -> b -> c|d -> b -> c -> d"):
        Plan([step("a"), step("b", "a", "d"), step("c", "b"), step("d", "c")])
    with pytest.raises(InvalidPlan, match="a -> a"):
        Plan([step("a", "a")])


@pytest.mark.parametrize(
    ("subtasks", "message"),
    [
        ([], "no subtasks"),
        ([step("a"), step("a")], r"\$.subtasks\[1\].id: the id 'a' occurs twice"),
        ([step("a", "b")], r"'a' depends on 'b', which is not in the plan"),
    ],
)
def test_what_is_wrong_is_named(subtasks: list[Subtask], message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        Plan(subtasks)


def test_a_subtask_checks_its_own_fields() -> None:
    with pytest.raises(InvalidPlan, match="instruction is empty"):
        Subtask("a", "c", "  ")
    with pytest.raises(InvalidPlan, match="one string"):
        Subtask("a", "c", "x", "bc")
    with pytest.raises(InvalidName):
        Subtask("a", "", "x")
    assert Subtask("a", "c", "x", ["b", "b"]).depends_on == ("b",)


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({}, "$.subtasks"),
        ({"subtasks": [3]}, "$.subtasks[0]"),
        ({"subtasks": [{"id": "a", "capability": "c"}]}, "$.subtasks[0].instruction"),
        (
            {"subtasks": [{"id": "a", "capability": "c", "instruction": "x", "depends_on": "b"}]},
            "$.subtasks[0].depends_on",
        ),
    ],
)
def test_reading_a_plan_names_the_path_of_the_bad_field(data: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidPlan) as caught:
        Plan.from_dict(data)
    assert caught.value.where == where


def test_fc_47_long_chains_and_wide_fans_are_checked_without_recursion() -> None:
    began = time.perf_counter()
    chain = Plan([step("s0"), *(step(f"s{i}", f"s{i - 1}") for i in range(1, 100_000))])
    fan = Plan(
        [
            step("hub"),
            *(step(f"s{i}", "hub") for i in range(10_000)),
            step("end", *(f"s{i}" for i in range(10_000))),
        ]
    )
    assert len(chain.order) == 100_000
    assert fan.order[-1] == "end"
    assert Plan.from_dict(chain.to_dict()) == chain
    assert time.perf_counter() - began < 60  # a hang, not a speed: quadratic code would take minutes


@st.composite
def random_plans(draw: st.DrawFn) -> Plan:
    """DAGs: each subtask depends on some earlier ones, listed in shuffled order."""
    count = draw(st.integers(1, 12))
    subtasks = [
        step(f"s{i}", *draw(st.sets(st.sampled_from([f"s{j}" for j in range(i)]) if i else st.nothing())))
        for i in range(count)
    ]
    return Plan(draw(st.permutations(subtasks)))


@given(random_plans())
def test_every_dag_is_accepted_and_ordered(plan: Plan) -> None:
    place = {name: i for i, name in enumerate(plan.order)}
    assert sorted(place) == sorted(s.id for s in plan.subtasks)
    assert all(place[d] < place[s.id] for s in plan.subtasks for d in s.depends_on)
    assert Plan.from_dict(plan.to_dict()) == plan
