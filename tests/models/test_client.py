"""The client: checked answers, budgets, cancellation, loops and forks."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from pandacore.errors import (
    BudgetExceeded,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    InvalidOutput,
    ModelNotFound,
    ModelUnavailable,
    StateError,
    UnknownOutcome,
    UnsupportedFeature,
)
from pandacore.models import (
    ChatRequest,
    ChatResult,
    Choice,
    Document,
    FinishReason,
    JsonObject,
    JsonSchema,
    Message,
    ModelClient,
    ModelClientConfig,
    ModelInfo,
    Role,
    Sampling,
    TokenLedger,
    Tool,
    ToolCall,
    Usage,
    limits,
)
from pandacore.models.backends.scripted import ScriptedBackend
from pandacore.models.limits import Outcome
from pandacore.models.server import ModelServer
from pandacore.testing import ChaosModel, Fault, Rule, ScriptedModel

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WEATHER = Tool(
    "get_weather",
    "Weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def ask(text: str = "hello", **options: Any) -> ChatRequest:
    return ChatRequest([Message.user(text)], **options)


async def test_everything_of_a_request_reaches_the_backend() -> None:
    call = ToolCall("c1", "get_weather", {"city": "Kraków", "n": [1, {"x": None}]})
    request = ChatRequest(
        [
            Message.system("Be brief."),
            Message(Role.USER, "Wetter? ☔", name="Élodie"),
            Message.assistant("", [call]),
            Message.tool("rain", call=call),
        ],
        model="scripted",
        tools=[WEATHER],
        tool_choice="required",
        sampling=Sampling(
            temperature=0.0, top_p=0.5, top_k=0, min_p=0.25, seed=2**63, repetition_penalty=1.5
        ),
        max_tokens=7,
        stop=["\n\n"],
        documents=[Document("d1", "Titel", ("Eins.", "Zwei."))],
        metadata={"task": "answer"},
        request_id="r-1",
    )
    async with ScriptedModel([ToolCall("x", "get_weather", {"city": "Paris"})]) as model:
        result = await model.client.chat(request)
        assert model.requests == [request]
        assert result.tool_calls == (ToolCall("x", "get_weather", {"city": "Paris"}),)
        assert result.finish_reason is FinishReason.TOOL_CALLS
        assert result.request_id == "r-1"


@pytest.mark.parametrize("output", [JsonSchema(SCHEMA), JsonObject()])
async def test_json_answer_is_parsed_and_checked(output: JsonSchema | JsonObject) -> None:
    async with ScriptedModel([{"n": 1}, [1]]) as model:
        assert (await model.client.chat(ask(output=output))).value == {"n": 1}
        with pytest.raises(InvalidOutput):
            await model.client.chat(ask(output=output))


async def test_stream_gives_the_pieces_and_then_the_checked_result() -> None:
    text = "one two three four five six seven eight nine ten eleven"
    async with ScriptedModel([text, '{"n": 5}', "no json"]) as model:
        deltas = [delta async for delta in model.client.chat_stream(ask())]
        assert "".join(delta.text for delta in deltas) == text
        assert [delta.result is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        assert sum(delta.tokens for delta in deltas) == 11
        assert deltas[-1].result is not None
        assert deltas[-1].result.text == text
        deltas = [delta async for delta in model.client.chat_stream(ask(output=JsonSchema(SCHEMA)))]
        assert deltas[-1].result is not None
        assert deltas[-1].result.value == {"n": 5}
        with pytest.raises(InvalidOutput):
            async for _ in model.client.chat_stream(ask(output=JsonSchema(SCHEMA))):
                pass


@pytest.mark.parametrize(
    "written",
    [
        "get_weather",
        '"get_weather"',
        "get_weather\n",
        "Get_Weather",
        r"get\_weather",
        "\x1b[1mget_weather\x1b[0m",
    ],
)
async def test_fc_32_mangled_tool_name_is_resolved_when_only_one_fits(written: str) -> None:
    async with ScriptedModel([ToolCall("1", written, {"city": "Paris"})]) as model:
        result = await model.client.chat(ask(tools=[WEATHER]))
        assert result.tool_calls[0].name == "get_weather"


async def test_fc_32_name_that_fits_no_tool_or_two_is_refused_with_the_list() -> None:
    other = Tool("Get-Weather", "Another.", {"type": "object"})
    async with ScriptedModel(lambda _: ToolCall("1", "GET WEATHER", {"city": "Paris"})) as model:
        with pytest.raises(InvalidOutput, match="get_weather"):
            await model.client.chat(ask(tools=[WEATHER, other]))
    async with ScriptedModel(lambda _: ToolCall("1", "send_mail", {})) as model:
        with pytest.raises(InvalidOutput, match=r"send_mail.*get_weather"):
            await model.client.chat(ask(tools=[WEATHER]))


async def test_fc_32_choice_is_resolved_or_refused() -> None:
    answers = ['"Senior Research Analyst"\n', r"senior\_research\_analyst", "the analyst"]
    options = ("Senior Research Analyst", "Junior Research Analyst")
    async with ScriptedModel(answers) as model:
        for _ in range(2):
            result = await model.client.chat(ask(output=Choice(options)))
            assert result.text == "Senior Research Analyst"
        with pytest.raises(InvalidOutput):
            await model.client.chat(ask(output=Choice(options)))


@pytest.mark.parametrize(
    "name",
    ["助手", "Élodie", "E\u0301lodie", "👩\u200d🚀", "x" * 10_000, "a/b", "../x", "<img onerror>", '"; drop'],
)
async def test_fc_31_any_name_travels_unchanged(name: str) -> None:
    async with ScriptedModel(["ok"]) as model:
        await model.client.chat(ChatRequest([Message(Role.USER, "hi", name=name)], metadata={name: name}))
        assert model.requests[0].messages[0].name == name
        assert model.requests[0].metadata == {name: name}


async def test_tool_arguments_are_checked_against_the_schema() -> None:
    async with ScriptedModel([ToolCall("1", "get_weather", {"town": "Paris"})]) as model:
        with pytest.raises(InvalidOutput, match="city"):
            await model.client.chat(ask(tools=[WEATHER]))


async def test_budget_is_reserved_before_and_settled_after() -> None:
    ledger = TokenLedger(200)
    async with ScriptedModel(lambda r: ChatResult("ok", usage=Usage(20, 10, 30))) as model:
        await model.client.chat(ask(max_tokens=50), budget=ledger)
        assert (ledger.used, ledger.reserved) == (30, 0)
        with pytest.raises(BudgetExceeded):
            await model.client.chat(ask(max_tokens=500), budget=ledger)
        assert model.calls == 1  # refused before the call
        with pytest.raises(BudgetExceeded):
            async for _ in model.client.chat_stream(ask(max_tokens=500), budget=ledger):
                pass
        async for _ in model.client.chat_stream(ask(max_tokens=50), budget=ledger):
            pass
        assert (ledger.used, ledger.reserved) == (60, 0)


async def test_budget_caps_a_request_that_names_no_limit() -> None:
    ledger = TokenLedger(10**6)
    async with ScriptedModel(["ok"], config=ModelClientConfig(default_max_tokens=77)) as model:
        await model.client.chat(ask(), budget=ledger)
        assert model.requests[0].max_tokens == 77


async def test_budget_is_given_back_when_nothing_was_spent() -> None:
    ledger = TokenLedger(10_000)
    async with ScriptedModel([ModelNotFound("gone")]) as model:
        with pytest.raises(ModelNotFound):
            await model.client.chat(ask(), budget=ledger)
        assert (ledger.used, ledger.reserved) == (0, 0)


async def test_generate_json_without_constraints_at_the_server_still_checks() -> None:
    class Plain(ScriptedBackend):
        async def models(self) -> list[ModelInfo]:
            return [ModelInfo("plain", "scripted")]

    backend = Plain(["nothing", '```json\n{"n": 4}\n```'])
    async with ModelServer(backend) as server, ModelClient(server.address) as client:
        result = await client.generate_json("How many?", SCHEMA)
        assert result.value == {"n": 4}
        assert all(request.output is None for request in backend.requests)
        assert '"integer"' in backend.requests[0].messages[-1].content
        with pytest.raises(UnsupportedFeature):
            await client.chat(ask(output=JsonSchema(SCHEMA)))


async def test_refusal_of_something_else_does_not_cost_the_schema() -> None:
    class Picky(ScriptedBackend):
        async def chat(self, request: ChatRequest) -> ChatResult:
            if request.metadata.get("task") == "rank":
                self.requests.append(request)
                raise UnsupportedFeature("knows no task 'rank'", where="metadata.task")
            return await super().chat(request)

    backend = Picky(['{"n": 4}'])
    async with ModelServer(backend) as server, ModelClient(server.address) as client:
        with pytest.raises(UnsupportedFeature):
            await client.generate_json("Rank.", SCHEMA, metadata={"task": "rank"})
        assert (await client.generate_json("How many?", SCHEMA)).value == {"n": 4}
        assert backend.requests[-1].output == JsonSchema(SCHEMA)


async def test_bad_schema_is_refused_before_any_call() -> None:
    async with ScriptedModel([]) as model:
        with pytest.raises(ConfigError):
            await model.client.generate_json("?", {"type": "strange"})
        assert model.calls == 0


async def test_embeddings_are_unit_float32() -> None:
    async with ScriptedModel() as model:
        vectors = await model.client.embed(["a", "b", "a"])
        assert vectors.dtype == np.float32
        assert vectors.shape == (3, 16)
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
        assert np.array_equal(vectors[0], vectors[2])
        assert (await model.client.embed([])).shape == (0, 0)
        with pytest.raises(ConfigError):
            await model.client.embed("abc")


async def test_models_and_token_counts() -> None:
    async with ScriptedModel() as model:
        (info,) = await model.client.list_models()
        assert (info.id, info.backend, info.tools) == ("scripted", "scripted", True)
        count = await model.client.count_tokens("hello world")
        assert count.tokens > 0
        assert not count.exact
        with pytest.raises(ModelNotFound, match="scripted"):
            await model.client.chat(ask(model="gpt-9"))


# --- FC-41: cancellation ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_fc_41_cancel_inside_a_model_call_ends_within_a_second(
    stream: bool, no_leaked_tasks: Callable[[], Awaitable[None]]
) -> None:
    async with ScriptedModel(["word " * 50], delay_s=30.0) as model:

        async def call() -> None:
            if stream:
                async for _ in model.client.chat_stream(ask()):
                    pass
            else:
                await model.client.chat(ask())

        ledger_before = model.client._endpoint.in_flight
        task = asyncio.ensure_future(call())
        await until(lambda: model.calls == 1)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(model.backend.cancelled) == 1)  # the generation is stopped, too
        assert time.monotonic() - started < 1.0
        assert model.client._endpoint.in_flight == ledger_before
        await until(lambda: model._server.load == (0, 0))


async def test_fc_41_many_calls_cancelled_at_random_points_leave_nothing() -> None:
    ledger = TokenLedger(10**9)
    async with ScriptedModel(lambda r: "word " * 20, delay_s=0.05, concurrency=4) as model:
        tasks = [asyncio.ensure_future(model.client.chat(ask(), budget=ledger)) for _ in range(100)]
        for number, task in enumerate(tasks):
            if number % 3:
                await asyncio.sleep(0.001)
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, (ChatResult, asyncio.CancelledError)) for r in results), results
        await until(lambda: model._server.load == (0, 0))
        assert ledger.reserved == 0
        assert model.client._endpoint.in_flight == 0


async def test_leaving_a_stream_early_stops_the_generation() -> None:
    async with ScriptedModel(["word " * 50], delay_s=30.0) as model:
        async with contextlib.aclosing(model.client.chat_stream(ask())) as stream:
            async for _ in stream:
                break
        await until(lambda: len(model.backend.cancelled) == 1)


async def test_abort_stops_a_call_from_outside() -> None:
    async with ScriptedModel(["word " * 50], delay_s=30.0) as model:
        task = asyncio.ensure_future(model.client.chat(ask(request_id="r-7")))
        await until(lambda: model.calls == 1)
        assert await model.client.abort("r-7")
        with pytest.raises(Cancelled, match="r-7"):
            await task
        assert not await model.client.abort("r-7")
        assert model.backend.cancelled == ["r-7"]


async def test_abort_stops_a_call_that_waits_for_its_turn() -> None:
    async with ScriptedModel(["word " * 50], delay_s=30.0, concurrency=1) as model:
        first = asyncio.ensure_future(model.client.chat(ask()))
        await until(lambda: model.calls == 1)
        second = asyncio.ensure_future(model.client.chat(ask(request_id="waits")))
        await until(lambda: model._server.load == (1, 1))
        assert await model.client.abort("waits")
        with pytest.raises(Cancelled):
            await second
        assert model._server.load == (1, 0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_abort_stops_a_stream_from_outside() -> None:
    async with ScriptedModel(["word " * 50], delay_s=30.0) as model:
        seen = 0
        with pytest.raises(Cancelled, match="r-8"):
            async for _ in model.client.chat_stream(ask(request_id="r-8")):
                seen += 1
                await model.client.abort("r-8")
        assert seen >= 1


async def test_deadline_stops_the_generation_at_the_server() -> None:
    async with ScriptedModel(["word " * 50], delay_s=30.0) as model:
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await model.client.chat(ask(), deadline_s=0.3)
        assert time.monotonic() - started < 1.0
        await until(lambda: len(model.backend.cancelled) == 1)


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan")])
async def test_deadline_that_is_over_makes_no_call(deadline_s: float) -> None:
    async with ScriptedModel(["ok"]) as model:
        with pytest.raises(DeadlineExceeded):
            await model.client.chat(ask(), deadline_s=deadline_s)
        assert model.calls == 0


# --- FC-56: retries that are not safe -----------------------------------------------------------------


async def test_fc_56_call_that_may_have_run_is_not_repeated_unless_idempotent() -> None:
    async with ChaosModel([Fault.reset(), Fault.none()]) as chaos, ModelClient(chaos.address) as client:
        with pytest.raises(UnknownOutcome):
            await client.chat(ask(), idempotent=False, deadline_s=5.0)
        assert chaos.calls == 1


async def test_fc_56_retry_carries_the_same_request_id() -> None:
    async with ChaosModel([Fault.reset(), Fault.none()]) as chaos, ModelClient(chaos.address) as client:
        result = await client.chat(ask(request_id="same"), deadline_s=5.0)
        assert result.text == "fine"
        assert chaos.request_ids == ["same", "same"]


async def test_fc_56_call_that_cannot_have_run_is_safe_to_report() -> None:
    client = ModelClient("127.0.0.1:1", config=ModelClientConfig(max_retries=1, backoff_base_s=0.01))
    async with client:
        with pytest.raises(ModelUnavailable):
            await client.chat(ask(), idempotent=False, deadline_s=5.0)


async def test_fc_56_request_that_is_running_is_refused_a_second_time() -> None:
    async with ScriptedModel(["word"], delay_s=5.0) as model:
        task = asyncio.ensure_future(model.client.chat(ask(request_id="twice")))
        await until(lambda: model.calls == 1)
        with pytest.raises(StateError, match="twice"):
            await model.client.chat(ask(request_id="twice"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- handles ------------------------------------------------------------------------------------------


async def test_client_is_bound_to_its_loop() -> None:
    async with ScriptedModel(["ok"]) as model:
        await model.client.chat(ask())
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(model.client.chat(ask()))
            except StateError as error:
                caught.append(error)

        await asyncio.to_thread(elsewhere)
        assert "one client per event loop" in str(caught[0])


async def test_closed_client_says_so() -> None:
    client = ModelClient("127.0.0.1:1")
    await client.aclose()
    await client.aclose()
    with pytest.raises(StateError, match="closed"):
        await client.chat(ask())


@pytest.mark.parametrize("target", ["", "nowhere", "http://x:1", "a:b", "x:1/model", "user:pw@host:1"])
def test_bad_address_is_refused(target: str) -> None:
    with pytest.raises(ConfigError):
        ModelClient(target)


def _child_outcome(client: ModelClient, pipe: Any) -> None:
    outcomes = []
    for call in (
        lambda: asyncio.run(client.chat(ask(), deadline_s=1.0)),
        lambda: asyncio.run(client.aclose()),
        lambda: asyncio.run(client.list_models(deadline_s=1.0)),
    ):
        try:
            call()
        except BaseException as error:  # the name of whatever comes is the result
            outcomes.append(type(error).__name__)
    pipe.send(outcomes)
    pipe.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_fc_60_client_in_a_forked_child_fails_at_once_and_the_parent_goes_on() -> None:
    async with ScriptedModel(["one", "two"]) as model:
        assert (await model.client.chat(ask())).text == "one"
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()

        def run() -> list[str]:
            process = context.Process(target=_child_outcome, args=(model.client, there))
            process.start()
            try:
                assert here.poll(10.0), "the child hangs"
                found: list[str] = here.recv()
                process.join(10.0)
                assert process.exitcode is not None, "the child does not end"
                return found
            finally:
                process.kill()
                process.join()

        assert await asyncio.to_thread(run) == ["ForkError"] * 3
        assert (await model.client.chat(ask())).text == "two"
        here.close()
        there.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fc_60_new_client_state_is_usable_after_a_fork() -> None:
    """A child whose parent held the registry's lock at the fork must not wait for it for ever."""
    with limits._registry_lock:
        pid = os.fork()
        if pid == 0:
            try:
                ModelClient("127.0.0.1:1")
                os._exit(0)
            except BaseException:
                os._exit(1)
    end = time.monotonic() + 10
    done = status = 0
    while not done and time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)
    if not done:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert done, "the child hangs"
    assert os.waitstatus_to_exitcode(status) == 0


