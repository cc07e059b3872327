"""The official scores, by worked values."""

from __future__ import annotations

import pytest

from pandacore.evals.scoring import (
    Score,
    answer_score,
    exact_match,
    joint_score,
    normalize_answer,
    support_score,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("well-known", "wellknown"),
        ("U.S.", "us"),
        ("an apple a day", "apple day"),
        ("Theatre and a cat", "theatre and cat"),
        ("1,462", "1462"),
        ("\u201cDusk\u201d", "\u201cdusk\u201d"),  # only ASCII punctuation is deleted
        ("a", ""),
        ("", ""),
    ],
)
def test_normalising(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "gold", "em", "f1"),
    [
        ("the Chief of Protocol", "Chief of Protocol", 1.0, 1.0),
        ("Chief", "Chief of Protocol", 0.0, 0.5),
        ("Chief of Protocol of the US", "Chief of Protocol", 0.0, 0.75),
        ("Paris", "Rome", 0.0, 0.0),
        ("of of of", "of Rome", 0.0, 0.4),  # a bag: "of" counts once
        ("yes", "yes", 1.0, 1.0),
        ("Yes.", "yes", 1.0, 1.0),
        ("yes", "no", 0.0, 0.0),
        ("yes it is", "yes", 0.0, 0.0),
        ("no", "no man's land", 0.0, 0.0),
        ("noanswer", "answer", 0.0, 0.0),
        ("no one", "no way", 0.0, 0.5),  # neither is exactly a special word
        ("", "Rome", 0.0, 0.0),
        ("", "the", 1.0, 0.0),  # both normalise to nothing: equal, with nothing in common
    ],
)
def test_answers(prediction: str, gold: str, em: float, f1: float) -> None:
    found = answer_score(prediction, gold)
    assert found.em == em
    assert found.f1 == pytest.approx(f1)
    assert exact_match(prediction, gold) == em


def test_precision_and_recall() -> None:
    found = answer_score("in New York City", "New York")
    assert (found.precision, found.recall) == (0.5, 1.0)
    assert found.f1 == pytest.approx(2 / 3)


A, B, C = ("A", 0), ("B", 1), ("C", 2)


@pytest.mark.parametrize(
    ("predicted", "gold", "expected"),
    [
        ([A, B], [A, B], Score(1.0, 1.0, 1.0, 1.0)),
        ([A, A, B], [B, A], Score(1.0, 1.0, 1.0, 1.0)),
        ([A, C], [A, B], Score(0.0, 0.5, 0.5, 0.5)),
        ([A], [A, B], Score(0.0, 1.0, 0.5, 2 / 3)),
        ([("A", 1)], [A], Score(0.0, 0.0, 0.0, 0.0)),
        ([], [A], Score(0.0, 0.0, 0.0, 0.0)),
        ([], [], Score(1.0, 0.0, 0.0, 0.0)),
    ],
)
def test_supporting_facts(
    predicted: list[tuple[str, int]], gold: list[tuple[str, int]], expected: Score
) -> None:
    assert support_score(predicted, gold) == expected


def test_joint_multiplies_precision_and_recall() -> None:
    joint = joint_score(Score(0.0, 0.5, 1.0, 2 / 3), Score(1.0, 1.0, 1.0, 1.0))
    assert (joint.em, joint.precision, joint.recall) == (0.0, 0.5, 1.0)
    assert joint.f1 == pytest.approx(2 / 3)
    assert joint_score(Score(1.0, 1.0, 1.0, 1.0), Score(0.0, 0.5, 0.5, 0.5)) == Score(0.0, 0.5, 0.5, 0.5)
    assert joint_score(Score(0, 0, 0, 0), Score(1, 1, 1, 1)).f1 == 0.0
