"""FC-61: the wheel installs without a compiler and works where the source tree is not; import stays light."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"grpc", "numpy", "httpx", "rich", "typer", "matplotlib", "scipy", "jsonschema_rs", "asyncio"}

# pip is not in the locked environment; the venv brings its own.
MATURIN = Path(sysconfig.get_path("scripts")) / ("maturin.exe" if os.name == "nt" else "maturin")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MATURIN.exists():
        pytest.skip("maturin is not installed in this environment")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [MATURIN, "build", "--release", "--locked", "--strip", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [path] = out.glob("*.whl")
    return path


def test_fc_61_one_wheel_serves_all_pythons_and_stays_small(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    assert wheel.stat().st_size <= 10 * 1024 * 1024
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"pandacore/py.typed", "pandacore/_core.pyi", "pandacore/__init__.py"} <= names
    assert any(n.startswith("pandacore/demo/") and n.endswith(".md") for n in names), (
        "the demo needs its corpus"
    )
    assert not [n for n in names if n.startswith(("tests", "rust")) or ".." in n]


def test_fc_61_the_installed_wheel_runs_away_from_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    program = (
        "import pandacore as pc, pathlib\n"
        f"assert pathlib.Path(pc.__file__).is_relative_to({str(site)!r}), pc.__file__\n"
        "@pc.agent(capabilities=['text.upper'])\n"
        "async def upper(task): return task.text.upper()\n"
        "with pc.Collective.local() as c:\n"
        "    c.add(upper)\n"
        "    print(c.run('it works').output)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "IT WORKS\n", done.stderr


def test_fc_61_the_source_distribution_holds_what_a_build_needs(tmp_path: Path) -> None:
    if not MATURIN.exists():
        pytest.skip("maturin is not installed in this environment")
    subprocess.run(
        [MATURIN, "sdist", "--out", str(tmp_path)], cwd=ROOT, capture_output=True, check=True, timeout=300
    )
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    assert {
        "Cargo.lock",
        "pyproject.toml",
        "rust/python/Cargo.toml",
        "rust/matching/Cargo.toml",
        "LICENSE",
    } <= names


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = f"import sys, pandacore; print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_importing_the_package_opens_no_socket_and_no_foreign_file() -> None:
    program = (
        "import sys\n"
        "seen = []\n"
        "kinds = ('socket.', 'subprocess.', 'urllib.')\n"
        "sys.addaudithook(lambda e, a: seen.append(e) if e.startswith(kinds) else None)\n"
        "import pandacore\n"
        "for name in pandacore.__all__:\n"
        "    getattr(pandacore, name)\n"
        "print([e for e in seen if e not in ('socket.__new__', 'socket.gethostname')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
