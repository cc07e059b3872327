"""Host processes in network namespaces of their own, behind one router that drops, cuts and heals.

Run as a script this file is a nursery: it has imported everything and forks hosts, so that a start takes
milliseconds. A host writes what it sees to a file, one JSON line for each change, by the monotonic clock that
all processes of a machine share. So times of detection are those of the hosts.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pandacore.gossip import Announcement, Node
from pandacore.trust import KeyPair

HOME = bytes([8]) * 32
PORT = 7700
ROUTER = "10.77.255.254"


def reason_to_skip() -> str | None:
    """Why namespaces cannot be used here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    name = f"pc{os.getpid()}try"
    try:
        shell("ip", "netns", "add", name)
        shell("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        shell("ip", "netns", "exec", name, "nft", "-f", "-", text=rules(loss=100))
    except subprocess.CalledProcessError as error:
        return f"namespaces or nft are not permitted: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


def shell(*command: str, text: str | None = None) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def rules(loss: int = 0, sides: tuple[list[str], list[str]] | None = None) -> str:
    """What the router drops: ``loss`` of 1000 datagrams, and everything between two sides."""
    lines = [
        "flush ruleset",
        "table inet faults {",
        "chain forward {",
        "type filter hook forward priority 0;",
    ]
    if sides is not None:
        left, right = (f"{{ {', '.join(side)} }}" for side in sides)
        lines += [f"ip saddr {left} ip daddr {right} drop", f"ip saddr {right} ip daddr {left} drop"]
    if loss:
        lines.append(f"meta l4proto udp numgen random mod 1000 < {loss} counter drop")
    return "\n".join([*lines, "}", "}"])


class Host:
    """One process in its namespace."""

    def __init__(self, network: Network, number: int, **options: Any) -> None:
        self.network, self.number, self.options = network, number, options
        self.address = network.address(number)
        self.starts = 0
        self._events: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        self.starts += 1
        self._read, self._latest = 0, dict[str, Any]()
        self.log = self.network.folder / f"host-{self.number}-{self.starts}.jsonl"
        # The first host is everybody's seed, and the second is the first one's, for when it starts again.
        seeds = [] if self.number == 0 and self.starts == 1 else [0, 1]
        facts = {
            "seed": (bytes([1 + self.number % 255]) * 31 + bytes([self.number // 255])).hex(),
            # Any address: so a host follows the machine when that gets another one.
            "bind": f"0.0.0.0:{PORT}",
            "seeds": [f"{self.network.address(s)}:{PORT}" for s in seeds if s != self.number],
            "log": str(self.log),
            "errors": str(self.network.folder / f"errors-{self.number}.txt"),
            "namespace": self.network.name(self.number),
            **self.options,
        }
        self.pid = self.network.ask({"start": facts})
        self.exit: int | None = None

    def events(self) -> list[dict[str, Any]]:
        """All views so far, from all starts; a line that is just being written is left out."""
        if self.log.exists():
            with self.log.open(encoding="utf-8") as file:
                file.seek(self._read)
                while (line := file.readline()).endswith("\n"):
                    self._events.append(json.loads(line))
                    self._latest = self._events[-1]
                    self._read = file.tell()
        return self._events

    def view(self) -> dict[str, Any]:
        """The newest view of this start, or nothing yet."""
        self.events()
        return self._latest

    def send(self, number: int) -> float:
        """Signal the process; returns the time."""
        now = time.monotonic()
        os.kill(self.pid, number)
        return now

    def wait(self, seconds: float = 0) -> int | None:
        """Its exit status, or None when it still runs after that time."""
        if self.exit is None:
            self.exit = self.network.ask({"wait": self.pid, "seconds": seconds})
        return self.exit

    def move(self, number: int) -> float:
        """Take the address of another number, which is free, and give the present one up."""
        old, self.address = self.address, self.network.address(number)
        hub, own = self.network.name("hub"), self.network.name(self.number)
        shell("ip", "-n", hub, "route", "add", f"{self.address}/32", "dev", f"v{self.number}")
        shell("ip", "-n", own, "address", "add", f"{self.address}/32", "dev", "eth0")
        moved = time.monotonic()
        shell("ip", "-n", own, "address", "del", f"{old}/32", "dev", "eth0")
        shell("ip", "-n", hub, "route", "del", f"{old}/32")
        return moved

    def kill(self) -> float:
        if self.wait() is not None:
            return time.monotonic()
        now = self.send(signal.SIGKILL)
        self.wait(10)
        self.events()
        return now


class Network:
    """A router in a namespace, and one namespace for each host.

    A bridge would do as well, but every pair of hosts would then take an entry of the neighbour table, which
    all namespaces share: fifty hosts overflow it.
    """

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder, self.size = folder, hosts
        self.hosts: list[Host] = []
        self._made: list[str] = []
        self._nursery = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question: dict[str, Any]) -> Any:
        """One question to the nursery."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(question) + "\n")
        self._nursery.stdin.flush()
        return json.loads(self._nursery.stdout.readline())

    @staticmethod
    def pause(seconds: float) -> None:
        """Let faults last for a while: their duration is part of the scenario."""
        time.sleep(seconds)

    def name(self, number: int | str) -> str:
        return f"pc{os.getpid()}-{number}"

    def address(self, number: int) -> str:
        return f"10.77.{number // 250}.{number % 250 + 1}"

    def build(self) -> None:
        hub = self.name("hub")
        for name in [hub, *(self.name(i) for i in range(self.size))]:
            shell("ip", "netns", "add", name)
            self._made.append(name)
        lines = []
        for i in range(self.size):
            lines += [
                f"link add v{i} type veth peer name eth0 netns {self.name(i)}",
                f"address add {ROUTER}/32 dev v{i}",
                f"link set v{i} up",
                f"route add {self.address(i)}/32 dev v{i}",
            ]
        shell("ip", "-n", hub, "-batch", "-", text="\n".join(lines))
        shell("ip", "netns", "exec", hub, "tee", "/proc/sys/net/ipv4/ip_forward", text="1")
        for i in range(self.size):
            own = [
                f"address add {self.address(i)}/32 dev eth0",
                "link set lo up",
                "link set eth0 up",
                f"route add {ROUTER}/32 dev eth0",
                f"route add default via {ROUTER}",
            ]
            shell("ip", "-n", self.name(i), "-batch", "-", text="\n".join(own))

    def faults(self, loss: int = 0, sides: tuple[list[Host], list[Host]] | None = None) -> float:
        addresses = None if sides is None else tuple([h.address for h in side] for side in sides)
        text = rules(loss, addresses)  # type: ignore[arg-type]
        shell("ip", "netns", "exec", self.name("hub"), "nft", "-f", "-", text=text)
        return time.monotonic()

    def narrow(self, mtu: int, *, ends: bool) -> None:
        """Make all links carry packets of that size at most; without ``ends`` only the router knows."""
        hub = [f"link set v{i} mtu {mtu}" for i in range(self.size)]
        shell("ip", "-n", self.name("hub"), "-batch", "-", text="\n".join(hub))
        for i in range(self.size if ends else 0):
            shell("ip", "-n", self.name(i), "link", "set", "eth0", "mtu", str(mtu))

    def fragments(self) -> int:
        """Packets that anybody, hosts and router, cut into pieces or put together again so far."""
        total = 0
        for name in self._made:
            names, values = (
                line.split()
                for line in shell("ip", "netns", "exec", name, "cat", "/proc/net/snmp").splitlines()
                if line.startswith("Ip:")
            )
            counts = dict(zip(names[1:], map(int, values[1:]), strict=True))
            total += counts["FragCreates"] + counts["ReasmReqds"]
        return total

    def dropped(self) -> int:
        """Datagrams that the loss rule dropped."""
        listing = shell("ip", "netns", "exec", self.name("hub"), "nft", "-j", "list", "ruleset")
        counters = [
            part["counter"]["packets"]
            for entry in json.loads(listing)["nftables"]
            for part in entry.get("rule", {}).get("expr", [])
            if isinstance(part.get("counter"), dict)
        ]
        return sum(counters)

    def start(self, hosts: int, **options: Any) -> list[Host]:
        started = [Host(self, len(self.hosts) + i, **options) for i in range(hosts)]
        self.hosts += started
        return started

    def until(self, what: str, check: Callable[[], object], seconds: float) -> float:
        """Seconds until ``check`` held."""
        start = time.monotonic()
        while not check():
            if time.monotonic() - start > seconds:
                raise AssertionError(f"not in {seconds} s: {what}\n{self.report()}")
            time.sleep(0.1)
        return time.monotonic() - start

    def report(self) -> str:
        """How each host sees itself and the others, for messages."""
        lines = []
        for host in self.hosts:
            view = host.view()
            own = view.get("id")
            states = collections.Counter(view.get("states", {}).values())
            lines.append(f"{host.number}: exit {host.wait()}, {own}, sees {dict(states)}")
            for theirs in (other.view() for other in self.hosts):
                known = view.get("stamps", {}).get(theirs.get("id"))
                if view and theirs and known != theirs["stamps"][theirs["id"]]:
                    lines.append(f"    knows {known} of {theirs['id']}: {theirs['stamps'][theirs['id']]}")
        errors = [path.read_text().strip().split("\n")[-1] for path in self.folder.glob("errors-*.txt")]
        return "\n".join(lines + sorted({error for error in errors if error}))

    def agree(self, hosts: list[Host]) -> bool:
        """Whether these hosts are alive for each other, and all know the same."""
        views = [h.view() for h in hosts]
        ids = {view.get("id") for view in views}
        return (
            None not in ids
            and len({view["root"] for view in views}) == 1
            and all({i for i, s in view["states"].items() if s == "alive"} == ids for view in views)
        )

    def deaths(self, hosts: list[Host], since: float) -> list[tuple[int, str]]:
        """Who said at any time since then that somebody was dead, and of whom."""
        return sorted(
            {
                (host.number, target)
                for host in hosts
                for view in host.events()
                if view["t"] >= since
                for target, state in view["states"].items()
                if state == "down"
            }
        )

    def seen(self, hosts: list[Host], target: str, state: str, since: float) -> list[float]:
        """Seconds until each host saw a state of a target; infinite where it did not."""
        times = []
        for host in hosts:
            found = (
                v["t"] - since for v in host.events() if v["t"] >= since and v["states"].get(target) == state
            )
            times.append(next(found, float("inf")))
        return times

    def close(self) -> None:
        for host in self.hosts:
            host.kill()
        self._nursery.communicate()
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Callable[[int], Network]]:
    why = reason_to_skip()
    if why is not None:
        pytest.skip(why)
    with contextlib.ExitStack() as stack:

        def make(hosts: int) -> Network:
            built = Network(tmp_path, hosts)
            stack.callback(built.close)
            built.build()
            return built

        yield make


def say(text: str) -> None:
    """A figure, shown by `pytest -s` or `-rP`."""
    sys.stdout.write(f"{text}\n")


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def test_ten_hosts_at_ten_percent_loss_notice_a_kill_a_goodbye_and_a_partition_that_heals(
    network: Callable[[int], Network],
) -> None:
    net = network(10)
    start = time.monotonic()
    hosts = net.start(10)
    net.until("ten hosts agree", lambda: net.agree(hosts), 30)
    net.faults(loss=100)
    victim, leaver, *rest = hosts[2:]
    rest += hosts[:2]
    dead, gone = victim.view()["id"], leaver.view()["id"]
    killed = victim.kill()
    told = leaver.send(signal.SIGTERM)
    assert leaver.wait(10) == 0, "SIGTERM is a clean leave"
    net.until("all know", lambda: max(net.seen(rest, dead, "down", killed)) < 60, 30)
    net.until("all were told", lambda: max(net.seen(rest, gone, "left", told)) < 60, 10)
    # Loss alone killed nobody: what anybody called dead was dead.
    assert {target for _, target in net.deaths(rest, start)} == {dead}
    assert net.dropped() > 0
    healed = net.faults(sides=(rest[:3], rest[3:]))
    net.until("a cut is noticed", lambda: net.deaths(rest, healed), 30)
    net.faults()
    net.until("one view after the cut", lambda: net.agree(rest), 30)


def test_no_packet_passes_the_path_mtu_also_when_it_shrinks_on_the_way(
    network: Callable[[int], Network],
) -> None:
    net = network(4)
    hosts = net.start(3)
    net.until("three hosts agree", lambda: net.agree(hosts), 30)
    # The smallest path that QUIC and IPv6 allow for, and one end does not know of it.
    net.narrow(1280, ends=False)
    hosts += net.start(1, synthetic=5_000)
    net.until(
        "what needs full packets comes through",
        lambda: net.agree(hosts) and hosts[0].view()["agents"] == 5_004,
        30,
    )
    net.narrow(1280, ends=True)
    dead = hosts[3].view()["id"]
    killed = hosts[3].kill()
    net.until("all know", lambda: max(net.seen(hosts[:3], dead, "down", killed)) < 60, 30)
    assert net.fragments() == 0


def test_a_host_whose_address_changes_is_found_at_the_new_one(network: Callable[[int], Network]) -> None:
    net = network(8)
    hosts = net.start(8)
    net.until("eight hosts agree", lambda: net.agree(hosts), 30)
    start = time.monotonic()
    # An ordinary host, and then the seed of all.
    for mover, number in ((hosts[5], 100), (hosts[0], 101)):
        before, ident = mover.view()["stamps"], mover.view()["id"]
        mover.move(number)
        new = f"{mover.address}:{PORT}"

        def found() -> bool:
            return all(h.view()["addresses"][ident] == new for h in hosts)  # noqa: B023

        seconds = net.until("all know the new address", found, 20)
        seconds += net.until("and agree", lambda: net.agree(hosts), 20)
        say(f"host {mover.number} moved: all know after {seconds:.1f} s")
        assert mover.view()["stamps"][ident][0] == before[ident][0], "the same start"
    # It was reached all the time, and still is.
    net.pause(8)
    assert net.deaths(hosts, start) == []
    assert net.agree(hosts)


@pytest.mark.soak
def test_fifty_hosts_notice_a_kill_within_eight_seconds(network: Callable[[int], Network]) -> None:
    net = network(50)
    hosts = net.start(50)
    net.until("fifty hosts agree", lambda: net.agree(hosts), 120)
    start = time.monotonic()
    every, last, killed_ids = [], [], set()
    for victim in hosts[40:]:
        rest = [h for h in hosts if h is not victim and h.wait() is None]
        dead = victim.view()["id"]
        killed_ids.add(dead)
        killed = victim.kill()
        net.until("all know", lambda: max(net.seen(rest, dead, "down", killed)) < 60, 60)  # noqa: B023
        times = net.seen(rest, dead, "down", killed)
        every += times
        last.append(max(times))
    p50, p99 = quantile(every, 0.5), quantile(every, 0.99)
    say(f"kill -9, {len(every)} views: p50 {p50:.2f} s, p99 {p99:.2f} s, last of all {max(last):.2f} s")
    assert p99 <= 8, last
    assert {target for _, target in net.deaths(hosts[:40], start)} == killed_ids
    farewells = []
    for leaver in hosts[30:40]:
        rest = [h for h in hosts[:40] if h is not leaver and h.wait() is None]
        gone = leaver.view()["id"]
        told = leaver.send(signal.SIGTERM)
        net.until("all were told", lambda: max(net.seen(rest, gone, "left", told)) < 60, 30)  # noqa: B023
        farewells.append(max(net.seen(rest, gone, "left", told)))
        assert leaver.wait(10) == 0
    say(f"SIGTERM until all were told: p50 {quantile(farewells, 0.5):.2f} s, most {max(farewells):.2f} s")
    assert max(farewells) <= 1, farewells


@pytest.mark.soak
def test_fifty_hosts_survive_pauses_and_a_partition(network: Callable[[int], Network]) -> None:
    net = network(50)
    hosts = net.start(50)
    net.until("fifty hosts agree", lambda: net.agree(hosts), 120)
    for _ in range(3):
        sleepers = hosts[47:]
        asleep = {h.view()["id"] for h in sleepers}
        start = time.monotonic()
        for host in sleepers:
            host.send(signal.SIGSTOP)
        net.pause(10)
        for host in sleepers:
            host.send(signal.SIGCONT)
        back = net.until("the sleepers are back", lambda: net.agree(hosts), 30)
        wrong = [death for death in net.deaths(hosts, start) if death[1] not in asleep]
        say(f"SIGSTOP 10 s of 3 of 50: {len(wrong)} false deaths, all agree again after {back:.1f} s")
        assert wrong == []
    cut = net.faults(sides=(hosts[:20], hosts[20:]))
    net.pause(30)
    ids = [h.view()["id"] for h in hosts]
    fallen = net.deaths(hosts, cut)
    healed = net.faults()
    seconds = net.until("one view", lambda: net.agree(hosts), 60)
    say(f"partition 20/30 of 30 s ({len(fallen)} deaths seen), healed: one view after {seconds:.1f} s")
    assert {target for number, target in fallen if number < 20} <= set(ids[20:])
    assert seconds <= 30
    # And nobody falls out again.
    net.pause(15)
    settled = healed + seconds + 1
    assert net.deaths(hosts, settled) == []


@pytest.mark.soak
def test_twenty_starts_with_one_key_in_ten_seconds_leave_one_live_entry(
    network: Callable[[int], Network],
) -> None:
    net = network(11)
    hosts = net.start(11)
    net.until("eleven hosts agree", lambda: net.agree(hosts), 60)
    again, draw = hosts[10], random.Random(5)
    start = time.monotonic()
    for _ in range(20):
        again.kill()
        again.start()
        # Whatever it is doing by then: the hello, the join, the first announcement.
        net.pause(0.3 + 0.3 * draw.random())
    took = time.monotonic() - start
    seconds = net.until("one live entry", lambda: net.agree(hosts), 30)
    say(f"20 starts in {took:.1f} s: one view of 11 live hosts {seconds:.1f} s after the last")
    ids = [view["id"] for view in (h.view() for h in hosts)]
    assert len(set(ids)) == 11
    assert hosts[0].view()["stamps"][ids[10]][0] > 10, "most starts were seen by the others"
    for host in hosts:
        assert sorted(host.view()["states"]) == sorted(ids)
    wrong = [death for death in net.deaths(hosts, start) if death[1] != ids[10]]
    assert wrong == []


@pytest.mark.soak
def test_ten_percent_loss_kills_nobody_in_ten_host_hours(network: Callable[[int], Network]) -> None:
    net = network(50)
    hosts = net.start(50)
    net.until("fifty hosts agree", lambda: net.agree(hosts), 120)
    start = net.faults(loss=100)
    net.pause(12 * 60)
    hours = 50 * (time.monotonic() - start) / 3600
    wrong = net.deaths(hosts, start)
    suspected = sum(
        1 for h in hosts for v in h.events() if v["t"] >= start and "suspect" in v["states"].values()
    )
    say(f"10 % loss, {hours:.1f} host hours, {net.dropped()} datagrams dropped: {len(wrong)} false deaths,")
    say(f"{suspected} views with a suspect")
    assert all(h.wait() is None for h in hosts)
    assert wrong == []
    assert hours >= 10


@pytest.mark.soak
def test_a_late_process_has_a_hundred_thousand_agents_and_a_stranger_has_none(
    network: Callable[[int], Network],
) -> None:
    net = network(3)
    (first,) = net.start(1, synthetic=100_000)
    net.until("the agents are announced", lambda: first.view().get("agents") == 100_001, 120)
    (late,) = net.start(1)
    net.until("the late one has joined", late.view, 60)
    joined = late.events()[0]
    say(f"joined 100,000 agents in {joined['join_s']:.2f} s, {joined['agents']} known when join returned")
    assert joined["agents"] == 100_002
    net.until("both know the same", lambda: net.agree([first, late]), 10)
    (stranger,) = net.start(1, collective=bytes(32).hex())
    assert stranger.wait(60) == 1
    text = (net.folder / "errors-2.txt").read_text()
    assert HOME.hex() in text
    assert bytes(32).hex() in text


def host(facts: dict[str, Any]) -> None:
    """Be a host until SIGTERM comes, which is a goodbye."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL)  # The end of the nursery is the end of its hosts.
    with open(f"/run/netns/{facts['namespace']}", "rb") as namespace:
        if libc.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    key = KeyPair.from_seed(bytes.fromhex(facts["seed"]))
    collective = bytes.fromhex(facts.get("collective", HOME.hex()))
    node = Node.start(key, collective, bind=facts["bind"], seeds=facts["seeds"])
    report = asyncio.run(node.join(timeout_s=30))
    node.announce(Announcement(key.public, ["test.one"], name=f"of {os.getpid()}"))
    if synthetic := facts.get("synthetic"):
        node.publish_synthetic(synthetic, 1, 100)
    version, before = 0, None
    extra: dict[str, Any] = {"join_s": report.seconds}
    with open(facts["log"], "w", buffering=1, encoding="utf-8") as log:
        while not stop.is_set():
            members = node.members()
            states = {m.id.hex()[:16]: m.state for m in members}
            agents = sum(m.agents for m in members if m.state in ("alive", "suspect"))
            stamps = {m.id.hex()[:16]: (m.epoch, m.incarnation, m.agents) for m in members}
            view = {"id": node.id.hex()[:16], "states": states, "stamps": stamps, "agents": agents}
            view["root"] = node.root().hex()
            view["addresses"] = {m.id.hex()[:16]: m.addresses[0] for m in members}
            if view != before:
                before = view
                log.write(json.dumps({"t": time.monotonic(), **view, **extra}) + "\n")
                extra = {}
            # Short, so that a signal is looked at; a change wakes it at once.
            version = node.wait(version, timeout_s=0.1)
    node.close()


def nursery() -> None:
    """Fork hosts and wait for them, as standard input says, until it ends."""
    for line in sys.stdin:
        question = json.loads(line)
        answer: int | None
        if (facts := question.get("start")) is not None:
            answer = os.fork()
            if answer == 0:
                try:
                    host(facts)
                    os._exit(0)
                except BaseException:
                    Path(facts["errors"]).write_text(traceback.format_exc(), encoding="utf-8")
                    os._exit(1)
        else:
            answer = waited(question["wait"], question["seconds"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def waited(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.02)


if __name__ == "__main__":
    nursery()
