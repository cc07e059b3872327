"""Find the passages that a question needs: one hop, or two that are linked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pandacore.models.extractive.bm25 import BM25
from pandacore.models.extractive.facts import birth, death, nature
from pandacore.models.extractive.lexicon import equivalents
from pandacore.models.extractive.question import Question, analyse
from pandacore.models.extractive.text import (
    STOPWORDS,
    Passage,
    base_title,
    content_stems,
    fold,
    stem,
    tokenize,
)

__all__ = ["Hit", "Library", "Pair"]

# Words of a question that say what is asked, not what it is about.
_ASKING = frozenset(
    stem(w)
    for w in """what which who whom whose when where how many much name named called one known year
    following""".split()
)


def contains(haystack: Sequence[str], needle: Sequence[str]) -> int:
    """Index of ``needle`` as a contiguous run in ``haystack``, or -1."""
    n = len(needle)
    if not n:
        return -1
    first = needle[0]
    for i in range(len(haystack) - n + 1):
        if haystack[i] == first and tuple(haystack[i : i + n]) == tuple(needle):
            return i
    return -1


def folded(text: str) -> tuple[str, ...]:
    """The folded words of a text, in order."""
    return tuple(fold(token.text) for token in tokenize(text))


def name_words(title: str) -> tuple[str, ...]:
    """The folded words of a title, without disambiguation and leading article: how prose refers to it."""
    words = folded(base_title(title))
    return words[1:] if len(words) > 1 and words[0] in ("the", "a", "an") else words


def query_terms(question: str) -> list[str]:
    """The stems that a passage should share with the question, each once, in order."""
    return list(dict.fromkeys(s for s in content_stems(question) if s not in _ASKING))


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked passage: its position in the library and its score."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two passages that together answer; ``second`` is the one further from the question."""

    first: int
    second: int
    score: float
    linked: bool


