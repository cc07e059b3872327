"""What a question asks for."""

from __future__ import annotations

import pytest

from pandacore.models.extractive import analyse


@pytest.mark.parametrize(
    ("question", "kind", "options"),
    [
        ("Who is older, Ann Lee or Bo Diaz?", "choice", ("Ann Lee", "Bo Diaz")),
        ("Which lake is deeper: Lake Ansel or the Blue Lake?", "choice", ("Lake Ansel", "Blue Lake")),
        ('Was "Red Dust" or "Blue Rain" released first?', "choice", ("Red Dust", "Blue Rain")),
        ("Which band, Old Tin or Far Cry, has more members?", "choice", ("Old Tin", "Far Cry")),
        ("Are Ann Lee and Bo Diaz both painters?", "yesno", ("Ann Lee", "Bo Diaz")),
        ("Are both Mount Ada and Mount Bo located in Peru?", "yesno", ("Mount Ada", "Mount Bo")),
        ("Is Mount Ada higher than Mount Bo?", "yesno", ("Mount Ada", "Mount Bo")),
        ("Was the bridge opened in 1901?", "yesno", ()),
        ("What nationality were Ann Lee and Bo Diaz?", "shared", ("Ann Lee", "Bo Diaz")),
        ("What do Ann Lee and Bo Diaz have in common?", "shared", ("Ann Lee", "Bo Diaz")),
        ("Who wrote the book that Ann Lee filmed?", "span", ()),
        ("Where do the Tin Herons come from?", "span", ()),
    ],
)
def test_kind_and_options(question: str, kind: str, options: tuple[str, ...]) -> None:
    asked = analyse(question)
    assert (asked.kind, asked.options) == (kind, options)


@pytest.mark.parametrize(
    ("question", "expects"),
    [
        ("Who designed the bridge?", "person"),
        ("The bridge was designed by whom?", "person"),
        ("Which singer opened the festival?", "person"),
        ("Where was Ann Lee born?", "place"),
        ("In which city is the museum?", "place"),
        ("When did the war end?", "date"),
        ("In what year was it founded?", "year"),
        ("The club was founded in what year?", "year"),
        ("During what years was she president?", "range"),
        ("How many people live there?", "number"),
        ("What is the population of Fennick?", "number"),
        ("What nationality is the author of Dusk?", "country"),
        ("What is the name of the fight song of the club?", "thing"),
        ("What colour is it?", "thing"),
    ],
)
def test_expected_answer(question: str, expects: str) -> None:
    assert analyse(question).expects == expects


@pytest.mark.parametrize(
    ("question", "relation"),
    [
        ("Who is older, Ann Lee or Bo Diaz?", "older"),
        ("Which opened later, Red Hall or Blue Hall?", "later"),
        ("Which river is longer, the Silt or the Ember?", "more"),
        ("Which town has fewer people, Ada or Boville?", "less"),
        ("Which film is about a war, Red Dust or Blue Rain?", ""),
    ],
)
def test_direction_of_a_comparison(question: str, relation: str) -> None:
    assert analyse(question).relation == relation


def test_described_things_on_the_way_are_found() -> None:
    asked = analyse("Where is the university that is led by the writer of Dusk?")
    assert asked.via == ("university", "writ")


@pytest.mark.parametrize("text", ["", "?", "   ", "who", "or", "A or B", "and " * 300, "\x00\ud800"])
def test_odd_input_is_no_error(text: str) -> None:
    assert analyse(text).kind in {"span", "yesno", "choice", "shared"}
