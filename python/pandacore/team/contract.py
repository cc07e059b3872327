"""Contracts of delegated subtasks: can they be met, and does an output keep what was agreed?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pandacore import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandacore.patterns.base import Contract
    from pandacore.plan import Plan

__all__ = ["broken_term", "check_contracts"]

_BOUNDS: Final = {
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


def check_contracts(plan: Plan, contracts: Mapping[str, Contract]) -> None:
    """Refuse contracts that no output could keep, before anybody works for nothing.

    Raises
    ------
    InvalidPlan
        A contract is for a subtask that the plan lacks, its schema is no JSON schema, or no value satisfies
        it; ``where`` is the path of the term. Contradictions are found term by term: a schema that is only
        unsatisfiable as a whole passes, and its outputs are judged when they come.
    """
    from pandacore.models.strict_json import check_schema

    ids = {subtask.id for subtask in plan.subtasks} if contracts else set()
    for subtask_id, contract in contracts.items():
        where = f"Task.contracts[{subtask_id!r}]"
        if subtask_id not in ids:
            raise errors.InvalidPlan(
                f"the plan has no subtask {subtask_id!r}", where=where, hint="use an id of the plan"
            )
        schema = contract.output_schema
        if contract.max_bytes < 1:
            why = f"at most {contract.max_bytes} bytes, and no JSON value is that short"
            raise errors.InvalidPlan(why, where=f"{where}.max_bytes", hint="raise it")
        if schema is None:
            continue
        try:
            check_schema(schema, where=where)
        except errors.ConfigError as error:
            raise errors.InvalidPlan(error.message, where=f"{where}.output_schema", hint=error.hint) from None
        if found := _contradiction(schema, "$"):
            path, why = found
            raise errors.InvalidPlan(
                f"no output can keep this contract: {why}",
                where=f"{where}.output_schema, {path}",
                hint="loosen this term",
            )
        if schema.get("type") == "string" and schema.get("minLength", 0) > contract.max_bytes:
            raise errors.InvalidPlan(
                f"no output can keep this contract: at least {schema['minLength']} characters, and at most"
                f" {contract.max_bytes} bytes",
                where=f"{where}.max_bytes",
                hint="raise it, or have long texts returned as artifacts",
            )


def _contradiction(schema: Any, path: str) -> tuple[str, str] | None:
    """Path and reason of a term that allows no value; None if there is none to be seen."""
    from pandacore.models.strict_json import validate

    if schema is False:
        return path, "it allows no value"
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type")
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        for value in values:
            try:
                validate(value, schema)
            except errors.InvalidOutput:
                continue
            except errors.ConfigError:
                return None  # a reference to elsewhere in the schema: nothing to be seen from here
            return None
        return f"{path}.{'const' if 'const' in schema else 'enum'}", "none of its values is allowed"
    if isinstance(kind, str) and kind in _BOUNDS:
        low, high = _BOUNDS[kind]
        if low in schema and high in schema and schema[low] > schema[high]:
            return f"{path}.{low}", f"{schema[low]} is above {high}, which is {schema[high]}"
    terms: list[tuple[Any, str]] = [(s, f"{path}.allOf[{n}]") for n, s in enumerate(schema.get("allOf", ()))]
    if kind == "object":
        known = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        for name in schema.get("required", ()):
            if name not in known and closed:
                return f"{path}.required", f"{name!r} is required, and no such property is allowed"
            terms.append((known.get(name), f"{path}.properties[{name!r}]"))
    if kind == "array" and schema.get("minItems", 0) > 0:
        terms.append((schema.get("items"), f"{path}.items"))
    for term, at in terms:
        if found := _contradiction(term, at):
            return found
    for word in ("anyOf", "oneOf"):
        found_all = [_contradiction(s, f"{path}.{word}[{n}]") for n, s in enumerate(schema.get(word, ()))]
        if found_all and None not in found_all:
            return found_all[0]
    return None


def broken_term(output: Any, contract: Contract) -> str:
    """Why the output breaks its contract; empty if it keeps it. The size is checked by the machine."""
    from pandacore.models.strict_json import validate

    if contract.output_schema is None:
        return ""
    try:
        validate(output, contract.output_schema)
    except errors.InvalidOutput as error:
        return error.message
    return ""
