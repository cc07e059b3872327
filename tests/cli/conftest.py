"""Runs the command in this process: fast, and with the same entry point as the console script."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pandacore.cli.main import main


@dataclass
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines of stdout as JSON objects; fails if one is not."""
        found = [json.loads(line) for line in self.out.splitlines()]
        assert all(isinstance(item, dict) for item in found)
        return found


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of whoever runs the tests reach a command, and none of a command stay behind."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("PANDACORE__"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield
    # A command hands settings from files on to the model server that it starts, through the environment.
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.fixture
def pandacore(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Call ``pandacore(*arguments)`` and get its exit code and output."""

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in err or "--debug" in arguments
        code = caught.value.code
        assert isinstance(code, int)
        return Done(int(code), out, err)

    return call
