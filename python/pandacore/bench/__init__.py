"""Benchmarks that run from the command line: ``pandacore bench NAME``.

`BENCHES` maps each name to the module that holds it and one line about it; nothing is imported until asked
for. A bench module has a function ``run(bench: Bench) -> None``; a tuple ``PEERS`` of the names that
``--against`` takes, if it compares; and a tuple ``OPTIONS`` of `Option`, if it has options of its own.
"""

from __future__ import annotations

__all__ = ["BENCHES"]

# One line per bench, in alphabetical order.
BENCHES: dict[str, tuple[str, str]] = {
    "assembly": ("pandacore.bench.assembly", "put teams together, dedicated and consolidated"),
    "broker": ("pandacore.bench.broker", "semantic search beside hnswlib, usearch and faiss"),
    "gossip": ("pandacore.bench.gossip", "rumors and averages over 10^6 agents; hosts in virtual time"),
    "orchestration": (
        "pandacore.bench.orchestration",
        "subtasks a second, added latency, crashes, over gRPC",
    ),
    "registry": ("pandacore.bench.registry_bench", "load, update and memory of the registry"),
    "replica": ("pandacore.bench.replica", "10^6 announcements between two real processes"),
    "reputation": ("pandacore.bench.reputation", "reputation updates and memory a rated pair"),
    "trust": ("pandacore.bench.trust", "trusted sets, chains and certificate events"),
}
