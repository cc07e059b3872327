"""FC-02 and FC-60: handles that are fresh, closed, half failed or forked answer with a typed error."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors


@pc.agent(capabilities=["text.upper"])
async def upper(task: pc.Task) -> str:
    return task.text.upper()


async def use(c: pc.Collective) -> list[BaseException | None]:
    """Call everything; the error of each call."""
    [agent] = [pc.Agent.of(upper)]
    calls: list[Any] = [
        lambda: c.run("x"),
        lambda: c.remove(agent),
        lambda: c.start("x"),
        lambda: c.stream("x"),
        lambda: c.registry,
        lambda: c.address,
    ]
    found: list[BaseException | None] = []
    for call in calls:
        try:
            answer = call()
            if hasattr(answer, "__await__"):
                await answer
            found.append(None)
        except errors.PandacoreError as error:
            found.append(error)
    return found


async def test_fc_02_a_fresh_collective_names_the_missing_step() -> None:
    for error in await use(pc.Collective.local()):
        assert isinstance(error, errors.StateError)
        assert "async with Collective.local()" in (error.hint or "")


async def test_fc_02_a_closed_collective_says_so() -> None:
    c = pc.Collective.local()
    async with c:
        pass
    for error in await use(c):
        assert isinstance(error, errors.StateError)
        assert "closed" in error.message
    with pytest.raises(errors.StateError, match="closed"):
        c.add(upper)
    await c.close()
    with pytest.raises(errors.StateError):
        await c.__aenter__()


async def test_fc_02_a_collective_whose_start_failed_is_closed() -> None:
    c = pc.Collective.local(model="grpc://no-such-port")
    with pytest.raises(errors.PandacoreError):
        await c.__aenter__()
    for error in await use(c):
        assert isinstance(error, errors.StateError)


def test_fc_02_a_closed_facade_says_so() -> None:
    with pc.Collective.local() as c:
        c.add(upper)
    with pytest.raises(errors.StateError, match="closed"):
        c.run("x")
    with pytest.raises(errors.StateError, match="closed"):
        next(iter(c.stream("x")))
    c.close()


FORKING = """
import os, sys, time
import pandacore as pc
from pandacore import errors

@pc.agent(capabilities=["text.upper"])
async def upper(task):
    return task.text.upper()

with pc.Collective.local() as c:
    c.add(upper)
    assert c.run("before").output == "BEFORE"
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            c.run("child")
        except errors.ForkError as error:
            code = 0 if error.hint else 8
        except BaseException:
            code = 7
        os._exit(code)
    deadline = time.monotonic() + 20
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert c.run("parent").output == "PARENT"
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_fc_60_a_fork_gets_a_typed_error_and_the_parent_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr
