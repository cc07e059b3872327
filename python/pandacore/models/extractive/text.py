"""Words, sentences and passages: the plain-text layer of the extractive reader.

Everything here is deterministic and needs no model. Offsets count characters of the given string.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = [
    "STOPWORDS",
    "Passage",
    "Token",
    "base_title",
    "content_stems",
    "estimate_tokens",
    "fold",
    "passages_from_text",
    "split_sentences",
    "stem",
    "stems",
    "tokenize",
]

STOPWORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from further had has
    have having he her here hers herself him himself his how i if in into is it its itself just me more
    most my myself no nor not now of off on once only or other our ours out over own same she should so
    some such than that the their theirs them themselves then there these they this those through to too
    under until up very was we were what when where which while who whom whose why will with would you
    your yours s t d ll re ve""".split()
)

# Scripts written without spaces: every character is a token of its own.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(
    rf"[{_CJK}]"
    r"|\d+(?:[.,]\d+)*(?:st|nd|rd|th|s)?(?!\w)"
    rf"|(?:[^\W\d_]\.){{2,}}"
    rf"|[^\W_{_CJK}]+(?:['’][^\W_{_CJK}]+)*",
)


@dataclass(frozen=True, slots=True)
class Token:
    """One word: its text as written and where it stands, ``text == source[start:end]``."""

    text: str
    start: int
    end: int


@lru_cache(maxsize=8192)
def tokenize(text: str) -> tuple[Token, ...]:
    """Split text into words and numbers; punctuation is dropped.

    Examples
    --------
    >>> [token.text for token in tokenize("The U.S. sold 1,462 cars in 1999.")]
    ['The', 'U.S.', 'sold', '1,462', 'cars', 'in', '1999']
    """
    return tuple(Token(m.group(), m.start(), m.end()) for m in _WORD.finditer(text))


@lru_cache(maxsize=65536)
def fold(word: str) -> str:
    """Lower-case, without accents, dots and the possessive ending.

    Examples
    --------
    >>> fold("Téa"), fold("U.S."), fold("Morton's")
    ('tea', 'us', 'morton')
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    plain = plain.lower().replace("’", "'")
    plain = plain.removesuffix("'s").removesuffix("'")
    return plain if plain[:1].isdigit() else plain.replace(".", "").replace("'", "")


# Irregular forms that no suffix rule reaches: only frequent verbs and nouns of general English.
_IRREGULAR = {
    form: base[:-1] if base.endswith("e") and len(base) > 4 else base
    for base, forms in {
        "write": "wrote written writer writing",
        "sing": "sang sung singer",
        "speak": "spoke spoken speaker",
        "make": "made maker making",
        "build": "built builder",
        "bear": "born birth birthplace birthday",
        "die": "died death dead dies dying",
        "lead": "led leader",
        "win": "won winner winning",
        "lose": "lost loser loss",
        "begin": "began begun",
        "become": "became",
        "hold": "held holder",
        "teach": "taught teacher",
        "buy": "bought",
        "sell": "sold seller",
        "found": "founded founder foundation founding",
        "choose": "chose chosen",
        "know": "knew known",
        "fly": "flew flown flight flying flies",
        "drive": "drove driven driver",
        "draw": "drew drawn",
        "grow": "grew grown growth",
        "give": "gave given",
        "take": "took taken",
        "leave": "left",
        "meet": "met",
        "fight": "fought",
        "think": "thought",
        "run": "ran running runner",
        "locate": "location located",
        "reside": "residence resident residential",
        "marry": "married marriage",
        "man": "men",
        "woman": "women",
        "child": "children",
        "person": "people persons",
        "city": "cities",
        "country": "countries",
        "former": "formerly",
        "number": "numbers",
        "genus": "genera",
        "species": "species",
        "series": "series",
        "center": "centre centers centres",
        "other": "others",
    }.items()
    for form in (*forms.split(), base)
}
_VOWELS = frozenset("aeiouy")


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Reduce a word to a crude stem, so that ``directed``, ``director`` and ``directing`` agree.

    Examples
    --------
    >>> {stem(word) for word in ("directed", "director", "directing", "directs")}
    {'direct'}
    """
    w = fold(word)
    if w in _IRREGULAR:
        return _IRREGULAR[w]
    if len(w) <= 3 or not w.isalpha():
        return w
    if w.endswith("ies") and len(w) > 4:
        w = w[:-3] + "y"
    elif w.endswith(("sses", "shes", "ches", "xes")):
        w = w[:-2]
    elif w.endswith("s") and not w.endswith(("ss", "us", "is")):
        w = w[:-1]
    for suffix in ("ing", "ed", "or", "er", "ion"):
        root = w[: -len(suffix)]
        if w.endswith(suffix) and len(root) >= 4 and _VOWELS & set(root):
            if suffix == "ion" and root[-1] not in "ts":
                continue
            if root[-1] == root[-2] and root[-1] not in "lsz":
                root = root[:-1]
            w = root
            break
    if w.endswith("e") and len(w) > 4:
        w = w[:-1]
    if w.endswith("i") or (w.endswith("y") and len(w) > 3 and w[-2] not in _VOWELS):
        w = w[:-1] + "y"
    return w


@lru_cache(maxsize=8192)
def stems(text: str) -> tuple[str, ...]:
    """The stems of all words in order, stop words included."""
    return tuple(stem(token.text) for token in tokenize(text))


@lru_cache(maxsize=8192)
def content_stems(text: str) -> tuple[str, ...]:
    """The stems of all words that carry meaning, in order."""
    return tuple(stem(t.text) for t in tokenize(text) if fold(t.text) not in STOPWORDS)


