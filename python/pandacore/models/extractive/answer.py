"""Pick an answer span and the sentences it rests on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from pandacore.models.extractive.facts import birth, dates_in, death, nature, numbers_in
from pandacore.models.extractive.lexicon import COUNTRIES, PERSON_WORDS, PLACE_NOUNS, equivalents
from pandacore.models.extractive.question import Question, analyse
from pandacore.models.extractive.retrieve import Library, Pair, name_words, query_terms
from pandacore.models.extractive.spans import names_in, noun_groups, quotes_in
from pandacore.models.extractive.text import (
    STOPWORDS,
    Passage,
    base_title,
    content_stems,
    fold,
    stem,
    stems,
    tokenize,
)

__all__ = ["Candidate", "candidates", "find_span"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A span that may answer: where it stands and how well it fits."""

    text: str
    passage: int
    sentence: int
    score: float
    kind: str


@dataclass(frozen=True, slots=True)
class _Mention:
    text: str
    start: int
    end: int
    kind: str  # name quote group object date number title country
    unit: str = ""


_ORGANISATION = frozenset(
    """university college school inc company corporation club band group records party church army
    league association institute museum museum theatre theater department ministry committee council festival
    award awards championship series season cup station channel network airport hotel street river lake
    mountain island county city park""".split()
)


_REMAINDERS = frozenset("inc ltd co corp fc jr sr llc plc gmbh mr mrs ms dr".split())


@lru_cache(maxsize=8192)
def _mentions(sentence: str) -> tuple[_Mention, ...]:
    found: dict[tuple[int, int], _Mention] = {}
    names = names_in(sentence)
    for span in names:
        found[span.start, span.end] = _Mention(span.text, span.start, span.end, "name")
    # "Fujioka, Gunma": a place and what it lies in.
    for left, right in pairwise(names):
        if sentence[left.end : right.start] == ", ":
            found[left.start, right.end] = _Mention(
                sentence[left.start : right.end], left.start, right.end, "compound"
            )
    for span in quotes_in(sentence):
        found[span.start, span.end] = _Mention(span.text, span.start, span.end, "quote")
    for date in dates_in(sentence):
        found[date.start, date.end] = _Mention(date.text, date.start, date.end, f"date:{date.kind}")
    for number in numbers_in(sentence):
        found.setdefault(
            (number.start, number.end),
            _Mention(number.text, number.start, number.end, "number", number.unit),
        )
    for span in noun_groups(sentence):
        found.setdefault((span.start, span.end), _Mention(span.text, span.start, span.end, "group"))
    return tuple(found[key] for key in sorted(found))


@lru_cache(maxsize=8192)
def _positions(sentence: str) -> tuple[tuple[str, int, int], ...]:
    return tuple((stem(t.text), t.start, t.end) for t in tokenize(sentence))


def _is_person(passage: Passage) -> bool:
    if birth(passage):
        return True
    said = {fold(token.text) for token in tokenize(nature(passage))[:12]}
    return bool(said & PERSON_WORDS) and len(tokenize(base_title(passage.title))) <= 5


