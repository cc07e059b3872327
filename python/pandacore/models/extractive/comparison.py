"""Yes/no questions, choices between two named things, and attributes that two things share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pandacore.models.extractive.facts import DateSpan, birth, dates_in, death, definition, numbers_in
from pandacore.models.extractive.lexicon import (
    COUNTRIES,
    PERSON_NOUNS,
    PLACE_NOUNS,
    TIME_NOUNS,
    countries_in,
    equivalents,
)
from pandacore.models.extractive.question import Question
from pandacore.models.extractive.retrieve import Library, query_terms
from pandacore.models.extractive.spans import names_in
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

__all__ = ["Comparison", "compare", "subjects"]

# Words of a predicate that say how, not what.
_EMPTY = frozenset(
    stem(w)
    for w in """located situated found based type types kind kinds form forms considered known used one two
    category categories classified sort name named called""".split()
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer, the sentences it rests on as (passage, sentence), and how sure it is, 0 to 1."""

    answer: str
    evidence: tuple[tuple[int, int], ...]
    confidence: float
    reason: str


def subjects(library: Library, asked: Question) -> tuple[int, int] | None:
    """The two passages that the options of a question are about, or None if one is missing."""
    if len(asked.options) != 2:
        return None
    first, second = (library.find(name, asked.text) for name in asked.options)
    if not first or not second:
        return None
    a, b = first[0], second[0]
    # "Ed Wood" is also a film: of equal titles take the one whose kind agrees with the other side.
    a = _agreeing(library, first, library.passages[b])
    b = _agreeing(library, second, library.passages[a])
    return (a, b) if a != b else None


def _agreeing(library: Library, found: list[int], other: Passage) -> int:
    best = library.titles[found[0]]
    same = [i for i in found if library.titles[i] == best]
    kinds = set(content_stems(definition(other))[:10])
    person = birth(other) is not None

    def fit(i: int) -> tuple[bool, int]:
        passage = library.passages[i]
        shared = kinds & set(content_stems(definition(passage))[:10])
        return ((birth(passage) is not None) == person, len(shared))

    return max(same, key=lambda i: (*fit(i), -same.index(i)))


def compare(library: Library, asked: Question) -> Comparison | None:
    """Answer a question of kind ``yesno``, ``choice`` or ``shared``; None if the passages do not say.

    Parameters
    ----------
    library : Library
        The passages; those about both options should be among them.
    asked : Question
        The analysed question.
    """
    pair = subjects(library, asked)
    if asked.kind == "choice":
        return _choose(library, asked, *pair) if pair else None
    if asked.kind == "shared":
        return _shared(library, asked, *pair) if pair else None
    if asked.kind == "yesno":
        return _both(library, asked, *pair) if pair else _holds(library, asked)
    return None


# --- choices ---------------------------------------------------------------------------------------------


def _choose(library: Library, asked: Question, a: int, b: int) -> Comparison:
    left, right = library.passages[a], library.passages[b]
    attribute = _predicate(asked)
    if asked.relation:
        terms = set(content_stems(asked.text))
        if asked.relation in ("more", "less") and {stem("lived"), stem("life")} & terms:
            first, second = _age(left), _age(right)
            if first is not None and second is not None:
                return _decide(asked, first, second, ((a, 0), (b, 0)), asked.relation == "more", "age")
        elif asked.relation in ("more", "less"):
            first_n, second_n = _quantity(left, attribute), _quantity(right, attribute)
            if first_n and second_n:
                rests = ((a, first_n[1]), (b, second_n[1]))
                return _decide(asked, first_n[0], second_n[0], rests, asked.relation == "more", "number")
        else:
            first_d, second_d = _moment(left, terms), _moment(right, terms)
            if first_d and second_d:
                rests = ((a, first_d[1]), (b, second_d[1]))
                wants_late = asked.relation in ("younger", "later")
                return _decide(asked, first_d[0].key, second_d[0].key, rests, wants_late, "date")
    scores = []
    for passage in (left, right):
        held = _held(passage)
        scores.append(sum(library.index.idf(t) * held.get(t, (0.0, 0))[0] for t in attribute))
    pick = 0 if scores[0] >= scores[1] else 1
    total = sum(scores)
    evidence = tuple((index, _support(passage, attribute)) for index, passage in ((a, left), (b, right)))
    confidence = 0.3 + 0.5 * abs(scores[0] - scores[1]) / total if total else 0.2
    return Comparison(asked.options[pick], evidence, confidence, "property")


