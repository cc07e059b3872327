"""Settings: precedence, origins, refusals, secrets."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pandacore.config import ModelSettings, Secret, Settings, load, redact, user_cache_dir, user_config_dir
from pandacore.errors import ConfigError


class Places:
    """A directory with every source of settings, none of them set."""

    def __init__(self, root: Path) -> None:
        self.here = root / "project"
        self.user = root / "user"
        self.here.mkdir()
        self.user.mkdir()
        self.environ: dict[str, str] = {"HOME": str(root)}
        self.arguments: dict[str, Mapping[str, object]] = {}

    def load(self) -> Settings:
        return load(directory=self.here, environ=self.environ, user_dir=self.user, **self.arguments)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def _user(places: Places, value: float) -> None:
    (places.user / "pandacore.toml").write_text(f"[model]\ntimeout_s = {value}\n")


def _pyproject(places: Places, value: float) -> None:
    (places.here / "pyproject.toml").write_text(
        f"[project]\nname='x'\n[tool.pandacore.model]\ntimeout_s = {value}\n"
    )


def _file(places: Places, value: float) -> None:
    (places.here / "pandacore.toml").write_text(f"[model]\ntimeout_s = {value}\n")


def _env(places: Places, value: float) -> None:
    places.environ["PANDACORE__MODEL__TIMEOUT_S"] = str(value)


def _argument(places: Places, value: float) -> None:
    places.arguments["model"] = {"timeout_s": value}


SOURCES: list[tuple[str, Callable[[Places, float], None]]] = [
    ("file", _user),
    ("file", _pyproject),
    ("file", _file),
    ("env", _env),
    ("argument", _argument),
]


@pytest.mark.parametrize("chosen", range(1 << len(SOURCES)))
def test_strongest_source_that_is_set_wins(places: Places, chosen: int) -> None:
    for i, (_, write) in enumerate(SOURCES):
        if chosen >> i & 1:
            write(places, 10.0 + i)
    settings = places.load()
    if chosen == 0:
        assert settings.model.timeout_s == ModelSettings().timeout_s
        assert settings.origin("model.timeout_s").source == "default"
    else:
        strongest = chosen.bit_length() - 1
        assert settings.model.timeout_s == 10.0 + strongest
        assert settings.origin("model.timeout_s").source == SOURCES[strongest][0]


def test_origin_names_the_file_and_the_variable(places: Places) -> None:
    _file(places, 9.0)
    places.environ["PANDACORE__RUN__STEPS"] = "7"
    settings = places.load()
    assert settings.origin("model.timeout_s").where == str(places.here / "pandacore.toml")
    assert settings.origin("run.steps").where == "PANDACORE__RUN__STEPS"
    assert settings.origin("run.deadline_s").source == "default"


def test_sources_are_merged_setting_by_setting(places: Places) -> None:
    (places.user / "pandacore.toml").write_text("[model]\nretries = 9\n[run]\nsteps = 5\n")
    _file(places, 9.0)
    settings = places.load()
    assert (settings.model.retries, settings.run.steps, settings.model.timeout_s) == (9, 5, 9.0)


def test_empty_variable_counts_as_not_set(places: Places) -> None:
    _file(places, 9.0)
    places.environ["PANDACORE__MODEL__TIMEOUT_S"] = ""
    assert places.load().model.timeout_s == 9.0


def test_argument_of_none_counts_as_not_given(places: Places) -> None:
    _file(places, 9.0)
    places.arguments["model"] = {"timeout_s": None}
    assert places.load().model.timeout_s == 9.0


# -- refusals


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("[model]\nbase_ur = 'http://x'\n", "$.model.base_ur", "base_url"),
        ("[modle]\nspec = 'x'\n", "$.modle", "model"),
        ("[model]\ntimeout = 3\n", "$.model.timeout", "timeout_s"),
        ("[model]\ntimeout_s = 'soon'\n", "$.model.timeout_s", "a number, got text"),
        ("[model]\nretries = 1.5\n", "$.model.retries", "a whole number, got a fractional number"),
        ("[model]\nretries = true\n", "$.model.retries", "got a boolean"),
        ("[model]\nretries = -1\n", "$.model.retries", "at least 0"),
        ("[model]\ntimeout_s = 0\n", "$.model.timeout_s", "above 0"),
        ("[model]\ntimeout_s = inf\n", "$.model.timeout_s", "above 0"),
        ("[model]\ntimeout_s = nan\n", "$.model.timeout_s", "above 0"),
        ("[model]\nbase_url = 'localhost:8000'\n", "$.model.base_url", "http://"),
        ("[model]\nspec = ' '\n", "$.model.spec", "must not be empty"),
        ("[model]\nspec = ['a']\n", "$.model.spec", "got an array"),
        ("model = 3\n", "$.model", "expected a table"),
        ("[paths]\ncache_dir = 3\n", "$.paths.cache_dir", "a path"),
        ("[model]\nname_file = 'x'\n", "$.model.name_file", "only secrets"),
        ("[model\n", "pandacore.toml", "not valid TOML"),
    ],
)
def test_file_that_breaks_a_rule_is_refused_with_its_place(
    places: Places, text: str, place: str, words: str
) -> None:
    (places.here / "pandacore.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        places.load()
    assert caught.value.where is not None
    assert str(places.here / "pandacore.toml") in caught.value.where
    assert place in caught.value.where
    assert words in str(caught.value)
    assert caught.value.hint


def test_place_in_pyproject_has_the_whole_path(places: Places) -> None:
    (places.here / "pyproject.toml").write_text("[tool.pandacore.model]\nbase_ur = 'x'\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: \$\.tool\.pandacore\.model\.base_ur") as caught:
        places.load()
    assert caught.value.hint == "did you mean base_url?"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PANDACORE__MODEL__BASE_UR", "x", "did you mean PANDACORE__MODEL__BASE_URL?"),
        ("PANDACORE__MODLE__SPEC", "x", "did you mean PANDACORE__MODEL?"),
        ("PANDACORE__MODEL__TIMEOUT_S", "soon", "expected a number, got 'soon'"),
        ("PANDACORE__MODEL__RETRIES", "1.5", "a whole number"),
        ("PANDACORE__MODEL", "x", "unknown setting"),
        ("PANDACORE__", "x", "unknown section"),
        ("PANDACORE__MODEL__SPEC__X", "x", "unknown setting"),
    ],
)
def test_variable_that_breaks_a_rule_is_refused_by_name(
    places: Places, variable: str, value: str, words: str
) -> None:
    places.environ[variable] = value
    with pytest.raises(ConfigError) as caught:
        places.load()
    assert caught.value.where == variable
    assert words in str(caught.value)


def test_unknown_argument_is_refused(places: Places) -> None:
    places.arguments["model"] = {"base_ur": "x"}
    with pytest.raises(ConfigError, match="base_url"):
        places.load()
    places.arguments = {"modle": {}}
    with pytest.raises(ConfigError, match="did you mean model"):
        places.load()


def test_unreadable_file_is_refused(places: Places) -> None:
    (places.here / "pandacore.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        places.load()


def test_file_that_is_not_text_is_refused(places: Places) -> None:
    (places.here / "pandacore.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        places.load()


def test_unknown_setting_has_no_origin() -> None:
    with pytest.raises(ConfigError, match="did you mean spec"):
        Settings().origin("model.spce")


# -- secrets


def test_secret_prints_nothing_of_itself() -> None:
    secret = Secret("canary-0123456789")
    for text in (str(secret), repr(secret), f"{secret}", f"{secret!r:>20}", "%s" % secret, repr([secret])):  # noqa: UP031
        assert "canary" not in text
        assert "***" in text
    assert secret.reveal() == "canary-0123456789"
    assert secret == Secret("canary-0123456789")
    assert secret != "canary-0123456789"
    assert "canary" not in repr(ModelSettings(api_key=secret))


def test_secret_is_not_pickled_or_copied() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Secret("canary-0123456789"))
    with pytest.raises(TypeError):
        copy.deepcopy(Secret("canary-0123456789"))


@pytest.mark.parametrize("source", ["env", "toml"])
def test_secret_comes_from_a_file(places: Places, source: str) -> None:
    key = places.here / "key"
    key.write_text("canary-0123456789\n")
    if source == "env":
        places.environ["PANDACORE__MODEL__API_KEY_FILE"] = str(key)
    else:
        (places.here / "pandacore.toml").write_text("[model]\napi_key_file = 'key'\n")
    settings = places.load()
    assert settings.model.api_key is not None
    assert settings.model.api_key.reveal() == "canary-0123456789"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), (b"\n", "empty"), (b"\xff\xff", "not text"), (b"x" * 70_000, "larger")],
)
def test_bad_secret_file_is_refused(places: Places, content: bytes | None, words: str) -> None:
    key = places.here / "key"
    if content is not None:
        key.write_bytes(content)
    places.environ["PANDACORE__MODEL__API_KEY_FILE"] = str(key)
    with pytest.raises(ConfigError, match=words) as caught:
        places.load()
    assert caught.value.where is not None
    assert "PANDACORE__MODEL__API_KEY_FILE" in caught.value.where


def test_secret_and_its_file_together_are_refused(places: Places) -> None:
    places.environ["PANDACORE__MODEL__API_KEY"] = "canary-0123456789"
    places.environ["PANDACORE__MODEL__API_KEY_FILE"] = "key"
    with pytest.raises(ConfigError, match="remove one") as caught:
        places.load()
    assert "canary" not in str(caught.value)


def test_stronger_source_replaces_a_secret_file(places: Places) -> None:
    (places.here / "key").write_text("weaker-secret")
    (places.here / "pandacore.toml").write_text("[model]\napi_key_file = 'key'\n")
    places.environ["PANDACORE__MODEL__API_KEY"] = "stronger-secret"
    settings = places.load()
    assert settings.model.api_key is not None
    assert settings.model.api_key.reveal() == "stronger-secret"


@pytest.mark.parametrize(
    "text",
    [
        "[model]\napi_key = 5551234567\n",
        "[model]\napi_key = ['canary-0123456789']\n",
        "[model]\napi_kye = 'canary-0123456789'\n",
        "[model.api_key]\nvalue = 'canary-0123456789'\n",
        "[modle]\napi_key = 'canary-0123456789'\n",
        "[model]\napi_key = 'canary-0123456789\n",
    ],
)
def test_refusal_never_repeats_the_value(places: Places, text: str) -> None:
    (places.here / "pandacore.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        places.load()
    assert "canary" not in str(caught.value)
    assert "5551234567" not in str(caught.value)


def test_bad_url_with_user_info_is_shown_without_it(places: Places) -> None:
    places.environ["PANDACORE__MODEL__BASE_URL"] = "ftp://user:canary-0123456789@host"
    with pytest.raises(ConfigError) as caught:
        places.load()
    assert "canary" not in str(caught.value)


# Values are made up; each has the shape that the named place gives it.
CANARIES = [
    "Authorization: Bearer abcdef0123456789",
    "authorization: basic dXNlcjpwYXNzd29yZA==",
    "https://user:abcdef0123456789@example.org/v1",
    "https://abcdef0123456789@example.org/v1",
    "redis://:abcdef0123456789@example.org",
    "api_key=abcdef0123456789",
    "api-key: abcdef0123456789",
    '{"apiKey": "abcdef0123456789"}',
    "{'x-api-key': 'abcdef0123456789'}",
    "https://example.org/?access_key=abcdef0123456789&x=1",
    "https://example.org/?token=abcdef0123456789",
    "client_secret=abcdef0123456789",
    "password: abcdef0123456789",
    "Incorrect API key provided: sk-abcdef0123456789abcdef.",
    "sk-proj-abcdef0123456789abcdef",
    "hf_abcdef0123456789abcdef",
    "ghp_abcdef0123456789abcdef",
    "gsk_abcdef0123456789abcdef",
    "AKIAabcdef0123456789",
    "xoxb-abcdef0123456789abcdef",
]


@pytest.mark.parametrize("text", CANARIES)
def test_known_shapes_of_secrets_are_cut_out(text: str) -> None:
    assert "0123456789" not in redact(text)
    assert "***" in redact(text)


def test_secrets_of_this_process_are_cut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("an-odd-value-41")
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "another-odd-value")
    assert redact("x an-odd-value-41 y another-odd-value z") == "x *** y *** z"
    assert secret


@pytest.mark.parametrize(
    "text",
    [
        "took 12 tokens, 3 of them cached",
        "http://127.0.0.1:8000/v1 does not answer",
        "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK",
        "retries: 4, tokens: 200000",
        "the basic idea",
        "sha256 cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_rows_show_no_secret(places: Places) -> None:
    places.environ["PANDACORE__MODEL__API_KEY"] = "canary-0123456789"
    places.environ["PANDACORE__MODEL__BASE_URL"] = "https://user:canary-0123456789@host/v1"
    shown = str(places.load().rows())
    assert "canary" not in shown
    assert shown.count("***") == 2


# -- paths and cost


def test_relative_path_belongs_to_the_file_that_names_it(places: Places) -> None:
    (places.user / "pandacore.toml").write_text("[paths]\ncache_dir = 'models'\n")
    assert places.load().paths.cache_dir == places.user / "models"


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG rules")
def test_user_directories_follow_the_system(tmp_path: Path) -> None:
    given = {"HOME": "/home/x", "XDG_CACHE_HOME": "/c", "XDG_CONFIG_HOME": "relative"}
    assert user_cache_dir(given) == Path("/c/pandacore")
    assert user_config_dir(given) == Path("/home/x/.config/pandacore")
    assert (
        load(environ={"HOME": str(tmp_path)}, directory=tmp_path).paths.cache_dir
        == tmp_path / ".cache/pandacore"
    )


def test_import_is_cheap() -> None:
    code = "import sys, pandacore.config; print([m for m in {heavy!r} if m in sys.modules])"
    heavy = ["numpy", "grpc", "httpx", "rich", "typer", "asyncio", "tomllib", "difflib", "pandacore._core"]
    done = subprocess.run(
        [sys.executable, "-c", code.format(heavy=heavy)],
        capture_output=True,
        text=True,
        check=True,
        env=_clean_env(),
    )
    assert done.stdout.strip() == "[]"


def _clean_env() -> dict[str, Any]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PANDACORE__")}