def candidates(
    library: Library, question: str, pair: Pair | tuple[int, ...], *, on_the_way: bool = False
) -> list[Candidate]:
    """Score every span of some passages as an answer.

    Parameters
    ----------
    library : Library
        The passages.
    question : str
        The question.
    pair : Pair or tuple of int
        The passages to read. Of a pair, ``second`` is where the answer is expected.
    on_the_way : bool
        Look for what the question describes without naming it, in place of the answer.

    Returns
    -------
    list of Candidate
        Best first, each text once.
    """
    asked = analyse(question)
    if on_the_way:
        head = asked.via[-1] if asked.via else ""
        asked = replace(asked, expects="thing", nouns=asked.via, head=head, cue="")
    order = (pair.first, pair.second) if isinstance(pair, Pair) else tuple(pair)
    weights = {t: library.index.idf(t) for t in query_terms(question)}
    total = sum(weights.values()) or 1.0
    asked_stems = set(content_stems(question))
    asked_text = " ".join(stems(question))
    claims = library.claims(question)
    titles = {" ".join(title): i for i, title in reversed(list(enumerate(library.titles)))}
    titles |= {" ".join(library.titles[i]): i for i in reversed(order)}
    best: dict[str, Candidate] = {}
    # What a title already explains need not stand beside the answer.
    explained = {
        t for i in order if i in claims for t in content_stems(base_title(library.passages[i].title))
    }
    local = {t: w * (_WEIGHTS["explained"] if t in explained else 1.0) for t, w in weights.items()}
    if asked.cue in local:
        local[asked.cue] *= _WEIGHTS["cue"]
    local_total = sum(local.values()) or 1.0
    for place, index in enumerate(order):
        passage = library.passages[index]
        own = set(content_stems(passage.title))
        # A passage's own name stands beside everything that it says.
        beside = {t: w * (_WEIGHTS["own"] if t in own else 1.0) for t, w in local.items()}
        is_second = place == len(order) - 1 and len(order) > 1
        named = index in claims
        for position, sentence in enumerate(passage.sentences):
            here = {s for s, _, _ in _positions(sentence)}
            overlap = 0.0
            for term, weight in weights.items():
                if term in here or equivalents(term) & here:
                    overlap += weight
                elif term in own:
                    overlap += 0.5 * weight
            base = _WEIGHTS["overlap"] * overlap / total
            if asked.cue and (asked.cue in here or equivalents(asked.cue) & here):
                base += _WEIGHTS["cued"]
            base += _WEIGHTS["second"] * is_second - _WEIGHTS["named"] * named
            base += _WEIGHTS["lead"] * (position == 0) - _WEIGHTS["late"] * min(position, 5)
            mentions: list[_Mention] = list(_mentions(sentence))
            if asked.acts:
                mentions += _objects(sentence, asked.cue)
            if position == 0:
                title = base_title(passage.title)
                mentions.append(_Mention(title, 0, 0, "title"))
            for mention in mentions:
                fit = _fit(library, asked, passage, sentence, mention, titles)
                if fit is None:
                    continue
                text, value = fit
                words = [stem(t.text) for t in tokenize(text)]
                content = [w for w in words if w not in STOPWORDS]
                if not content:
                    continue
                known = sum(1 for w in content if w in asked_stems) / len(content)
                if " ".join(words) in asked_text or known == 1.0:
                    value -= _WEIGHTS["known"]
                else:
                    value -= _WEIGHTS["partly"] * known
                near = 0.0
                if mention.kind != "title":
                    near = _nearness(sentence, mention, beside, local_total)
                score = base + value + _WEIGHTS["near"] * near
                key = fold(text)
                old = best.get(key)
                if old is None or score > old.score:
                    best[key] = Candidate(text, index, position, score, mention.kind)
    return sorted(best.values(), key=lambda c: (-c.score, c.passage, c.sentence, c.text))


# What may stand between a verb and its object, and inside the object.
_LEADING = frozenset("the a an its his her their mainly mostly chiefly only also on in of".split())
_INSIDE = frozenset("and or of the its".split())


def _objects(sentence: str, verb: str) -> list[_Mention]:
    """What follows a verb up to the end of its phrase: "eats | bamboo shoots and leaves |, which ...".

    At most ten words each.
    """
    tokens = tokenize(sentence)
    found: list[_Mention] = []
    for i, token in enumerate(tokens):
        if stem(token.text) != verb and stem(token.text) not in equivalents(verb):
            continue
        first = i + 1
        while first < len(tokens) and fold(tokens[first].text) in _LEADING:
            first += 1
        last = i
        for k in range(first, min(first + 10, len(tokens))):
            if sentence[tokens[k - 1].end : tokens[k].start].strip(" -'"):
                break
            word = fold(tokens[k].text)
            if word not in STOPWORDS:
                last = k
            elif word not in _INSIDE:
                break
        if last >= first:
            start, end = tokens[first].start, tokens[last].end
            found.append(_Mention(sentence[start:end], start, end, "object"))
    return found