def _decide(  # noqa: PLR0917
    asked: Question,
    left: float | tuple[int, int, int],
    right: float | tuple[int, int, int],
    evidence: tuple[tuple[int, int], ...],
    wants_greater: bool,
    reason: str,
) -> Comparison:
    # Both sides come from the same rule, so they are of one type.
    greater = left > right  # type: ignore[operator]
    pick = 0 if greater == wants_greater else 1
    return Comparison(asked.options[pick], evidence, 0.4 if left == right else 0.85, reason)


def _age(passage: Passage) -> float | None:
    born, died = birth(passage), death(passage)
    if born is None or died is None:
        return None
    return (died.key[0] - born.key[0]) + (died.key[1] - born.key[1]) / 12 + (died.key[2] - born.key[2]) / 365


def _moment(passage: Passage, terms: set[str]) -> tuple[DateSpan, int] | None:
    """The date of a passage that the question's verb is about."""
    if stem("died") in terms:
        died = death(passage)
        if died:
            return died, _sentence_of(passage, died)
    born = birth(passage)
    if born and (stem("born") in terms or not passage_verbs(terms)):
        return born, _sentence_of(passage, born)
    best: tuple[float, int, DateSpan] | None = None
    for position, sentence in enumerate(passage.sentences):
        dates = [d for d in dates_in(sentence) if d.key[0]]
        words = [(stem(t.text), t.start, t.end) for t in tokenize(sentence)]
        for date in dates:
            cost = 200.0 + 20 * position
            for word, start, end in words:
                if word in terms or equivalents(word) & terms:
                    gap = date.start - end if end <= date.start else start - date.end
                    cost = min(cost, gap + 5.0 * position)
            if best is None or cost < best[0]:
                best = (cost, position, date)
    return (best[2], best[1]) if best else (born, 0) if born else None


def passage_verbs(terms: set[str]) -> set[str]:
    """Which of the question's terms are verbs that a date may belong to, other than birth and death."""
    return terms & {
        stem(w)
        for w in """founded established formed released published opened built completed started began created
        premiered aired invented discovered signed won elected incorporated launched introduced organized
        constructed described""".split()
    }


def _sentence_of(passage: Passage, date: DateSpan) -> int:
    return next((i for i, s in enumerate(passage.sentences) if date.text in s), 0)


def _quantity(passage: Passage, attribute: list[str]) -> tuple[float, int] | None:
    """The number that stands closest to the asked attribute; a list of names counts as their number."""
    wanted = set(attribute)
    best: tuple[float, float, int] | None = None
    for position, sentence in enumerate(passage.sentences):
        words = [(stem(t.text), t.start, t.end) for t in tokenize(sentence)]
        marks = [(s, e) for w, s, e in words if w in wanted or equivalents(w) & wanted]
        for number in numbers_in(sentence):
            cost = 120.0 + 10 * position
            for start, end in marks:
                gap = number.start - end if end <= number.start else start - number.end
                cost = min(cost, gap + 3.0 * position)
            if best is None or cost < best[0]:
                best = (cost, number.value, position)
        for _, end in marks:
            names = [n for n in names_in(sentence) if n.start >= end]
            if len(names) >= 2 and (best is None or best[0] > 40 + 3.0 * position):
                best = (40 + 3.0 * position, float(len(names)), position)
    # A number far from every word of the question measures something else.
    return (best[1], best[2]) if best and best[0] < 100 else None


# --- properties ------------------------------------------------------------------------------------------


def _predicate(asked: Question) -> list[str]:
    """The content stems of a question without its options and words that only compare."""
    own = {s for name in asked.options for s in content_stems(name)}
    skip = {stem(w) for w in "both older younger earlier later more most first same fewer less".split()}
    return [t for t in query_terms(asked.text) if t not in own and t not in skip and t not in _EMPTY]


