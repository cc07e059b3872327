"""Caps on money, on single agents and on hops: held before the call, in every pattern."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.models.budget import TokenLedger
from pandacore.models.prices import UNITS, PricedLedger
from pandacore.models.types import Usage
from pandacore.testing import ScriptedModel

PATTERNS = ["star", "chain", "mesh", "failover"]


@pc.agent(capabilities=["think"], concurrency=8)
async def think(task: pc.Task, ctx: pc.AgentContext) -> str:
    request = pc.ChatRequest((pc.Message.user("go"),), max_tokens=50)
    return (await ctx.model.chat(request)).text


def line(count: int, capability: str = "think") -> pc.Plan:
    """Subtasks, each after the one before."""
    return pc.Plan([pc.Subtask(f"s{n}", capability, "x", [f"s{n - 1}"] if n else []) for n in range(count)])


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_money_is_counted_by_the_table_and_never_more_is_spent(pattern: str) -> None:
    async with (
        ScriptedModel(lambda request: "thought") as model,
        pc.Collective.local(model=model.spec) as c,
    ):
        c.add(think, replicas=2)
        prices = {"scripted": (1.0, 10.0)}
        task = pc.Task("x", plan=line(3), redundancy={"think": 2})
        result = await c.run(task, pattern=pattern, budget=pc.Budget(cost=50.0, prices=prices))
        assert result.failures == ()
        usage = result.usage
        expected = (usage.prompt_tokens * 1.0 + usage.completion_tokens * 10.0) / 1000
        assert usage.cost == pytest.approx(expected)
        assert usage.cost > 0
        calls = model.calls
        poor = await c.run(task, pattern=pattern, budget=pc.Budget(cost=0.01, prices=prices, replans=0))
        [failure] = poor.failures
        assert failure.kind == "BudgetExceeded"
        assert "may cost" in failure.message
        assert model.calls == calls, "a call that could cost too much is not made"


@pytest.mark.parametrize("pattern", ["star", "mesh"])
async def test_a_cap_on_cost_without_a_price_for_the_model_is_refused_by_type(pattern: str) -> None:
    async with (
        ScriptedModel(lambda request: "thought") as model,
        pc.Collective.local(model=model.spec) as c,
    ):
        c.add(think)
        task = pc.Task("x", plan=line(1), idempotent=True)
        budget = pc.Budget(cost=1.0, prices={"other": (1, 1)}, replans=0)
        result = await c.run(task, pattern=pattern, budget=budget)
        [failure] = result.failures
        assert failure.kind == "UnknownPrice"
        assert "'scripted'" in failure.message
        assert model.calls == 0


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_an_agent_that_has_used_up_its_steps_makes_room_for_another(pattern: str) -> None:
    ran: Counter[str] = Counter()

    def worker(name: str) -> pc.Agent:
        async def work(task: pc.Task) -> str:
            ran[name] += 1
            return task.subtask_id

        return pc.Agent(work, capabilities=["do"], name=name)

    async with pc.Collective.local(seed=1) as c:
        c.add(worker("one"), worker("two"))
        task = pc.Task("x", plan=line(4, "do"), redundancy={"do": 2})
        result = await c.run(task, pattern=pattern, budget=pc.Budget(agent_steps=2))
        assert result.failures == ()
        assert ran == {"one": 2, "two": 2}
        ran.clear()
        task = pc.Task("x", plan=line(5, "do"), redundancy={"do": 2})
        short = await c.run(task, pattern=pattern, budget=pc.Budget(agent_steps=2, replans=0, wall_s=20))
        assert short.failures[0].kind in ("BudgetExceeded", "NoReplacement")
        assert max(ran.values()) == 2


async def test_the_tokens_of_one_agent_are_capped_below_those_of_the_run() -> None:
    async def greedy(task: pc.Task, ctx: pc.AgentContext) -> Any:
        left = ctx.model.remaining_tokens
        await ctx.model.chat(pc.ChatRequest((pc.Message.user("go"),), max_tokens=50))
        return left

    async with (
        ScriptedModel(lambda request: "thought") as model,
        pc.Collective.local(model=model.spec) as c,
    ):
        c.add(pc.Agent(greedy, capabilities=["think"]))
        result = await c.run(pc.Task("x", plan=line(2)), budget=pc.Budget(tokens=10_000, agent_tokens=300))
        assert result.failures == ()
        assert result.outputs["s0"] == 300
        assert result.outputs["s1"] == 300 - result.usage.total_tokens // 2


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_work_passes_on_as_often_as_hops_allow(pattern: str) -> None:
    async def broken(task: pc.Task) -> str:
        raise OSError("out of order")

    async with pc.Collective.local() as c:
        c.add(*(pc.Agent(broken, capabilities=["do"], name=f"a{n}") for n in range(3)))
        task = pc.Task("x", plan=line(1, "do"), redundancy={"do": 3}, idempotent=True)
        result = await c.run(task, pattern=pattern, budget=pc.Budget(hops=1, replans=0))
        [failure] = result.failures
        assert failure.kind == "BudgetExceeded"
        assert failure.where == "Budget.hops"
        started = [e for e in result.events if isinstance(e, pc.SubtaskStarted)]
        assert len(started) == 2


def test_money_is_reserved_at_the_dearer_rate_and_settled_exactly() -> None:
    tokens, cost = TokenLedger(None), TokenLedger(1 * UNITS)
    ledger = PricedLedger(tokens, cost, {"m": (1.0, 4.0)}).of("m")
    held = ledger.reserve(200)
    assert cost.reserved == round(0.8 * UNITS)
    with pytest.raises(errors.BudgetExceeded, match=r"51 tokens of 'm' may cost 0.204, 0.2 is left"):
        ledger.reserve(51)
    held.settle(100)
    assert ledger.exact(Usage(90, 10, 100)) == pytest.approx(0.13)
    assert (cost.used, cost.reserved) == (round(0.13 * UNITS), 0)
    assert tokens.used == 100
    assert tokens.reserved == 0


def test_caps_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match="one agent may not have more"):
        pc.Budget(cost=1.0, agent_cost=2.0)
    with pytest.raises(errors.ConfigError, match="not two numbers"):
        pc.Budget(prices={"m": (1.0,)})
    budget = pc.Budget(cost=1.0, prices={"m": (1, 2)}, hops=3)
    assert pc.Budget.from_dict(budget.to_dict()).to_dict() == budget.to_dict()
