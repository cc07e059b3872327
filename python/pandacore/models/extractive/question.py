"""What a question asks for, by rules of English wording alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pandacore.models.extractive.lexicon import HOLDER_NOUNS, PERSON_NOUNS, PLACE_NOUNS, TIME_NOUNS
from pandacore.models.extractive.spans import names_in, quotes_in
from pandacore.models.extractive.text import STOPWORDS, fold, stem, tokenize

__all__ = ["Question", "analyse"]

_AUX = frozenset(
    "is are was were do does did has have had can could will would should isn't aren't wasn't weren't".split()
)
_WH = frozenset("what which who whom whose when where how why".split())
# Verbs and prepositions that end the noun phrase after "what" or "which".
_PHRASE_ENDS = _AUX | frozenset(
    """of in on at by for from to with that which who whom whose where when and or than as about into during
    after before under over did be been being both he she it they the a an ,""".split()
)
_NAMING = frozenset("known as called named titled formerly previously now was is also by".split())
_RELATIONS = {
    "older": "old older oldest elder",
    "younger": "young younger youngest",
    "earlier": "earlier earliest first sooner",
    "later": "later latest last recently newer newest newly",
    "more": """more most larger largest bigger biggest greater greatest higher highest taller tallest longer
        longest heavier heaviest wider widest deeper deepest farther further faster fastest""",
    "less": "fewer fewest less least smaller smallest lower lowest shorter shortest lighter",
}
_RELATION_OF = {word: name for name, words in _RELATIONS.items() for word in words.split()}


@dataclass(frozen=True, slots=True)
class Question:
    """An analysed question.

    ``kind``: ``yesno``, ``choice`` (one of two named things), ``shared`` (an attribute of two named things)
    or ``span``. ``expects``: ``person place date year range number country thing``. ``nouns`` are the stems
    of the noun phrase after *what* or *which*, ``head`` its last. ``options`` are the two names of a choice
    or of a comparison. ``relation`` is the direction of a comparison, ``""`` for none. ``via`` are the stems
    of nouns that describe something unnamed on the way: "the *film* that …", "a *university* in …". ``cue``
    is the stem of the verb that the answer belongs to: "where was … *born*", "*located* in what city".
    ``acts``: the answer is what the verb acts on, "what does … *eat*".
    """

    text: str
    kind: str
    expects: str
    nouns: tuple[str, ...]
    head: str
    options: tuple[str, ...]
    relation: str
    names: tuple[str, ...]
    via: tuple[str, ...] = ()
    cue: str = ""
    acts: bool = False


def _clean_name(text: str) -> str:
    text = text.strip().strip("\"'“”?.,;: ")
    return re.sub(r"^(?:the|a|an)\s+(?=[A-Z\"“])", "", text, flags=re.IGNORECASE).strip()


def _name_before(text: str) -> str:
    """The name that a text ends with: quoted, or capitalised words joined by small ones."""
    text = text.rstrip(" ,")
    quotes = quotes_in(text)
    if quotes and quotes[-1].end >= len(text) - 1:
        return quotes[-1].text
    part = re.split(r"[,:;?]\s+", text)[-1]
    # Walk left from the end over capitalised words and joining words.
    tokens = tokenize(part)
    k = len(tokens)
    start = None
    last = k - 1
    for i in range(k - 1, -1, -1):
        word = tokens[i].text
        low = fold(word)
        if i == 0 and (low in _AUX or low in _WH):
            break
        if low in ("both", "between", "either"):
            break
        if word[0].isupper() or word[0].isdigit():
            last = i if start is None else last
            start = i
        elif not (low in STOPWORDS and low not in _AUX and k - i <= 6 and start is not None):
            if start is None and k - i <= 3 and low not in STOPWORDS:
                # "Manchester Terrier dog": a few lower-case words may close the name.
                continue
            break
    return _clean_name(part[tokens[start].start : tokens[last].end]) if start is not None else ""


def _name_after(text: str) -> str:
    """The name that a text begins with."""
    text = _clean_lead(text)
    quotes = quotes_in(text)
    if quotes and quotes[0].start <= 1:
        return quotes[0].text
    part = re.split(
        r"[,:;?]|\s+(?:is|are|was|were|both|have|has|had|do|does|did|which|who|that|located|situated"
        r"|based)\b",
        text,
    )[0]
    tokens = tokenize(part)
    if not tokens or not (tokens[0].text[0].isupper() or tokens[0].text[0].isdigit()):
        return ""
    end = 0
    for i, token in enumerate(tokens):
        if token.text[0].isupper() or token.text[0].isdigit():
            if i - end > 3:
                break
            end = i
    return _clean_name(part[: tokens[end].end])


def _clean_lead(text: str) -> str:
    return re.sub(r"^\s*(?:or|and)?\s*(?:the|a|an)\s+", "", text.strip(), flags=re.IGNORECASE)


def _two_names(text: str, joiner: str) -> tuple[str, str] | None:
    """The names left and right of the last ``joiner`` that has a name on both sides."""
    for m in reversed(list(re.finditer(rf",?\s+{joiner}\s+", text))):
        left, right = _name_before(text[: m.start()]), _name_after(text[m.end() :])
        if left and right and fold(left) != fold(right):
            return left, right
    return None


def _words(text: str) -> list[str]:
    """The folded words, with a comma where one stands: a noun phrase ends there."""
    words: list[str] = []
    end = 0
    for token in tokenize(text):
        if re.search(r"[,;:]", text[end : token.start]):
            words.append(",")
        words.append(fold(token.text))
        end = token.end
    return words


def _ask(words: list[str]) -> int:
    """Position of the word that asks, or -1."""
    for i, word in enumerate(words[:3]):
        # "In what year", "According…" is found below; "The man who" is a relative clause.
        if word in _WH and all(w in STOPWORDS for w in words[:i]):
            return i
    for i, word in enumerate(words):
        if (
            word == "how"
            and i + 1 < len(words)
            and words[i + 1] in ("many", "much", "long", "old", "tall", "far")
        ):
            return i
    for wanted in ("what", "which"):
        places = [i for i, word in enumerate(words) if word == wanted]
        if places:
            return places[-1] if wanted == "which" else places[0]
    places = [i for i, word in enumerate(words) if word in _WH]
    return places[-1] if places else -1


def _noun_phrase(words: list[str], start: int) -> list[str]:
    phrase: list[str] = []
    for word in words[start:]:
        # A participle after a noun begins a clause: "which city founded in 1838".
        if word in _PHRASE_ENDS or word in _WH or (phrase and len(word) > 4 and word.endswith("ed")):
            break
        phrase.append(word)
        if len(phrase) >= 8:
            break
    return phrase


@lru_cache(maxsize=1024)
def analyse(text: str) -> Question:
    """Say what a question asks for.

    Examples
    --------
    >>> q = analyse("Which band was formed earlier, Blue Lamp or The Quiet Coast?")
    >>> q.kind, q.relation, q.options
    ('choice', 'earlier', ('Blue Lamp', 'Quiet Coast'))
    >>> analyse("In what year was the founder of Acme born?").expects
    'year'
    """
    text = text.strip()
    words = _words(text)
    names = tuple(
        s.text
        for s in (*quotes_in(text), *names_in(text))
        if fold(s.text.split()[0]) not in _WH | _AUX or len(s.text.split()) > 1
    )
    relation = next((_RELATION_OF[w] for w in words if w in _RELATION_OF), "")
    asks = _ask(words)
    yesno = bool(words) and words[0] in _AUX
    either = _two_names(text, "or")
    both = _two_names(text, "and")

    if either and (yesno or asks >= 0):
        nouns = _asked_nouns(words, asks)
        return Question(text, "choice", "thing", nouns, nouns[-1] if nouns else "", either, relation, names)
    than = _two_names(text, "than") if yesno and relation else None
    if than:
        return Question(text, "yesno", "yesno", (), "", than, relation, names)
    if yesno and asks != 0:
        return Question(text, "yesno", "yesno", (), "", both or (), relation, names)

    nouns = _asked_nouns(words, asks)
    head = nouns[-1] if nouns else ""
    expects = _expects(words, asks, nouns)
    marks = {"both", "share", "shared", "common", "same", "between"}
    if both and (marks & set(words) or (asks == 0 and re.search(r"\b(?:are|were|do|did)\b", text))):
        return Question(text, "shared", expects, nouns, head, both, relation, names)
    via, cue = _described(text, nouns), _cue(text, asks)
    acts = bool(cue) and expects == "thing" and words[asks : asks + 2] in _ACTS
    return Question(text, "span", expects, nouns, head, (), relation, names, via, cue, acts)


_ACTS = [["what", aux] for aux in ("do", "does", "did", "can", "will")]


def _cue(text: str, asks: int) -> str:
    words = _words(text)
    if asks < 0:
        return ""
    if asks <= 1:
        # "Where was the designer of the bridge born?": an auxiliary follows, and the verb comes last.
        following = [w for w in words[asks + 1 : asks + 5] if w in _AUX]
        rest = words[asks + 1 :]
        tokens = tokenize(text)
        last = tokens[-1].text if tokens else ""
        plain = rest and rest[-1] not in STOPWORDS and last[:1].islower()
        return stem(rest[-1]) if following and plain else ""
    before = [w for w in words[max(0, asks - 3) : asks] if w not in STOPWORDS and w != ","]
    return stem(before[-1]) if before else ""


_LEADS = frozenset("the a an this another".split())
_RELATIVES = frozenset("who that which where whose in of by for with whom when".split())


def _described(text: str, nouns: tuple[str, ...]) -> tuple[str, ...]:
    """The head nouns of lower-case phrases with an article that a clause or preposition explains."""
    tokens = tokenize(text)
    found: list[str] = []
    for i, token in enumerate(tokens):
        if token.text.lower() not in _LEADS:
            continue
        j = i + 1
        while j < len(tokens) and j - i <= 6 and fold(tokens[j].text) not in STOPWORDS:
            j += 1
        if j == i + 1 or j >= len(tokens) or fold(tokens[j].text) not in _RELATIVES:
            continue
        head = tokens[j - 1].text
        if head[0].islower():
            found.append(stem(head))
    return tuple(dict.fromkeys(n for n in found if n not in nouns and n not in HOLDER_NOUNS))


def _asked_nouns(words: list[str], asks: int) -> tuple[str, ...]:
    if asks < 0 or words[asks] not in ("what", "which"):
        if asks >= 0 and words[asks] == "how":
            return tuple(stem(w) for w in _noun_phrase(words, asks + 2))
        return ()
    phrase = _noun_phrase(words, asks + 1)
    if not phrase and asks >= 2:
        # "competes in a cup known as what": the noun before the naming says what is asked for.
        back = asks - 1
        while back >= 0 and words[back] in _NAMING:
            back -= 1
        if back < asks - 1 and back >= 0 and words[back] not in STOPWORDS:
            first = back
            while first > 0 and words[first - 1] not in _PHRASE_ENDS and back - first < 2:
                first -= 1
            return tuple(stem(w) for w in words[first : back + 1])
    i = asks + 1 + len(phrase)
    if not phrase and i < len(words) and words[i] in _AUX:
        # "What is the name of the …", "What was the nationality of …"
        i += 1
        while i < len(words) and words[i] in ("the", "a", "an"):
            i += 1
        phrase = _noun_phrase(words, i)
        i += len(phrase)
    # "the name of the song", "what type of forum": the noun after "of" says more.
    holders = HOLDER_NOUNS | {stem(w) for w in ("type", "kind", "sort", "form", "genre")}
    if phrase and stem(phrase[-1]) in holders and i < len(words) and words[i] in ("of", "for"):
        i += 1
        while i < len(words) and words[i] in ("the", "a", "an"):
            i += 1
        inner = _noun_phrase(words, i)
        if inner:
            phrase = inner
    return tuple(stem(w) for w in phrase if w not in STOPWORDS)


def _expects(words: list[str], asks: int, nouns: tuple[str, ...]) -> str:
    word = words[asks] if asks >= 0 else ""
    if word in ("who", "whom", "whose"):
        return "person"
    if word == "where":
        return "place"
    if word == "when":
        return "date"
    if word == "how" and asks + 1 < len(words):
        following = words[asks + 1]
        return (
            "number"
            if following in ("many", "much", "long", "old", "tall", "far", "high", "big")
            else "thing"
        )
    if word not in ("what", "which") or not nouns:
        return "thing"
    head, stems_of = nouns[-1], set(nouns)
    if head in TIME_NOUNS or stems_of & {"year", "date", "timefram"}:
        plural = "years" in words or "timeframe" in words or "period" in words
        return "range" if plural else "year" if "year" in stems_of else "date"
    if "nationality" in stems_of:
        return "country"
    if stems_of & {
        stem(w) for w in ("population", "number", "percentage", "amount", "capacity", "height", "length")
    }:
        return "number"
    # The verb may have slipped in behind the noun: the last noun of a known kind decides.
    for noun in reversed(nouns):
        if noun in PLACE_NOUNS:
            return "place"
        if noun in PERSON_NOUNS:
            return "person"
    return "thing"
