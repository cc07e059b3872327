"""Citations of a model, corrected and completed."""

from __future__ import annotations

import pytest

from pandacore.models.extractive import Library, Passage
from pandacore.models.extractive.cite import support

LIBRARY = Library(
    [
        Passage(
            "o",
            "Oakham",
            ("Oakham is a town on the river Wend.", "It has a theatre.", "It has 8,100 inhabitants."),
        ),
        Passage("m", "Red Mill", ("Red Mill is a theatre in Oakham.", "It was designed by Ann Lee.")),
        Passage(
            "a", "Ann Lee", ("Ann Lee was a Danish architect.", "She was born in Ribe.", "She died old.")
        ),
        Passage("b", "Bo Diaz", ("Bo Diaz (born 9 July 1921) is a Danish painter.", "He lives in Ribe.")),
    ]
)
QUESTION = "Where was the architect who designed the Red Mill born?"


@pytest.mark.parametrize(
    "cited",
    [
        [],
        [(2, 1)],  # one of two passages
        [(2, 0), (1, 0)],  # neighbours of the right sentences
        [(0, 2)],  # a passage that has nothing to do with it
    ],
)
def test_what_leads_to_the_answer_is_found_whatever_was_cited(cited: list[tuple[int, int]]) -> None:
    found = support(LIBRARY, QUESTION, "Ribe", cited)
    assert {(1, 1), (2, 1)} <= set(found)
    assert {i for i, _ in found} == {1, 2}


def test_a_cited_sentence_that_states_the_answer_stays() -> None:
    assert (0, 2) in support(LIBRARY, "How many people live where the Red Mill is?", "8,100", [(0, 2)])


def test_an_answer_that_no_passage_states_is_not_given_a_proof() -> None:
    assert support(LIBRARY, QUESTION, "Atlantis", [(2, 0), (1, 1), (2, 0)]) == ((1, 1), (2, 0))
    assert support(LIBRARY, QUESTION, "Atlantis", []) == ()
    assert support(LIBRARY, QUESTION, "", []) == ()


def test_a_comparison_rests_on_a_sentence_of_each_side() -> None:
    found = support(LIBRARY, "Are Ann Lee and Bo Diaz both Danish?", "no", [(3, 1)])
    assert found == ((2, 0), (3, 0))


def test_nothing_in_common_keeps_what_was_cited() -> None:
    assert support(LIBRARY, "Zxqv?", "yes", [(0, 1)]) == ((0, 1),)
