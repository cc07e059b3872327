"""Nodes on a host: opened, fenced, told each message once, and ended when nobody speaks of their run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import pandacore as pc
from pandacore import patterns
from pandacore.patterns import Event, Limits, Machine, Received
from pandacore.rpc.v1 import agent_pb2
from pandacore.team import member
from pandacore.team.host import Host

heard: list[Any] = []


class Listener(Machine):
    """Writes down what it is told."""

    def on(self, event: Event) -> None:
        if isinstance(event, Received):
            heard.append(event.message["word"])


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    patterns.register("listener", Listener, Listener)
    heard.clear()
    yield
    del patterns.MACHINES["listener"]


async def work(task: pc.Task) -> str:
    return task.text


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    await host.start()
    host.add(pc.Agent(work, capabilities=["a"]))
    host.add(pc.Agent(work, capabilities=["b"]))
    yield host
    await host.close()


def opening(host: Host, agents: int = 1, **change: Any) -> agent_pb2.OpenRequest:
    spec = agent_pb2.RunSpec(
        pattern=change.pop("pattern", "listener"),
        text="the task",
        limits_json=json.dumps(Limits().to_dict()),
        unlimited_tokens=True,
        lease_ms=change.pop("lease_ms", 60_000),
        outlives_root=True,
    )
    root = agent_pb2.Peer(name="hub", address="127.0.0.1:1")
    ids = [agent.id for agent in host.agents()[:agents]]
    given = {"run_id": "r", "epoch": 1, "version": 1, "agent_ids": ids, "peers": [root], "spec": spec}
    return agent_pb2.OpenRequest(**{**given, **change})


def bringing(host: Host, *words: str, first: int = 1, **change: Any) -> agent_pb2.DeliverRequest:
    envelopes = [
        agent_pb2.Envelope(number=n, message_json=json.dumps({"run": "r", "kind": "WORD", "word": word}))
        for n, word in enumerate(words, first)
    ]
    given = {"run_id": "r", "epoch": 1, "sender": agent_pb2.Peer(name="hub"), "incarnation": 7}
    given |= {"to": host.agents()[0].id.hex(), "envelopes": envelopes}
    return agent_pb2.DeliverRequest(**{**given, **change})


async def until(words: list[str]) -> None:
    async with asyncio.timeout(5):
        while heard != words:
            await asyncio.sleep(0.001)


async def test_a_message_that_comes_again_reaches_the_machine_once(host: Host) -> None:
    client = host.clients.at(host.address)
    reply = await client.open(opening(host), timeout_s=5)
    assert [(n.fresh, n.refused) for n in reply.nodes] == [(True, "")]
    for request in (bringing(host, "one"), bringing(host, "one", "two"), bringing(host, "two", first=2)):
        assert await client.deliver(request, timeout_s=5) == agent_pb2.DeliverReply()
    await client.deliver(bringing(host, "three", incarnation=8), timeout_s=5)  # its sender began anew
    await until(["one", "two", "three"])
    again = await client.open(opening(host, version=2), timeout_s=5)
    assert not again.nodes[0].fresh


async def test_a_lower_epoch_is_fenced(host: Host) -> None:
    client = host.clients.at(host.address)
    await client.open(opening(host, epoch=2), timeout_s=5)
    assert (await client.open(opening(host, epoch=1), timeout_s=5)).fenced
    assert (await client.deliver(bringing(host, "late", epoch=1), timeout_s=5)).fenced
    await client.close_run("r", 1, timeout_s=5)
    assert len(host.nodes) == 1, "an earlier entrypoint must not end what a later one opened"
    await client.close_run("r", 2, timeout_s=5)
    assert (await client.deliver(bringing(host, "gone", epoch=2), timeout_s=5)).unknown
    assert heard == []


async def test_refusals_say_why(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = host.nodes.open(opening(host, pattern="nobody-knows")).nodes[0]
    assert "register it where the agents are served" in strange.refused
    stranger = host.nodes.open(opening(host, agent_ids=[bytes(32)])).nodes[0]
    assert "no agent with id" in stranger.refused
    monkeypatch.setattr(member, "MAX_NODES", 1)
    first, second = host.nodes.open(opening(host, agents=2)).nodes
    assert (first.refused, second.refused) == ("", "1 nodes are open here")


async def test_a_node_ends_when_nothing_is_heard_of_its_run(host: Host) -> None:
    host.nodes.open(opening(host, lease_ms=1_000))
    host.nodes.open(opening(host, run_id="kept", lease_ms=1_000))
    async with asyncio.timeout(10):
        while len(host.nodes) == 2:
            await host.clients.at(host.address).heartbeat("kept", timeout_s=5)
            await asyncio.sleep(0.01)
    assert host.nodes.deliver(bringing(host, "late")).unknown
    assert not host.nodes.deliver(bringing(host, "still here", run_id="kept")).unknown
