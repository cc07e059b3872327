"""JSON from a model: strict first, then a few deterministic repairs, else `InvalidOutput`; never ``{}``.

Valid JSON is returned as it is. Only when the strict parser refuses a text are these repairs tried, and the
result must again pass the strict parser: a byte order mark, one Markdown code fence, one trailing comma.
Duplicate keys, NaN and infinities, and two values in one text are refused: to choose would be to guess.
An internal error of the repair code is not caught here: a bug must look like a bug, not like bad output.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from pandacore.errors import ConfigError, InvalidOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_schema", "parse_output", "parse_strict", "repair", "validate"]

_EXCERPT: Final = 60
_VALIDATORS: Final = 128
"""Compiled schemas that are kept; the oldest goes first."""

_FENCE: Final = re.compile(
    r"^[ \t]*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL
)
_BOM: Final = "\ufeff"

_compiled: OrderedDict[str, Any] = OrderedDict()
_lock = Lock()


def parse_strict(text: str, *, where: str = "output") -> Any:
    """Parse one JSON value.

    Raises
    ------
    InvalidOutput
        The text is not exactly one JSON value, repeats a key of an object, or has NaN or an infinity.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidOutput(
            "the JSON is nested too deeply", where=where, hint="ask for a flatter shape"
        ) from None
    except ValueError as error:
        raise InvalidOutput(
            f"not valid JSON: {error}: {_excerpt(text)}", where=where, hint="ask the model again"
        ) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:_EXCERPT]!r} occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _excerpt(text: str) -> str:
    return ascii(text[:_EXCERPT]) + ("…" if len(text) > _EXCERPT else "")


def parse_output(text: str, *, where: str = "output") -> Any:
    """Parse a model's output, repairing what can be repaired in one way only.

    Raises
    ------
    InvalidOutput
        Neither the text nor its repaired form is strict JSON.
    """
    try:
        return parse_strict(text, where=where)
    except InvalidOutput as error:
        repaired = repair(text)
        if repaired is None:
            raise
        try:
            return parse_strict(repaired, where=where)
        except InvalidOutput:
            raise error from None


def repair(text: str) -> str | None:
    """The text without a byte order mark, code fence and trailing comma; None if it has none of them."""
    body = text.strip().removeprefix(_BOM)
    blocks = _FENCE.findall(body)
    if len(blocks) == 1:
        body = blocks[0]
    body = _without_trailing_comma(body.strip().removeprefix(_BOM))
    return body if body != text else None


def _without_trailing_comma(text: str) -> str:
    """Drop the comma before a closing bracket if there is exactly one such comma outside of strings."""
    commas = []
    pending: int | None = None  # a comma after which only white space has come
    in_string = escaped = False
    for at, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
            continue
        if char in "]}" and pending is not None:
            commas.append(pending)
        if char == ",":
            pending = at
        elif not char.isspace():
            pending = None
            in_string = char == '"'
    if len(commas) != 1:
        return text
    return text[: commas[0]] + text[commas[0] + 1 :]


def validate(value: Any, schema: Mapping[str, Any], *, where: str = "output") -> None:
    """Check a parsed value against a JSON Schema (draft 2020-12 unless it names another).

    Raises
    ------
    InvalidOutput
        The value violates the schema; the message has the path of the first fault.
    ConfigError
        The schema itself is not valid.
    """
    error = next(_validator(schema).iter_errors(value), None)
    if error is None:
        return
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    message = str(error.message)
    raise InvalidOutput(
        f"{path}: {message[:400]}", where=where, hint="ask the model again with the schema in view"
    )


def check_schema(schema: Mapping[str, Any], *, where: str) -> None:
    """Refuse a schema that cannot be compiled, before tokens are spent on it."""
    try:
        _validator(schema)
    except ConfigError as error:
        error.where = where
        raise


def _validator(schema: Mapping[str, Any]) -> Any:
    import jsonschema_rs

    key = json.dumps(schema, sort_keys=True, default=dict)
    with _lock:
        found = _compiled.get(key)
        if found is not None:
            _compiled.move_to_end(key)
            return found
    try:
        # Without a retriever of ours, a remote $ref would be fetched over the network.
        found = jsonschema_rs.validator_for(json.loads(key), retriever=_no_remote)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise ConfigError(
            f"not a valid JSON Schema: {str(error).splitlines()[0][:400]}",
            where="schema",
            hint="fix the schema",
        ) from None
    with _lock:
        _compiled[key] = found
        while len(_compiled) > _VALIDATORS:
            _compiled.popitem(last=False)
    return found


def _no_remote(uri: str) -> Any:
    raise ValueError(f"remote reference {uri} is not followed")
