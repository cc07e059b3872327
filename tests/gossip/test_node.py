"""A node of this process, and two nodes over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pandacore import errors
from pandacore.gossip import Announcement, Node, Subscription, hosting_proof, issue_ticket
from pandacore.registry import Registry
from pandacore.trust import KeyPair

HOME = bytes([3]) * 32


def key(number: int) -> KeyPair:
    return KeyPair.from_seed(bytes([number]) * 32)


def agent(number: int) -> bytes:
    return bytes([number]) * 32


async def until(node: Node, check: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "not in time"
        await node.wait_async(node.version, timeout_s=0.1)


async def test_what_one_host_announces_another_knows_when_join_returns() -> None:
    subscription = Subscription("hash-4", 0.5, bytes([1, 255, 0, 3]))
    async with Node.start(key(1), HOME) as first:
        first.announce(
            Announcement(
                agent(1),
                ["read.text", "write.text"],
                name="reader",
                description="reads",
                endpoint="127.0.0.1:7",
                load=3,
                concurrency=2,
                cost=5,
                subscription=subscription,
            )
        )
        await until(first, lambda: first.agent(agent(1)) is not None)
        async with Node.start(key(2), HOME, seeds=[first.address]) as second:
            report = await second.join(timeout_s=10)
            assert report.complete
            assert (report.members, report.agents) == (2, 1)
            entry = second.agent(agent(1))
            assert entry is not None
            assert entry.host == first.id
            assert entry.capabilities == ("read.text", "write.text")
            assert (entry.name, entry.description, entry.endpoint) == ("reader", "reads", "127.0.0.1:7")
            assert (entry.load, entry.concurrency, entry.cost) == (3, 2, 5)
            assert entry.subscription == subscription
            assert second.agents() == [entry]
            await until(first, lambda: len(first.members()) == 2)
            assert first.root() == second.root()
        await until(first, lambda: first.members()[1].state == "left", 3)


async def test_changes_are_state_by_version_and_a_late_reader_misses_nothing() -> None:
    async with Node.start(key(1), HOME) as node:
        version = node.changes(0).version
        node.announce(*(Announcement(agent(i), ["a"], name=f"a{i}") for i in range(1, 5)))
        await until(node, lambda: node.agent(agent(4)) is not None)
        node.withdraw(agent(2))
        await until(node, lambda: node.agent(agent(2)) is None)
        changes = node.changes(version)
        assert not changes.reset
        assert [entry.name for entry in changes.updated] == ["a1", "a3", "a4"]
        assert changes.removed == (agent(2),)
        assert node.changes(changes.version).updated == ()


async def test_watch_yields_what_is_new_and_ends_with_the_node() -> None:
    node = Node.start(key(1), HOME)
    node.announce(Announcement(agent(1), ["a"]))
    seen: set[bytes] = set()
    async with asyncio.timeout(10):
        async for changes in node.watch():
            seen |= {entry.agent for entry in changes.updated}
            if agent(1) in seen and agent(2) not in seen:
                node.announce(Announcement(agent(2), ["b"]))
            if agent(2) in seen:
                await node.leave()
    assert seen == {agent(1), agent(2)}


async def test_feed_brings_a_registry_up_to_date_and_takes_back_what_is_gone() -> None:
    registry = Registry(seed=1)
    async with Node.start(key(1), HOME) as first, Node.start(key(2), HOME, seeds=[first.address]) as second:
        await second.join(10)
        second.announce(*(Announcement(agent(i), ["a.b", f"c{i % 3}"], load=i) for i in range(50)))
        await until(first, lambda: first.feed(registry) >= 0 and len(registry) == 50)
        assert first.feed(registry) == 0
        second.withdraw(agent(7))
        await until(first, lambda: first.feed(registry) >= 0 and len(registry) == 49)
        await second.leave()
        await until(first, lambda: first.feed(registry) >= 0 and len(registry) == 0, 3)


async def test_a_request_is_answered_by_the_host_that_can() -> None:
    async with Node.start(key(1), HOME) as first, Node.start(key(2), HOME, seeds=[first.address]) as second:
        await second.join(10)

        async def serve() -> None:
            await until(second, lambda: bool(second.requests()))
            request = second.requests()[0]
            assert request.host == first.id
            assert request.capabilities == ("translate.la",)
            second.offer(request, Announcement(agent(9), request.capabilities, name="late"))

        server = asyncio.create_task(serve())
        offers = await first.request(["translate.la"], timeout_s=10)
        await server
        assert [(o.host, o.agents) for o in offers] == [(second.id, (agent(9),))]
        entry = first.agent(agent(9))
        assert entry is not None
        assert entry.name == "late"
        assert await first.request(["nobody.can"], timeout_s=0.3) == []


async def test_another_collective_is_refused_with_both_ids_in_the_message() -> None:
    other = bytes([4]) * 32
    async with Node.start(key(1), HOME) as first, Node.start(key(2), other, seeds=[first.address]) as second:
        with pytest.raises(errors.WrongCollective) as caught:
            await second.join(10)
        assert HOME.hex() in str(caught.value)
        assert other.hex() in str(caught.value)
        assert caught.value.theirs == HOME.hex()
        assert len(first.members()) == 1


async def test_tickets_let_in_only_the_host_they_name() -> None:
    admission = key(50)
    until_then = 4_000_000_000

    def options(number: int, ticket_of: int) -> dict[str, object]:
        ticket = issue_ticket(admission, HOME, key(ticket_of).public, not_after=until_then)
        return {"admission": admission.public, "ticket": ticket}

    async with Node.start(key(1), HOME, **options(1, 1)) as first:  # type: ignore[arg-type]
        async with Node.start(key(2), HOME, seeds=[first.address], **options(2, 3)) as thief:  # type: ignore[arg-type]
            with pytest.raises(errors.JoinRefused, match="ticket"):
                await thief.join(10)
        async with Node.start(key(2), HOME, seeds=[first.address], **options(2, 2)) as guest:  # type: ignore[arg-type]
            assert (await guest.join(10)).complete


async def test_a_pinned_key_must_answer() -> None:
    async with Node.start(key(1), HOME) as first:
        pinned = f"{key(9).did}@{first.address}"
        async with Node.start(key(2), HOME, seeds=[pinned]) as second:
            with pytest.raises(errors.JoinRefused, match="was expected"):
                await second.join(10)
        async with Node.start(key(3), HOME, seeds=[f"{first.did}@{first.address}"]) as third:
            assert (await third.join(10)).complete


async def test_a_join_without_an_answer_ends_in_time_and_says_so() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        async with Node.start(key(1), HOME, seeds=[f"127.0.0.1:{silent.getsockname()[1]}"]) as node:
            start = time.monotonic()
            with pytest.raises(errors.DeadlineExceeded, match="no seed answered"):
                await node.join(timeout_s=0.5)
            assert time.monotonic() - start < 2


async def test_two_collectives_in_one_process_do_not_meet() -> None:
    other = bytes([4]) * 32
    async with Node.start(key(1), HOME) as a, Node.start(key(2), other) as b:
        a.announce(Announcement(agent(1), ["a"]))
        b.announce(Announcement(agent(2), ["b"]))
        await until(a, lambda: len(a.agents()) == 1)
        await until(b, lambda: len(b.agents()) == 1)
        assert a.agents()[0].agent == agent(1)
        assert b.agents()[0].agent == agent(2)


async def test_an_announcement_past_its_validity_is_not_live_and_leaves_the_registry() -> None:
    registry, now = Registry(seed=1), int(time.time())
    async with Node.start(key(1), HOME) as first, Node.start(key(2), HOME, seeds=[first.address]) as second:
        await second.join(10)
        # Clocks may differ by five minutes: one is over, one is about to be, one has an hour.
        second.announce(
            Announcement(agent(1), ["a"], not_after=now - 310),
            Announcement(agent(2), ["a"], not_after=now - 300 + 4),
            Announcement(agent(3), ["a"], not_after=now + 3600),
        )
        await until(first, lambda: first.agent(agent(3)) is not None)
        assert first.agent(agent(1)) is None
        await until(first, lambda: [e.agent for e in first.agents()] == [agent(3)])
        await until(first, lambda: first.feed(registry) >= 0 and len(registry) == 1)
        second.announce(Announcement(agent(2), ["a"]))
        await until(first, lambda: first.feed(registry) >= 0 and len(registry) == 2)


async def test_the_agents_agreement_is_checked() -> None:
    worker = key(7)
    async with Node.start(key(1), HOME) as node:
        proof = hosting_proof(worker, HOME, node.id)
        node.announce(
            Announcement(worker.public, ["a"], proof=proof), Announcement(agent(8), ["a"], proof=proof)
        )
        await until(node, lambda: node.agent(agent(8)) is not None)
        assert node.agreed(worker.public)
        assert not node.agreed(agent(8))


async def test_announcements_are_checked_before_they_are_queued() -> None:
    async with Node.start(key(1), HOME) as node:
        good = Announcement(agent(1), ["a"])
        with pytest.raises(errors.PayloadTooLarge, match="1024"):
            node.announce(
                good, Announcement(agent(2), ["a"], description="x" * 500, name="y" * 500, endpoint="z" * 99)
            )
        with pytest.raises(errors.ConfigError, match="capabilities"):
            node.announce(good, Announcement(agent(2), []))
        with pytest.raises(errors.ShapeError):
            node.announce(Announcement(b"short", ["a"]))
        with pytest.raises(errors.ConfigError, match="load"):
            node.announce(Announcement(agent(2), ["a"], load=70_000))
        with pytest.raises(errors.ProtocolError):
            node.announce(Announcement(agent(2), ["a"], certificates=[b"nonsense"]))
        assert node.agents() == []


async def test_one_process_owns_a_state_folder_and_starts_are_counted(tmp_path: Path) -> None:
    async with Node.start(key(1), HOME, state_dir=tmp_path) as node:
        assert node.epoch == 1
        with pytest.raises(errors.DataDirLocked, match=str(os.getpid())):
            Node.start(key(1), HOME, state_dir=tmp_path)
    async with Node.start(key(1), HOME, state_dir=tmp_path) as node:
        assert node.epoch == 2


async def test_a_host_that_moves_to_another_collective_takes_nobody_along(tmp_path: Path) -> None:
    """FC-22: its folder still has the addresses of the first one."""
    mine, other = KeyPair.generate(), bytes([77]) * 32
    async with (
        Node.start(KeyPair.generate(), HOME) as old,
        Node.start(KeyPair.generate(), other) as new,
    ):
        async with Node.start(mine, HOME, seeds=[old.address], state_dir=tmp_path) as first:
            await first.join(10)
        assert old.address in (tmp_path / "addresses").read_text()
        async with Node.start(mine, other, seeds=[new.address], state_dir=tmp_path) as moved:
            assert (await moved.join(10)).complete
            assert {m.id for m in moved.members()} == {mine.public, new.id}
            assert {m.id for m in new.members()} == {mine.public, new.id}
            assert moved.epoch == 2
        assert [m.state for m in old.members() if m.id == mine.public] == ["left"]


def test_bad_addresses_are_named() -> None:
    for bad in ("nowhere", "127.0.0.1:port", "no.such.name.invalid:1"):
        with pytest.raises(errors.ConfigError):
            Node.start(key(1), HOME, bind=bad)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(errors.ConfigError, match="cannot listen"):
            Node.start(key(1), HOME, bind=f"127.0.0.1:{taken.getsockname()[1]}")


def test_a_fork_gets_an_error_and_no_hang() -> None:
    node = Node.start(key(1), HOME)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            node.members()
        except errors.ForkError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert f"belongs to process {os.getpid()}" in answer.read()
    os.waitpid(child, 0)
    assert node.members()[0].state == "alive"
    node.close()


async def test_after_the_end_calls_say_so() -> None:
    node = Node.start(key(1), HOME)
    await node.leave()
    await node.leave()
    with pytest.raises(errors.StateError, match="ended"):
        node.announce(Announcement(agent(1), ["a"]))
    assert await node.wait_async(0, timeout_s=1) > 0


async def test_waiting_can_be_cancelled_and_another_loop_can_wait_too() -> None:
    async with Node.start(key(1), HOME) as node:
        version = node.version
        waiter = asyncio.create_task(node.wait_async(version + 100))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

        def other_loop() -> int:
            return asyncio.run(node.wait_async(version, timeout_s=10))

        other = asyncio.create_task(asyncio.to_thread(other_loop))
        node.announce(Announcement(agent(1), ["a"]))
        assert await other > version
