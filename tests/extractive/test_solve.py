"""Questions over small sets of passages, one law of reading each."""

from __future__ import annotations

import pytest

from pandacore.models.extractive import Library, Passage, select_passages, solve
from pandacore.models.extractive.hops import first_hop, read, second_hop


def library(*passages: tuple[str, str]) -> Library:
    return Library(
        [
            Passage(title, title, tuple(s.strip() + "." for s in text.rstrip(".").split(". ")))
            for title, text in passages
        ]
    )


WORLD = library(
    ("Red Mill", "Red Mill is a theatre in Oakham. It was designed by Ann Lee and seats 640 people"),
    ("Ann Lee", "Ann Lee (2 May 1850 - 3 June 1900) was a Danish architect. She was born in Ribe"),
    ("Bo Diaz", "Bo Diaz (born 9 July 1921) is a Danish painter. He lives in Madrid"),
    ("Blue Hall", "Blue Hall is a concert hall in Oakham. It was opened in 1933 and seats 900 people"),
    ("Oakham", "Oakham is a town on the river Wend. It has 8,100 inhabitants"),
    ("Dusk (film)", "Dusk is a 1957 film directed by Bo Diaz. It was shot in Lisbon"),
    ("Theatre", "Theatre is a form of art. Many people like theatres"),
)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Where was the architect who designed the Red Mill born?", "Ribe"),
        ("When did the designer of the Red Mill die?", "3 June 1900"),
        ("In what year was the director of Dusk born?", "1921"),
        ("How many inhabitants has the town where Blue Hall stands?", "8,100"),
        ("Who was born earlier, Ann Lee or Bo Diaz?", "Ann Lee"),
        ("Who is younger, Ann Lee or Bo Diaz?", "Bo Diaz"),
        ("Which seats more people, Red Mill or Blue Hall?", "Blue Hall"),
        ("Which seats fewer people, Red Mill or Blue Hall?", "Red Mill"),
        ("Which was designed by Ann Lee, Blue Hall or Red Mill?", "Red Mill"),
        ("Are Ann Lee and Bo Diaz of the same nationality?", "yes"),
        ("Are Ann Lee and Bo Diaz both painters?", "no"),
        ("Are Red Mill and Blue Hall both in Oakham?", "yes"),
        ("What nationality are Ann Lee and Bo Diaz?", "Danish"),
    ],
)
def test_answers(question: str, answer: str) -> None:
    found = solve(WORLD, question)
    assert found is not None
    assert found.text == answer


BEARS = library(
    (
        "Sun bear",
        "The sun bear is a bear native to the forests of Ansara. Though it belongs to the order Carnivora,"
        " the sun bear eats honey and small insects, which make up most of its diet. It was first described"
        " by the traveller Ida Roth in 1821",
    ),
    ("Ice bear", "The ice bear is a bear native to the Northern Isles. It feeds mainly on seals"),
    ("Bear", "A bear is a mammal. Bears live in Ansara and on the Northern Isles"),
)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What does the sun bear eat?", "honey and small insects"),
        ("What does the ice bear feed on?", "seals"),
        ("Who first described the sun bear?", "Ida Roth"),
        ("Where does the ice bear live?", "Northern Isles"),
    ],
)
def test_plain_question_is_answered_from_the_passage_on_its_subject(question: str, answer: str) -> None:
    found = solve(BEARS, question)
    assert found is not None
    assert found.text == answer
    assert {i for i, _ in found.evidence} == {0 if "sun" in question else 1}


def test_evidence_holds_the_bridge_and_the_answer() -> None:
    found = solve(WORLD, "Where was the architect who designed the Red Mill born?")
    assert found is not None
    assert {(WORLD.passages[i].title, s) for i, s in found.evidence} >= {("Red Mill", 1), ("Ann Lee", 1)}


def test_the_order_of_passages_does_not_change_the_answer() -> None:
    turned = Library(tuple(reversed(WORLD.passages)))
    question = "In what year was the director of Dusk born?"
    one, two = solve(WORLD, question), solve(turned, question)
    assert one is not None
    assert two is not None
    assert one.text == two.text


def test_same_question_same_answer() -> None:
    question = "When did the designer of the Red Mill die?"
    assert solve(WORLD, question) == solve(Library(WORLD.passages), question)


def test_nothing_in_common_gives_no_answer() -> None:
    assert solve(library(("Wend", "A river flows")), "Zxqv?") is None
    assert solve(Library([]), "Who is Ann Lee?") is None


def test_equal_names_are_told_apart_by_the_other_side() -> None:
    both = library(
        ("Ed Wood (film)", "Ed Wood is a 1994 film directed by Tim Burton. It stars Johnny Depp"),
        ("Ed Wood", "Ed Wood (October 10, 1924 - December 10, 1978) was an American director"),
        ("Al Ray", "Al Ray (born July 16, 1966) is a French director"),
    )
    question = "Are Al Ray and Ed Wood of the same nationality?"
    assert [both.passages[i].title for i in select_passages(both, question)] == ["Al Ray", "Ed Wood"]


def test_two_hops_in_steps_reach_the_same_passages() -> None:
    question = "Where was the architect who designed the Red Mill born?"
    started = [hit.index for hit in first_hop(WORLD, question, limit=2)]
    assert WORLD.passages[started[0]].title == "Red Mill"
    part = Library([WORLD.passages[i] for i in started])
    names = read(part, question).names
    assert "Ann Lee" in names
    reached = [
        WORLD.passages[h.index].title for h in second_hop(WORLD, question, started=started, names=names)
    ]
    assert reached[:2] == ["Red Mill", "Ann Lee"]


def test_a_named_thing_comes_first() -> None:
    hits = first_hop(WORLD, "Who was born earlier, Ann Lee or Bo Diaz?", about="Bo Diaz", limit=1)
    assert [WORLD.passages[h.index].title for h in hits] == ["Bo Diaz"]


def test_hub_passages_and_common_titles_mislead_no_link() -> None:
    # "Theatre" is named everywhere; the pair that shares the specific link wins.
    best = WORLD.pairs("Where was the architect of the theatre Red Mill born?")[0]
    assert {WORLD.passages[best.first].title, WORLD.passages[best.second].title} == {"Red Mill", "Ann Lee"}


@pytest.mark.parametrize("text", ["", " ", "\x00", "((((", "a" * 5000, "🎭 🎭", "Ann Lee\ud800"])
def test_odd_passages_and_questions_are_no_error(text: str) -> None:
    odd = Library([Passage("1", text, (text,)), Passage("2", "", ()), *WORLD.passages])
    solve(odd, text)
    solve(odd, f"Who is {text} or Bo Diaz?")
