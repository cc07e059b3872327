"""The arrows of the design: which part may depend on which. Read from the sources, nothing is run."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "pandacore"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if not p.name.endswith(("_pb2.py", "_pb2_grpc.py")))
CRATES = sorted(p.parent for p in (ROOT / "rust").glob("*/Cargo.toml"))

# The crates without sockets, clocks and Python; `node` (sockets) and `python` (the binding) are not pure.
PURE = {"matching", "trust", "gossip"}
# A pure crate depends on another one only where the domain does.
CRATE_ARROWS = {("gossip", "trust"), ("gossip", "matching")}
# The typed wrappers over the extension, and what reports facts of the build.
CORE_WRAPPERS = {
    "__init__",
    "broker",
    "build",
    "gossip",
    "probing",
    "registry",
    "reputation",
    "team_machine",
    "trust",
}


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def part(path: Path) -> str:
    """The first name below the package: a folder or a module."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("crate", CRATES, ids=lambda p: p.name)
def test_pure_crates_have_no_io_and_only_the_allowed_arrows(crate: Path) -> None:
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    dependencies = set(manifest.get("dependencies", {}))
    if crate.name in PURE:
        assert not dependencies & {"pyo3", "numpy", "tokio", "quinn", "mio", "socket2", "getrandom"}
        for source in (crate / "src").rglob("*.rs"):
            text = re.sub(r"//.*", "", source.read_text(encoding="utf-8"))
            found = re.findall(r"std::net|Instant::now|SystemTime::now|thread_rng|rand::rng\(|OsRng", text)
            assert not found, f"{source.relative_to(ROOT)} uses {found}"
        for name in dependencies:
            if name.startswith("pandacore-"):
                assert (crate.name, name.removeprefix("pandacore-")) in CRATE_ARROWS
    assert manifest["lints"]["workspace"] is True


def test_only_the_wrappers_import_the_extension() -> None:
    importers = {part(p) for p in MODULES if any(i.startswith("pandacore._core") for i in imports(p))}
    assert importers <= CORE_WRAPPERS


def test_nothing_imports_the_command_line_the_dashboard_or_the_evaluations() -> None:
    for path in MODULES:
        for target in ("cli", "dashboard", "evals"):
            users = {target, "cli", "__main__"}  # the command line is what starts the others
            if target == "evals":
                users.add("experiments")  # a study compares evaluations; the runtime knows neither
            if part(path) not in users:
                hits = {i for i in imports(path) if i.startswith(f"pandacore.{target}")}
                assert not hits, f"{path.relative_to(ROOT)} imports {hits}"


def test_patterns_do_no_io() -> None:
    allowed = {
        "abc",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "typing",
        "__future__",
        "pandacore",
    }
    own = ("pandacore.patterns", "pandacore.errors", "pandacore.plan", "pandacore")
    for path in (PACKAGE / "patterns").glob("*.py"):
        for name in imports(path):
            assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
            if name.startswith("pandacore."):
                assert name.startswith(own), f"{path.name} imports {name}"


def test_errors_import_nothing_of_the_package() -> None:
    assert not {i for i in imports(PACKAGE / "errors.py") if i.startswith("pandacore")}


def test_every_folder_is_a_package_with_a_docstring() -> None:
    for path in MODULES:
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_required_dependencies_stay_few_and_explained() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.split(r"[<>=~! \[;]", d)[0] for d in dependencies]
    assert len(names) <= 8
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in names:
        assert f"| `{name}` |" in contributing, f"CONTRIBUTING.md does not say why {name} is needed"
