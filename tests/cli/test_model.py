"""``pandacore model``: the cache of weights, through the command line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pandacore.cli.output import Exit

Command = Callable[..., Any]  # the fixture of conftest.py; it returns a `Done`


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PANDACORE_CACHE", raising=False)
    monkeypatch.setenv("PANDACORE__PATHS__CACHE_DIR", str(tmp_path / "kept"))
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF" + bytes(1000))
    return file


def test_own_file_is_kept_listed_and_removed(pandacore: Command, weights: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    got = pandacore("model", "get", str(weights), "--sha256", digest, "--json")
    assert got.code == Exit.OK
    (model,) = got.objects
    assert (model["name"], model["sha256"]) == ("own", digest)
    assert Path(model["path"]).is_relative_to(tmp_path / "kept")
    listed = {item["name"]: item["installed"] for item in pandacore("model", "list", "--json").objects}
    assert listed["own"] is True
    assert False in listed.values()
    assert "own" in pandacore("model", "list").out
    assert pandacore("model", "rm", "own").code == Exit.OK
    assert pandacore("model", "rm", "own").code == Exit.FAILED


def test_wrong_digest_keeps_nothing(pandacore: Command, weights: Path) -> None:
    done = pandacore("model", "get", str(weights), "--sha256", "0" * 64)
    assert done.code == Exit.USAGE
    assert "nothing is kept" in done.err
    assert "own" not in pandacore("model", "list").out


@pytest.mark.usefixtures("weights")
def test_unknown_name_is_refused_with_a_suggestion(pandacore: Command) -> None:
    done = pandacore("model", "get", "smollm2-135")
    assert done.code == Exit.FAILED
    assert "smollm2-135m" in done.err


@pytest.mark.usefixtures("weights")
def test_pinned_model_takes_no_other_digest(pandacore: Command) -> None:
    assert pandacore("model", "get", "smollm2-135m", "--sha256", "0" * 64).code == Exit.USAGE


@pytest.mark.usefixtures("weights")
def test_url_needs_a_digest(pandacore: Command) -> None:
    done = pandacore("model", "get", "https://127.0.0.1:9/x.gguf")
    assert done.code == Exit.USAGE
    assert "sha256" in done.err
