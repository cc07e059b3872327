"""The stream that many short chats share: what happens to them when it ends, and to those that outgrow it."""

from __future__ import annotations

import asyncio

import pytest

from pandacore import errors
from pandacore.models import ChatRequest, Message, ModelClient, ModelClientConfig
from pandacore.models.backends.scripted import ScriptedBackend
from pandacore.models.limits import LimitConfig
from pandacore.models.server import ModelServer
from pandacore.rpc.v1 import model_pb2_grpc
from pandacore.testing import ScriptedModel


def ask(text: str = "hello") -> ChatRequest:
    return ChatRequest([Message.user(text)])


async def eventually(condition: object, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_chats_at_once_share_one_stream_and_none_is_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, alone = 0, 0
    make = model_pb2_grpc.ModelServiceStub.__init__

    def counted(self: model_pb2_grpc.ModelServiceStub, channel: object) -> None:
        make(self, channel)  # type: ignore[arg-type]
        link, chat = self.ChatLink, self.Chat

        def one_link(*args: object, **kwargs: object) -> object:
            nonlocal streams
            streams += 1
            return link(*args, **kwargs)  # type: ignore[arg-type]

        def one_chat(*args: object, **kwargs: object) -> object:
            nonlocal alone
            alone += 1
            return chat(*args, **kwargs)  # type: ignore[arg-type]

        self.ChatLink, self.Chat = one_link, one_chat  # type: ignore[assignment]

    monkeypatch.setattr(model_pb2_grpc.ModelServiceStub, "__init__", counted)
    async with ScriptedModel(lambda request: request.messages[-1].content[:9]) as model:
        asked = [f"question {n} " for n in range(200)]
        asked[7] += "x" * 300_000  # too long to let the others wait behind it
        answers = await asyncio.gather(*(model.client.chat(ask(text)) for text in asked))
        assert [a.text for a in answers] == [text[:9] for text in asked]
    assert (streams, alone) == (1, 1)


async def test_a_server_that_drains_answers_what_runs_and_takes_nothing_more() -> None:
    let_go = asyncio.Event()

    async def wait() -> str:
        await let_go.wait()
        return "the end"

    backend = ScriptedBackend(lambda request: wait())
    quick = ModelClientConfig(max_retries=0, limits=LimitConfig(retry_reserve=0))
    async with ModelServer(backend) as server, ModelClient(server.address, config=quick) as client:
        running = [asyncio.create_task(client.chat(ask(str(n)), deadline_s=30)) for n in range(3)]
        await eventually(lambda: len(backend.requests) == 3)
        stop = asyncio.create_task(server.stop(grace_s=20))
        await eventually(lambda: server._server is None)
        with pytest.raises(errors.ModelUnavailable):
            while True:  # until the word of the drain has come to the link
                late = asyncio.create_task(client.chat(ask("late"), deadline_s=20))
                await asyncio.sleep(0.05)
                let_go.set()
                await late
        assert [r.text for r in await asyncio.gather(*running)] == ["the end"] * 3
        async with asyncio.timeout(10):  # and the stop waits for no caller that just stays
            await stop


async def test_a_link_that_broke_fails_what_ran_on_it_and_the_next_chat_opens_another() -> None:
    never = asyncio.Event()

    async def hang() -> str:
        await never.wait()
        return ""

    backend = ScriptedBackend(lambda request: hang() if request.messages[-1].content == "hang" else "here")
    none = ModelClientConfig(max_retries=0)
    async with ModelServer(backend) as server, ModelClient(server.address, config=none) as client:
        lost = asyncio.create_task(client.chat(ask("hang"), deadline_s=30))
        unsafe = asyncio.create_task(client.chat(ask("hang"), deadline_s=30, idempotent=False))
        await eventually(lambda: len(backend.requests) == 2)
        assert client._link is not None
        client._link._call.cancel()
        ends = await asyncio.gather(lost, unsafe, return_exceptions=True)
        assert [type(end) for end in ends] == [errors.ModelUnavailable, errors.UnknownOutcome]
        await eventually(lambda: len(backend.cancelled) == 2)  # the server stopped what nobody waits for
        assert (await client.chat(ask("again"), deadline_s=30)).text == "here"