def base_title(title: str) -> str:
    """A title without a trailing disambiguation.

    Examples
    --------
    >>> base_title("Winner (band)")
    'Winner'
    """
    short = re.sub(r"\s*\([^()]*\)\s*$", "", title).strip()
    return short or title.strip()


def estimate_tokens(text: str) -> int:
    """Estimate how many word pieces a subword tokeniser would make of a text.

    Words count one piece per started six characters, a number one piece per three digits, punctuation one
    each. It is an estimate, within about a fifth for English prose.
    """
    pieces = sum(1 for c in text if not c.isalnum() and not c.isspace())
    for token in tokenize(text):
        step = 3 if token.text[0].isdigit() else 6
        pieces += -(-len(token.text) // step)
    return pieces


# --- sentences -------------------------------------------------------------------------------------------

_ABBREVIATIONS = frozenset(
    """mr mrs ms dr prof sr jr st mt ft vs etc no vol fig al inc ltd co corp dept univ gen col lt sgt capt
    maj rev hon gov sen rep pres approx ca cf est jan feb mar apr jun jul aug sep sept oct nov dec bros
    op pp p ed eds trans ave blvd rd""".split()
)
# Abbreviations that are followed by a capital or a number inside the sentence.
_LEADS_ON = _ABBREVIATIONS - {"etc", "inc", "ltd", "co", "corp", "al", "bros"}
_BOUNDARY = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[^\Wa-z_])|(?<=[。！？])")


def split_sentences(text: str) -> list[str]:
    """Split one paragraph into sentences.

    Splits after ``. ! ?`` (and their full-width forms) when the next word begins with a capital or digit, but
    not after initials and common abbreviations.

    Examples
    --------
    >>> split_sentences("Dr. A. Smith came in 1999. He left.")
    ['Dr. A. Smith came in 1999.', 'He left.']
    """
    flat = re.sub(r"\s+", " ", text).strip()
    sentences: list[str] = []
    start = 0
    for match in _BOUNDARY.finditer(flat):
        before = flat[start : match.start()].rstrip("\"'”’)]")
        last = re.search(r"([^\s(\[\"“]+)\.$", before)
        if last:
            word = last.group(1).lower()
            # "J. Smith" and "U.S. Army": one letter, or letters with dots, mostly go on.
            if word in _LEADS_ON or re.fullmatch(r"[^\W\d_]|(?:[^\W\d_]\.)+[^\W\d_]", word):
                continue
        sentences.append(flat[start : match.end()].strip())
        start = match.end()
    rest = flat[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


# --- passages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """A titled passage, split into sentences. ``id`` is what evidence refers to."""

    id: str
    title: str
    sentences: tuple[str, ...]
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", " ".join(s.strip() for s in self.sentences))


_HEADING = re.compile(r"^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_FENCE = re.compile(r"^\s*(```|~~~)")


def _plain(line: str) -> str:
    """Drop inline Markdown; links and images keep their text.

    No pattern can run past the next delimiter, so a line of nothing but delimiters costs linear time.
    """
    line = re.sub(r"!?\[([^\[\]]*)\]\([^()\[\]]*\)", r"\1", line)
    line = re.sub(r"(\*\*|__)(.+?)\1", r"\2", line)
    line = re.sub(r"(?<![\w*])\*(?![\s*])([^*]+)(?<!\s)\*(?![\w*])", r"\1", line)
    return re.sub(r"`([^`]*)`", r"\1", line)


def passages_from_text(text: str, *, source: str, max_sentences: int = 12) -> list[Passage]:
    """Cut a plain-text or Markdown document into passages.

    Parameters
    ----------
    text : str
        The document. Markdown headings begin a passage and name it; without headings, paragraphs are
        gathered into passages of at most ``max_sentences`` sentences. Code fences are left out.
    source : str
        Name of the document: prefix of the passage ids, and the title where no heading gives one.
    max_sentences : int
        Upper bound of sentences a passage, at least 1.

    Returns
    -------
    list of Passage
        Ids are ``source`` for a single passage and ``source#1``, ``source#2``, … otherwise.
    """
    title = source
    parts: list[tuple[str, list[str]]] = []
    current: list[str] = []
    paragraph: list[str] = []
    fenced = False

    def end_paragraph() -> None:
        nonlocal current
        for sentence in split_sentences(" ".join(paragraph)) if paragraph else []:
            if len(current) >= max_sentences:
                parts.append((title, current))
                current = []
            current.append(sentence)
        paragraph.clear()

    def end_passage() -> None:
        nonlocal current
        end_paragraph()
        if current:
            parts.append((title, current))
        current = []

    for raw in text.splitlines():
        if _FENCE.match(raw):
            fenced = not fenced
            end_paragraph()
        elif fenced:
            continue
        elif heading := _HEADING.match(raw):
            end_passage()
            title = _plain(heading.group(2)) or source
        elif not raw.strip():
            end_paragraph()
        elif _LIST_ITEM.match(raw):
            end_paragraph()
            paragraph.append(_plain(_LIST_ITEM.sub("", raw)).strip())
        else:
            paragraph.append(_plain(re.sub(r"^\s*>+\s?", "", raw)).strip())
    end_passage()
    if len(parts) == 1:
        return [Passage(source, parts[0][0], tuple(parts[0][1]))]
    return [Passage(f"{source}#{i}", name, tuple(body)) for i, (name, body) in enumerate(parts, 1)]


def join_documents(passages: Iterable[Passage]) -> str:
    """All passages as one text, for counting."""
    return "\n".join(f"{p.title}\n{p.text}" for p in passages)
