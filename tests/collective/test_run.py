"""Runs from task to result, over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.team.host import Host


@pc.agent(capabilities=["text.upper"])
async def upper(task: pc.Task) -> str:
    """Writes in capitals."""
    return task.text.upper()


@pc.agent(capabilities=["text.join"])
async def join(task: pc.Task) -> str:
    """Joins what came before."""
    return " ".join(str(task.inputs[key]) for key in sorted(task.inputs))


@pytest.fixture
async def collective() -> AsyncIterator[pc.Collective]:
    async with pc.Collective.local(seed=7) as c:
        yield c


def background() -> set[str]:
    """Names of the tasks of this loop that belong to pandacore's runs and agents."""
    return {t.get_name() for t in asyncio.all_tasks() if "pandacore" in t.get_name() or "/" in t.get_name()}


async def test_the_result_says_who_did_what_and_why(collective: pc.Collective) -> None:
    collective.add(upper)
    result = await collective.run("hello")
    assert result.status == "completed"
    assert result.output == "HELLO"
    assert result.failures == ()
    [member] = result.team.members
    assert (member.name, member.capability) == ("upper", "text.upper")
    assert "only holder" in member.why
    assert member.did.startswith("did:key:z6Mk")
    assert 0 < result.timings.assemble_s < result.wall_s
    assert [type(e).__name__ for e in result.events] == [
        "RunStarted",
        "PlanReady",
        "TeamFormed",
        "SubtaskStarted",
        "SubtaskCompleted",
    ]


async def test_a_plan_of_the_users_runs_in_parallel_and_joins(collective: pc.Collective) -> None:
    together = asyncio.Barrier(2)

    @pc.agent(capabilities=["meet"], concurrency=2)
    async def meet(task: pc.Task) -> str:
        await together.wait()  # passes only if both are in flight at once
        return task.text

    collective.add(meet, join)
    plan = pc.Plan(
        [
            pc.Subtask("a", "meet", "left"),
            pc.Subtask("b", "meet", "right"),
            pc.Subtask("c", "text.join", "join", ["a", "b"]),
        ]
    )
    result = await collective.run(pc.Task("both", plan=plan), budget=pc.Budget(wall_s=10))
    assert result.output == "left right"
    assert list(result.outputs) == ["a", "b", "c"] or list(result.outputs) == ["b", "a", "c"]


async def test_the_stream_counts_and_ends_with_the_result(collective: pc.Collective) -> None:
    collective.add(upper)
    events = [event async for event in collective.stream("hello")]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert len({e.run_id for e in events}) == 1
    last = events[-1]
    assert isinstance(last, pc.RunFinished)
    assert last.result.output == "HELLO"


async def test_events_can_be_read_again_from_any_point(collective: pc.Collective) -> None:
    collective.add(upper)
    run = collective.start("hello")
    result = await run.result()
    everything = [e async for e in run.events()]
    assert [e async for e in run.events(after=3)] == everything[3:]
    assert everything[:-1] == list(result.events)


async def test_a_failed_run_has_no_output_and_keeps_its_partial_results(collective: pc.Collective) -> None:
    @pc.agent(capabilities=["break"])
    def broken(task: pc.Task) -> str:
        raise ValueError("boom")

    collective.add(upper, broken)
    plan = pc.Plan([pc.Subtask("a", "text.upper", "x"), pc.Subtask("b", "break", "x", ["a"])])
    result = await collective.run(pc.Task("t", plan=plan))
    assert result.status == "failed"
    assert result.outputs == {"a": "X"}
    [failure] = result.failures
    assert (failure.kind, failure.subtask_id, failure.agent) == ("AgentFailed", "b", "broken")
    assert "ValueError: boom" in failure.message
    with pytest.raises(errors.RunFailed, match="boom"):
        _ = result.output
    assert (await collective.run("again", pattern="star")).failures  # the collective stays usable
    assert (await collective.run(pc.Task("again", capabilities=["text.upper"]))).output == "AGAIN"


