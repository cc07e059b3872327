"""The team plane of joined hosts is encrypted, and nobody can put himself between two of them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.gossip import team_identity
from pandacore.rpc.v1 import agent_pb2
from pandacore.team.client import AgentClient, SubtaskError
from pandacore.team.passes import Passport
from pandacore.team.tls import _pem

SECRET = "the words that nobody else may read"


@pc.agent(capabilities=["text.upper"])
async def upper(task: pc.Task) -> str:
    return task.text.upper()


class Proxy:
    """Stands between a caller and a host, and keeps what it could read."""

    def __init__(self, target: str, outer: ssl.SSLContext | None = None) -> None:
        self._target = target
        self._outer = outer
        self.connections = 0
        self.read = b""
        self.address = ""
        self._relays: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Proxy]:
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0, ssl=self._outer) as server:
            self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                yield self
            finally:
                server.close()
                # They end with their callers; one that is cancelled while it connects would leave a socket.
                if self._relays:
                    _, left = await asyncio.wait(self._relays, timeout=1)
                    for relay in left:
                        relay.cancel()
                    await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        self.connections += 1
        name, _, port = self._target.rpartition(":")
        inner = None
        if self._outer is not None:  # towards the host it is a caller like any other
            inner = ssl.create_default_context()
            inner.check_hostname, inner.verify_mode = False, ssl.CERT_NONE
            inner.set_alpn_protocols(["h2"])
        there, back = await asyncio.open_connection(name, int(port), ssl=inner)
        try:
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        finally:
            for side in (back, writer):
                side.close()
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await side.wait_closed()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                self.read += piece
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def caller(c: pc.Collective, address: str) -> AsyncIterator[AgentClient]:
    """A client of a second, good host of the collective, which calls ``c`` at some address."""
    key = pc.KeyPair.generate()
    async with pc.Collective.join(c.seed_address, key=key):
        passport = Passport(key, c.id)
        client = AgentClient(address, peer=c.node.id, metadata=lambda: passport.metadata(c.node.id))
        try:
            yield client
        finally:
            await client.close()


async def ask(client: AgentClient, agent: pc.Agent) -> str:
    request = agent_pb2.AssignRequest(
        agent_id=agent.id, run_id="r", subtask_id="s", instruction=SECRET, root_text=SECRET
    )
    return (await client.assign(request, timeout_s=10)).output_json


def place(c: pc.Collective) -> str:
    return c.address.rpartition("@")[2]


async def test_who_listens_to_the_wire_reads_nothing() -> None:
    async with pc.Collective.join() as c:
        (agent,) = c.add(upper)
        async with Proxy(place(c)).serving() as proxy, caller(c, proxy.address) as client:
            assert SECRET.upper() in await ask(client, agent)
            await client.heartbeat("", timeout_s=5)
            assert proxy.connections == 1
            assert len(proxy.read) > 500
            for word in (SECRET, SECRET.upper(), "pandacore-pass", "AgentService"):
                assert word.encode() not in proxy.read


async def test_a_man_in_the_middle_with_another_certificate_is_refused(tmp_path: Path) -> None:
    private, certificate = team_identity(pc.KeyPair.generate())
    (tmp_path / "key.pem").write_bytes(_pem("PRIVATE KEY", private))
    (tmp_path / "certificate.pem").write_bytes(_pem("CERTIFICATE", certificate))
    outer = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    outer.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    outer.set_alpn_protocols(["h2"])
    async with pc.Collective.join() as c:
        (agent,) = c.add(upper)
        async with Proxy(place(c), outer).serving() as proxy, caller(c, proxy.address) as client:
            with pytest.raises(errors.ConnectionLost, match="certificate") as refused:
                await client.heartbeat("", timeout_s=5)
            assert "another host answers" in str(refused.value.hint)
            with pytest.raises(SubtaskError) as failed:
                await ask(client, agent)
            assert not failed.value.executed
            assert proxy.read == b""
        async with caller(c, place(c)) as client:
            assert SECRET.upper() in await ask(client, agent)


async def test_a_host_does_not_answer_in_plaintext() -> None:
    async with pc.Collective.join() as c:
        client = AgentClient(place(c))
        with pytest.raises(errors.ConnectionLost):
            await client.heartbeat("", timeout_s=5)
        await client.close()


async def test_hosts_on_all_networks_of_the_machine_work_together() -> None:
    async with (
        pc.Collective.join(bind="0.0.0.0:0") as a,
        pc.Collective.join(a.seed_address, bind="0.0.0.0:0") as b,
    ):
        for c in (a, b):
            assert "0.0.0.0" not in c.seed_address + c.address
        b.add(upper)
        await a.wait_for("text.upper")
        assert (await a.run("hello")).output == "HELLO"


async def test_the_advertised_address_is_what_others_are_told() -> None:
    async with pc.Collective.join(bind="127.0.0.1:0", advertise="192.0.2.7:7000") as c:
        assert "@192.0.2.7:7000/" in c.seed_address
        assert c.address.rpartition("@")[2].startswith("192.0.2.7:")
