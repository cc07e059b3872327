"""Dates, numbers, lifespans and what a passage says its subject is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pandacore.models.extractive.lexicon import NUMBER_WORDS
from pandacore.models.extractive.text import Passage

__all__ = ["DateSpan", "NumberSpan", "birth", "dates_in", "death", "definition", "nature", "numbers_in"]

_MONTHS = {
    name: i
    for i, name in enumerate(
        """january february march april may june july august september october november december""".split(), 1
    )
}
_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_YEAR = r"(?:1\d{3}|20\d{2})"
_RANGE = r"\s*(?:[-–—]|to|until|through)\s*"
_DATE = re.compile(
    rf"(?P<d1>\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+(?P<m1>{_MONTH})(?:,?\s+(?P<y1>{_YEAR}))?\b"
    rf"|(?P<m2>{_MONTH})\s+(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(?P<y2>{_YEAR})\b)?"
    rf"|(?P<m3>{_MONTH}),?\s+(?:of\s+)?(?P<y3>{_YEAR})\b"
    rf"|\b(?P<ya>{_YEAR}){_RANGE}(?P<yb>{_YEAR}|\d{{2}}|present)\b"
    rf"|\b(?P<y4>{_YEAR})(?P<dec>s?)\b(?![,.]?\d)"
    rf"|\b(?P<y5>\d{{1,4}})\s?(?P<era>BC|BCE|AD|CE)\b"
    rf"|\b(?P<m4>{_MONTH})\b(?!\s*\d)"
)


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A date in a text. ``key`` sorts by time: (year, month, day), 0 for what is not said; year 0: none."""

    text: str
    start: int
    end: int
    key: tuple[int, int, int]
    kind: str  # "day", "month", "year", "range", "decade"


@lru_cache(maxsize=8192)
def dates_in(text: str) -> tuple[DateSpan, ...]:
    """All dates, from left to right.

    Examples
    --------
    >>> [(d.text, d.key) for d in dates_in("Born 2 May 1990, active from 2001 to 2010.")]
    [('2 May 1990', (1990, 5, 2)), ('2001 to 2010', (2001, 0, 0))]
    """
    found: list[DateSpan] = []
    for m in _DATE.finditer(text):
        g = m.groupdict()
        month = _MONTHS.get((g["m1"] or g["m2"] or g["m3"] or g["m4"] or "").lower(), 0)
        # "May" alone is mostly the verb.
        if g["m4"] and (g["m4"] == "May" or text[m.start() : m.start() + 1].islower()):
            continue
        day = int(g["d1"] or g["d2"] or 0)
        year = int(g["y1"] or g["y2"] or g["y3"] or g["ya"] or g["y4"] or g["y5"] or 0)
        if g["era"] in ("BC", "BCE"):
            year = -year
        if day > 31:
            continue
        kind = (
            "range" if g["ya"] else "decade" if g["dec"] else "day" if day else "month" if month else "year"
        )
        found.append(DateSpan(m.group(), m.start(), m.end(), (year, month, day), kind))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """A quantity in a text: its value and the noun after it (lower case, may be empty)."""

    text: str
    start: int
    end: int
    value: float
    unit: str