def _nearness(sentence: str, mention: _Mention, weights: dict[str, float], total: float) -> float:
    """How close the question's terms stand to a span, 0 to 1."""
    positions = _positions(sentence)
    inside = [i for i, (_, s, e) in enumerate(positions) if s < mention.end and mention.start < e]
    if not inside:
        return 0.0
    lo, hi = inside[0], inside[-1]
    closest: dict[str, int] = {}
    for i, (term, _, _) in enumerate(positions):
        if lo <= i <= hi:
            continue
        gap = lo - i if i < lo else i - hi
        for wanted in (term, *equivalents(term)):
            if wanted in weights and gap < closest.get(wanted, 99):
                closest[wanted] = gap
    return sum(weights[t] / (1 + 0.3 * (gap - 1)) for t, gap in closest.items()) / total


def _class_fit(asked: Question, words: Sequence[str]) -> float:
    """How much of the asked noun phrase a description holds, the head counting double."""
    if not asked.nouns:
        return 0.0
    held = set(words)
    score = weight = 0.0
    for noun in asked.nouns:
        w = 2.0 if noun == asked.head else 1.0
        weight += w
        if noun in held:
            score += w
        elif equivalents(noun) & held:
            score += 0.7 * w
    return score / weight


def _fit(  # noqa: PLR0917
    library: Library,
    asked: Question,
    passage: Passage,
    sentence: str,
    mention: _Mention,
    titles: dict[str, int],
) -> tuple[str, float] | None:
    """The answer text that a mention gives, and how well it fits what is asked; None if not at all."""
    kind, text = mention.kind, mention.text
    expects = asked.expects
    if kind == "name" and _stray(passage, sentence, mention):
        return None
    is_date, is_number = kind.startswith("date"), kind == "number"
    if expects in ("year", "date", "range"):
        return _fit_time(asked, passage, sentence, mention) if is_date else None
    if expects == "number":
        if not is_number:
            return None
        unit = stem(mention.unit) if mention.unit else ""
        value = 0.5
        if unit and (unit in asked.nouns or equivalents(unit) & set(asked.nouns)):
            value += _WEIGHTS["unit"]
        return text, value
    if is_date or is_number:
        return (text, -_WEIGHTS["untyped"]) if expects == "thing" else None
    if expects == "country":
        return (text, 0.5) if tuple(fold(t.text) for t in tokenize(text)) in COUNTRIES else None
    if kind == "object":
        return text, _WEIGHTS["object"]
    if kind == "group":
        if expects != "thing":
            return None
        value = -_WEIGHTS["group"]
        # "drifting is a technique": lower-case answers stand beside the noun that is asked for.
        return text, value + _WEIGHTS["class"] * _class_fit(asked, _around(sentence, mention))
    key = " ".join(name_words(text))
    about = titles.get(key)
    value = 0.0
    if kind == "title":
        about = library.passages.index(passage)
    described = library.passages[about] if about is not None else None
    if described is not None:
        said = content_stems(nature(described))[:12]
        value += _WEIGHTS["title"] + _WEIGHTS["class"] * _class_fit(asked, said)
    elif asked.nouns:
        value += _WEIGHTS["beside"] * _class_fit(asked, (*_around(sentence, mention), *stems(text)))
    words = {fold(t.text) for t in tokenize(text)}
    if tuple(fold(t.text) for t in tokenize(text)) in COUNTRIES and "country" not in asked.nouns:
        value -= _WEIGHTS["country"]
    if expects == "person":
        if described is not None:
            value += _personhood(described)
        elif kind == "quote":
            value -= 2 * _WEIGHTS["person"]
        elif words & _ORGANISATION or kind == "compound":
            value -= _WEIGHTS["person"]
        elif 2 <= len(tokenize(text)) <= 4:
            value += 0.5 * _WEIGHTS["person"]
    elif expects == "place":
        before = sentence[: mention.start].rstrip().rsplit(" ", 1)[-1].lower()
        if kind == "title":
            kinds = set(content_stems(nature(passage))[:6])
            value += _WEIGHTS["place"] if kinds & PLACE_NOUNS else -_WEIGHTS["place"]
        elif before in ("in", "at", "near", "from", "of", "to"):
            value += _WEIGHTS["place"]
            if kind == "compound":
                value += 0.1
        elif kind == "quote":
            value -= _WEIGHTS["place"]
    elif kind == "compound":
        return None
    return text, value


