"""Which candidates to probe, and which of those that answered to reserve: a policy without I/O.

The caller samples candidates (two blocks of the registry are 16), sends the probes and reserves. How old the
known loads are, in service times, decides what is worth doing: fresh ones are used as they are, older ones
shortlist whom to probe, very old ones are not used at all.

>>> probing = Probing()
>>> known = [Known(load=n % 3, service_s=1.0, age_s=0.3) for n in range(16)]
>>> advice = probing.advise(known, service_s=1.0, seed=1)
>>> advice.probe, len(advice.order)
(True, 5)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pandacore._core import LateBinding, ProbingCore, simulate_balance
from pandacore.errors import ConfigError

__all__ = ["Advice", "Known", "LateBinding", "Probing", "queue_limit", "simulate_balance"]


class Known(NamedTuple):
    """What is known about one candidate.

    ``load`` counts queued and running tasks, own unreported reservations included; times are in seconds, and
    ``age_s`` is the age of the load.
    """

    load: int
    concurrency: int = 1
    service_s: float = 1.0
    rtt_s: float = 0.0
    age_s: float = math.inf


class Advice(NamedTuple):
    """What to do with a sample."""

    probe: bool
    """Probe the candidates in ``order``, or reserve in that order without a probe."""
    order: list[int]
    """Indices into the sample."""
    timeout_s: float
    """When to go on with the answers that came; 0 without probes."""


@dataclass(frozen=True, slots=True)
class Probing:
    """How candidates are chosen.

    Parameters
    ----------
    policy : str
        ``idle_first_two_stage`` (the default: idle agents first, the fastest of them, else the shortest
        expected wait; probes as staleness demands), ``random``, ``power_of_d`` (probe ``d`` and take the
        shortest queue) or ``least_loaded`` (the shortest known queue; herds when loads are stale).
    d : int
        Probes of ``power_of_d``.
    sample, shortlist, extra, fresh : int
        Candidates to sample; probes to the best of them and to random others; random probes when loads are
        too old.
    local_below, ignore_from : float
        Ages, in service times, below which nothing is probed and from which known loads are ignored.
    tries : int
        Candidates to try to reserve before sampling again.
    timeout_s : (float, float)
        Bounds of the time to wait for probes.
    """

    policy: Literal["idle_first_two_stage", "random", "power_of_d", "least_loaded"] = "idle_first_two_stage"
    d: int = field(default=2, kw_only=True)
    sample: int = field(default=16, kw_only=True)
    shortlist: int = field(default=4, kw_only=True)
    extra: int = field(default=1, kw_only=True)
    fresh: int = field(default=8, kw_only=True)
    local_below: float = field(default=0.05, kw_only=True)
    ignore_from: float = field(default=1.0, kw_only=True)
    tries: int = field(default=3, kw_only=True)
    timeout_s: tuple[float, float] = field(default=(0.02, 0.25), kw_only=True)
    _core: ProbingCore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("d", "sample", "fresh", "tries"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1", where=name)
        if not 0 < self.timeout_s[0] <= self.timeout_s[1] < math.inf:
            raise ConfigError(
                f"timeout_s is {self.timeout_s}; it must be two ascending times", where="timeout_s"
            )
        core = ProbingCore(
            self.policy,
            d=self.d,
            sample=self.sample,
            shortlist=self.shortlist,
            extra=self.extra,
            fresh=self.fresh,
            local_below=self.local_below,
            ignore_from=self.ignore_from,
            tries=self.tries,
            timeout_s=self.timeout_s,
        )
        object.__setattr__(self, "_core", core)

    def advise(self, known: Sequence[Known], *, service_s: float, seed: int) -> Advice:
        """Say what to do with a sample whose agents take about ``service_s`` seconds for a task."""
        return Advice(*self._core.advise(list(known), service_s, seed))

    def choose(self, answered: Sequence[Known], *, seed: int) -> list[int]:
        """The order in which to reserve among candidates that answered; at most ``tries``."""
        return self._core.choose(list(answered), seed)


def queue_limit(concurrency: int) -> int:
    """The longest queue an agent takes before it refuses."""
    return ProbingCore.queue_limit(concurrency)