async def test_without_an_agent_for_a_capability_there_is_no_team(collective: pc.Collective) -> None:
    result = await collective.run("x")
    assert result.failures[0].kind == "NoTeam"
    collective.add(upper)
    plan = pc.Plan([pc.Subtask("a", "fly", "x")])
    result = await collective.run(pc.Task("x", plan=plan))
    assert result.failures[0].kind == "NoTeam"
    assert "1 more for 'fly'" in result.failures[0].message


async def test_two_capabilities_of_one_agent_fall_back_to_a_consolidated_team(
    collective: pc.Collective,
) -> None:
    @pc.agent(capabilities=["one", "two"])
    async def both(task: pc.Task) -> str:
        return task.capability

    collective.add(both)
    result = await collective.run(pc.Task("x", capabilities=["one", "two"]))
    assert result.output == {"s1": "one", "s2": "two"}
    assert result.team.mode == "consolidated"


async def test_a_member_that_never_began_is_replaced(collective: pc.Collective) -> None:
    """The agent that holds the place leaves before it is assigned; another one takes the subtask."""
    collective.add(upper)
    second = pc.Agent.of(upper)
    stream = collective.stream("hello")
    async for event in stream:
        if isinstance(event, pc.TeamFormed):
            collective.add(second)
            await collective.remove(collective.agents[0])
        if isinstance(event, pc.RunFinished):
            assert event.result.output == "HELLO"
            assert [m.agent_id for m in event.result.team.members][-1] == second.id


async def test_an_agent_serves_several_teams_at_once(collective: pc.Collective) -> None:
    inside = asyncio.Barrier(3)

    @pc.agent(capabilities=["meet"], concurrency=3)
    async def meet(task: pc.Task) -> str:
        await inside.wait()
        return task.run_id

    collective.add(meet)
    results = await asyncio.gather(*(collective.run("x", budget=pc.Budget(wall_s=10)) for _ in range(3)))
    assert len({r.output for r in results}) == 3


async def test_a_larger_priority_is_served_first(collective: pc.Collective) -> None:
    served: list[str] = []
    entered, gate = asyncio.Event(), asyncio.Event()

    @pc.agent(capabilities=["serve"])
    async def serve(task: pc.Task) -> None:
        if task.text == "first":
            entered.set()
            await gate.wait()
        served.append(task.text)

    [agent] = collective.add(serve)
    assert collective._host is not None
    queue = collective._host.worker(agent.id).queue
    runs = [collective.start("first")]
    await entered.wait()
    for text, priority in [("low", 0), ("high", 9)]:
        before = queue.queued
        runs.append(collective.start(pc.Task(text, priority=priority)))
        async with asyncio.timeout(5):
            while queue.queued == before:
                await asyncio.sleep(0.005)
    gate.set()
    for run in runs:
        assert (await run.result()).ok
    assert served == ["first", "high", "low"]


async def test_two_hundred_runs_on_twenty_agents_all_end_with_the_load_spread(
    collective: pc.Collective,
) -> None:
    served: Counter[bytes] = Counter()
    deepest = 0

    def make() -> pc.Agent:
        async def work(task: pc.Task) -> str:
            nonlocal deepest
            served[agent.id] += 1
            deepest = max(deepest, collective._host.worker(agent.id).queue.load)  # type: ignore[union-attr]
            await asyncio.sleep(0.005)
            return task.text

        agent = pc.Agent(work, capabilities=["work"], queue_limit=4)
        return agent

    collective.add(*(make() for _ in range(20)))
    results = await asyncio.gather(*(collective.run(f"t{i}") for i in range(200)))
    assert [r.output for r in results] == [f"t{i}" for i in range(200)]
    loads = list(served.values())
    jain = sum(loads) ** 2 / (20 * sum(x * x for x in loads))
    assert len(loads) == 20
    assert jain >= 0.9, f"Jain index {jain:.3f}: {sorted(loads)}"
    assert deepest <= 5
    await asyncio.sleep(0)
    assert not background()
    assert not collective._runs


