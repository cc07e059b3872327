"""Load control shared by all clients of one endpoint in this process.

Three parts, one lock: a limiter (after a 429 everybody waits; concurrency grows by one per success and is
halved by a 429, as TCP does), a circuit breaker with a half-open probe, and a retry budget that keeps the
number of calls at or below 1.5 times the number of requests. Time and randomness are arguments.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Final, Protocol

from pandacore.errors import CircuitOpen, DeadlineExceeded, PandacoreError, RateLimited

__all__ = ["Clock", "Endpoint", "LimitConfig", "Outcome", "SystemClock", "endpoint", "forget_endpoint"]


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds since some fixed point; never goes backwards."""

    async def wait(self, wake: asyncio.Future[None] | None, seconds: float) -> None:
        """Return after ``seconds``, or earlier once ``wake`` is done."""


class SystemClock:
    """The monotonic clock and the event loop's timers."""

    def now(self) -> float:
        return time.monotonic()

    async def wait(self, wake: asyncio.Future[None] | None, seconds: float) -> None:
        if wake is None:
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait({wake}, timeout=seconds)


class Outcome(Enum):
    """How a call ended, as far as load control cares."""

    SUCCESS = "success"
    RATE_LIMITED = "rate limited"
    OVERLOADED = "overloaded"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    """The caller's fault or wish: says nothing about the endpoint."""


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """Bounds of load control; the defaults are what docs/models.md promises.

    Attributes
    ----------
    initial_concurrency, max_concurrency : int
        Calls in flight at first, and at most.
    pause_base_s, pause_cap_s : float
        After the k-th 429 in a row without a usable Retry-After, all wait a random time in
        (1/2, 1] · min(cap, base · 2^k). The cap also bounds a Retry-After.
    breaker_failures : int
        Failures in a row that open the breaker.
    breaker_open_s, breaker_cap_s : float
        How long it stays open; doubles with each failed probe, up to the cap.
    retry_ratio, retry_reserve, retry_cap : float
        Retries earned by a success, retries at first, and most retries saved up.
    """

    initial_concurrency: int = 8
    max_concurrency: int = 64
    pause_base_s: float = 1.0
    pause_cap_s: float = 60.0
    breaker_failures: int = 10
    breaker_open_s: float = 5.0
    breaker_cap_s: float = 60.0
    retry_ratio: float = 0.49
    retry_reserve: float = 8.0
    retry_cap: float = 50.0


_OVERLOAD_BASE_S: Final = 0.05
"""Our own server's queue drains in milliseconds; a foreign 429 means seconds."""


