"""Name-like spans: capitalised runs, quoted titles, and lower-case noun groups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pandacore.models.extractive.text import STOPWORDS, Token, fold, tokenize

__all__ = ["Span", "names_in", "noun_groups", "quotes_in"]

_CONNECTORS = frozenset(
    "of the de la le les du des del della di da do dos van von der den ter y e al el for in on".split()
)
# These join two names only inside one work or institution ("Department of Energy"), never at an end.
_QUOTE = re.compile(r"\"([^\"]{1,120})\"|“([^”]{1,120})”|«([^»]{1,120})»|(?<!\w)'([A-Z][^']{1,80})'(?!\w)")
_MONTHS = frozenset(
    "january february march april may june july august september october november december".split()
)
_DAYS = frozenset("monday tuesday wednesday thursday friday saturday sunday".split())


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a sentence: ``text == sentence[start:end]``. ``kind``: name, quote, group."""

    text: str
    start: int
    end: int
    kind: str


@lru_cache(maxsize=8192)
def quotes_in(text: str) -> tuple[Span, ...]:
    """What stands between quotation marks, without them."""
    spans: list[Span] = []
    for m in _QUOTE.finditer(text):
        group = next(i for i in (1, 2, 3, 4) if m.group(i) is not None)
        inner = m.group(group)
        shift = len(inner) - len(inner.lstrip())
        core = inner.strip().rstrip(",.;")
        if core:
            start = m.start(group) + shift
            spans.append(Span(core, start, start + len(core), "quote"))
    return tuple(spans)


def _capital(token: Token) -> bool:
    return token.text[0].isupper() or (token.text[0].isdigit() and not token.text.isdigit())


def _joined(text: str, left: Token, right: Token) -> bool:
    """Whether nothing but space, hyphen, dot, apostrophe or ampersand stands between two words."""
    between = text[left.end : right.start]
    if between in (". ", "."):
        # "John F. Kennedy" and "St. Louis" go on; "Paris. The" does not.
        return len(left.text) <= 2 or left.text in ("Jr", "Sr", "Mrs", "Col", "Gen", "Capt", "Lt", "Prof")
    return re.fullmatch(r"\s?[-–&/!]?\s?", between) is not None and len(between) <= 3


@lru_cache(maxsize=8192)
def names_in(text: str) -> tuple[Span, ...]:
    """Capitalised spans from left to right, with the small words that join their parts.

    Examples
    --------
    >>> [s.text for s in names_in("The Bank of England hired Anne de Vries in May.")]
    ['Bank of England', 'Anne de Vries']
    """
    tokens = tokenize(text)
    spans: list[Span] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        lowered = fold(token.text)
        starts_sentence = i == 0 or bool(re.search(r"[.!?:]\s*[\"'“(]*$", text[: token.start]))
        # A capital at the start says nothing; a stop word there is no name.
        if not token.text[0].isupper() or lowered in STOPWORDS:
            i += 1
            continue
        if starts_sentence and lowered in STOPWORDS:
            i += 1
            continue
        j = i
        k = i + 1
        while k < len(tokens):
            if not _joined(text, tokens[k - 1], tokens[k]):
                break
            word = fold(tokens[k].text)
            if tokens[k].text[0].isupper() and (word not in STOPWORDS or word in _CONNECTORS):
                j = k
            elif tokens[k].text[0].isdigit() and len(tokens[k].text) <= 4:
                # "Apollo 11", "Windows 95"; but a year after a month is a date.
                if fold(tokens[k - 1].text) in _MONTHS:
                    break
                j = k
            elif not (word in _CONNECTORS and k - j <= 2):
                break
            if k - j > 2:
                break
            k += 1
        # Connectors "in", "on", "for" join only when they are part of quoted titles, not of plain prose.
        end = j
        for cut in range(i + 1, j):
            word = tokens[cut].text
            if word in ("in", "on", "for", "e", "y") and word.islower():
                end = cut - 1
                break
        words = [fold(t.text) for t in tokens[i : end + 1]]
        if not all(w in _MONTHS or w in _DAYS or w.isdigit() for w in words):
            start, stop = tokens[i].start, tokens[end].end
            name = text[start:stop]
            if name.endswith(("'s", "’s")):
                name = name[:-2]
            if text[stop : stop + 1] == "!" or (
                text[stop : stop + 1] == "." and name.endswith(("Jr", "Sr", "Inc"))
            ):
                name = text[start : stop + 1]
            spans.append(Span(name, start, start + len(name), "name"))
        i = max(end, i) + 1
    return tuple(spans)


@lru_cache(maxsize=8192)
def noun_groups(text: str) -> tuple[Span, ...]:
    """Runs of at most six words between stop words and punctuation, lower-case ones included."""
    tokens = tokenize(text)
    spans: list[Span] = []
    run: list[Token] = []

    def close() -> None:
        if run:
            start, end = run[0].start, run[-1].end
            spans.append(Span(text[start:end], start, end, "group"))
            run.clear()

    for token in tokens:
        if run and (text[run[-1].end : token.start].strip(" -'&/") or len(run) >= 6):
            close()
        if fold(token.text) in STOPWORDS:
            close()
        else:
            run.append(token)
    close()
    return tuple(spans)