async def test_a_wide_plan_waits_in_line_for_a_short_queue_and_holds_up_nobody_else(
    collective: pc.Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    assign = Host.assign

    def counted(self: Host, request: Any, *args: Any) -> Any:
        asked[request.capability] += 1
        return assign(self, request, *args)

    monkeypatch.setattr(Host, "assign", counted)
    order: list[str] = []

    @pc.agent(capabilities=["slow"], queue_limit=3)
    async def slow(task: pc.Task) -> str:
        await asyncio.sleep(0.001)
        order.append("slow")
        return "done"

    @pc.agent(capabilities=["quick"], queue_limit=64)
    async def quick(task: pc.Task) -> str:
        order.append("quick")
        return "done"

    collective.add(slow, quick)
    wide = [pc.Subtask(f"s{n}", "slow", "go") for n in range(300)]
    narrow = [pc.Subtask(f"q{n}", "quick", "go", [f"q{n - 1}"] if n else []) for n in range(20)]
    result = await collective.run(pc.Task("wide", plan=pc.Plan([*wide, *narrow])))
    assert result.status == "completed"
    assert asked["quick"] == 20
    # Each asks once and is refused; then it asks in its turn, and again when somebody has ended.
    assert asked["slow"] <= 3 * 300
    assert max(n for n, name in enumerate(order) if name == "quick") < 300


async def test_places_that_a_run_did_not_use_are_given_back(collective: pc.Collective) -> None:
    @pc.agent(capabilities=["spare"])
    async def spare(task: pc.Task) -> str:
        return task.text

    collective.add(spare, replicas=3)

    def reserved() -> int:
        assert collective._host is not None
        return sum(collective._host.worker(a.id).queue.reserved for a in collective.agents)

    async with contextlib.aclosing(collective.stream(pc.Task("x", redundancy={"spare": 3}))) as events:
        held = [reserved() async for event in events if isinstance(event, pc.TeamFormed)]
    assert held == [3]
    assert reserved() == 0, "a finished run still holds places"


async def test_runs_cancelled_at_random_points_end_within_a_second(collective: pc.Collective) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)

    @pc.agent(capabilities=["nap"], concurrency=4)
    async def nap(task: pc.Task) -> str:
        await asyncio.sleep(0.03)
        return "rested"

    collective.add(nap, join, replicas=3)
    plan = pc.Plan(
        [
            *(pc.Subtask(f"n{i}", "nap", "x") for i in range(4)),
            pc.Subtask("j", "text.join", "x", [f"n{i}" for i in range(4)]),
        ]
    )
    loop = asyncio.get_running_loop()
    statuses: Counter[str] = Counter()

    async def one(delay: float) -> None:
        run = collective.start(pc.Task("x", plan=plan))
        await asyncio.sleep(delay)
        began = loop.time()
        result = await run.cancel()
        assert loop.time() - began < 1.0 + 1.0, f"seed {seed}"  # one second, and one for a busy machine
        statuses[result.status] += 1
        assert result.status in ("cancelled", "completed"), f"seed {seed}: {result.failures}"

    await asyncio.gather(*(one(rng.uniform(0, 0.3)) for _ in range(60)))
    assert statuses["cancelled"] > 0, f"seed {seed}"
    async with asyncio.timeout(5):
        while background():
            await asyncio.sleep(0.01)
    for agent in collective.agents:
        assert collective._host is not None
        assert collective._host.worker(agent.id).queue.load == 0, f"seed {seed}"


async def test_cancelling_the_awaiting_task_cancels_the_run(collective: pc.Collective) -> None:
    entered, stopped = asyncio.Event(), asyncio.Event()

    @pc.agent(capabilities=["wait"])
    async def wait(task: pc.Task) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    collective.add(wait)
    waiting = asyncio.create_task(collective.run("x"))
    await entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert stopped.is_set()
    assert not collective._runs