_NUMBER = re.compile(
    r"(?P<lead>(?:more than|over|about|around|approximately|nearly|almost|at least|up to|some|fewer than|"
    r"less than)\s+)?"
    r"(?P<money>(?:US)?[$£€¥]\s?)?"
    r"(?P<num>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?!\w)(?P<pct>\s?%|\s+percent|\s+per cent)?"
    r"(?P<scale>[\s-](?:hundred|thousand|million|billion|trillion))?"
    r"(?P<unit>[\s-](?!(?:and|or|in|of|at|by|to|on|is|was|as|for|from|with|the|a|an|were|are|who|that)\b)[a-z]+)?"
)
_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_SPELLED = re.compile(
    rf"\b(?P<num>{'|'.join(NUMBER_WORDS)})(?P<scale>[\s-](?:hundred|thousand|million|billion))?"
    r"(?P<unit>\s(?:[a-z]+))\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=8192)
def numbers_in(text: str) -> tuple[NumberSpan, ...]:
    """All quantities that are not part of a date, from left to right. The span ends before the unit.

    Examples
    --------
    >>> [(n.text, n.value, n.unit) for n in numbers_in("It sold over 2.5 million copies in 1999.")]
    [('over 2.5 million', 2500000.0, 'copies')]
    """
    taken = [(d.start, d.end) for d in dates_in(text)]
    found: list[NumberSpan] = []
    for pattern in (_NUMBER, _SPELLED):
        for m in pattern.finditer(text):
            start, end = m.start("num"), m.end("num")
            if any(s < end and start < e for s, e in taken):
                continue
            if start and (text[start - 1].isalpha() or (text[start - 1] in "-–." and pattern is _NUMBER)):
                continue
            raw = m.group("num").replace(",", "").lower()
            value = float(NUMBER_WORDS[raw]) if raw in NUMBER_WORDS else float(raw)
            scale = (m.group("scale") or "").strip(" -")
            value *= _SCALES.get(scale, 1.0)
            groups = m.groupdict()
            first = m.start("lead") if groups.get("lead") else start
            if groups.get("money") and not groups.get("lead"):
                first = m.start("money")
            last = m.end("scale") if scale else m.end("pct") if groups.get("pct") else end
            unit = (m.group("unit") or "").strip(" -").lower()
            found.append(NumberSpan(text[first:last], first, last, value, unit))
    found.sort(key=lambda n: n.start)
    return tuple(found)


@lru_cache(maxsize=8192)
def _lifespan(first: str) -> tuple[DateSpan | None, DateSpan | None]:
    # "X (born 2 May 1950)", "X (2 May 1950 – 3 June 2000)", "X (1950–2000)", "X, born in 1950".
    parens = re.search(r"\(([^()]*(?:\([^()]*\)[^()]*)*)\)", first[:400])
    if parens:
        inside = [d for d in dates_in(parens.group(1)) if d.key[0]]
        text = parens.group(1)
        if inside and inside[0].kind == "range" and "born" not in text:
            years = re.findall(_YEAR, inside[0].text)
            end = DateSpan(years[-1], 0, 0, (int(years[-1]), 0, 0), "year") if len(years) > 1 else None
            return DateSpan(years[0], 0, 0, (int(years[0]), 0, 0), "year"), end
        if len(inside) >= 2 and re.search(r"[-–—]", text[inside[0].end : inside[1].start]):
            return inside[0], inside[1]
        if inside and re.search(r"\bb(?:orn|\.)", text):
            return inside[0], None
    return None, None


def birth(passage: Passage) -> DateSpan | None:
    """When the passage's subject was born, if it is a person with a stated date."""
    if not passage.sentences:
        return None
    born, _ = _lifespan(passage.sentences[0])
    if born:
        return born
    for sentence in passage.sentences:
        match = re.search(r"\bborn\b", sentence)
        if match:
            later = [d for d in dates_in(sentence) if d.start >= match.end() and d.key[0]]
            if later and later[0].start - match.end() < 80:
                return later[0]
    return None


def death(passage: Passage) -> DateSpan | None:
    """When the passage's subject died, if stated."""
    if not passage.sentences:
        return None
    _, died = _lifespan(passage.sentences[0])
    if died:
        return died
    for sentence in passage.sentences:
        match = re.search(r"\bdied\b", sentence)
        if match:
            later = [d for d in dates_in(sentence) if d.start >= match.end() and d.key[0]]
            if later:
                return later[0]
    return None


_COPULA = re.compile(
    r"\b(?:is|was|are|were)\s+(?:(?:one of|the name of|a type of|a kind of|a genus of|a series of)\s+)?"
    r"(?:(?:the|a|an|any)\s+)?"
)


@lru_cache(maxsize=8192)
def _definition(first: str) -> str:
    plain = re.sub(r"\([^()]*\)", " ", first)
    match = _COPULA.search(plain)
    if not match:
        return ""
    return plain[match.end() :].strip().rstrip(".")


def definition(passage: Passage) -> str:
    """What follows "is a/was the …" in the first sentence: what the subject is said to be."""
    return _definition(passage.sentences[0]) if passage.sentences else ""


_CLAUSE = re.compile(
    r"\b(?:by|who|which|that|whose|where|and is|and was|based on|(?:co-)?(?:directed|written|produced"
    r"|composed|developed|published|created|designed|founded|formed|starring|featuring|known|best known)\b.*)"
    r"\b"
)


def nature(passage: Passage) -> str:
    """The first part of the definition: what sort of thing the subject is, without who made it.

    Examples
    --------
    >>> nature(Passage("f", "Dusk", ("Dusk is a 1957 drama film directed by Ann Lee.",)))
    '1957 drama film'
    """
    return _CLAUSE.split(definition(passage), maxsplit=1)[0].strip(" ,")
