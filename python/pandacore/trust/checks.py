"""What the wrappers check before the extension sees it, and how they hand it over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pandacore.errors import (
    ConfigError,
    ShapeError,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "DAY_S",
    "FULL_TRUST",
    "UNLIMITED",
    "UNREACHED",
    "as_words",
    "check_range",
    "collective_id_bytes",
    "column",
    "columns",
]

FULL_TRUST = 120
"""Trust amount of full trust; 60 is partial (OpenPGP's scale)."""

UNREACHED = 0xFFFF_FFFF
"""Layer of nodes outside a set, in arrays of layers."""

UNLIMITED = 255
"""Depth limit of a certificate without one, as it is encoded."""

DAY_S = 86_400


def collective_id_bytes(value: bytes) -> bytes:
    if len(value) != 32:
        raise ConfigError(f"a collective id is 32 bytes, this one {len(value)}", where="collective_id")
    return bytes(value)


def check_range(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise ConfigError(f"{name} is {value}; it can be {least} to {most}", where=name)


def column(name: str, values: ArrayLike, dtype: type[np.integer], length: int | None = None) -> NDArray:  # type: ignore[type-arg]
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ShapeError(f"{name} has dtype {array.dtype}; it needs whole numbers", where=name)
    if array.ndim == 0 and length is not None:
        array = np.broadcast_to(array, (length,))
    if array.ndim != 1 or (length is not None and len(array) != length):
        raise ShapeError(
            f"{name} has shape {array.shape}; it needs one dimension of {length or 'n'}", where=name
        )
    if array.dtype != dtype and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ShapeError(f"{name} holds numbers outside {np.dtype(dtype)}", where=name)
    return np.ascontiguousarray(array, dtype)


def columns(
    issuers: ArrayLike, subjects: ArrayLike, begins: ArrayLike, ends: ArrayLike
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    first = column("issuers", np.atleast_1d(np.asarray(issuers)), np.uint32)
    return (
        first,
        column("subjects", subjects, np.uint32, len(first)),
        column("not_before", begins, np.uint32, len(first)),
        column("not_after", ends, np.uint32, len(first)),
    )


def as_words(inside: NDArray[np.bool_]) -> NDArray[np.uint64]:
    bits = np.zeros(-(-len(inside) // 64) * 64, np.bool_)
    bits[: len(inside)] = inside
    return np.packbits(bits, bitorder="little").view(np.uint64)
