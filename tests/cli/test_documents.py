"""A user's own files: what is read, how it is cut, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from pandacore.cli.documents import load_documents, within_request
from pandacore.errors import ConfigError, PandacoreError, PayloadTooLarge
from pandacore.models.types import Document


def test_markdown_headings_become_titles(tmp_path: Path) -> None:
    file = tmp_path / "world.md"
    file.write_text("# Pandas\n\nThey eat *bamboo*. They sleep.\n\n## Foxes\n\nThey [run](http://x).\n")
    first, second = load_documents(file)
    assert (first.title, first.sentences) == ("Pandas", ("They eat bamboo.", "They sleep."))
    assert (second.title, second.sentences) == ("Foxes", ("They run.",))
    assert first.id != second.id


def test_text_file_gets_its_name_as_title(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("One thing. Another thing.")
    (document,) = load_documents(tmp_path)
    assert document == Document("notes.txt", "notes", ("One thing.", "Another thing."))


def test_directory_is_read_in_name_order_without_hidden_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.markdown", ".hidden.txt", ".git/d.txt", "e.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("Text.")
    assert [document.id for document in load_documents(tmp_path)] == ["a.md", "b.txt", "sub/c.markdown"]


def test_jsonl_takes_text_or_sentences(tmp_path: Path) -> None:
    rows = [
        {"title": "A", "text": "One. Two."},
        {"id": 7, "name": "B", "sentences": ["Three.", " ", "Four."]},
        {"contents": "Five."},
        {"text": "  "},
    ]
    file = tmp_path / "d.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert load_documents(file) == [
        Document("d.jsonl#1", "A", ("One.", "Two.")),
        Document("7", "B", ("Three.", "Four.")),
        Document("d.jsonl#3", "d", ("Five.",)),
    ]


def test_line_separators_inside_json_strings_do_not_cut_the_line(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text(json.dumps({"text": "One\u2028two."}, ensure_ascii=False), encoding="utf-8")
    (document,) = load_documents(file)
    assert "two." in document.sentences[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: is not JSON"),
        ("[" * 100_000, "line 2: is not JSON"),
        ("[1]", "line 2: is not a JSON object"),
        ('{"title": "x"}', "line 2: has neither a text"),
        ('{"text": 3}', "line 2: has neither a text"),
        ('{"sentences": [1]}', "line 2: has neither a text"),
        ('{"id": "d.jsonl#1", "text": "Again."}', "occurs twice"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"text": "Fine."}\n' + line + "\n")
    with pytest.raises(ConfigError, match=words):
        load_documents(file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"caf\xe9 latin-1", "is not UTF-8 text"),
        (b"a\0b", "NUL bytes"),
        (b"\x89PNG\r\n\x1a\n\xff\xd8", "is not UTF-8 text"),
        (b"\xff\xfea", "is not UTF-16 text"),
    ],
)
def test_what_is_not_text_is_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        load_documents(tmp_path)
    assert caught.value.where == str(tmp_path / "bad.txt")
    assert caught.value.hint


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_understood(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_text("Élodie works.", encoding=encoding)
    assert load_documents(tmp_path)[0].sentences == ("Élodie works.",)


def test_empty_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_documents(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"holds no \.txt"):
        load_documents(tmp_path)
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(ConfigError, match="holds no text"):
        load_documents(tmp_path)
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(ConfigError, match="files of type"):
        load_documents(tmp_path / "a.pdf")


def test_limits_are_kept(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("Some words. " * 10)
    with pytest.raises(PayloadTooLarge, match="larger than 100 bytes") as caught:
        load_documents(tmp_path, max_file=100)
    assert caught.value.size == 120
    with pytest.raises(PayloadTooLarge, match="together"):
        load_documents(tmp_path, max_total=300)
    with pytest.raises(PayloadTooLarge, match="more than 2 files"):
        load_documents(tmp_path, max_files=2)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
def test_what_never_ends_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_documents(tmp_path / "pipe.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "pipe.txt").unlink()
    with pytest.raises(ConfigError, match="not a regular file"):
        load_documents(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_file_without_permission_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    file.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_documents(file)


def test_text_without_full_stops_is_cut_at_spaces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 2_000)
    (document,) = load_documents(tmp_path)
    assert all(len(sentence) <= 2_000 for sentence in document.sentences)
    assert " ".join(document.sentences) == ("word " * 2_000).strip()


@pytest.mark.parametrize("unit", ["*a ", "[", "__a ", "a.b.", "`", "x)))) ", "![a](b", "((", "# ", "> "])
def test_hostile_line_does_not_stall_the_reader(tmp_path: Path, unit: str) -> None:
    (tmp_path / "a.md").write_text((unit * 200_000)[:200_000])
    start = time.process_time()
    with contextlib.suppress(PandacoreError):
        load_documents(tmp_path)
    # Some hundredths of a second are usual, backtracking took minutes; CPU time does not feel the load.
    assert time.process_time() - start < 30


# -- what one task can carry


def _world(count: int) -> list[Document]:
    filler = [
        Document(f"f{i}", f"Filler {i}", tuple(f"Nothing of note in part {j} of {i}." for j in range(20)))
        for i in range(count)
    ]
    castellan = Document("m", "Mira Castellan", ("Mira Castellan taught at the Harbour Academy.",))
    academy = Document("h", "Harbour Academy", ("It opened in 1788.",))
    return [*filler[: count // 2], academy, *filler[count // 2 :], castellan]


def test_what_fits_is_left_alone() -> None:
    documents = _world(20)
    assert within_request(documents, "Anything?") == documents


def test_large_set_keeps_what_the_question_names_and_what_that_leads_to() -> None:
    documents = _world(3_000)
    chosen = within_request(
        documents, "When did the school open where Mira Castellan taught?", max_bytes=50_000
    )
    ids = [document.id for document in chosen]
    assert {"m", "h"} <= set(ids)
    assert ids == [document.id for document in documents if document.id in set(ids)]
    assert len(chosen) < 200


def test_number_of_documents_is_bounded_too() -> None:
    chosen = within_request(_world(3_000), "Where did Mira Castellan teach?", max_documents=50)
    assert len(chosen) == 50
    assert "m" in {document.id for document in chosen}
