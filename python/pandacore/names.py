"""Names: what an agent and a capability may be called, and how a model's spelling is resolved.

Display names may use any script. Ids are keys; a name proves nothing and is never used for routing.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from pandacore.errors import InvalidName, UnknownCapability

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_CAPABILITY", "MAX_NAME", "capability_name", "display_name", "resolve", "suggestions"]

MAX_NAME: Final = 128
"""Longest display name, in code points after normalisation."""
MAX_CAPABILITY: Final = 128
"""Longest capability, in bytes of UTF-8 after normalisation."""

# Bidirectional controls can make a name read as another one; zero-width joiners are kept, since emoji and
# several scripts need them.
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_QUOTES: Final = "\"'`“”\u2018\u2019«»*_"


def display_name(name: str) -> str:
    """The canonical form (NFC) of an agent's display name.

    Raises
    ------
    InvalidName
        The name is empty, longer than :data:`MAX_NAME`, has outer white space, a path separator, an angle
        bracket, a control character or a bidirectional control.
    """
    return _checked(name, "agent name", MAX_NAME, forbidden="/\\<>")


def capability_name(name: str) -> str:
    """The canonical form (NFC) of a capability such as ``search.web`` or ``summarise text``.

    Dots make a hierarchy: an agent with ``search.web`` also serves ``search``.

    Raises
    ------
    InvalidName
        As for :func:`display_name`, or it has an empty part between dots, a space at the edge of a part,
        other white space than spaces, a ``#`` (which marks tags), or more than :data:`MAX_CAPABILITY` bytes.
    """
    text = _checked(name, "capability", MAX_CAPABILITY, forbidden="#/\\<>")
    shown = ascii(text[:40])
    if len(text.encode()) > MAX_CAPABILITY:
        raise InvalidName(
            f"capability {shown} has {len(text.encode())} bytes, at most {MAX_CAPABILITY} are allowed",
            hint="shorten it",
        )
    if any(char.isspace() and char != " " for char in text):
        raise InvalidName(
            f"capability {shown} contains white space other than spaces", hint="write plain spaces"
        )
    if any(not part or part != part.strip() for part in text.split(".")):
        raise InvalidName(
            f"capability {shown} has an empty part, or one with a space at its edge",
            hint="write parts with single dots between them, such as search.web",
        )
    return text


def _checked(name: str, what: str, limit: int, *, forbidden: str) -> str:
    if not isinstance(name, str):
        raise InvalidName(f"{what} is a {type(name).__name__}, not a string", hint="pass a str")
    text = unicodedata.normalize("NFC", name)
    shown = ascii(text[:40])
    if not text or text.isspace():
        raise InvalidName(f"{what} is empty", hint="give it at least one visible character")
    if len(text) > limit:
        raise InvalidName(
            f"{what} {shown}… has {len(text)} characters, at most {limit} are allowed", hint="shorten it"
        )
    if text != text.strip():
        raise InvalidName(f"{what} {shown} begins or ends with white space", hint="strip it")
    for char in text:
        if char in _BIDI:
            raise InvalidName(
                f"{what} {shown} contains the bidirectional control U+{ord(char):04X}",
                hint="remove that character",
            )
        if char in forbidden or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp"):
            raise InvalidName(f"{what} {shown} contains {char!a}", hint="remove that character")
    return text


def resolve(written: str, known: Iterable[str]) -> str:
    """The one known capability that a model meant by ``written``.

    An exact match wins. Otherwise quotes, Markdown emphasis and escapes, ANSI colours, outer white space,
    a trailing full stop and case are ignored, then ``_``, ``-`` and spaces count alike, then a plural *s*.
    A spelling that fits two names is refused: a wrong guess would be routed to the wrong agent.

    Raises
    ------
    UnknownCapability
        No name, or more than one, fits.
    """
    names = list(known)
    if written in names:
        return written
    for fold in (_fold, _fold_separators, _fold_plural):
        wanted = fold(written)
        fits = {name for name in names if wanted and fold(name) == wanted}
        if len(fits) == 1:
            return fits.pop()
        if len(fits) > 1:
            raise UnknownCapability(
                f"{written[:80]!a} fits {', '.join(sorted(fits))}", hint="write one of them exactly"
            )
    close = suggestions(written, names)
    raise UnknownCapability(
        f"no capability {written[:80]!a}; known: {', '.join(sorted(names)[:20]) or 'none'}",
        hint=f"did you mean {close[0]!r}?" if close else "use a known name exactly",
    )


def _fold(text: str) -> str:
    text = _ANSI.sub("", unicodedata.normalize("NFC", text)).replace("\\", "")
    return text.strip().strip(_QUOTES).strip().rstrip(".").strip(_QUOTES).casefold()


def _fold_separators(text: str) -> str:
    return re.sub(r"[\s_\-]+", " ", _fold(text)).strip()


def _fold_plural(text: str) -> str:
    return _fold_separators(text).removesuffix("s")


def suggestions(written: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Up to ``count`` known names that look like ``written``, best first."""
    import difflib

    return difflib.get_close_matches(written, list(known), n=count, cutoff=0.6)
