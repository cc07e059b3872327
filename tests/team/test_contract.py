"""Contracts and plans that nobody could fulfil are refused with the path, before any agent works."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pandacore as pc
from pandacore import errors
from pandacore.models.strict_json import validate
from pandacore.team.contract import broken_term, check_contracts

PLAN = pc.Plan([pc.Subtask("a", "count", "count"), pc.Subtask("b", "sum", "sum", ["a"])])


@pytest.mark.parametrize(
    ("contracts", "where"),
    [
        ({"zz": pc.Contract("x")}, "Task.contracts['zz']"),
        ({"a": pc.Contract("x", output_schema={"type": "nonsense"})}, "Task.contracts['a'].output_schema"),
        ({"a": pc.Contract("x", max_bytes=0)}, "Task.contracts['a'].max_bytes"),
        ({"a": pc.Contract("x", postcondition="unheard of")}, "Task.contracts['a'].postcondition"),
        (
            {"b": pc.Contract("x", output_schema={"type": "string", "minLength": 100}, max_bytes=50)},
            "Task.contracts['b'].max_bytes",
        ),
        (
            {"a": pc.Contract("x", output_schema={"type": "integer", "minimum": 3, "maximum": 2})},
            "Task.contracts['a'].output_schema, $.minimum",
        ),
        (
            {"a": pc.Contract("x", output_schema={"type": "string", "enum": [1, 2]})},
            "Task.contracts['a'].output_schema, $.enum",
        ),
        (
            {
                "a": pc.Contract(
                    "x",
                    output_schema={
                        "type": "object",
                        "required": ["n"],
                        "properties": {
                            "n": {"type": "array", "minItems": 1, "items": {"type": "null", "const": 3}}
                        },
                    },
                )
            },
            "Task.contracts['a'].output_schema, $.properties['n'].items.const",
        ),
        (
            {
                "a": pc.Contract(
                    "x", output_schema={"type": "object", "required": ["n"], "additionalProperties": False}
                )
            },
            "Task.contracts['a'].output_schema, $.required",
        ),
    ],
)
async def test_a_contract_that_cannot_be_met_is_refused_with_its_path(
    contracts: dict[str, pc.Contract], where: str
) -> None:
    worked: list[str] = []

    @pc.agent(capabilities=["count", "sum"])
    async def work(task: pc.Task) -> int:
        worked.append(task.subtask_id)
        return 1

    async with pc.Collective.local() as c:
        c.add(work)
        result = await c.run(pc.Task("x", plan=PLAN, contracts=contracts))
    [failure] = result.failures
    assert failure.kind == "InvalidPlan"
    assert failure.where == where
    assert failure.hint
    assert not worked


async def test_an_unknown_capability_is_refused_with_its_path() -> None:
    async with pc.Collective.local() as c:
        c.add(pc.Agent(lambda task: 1, capabilities=["count"], name="counter"))
        result = await c.run(pc.Task("x", plan=PLAN))
    [failure] = result.failures
    assert (failure.kind, failure.where) == ("NoTeam", "$.subtasks[1].capability")
    assert "'sum'" in failure.message


KEYS = st.sampled_from(["k", "l"])
SCALARS = st.sampled_from(
    [{"type": "integer"}, {"type": "string", "maxLength": 3}, {"enum": ["x", 2]}, {"const": None}, {}]
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner, "minItems": st.integers(0, 2)},
            optional={"maxItems": st.integers(0, 3)},
        ),
        st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(KEYS, inner)}).map(
            lambda s: {**s, "required": sorted(s["properties"])}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda s: {"anyOf": s}),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from([None, 1, 2, "x", "xyz", "xyzw"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no reason to fail
def test_a_contract_that_some_value_keeps_is_never_refused(schema: dict[str, Any], value: Any) -> None:
    try:
        validate(value, schema)
    except errors.InvalidOutput:
        return
    check_contracts(PLAN, {"a": pc.Contract("x", output_schema=schema)})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (True, ""),
        (1, ""),
        (False, "the postcondition 'p' does not hold"),
        (None, "the postcondition 'p' does not hold"),
        ("too long", "the postcondition 'p' does not hold: too long"),
        (ZeroDivisionError("by zero"), "the postcondition 'p' failed: ZeroDivisionError: by zero"),
    ],
)
def test_a_postcondition_answers_or_counts_as_not_kept(
    answer: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicate(output: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("pandacore.team.contract._POSTCONDITIONS", {})
    contract = pc.Contract("x", output_schema={"type": "integer"}, postcondition="p")
    assert "not known where it was to be judged" in broken_term(1, contract)
    pc.postcondition("p")(predicate)
    assert broken_term(1, contract) == reason
    assert "integer" in broken_term("a", contract)  # the schema comes first
    with pytest.raises(errors.ConfigError, match="'p' is"):
        pc.postcondition("p")(bool)
