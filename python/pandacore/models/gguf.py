"""The header of a GGUF file: what a model is, without loading it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any, Final

from pandacore.errors import ConfigError

__all__ = ["read_metadata"]

_MAGIC: Final = b"GGUF"
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_STRING: Final = 16 << 20
_MAX_KEYS: Final = 10_000
_MAX_ITEMS: Final = 10_000_000


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The key-value pairs of a GGUF file's header.

    Arrays (vocabularies) are skipped: their value is their length.

    Raises
    ------
    ConfigError
        The file cannot be read or is no GGUF file of version 2 or 3.
    """
    try:
        with Path(path).open("rb") as file:
            return _read(file)
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError(
            f"not a GGUF model: {error}", where=str(path), hint="use a .gguf file, or a name of the catalogue"
        ) from None


def _read(file: IO[bytes]) -> dict[str, Any]:
    if file.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    (version,) = _unpack(file, "<I")
    if version not in (2, 3):
        raise ValueError(f"format version {version} is unknown")
    _, count = _unpack(file, "<QQ")
    if count > _MAX_KEYS:
        raise ValueError(f"{count} header keys")
    found: dict[str, Any] = {}
    for _ in range(count):
        key = _string(file)
        (kind,) = _unpack(file, "<I")
        found[key] = _value(file, kind)
    return found


def _value(file: IO[bytes], kind: int) -> Any:
    if kind in _SCALARS:
        return _unpack(file, _SCALARS[kind])[0]
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        item, length = _unpack(file, "<IQ")
        if length > _MAX_ITEMS:
            raise ValueError(f"an array of {length} items")
        if item in _SCALARS:
            file.seek(struct.calcsize(_SCALARS[item]) * length, 1)
        elif item == _STRING:
            for _ in range(length):
                (size,) = _unpack(file, "<Q")
                file.seek(min(size, _MAX_STRING), 1)
        else:
            raise ValueError(f"an array of type {item}")
        return length
    raise ValueError(f"value type {kind} is unknown")


def _string(file: IO[bytes]) -> str:
    (length,) = _unpack(file, "<Q")
    if length > _MAX_STRING:
        raise ValueError(f"a string of {length} bytes")
    return file.read(length).decode("utf-8", "replace")


def _unpack(file: IO[bytes], layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))
