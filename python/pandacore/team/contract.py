"""Contracts of delegated subtasks: can they be met, and does an output keep what was agreed?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from pandacore import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pandacore.patterns.base import Contract
    from pandacore.plan import Plan

__all__ = ["broken_term", "check_contracts", "postcondition"]

_Predicate = TypeVar("_Predicate", bound="Callable[[Any], bool | str]")
_POSTCONDITIONS: Final[dict[str, Callable[[Any], bool | str]]] = {}

_BOUNDS: Final = {
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


def postcondition(name: str) -> Callable[[_Predicate], _Predicate]:
    """Register a predicate on outputs under a name that a :class:`Contract` can carry.

    Contracts travel between processes and lie in the run log, so they name the predicate and never contain
    it: every process that judges outputs registers it, at import. The predicate gets the output and answers
    True if it is as agreed, False or the reason as text if not. One that raises counts as not kept, and so
    does a name that the judging process does not know.

    Raises
    ------
    ConfigError
        Another function has the name.

    Examples
    --------
    >>> @postcondition("cites a source")
    ... def cites(output):
    ...     return "http" in output["text"] or "no source is named"
    """

    def register(predicate: _Predicate) -> _Predicate:
        known = _POSTCONDITIONS.setdefault(name, predicate)
        if (known.__module__, known.__qualname__) != (predicate.__module__, predicate.__qualname__):
            raise errors.ConfigError(
                f"the postcondition {name!r} is {known.__module__}.{known.__qualname__} already",
                where=f"postcondition({name!r})",
                hint="choose another name",
            )
        _POSTCONDITIONS[name] = predicate  # a module that was loaded again
        return predicate

    return register


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
        if contract.postcondition is not None and contract.postcondition not in _POSTCONDITIONS:
            raise errors.InvalidPlan(
                f"no postcondition is registered as {contract.postcondition!r}",
                where=f"{where}.postcondition",
                hint="register it with @pandacore.postcondition(NAME), here and where members judge",
            )
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

    if contract.output_schema is not None:
        try:
            validate(output, contract.output_schema)
        except errors.InvalidOutput as error:
            return error.message
    if contract.postcondition is None:
        return ""
    return _broken_postcondition(output, contract.postcondition)


def _broken_postcondition(output: Any, name: str) -> str:
    predicate = _POSTCONDITIONS.get(name)
    if predicate is None:
        return f"the postcondition {name!r} is not known where it was to be judged"
    try:
        kept = predicate(output)
    except Exception as error:  # the user's code: what it cannot judge is not what was agreed
        return f"the postcondition {name!r} failed: {type(error).__name__}: {error}"
    if isinstance(kept, str):
        return f"the postcondition {name!r} does not hold: {kept}"
    return "" if kept else f"the postcondition {name!r} does not hold"
