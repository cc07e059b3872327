"""Settings: typed, frozen, each value with its origin.

A setting is taken from the first of these that has it:

1. the argument of the call (``load(model={"timeout_s": 5})``, or an option on the command line),
2. the environment: ``PANDACORE__MODEL__BASE_URL`` (section and name joined by ``__``; an empty value counts
   as not set),
3. ``./pandacore.toml``,
4. ``[tool.pandacore]`` in ``./pyproject.toml``,
5. ``pandacore.toml`` in the user's configuration directory (`user_config_dir`),
6. the default.

Unknown names and wrong types are refused with the place and a suggestion. Secrets are `Secret` objects that
never print their value; each secret can also come from a file: ``PANDACORE__MODEL__API_KEY_FILE``, or
``api_key_file`` in TOML. `redact` removes every secret that this process has seen from a text.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, get_type_hints

from pandacore.errors import ConfigError

__all__ = [
    "AgentSettings",
    "ModelSettings",
    "Origin",
    "PathSettings",
    "RunSettings",
    "Secret",
    "Settings",
    "load",
    "redact",
    "suggestion",
    "user_cache_dir",
    "user_config_dir",
]

ENV_PREFIX: Final = "PANDACORE__"
FILE_NAME: Final = "pandacore.toml"
SECRET_FILE_LIMIT: Final = 64 * 1024  # bytes; a key file is a line, not a document
CONFIG_FILE_LIMIT: Final = 1024 * 1024

# A shorter value is never cut out of texts: "on" as a password would blank half of every message.
_REDACT_FROM: Final = 6
_SEEN_LIMIT: Final = 256
_seen: dict[str, None] = {}


class Secret:
    """A value that never shows itself: ``str``, ``repr`` and formatting print ``***``.

    Not picklable and not comparable with plain strings, so that it cannot leak by accident; `reveal` is the
    only way to the value.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        if len(value) >= _REDACT_FROM:
            _seen[value] = None
            while len(_seen) > _SEEN_LIMIT:
                del _seen[next(iter(_seen))]

    def reveal(self) -> str:
        """Return the value, for the one place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a Secret cannot be pickled or copied into another process")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: ``source`` is the kind, ``where`` the file, variable or argument."""

    source: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.where}".rstrip()


def _about(text: str, check: Callable[[Any], str | None] | None = None) -> dict[str, Any]:
    return {"help": text, "check": check}


def _positive(value: float) -> str | None:
    return None if value > 0 and math.isfinite(value) else "must be above 0"


def _not_negative(value: float) -> str | None:
    return None if value >= 0 else "must be at least 0"


def _url(value: str) -> str | None:
    return None if re.match(r"(?i)https?://[^\s/]", value) else "must start with http:// or https://"