def _held(passage: Passage) -> dict[str, tuple[float, int]]:
    """Each stem that a passage holds, itself or by a near synonym, with its weight and first sentence."""
    held: dict[str, tuple[float, int]] = {}
    for position, sentence in enumerate(passage.sentences):
        weight = 1.0 if position == 0 else 0.8
        for term in content_stems(sentence):
            held.setdefault(term, (weight, position))
        for country in countries_in(sentence):
            for term in content_stems(country):
                held.setdefault(term, (weight, position))
    for term in content_stems(passage.title):
        held.setdefault(term, (1.0, 0))
    for term in list(held):
        weight, position = held[term]
        for other in equivalents(term):
            if other not in held:
                held[other] = (0.8 * weight, position)
    return held


def _support(passage: Passage, attribute: list[str]) -> int:
    """The sentence that says most about an attribute; the first one unless another is clearly better."""
    wanted = set(attribute)
    best, most = 0, -1.0
    for position, sentence in enumerate(passage.sentences):
        here = set(content_stems(sentence))
        score = sum(1.0 for t in wanted if t in here or equivalents(t) & here) + (
            0.9 if position == 0 else 0.0
        )
        if score > most:
            best, most = position, score
    return best


def _both(library: Library, asked: Question, a: int, b: int) -> Comparison:
    left, right = library.passages[a], library.passages[b]
    words = [fold(t.text) for t in tokenize(asked.text)]
    if asked.relation and " than " in asked.text:
        chosen = _choose(library, asked, a, b)
        said = "yes" if chosen.answer == asked.options[0] else "no"
        return Comparison(said, chosen.evidence, chosen.confidence, chosen.reason)
    if "same" in words or "share" in words or "common" in words:
        return _same(left, right, a, b, words)
    attribute = _predicate(asked)
    evidence = ((a, _support(left, attribute)), (b, _support(right, attribute)))
    if not attribute:
        return Comparison("yes", evidence, 0.2, "nothing to check")
    named = set(countries_in(_after_options(asked)))
    verdicts = []
    for passage in (left, right):
        held = _held(passage)
        share = sum(1 for t in attribute if t in held) / len(attribute)
        ok = share >= (1.0 if len(attribute) <= 2 else 0.6)
        if named:
            stated = {c for s in passage.sentences[:2] for c in countries_in(s)}
            ok = ok and named <= _with_parts(stated)
        verdicts.append(ok)
    return Comparison("yes" if all(verdicts) else "no", evidence, 0.6, "property of both")


def _with_parts(countries: set[str]) -> set[str]:
    """Countries with the union that they belong to."""
    if countries & {"England", "Scotland", "Wales", "Northern Ireland"}:
        return countries | {"United Kingdom"}
    return countries


def _after_options(asked: Question) -> str:
    last = max((asked.text.find(name) + len(name) for name in asked.options if name in asked.text), default=0)
    return asked.text[last:]


def _same(left: Passage, right: Passage, a: int, b: int, words: list[str]) -> Comparison:
    marker = next(w for w in ("same", "share", "common") if w in words)
    nouns = [stem(w) for w in words[words.index(marker) + 1 :] if w not in STOPWORDS]
    noun = nouns[0] if nouns else ""
    evidence: tuple[tuple[int, int], ...] = ((a, 0), (b, 0))
    first, second = (_values(p, noun, nouns) for p in (left, right))
    said = "yes" if first & second else "no"
    return Comparison(said, evidence, 0.7 if first and second else 0.3, f"same {noun}")


def _values(passage: Passage, noun: str, nouns: list[str]) -> set[str]:
    """What a passage says about one attribute, as comparable words."""
    lead = " ".join(passage.sentences[:2])
    if noun in {stem("nationality"), stem("country"), stem("nation")}:
        return _with_parts(set(countries_in(definition(passage)) or countries_in(lead)))
    if noun in TIME_NOUNS:
        born = birth(passage)
        if born and stem("born") in nouns:
            return {str(born.key[0])}
        return {str(d.key[0]) for d in dates_in(lead) if d.key[0]}
    beside = _modifiers(lead, noun)
    if beside:
        return beside
    if noun in PLACE_NOUNS:
        # The narrowest place comes first after "in" or "at"; wider ones would agree by themselves.
        places = [
            s.text
            for s in names_in(passage.sentences[0] if passage.sentences else "")
            if re.search(r"\b(?:in|at|near|of|,)\s*(?:the\s+)?$", passage.sentences[0][: s.start] or " ")
        ]
        return {fold(p) for p in places[: 3 if noun in {stem("state"), stem("region")} else 1]}
    return set(content_stems(definition(passage))[:10])


