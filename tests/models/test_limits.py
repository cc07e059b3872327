"""Load control, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import random
from itertools import count

import pytest

from pandacore.errors import CircuitOpen, DeadlineExceeded, RateLimited
from pandacore.models.limits import Endpoint, LimitConfig, Outcome


class VirtualClock:
    """Time that moves only when every task waits for it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> float:
        return self._now

    async def wait(self, wake: asyncio.Future[None] | None, seconds: float) -> None:
        timer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (self._now + seconds, next(self._order), timer))
        await asyncio.wait({timer, wake} if wake else {timer}, return_when=asyncio.FIRST_COMPLETED)

    async def run(self, *tasks: asyncio.Task[object]) -> None:
        """Advance until the tasks are done."""
        while not all(task.done() for task in tasks):
            for _ in range(20):  # let everything that can run do so
                await asyncio.sleep(0)
            while self._timers and self._timers[0][2].done():
                heapq.heappop(self._timers)
            if self._timers and not all(task.done() for task in tasks):
                at, _, timer = heapq.heappop(self._timers)
                self._now = max(self._now, at)
                if not timer.done():
                    timer.set_result(None)


def make(clock: VirtualClock, **settings: float) -> Endpoint:
    return Endpoint("test:1", LimitConfig(**settings), clock=clock, rng=random.Random(7))  # type: ignore[arg-type]


class Server:
    """Answers in a second of virtual time; says 429 until ``clears``."""

    def __init__(self, clock: VirtualClock, clears: float, retry_after_s: float | None = None) -> None:
        self.clock, self.clears, self.retry_after_s = clock, clears, retry_after_s
        self.calls: list[float] = []
        self.peak = self.running = 0

    async def call(self, endpoint: Endpoint, deadline: float) -> str:
        try:
            started = await endpoint.acquire(deadline)
        except RateLimited:
            return "limited"
        self.calls.append(self.clock.now())
        self.running += 1
        self.peak = max(self.peak, self.running)
        await self.clock.wait(None, 0.1)
        self.running -= 1
        if self.clock.now() < self.clears:
            endpoint.release(Outcome.RATE_LIMITED, started, retry_after_s=self.retry_after_s)
            return "429"
        endpoint.release(Outcome.SUCCESS, started)
        return "ok"


async def test_fc_45_always_429_costs_few_calls_a_minute() -> None:
    clock = VirtualClock()
    endpoint, server = make(clock), Server(clock, clears=1e9)
    tasks = [asyncio.ensure_future(server.call(endpoint, 600.0)) for _ in range(50)]
    await clock.run(*tasks)
    first_burst = [at for at in server.calls if at < 1]
    assert len(first_burst) <= 8
    for minute in range(1, 10):
        assert len([at for at in server.calls if 60 * minute <= at < 60 * minute + 60]) <= 6
    assert len([at for at in server.calls if 1 <= at < 60]) <= 6


async def test_fc_45_all_wait_as_long_as_retry_after_says() -> None:
    clock = VirtualClock()
    endpoint, server = make(clock), Server(clock, clears=5.0, retry_after_s=5.0)
    tasks = [asyncio.ensure_future(server.call(endpoint, 60.0)) for _ in range(50)]
    await clock.run(*tasks)
    after = [at for at in server.calls if at > 0.2]
    assert min(after) >= 5.0
    assert [at for at in after if at < min(after) + 0.1] == [min(after)]  # one goes first
    assert [task.result() for task in tasks].count("429") <= 8
    assert clock.now() < 12


async def test_pause_beyond_the_deadline_ends_at_once() -> None:
    clock = VirtualClock()
    endpoint = make(clock)
    endpoint.release(Outcome.RATE_LIMITED, await endpoint.acquire(10), retry_after_s=1e9)
    with pytest.raises(RateLimited) as caught:
        await endpoint.acquire(10.0)
    assert clock.now() == 0.0
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s <= 60.0  # a hostile server cannot silence the process for ever