_GROUPS = frozenset(
    stem(w)
    for w in """band group company corporation organization organisation team club party duo trio
    orchestra choir label studio agency family dynasty tribe army navy""".split()
)


def _personhood(passage: Passage) -> float:
    """How well the passage's subject answers "who": a person best, a group may, a thing does not."""
    if _is_person(passage):
        return _WEIGHTS["person"]
    group = bool(_GROUPS & set(content_stems(nature(passage))[:8]))
    return 0.0 if group else -_WEIGHTS["thing"]


def _stray(passage: Passage, sentence: str, mention: _Mention) -> bool:
    """Whether a capital is only that of a sentence's first word, or a name only a remainder like "Inc."."""
    if " " in mention.text:
        return False
    if len(mention.text.rstrip(".")) <= 1 or fold(mention.text) in _REMAINDERS:
        return True
    if sentence[: mention.start].strip(" \"'“("):
        return False
    word = mention.text
    return not any(
        span.text.split()[0] == word and span.start > 2 for s in passage.sentences for span in names_in(s)
    ) and word not in base_title(passage.title)


def _around(sentence: str, mention: _Mention) -> tuple[str, ...]:
    """The stems of the words just before and just after a span."""
    positions = _positions(sentence)
    before = [s for s, _, e in positions if e <= mention.start][-4:]
    after = [s for s, b, _ in positions if b >= mention.end][:4]
    return (*before, *after)


def _fit_time(
    asked: Question, passage: Passage, sentence: str, mention: _Mention
) -> tuple[str, float] | None:
    kind = mention.kind.removeprefix("date:")
    terms = set(content_stems(asked.text))
    text = mention.text
    value = 0.0
    if asked.expects == "range":
        value = _WEIGHTS["exact"] if kind == "range" else 0.0
    elif asked.expects == "year":
        if kind == "month" and not re.search(r"\d{4}", text):
            return None
        if kind == "range":
            value = -0.3
        year = re.search(r"\d{3,4}", text)
        if year is None:
            return None
        text = year.group()
        value += _WEIGHTS["exact"] * (kind == "year")
    elif "month" in asked.nouns:
        month = re.search(r"[A-Z][a-z]+", text)
        if month is None:
            return None
        text = month.group()
    else:
        value = _WEIGHTS["exact"] if kind == "day" else 0.5 * _WEIGHTS["exact"] if kind == "month" else 0.0
    for verb, found in ((stem("born"), birth(passage)), (stem("died"), death(passage))):
        if verb in terms and found is not None and found.text in sentence:
            value += (
                _WEIGHTS["life"]
                if mention.text == found.text or found.text in mention.text
                else -_WEIGHTS["life"]
            )
    return text, value


def find_span(library: Library, question: str, pairs: Sequence[Pair], *, breadth: int = 3) -> list[Candidate]:
    """The best answers over the best pairs of passages."""
    best: dict[str, Candidate] = {}
    for pair in pairs[:breadth]:
        loss = _WEIGHTS["pair"] * (pairs[0].score - pair.score)
        for c in candidates(library, question, pair)[:20]:
            score = c.score - loss
            key = fold(c.text)
            if key not in best or score > best[key].score:
                best[key] = Candidate(c.text, c.passage, c.sentence, score, c.kind)
    return sorted(best.values(), key=lambda c: (-c.score, c.passage, c.sentence, c.text))


_WEIGHTS = {
    "cue": 1.5,
    "cued": 0.2,
    "own": 0.5,
    "explained": 0.6,
    "country": 0.4,
    "overlap": 0.7,
    "second": 0.2,
    "named": 0.1,
    "lead": 0.1,
    "late": 0.03,
    "known": 1.5,
    "partly": 0.4,
    "near": 1.2,
    "unit": 0.6,
    "untyped": 0.5,
    "group": 0.6,
    "object": 0.4,
    "class": 1.0,
    "title": 0.1,
    "beside": 0.3,
    "person": 0.4,
    "thing": 2.0,
    "place": 0.4,
    "exact": 0.2,
    "life": 0.8,
    "pair": 1.5,
}