class Library:
    """Passages, indexed for retrieval. Immutable after construction.

    Parameters
    ----------
    passages : sequence of Passage
        All passages that may be quoted.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = tuple(passages)
        # The title counts twice: it says what the whole passage is about.
        self.terms = [content_stems(p.title) * 2 + content_stems(p.text) for p in self.passages]
        self.index = BM25(self.terms)
        self.titles = [name_words(p.title) for p in self.passages]
        self._words = [folded(p.text) for p in self.passages]
        self._word_sets = [frozenset(w) for w in self._words]
        self._strength = [_strengths(p) for p in self.passages]
        self._kinds = [frozenset(content_stems(nature(p))[:10]) for p in self.passages]
        self._links: dict[tuple[int, int], float] = {}

    def __len__(self) -> int:
        return len(self.passages)

    def strength(self, index: int, term: str) -> float:
        """How prominently a passage holds a term: 1 in the title, less in later sentences, 0 nowhere.

        Near synonyms count four fifths.
        """
        held = self._strength[index]
        value = held.get(term, 0.0)
        for other in equivalents(term):
            value = max(value, 0.8 * held.get(other, 0.0))
        return value

    def find(self, name: str, context: str = "") -> list[int]:
        """The passages that are about a name, best first; equal ones by their fit to ``context``."""
        wanted = name_words(name)
        if not wanted:
            return []
        terms = query_terms(context)
        found: list[tuple[float, float, int]] = []
        for i, title in enumerate(self.titles):
            if title == wanted:
                fit = 3.0
            elif contains(title, wanted) >= 0:
                fit = 2.0
            elif title and contains(wanted, title) >= 0 and len(title) * 2 >= len(wanted):
                fit = 1.5
            elif (
                len(wanted) > 1
                and set(wanted) <= self._word_sets[i] | set(title)
                and title[-1:] == wanted[-1:]
            ):
                fit = 1.0
            else:
                continue
            found.append((-fit, -sum(self.index.idf(t) * self.strength(i, t) for t in terms), i))
        return [i for _, _, i in sorted(found)]

    def links(self, source: int, target: int) -> float:
        """How clearly one passage names another: 1 whole title, less for a part of it, 0 not at all."""
        key = (source, target)
        if key not in self._links:
            self._links[key] = self._link(source, target)
        return self._links[key]

    def _link(self, source: int, target: int) -> float:
        title = self.titles[target]
        words = self._words[source]
        if not any(w not in STOPWORDS for w in title):
            return 0.0
        if set(title) <= self._word_sets[source] and contains(words, title) >= 0:
            return 1.0
        short = folded(base_title(self.passages[target].title).split(",")[0])
        if len(short) < len(title) and contains(words, short) >= 0:
            return 0.8
        # A person is often named with a middle name, or with fewer names than in the title.
        if len(title) >= 2 and title[0] in self._word_sets[source] and title[-1] in self._word_sets[source]:
            for i, word in enumerate(words):
                if word == title[0] and title[-1] in words[i + 1 : i + 4]:
                    return 0.7
        return 0.0

    def _says(self, index: int, noun: str) -> bool:
        """Whether a passage says that its subject is of a kind."""
        held = self._kinds[index]
        return noun in held or bool(equivalents(noun) & held)

    def claims(self, question: str) -> dict[int, tuple[int, int]]:
        """Which passages the question names: position of the title among its words, as (start, end).

        The longest title wins where two overlap; equal titles share their claim.
        """
        words = folded(question)
        matches: list[tuple[int, int, int]] = []
        for i, title in enumerate(self.titles):
            # A title of small words counts only when written just so.
            small = all(w in STOPWORDS for w in title)
            if small and base_title(self.passages[i].title) not in question:
                continue
            at = contains(words, title)
            if at >= 0:
                matches.append((at, at + len(title), i))
        matches.sort(key=lambda m: (m[0] - m[1], m[2]))
        claimed: dict[int, tuple[int, int]] = {}
        for start, end, i in matches:
            inside = [c for c in claimed.values() if start < c[1] and c[0] < end]
            if not inside or all(c == (start, end) for c in inside):
                claimed[i] = (start, end)
        return claimed

    def rank(self, question: str, *, limit: int | None = None) -> list[Hit]:
        """Rank passages by BM25 and by the titles that the question names.

        Returns
        -------
        list of Hit
            Best first; ties by position. Scores are 0 or more, 0 for nothing in common.
        """
        terms = query_terms(question)
        claims = self.claims(question)
        rarest = max((self.index.idf(t) for t in terms), default=0.0)
        hits = [
            Hit(i, score + (2.0 * rarest if i in claims else 0.0))
            for i, score in enumerate(self.index.scores(terms))
        ]
        hits.sort(key=lambda hit: (-hit.score, hit.index))
        return hits[:limit]

    def pairs(self, question: str, *, pool: int = 24) -> list[Pair]:
        """Rank pairs of passages that together cover the question and name each other.

        Parameters
        ----------
        question : str
            The whole question.
        pool : int
            How many passages, best single ones and those they name, to combine.

        Returns
        -------
        list of Pair
            Best first. Empty with fewer than two passages, or if none has anything in common with it.
        """
        asked = analyse(question)
        terms = list(dict.fromkeys((*query_terms(question), *_implied(asked))))
        weights = {t: self.index.idf(t) for t in terms}
        total = sum(weights.values()) or 1.0
        singles = self.rank(question)
        if not singles or singles[0].score <= 0:
            return []
        top = singles[0].score
        chosen = [hit.index for hit in singles[:pool]]
        if len(singles) > pool:
            named = {
                j
                for i in chosen[: pool // 3]
                for j in range(len(self))
                if j not in chosen and self.links(i, j) >= 0.7
            }
            chosen += sorted(named)[:pool]
        single = {hit.index: hit.score / top for hit in singles}
        claims = self.claims(question)
        strength = {i: {t: self.strength(i, t) for t in terms} for i in chosen}
        named_by = {j: sum(1 for i in chosen if i != j and self.links(i, j) > 0) for j in chosen}
        kinds = {i: float(any(self._says(i, noun) for noun in asked.via)) for i in chosen}
        options = [self.find(name, question)[:1] for name in asked.options]
        wanted = {i for found in options for i in found}
        pairs: list[Pair] = []
        for a, i in enumerate(chosen):
            for j in chosen[a + 1 :]:
                cover = sum(w * max(strength[i][t], strength[j][t]) for t, w in weights.items()) / total
                # A passage that everything names ("United States") links nothing in particular.
                forward = self.links(i, j) / (1 + _WEIGHTS["hub"] * max(0, named_by[j] - 1))
                backward = self.links(j, i) / (1 + _WEIGHTS["hub"] * max(0, named_by[i] - 1))
                title: float = (i in claims) + (j in claims)
                if title == 2 and claims[i] == claims[j]:
                    title = _WEIGHTS["same"]
                score = (
                    _WEIGHTS["cover"] * cover
                    + _WEIGHTS["link"] * max(forward, backward)
                    + _WEIGHTS["both"] * min(forward, backward)
                    + _WEIGHTS["title"] * title
                    + _WEIGHTS["single"] * (single[i] + single[j])
                    + _WEIGHTS["min"] * min(single[i], single[j])
                    + _WEIGHTS["via"] * max(kinds[i] * (i not in claims), kinds[j] * (j not in claims))
                    + _WEIGHTS["option"] * len(wanted & {i, j}) * (len(wanted) > 1)
                )
                # The first hop is what the question names; if it names neither, or both, the better match.
                first, second = i, j
                if (j in claims, single[j]) > (i in claims, single[i]):
                    first, second = j, i
                pairs.append(Pair(first, second, score, max(forward, backward) > 0))
        pairs.sort(key=lambda p: (-p.score, p.first, p.second))
        return pairs


def _strengths(passage: Passage) -> dict[str, float]:
    held: dict[str, float] = {}
    for position, sentence in enumerate(passage.sentences):
        value = 0.9 if position == 0 else 0.7 if position < 3 else 0.6
        for term in content_stems(sentence):
            held.setdefault(term, value)
    for term in content_stems(passage.title):
        held[term] = 1.0
    # What a lifespan in brackets says without the words.
    if birth(passage):
        held.setdefault(stem("born"), 0.9)
    if death(passage):
        held.setdefault(stem("died"), 0.9)
    return held


def _implied(asked: Question) -> tuple[str, ...]:
    if asked.relation in ("older", "younger") and asked.kind == "choice":
        return (stem("born"),)
    if asked.expects == "country":
        return ()
    return ()


_WEIGHTS = {
    "via": 0.15,
    "cover": 2.0,
    "link": 0.6,
    "both": 0.2,
    "title": 0.25,
    "single": 0.2,
    "min": 0.0,
    "hub": 0.3,
    "same": -0.5,
    "option": 1.0,
}
