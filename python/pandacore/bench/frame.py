"""The frame of every benchmark: fair comparison, percentiles, machine facts, one row per figure.

A contender is a `Case`. `Bench.compare` runs our case and its peers in one process, in blocks whose order
is reversed each round (A B C, C B A, ...), so that drift of the clock speed or of the load on the machine
falls on all alike. What is timed is single calls, so p99 is a percentile of calls and not of averages.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from pandacore.bench import BENCHES
from pandacore.bench.text import columns, number
from pandacore.errors import ConfigError, StateError

__all__ = [
    "Bench",
    "Case",
    "Entry",
    "Option",
    "Row",
    "Sample",
    "load_bench",
    "machine_facts",
    "parse_options",
    "plain",
    "require_release_build",
    "run_bench",
    "table",
    "write_json",
]

OURS = "pandacore"

# Factor from seconds to each unit a time may be reported in.
_TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

Condition = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """An option that only one bench has, given as ``--name value``."""

    name: str
    kind: Callable[[str], object]
    default: object
    help: str


@dataclass(frozen=True, slots=True)
class Case:
    """One contender of a comparison; give exactly one of ``op`` and ``timed``.

    Parameters
    ----------
    name : str
        ``"pandacore"`` for ours, otherwise the peer's name, which ``--against`` selects by.
    op : callable, optional
        One call of the operation. It is timed from outside, and the cost of the clock is taken off.
    inputs : sequence, optional
        ``op`` is called with these in turn, from the first to the last and over again; the same sequence for
        all contenders makes them do the same work. Without it ``op`` takes no argument.
    timed : callable, optional
        ``timed(calls)`` makes ``calls`` calls and returns the seconds of each as a float array: for
        operations too short for Python's clock, timed in the core.
    per_call : int
        Operations inside one call (a batch); times are divided by it.
    before : callable, optional
        Run before each block, not timed: resets state so that every block starts alike.
    max_calls : int, optional
        Upper bound of calls in a block, for cases that are slow by orders of magnitude.
    """

    name: str
    op: Callable[..., object] | None = None
    inputs: Sequence[Any] | None = None
    timed: Callable[[int], NDArray[np.float64]] | None = None
    per_call: int = 1
    before: Callable[[], object] | None = None
    max_calls: int | None = None

    def __post_init__(self) -> None:
        if (self.op is None) == (self.timed is None):
            raise ConfigError(f"case {self.name!r} needs exactly one of op and timed", where="Case")
        if self.per_call < 1:
            raise ConfigError(f"per_call is {self.per_call}, must be at least 1", where="Case.per_call")
        if self.inputs is not None and (self.op is None or not self.inputs):
            raise ConfigError(f"case {self.name!r} has inputs but nothing to do", where="Case.inputs")


@dataclass(frozen=True, slots=True)
class Sample:
    """Times of one case: seconds per operation, one entry a call."""

    name: str
    seconds: NDArray[np.float64]

    @property
    def p50(self) -> float:
        """Median, in seconds."""
        return float(np.median(self.seconds))

    @property
    def p99(self) -> float:
        """99th percentile, in seconds."""
        return float(np.quantile(self.seconds, 0.99))

    @property
    def mean(self) -> float:
        """Mean, in seconds; its inverse is the throughput."""
        return float(np.mean(self.seconds))

    def stat(self, name: str) -> float:
        """Return ``p50``, ``p99`` or ``mean`` in seconds."""
        match name:
            case "p50":
                return self.p50
            case "p99":
                return self.p99
            case "mean":
                return self.mean
        raise ConfigError(f"unknown statistic {name!r}", where="stat", hint="use p50, p99 or mean")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, as it is printed.

    ``ratio`` compares with the peer. ``ratio_is`` says how: ``times_faster`` (above 1 is better, for speeds
    and latencies alike) or ``ours/theirs`` (a fraction of the peer's size or time).
    """

    bench: str
    metric: str
    agents: int | None
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    ratio_is: str | None = None
    conditions: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the row as one flat object; conditions follow the fixed keys."""
        fixed: dict[str, object] = {
            "bench": self.bench,
            "metric": self.metric,
            "agents": self.agents,
            "value": plain(self.value),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": plain(self.peer_value),
            "ratio": plain(self.ratio),
            "ratio_is": self.ratio_is,
        }
        return fixed | {key: plain(value) for key, value in self.conditions.items() if key not in fixed}


def plain(value: object) -> object:
    """Turn NumPy scalars into Python's, and what JSON cannot say (inf, nan) into null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Bench:
    """What a bench module gets: sizes, seed, peers, and the functions that measure and report.

    Attributes
    ----------
    quick : bool
        Smaller sizes and shorter blocks: the path is tried, the figures mean little.
    seed : int
        Seed of everything random; `rng` gives a fresh generator from it.
    options : dict
        The values of the module's ``OPTIONS``.
    """

    def __init__(
        self,
        name: str,
        *,
        agents: Sequence[int] = (),
        against: Sequence[str] = (),
        quick: bool = False,
        seed: int = 42,
        options: Mapping[str, object] | None = None,
        report: Callable[[Row], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.quick = quick
        self.seed = seed
        self.options = dict(options or {})
        self.rows: list[Row] = []
        self.skipped: dict[str, str] = {}
        self._agents = tuple(agents)
        self._against = frozenset(against)
        self._report = report
        self._note = note
        self._clock_cost_s: float | None = None

    # -- what to run

    def sizes(self, default: Sequence[int], quick: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of agents to run: ``--agents`` when given, else ``default`` or ``quick``."""
        return self._agents or tuple(quick if self.quick else default)

    def rng(self, stream: int = 0) -> np.random.Generator:
        """Return a generator that depends only on the seed and ``stream``."""
        return np.random.default_rng([self.seed, stream])

    def wants(self, peer: str) -> bool:
        """Say if this peer is to be run; with ``--against`` only the named ones are."""
        return not self._against or peer in self._against

    def peer(self, name: str, *, module: str | None = None, extra: str = "bench") -> ModuleType | None:
        """Import a peer's module, or note that it is skipped and which extra brings it.

        Parameters
        ----------
        name : str
            The peer's name in rows and in ``--against``.
        module : str, optional
            What to import when it differs from the name.
        extra : str
            The extra of pandacore that installs it.
        """
        if not self.wants(name):
            return None
        try:
            return importlib.import_module(module or name)
        except ImportError:
            self.skip(name, f"not installed; pip install 'pandacore[{extra}]' brings it")
            return None

    def skip(self, peer: str, why: str) -> None:
        """Record once that a peer was not run, and why."""
        if peer not in self.skipped:
            self.skipped[peer] = why
            self.note(f"skipped {peer}: {why}")

    def note(self, text: str) -> None:
        """Tell the user something that is not a figure (it goes to stderr)."""
        if self._note is not None:
            self._note(text)

    # -- measuring

    def measure(self, cases: Sequence[Case], *, rounds: int | None = None) -> dict[str, Sample]:
        """Time the cases in alternating order and return the samples by name.

        Each block lasts about 0.2 s (0.02 s when quick) and at least 5 calls; the first, untimed block is the
        warm-up and sets the number of calls. The collector of cyclic garbage is off inside blocks.
        """
        names = [case.name for case in cases]
        if len(set(names)) != len(names):
            raise ConfigError(f"two cases share a name: {names}", where=f"bench {self.name}")
        rounds = rounds or (2 if self.quick else 6)
        block_s = 0.02 if self.quick else 0.2
        calls = {case.name: self._warm_up(case, block_s) for case in cases}
        blocks: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names}
        for turn in range(rounds):
            for case in cases if turn % 2 == 0 else reversed(cases):
                blocks[case.name].append(self._block(case, calls[case.name], turn * calls[case.name]))
        return {name: Sample(name, np.concatenate(parts)) for name, parts in blocks.items()}

    def compare(
        self,
        metric: str | Mapping[str, str],
        ours: Case,
        peers: Sequence[Case] = (),
        *,
        unit: str = "us",
        agents: int | None = None,
        ratio: Literal["times_faster", "ours/theirs"] = "times_faster",
        rows: Literal["each", "best"] = "each",
        rounds: int | None = None,
        **conditions: Condition,
    ) -> dict[str, Sample]:
        """Measure ours beside the peers and report the rows.

        Parameters
        ----------
        metric : str or dict
            A dict maps each metric name to its statistic: ``{"assemble_p50": "p50", "assemble_p99": "p99"}``.
            A plain string is the median, or the throughput if the unit is a rate.
        unit : str
            ``s``, ``ms``, ``us`` or ``ns`` for times, anything that ends in ``/s`` for a rate.
        ratio : {"times_faster", "ours/theirs"}
            How the ratio reads; see `Row`.
        rows : {"each", "best"}
            One row per peer, or one row against the fastest peer with the others' values under ``peers``.
        """
        wanted = [case for case in peers if self.wants(case.name)]
        samples = self.measure([ours, *wanted], rounds=rounds)
        rate = unit.endswith("/s")
        if not rate and unit not in _TIME_UNITS:
            raise ConfigError(f"{unit!r} is neither a time nor a rate", where="compare(unit=...)")
        metrics = {metric: "mean" if rate else "p50"} if isinstance(metric, str) else dict(metric)
        for name, stat in metrics.items():
            values = {
                case: 1.0 / s.stat(stat) if rate else s.stat(stat) * _TIME_UNITS[unit]
                for case, s in samples.items()
            }
            mine = values.pop(ours.name)
            extra: dict[str, Any] = {"calls": int(samples[ours.name].seconds.size), **conditions}
            if not values:
                self.emit(name, mine, unit, agents=agents, **extra)
                continue
            best = max(values, key=lambda p: values[p]) if rate else min(values, key=lambda p: values[p])
            shown = [best] if rows == "best" else list(values)
            for peer in shown:
                more = dict(extra)
                if rows == "best":
                    more["peers"] = dict(values)
                elif len(values) > 1:
                    more["fastest_peer"] = peer == best
                self.emit(
                    name, mine, unit, agents=agents, peer=peer, peer_value=values[peer], ratio=ratio, **more
                )
        return samples

    def emit(
        self,
        metric: str,
        value: float,
        unit: str,
        *,
        agents: int | None = None,
        peer: str | None = None,
        peer_value: float | None = None,
        ratio: Literal["times_faster", "ours/theirs"] = "ours/theirs",
        **conditions: object,
    ) -> Row:
        """Report one figure that was measured elsewhere (sizes, counts, figures timed in the core)."""
        quotient: float | None = None
        if peer is not None and peer_value is not None:
            inverse = ratio == "times_faster" and unit in _TIME_UNITS
            top, bottom = (peer_value, value) if inverse else (value, peer_value)
            quotient = top / bottom if bottom else None
        row = Row(
            bench=self.name,
            metric=metric,
            agents=agents,
            value=float(value),
            unit=unit,
            peer=peer,
            peer_value=None if peer_value is None else float(peer_value),
            ratio=quotient,
            ratio_is=None if quotient is None else ratio,
            conditions=conditions | {"seed": self.seed, "quick": self.quick},
        )
        self.rows.append(row)
        if self._report is not None:
            self._report(row)
        return row

    def _warm_up(self, case: Case, block_s: float) -> int:
        """Run the case for about one block, untimed, and return how many calls fill one."""
        if case.before is not None:
            case.before()
        start = time.perf_counter()
        calls = 0
        step = 1
        while (elapsed := time.perf_counter() - start) < block_s and calls < 1_000_000:
            if case.timed is not None:
                case.timed(step)
            elif case.op is not None:
                for arguments in _arguments(case, calls, step):
                    case.op(*arguments)
            calls += step
            step = min(2 * step, 4096)
        count = max(5, int(calls * block_s / elapsed) if elapsed > 0 else calls)
        return min(count, case.max_calls or count, 1_000_000)

    def _block(self, case: Case, calls: int, start_at: int) -> NDArray[np.float64]:
        if case.before is not None:
            case.before()
        with _no_gc():
            if case.timed is not None:
                seconds = np.asarray(case.timed(calls), dtype=np.float64)
            else:
                op = case.op
                assert op is not None  # Case checks it
                clock = time.perf_counter_ns
                marks = np.empty(calls, dtype=np.int64)
                for i, arguments in enumerate(_arguments(case, start_at, calls)):
                    start = clock()
                    op(*arguments)
                    marks[i] = clock() - start
                seconds = np.maximum(marks * 1e-9 - self._clock_cost(), 1e-9)
        return seconds / case.per_call

    def _clock_cost(self) -> float:
        """Seconds that reading the clock twice takes: measured once, taken off every sample."""
        if self._clock_cost_s is None:
            clock = time.perf_counter_ns
            empty = []
            for _ in range(2000):
                start = clock()
                empty.append(clock() - start)
            self._clock_cost_s = float(np.median(empty)) * 1e-9
        return self._clock_cost_s


def _arguments(case: Case, start: int, count: int) -> list[tuple[Any, ...]]:
    """Return the arguments of ``count`` calls; each block goes on in the inputs where the last one ended."""
    if case.inputs is None:
        return [()] * count
    size = len(case.inputs)
    return [(case.inputs[(start + i) % size],) for i in range(count)]


@contextlib.contextmanager
def _no_gc() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def machine_facts() -> dict[str, object]:
    """Return what a reader must know to compare figures: processor, cores, load, versions, build."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
        for line in info:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    load: float | None = None
    with contextlib.suppress(OSError, AttributeError):
        load = round(os.getloadavg()[0], 2)
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": cpu,
        "cores": len(affinity(0)) if affinity is not None else os.cpu_count(),
        "load_1m": load,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "os": f"{platform.system()} {platform.release()}",
        "build": _build(),
    }


def _build() -> str:
    try:
        from pandacore import build
    except ImportError:
        return "missing"
    return "release" if build.RELEASE_BUILD else "dev"


def require_release_build() -> None:
    """Refuse to measure an extension built without optimisation.

    Raises
    ------
    StateError
        The extension is a development build, or is not built at all.
    """
    build = _build()
    if build != "release":
        raise StateError(
            f"the extension module is a {build} build; its figures would mean nothing",
            where="pandacore._core",
            hint="build it with: maturin develop --release",
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A bench as its module declares it."""

    run: Callable[[Bench], None]
    options: tuple[Option, ...]
    peers: tuple[str, ...]


def load_bench(name: str) -> Entry:
    """Import the bench of this name.

    Raises
    ------
    ConfigError
        No bench has this name.
    """
    if name not in BENCHES:
        raise ConfigError(
            f"there is no bench {name!r}",
            where="bench NAME",
            hint=f"choose one of: {', '.join(sorted(BENCHES))}",
        )
    module = importlib.import_module(BENCHES[name][0])
    return Entry(module.run, getattr(module, "OPTIONS", ()), getattr(module, "PEERS", ()))


def run_bench(
    name: str,
    *,
    agents: Sequence[int] = (),
    against: Sequence[str] = (),
    quick: bool = False,
    seed: int = 42,
    options: Mapping[str, str] | None = None,
    report: Callable[[Row], None] | None = None,
    note: Callable[[str], None] | None = None,
    any_build: bool = False,
) -> list[Row]:
    """Run one bench and return its rows; ``report`` sees each row as soon as it is known.

    Raises
    ------
    ConfigError
        Unknown bench, option or peer.
    StateError
        The extension is not a release build.
    """
    entry = load_bench(name)
    values = parse_options(name, entry.options, options or {})
    for peer in against:
        if peer not in entry.peers:
            raise ConfigError(
                f"bench {name} has no peer {peer!r}",
                where="--against",
                hint=f"its peers are: {', '.join(entry.peers) or 'none'}",
            )
    if not any_build:
        require_release_build()
    machine = machine_facts()

    def stamped(row: Row) -> None:
        if report is not None:
            report(_with_machine(row, machine))

    bench = Bench(
        name,
        agents=agents,
        against=against,
        quick=quick,
        seed=seed,
        options=values,
        report=stamped,
        note=note,
    )
    entry.run(bench)
    return [_with_machine(row, machine) for row in bench.rows]


def _with_machine(row: Row, machine: Mapping[str, object]) -> Row:
    return Row(
        row.bench,
        row.metric,
        row.agents,
        row.value,
        row.unit,
        row.peer,
        row.peer_value,
        row.ratio,
        row.ratio_is,
        {**row.conditions, "machine": dict(machine)},
    )


def parse_options(name: str, known: Sequence[Option], given: Mapping[str, str]) -> dict[str, object]:
    """Return the value of every known option from the texts given on the command line.

    Raises
    ------
    ConfigError
        A name is unknown or a text does not fit.
    """
    values: dict[str, object] = {option.name: option.default for option in known}
    for key, text in given.items():
        option = next((o for o in known if o.name == key), None)
        if option is None:
            names = ", ".join(f"--{o.name}" for o in known) or "none"
            raise ConfigError(
                f"{name} has no option --{key}", where=f"--{key}", hint=f"its own options: {names}"
            )
        try:
            values[key] = option.kind(text)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{text!r} does not fit: {error}", where=f"--{key}", hint=option.help) from None
    return values


def write_json(row: Row, out: TextIO) -> None:
    """Write a row as one line of JSON."""
    out.write(json.dumps(row.as_json(), ensure_ascii=True) + "\n")
    out.flush()


def table(rows: Sequence[Row]) -> str:
    """Return the rows as an aligned plain-text table."""
    head = ("metric", "agents", "value", "unit", "peer", "peer value", "ratio", "conditions")
    body = [
        (
            row.metric,
            "" if row.agents is None else f"{row.agents:,}",
            number(row.value),
            row.unit,
            row.peer or "",
            number(row.peer_value),
            _ratio(row),
            " ".join(_shown(key, value) for key, value in row.conditions.items() if _is_shown(key, value)),
        )
        for row in rows
    ]
    return columns(head, body, right={1, 2, 5, 6})


def _is_shown(key: str, value: object) -> bool:
    if key in {"machine", "seed", "quick", "calls", "peers"}:
        return False
    return value is not False if key == "fastest_peer" else True


def _shown(key: str, value: object) -> str:
    if value is True:
        return key
    return f"{key}={number(value)}" if isinstance(value, float) else f"{key}={value}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    return f"{number(row.ratio)}x faster" if row.ratio_is == "times_faster" else f"{row.ratio:.3g} of it"
