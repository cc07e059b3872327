"""Dates, numbers, lifespans, kinds."""

from __future__ import annotations

import pytest

from pandacore.models.extractive import Passage
from pandacore.models.extractive.facts import birth, dates_in, death, nature, numbers_in
from pandacore.models.extractive.lexicon import countries_in
from pandacore.models.extractive.spans import names_in, quotes_in


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("on 2 May 1990", [("2 May 1990", (1990, 5, 2), "day")]),
        ("on May 2, 1990", [("May 2, 1990", (1990, 5, 2), "day")]),
        ("in October 1922", [("October 1922", (1922, 10, 0), "month")]),
        ("from 1986 to 2013", [("1986 to 2013", (1986, 0, 0), "range")]),
        ("the 1995\u201396 season", [("1995\u201396", (1995, 0, 0), "range")]),
        ("in the 1920s", [("1920s", (1920, 0, 0), "decade")]),
        ("in 44 BC", [("44 BC", (-44, 0, 0), "year")]),
        ("it may rain, 3,677 seats, room 12", []),
    ],
)
def test_dates(text: str, dates: list[tuple[str, tuple[int, int, int], str]]) -> None:
    assert [(d.text, d.key, d.kind) for d in dates_in(text)] == dates


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("it has 3,677 seats", [("3,677", 3677, "seats")]),
        ("more than 70 countries", [("more than 70", 70, "countries")]),
        ("about 2.5 million copies", [("about 2.5 million", 2.5e6, "copies")]),
        ("$43 million", [("$43 million", 43e6, "")]),
        ("twelve members in 1999", [("twelve", 12, "members")]),
        ("a 65% share", [("65%", 65, "share")]),
        ("in May 1990", []),
    ],
)
def test_numbers(text: str, numbers: list[tuple[str, float, str]]) -> None:
    assert [(n.text, n.value, n.unit) for n in numbers_in(text)] == numbers


@pytest.mark.parametrize(
    ("first", "born", "died"),
    [
        ("Ann Lee (born 2 May 1950) is a poet.", "2 May 1950", None),
        ("Ann Lee (2 May 1850 \u2013 3 June 1900) was a poet.", "2 May 1850", "3 June 1900"),
        ("Ann Lee (1850\u20131900) was a poet.", "1850", "1900"),
        ("Ann Lee is a poet, born in 1950.", "1950", None),
        ("The hall (opened 1901) is a hall.", None, None),
    ],
)
def test_lifespans(first: str, born: str | None, died: str | None) -> None:
    passage = Passage("x", "x", (first,))
    found = birth(passage), death(passage)
    assert [f.text if f else None for f in found] == [born, died]


def test_kind_of_a_subject_leaves_out_who_made_it() -> None:
    film = Passage("f", "Dusk", ("Dusk is a 1957 drama film directed by Ann Lee.",))
    assert nature(film) == "1957 drama film"
    assert nature(Passage("e", "Nothing", ("No verb here.",))) == ""


def test_names_join_small_words_and_skip_the_start_of_a_sentence() -> None:
    text = "The Bank of England hired Anne de Vries. In May she met J. F. Roe at Apollo 11."
    assert [s.text for s in names_in(text)] == ["Bank of England", "Anne de Vries", "J. F. Roe", "Apollo 11"]
    assert all(text[s.start : s.end] == s.text for s in names_in(text))


def test_quotes_are_found_without_their_marks() -> None:
    assert [q.text for q in quotes_in('She wrote "Low Water," and “Dusk”.')] == ["Low Water", "Dusk"]


def test_countries_by_noun_and_adjective() -> None:
    assert countries_in("A British writer in the US met the Spanish king") == (
        "United Kingdom",
        "United States",
        "Spain",
    )
    assert countries_in("give it to us in polish") == ()
