"""Contracts of delegated subtasks: does an output keep what was agreed?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pandacore import errors

if TYPE_CHECKING:
    from pandacore.patterns.base import Contract

__all__ = ["broken_term"]


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