async def test_concurrency_grows_with_success_and_is_halved_by_a_429() -> None:
    clock = VirtualClock()
    endpoint, server = make(clock, max_concurrency=32), Server(clock, clears=0.0)
    await clock.run(*[asyncio.ensure_future(server.call(endpoint, 60.0)) for _ in range(200)])
    assert server.peak == 32
    assert endpoint.limit == 32
    endpoint.release(Outcome.RATE_LIMITED, await endpoint.acquire(clock.now() + 1), retry_after_s=1.0)
    assert endpoint.limit == 1
    clock._now += 2.0
    endpoint.release(Outcome.SUCCESS, await endpoint.acquire(clock.now() + 1))
    assert endpoint.limit == 16


async def test_a_burst_of_429_halves_once() -> None:
    clock = VirtualClock()
    endpoint = make(clock, initial_concurrency=16)
    starts = [await endpoint.acquire(10.0) for _ in range(16)]
    clock._now = 1.0
    for started in starts:
        endpoint.release(Outcome.RATE_LIMITED, started, retry_after_s=1.0)
    clock._now = 3.0
    endpoint.release(Outcome.SUCCESS, await endpoint.acquire(10.0))
    assert endpoint.limit == 8


async def test_breaker_opens_probes_once_and_closes() -> None:
    clock = VirtualClock()
    endpoint = make(clock, breaker_failures=3, breaker_open_s=4.0)
    for _ in range(3):
        endpoint.release(Outcome.FAILURE, await endpoint.acquire(100.0))
    with pytest.raises(CircuitOpen):
        await endpoint.acquire(100.0)
    clock._now = 4.1
    probe = await endpoint.acquire(100.0)
    with pytest.raises(CircuitOpen):
        await endpoint.acquire(100.0)  # while the probe is out
    endpoint.release(Outcome.FAILURE, probe)
    clock._now += 3.9
    with pytest.raises(CircuitOpen):
        await endpoint.acquire(100.0)  # open for longer than the first time
    clock._now += 8.0
    endpoint.release(Outcome.SUCCESS, await endpoint.acquire(100.0))
    await endpoint.acquire(100.0)


async def test_opening_the_breaker_ends_those_who_wait() -> None:
    clock = VirtualClock()
    endpoint = make(clock, initial_concurrency=1, breaker_failures=1)
    started = await endpoint.acquire(100.0)
    waiting = [asyncio.ensure_future(endpoint.acquire(100.0)) for _ in range(5)]
    await asyncio.sleep(0)
    endpoint.release(Outcome.FAILURE, started)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, CircuitOpen) for result in results)


async def test_waiting_ends_at_the_deadline() -> None:
    clock = VirtualClock()
    endpoint = make(clock, initial_concurrency=1)
    await endpoint.acquire(100.0)
    task = asyncio.ensure_future(endpoint.acquire(3.0))
    await clock.run(task)
    assert isinstance(task.exception(), DeadlineExceeded)
    assert clock.now() == 3.0


async def test_cancelled_waiters_pass_their_turn_on() -> None:
    clock = VirtualClock()
    endpoint = make(clock, initial_concurrency=1, max_concurrency=1)
    started = await endpoint.acquire(100.0)
    tasks = [asyncio.ensure_future(endpoint.acquire(100.0)) for _ in range(10)]
    await asyncio.sleep(0)
    endpoint.release(Outcome.NEUTRAL, started)  # wakes the first ...
    for task in tasks[:9]:
        task.cancel()  # ... which is cancelled before it runs
    assert await asyncio.wait_for(tasks[9], 5) is not None
    assert endpoint.in_flight == 1
    await asyncio.gather(*tasks, return_exceptions=True)


def test_retry_budget_keeps_amplification_at_one_and_a_half() -> None:
    clock = VirtualClock()
    endpoint = make(clock)
    rng = random.Random(3)

    async def simulate(failing: float, requests: int) -> tuple[int, int]:
        calls = good = 0
        for _ in range(requests):
            for attempt in range(6):
                calls += 1
                started = await endpoint.acquire(clock.now() + 1)
                bad = rng.random() < failing
                endpoint.release(Outcome.FAILURE if bad else Outcome.SUCCESS, started)
                if not bad:
                    good += 1
                    break
                if attempt == 5 or not endpoint.may_retry():
                    break
        return calls, good

    calls, good = asyncio.run(simulate(0.3, 2_000))
    assert calls / 2_000 <= 1.5
    assert good / 2_000 >= 0.997
