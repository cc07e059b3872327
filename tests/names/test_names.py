"""Names of agents and capabilities, and how a model's spelling is resolved."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pandacore.errors import InvalidName, UnknownCapability
from pandacore.names import MAX_NAME, capability_name, display_name, resolve
from pandacore.registry import Registry

KNOWN = ["Senior_Python_Engineer", "search.web", "reason.math", "reason.maths.hard", "translate text"]


@pytest.mark.parametrize(
    "name",
    ["助手", "Élodie", unicodedata.normalize("NFD", "Élodie"), "👩‍👩‍👧", "x", "a b", "عميل", "x" * MAX_NAME],
)
def test_fc_31_names_of_any_script_are_kept(name: str) -> None:
    assert display_name(name) == unicodedata.normalize("NFC", name)


def test_fc_31_composed_and_decomposed_spellings_are_one_name() -> None:
    assert display_name("Élodie") == display_name("E\u0301lodie")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("x" * 10_000, "10000 characters"),
        ("admin\u202egnp", "U+202E"),
        ("a/b", "'/'"),
        ("../x", "'/'"),
        ("a\x00b", "x00"),
        ("<img onerror>", "'<'"),
        (" a", "white space"),
        ("a\nb", "n'"),
    ],
)
def test_fc_31_refused_names_state_the_rule_and_a_hint(name: str, named: str) -> None:
    with pytest.raises(InvalidName, match="agent name") as caught:
        display_name(name)
    assert named in caught.value.message
    assert caught.value.hint


def test_a_capability_follows_the_same_rule() -> None:
    assert capability_name("search.web") == "search.web"
    assert capability_name("summarise text") == "summarise text"
    for bad in ("", "a..b", ".a", "a .b", "a#b", "é" * 65):
        with pytest.raises(InvalidName, match="capability"):
            capability_name(bad)


@given(st.text(max_size=12))
@example("0\N{NO-BREAK SPACE}0")
def test_what_passes_the_rule_is_taken_by_the_registry(name: str) -> None:
    try:
        checked = capability_name(name)
    except InvalidName:
        return
    registry = Registry()
    registry.announce(b"a" * 32, [checked])
    assert registry.assemble([checked]).complete


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("search.web", "search.web"),
        ('"search.web"', "search.web"),
        ("search.web\n", "search.web"),
        ("SEARCH.Web", "search.web"),
        ("Senior\\_Python\\_Engineer", "Senior_Python_Engineer"),
        ("**search.web**", "search.web"),
        ("\x1b[31msearch.web\x1b[0m", "search.web"),
        ("`search.web`.", "search.web"),
        ("senior python engineer", "Senior_Python_Engineer"),
        ("translate-texts", "translate text"),
        ("“reason.math”", "reason.math"),
    ],
)
def test_fc_32_a_mangled_name_is_resolved_when_it_is_unique(written: str, meant: str) -> None:
    assert resolve(written, KNOWN) == meant


@pytest.mark.parametrize("written", ["search.web reason.math", "reason", "engineer", "", "   ", "'"])
def test_fc_32_anything_else_is_refused_with_the_list(written: str) -> None:
    with pytest.raises(UnknownCapability) as caught:
        resolve(written, KNOWN)
    assert "search.web" in caught.value.message


def test_fc_32_a_spelling_that_fits_two_names_is_never_guessed() -> None:
    with pytest.raises(UnknownCapability, match="fits A-b, a_b"):
        resolve("a b", ["a_b", "A-b"])
    assert resolve("a_b", ["a_b", "A-b"]) == "a_b"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownCapability) as caught:
        resolve("serch.web", KNOWN)
    assert caught.value.hint == "did you mean 'search.web'?"


@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), max_size=6), st.text(max_size=12)
)
def test_resolve_answers_a_known_name_or_refuses(known: list[str], written: str) -> None:
    try:
        assert resolve(written, known) in known
    except UnknownCapability:
        assert written not in known
