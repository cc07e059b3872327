"""Plans by a model: constrained, resolved in code, repaired within bounds; and by rule without one."""

from __future__ import annotations

import json
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.planning import match_capability, plan_by_rule
from pandacore.testing import ScriptedModel


@pc.agent(capabilities=["search.web"])
async def search(task: pc.Task) -> str:
    """Finds pages."""
    return f"found {task.text}"


@pc.agent(capabilities=["write.text"])
async def write(task: pc.Task) -> str:
    """Writes an answer."""
    return f"wrote from {sorted(task.inputs)}"


def plan(*capabilities: str) -> dict[str, Any]:
    return {
        "subtasks": [
            {
                "id": f"p{i}",
                "capability": name,
                "instruction": f"step {i}",
                "depends_on": [f"p{i - 1}"] if i else [],
            }
            for i, name in enumerate(capabilities)
        ]
    }


async def run(model: ScriptedModel, **options: Any) -> pc.Result:
    async with pc.Collective.local(model=model.spec) as c:
        c.add(search, write)
        return await c.run("question?", **options)


async def test_the_model_is_asked_for_a_plan_over_the_vocabulary() -> None:
    async with ScriptedModel([plan("search.web", "write.text")]) as model:
        result = await run(model)
        assert result.output == "wrote from ['p0']"
        [request] = model.requests
        assert json.loads(request.metadata["capabilities"]) == ["search.web", "write.text"]
        assert request.metadata["task"] == "plan"
        assert "Finds pages." in request.messages[0].content
        assert result.usage.total_tokens > 0


@pytest.mark.parametrize("written", ["`search.web`", "Search.Web\n", "search\\.web", "**SEARCH.WEB**"])
async def test_fc_32_a_mangled_capability_goes_to_the_right_agent(written: str) -> None:
    async with ScriptedModel([plan(written)]) as model:
        result = await run(model)
        assert result.output == "found step 0"
        assert model.calls == 1


async def test_fc_32_an_ambiguous_or_unknown_one_is_asked_for_again_with_the_list() -> None:
    async with ScriptedModel([plan("searching"), plan("search.web")]) as model:
        result = await run(model)
        assert result.output == "found step 0"
        correction = model.requests[1].messages[-1].content
        assert "searching" in correction
        assert "search.web, write.text" in correction


async def test_a_plan_that_stays_invalid_ends_the_run_with_the_reason() -> None:
    bad = plan("search.web")
    bad["subtasks"][0]["depends_on"] = ["p0"]
    async with ScriptedModel([bad] * 10) as model:
        result = await run(model)
        assert result.status == "failed"
        assert result.failures[0].kind == "InvalidOutput"
        assert "p0 -> p0" in result.failures[0].message
        assert model.calls == 3


async def test_the_token_budget_is_checked_before_the_planning_call() -> None:
    async with ScriptedModel([plan("search.web")]) as model:
        result = await run(model, budget=pc.Budget(tokens=10))
        assert result.failures[0].kind == "BudgetExceeded"
        assert model.calls == 0


async def test_agents_share_what_the_budget_leaves_and_their_use_is_counted() -> None:
    @pc.agent(capabilities=["think"])
    async def think(task: pc.Task, ctx: pc.AgentContext) -> dict[str, Any]:
        before = ctx.model.remaining_tokens
        answer = await ctx.model.chat(pc.ChatRequest((pc.Message.user("go"),), max_tokens=50))
        return {"before": before, "text": answer.text}

    steps = [
        pc.Subtask("a", "think", "x"),
        pc.Subtask("b", "think", "x"),
        pc.Subtask("c", "think", "x", ["a", "b"]),
    ]
    async with ScriptedModel(lambda request: "thought") as model, pc.Collective.local(model=model.spec) as c:
        c.add(think, replicas=2)
        result = await c.run(pc.Task("x", plan=pc.Plan(steps)), budget=pc.Budget(tokens=1_000))
        assert result.ok, result.failures
        assert result.outputs["a"]["before"] == result.outputs["b"]["before"] == 500
        # c began after a and b: it was given all that they had left.
        assert result.outputs["c"]["before"] == 1_000 - 2 * result.usage.total_tokens // 3
        poor = await c.run(pc.Task("x", plan=pc.Plan(steps[:1])), budget=pc.Budget(tokens=20))
        assert poor.failures[0].kind == "BudgetExceeded"


async def test_a_planner_that_needs_a_model_says_so() -> None:
    async with pc.Collective.local() as c:
        c.add(search, write)
        result = await c.run("x", planner="model")
        assert result.failures[0].kind == "ConfigError"


def test_the_rule_takes_the_capability_whose_words_fit() -> None:
    vocabulary = {"search.web": "Finds pages.", "write.text": "Writes an answer."}
    assert match_capability("Search the archive", vocabulary) == "search.web"
    assert match_capability("summarising", {"summarise text": "", "translate text": ""}) == "summarise text"
    assert [
        s.capability for s in plan_by_rule(pc.Task("x", capabilities=["b", "a"]), vocabulary).subtasks
    ] == [
        "b",
        "a",
    ]
    with pytest.raises(errors.UnknownCapability, match="none of the capabilities"):
        match_capability("juggle", vocabulary)
    with pytest.raises(errors.UnknownCapability, match="several capabilities"):
        match_capability("search and write", vocabulary)
