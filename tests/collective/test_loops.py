"""FC-48: the sync facade works beside any event loop; async objects say which loop they belong to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors


@pc.agent(capabilities=["text.upper"])
async def upper(task: pc.Task) -> str:
    return task.text.upper()


def shout(text: str = "hello") -> Any:
    """The whole life of a collective through the facade."""
    with pc.Collective.local() as c:
        c.add(upper)
        return c.run(text).output


def test_fc_48_without_a_loop_and_twice_in_a_row() -> None:
    assert [shout("a"), shout("b")] == ["A", "B"]


async def test_fc_48_while_a_loop_runs() -> None:
    assert shout() == "HELLO"


def test_fc_48_after_the_default_loop_was_closed() -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.close()
    try:
        assert shout() == "HELLO"
    finally:
        asyncio.set_event_loop(None)


def test_fc_48_in_two_threads_at_once() -> None:
    outputs: list[str] = []
    threads = [threading.Thread(target=lambda i=i: outputs.append(shout(f"t{i}"))) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outputs) == ["T0", "T1"]


def test_fc_48_one_facade_from_many_threads() -> None:
    with pc.Collective.local() as c:
        c.add(upper, replicas=4)
        outputs: list[str] = []
        threads = [
            threading.Thread(target=lambda i=i: outputs.append(c.run(f"t{i}").output)) for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(outputs) == [f"T{i}" for i in range(8)]


def test_fc_48_under_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed on this platform")

    async def main() -> str:
        async with pc.Collective.local() as c:
            c.add(upper)
            return str((await c.run("hello")).output) + str(shout("x"))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "HELLOX"


def test_fc_48_two_loops_one_after_the_other() -> None:
    async def main() -> Any:
        async with pc.Collective.local() as c:
            c.add(upper)
            return (await c.run("hello")).output

    assert [asyncio.run(main()), asyncio.run(main())] == ["HELLO", "HELLO"]


def test_fc_48_in_a_notebook_kernel(tmp_path: Path) -> None:
    """A real kernel, whose loop already runs when a cell is executed; both faces in one notebook."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    cells = [
        "import pandacore as pc\n"
        "@pc.agent(capabilities=['text.upper'])\n"
        "async def upper(task: pc.Task) -> str:\n"
        "    return task.text.upper()",
        "with pc.Collective.local() as c:\n    c.add(upper)\n    print(c.run('sync').output)",
        "async with pc.Collective.local() as c:\n    c.add(upper)\n    print((await c.run('async')).output)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    program = (
        "import nbformat, nbclient, sys\n"
        "nb = nbformat.read(sys.argv[1], 4)\n"
        "nbclient.NotebookClient(nb, timeout=60).execute()\n"
        "print([o.text.strip() for c in nb.cells for o in c.outputs if o.output_type == 'stream'])\n"
    )
    assert nbclient
    path = tmp_path / "n.ipynb"
    nbformat.write(notebook, path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "['SYNC', 'ASYNC']" in done.stdout, done.stdout + done.stderr


def test_an_async_collective_on_another_loop_says_whose_it_is() -> None:
    async def enter() -> pc.Collective:
        return await pc.Collective.local().__aenter__()

    async def use(c: pc.Collective) -> None:
        await c.run("x")

    with asyncio.Runner() as first:
        c = first.run(enter())
        with pytest.raises(errors.StateError, match="belongs to event loop 0x"):
            asyncio.run(use(c))
        first.run(c.close())


def test_a_blocking_call_from_inside_an_agent_is_refused_and_does_not_hang() -> None:
    with pc.Collective.local() as c:

        @pc.agent(capabilities=["nest"])
        async def nest(task: pc.Task) -> str:
            return str(c.run(pc.Task("inner", capabilities=["text.upper"])).output)

        @pc.agent(capabilities=["thread"])
        def thread(task: pc.Task) -> str:
            return str(c.run(pc.Task("inner", capabilities=["text.upper"])).output)

        c.add(upper, nest, thread)
        failed = c.run(pc.Task("x", capabilities=["nest"]))
        assert failed.failures[0].kind == "StateError"
        assert c.run(pc.Task("x", capabilities=["thread"])).output == "INNER"


def test_ctrl_c_stops_the_run_and_leaves_the_collective_usable() -> None:
    program = """
import os, signal, threading
import pandacore as pc
entered = threading.Event()
@pc.agent(capabilities=["wait"])
async def wait(task):
    entered.set()
    import asyncio
    await asyncio.sleep(60)
@pc.agent(capabilities=["text.upper"])
async def upper(task):
    return task.text.upper()
with pc.Collective.local() as c:
    c.add(wait, upper)
    def interrupt():
        entered.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        c.run(pc.Task("x", capabilities=["wait"]))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(c.run(pc.Task("still here", capabilities=["text.upper"])).output)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split("\n")[:2] == ["interrupted", "STILL HERE"], done.stderr
    assert done.stderr == ""