async def test_limiter_works_across_event_loops() -> None:
    """Clients on two loops share one endpoint; a permit freed on one wakes the waiter on the other."""
    client = ModelClient("127.0.0.1:2", config=ModelClientConfig())
    endpoint = client._endpoint
    endpoint._limit = 1.0
    endpoint._slow_start = False
    started = await endpoint.acquire(time.monotonic() + 10)
    got = threading.Event()

    def other() -> None:
        async def wait() -> None:
            await endpoint.acquire(time.monotonic() + 10)
            got.set()

        asyncio.run(wait())

    thread = threading.Thread(target=other)
    thread.start()
    await until(lambda: len(endpoint._waiters) == 1)
    endpoint.release(Outcome.NEUTRAL, started)
    await asyncio.to_thread(thread.join, 5.0)
    assert got.is_set()


async def test_rules_script_answers_by_the_last_message() -> None:
    rules = [Rule("weather", "rain"), Rule(".", lambda request: request.messages[-1].content.upper())]
    async with ScriptedModel(rules) as model:
        assert (await model.client.chat(ask("the weather?"))).text == "rain"
        assert (await model.client.chat(ask("shout"))).text == "SHOUT"


async def until(condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
    """Wait until the condition holds; polling, since the event is in another task."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        await asyncio.sleep(0.002)
