"""Words, sentences and passages."""

from __future__ import annotations

import pytest

from pandacore.models.extractive.text import (
    base_title,
    content_stems,
    estimate_tokens,
    fold,
    passages_from_text,
    split_sentences,
    stem,
    tokenize,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It sold 1,462 cars in 1999.", ["It", "sold", "1,462", "cars", "in", "1999"]),
        ("the U.S. Army", ["the", "U.S.", "Army"]),
        ("Guns N' Roses", ["Guns", "N", "Roses"]),
        ("O'Neill's 3.5 km", ["O'Neill's", "3.5", "km"]),
        ("東京 is big", ["東", "京", "is", "big"]),
        ("naïve café", ["naïve", "café"]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert [token.text for token in tokenize(text)] == words


def test_offsets_point_at_the_words() -> None:
    text = "Téa Leoni won — twice."
    assert all(text[t.start : t.end] == t.text for t in tokenize(text))


@pytest.mark.parametrize(
    ("forms"),
    [
        ("direct", "directed", "director", "directing", "directs"),
        ("write", "wrote", "written", "writer"),
        ("city", "cities"),
        ("found", "founded", "founder"),
        ("locate", "located", "location"),
        ("born", "birth"),
    ],
)
def test_forms_of_a_word_share_a_stem(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1


def test_different_words_keep_different_stems() -> None:
    words = ["river", "rival", "former", "form", "bridge", "bride", "number", "numb"]
    assert len({stem(word) for word in words}) == len(words)


def test_folding_drops_accents_dots_and_the_possessive() -> None:
    assert [fold(w) for w in ("Téa", "U.S.", "Morton\u2019s", "1,000")] == ["tea", "us", "morton", "1,000"]


def test_stop_words_carry_no_meaning() -> None:
    assert content_stems("What is the name of it?") == ("name",)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. A. Smith came. He left.", ["Dr. A. Smith came.", "He left."]),
        ("He met J. Doe in St. Louis. It rained!", ["He met J. Doe in St. Louis.", "It rained!"]),
        ("The U.S. Army came. Then 3 left.", ["The U.S. Army came.", "Then 3 left."]),
        ("It cost 3.5 million. Why? Nobody knows.", ["It cost 3.5 million.", "Why?", "Nobody knows."]),
        ('"Go." She went.', ['"Go."', "She went."]),
        ("one line\nof the same sentence. Next", ["one line of the same sentence.", "Next"]),
        ("", []),
        ("   \n ", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_splitting_loses_no_word() -> None:
    text = "Mr. X said: 'No.' Then he left (at 5 p.m.) for Mt. Ada. Prof. Y stayed… Who knows?"
    joined = " ".join(split_sentences(text))
    assert [t.text for t in tokenize(joined)] == [t.text for t in tokenize(text)]


def test_headings_name_passages_and_code_is_left_out() -> None:
    text = "# Alpha\nHello **you**. See [the map](x.png).\n```\nsecret = 1\n```\n## Beta\n- one item\n- two"
    first, second = passages_from_text(text, source="notes.md")
    assert (first.id, first.title, first.sentences) == (
        "notes.md#1",
        "Alpha",
        ("Hello you.", "See the map."),
    )
    assert (second.title, second.sentences) == ("Beta", ("one item", "two"))


def test_text_without_headings_is_cut_at_the_bound() -> None:
    text = " ".join(f"Sentence {i} is here." for i in range(30))
    passages = passages_from_text(text, source="a.txt", max_sentences=12)
    assert [len(p.sentences) for p in passages] == [12, 12, 6]
    assert {p.title for p in passages} == {"a.txt"}


def test_empty_text_gives_no_passage() -> None:
    assert passages_from_text("\n\n# Only a heading\n", source="x") == []


def test_base_title_drops_only_the_trailing_note() -> None:
    assert base_title("Winner (band)") == "Winner"
    assert base_title("(What's the Story) Morning Glory?") == "(What's the Story) Morning Glory?"
    assert base_title("(band)") == "(band)"


def test_token_estimate_grows_with_the_text() -> None:
    assert estimate_tokens("") == 0
    assert 8 <= estimate_tokens("The quick brown fox jumps over the lazy dog.") <= 13
    assert estimate_tokens("a b") < estimate_tokens("a b c")