def _filled(value: str) -> str | None:
    return None if value.strip() else "must not be empty"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model answers, and how patiently it is asked."""

    spec: str = field(
        default="extractive",
        metadata=_about(
            "model to use: extractive, llama:NAME, openai:MODEL, or grpc://host:port of a running server",
            _filled,
        ),
    )
    base_url: str | None = field(
        default=None, metadata=_about("base URL of an OpenAI-compatible server, with its /v1", _url)
    )
    api_key: Secret | None = field(default=None, metadata=_about("key sent to that server"))
    name: str | None = field(
        default=None, metadata=_about("model name to ask for, where a server has several", _filled)
    )
    timeout_s: float = field(
        default=60.0, metadata=_about("seconds that one model call may take, retries included", _positive)
    )
    retries: int = field(
        default=2, metadata=_about("repeats of a call that failed in a way that may pass", _not_negative)
    )


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Caps of one run; reaching one ends it with a typed error and what is done so far."""

    deadline_s: float = field(default=300.0, metadata=_about("seconds that a run may take", _positive))
    tokens: int | None = field(
        default=None, metadata=_about("model tokens that a run may use; no cap by default", _positive)
    )
    steps: int = field(
        default=1_000, metadata=_about("subtasks that a run may execute, retries included", _positive)
    )


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How much one agent of the built-in team takes on (`pandacore demo` and `pandacore solve`)."""

    queue_limit: int | None = field(
        default=None,
        metadata=_about("subtasks that may wait at one agent of the built-in team", _positive),
    )
    concurrency: int = field(
        default=4, metadata=_about("subtasks that one agent of the built-in team works on at once", _positive)
    )


@dataclass(frozen=True, slots=True)
class PathSettings:
    """Where files go."""

    cache_dir: Path = field(default=Path(), metadata=_about("where fetched models are kept"))
    journal: Path | None = field(
        default=None, metadata=_about("the run log that runs are written to; none by default")
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; ``origins`` maps each dotted name to its `Origin`."""

    model: ModelSettings = field(default_factory=ModelSettings)
    run: RunSettings = field(default_factory=RunSettings)
    agents: AgentSettings = field(default_factory=AgentSettings)
    paths: PathSettings = field(default_factory=lambda: PathSettings(cache_dir=user_cache_dir()))
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    SECTIONS: ClassVar[tuple[str, ...]] = ("model", "run", "agents", "paths")

    def origin(self, name: str) -> Origin:
        """Return where the setting ``section.name`` came from.

        Raises
        ------
        ConfigError
            There is no such setting.
        """
        if name not in _FIELDS:
            raise _unknown(name, _FIELDS, where=name)
        return self.origins.get(name, Origin("default"))

    def rows(self) -> list[tuple[str, object, Origin]]:
        """Return (name, value that is safe to print, origin) of every setting, in order."""
        found = []
        for name in _FIELDS:
            section, key = name.split(".")
            value = getattr(getattr(self, section), key)
            found.append((name, _printable(value), self.origin(name)))
        return found