class Endpoint:
    """Load control of one address. Thread-safe; waiters may live on different event loops."""

    def __init__(self, target: str, config: LimitConfig, *, clock: Clock, rng: random.Random) -> None:
        self.target = target
        self._config = config
        self._clock = clock
        self._rng = rng
        self._lock = Lock()
        self._waiters: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._in_flight = 0
        self._limit = float(config.initial_concurrency)
        self._slow_start = True
        self._paused_until = 0.0
        self._pauses = 0  # in a row, without a success between
        self._probing = False  # after a pause, one call goes first
        self._cut_at = -1.0  # when the limit was last halved
        self._failures = 0  # in a row
        self._open_until: float | None = None  # the breaker; None when closed
        self._opened = 0  # times in a row
        self._probe: float | None = None  # when the half-open probe left
        self._retries = config.retry_reserve

    @property
    def in_flight(self) -> int:
        """Calls that hold a permit."""
        return self._in_flight

    @property
    def limit(self) -> int:
        """Calls that may run at once now."""
        return 1 if self._probing or self._open_until is not None else max(1, int(self._limit))

    async def acquire(self, deadline: float) -> float:
        """Wait for a permit; the time at which it was given.

        Raises
        ------
        RateLimited
            The endpoint's pause ends after the deadline.
        CircuitOpen
            The breaker is open.
        DeadlineExceeded
            No permit came free before the deadline.
        """
        loop = asyncio.get_running_loop()
        while True:
            now = self._clock.now()
            with self._lock:
                pause = self._paused_until - now
                error = self._refusal(now, pause, deadline)
                if error is not None:
                    self._wake_free()  # the wake-up that brought us here was for somebody who can use it
                    raise error
                probe = self._open_until is not None
                if pause <= 0 and (probe or self._in_flight < self.limit):
                    self._in_flight += 1
                    if probe:
                        self._probe = now
                    return now
                wake: asyncio.Future[None] = loop.create_future()
                entry = (loop, wake)
                self._waiters.append(entry)
            try:
                await self._clock.wait(wake, min(pause if pause > 0 else deadline - now, deadline - now))
            except BaseException:
                with self._lock:
                    if not self._left_queue(entry):
                        self._wake_free()
                raise
            with self._lock:
                self._left_queue(entry)

    def _left_queue(self, entry: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]) -> bool:
        """Take a waiter out; False if it was woken before."""
        try:
            self._waiters.remove(entry)
        except ValueError:
            return False
        return True

    def _refusal(self, now: float, pause: float, deadline: float) -> PandacoreError | None:
        if self._open_until is not None and (now < self._open_until or self._probe is not None):
            wait = max(0.0, self._open_until - now)
            return CircuitOpen(
                f"{self._failures} calls in a row failed; the next probe is due in {wait:.1f} s",
                where=self.target,
                hint="check that the model server runs, then try again",
            )
        if pause > 0 and self._paused_until > deadline:
            return RateLimited(
                f"the server asked for fewer calls; the pause of {pause:.1f} s ends after the deadline",
                retry_after_s=pause,
                where=self.target,
                hint="give the call a longer deadline, or make fewer calls",
            )
        if now >= deadline:
            return DeadlineExceeded(
                f"{self._in_flight} calls were in flight and no permit came free",
                where=self.target,
                hint="give the call more time, or run fewer at once",
            )
        return None

    def release(self, outcome: Outcome, started: float, *, retry_after_s: float | None = None) -> None:
        """Give the permit back and learn from how the call ended."""
        now = self._clock.now()
        with self._lock:
            self._in_flight -= 1
            if self._probe == started:
                self._probe = None
            match outcome:
                case Outcome.SUCCESS:
                    self._on_success()
                case Outcome.RATE_LIMITED:
                    self._on_rate_limit(now, started, self._config.pause_base_s, retry_after_s)
                case Outcome.OVERLOADED:
                    self._on_rate_limit(now, started, _OVERLOAD_BASE_S, None)
                case Outcome.FAILURE:
                    self._on_failure(now)
                case Outcome.NEUTRAL:
                    pass
            if self._open_until is not None:
                self._wake(len(self._waiters))  # to be refused
            else:
                self._wake_free()

    def _on_success(self) -> None:
        self._failures = self._opened = self._pauses = 0
        self._open_until = None
        self._probing = False
        self._retries = min(self._config.retry_cap, self._retries + self._config.retry_ratio)
        step = 1.0 if self._slow_start else 1.0 / self._limit
        self._limit = min(float(self._config.max_concurrency), self._limit + step)

    def _on_rate_limit(self, now: float, started: float, base_s: float, retry_after_s: float | None) -> None:
        # The server is there and answers: for the breaker this is no failure.
        self._failures = 0
        self._open_until = None
        self._slow_start = False
        self._probing = True
        if started < self._cut_at:
            # This call left before the last cut: it reports the same jam, which is already acted on. Only
            # a longer wish of the server counts.
            if retry_after_s:
                until = now + min(retry_after_s, self._config.pause_cap_s)
                self._paused_until = max(self._paused_until, until)
            return
        self._cut_at = now
        self._limit = max(1.0, self._limit / 2)
        self._pauses += 1
        if retry_after_s:
            # A little more than asked, so that the processes of one machine do not all come back at once.
            pause = retry_after_s * (1.0 + 0.1 * self._rng.random())
            pause = min(pause, self._config.pause_cap_s)
        else:
            ceiling = min(self._config.pause_cap_s, base_s * 2.0 ** min(self._pauses, 16))
            pause = ceiling * (0.5 + 0.5 * self._rng.random())
        self._paused_until = max(self._paused_until, now + pause)

    def _on_failure(self, now: float) -> None:
        self._failures += 1
        if self._open_until is None and self._failures < self._config.breaker_failures:
            return
        if self._open_until is not None and now < self._open_until:
            return  # a call from before the breaker opened
        ceiling = min(self._config.breaker_cap_s, self._config.breaker_open_s * 2.0 ** min(self._opened, 16))
        self._open_until = now + ceiling * (0.5 + 0.5 * self._rng.random())
        self._opened += 1

    def _wake_free(self) -> None:
        self._wake(self.limit - self._in_flight)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            loop, wake = self._waiters.popleft()
            count -= 1
            try:
                loop.call_soon_threadsafe(_set_done, wake)
            except RuntimeError:  # that loop was closed with a waiter on it
                count += 1

    def may_retry(self) -> bool:
        """Take one retry from the budget; False when it is spent."""
        with self._lock:
            if self._retries < 1.0:
                return False
            self._retries -= 1.0
            return True


def _set_done(wake: asyncio.Future[None]) -> None:
    if not wake.done():
        wake.set_result(None)


_ENDPOINTS_KEPT: Final = 256
_endpoints: OrderedDict[str, Endpoint] = OrderedDict()
_registry_lock = Lock()


def endpoint(target: str, make: Callable[[], Endpoint]) -> Endpoint:
    """The one `Endpoint` of an address in this process; ``make`` is called for a new address.

    At most 256 are kept; the one unused for longest goes first.
    """
    with _registry_lock:
        found = _endpoints.get(target)
        if found is None:
            found = _endpoints[target] = make()
        _endpoints.move_to_end(target)
        while len(_endpoints) > _ENDPOINTS_KEPT:
            _endpoints.popitem(last=False)
        return found


def forget_endpoint(target: str) -> None:
    """Drop what is known of an address: its server is gone, and another may get the same port."""
    with _registry_lock:
        _endpoints.pop(target, None)


def _reset_after_fork() -> None:
    global _registry_lock  # noqa: PLW0603 - a lock that another thread held at the fork is never released
    _registry_lock = Lock()
    _endpoints.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
