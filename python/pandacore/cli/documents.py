"""Reads a user's own files into documents: ``.txt``, ``.md`` and ``.jsonl``.

Everything is bounded, and nothing is dropped silently: a file that cannot be read, or is not text, is an
error that names it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pandacore.errors import ConfigError, PayloadTooLarge
from pandacore.models.extractive.text import (
    STOPWORDS,
    base_title,
    passages_from_text,
    split_sentences,
    stem,
    tokenize,
)
from pandacore.models.types import Document

__all__ = ["SUFFIXES", "load_documents", "within_request"]

SUFFIXES: Final = (".txt", ".md", ".markdown", ".jsonl")
MAX_FILE: Final = 16 * 1024 * 1024  # bytes
MAX_TOTAL: Final = 64 * 1024 * 1024  # bytes
MAX_FILES: Final = 10_000
MAX_DOCUMENTS: Final = 200_000
MAX_SENTENCE: Final = 2_000  # characters; longer runs without a full stop are cut at a space

# What one task may carry: below the 4 MiB of a message, and what the extractive model searches at once.
REQUEST_BYTES: Final = 2 * 1024 * 1024
REQUEST_DOCUMENTS: Final = 4_000
_SEEDS: Final = 30  # best passages whose text leads on to others

_TEXT_KEYS: Final = ("text", "content", "contents", "passage", "body")
_TITLE_KEYS: Final = ("title", "name", "heading")
_ID_KEYS: Final = ("id", "_id", "docid", "doc_id")


def load_documents(
    path: str | Path,
    *,
    max_file: int = MAX_FILE,
    max_total: int = MAX_TOTAL,
    max_files: int = MAX_FILES,
) -> list[Document]:
    """Read a file, or all text files under a directory in name order.

    Parameters
    ----------
    path : path
        A ``.txt``, ``.md``, ``.markdown`` or ``.jsonl`` file, or a directory. Below a directory, hidden names
        and links to directories are left out. A line of JSONL is an object with ``text`` (or ``sentences``, a
        list), and optionally ``title`` and ``id``.
    max_file, max_total : int
        Largest file and largest sum, in bytes.
    max_files : int
        Most files below a directory.

    Raises
    ------
    ConfigError
        The path does not exist, holds no such files, or a file is unreadable, not text, or malformed.
    PayloadTooLarge
        A limit would be passed.
    """
    root = Path(path).expanduser()
    if root.is_dir():
        files = _files_under(root, max_files)
        names = [file.relative_to(root).as_posix() for file in files]
    elif root.exists():
        files, names = [root], [root.name]
        if root.suffix.lower() not in SUFFIXES:
            raise ConfigError(
                f"files of type {root.suffix or '(none)'} are not read",
                where=str(root),
                hint=f"give one of: {', '.join(SUFFIXES)}, or a directory of them",
            )
    else:
        raise ConfigError("there is no such file or directory", where=str(root), hint="check --docs")
    total = 0
    documents: list[Document] = []
    ids: set[str] = set()
    for file, name in zip(files, names, strict=True):
        text = _read(file, max_file)
        total += len(text.encode("utf-8", "surrogatepass"))
        if total > max_total:
            raise PayloadTooLarge(
                f"the documents together pass {max_total:,} bytes",
                size=total,
                limit=max_total,
                producer=str(root),
                where=str(root),
                hint="give fewer files",
            )
        found = _from_jsonl(text, file, name) if file.suffix.lower() == ".jsonl" else _from_text(text, name)
        for document in found:
            if len(documents) >= MAX_DOCUMENTS:
                raise PayloadTooLarge(
                    f"there are more than {MAX_DOCUMENTS:,} passages",
                    size=MAX_DOCUMENTS + 1,
                    limit=MAX_DOCUMENTS,
                    producer=str(root),
                    where=str(file),
                    hint="give fewer files",
                )
            if document.id in ids:
                raise ConfigError(
                    f"the document id {document.id!r} occurs twice", where=str(file), hint="make ids unique"
                )
            ids.add(document.id)
            documents.append(document)
    if not documents:
        raise ConfigError("holds no text", where=str(root), hint="give files with at least one sentence")
    return documents


def _files_under(root: Path, max_files: int) -> list[Path]:
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        raise ConfigError(
            f"cannot be read: {error.strerror or error}",
            where=str(error.filename),
            hint="fix its permissions",
        ) from None

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                found.append(Path(folder) / name)
                if len(found) > max_files:
                    raise PayloadTooLarge(
                        f"holds more than {max_files:,} files",
                        size=len(found),
                        limit=max_files,
                        producer=str(root),
                        where=str(root),
                        hint="give a smaller directory",
                    )
    if not found:
        raise ConfigError(
            f"holds no {', '.join(SUFFIXES)} files", where=str(root), hint="point --docs at your text files"
        )
    return sorted(found, key=lambda file: file.relative_to(root).as_posix())


def _read(file: Path, max_file: int) -> str:
    if not file.is_file():  # a pipe or a device would never end
        raise ConfigError("is not a regular file", where=str(file), hint="give a text file")
    try:
        with file.open("rb") as source:
            raw = source.read(max_file + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror or error}", where=str(file), hint="fix its permissions"
        ) from None
    if len(raw) > max_file:
        raise PayloadTooLarge(
            f"is larger than {max_file:,} bytes",
            size=max(len(raw), file.stat().st_size),
            limit=max_file,
            producer=str(file),
            where=str(file),
            hint="split the file",
        )
    encoding = "utf-16" if raw[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"is not {encoding.removesuffix('-sig').upper()} text (byte {error.start})",
            where=str(file),
            hint="save it as UTF-8, or move it away",
        ) from None
    if "\0" in text:
        raise ConfigError("is not text: it holds NUL bytes", where=str(file), hint="move it away")
    return text


def _from_text(text: str, name: str) -> Iterator[Document]:
    for passage in passages_from_text(text, source=name):
        # Without a heading the title is the file's name; its suffix would only be noise to a reader.
        title = Path(name).stem if passage.title == name else passage.title
        yield Document(passage.id, title, _bounded(passage.sentences))


def _from_jsonl(text: str, file: Path, name: str) -> Iterator[Document]:
    for index, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{file}: line {index}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            detail = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise ConfigError(
                f"is not JSON: {detail}", where=where, hint="write one object per line"
            ) from None
        if not isinstance(row, dict):
            raise ConfigError("is not a JSON object", where=where, hint='write {"title": ..., "text": ...}')
        title = next((row[key] for key in _TITLE_KEYS if isinstance(row.get(key), str)), Path(name).stem)
        identity = next((str(row[key]) for key in _ID_KEYS if isinstance(row.get(key), str | int)), "")
        sentences = row.get("sentences")
        if isinstance(sentences, list) and all(isinstance(s, str) for s in sentences):
            parts = tuple(s.strip() for s in sentences if s.strip())
        else:
            body = next((row[key] for key in _TEXT_KEYS if isinstance(row.get(key), str)), None)
            if body is None:
                raise ConfigError(
                    "has neither a text nor a list of sentences",
                    where=where,
                    hint='write {"title": ..., "text": ...}',
                )
            parts = tuple(split_sentences(body))
        if parts:
            yield Document(identity or f"{name}#{index}", title, _bounded(parts))


def _bounded(sentences: tuple[str, ...]) -> tuple[str, ...]:
    if all(len(sentence) <= MAX_SENTENCE for sentence in sentences):
        return sentences
    cut: list[str] = []
    for sentence in sentences:
        rest = sentence
        while len(rest) > MAX_SENTENCE:
            at = rest.rfind(" ", MAX_SENTENCE // 2, MAX_SENTENCE)
            at = at if at > 0 else MAX_SENTENCE
            cut.append(rest[:at].strip())
            rest = rest[at:]
        cut.append(rest.strip())
    return tuple(part for part in cut if part)


def within_request(
    documents: Sequence[Document],
    question: str,
    *,
    max_bytes: int = REQUEST_BYTES,
    max_documents: int = REQUEST_DOCUMENTS,
) -> list[Document]:
    """Return what one task can carry: all documents, or the ones that fit the question best, in their order.

    Ranks by the question's words, rare ones first, then takes in the passages that the best ones name: the
    second step of a question is often in a passage that shares no word with it.
    """
    sizes = [
        sum(len(part.encode("utf-8", "surrogatepass")) + 8 for part in (d.id, d.title, *d.sentences))
        for d in documents
    ]
    if sum(sizes) <= max_bytes and len(documents) <= max_documents:
        return list(documents)
    texts = [" ".join((d.title, *d.sentences)).lower() for d in documents]
    scores = [0.0] * len(documents)
    for word in _search_words(question):
        holding = [i for i, text in enumerate(texts) if word in text]
        weight = math.log(1 + len(documents) / (1 + len(holding)))
        for i in holding:
            scores[i] += weight * (2 if word in documents[i].title.lower() else 1)
    ranked = sorted(range(len(documents)), key=lambda i: (-scores[i], i))
    seeds = ranked[:_SEEDS]
    leads = "\n".join(texts[i] for i in seeds)
    named = [
        i for i in ranked if len(documents[i].title) > 3 and base_title(documents[i].title).lower() in leads
    ]
    chosen: set[int] = set()
    left = max_bytes
    for i in dict.fromkeys([*seeds, *named, *ranked]):
        if len(chosen) >= max_documents:
            break
        if sizes[i] <= left:
            chosen.add(i)
            left -= sizes[i]
    return [documents[i] for i in sorted(chosen)]


def _search_words(question: str) -> list[str]:
    """The words of a question, cut to the part that their forms share: ``founded`` gives ``found``."""
    words = []
    for token in tokenize(question):
        word = token.text.lower()
        if word not in STOPWORDS and len(word) > 2:
            root = stem(word)
            while not word.startswith(root):
                root = root[:-1]
            words.append(root if len(root) > 2 else word)
    return list(dict.fromkeys(words))