async def test_fc_41_a_tool_that_swallows_its_cancellation_is_named_in_the_result(
    collective: pc.Collective,
) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @pc.agent(capabilities=["stubborn"])
    async def stubborn(task: pc.Task) -> None:
        entered.set()
        while not leave.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await leave.wait()

    collective.add(stubborn)
    run = collective.start("x")
    await entered.wait()
    async with asyncio.timeout(3):
        result = await run.cancel()
    leave.set()
    assert result.status == "cancelled"
    assert any("ignored the cancellation" in f.message for f in result.failures)


@pytest.mark.parametrize(
    ("budget", "kind"), [(pc.Budget(wall_s=0.1), "Budget.wall_s"), (pc.Budget(steps=2), "Budget.steps")]
)
async def test_fc_68_a_cap_is_named_with_its_value_and_what_was_finished_is_kept(
    collective: pc.Collective, budget: pc.Budget, kind: str
) -> None:
    @pc.agent(capabilities=["slow"])
    async def slow(task: pc.Task) -> str:
        await asyncio.sleep(30 if task.subtask_id == "c" else 0)
        return "done"

    collective.add(slow)
    steps = [
        pc.Subtask("a", "slow", "x"),
        pc.Subtask("b", "slow", "x", ["a"]),
        pc.Subtask("c", "slow", "x", ["b"]),
    ]
    result = await collective.run(pc.Task("x", plan=pc.Plan(steps)), budget=budget)
    assert result.status == "failed"
    assert result.outputs == {"a": "done", "b": "done"}
    assert (result.failures[0].kind, result.failures[0].where) == ("BudgetExceeded", kind)
    assert "raise Budget(" in (result.failures[0].hint or "")


@pytest.mark.parametrize(
    "arguments",
    [{"pattern": "sta"}, {"planner": "guess"}, {"pattern": dict}],
)
async def test_bad_arguments_are_refused_before_anything_starts(
    collective: pc.Collective, arguments: dict[str, Any]
) -> None:
    collective.add(upper)
    with pytest.raises(errors.ConfigError) as caught:
        await collective.run("x", **arguments)
    assert caught.value.hint
    with pytest.raises(errors.ConfigError):
        await collective.run("   ")
    with pytest.raises(errors.ConfigError):
        await collective.run(3)  # type: ignore[arg-type]


def test_a_task_and_a_budget_check_their_fields() -> None:
    for bad in ("", " \n"):
        with pytest.raises(errors.ConfigError, match="empty"):
            pc.Task(bad)
    with pytest.raises(errors.ConfigError, match="one string"):
        pc.Task("x", capabilities="abc")
    with pytest.raises(errors.ConfigError, match="above 0"):
        pc.Budget(tokens=0)
    with pytest.raises(errors.ConfigError, match="redundancy"):
        pc.Task("x", redundancy={"c": 0})


@pytest.mark.parametrize(
    "make",
    [
        lambda: pc.agent(capabilities=[]),
        lambda: pc.agent(capabilities="abc"),
        lambda: pc.agent(capabilities=["a"], concurrency=0),
        lambda: pc.agent(capabilities=["a"])(3),
        lambda: pc.Agent.of(len),
        lambda: pc.Agent(lambda: 1, capabilities=["a"]),
        lambda: pc.Agent(lambda a, b, c: 1, capabilities=["a"]),
    ],
)
def test_a_wrong_agent_is_refused_with_a_hint(make: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        make()
    assert caught.value.hint


def test_a_marked_function_stays_what_it_was() -> None:
    assert asyncio.run(upper(pc.Task("x"))) == "X"
    agent = pc.Agent.of(upper)
    assert (agent.name, agent.description) == ("upper", "Writes in capitals.")


def test_a_marked_class_makes_one_instance_an_agent() -> None:
    @pc.agent(capabilities=["count"], name="counter")
    class Counting:
        """Counts."""

        def __init__(self) -> None:
            self.calls = 0

        async def run(self, task: pc.Task) -> int:
            self.calls += 1
            return self.calls

    with pc.Collective.local() as c:
        c.add(Counting)
        assert [c.run("x").output for _ in range(3)] == [1, 2, 3]
        assert c.agents[0].name == "counter"