_SECTION_TYPES: Final[dict[str, type]] = {
    "model": ModelSettings,
    "run": RunSettings,
    "agents": AgentSettings,
    "paths": PathSettings,
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: type
    optional: bool
    help: str
    check: Callable[[Any], str | None] | None

    @property
    def secret(self) -> bool:
        return self.kind is Secret


def _fields() -> dict[str, _Field]:
    found = {}
    for section, owner in _SECTION_TYPES.items():
        hints = get_type_hints(owner)
        for item in dataclasses.fields(owner):
            kinds = [
                k for k in getattr(hints[item.name], "__args__", (hints[item.name],)) if k is not type(None)
            ]
            name = f"{section}.{item.name}"
            found[name] = _Field(
                name, kinds[0], item.default is None, item.metadata["help"], item.metadata["check"]
            )
    return found


_FIELDS: Final[dict[str, _Field]] = _fields()


def user_config_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's configuration directory for pandacore; it need not exist."""
    return _user_dir(os.environ if environ is None else environ, "config")


def user_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's cache directory for pandacore; it need not exist."""
    return _user_dir(os.environ if environ is None else environ, "cache")


def _user_dir(environ: Mapping[str, str], purpose: str) -> Path:
    if sys.platform == "win32":
        base = environ.get("LOCALAPPDATA" if purpose == "cache" else "APPDATA")
        parent = Path(base) if base else Path.home() / "AppData" / "Local"
        return parent / "pandacore" / "Cache" if purpose == "cache" else parent / "pandacore"
    if sys.platform == "darwin":
        middle = "Caches" if purpose == "cache" else "Application Support"
        return _home(environ) / "Library" / middle / "pandacore"
    variable, fallback = (
        ("XDG_CACHE_HOME", ".cache") if purpose == "cache" else ("XDG_CONFIG_HOME", ".config")
    )
    base = environ.get(variable, "")
    # The XDG rules: a relative path is to be ignored.
    return (Path(base) if os.path.isabs(base) else _home(environ) / fallback) / "pandacore"


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def load(
    *,
    directory: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    user_dir: str | Path | None = None,
    **arguments: Mapping[str, object],
) -> Settings:
    """Read the settings from all sources.

    Parameters
    ----------
    directory : path, optional
        Where ``pandacore.toml`` and ``pyproject.toml`` are looked for; the current directory by default.
    environ : mapping, optional
        The environment; ``os.environ`` by default.
    user_dir : path, optional
        The user's configuration directory; `user_config_dir` by default.
    **arguments
        Sections with settings of this call: ``load(model={"timeout_s": 5.0})``. None means not given.

    Raises
    ------
    ConfigError
        A name is unknown, a value has the wrong type or is out of range, or a file cannot be read.
    """
    env = os.environ if environ is None else environ
    here = Path.cwd() if directory is None else Path(directory)
    home = user_config_dir(env) if user_dir is None else Path(user_dir)
    found: dict[str, tuple[object, Origin]] = {}
    # From the weakest to the strongest: later sources overwrite.
    for path, table in (
        (home / FILE_NAME, ()),
        (here / "pyproject.toml", ("tool", "pandacore")),
        (here / FILE_NAME, ()),
    ):
        found.update(_from_toml(path, table))
    found.update(_from_env(env, here))
    found.update(_from_arguments(arguments))
    sections: dict[str, dict[str, object]] = {name: {} for name in Settings.SECTIONS}
    sections["paths"]["cache_dir"] = user_cache_dir(env)
    for name, (value, _) in found.items():
        section, key = name.split(".")
        sections[section][key] = value
    return Settings(
        model=ModelSettings(**sections["model"]),  # type: ignore[arg-type]  # checked field by field
        run=RunSettings(**sections["run"]),  # type: ignore[arg-type]
        agents=AgentSettings(**sections["agents"]),  # type: ignore[arg-type]
        paths=PathSettings(**sections["paths"]),  # type: ignore[arg-type]
        origins={name: origin for name, (_, origin) in found.items()},
    )


# -- sources


def _from_toml(path: Path, table: tuple[str, ...]) -> dict[str, tuple[object, Origin]]:
    content = _read_toml(path, inside=table)
    found: dict[str, tuple[object, Origin]] = {}
    prefix = "$" + "".join(f".{part}" for part in table)
    for section, values in content.items():
        place = f"{path}: {prefix}.{section}"
        if section not in _SECTION_TYPES:
            raise _unknown(section, _SECTION_TYPES, where=place, kind="section")
        if not isinstance(values, dict):
            raise ConfigError(
                f"expected a table, got {_type_name(values)}", where=place, hint=f"write it as [{section}]"
            )
        for key, value in values.items():
            name = f"{section}.{key}"
            where = f"{place}.{key}"
            origin = Origin("file", str(path))
            known, from_file = _resolve(name, where, key)
            if from_file:
                if known.name.split(".")[1] in values:
                    raise _both(where, known.name.split(".")[1], key)
                text = _expect(str, value, where)
                found[known.name] = (_read_secret(path.parent / Path(text).expanduser(), where), origin)
            else:
                found[known.name] = (_convert(known, value, where, base=path.parent), origin)
    return found


def _read_toml(path: Path, *, inside: tuple[str, ...]) -> dict[str, Any]:
    """Return the table of a TOML file, or an empty one when the file or the table does not exist."""
    import tomllib

    try:
        with path.open("rb") as file:
            raw = file.read(CONFIG_FILE_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            hint="fix its permissions or remove it",
        ) from None
    if len(raw) > CONFIG_FILE_LIMIT:
        raise ConfigError(f"is larger than {CONFIG_FILE_LIMIT} bytes", where=str(path), hint="check the path")
    try:
        content: Any = tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", where=str(path), hint="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # Some other tool owns pyproject.toml, but a broken one hides our settings: say so, do not skip it.
        raise ConfigError(f"is not valid TOML: {error}", where=str(path), hint="fix the syntax") from None
    for part in inside:
        content = content.get(part, {}) if isinstance(content, dict) else {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"expected a table, got {_type_name(content)}", where=f"{path}: $.{'.'.join(inside)}"
        )
    return content


def _from_env(environ: Mapping[str, str], here: Path) -> dict[str, tuple[object, Origin]]:
    found: dict[str, tuple[object, Origin]] = {}
    given = {name: text for name, text in environ.items() if name.upper().startswith(ENV_PREFIX) and text}
    for variable in sorted(given):
        parts = variable[len(ENV_PREFIX) :].lower().split("__")
        name = ".".join(parts)
        if parts[0] not in _SECTION_TYPES:
            raise _unknown(parts[0], _SECTION_TYPES, where=variable, kind="section", spell=_env_name)
        known, from_file = _resolve(name, variable, name, spell=_env_name)
        origin = Origin("env", variable)
        if from_file:
            plain = _env_name(known.name)
            if plain in given:
                raise _both(variable, plain, variable)
            found[known.name] = (_read_secret(here / Path(given[variable]).expanduser(), variable), origin)
        else:
            found[known.name] = (_parse(known, given[variable], variable, here), origin)
    return found


def _from_arguments(arguments: Mapping[str, Mapping[str, object]]) -> dict[str, tuple[object, Origin]]:
    found: dict[str, tuple[object, Origin]] = {}
    for section, values in arguments.items():
        if section not in _SECTION_TYPES:
            raise _unknown(section, _SECTION_TYPES, where=f"load({section}=...)", kind="section")
        for key, value in values.items():
            if value is None:
                continue
            where = f"argument {section}.{key}"
            known, from_file = _resolve(f"{section}.{key}", where, key)
            if from_file:
                text = _expect(str, value, where)
                found[known.name] = (_read_secret(Path(text).expanduser(), where), Origin("argument", key))
            else:
                found[known.name] = (
                    _convert(known, value, where, base=Path.cwd()),
                    Origin("argument", known.name),
                )
    return found


def _resolve(
    name: str, where: str, shown: str, spell: Callable[[str], str] | None = None
) -> tuple[_Field, bool]:
    """Return the field of this name, and whether the value is the name of a file that holds it."""
    if name in _FIELDS:
        return _FIELDS[name], False
    plain = name.removesuffix("_file")
    if plain != name and plain in _FIELDS:
        if _FIELDS[plain].secret:
            return _FIELDS[plain], True
        raise ConfigError(
            f"{shown!r} is not a setting: only secrets are read from files",
            where=where,
            hint=f"set {spell(plain) if spell else plain.split('.')[1]} itself",
        )
    section = name.split(".", maxsplit=1)[0]
    siblings = [n for n in _FIELDS if n.startswith(f"{section}.")]
    siblings += [f"{n}_file" for n in siblings if _FIELDS[n].secret]
    raise _unknown(name, siblings, where=where, spell=spell)


def _env_name(name: str) -> str:
    return ENV_PREFIX + name.upper().replace(".", "__")


# -- values


def _convert(known: _Field, value: object, where: str, *, base: Path) -> object:
    """Check a TOML or Python value against the field's type."""
    converted: object
    if known.kind is Secret:
        if isinstance(value, Secret):
            converted = value
        elif isinstance(value, str):
            converted = Secret(value)
        else:
            raise _wrong_type(known, value, where)  # never the value itself
    elif known.kind is Path:
        if not isinstance(value, str | Path) or not str(value):
            raise _wrong_type(known, value, where)
        converted = base / Path(value).expanduser()
    elif isinstance(value, bool) or not isinstance(
        value, (int, float) if known.kind is float else known.kind
    ):
        # bool is an int in Python, but never a number in a settings file
        raise _wrong_type(known, value, where)
    else:
        converted = float(value) if known.kind is float and isinstance(value, int) else value
    return _checked(known, converted, where)


def _parse(known: _Field, text: str, where: str, here: Path) -> object:
    """Turn the text of an environment variable into the field's type."""
    if known.kind in (int, float):
        try:
            number: object = known.kind(text.strip())
        except ValueError:
            raise ConfigError(
                f"expected {_kind_name(known.kind)}, got {_shorten(text)!r}",
                where=where,
                hint=f"it is: {known.help}",
            ) from None
        return _checked(known, number, where)
    return _convert(known, text, where, base=here)


def _checked(known: _Field, value: object, where: str) -> object:
    problem = known.check(value) if known.check is not None else None
    if problem is None:
        return value
    raise ConfigError(f"{redact(_shorten(str(value)))} {problem}", where=where, hint=f"it is: {known.help}")


def _read_secret(path: Path, where: str) -> Secret:
    place = f"{where} ({path})"
    try:
        with path.open("rb") as file:
            raw = file.read(SECRET_FILE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(
            f"the secret's file cannot be read: {error.strerror or error}",
            where=place,
            hint="check that the file exists and that this user may read it",
        ) from None
    if len(raw) > SECRET_FILE_LIMIT:
        raise ConfigError(
            f"the secret's file is larger than {SECRET_FILE_LIMIT} bytes", where=place, hint="check the path"
        )
    try:
        text = raw.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError("the secret's file is not text", where=place, hint="check the path") from None
    if not text.strip():
        raise ConfigError("the secret's file is empty", where=place, hint="write the secret into it")
    return Secret(text)


def _expect(kind: type[str], value: object, where: str) -> str:
    if isinstance(value, kind):
        return value
    raise ConfigError(f"expected a file name, got {_type_name(value)}", where=where, hint="quote the path")


# -- errors and printing


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is nearest to a misspelt one, or None if none is near."""
    import difflib

    candidates = list(known)
    near = difflib.get_close_matches(word.lower(), candidates, n=1, cutoff=0.6)
    return near[0] if near else None


def _unknown(
    name: str,
    known: Iterable[str],
    *,
    where: str,
    kind: str = "setting",
    spell: Callable[[str], str] | None = None,
) -> ConfigError:
    names = list(known)
    near = suggestion(name, names)
    last = name.rsplit(".", 1)[-1]

    def shown(full: str) -> str:
        return spell(full) if spell else full.rsplit(".", 1)[-1]

    hint = (
        f"did you mean {shown(near)}?" if near else f"the {kind}s are: {', '.join(shown(n) for n in names)}"
    )
    return ConfigError(f"unknown {kind} {last!r}", where=where, hint=hint)


def _both(where: str, first: str, second: str) -> ConfigError:
    return ConfigError(f"both {first} and {second} are set", where=where, hint="remove one of them")


def _wrong_type(known: _Field, value: object, where: str) -> ConfigError:
    return ConfigError(
        f"expected {_kind_name(known.kind)}, got {_type_name(value)}",
        where=where,
        hint=f"it is: {known.help}",
    )


def _kind_name(kind: type) -> str:
    names = {str: "text", int: "a whole number", float: "a number", Path: "a path", Secret: "text"}
    return names[kind]


def _type_name(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case str() if not value:
            return "an empty text"
        case str():
            return "text"
        case int():
            return "a whole number"
        case float():
            return "a fractional number"
        case list():
            return "an array"
        case dict():
            return "a table"
    return f"a {type(value).__name__}"


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _printable(value: object) -> object:
    match value:
        case Secret():
            return "***"
        case Path():
            return str(value)
        case str():
            return redact(value)
    return value


_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@'\"]+@")
_HEADER = re.compile(r"(?i)\b(bearer|basic)(\s+)[a-z0-9._~+/=-]{6,}")
_PAIR = re.compile(
    r"(?i)\b([a-z0-9_.-]*(?:api[-_]?key|access[-_]?key|token|secret|passwd|password|authorization))"
    r"(['\"]?\s*[=:]\s*['\"]?)(?!\*\*\*|bearer\b|basic\b)([^\s'\",;&}\]]{6,})"
)
_PROVIDER_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|gho|glpat|xox[bap]|AKIA)[-_]?[A-Za-z0-9][A-Za-z0-9_-]{14,}"
)
_ENV_NAME = re.compile(r"(?i)(key|token|secret|passwd|password|credential|credentials|dsn)$")


def redact(text: str) -> str:
    """Replace secrets in a text by ``***``.

    Removed are: the value of every `Secret` of this process, the values of environment variables whose names
    end in words such as KEY, TOKEN or PASSWORD, user info in URLs, authorization headers, ``name=value``
    pairs with such a name, and what has the shape of a provider's key.
    """
    values = set(_seen)
    for name, value in os.environ.items():
        if len(value) >= _REDACT_FROM and _ENV_NAME.search(name):
            values.add(value)
    for value in sorted(values, key=len, reverse=True):  # a value that contains another goes first
        if value in text:
            text = text.replace(value, "***")
    text = _USERINFO.sub(r"\1***@", text)
    text = _HEADER.sub(r"\1\2***", text)
    text = _PAIR.sub(r"\1\2***", text)
    return _PROVIDER_KEY.sub("***", text)