def _modifiers(text: str, noun: str) -> set[str]:
    """The words directly before a noun: "prefecture-level city" gives its level."""
    tokens = tokenize(text)
    for i, token in enumerate(tokens):
        if stem(token.text) == noun and i:
            before = tokens[i - 1]
            if text[before.end : token.start] in (" ", "-") and fold(before.text) not in STOPWORDS:
                joined = fold(before.text)
                if i >= 2 and text[tokens[i - 2].end : before.start] == "-":
                    joined = fold(tokens[i - 2].text)
                return {joined}
    return set()


def _holds(library: Library, asked: Question) -> Comparison | None:
    """Whether the best passages state what a yes/no question says."""
    pairs = library.pairs(asked.text)
    if not pairs:
        order = [hit.index for hit in library.rank(asked.text, limit=1) if hit.score > 0]
    else:
        order = [pairs[0].first, pairs[0].second]
    if not order:
        return None
    terms = query_terms(asked.text)
    weights = {t: library.index.idf(t) for t in terms}
    held: set[str] = set()
    for index in order:
        held |= set(_held(library.passages[index]))
    total = sum(weights.values()) or 1.0
    share = sum(w for t, w in weights.items() if t in held) / total
    evidence = tuple((i, _support(library.passages[i], terms)) for i in order)
    return Comparison("yes" if share >= 0.8 else "no", evidence, 0.3 + 0.4 * abs(share - 0.5), "statement")


# --- shared attributes -----------------------------------------------------------------------------------


def _shared(library: Library, asked: Question, a: int, b: int) -> Comparison | None:
    left, right = library.passages[a], library.passages[b]
    evidence = ((a, 0), (b, 0))
    if asked.expects == "country" or "country" in asked.nouns:
        common = [c for c in countries_in(_lead(left)) if c in countries_in(_lead(right))]
        if common:
            return Comparison(_as_written(left, common[0]), evidence, 0.8, "same country")
        return None
    if asked.expects == "place":
        theirs = {fold(s.text) for s in names_in(_lead(right))}
        own = {s for p in (left, right) for s in stems(base_title(p.title))}
        places = [
            s.text for s in names_in(_lead(left)) if fold(s.text) in theirs and not set(stems(s.text)) <= own
        ]
        if places:
            return Comparison(", ".join(places[:2]), evidence, 0.6, "same place")
        return None
    if asked.expects in ("year", "date"):
        years = {d.key[0] for d in dates_in(_lead(right)) if d.key[0]}
        shared = [str(d.key[0]) for d in dates_in(_lead(left)) if d.key[0] in years]
        return Comparison(shared[0], evidence, 0.7, "same year") if shared else None
    run = _common_run(definition(left) or _lead(left), definition(right) or _lead(right), asked)
    return Comparison(run, evidence, 0.6, "same description") if run else None


def _lead(passage: Passage) -> str:
    """The first sentence without a bracket that only gives a name in another language."""
    first = passage.sentences[0] if passage.sentences else ""
    return re.sub(r"\([A-Z][a-z]+: [^()]*\)", "", first)


def _as_written(passage: Passage, country: str) -> str:
    for token in tokenize(_lead(passage)):
        if COUNTRIES.get((fold(token.text),)) == country:
            return token.text
    return country


def _common_run(left: str, right: str, asked: Question) -> str:
    """The longest run of words that two descriptions share; a person's job is preferred."""
    theirs = set(content_stems(right))
    known = set(content_stems(asked.text))
    best: tuple[float, str] = (0.0, "")
    tokens = tokenize(left)
    i = 0
    while i < len(tokens):
        j = i
        while (
            j < len(tokens)
            and stem(tokens[j].text) in theirs
            and fold(tokens[j].text) not in STOPWORDS
            and (j == i or left[tokens[j - 1].end : tokens[j].start] in (" ", "-"))
            and (fold(tokens[j].text),) not in COUNTRIES
            and stem(tokens[j].text) not in known
        ):
            j += 1
        if j > i:
            run = [stem(t.text) for t in tokens[i:j]]
            value = len(run) + 2.0 * bool(set(run) & PERSON_NOUNS)
            if value > best[0]:
                best = (value, left[tokens[i].start : tokens[j - 1].end])
        i = max(j, i + 1)
    return best[1]
