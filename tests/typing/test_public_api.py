"""FC-62: what an editor and a type checker see of the public names."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import pandacore

ROOT = Path(__file__).resolve().parents[2]
NAMES = [n for n in pandacore.__all__ if n != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_fc_62_every_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(pandacore, name)
    assert name in dir(pandacore)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert inspect.getdoc(value), name


@pytest.mark.parametrize("name", NAMES)
def test_fc_62_public_methods_have_signatures_docstrings_and_annotations(name: str) -> None:
    value = getattr(pandacore, name)
    if not inspect.isclass(value):
        return
    for member, function in vars(value).items():
        if member.startswith("_") or not inspect.isfunction(function):
            continue
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty, f"{name}.{member}"
        assert inspect.getdoc(function), f"{name}.{member} has no docstring"
        for parameter in list(signature.parameters.values())[1:]:
            assert parameter.annotation is not inspect.Parameter.empty, f"{name}.{member}({parameter.name})"


def test_unknown_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Colective'"):
        pandacore.Colective  # noqa: B018


def test_lazy_names_and_static_names_are_the_same() -> None:
    """What ``TYPE_CHECKING`` promises is what ``__getattr__`` gives."""
    source = (ROOT / "python" / "pandacore" / "__init__.py").read_text()
    for module, names in pandacore._HOME.items():
        for name in names:
            assert getattr(importlib.import_module(module), name) is getattr(pandacore, name)
            assert name in source.split("__all__")[0]


def test_fc_62_a_users_program_passes_the_strict_type_checker(tmp_path: Path) -> None:
    program = tmp_path / "user.py"
    program.write_text(
        "import pandacore as pc\n"
        "@pc.agent(capabilities=['a'])\n"
        "async def f(task: pc.Task, ctx: pc.AgentContext) -> str:\n"
        "    ctx.progress('x')\n"
        "    return task.text\n"
        "async def main() -> None:\n"
        "    async with pc.Collective.local() as c:\n"
        "        c.add(f)\n"
        "        result: pc.Result = await c.run('x', budget=pc.Budget(tokens=5))\n"
        "        reveal_type(result.failures[0].kind)\n"
        "        async for event in c.stream('x'):\n"
        "            match event:\n"
        "                case pc.RunFinished(result=result):\n"
        "                    print(result.output)\n"
        "with pc.Collective.local() as s:\n"
        "    reveal_type(s.run('x').wall_s)\n"
        "registry = pc.Registry()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert 'Revealed type is "str"' in done.stdout
    assert 'Revealed type is "float"' in done.stdout


def test_annotations_of_public_dataclasses_resolve() -> None:
    known = {"Mapping": typing.Mapping, "Sequence": typing.Sequence}
    for name in ("Budget", "Failure", "Subtask"):
        assert typing.get_type_hints(getattr(pandacore, name), known)
