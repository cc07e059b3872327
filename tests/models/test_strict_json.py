"""Strict JSON and its few repairs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pandacore.errors import ConfigError, InvalidOutput
from pandacore.models import strict_json
from pandacore.models.strict_json import parse_output, parse_strict, validate

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_fc_44_valid_json_is_never_altered(value: Any) -> None:
    text = json.dumps(value)
    assert parse_output(text) == value
    assert parse_output(f"  {text}\n") == value


@given(values)
def test_fc_44_fences_and_bom_do_not_change_the_value(value: Any) -> None:
    text = json.dumps(value, indent=1)
    assert parse_output(f"```json\n{text}\n```") == value
    assert parse_output(f"\ufeff{text}") == value
    assert parse_output(f"Here it is:\n```\n{text}\n```\nDone.") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("[1, 2, ]", [1, 2]),
        ('{"a": "x,}", "b": [1,]}', {"a": "x,}", "b": [1]}),
        ('```json\n{"a": 1,}\n```', {"a": 1}),
        ('{"a": "```"}', {"a": "```"}),
        ("{}", {}),
    ],
)
def test_fc_44_one_trailing_comma_is_repaired_outside_of_strings(text: str, value: Any) -> None:
    assert parse_output(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "null null",
        '{"a": 1} {"a": 2}',
        '{"a": 1}{"b": 2}',
        '{"a": 1, "a": 1}',
        '{"x": {"a": 1, "a": 2}}',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1,,}',
        "[1,], [2,]",
        '{"a": [1,], "b": [2,]}',
        "{'a': 1}",
        '{"a": 1',
        '{"a": "x',
        "{a: 1}",
        "```json\n{}\n```\n```json\n{}\n```",
        "Sure! The answer is 4.",
        "1" * 5000,
        "[" * 100_000,
    ],
)
def test_fc_44_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(InvalidOutput) as caught:
        parse_output(text)
    assert caught.value.hint
    assert len(str(caught.value)) < 400


def test_fc_44_a_bug_in_the_repair_helper_surfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> str:
        raise TypeError("bug")

    monkeypatch.setattr(strict_json, "repair", broken)
    assert parse_output('{"a": 1}') == {"a": 1}  # valid JSON does not even reach the helper
    with pytest.raises(TypeError, match="bug"):
        parse_output('{"a": 1,}')


def test_fc_43_every_cut_of_an_object_is_refused() -> None:
    text = json.dumps({"path": "docs/x", "mode": "write", "lines": [1, 2.5, True, None, "é"]})
    for at in range(len(text)):
        with pytest.raises(InvalidOutput):
            parse_output(text[:at])


def test_duplicate_key_is_named() -> None:
    with pytest.raises(InvalidOutput, match="'same' occurs twice"):
        parse_strict('{"same": 1, "other": 2, "same": 3}')


def test_violation_names_the_path() -> None:
    schema = {
        "type": "object",
        "properties": {"steps": {"type": "array", "items": {"type": "object", "required": ["input"]}}},
    }
    validate({"steps": [{"input": 1}]}, schema)
    with pytest.raises(InvalidOutput, match=r"\$\.steps\[1\]: .*input"):
        validate({"steps": [{"input": 1}, {}]}, schema)


@pytest.mark.parametrize("schema", [{"type": "strange"}, {"$ref": "http://example.invalid/schema"}])
def test_schema_that_is_wrong_or_remote_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not a valid JSON Schema"):
        validate({}, schema)


def test_compiled_schemas_are_bounded() -> None:
    for number in range(300):
        validate(number, {"type": "integer", "minimum": 0, "title": str(number)})
    assert len(strict_json._compiled) <= 128
