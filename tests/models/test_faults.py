"""Every fault of a model server ends in its documented error or in recovery, within its deadline.

Two paths: ``grpc`` is a misbehaving `ModelService`, ``http`` a misbehaving OpenAI-style server behind ours.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from email.utils import formatdate

import pytest

from pandacore.errors import (
    CircuitOpen,
    DeadlineExceeded,
    InvalidOutput,
    ModelUnavailable,
    PandacoreError,
    PayloadTooLarge,
    ProtocolError,
    RateLimited,
    Truncated,
)
from pandacore.models import (
    ChatRequest,
    ChatResult,
    JsonSchema,
    Message,
    ModelClient,
    ModelClientConfig,
    TokenLedger,
    Tool,
)
from pandacore.models.limits import LimitConfig
from pandacore.testing import ChaosModel, Fault

PATHS = ["grpc", "http"]
QUICK = ModelClientConfig(backoff_base_s=0.01, limits=LimitConfig(pause_base_s=0.05))
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = Tool(
    "delete",
    "Delete a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def ask(text: str = "hello", **options: object) -> ChatRequest:
    return ChatRequest([Message.user(text)], **options)  # type: ignore[arg-type]


Path = Callable[..., AbstractAsyncContextManager[tuple[ChaosModel, ModelClient]]]
HttpPath = Callable[..., AbstractAsyncContextManager[ModelClient]]


@pytest.fixture
def path(http_path: HttpPath) -> Path:
    """Give a function that starts a chaos model and a client to it, over gRPC or over HTTP."""

    @asynccontextmanager
    async def start(
        kind: str, script: Sequence[Fault] | Callable[[int], Fault], config: ModelClientConfig = QUICK
    ) -> AsyncIterator[tuple[ChaosModel, ModelClient]]:
        async with ChaosModel(script) as chaos:
            if kind == "http":
                async with http_path(chaos, config=config) as client:
                    yield chaos, client
            else:
                async with ModelClient(chaos.address, config=config) as client:
                    yield chaos, client

    return start


async def outcome(
    client: ModelClient, request: ChatRequest, deadline_s: float
) -> ChatResult | PandacoreError:
    """The result or the typed error; anything else, or overrunning the deadline, fails the test."""
    started = time.monotonic()
    try:
        return await client.chat(request, deadline_s=deadline_s)
    except PandacoreError as error:
        return error
    finally:
        assert time.monotonic() - started < deadline_s + 1.0


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(
    "fault",
    [Fault.rate_limit(), Fault.rate_limit("0"), Fault.status(500), Fault.status(503), Fault.reset()],
    ids=["429", "429-retry-after-0", "500", "503", "reset"],
)
async def test_passing_fault_is_recovered(path: Path, kind: str, fault: Fault) -> None:
    async with path(kind, [fault, Fault.none("ok")]) as (chaos, client):
        result = await outcome(client, ask(), 10.0)
        assert isinstance(result, ChatResult), result
        assert result.text == "ok"
        assert chaos.calls == 2


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.rate_limit(), RateLimited),
        (Fault.status(500), ModelUnavailable),
        (Fault.status(503), ModelUnavailable),
        (Fault.reset(), ModelUnavailable),
    ],
    ids=["429", "500", "503", "reset"],
)
async def test_lasting_fault_is_typed_and_costs_at_most_one_and_a_half_calls(
    path: Path, kind: str, fault: Fault, expected: type[PandacoreError]
) -> None:
    async with path(kind, [fault]) as (chaos, client):
        results = [await outcome(client, ask(), 2.0) for _ in range(20)]
        assert all(isinstance(result, (expected, CircuitOpen)) for result in results), results
        assert any(isinstance(result, expected) for result in results)
        assert chaos.calls <= 1.5 * len(results)


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("fault", [Fault.hang(), Fault.drip(60.0)], ids=["hang", "one-byte-a-minute"])
async def test_silence_ends_at_the_deadline(path: Path, kind: str, fault: Fault) -> None:
    async with path(kind, [fault]) as (chaos, client):
        started = time.monotonic()
        result = await outcome(client, ask(), 0.5)
        assert isinstance(result, DeadlineExceeded), result
        assert 0.4 < time.monotonic() - started < 1.5
        assert chaos.calls == 1


@pytest.mark.parametrize("kind", PATHS)
async def test_body_that_is_not_of_the_protocol_is_typed_and_not_retried(path: Path, kind: str) -> None:
    async with path(kind, [Fault.malformed()]) as (chaos, client):
        result = await outcome(client, ask(), 5.0)
        assert isinstance(result, (InvalidOutput, ProtocolError)), result
        assert chaos.calls <= 2


@pytest.mark.parametrize("kind", PATHS)
async def test_schema_violation_is_asked_for_again_and_then_refused(path: Path, kind: str) -> None:
    async with path(kind, [Fault.none('{"n": "one"}'), Fault.none('{"n": 1}')]) as (chaos, client):
        result = await client.generate_json("How many?", SCHEMA, deadline_s=5.0)
        assert result.value == {"n": 1}
        assert result.usage.total_tokens == 30
        assert chaos.calls == 2
    async with path(kind, [Fault.none('{"n": "one"}')]) as (chaos, client):
        with pytest.raises(InvalidOutput, match=r"\$\.n"):
            await client.generate_json("How many?", SCHEMA, deadline_s=5.0, repairs=2)
        assert chaos.calls == 3


async def test_the_model_is_shown_its_error(path: Path) -> None:
    async with path("http", [Fault.none("seven"), Fault.none('{"n": 7}')]) as (chaos, client):
        await client.generate_json("How many?", SCHEMA, deadline_s=5.0)
        messages = chaos.requests[1][1]["messages"]
        assert messages[-2] == {"role": "assistant", "content": "seven"}
        assert "not valid JSON" in messages[-1]["content"]


@pytest.mark.parametrize("kind", PATHS)
async def test_malformed_json_is_never_an_empty_object(path: Path, kind: str) -> None:
    for text in ("", "{", "null", "I cannot", '{"n": 1} {"n": 2}', '{"n": 1, "n": 2}', '{"n": NaN}'):
        async with path(kind, [Fault.none(text)]) as (_, client):
            result = await outcome(client, ask(output=JsonSchema(SCHEMA)), 5.0)
            assert isinstance(result, InvalidOutput), (text, result)


# --- FC-43: truncated output --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_fc_43_http_answer_cut_at_every_byte_is_never_taken_for_whole(
    http_path: HttpPath, stream: bool
) -> None:
    text = '{"n": 12}'
    whole = Fault.none(text)
    config = ModelClientConfig(max_retries=0, limits=LimitConfig(breaker_failures=10**9))
    async with ChaosModel(lambda call: Fault.cut(call, text)) as chaos:
        length = chaos.http_length(whole, stream=stream)
        async with http_path(chaos, config=config) as client:
            for at in range(length):
                request = ask(output=JsonSchema(SCHEMA))
                try:
                    if stream:
                        last = [d async for d in client.chat_stream(request, deadline_s=5.0)][-1]
                        result = last.result
                    else:
                        result = await client.chat(request, deadline_s=5.0)
                except (Truncated, ModelUnavailable):
                    continue
                # The answer itself had arrived: only the last bytes of the framing are missing.
                assert stream, at
                assert at >= length - len("\r\n0\r\n\r\n"), at
                assert result is not None
                assert result.value == {"n": 12}
        assert chaos.calls == length


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_fc_43_grpc_answer_cut_at_every_byte_is_never_taken_for_whole(stream: bool) -> None:
    text = '{"n": 12}'
    config = ModelClientConfig(max_retries=0, limits=LimitConfig(breaker_failures=10**9))
    whole = 0
    for at in range(0, 400):
        async with (
            ChaosModel([Fault.cut(at, text)]) as chaos,
            ModelClient(chaos.address, config=config) as client,
        ):
            request = ask(output=JsonSchema(SCHEMA))
            try:
                if stream:
                    result = [d async for d in client.chat_stream(request, deadline_s=5.0)][-1].result
                else:
                    result = await client.chat(request, deadline_s=5.0)
            except (Truncated, ModelUnavailable):
                whole = 0
                continue
            assert result is not None
            assert result.value == {"n": 12}
            whole += 1
            if whole == 5:  # past the end of the answer, nothing is cut any more
                assert at > 20
                return
    pytest.fail("no whole answer was seen")


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("finish", ["length", None, "tool_calls"])
async def test_fc_43_cut_tool_call_is_never_executed(path: Path, kind: str, finish: str | None) -> None:
    arguments = '{"path": "docs/a/very/long/name"}'
    for at in range(len(arguments)):
        fault = Fault.tool_call("delete", arguments[:at], finish)
        async with path(kind, [fault]) as (_, client):
            result = await outcome(client, ask(tools=[TOOL]), 5.0)
            expected = InvalidOutput if finish == "tool_calls" else Truncated
            assert isinstance(result, expected), (at, result)


@pytest.mark.parametrize("kind", PATHS)
async def test_fc_43_truncated_answer_is_retried_once_with_a_smaller_ask(path: Path, kind: str) -> None:
    cut = Fault.none('{"n": 1', "length")
    async with path(kind, [cut, Fault.none('{"n": 1}')]) as (chaos, client):
        result = await client.generate_json("How many?", SCHEMA, deadline_s=5.0)
        assert result.value == {"n": 1}
        assert chaos.calls == 2
        if kind == "http":
            assert "cut off" in chaos.requests[1][1]["messages"][-1]["content"]
    async with path(kind, [cut]) as (chaos, client):
        with pytest.raises(Truncated):
            await client.generate_json("How many?", SCHEMA, deadline_s=5.0)
        assert chaos.calls == 2


@pytest.mark.parametrize("kind", PATHS)
async def test_whole_but_over_long_json_is_still_truncated(path: Path, kind: str) -> None:
    async with path(kind, [Fault.none('{"n": 1}', "length")]) as (_, client):
        assert isinstance(await outcome(client, ask(output=JsonSchema(SCHEMA)), 5.0), Truncated)


@pytest.mark.parametrize("kind", PATHS)
async def test_free_text_at_the_token_limit_is_returned_with_its_reason(path: Path, kind: str) -> None:
    async with path(kind, [Fault.none("once upon", "length")]) as (_, client):
        result = await client.chat(ask(), deadline_s=5.0)
        assert (result.text, result.finish_reason) == ("once upon", "length")


@pytest.mark.parametrize("kind", PATHS)
async def test_stream_without_an_end_is_truncated_and_not_retried(path: Path, kind: str) -> None:
    async with path(kind, [Fault.none("half", None)]) as (chaos, client):
        with pytest.raises(Truncated):
            async for _ in client.chat_stream(ask(), deadline_s=5.0):
                pass
        assert chaos.calls == 1


# --- FC-45: rate limits -------------------------------------------------------------------------------


def _http_date(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize("kind", PATHS)
async def test_fc_45_fifty_agents_wait_out_a_retry_after(path: Path, kind: str) -> None:
    started = time.monotonic()

    def script(call: int) -> Fault:
        return Fault.none() if time.monotonic() - started > 1.0 else Fault.rate_limit("1")

    async with path(kind, script, ModelClientConfig(backoff_base_s=0.01)) as (chaos, client):
        ledger = TokenLedger(10**6)
        results = await asyncio.gather(
            *(client.chat(ask(max_tokens=50), deadline_s=20.0, budget=ledger) for _ in range(50))
        )
        assert len(results) == 50
        assert chaos.calls <= 1.5 * 50
        assert ledger.reserved == 0
        assert ledger.used == 50 * 15  # what was used, nothing for the refusals


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("header", [None, "0", "5", "1000000000", "date"])
async def test_fc_45_fifty_agents_against_a_server_that_never_relents(
    path: Path, kind: str, header: str | None
) -> None:
    value = _http_date(30) if header == "date" else header
    async with path(kind, lambda _: Fault.rate_limit(value), ModelClientConfig()) as (chaos, client):
        ledger = TokenLedger(10**6)
        started = time.monotonic()

        async def one() -> PandacoreError:
            with pytest.raises((RateLimited, DeadlineExceeded)) as caught:
                await client.chat(ask(), deadline_s=3.0, budget=ledger)
            return caught.value

        errors = await asyncio.gather(*(one() for _ in range(50)))
        assert time.monotonic() - started < 4.0
        assert any(isinstance(error, RateLimited) for error in errors)
        assert chaos.calls <= 16  # a first burst of eight, then single probes
        assert (ledger.used, ledger.reserved) == (0, 0)


async def test_fc_45_retry_after_beyond_the_deadline_ends_at_once(path: Path) -> None:
    async with path("http", [Fault.rate_limit("1000000000")]) as (chaos, client):
        started = time.monotonic()
        with pytest.raises(RateLimited):
            await client.chat(ask(), deadline_s=30.0)
        assert time.monotonic() - started < 1.0
        assert chaos.calls == 1


async def test_fc_45_the_limiter_is_shared_by_all_clients_of_an_endpoint() -> None:
    async with ChaosModel([Fault.rate_limit("30")]) as chaos:
        clients = [ModelClient(chaos.address) for _ in range(10)]
        try:
            for client in clients:
                with pytest.raises(RateLimited):
                    await client.chat(ask(), deadline_s=2.0)
            assert chaos.calls == 1
        finally:
            for client in clients:
                await client.aclose()


# --- retries in general -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", PATHS)
async def test_thirty_percent_errors_are_recovered_at_one_and_a_half_calls(path: Path, kind: str) -> None:
    rng = random.Random(5)
    faults = [Fault.status(500) if rng.random() < 0.3 else Fault.none() for _ in range(2_000)]
    config = ModelClientConfig(backoff_base_s=0.001)
    async with path(kind, faults, config) as (chaos, client):

        async def one() -> bool:
            return isinstance(await outcome(client, ask(), 20.0), ChatResult)

        good = 0
        for _ in range(30):
            good += sum(await asyncio.gather(*(one() for _ in range(10))))
        assert good >= 297
        assert chaos.calls <= 1.5 * 300


@pytest.mark.parametrize("kind", PATHS)
async def test_no_retry_begins_when_it_would_come_too_late(path: Path, kind: str) -> None:
    config = ModelClientConfig(backoff_base_s=30.0, backoff_cap_s=60.0)
    async with path(kind, [Fault.status(500)], config) as (chaos, client):
        client._rng = random.Random(1)
        started = time.monotonic()
        result = await outcome(client, ask(), 1.0)
        assert isinstance(result, ModelUnavailable)  # the cause, not a DeadlineExceeded
        assert time.monotonic() - started < 0.9
        assert chaos.calls == 1


# --- FC-53: size --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("mib", [3.9, 4.0, 4.1, 64])
async def test_fc_53_big_answer_arrives_or_is_refused_once(path: Path, kind: str, mib: float) -> None:
    size = int(mib * 1024 * 1024)
    async with path(kind, [Fault.large(size)]) as (chaos, client):
        result = await outcome(client, ask(), 30.0)
        if mib < 4.0:
            assert isinstance(result, ChatResult), result
            assert len(result.text) == size
        else:
            assert isinstance(result, PayloadTooLarge), result
            assert result.size >= min(size, 4 * 1024 * 1024)
            assert result.limit == 4 * 1024 * 1024
            assert result.producer
        assert chaos.calls == 1


@pytest.mark.parametrize("mib", [3.9, 4.0, 4.1, 64])
async def test_fc_53_big_request_is_sent_or_refused_before_it_is_sent(path: Path, mib: float) -> None:
    size = int(mib * 1024 * 1024)
    async with path("grpc", [Fault.none()]) as (chaos, client):
        result = await outcome(client, ask("x" * size), 30.0)
        if mib < 4.0:
            assert isinstance(result, ChatResult)
            assert chaos.calls == 1
        else:
            assert isinstance(result, PayloadTooLarge)
            assert (result.producer, result.limit) == ("client", 4 * 1024 * 1024)
            assert result.size > size
            assert chaos.calls == 0


async def test_fc_53_many_small_parts_count_together(path: Path) -> None:
    async with path("grpc", [Fault.none()]) as (chaos, client):
        request = ChatRequest([Message.user("x" * 100_000) for _ in range(50)])
        assert isinstance(await outcome(client, request, 5.0), PayloadTooLarge)
        assert chaos.calls == 0
