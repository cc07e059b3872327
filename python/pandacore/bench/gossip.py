"""``pandacore bench gossip``: rumors and averages over 10^6 agents, and hosts in virtual time.

The rows named ``sim_…`` run the real state machines of the hosts in the simulator. Their peers are figures
that were measured before on a machine of this size (docs/gossip.md says how): they are not run here.
"""

from __future__ import annotations

import resource
import sys

import numpy as np

from pandacore import gossip
from pandacore.bench.frame import Bench, Option

__all__ = ["OPTIONS", "PEERS", "run"]

PEERS = ("serf", "foca")
OPTIONS = (Option("seeds", int, 3, "runs of each rumor; the worst is reported"),)

_LOSSES = (0.0, 0.1, 0.3)
_PUSHES = {0.0: 4, 0.1: 6, 0.3: 10}
_FIRST = 1_000


def run(bench: Bench) -> None:
    """Measure rumors, merges and averages at each size, then the hosts' figures."""
    seeds = 1 if bench.quick else int(str(bench.options["seeds"]))
    for agents in bench.sizes(default=(1_000_000,), quick=(50_000,)):
        for loss in _LOSSES:
            runs = [gossip.simulate_rumor(agents, loss, _PUSHES[loss], bench.seed + i) for i in range(seeds)]
            bench.emit("rounds_to_all", max(r[0] for r in runs), "rounds", agents=agents, loss=loss)
            bench.emit("rounds_to_999", max(r[1] for r in runs), "rounds", agents=agents, loss=loss)
            payloads = max(r[2] for r in runs) / agents
            bench.emit("messages_per_agent", payloads, "messages", agents=agents, loss=loss)
            digests = max(r[3] for r in runs) / agents
            bench.emit("digests_per_agent", digests, "messages", agents=agents, loss=loss)
            bench.emit("run_seconds", max(r[5] for r in runs), "s", agents=agents, loss=loss)
            bench.emit("rss_bytes", _peak(), "B", agents=agents, loss=loss)
        merges, seconds = gossip.simulate_round(agents, 3, bench.seed)
        bench.emit("merges_per_second", merges / seconds, "merges/s", agents=agents)
        bench.emit("round_seconds", seconds, "s", agents=agents, fanout=3)
        for loss in (0.0, 0.3):
            rounds, error = gossip.simulate_average(agents, loss, 1e-6, bench.seed)
            bench.emit("averaging_rounds", rounds, "rounds", agents=agents, loss=loss)
            bench.emit("averaging_mass_error", error, "relative", agents=agents, loss=loss)
    _hosts(bench)


def _hosts(bench: Bench) -> None:
    seed = bench.seed
    for hosts, crashes, serf, foca in ((50, 10, 9.1, None), (500, 4, None, 12.6)):
        if bench.quick and hosts > 50:
            continue
        _, every, goodbye = gossip.simulate_detection(hosts, crashes, 0.0, seed)
        bench.emit("sim_detect_p50", float(np.median(every)), "s", hosts=hosts, crashes=crashes)
        peer, value = ("serf", serf) if serf else ("foca", foca)
        bench.emit(
            "sim_detect_p99",
            float(np.quantile(every, 0.99)),
            "s",
            peer=peer if bench.wants(peer) else None,
            peer_value=value if bench.wants(peer) else None,
            ratio="times_faster",
            hosts=hosts,
            crashes=crashes,
        )
        bench.emit("sim_goodbye", goodbye, "s", hosts=hosts)
    watched, packets = gossip.simulate_idle(50, 100, 120.0, seed)
    wanted = bench.wants("serf")
    bench.emit(
        "sim_idle_bytes",
        watched,
        "B/s",
        peer="serf" if wanted else None,
        peer_value=333.0 if wanted else None,
        hosts=50,
    )
    bench.emit("sim_idle_packets", packets, "1/s", hosts=50)
    for loss, foca_rate in ((0.1, 0.012), (0.2, 0.36), (0.3, 1.38)):
        hours = 0.1 if bench.quick else 25.0
        watched_hours, deaths, refutations, changes = gossip.simulate_false_deaths(20, hours, loss, seed)
        wanted = bench.wants("foca")
        bench.emit(
            "sim_false_deaths",
            deaths / watched_hours,
            "1/h",
            peer="foca" if wanted else None,
            peer_value=foca_rate if wanted else None,
            hosts=20,
            host_hours=watched_hours,
            loss=loss,
            refutations=refutations,
        )
        bench.emit("sim_identity_changes", changes, "changes", hosts=20, loss=loss)
    wrong, times, rate = gossip.simulate_pauses(40, 0.05, 5, seed)
    bench.emit("sim_paused_false_deaths", wrong, "deaths", hosts=40)
    bench.emit("sim_paused_traffic", times, "times idle", hosts=40, bytes_per_second=rate)
    for seconds in (30.0, 600.0) if bench.quick else (30.0, 600.0, 86_400.0):
        healed = gossip.simulate_healing(20, seconds, seed)
        bench.emit("sim_heal", healed, "s", hosts=20, partition_seconds=seconds)
    hosts = 100 if bench.quick else 1_000
    for senders, changes, loss in ((1, 60, 0.05), (hosts // 10, 3, 0.05)):
        redundancy, pushed, alone, slowest = gossip.simulate_tree(hosts, senders, changes, loss, seed)
        bench.emit("sim_tree_redundancy", redundancy, "messages", hosts=hosts, senders=senders, loss=loss)
        bench.emit("sim_tree_pushed", pushed, "share", hosts=hosts, senders=senders, loss=loss)
        bench.emit("sim_tree_alone", alone, "share", hosts=hosts, senders=senders, loss=loss)
        bench.emit("sim_tree_slowest", slowest, "s", hosts=hosts, senders=senders, loss=loss)
    count = 20 if bench.quick else 200
    trace = gossip.simulate_faults(_FIRST, count)
    if gossip.simulate_faults(_FIRST, 20) != gossip.simulate_faults(_FIRST, 20):
        bench.note("the same seeds gave two traces")
    bench.emit("sim_seeds", count, "seeds", trace=f"{trace:016x}")


def _peak() -> int:
    # Linux counts kilobytes, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
