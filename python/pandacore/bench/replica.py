"""``pandacore bench replica``: announcements of one process, replicated to another over loopback QUIC.

The other process is this module run as a script: it publishes, prints its address, and answers questions
on its standard input.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pandacore import gossip
from pandacore.bench.frame import Bench
from pandacore.errors import StateError
from pandacore.gossip import Node
from pandacore.registry import Registry
from pandacore.trust import KeyPair

__all__ = ["PEERS", "run"]

PEERS = ()

_COLLECTIVE = bytes(range(32))
_CAPABILITIES = 1_000


def run(bench: Bench) -> None:
    """Measure bytes, updates, a cold join, a tail join and comparisons at each size."""
    for agents in bench.sizes(default=(1_000_000,), quick=(20_000,)):
        seconds, _ = gossip.time_replica(min(agents, 200_000), 30, bench.seed)
        times = np.array(seconds)
        conditions: dict[str, Any] = {"batch": 1000, "signature": "one a batch"}
        bench.emit("update_p50", float(np.median(times)) * 1e6, "us", agents=agents, **conditions)
        bench.emit("update_p99", float(np.quantile(times, 0.99)) * 1e6, "us", agents=agents, **conditions)
        child = subprocess.Popen(
            [sys.executable, "-m", "pandacore.bench.replica", str(agents), str(bench.seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            asyncio.run(_measure(bench, agents, child))
        finally:
            child.kill()
            child.communicate()
    equal, vector = gossip.comparison_sizes(1000)
    bench.emit("sync_bytes", equal, "B", state="equal")
    bench.emit("sync_bytes", vector, "B", state="different", hosts=1000)


async def _measure(bench: Bench, agents: int, child: subprocess.Popen[str]) -> None:
    facts = await asyncio.to_thread(_read, child)
    before = _rss()
    start = time.perf_counter()
    node = Node.start(KeyPair.generate(), _COLLECTIVE, seeds=[facts["address"]])
    report = await node.join(timeout_s=600)
    joined = time.perf_counter() - start
    if report.agents != agents:
        raise StateError(f"{report.agents} agents arrived, not {agents}", hint="report this")
    bench.emit("join_seconds", joined, "s", agents=agents, kind="cold, signatures checked")
    root = await asyncio.to_thread(_ask, child, "root")
    if root["root"] != node.root().hex():
        raise StateError("the two replicas have different roots", hint="report this")
    replica = _rss() - before
    bench.emit("replica_rss_bytes", replica, "B", agents=agents, part="replica")
    bench.emit("store_bytes_per_agent", node.counters()["store_bytes"] / agents, "B", agents=agents)
    registry = Registry(seed=1)
    start = time.perf_counter()
    node.feed(registry)
    bench.emit("feed_seconds", time.perf_counter() - start, "s", agents=agents)
    if len(registry) != agents:
        raise StateError(f"the registry has {len(registry)} agents, not {agents}", hint="report this")
    total = _rss() - before
    bench.emit("replica_rss_bytes", total, "B", agents=agents, part="replica and registry")
    bench.emit("bytes_per_agent", total / agents, "B", agents=agents, part="replica and registry, RSS")

    changed = max(1, agents // 100)
    cold = (await asyncio.to_thread(_ask, child, "sent"))["sent"]
    start = time.perf_counter()
    answer = await asyncio.to_thread(_ask, child, f"change {changed}")
    await _until_root(node, answer["root"])
    bench.emit("tail_seconds", time.perf_counter() - start, "s", agents=agents, changed=changed)
    tail = (await asyncio.to_thread(_ask, child, "sent"))["sent"] - cold
    # What the same rows took in the cold join, signatures and frames included.
    needed = cold / agents * changed
    bench.emit("tail_bytes", tail, "B", agents=agents, changed=changed, times_needed=round(tail / needed, 3))
    child_rss = await asyncio.to_thread(_ask, child, "rss")
    bench.emit("publisher_rss_bytes", child_rss["rss"], "B", agents=agents)
    await node.leave()


async def _until_root(node: Node, root: str) -> None:
    deadline = time.monotonic() + 120
    while node.root().hex() != root:
        if time.monotonic() > deadline:
            raise StateError("the changes did not arrive in 120 s", hint="report this")
        await node.wait_async(node.version, timeout_s=0.05)


def _read(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise StateError("the publishing process ended", hint="run it by hand to see why")
    facts: dict[str, Any] = json.loads(line)
    return facts


def _ask(child: subprocess.Popen[str], question: str) -> dict[str, Any]:
    assert child.stdin is not None
    child.stdin.write(question + "\n")
    child.stdin.flush()
    return _read(child)


def _rss() -> int:
    """Resident bytes of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError as error:
        raise StateError("resident memory is read from /proc", hint="run this bench on Linux") from error
    return pages * 4096


def main(agents: int, seed: int) -> None:
    """Publish, then answer questions until the input ends."""
    node = Node.start(KeyPair.generate(), _COLLECTIVE)
    node.publish_synthetic(agents, seed, _CAPABILITIES)
    _wait_rows(node, agents)
    _say(address=node.address)
    extra = 0
    for line in sys.stdin:
        match line.split():
            case ["root"]:
                _say(root=node.root().hex())
            case ["rss"]:
                _say(rss=_rss())
            case ["sent"]:
                _say(sent=node.counters()["frame_bytes_out"])
            case ["change", count]:
                # New agents: a change of 1 % of the rows, as far as the replica is concerned.
                extra += int(count)
                node.publish_synthetic(int(count), seed + extra, _CAPABILITIES)
                _wait_rows(node, agents + extra)
                _say(root=node.root().hex())
    node.close()


def _wait_rows(node: Node, rows: int) -> None:
    while node.rows < rows:
        node.wait(node.version, timeout_s=0.2)


def _say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
