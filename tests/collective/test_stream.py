"""FC-50: a stream can be left at any event, in any way, without a log record, a warning or a leaked task."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator

import pytest

import pandacore as pc

EVENTS = 7  # RunStarted … RunFinished of a run with one subtask and one line of progress


@pc.agent(capabilities=["text.upper"], concurrency=8)
async def upper(task: pc.Task, ctx: pc.AgentContext) -> str:
    ctx.progress("working")
    await asyncio.sleep(0.01)
    return task.text.upper()


@pytest.fixture
async def collective() -> AsyncIterator[pc.Collective]:
    async with pc.Collective.local() as c:
        c.add(upper)
        yield c


async def settled(collective: pc.Collective) -> None:
    async with asyncio.timeout(5):
        while collective._runs:
            await asyncio.sleep(0.005)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_the_run_has_the_events_that_the_cases_below_stop_at(collective: pc.Collective) -> None:
    assert len([e async for e in collective.stream("x")]) == EVENTS


@pytest.mark.parametrize("stop_at", range(1, EVENTS + 1))
@pytest.mark.parametrize("how", ["break", "raise", "return", "aclose", "forget", "other task", "async with"])
async def test_fc_50_leaving_at_any_event(
    collective: pc.Collective, caplog: pytest.LogCaptureFixture, how: str, stop_at: int
) -> None:
    async def leave() -> None:
        stream = collective.stream("x")
        if how == "async with":
            async with stream as events:
                async for event in events:
                    if event.seq == stop_at:
                        break
            assert stream.run.done
            return
        async for event in stream:
            if event.seq == stop_at:
                match how:
                    case "raise":
                        raise LookupError
                    case "return":
                        return
                    case "aclose":
                        await stream.aclose()
                        assert stream.run.done
                    case "other task":
                        await asyncio.create_task(stream.aclose())
                break

    with contextlib.suppress(LookupError):
        await leave()
    gc.collect()
    await settled(collective)
    assert complaints(caplog) == []
    assert (await collective.run("still")).output == "STILL"


@pytest.mark.parametrize("stop_at", range(1, EVENTS))
async def test_fc_50_cancelling_the_reader(
    collective: pc.Collective, caplog: pytest.LogCaptureFixture, stop_at: int
) -> None:
    reached = asyncio.Event()

    async def read() -> None:
        async for event in collective.stream("x"):
            if event.seq == stop_at:
                reached.set()
                await asyncio.Event().wait()

    reader = asyncio.create_task(read())
    await reached.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    del reader
    gc.collect()
    await settled(collective)
    assert complaints(caplog) == []


def test_fc_50_leaving_the_blocking_stream_early(caplog: pytest.LogCaptureFixture) -> None:
    with pc.Collective.local() as c:
        c.add(upper)
        for event in c.stream("x"):
            if isinstance(event, pc.SubtaskStarted):
                break
        gc.collect()
        assert c.run("still").output == "STILL"
    assert complaints(caplog) == []
