"""Small closed word lists of general English: countries and their adjectives, near synonyms, kinds of answer.

The lists name no passage and no question; they hold what any reader of English knows.
"""

from __future__ import annotations

from functools import lru_cache

from pandacore.models.extractive.text import content_stems, fold, stem, tokenize

__all__ = [
    "COUNTRIES",
    "HOLDER_NOUNS",
    "NUMBER_WORDS",
    "PERSON_NOUNS",
    "PERSON_WORDS",
    "PLACE_NOUNS",
    "TIME_NOUNS",
    "countries_in",
    "equivalents",
]

# Country: other names, adjectives.
_COUNTRY_ROWS = """
United States: American, USA, U.S., US, United States of America, America
United Kingdom: British, UK, U.K., Britain, Great Britain, Briton
England: English
Scotland: Scottish, Scots
Wales: Welsh
Northern Ireland: Northern Irish
Ireland: Irish
France: French, Frenchman
Germany: German, West German, East German
Italy: Italian
Spain: Spanish, Spaniard
Portugal: Portuguese
Netherlands: Dutch, Holland
Belgium: Belgian
Switzerland: Swiss
Austria: Austrian
Poland: Polish
Czech Republic: Czech, Czechoslovakia, Czechoslovak
Slovakia: Slovak
Hungary: Hungarian
Romania: Romanian
Bulgaria: Bulgarian
Greece: Greek
Turkey: Turkish
Russia: Russian, Soviet, Soviet Union
Ukraine: Ukrainian
Norway: Norwegian
Sweden: Swedish
Denmark: Danish
Finland: Finnish
Iceland: Icelandic
Estonia: Estonian
Latvia: Latvian
Lithuania: Lithuanian
Serbia: Serbian
Croatia: Croatian
Slovenia: Slovenian
Bosnia: Bosnian
Albania: Albanian
Georgia: Georgian
Armenia: Armenian
Canada: Canadian
Mexico: Mexican
Brazil: Brazilian
Argentina: Argentine, Argentinian
Chile: Chilean
Peru: Peruvian
Colombia: Colombian
Venezuela: Venezuelan
Bolivia: Bolivian
Ecuador: Ecuadorian
Uruguay: Uruguayan
Paraguay: Paraguayan
Cuba: Cuban
Jamaica: Jamaican
Haiti: Haitian
Australia: Australian
New Zealand: New Zealander
Japan: Japanese
China: Chinese
Taiwan: Taiwanese
South Korea: South Korean, Korean, Korea
North Korea: North Korean
India: Indian
Pakistan: Pakistani
Bangladesh: Bangladeshi
Sri Lanka: Sri Lankan
Nepal: Nepalese, Nepali
Thailand: Thai
Vietnam: Vietnamese
Philippines: Filipino, Philippine
Indonesia: Indonesian
Malaysia: Malaysian
Singapore: Singaporean
Iran: Iranian, Persian
Iraq: Iraqi
Israel: Israeli
Lebanon: Lebanese
Syria: Syrian
Saudi Arabia: Saudi
Egypt: Egyptian
Morocco: Moroccan
Algeria: Algerian
Tunisia: Tunisian
Nigeria: Nigerian
Ghana: Ghanaian
Kenya: Kenyan
Ethiopia: Ethiopian
South Africa: South African
"""
COUNTRIES: dict[tuple[str, ...], str] = {}
for _row in _COUNTRY_ROWS.strip().splitlines():
    _name, _, _others = _row.partition(":")
    for _form in (_name, *_others.split(",")):
        COUNTRIES[tuple(fold(t.text) for t in tokenize(_form))] = _name
# "us" is also a pronoun: only the written abbreviation counts.
COUNTRIES.pop(("us",))


@lru_cache(maxsize=4096)
def countries_in(text: str) -> tuple[str, ...]:
    """The countries that a text names, as nouns or adjectives, in order, each once.

    Examples
    --------
    >>> countries_in("A British writer in the U.S.")
    ('United Kingdom', 'United States')
    """
    tokens = tokenize(text)
    found: dict[str, None] = {}
    i = 0
    while i < len(tokens):
        for size in (4, 3, 2, 1):
            part = tokens[i : i + size]
            if len(part) == size and part[0].text[0].isupper():
                name = COUNTRIES.get(tuple(fold(t.text) for t in part))
                if name is None and size == 1 and part[0].text in ("US", "U.S."):
                    name = "United States"
                if name is not None:
                    found[name] = None
                    i += size - 1
                    break
        i += 1
    return tuple(found)


_SYNONYMS = """
population inhabitant people populace
located situated lies sited based headquartered headquarters seat
founded established formed created started incorporated opened
film movie picture
author writer novelist wrote written
singer vocalist sings
musician band
actor actress starred starring portrayed played cast stars plays
directed director filmmaker
song single track
nationality citizen
football soccer
company corporation firm
contains includes features comprises
big large
capacity seats seating seat
brother sister sibling
father mother parent son daughter
invented inventor designed developed
hails comes originates
magazine periodical
job profession occupation
river stream flows
mountain peak summit
completed finished built
high height elevation tall altitude
long length
large area big size
married wife husband spouse
england english british britain
scotland scottish british
wales welsh british
"""
_GROUPS: dict[str, frozenset[str]] = {}
for _row in _SYNONYMS.strip().splitlines():
    _group = frozenset(stem(w) for w in _row.split())
    for _stem in _group:
        _GROUPS[_stem] = _GROUPS.get(_stem, frozenset()) | _group
for _words, _name in COUNTRIES.items():
    if len(_words) == 1:
        _noun = content_stems(_name)
        for _form in (stem(_words[0]), *(_noun if len(_noun) == 1 else ())):
            _GROUPS[_form] = _GROUPS.get(_form, frozenset()) | {stem(_words[0]), *_noun}


def equivalents(term: str) -> frozenset[str]:
    """The stems that mean nearly the same as a stem, itself left out."""
    return _GROUPS.get(term, frozenset()) - {term}


def _stemmed(words: str) -> frozenset[str]:
    return frozenset(stem(w) for w in words.split())


PERSON_WORDS = frozenset(
    word + plural
    for plural in ("", "s")
    for word in """person man woman actor actress singer songwriter musician composer author writer novelist
    poet playwright director filmmaker producer screenwriter politician president minister king queen emperor
    prince princess player footballer manager coach driver athlete artist painter sculptor photographer
    architect engineer scientist physicist chemist mathematician astronomer philosopher historian lawyer
    judge general officer soldier pilot explorer businessman businesswoman entrepreneur founder inventor
    journalist host presenter comedian dancer model rapper drummer guitarist bassist brother sister
    father mother son daughter wife husband character statesman senator governor mayor bishop pope saint
    wrestler boxer golfer swimmer surfer skater chef designer critic editor professor teacher student
    biologist botanist geologist physician surgeon nurse captain admiral commander leader member
    individual celebrity star""".split()
)
PERSON_NOUNS = frozenset(stem(w) for w in PERSON_WORDS)
PLACE_NOUNS = _stemmed(
    """city town village country county state province region district neighborhood neighbourhood area
    place island location continent borough municipality capital suburb territory prefecture parish
    street venue river lake mountain valley park"""
)
TIME_NOUNS = _stemmed("year date month day decade century time period timeframe season")
HOLDER_NOUNS = _stemmed("name title term nickname word alias")
NUMBER_WORDS = {
    word: value
    for value, word in enumerate(
        """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty""".split()
    )
} | {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
