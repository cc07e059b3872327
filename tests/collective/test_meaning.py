"""Agents found by meaning, and capabilities matched by meaning, in collectives that run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import pandacore as pc
from pandacore import errors
from pandacore.broker import SemanticResolver
from pandacore.models import HashingEmbedder
from pandacore.registry import Registry


@pc.agent(capabilities=["web.search"])
async def searcher(task: pc.Task) -> str:
    """Searches the web for pages."""
    return f"{task.capability}: {task.text}"


@pc.agent(capabilities=["math.integrals", "math.equations"])
async def solver(task: pc.Task) -> str:
    """Solves equations and integrals."""
    return f"{task.capability}: {task.text}"


@pc.agent(capabilities=["text.translate"])
async def translator(task: pc.Task) -> str:
    """Translates German into French."""
    return f"{task.capability}: {task.text}"


class Slow:
    """An embedder that, as a model server does, answers later; counts what it is asked."""

    model_id = "slow"
    dimension = 384

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.inner = HashingEmbedder(384)
        self.gate = asyncio.Event()
        self.gate.set()

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        await self.gate.wait()
        self.texts += texts
        return await self.inner.embed(texts)


async def test_find_follows_agents_that_come_and_go() -> None:
    async with pc.Collective.local(seed=1) as c:
        assert await c.find("search the web") == []
        [first, _, _] = c.add(searcher, solver, translator)
        found = await c.find("an equation to solve", k=1)
        assert [f.name for f in found] == ["solver"]
        assert found[0].capabilities == ("math.integrals", "math.equations")
        assert 0.2 < found[0].similarity <= 1
        assert found[0].did.startswith("did:key:z6Mk")
        assert (await c.find("pages on the web"))[0].agent_id == first.id
        assert len(await c.find("pages on the web")) == 3
        assert len(await c.find("pages on the web", threshold=0.2)) == 1
        await c.remove(first)
        assert first.id not in {f.agent_id for f in await c.find("pages on the web")}
        [again] = c.add(searcher)
        assert (await c.find("pages on the web"))[0].agent_id == again.id


@pc.agent(capabilities=["reports.write"], subscription="storms, floods and other weather disasters")
async def reporter(task: pc.Task) -> str:
    """Writes reports."""
    return task.text


async def test_find_goes_by_subscriptions_and_follows_them() -> None:
    async with pc.Collective.local(seed=1) as c:
        c.add(searcher, solver)
        [agent] = c.add(reporter)
        assert agent.subscription == "storms, floods and other weather disasters"
        assert (await c.find("a flood after the storm", k=1))[0].agent_id == agent.id
        c.resubscribe(agent, "football matches and tournaments")
        assert (await c.find("the football tournament", k=1))[0].agent_id == agent.id
        best = max(f.similarity for f in await c.find("a flood after the storm"))
        assert best < 0.2
        c.resubscribe(agent, "")
        assert (await c.find("writes reports", k=1))[0].agent_id == agent.id
        with pytest.raises(errors.ConfigError, match="4000"):
            c.resubscribe(agent, "x" * 4_001)
        await c.remove(agent)
        with pytest.raises(errors.UnknownAgent):
            c.resubscribe(agent, "gone")


async def test_a_subscription_of_before_the_start_counts() -> None:
    c = pc.Collective.local(seed=1)
    [agent] = c.add(reporter)
    c.add(searcher)
    c.resubscribe(agent, "football")
    async with c:
        assert (await c.find("football", k=1))[0].agent_id == agent.id


async def test_find_leaves_out_whom_no_team_may_have() -> None:
    async with pc.Collective.local(seed=1) as c:
        many = c.add(searcher, replicas=40)
        for agent in many[:36]:
            c.registry.set_trusted(agent.id, False)
        c.registry.set_draining(many[36].id, True)
        found = await c.find("search the web", k=2)
        assert len(found) == 2
        assert {f.agent_id for f in found} <= {a.id for a in many[37:]}


async def test_find_embeds_each_agent_once_and_forgets_those_that_leave_meanwhile() -> None:
    slow = Slow()
    async with pc.Collective.local(seed=1, embedder=slow) as c:
        [gone, kept] = c.add(searcher, replicas=2)
        slow.gate.clear()
        looking = asyncio.create_task(c.find("search the web"))
        await asyncio.sleep(0)
        await c.remove(gone)
        slow.gate.set()
        assert [f.agent_id for f in await looking] == [kept.id]
        asked = len(slow.texts)
        await c.find("search the web")
        assert len(slow.texts) == asked + 1


async def test_find_refuses_what_makes_no_sense() -> None:
    async with pc.Collective.local() as c:
        for text, k in ((" ", 1), ("web", 0)):
            with pytest.raises(errors.ConfigError):
                await c.find(text, k)
        c.add(searcher)
        assert await c.find("!!!") == []
    with pytest.raises(errors.StateError):
        await c.find("web")
    with pytest.raises(errors.ConfigError):
        pc.Collective.local(semantic=0.0)


def test_find_through_the_blocking_face() -> None:
    with pc.Collective.local() as c:
        c.add(searcher, solver)
        assert [f.name for f in c.find("web pages", k=1)] == ["searcher"]


async def test_a_capability_that_nobody_has_is_matched_by_meaning_and_the_team_says_so() -> None:
    task = pc.Task("cats", capabilities=["searching the web", "math.equations"])
    async with pc.Collective.local(seed=1, semantic=0.3) as c:
        c.add(searcher, solver, translator)
        result = await c.run(task)
        # The agent is given the name that it knows.
        assert result.output == {"s1": "web.search: cats", "s2": "math.equations: cats"}
        [formed] = [e for e in result.events if isinstance(e, pc.TeamFormed)]
        [match] = formed.team.matches
        assert (match.requirement, match.capability) == ("searching the web", "web.search")
        assert 0.3 <= match.similarity <= 1
        whys = {m.capability: m.why for m in formed.team.members}
        assert "taken for 'searching the web' by meaning" in whys["web.search"]
        assert "by meaning" not in whys["math.equations"]
        assert result.to_dict()["matches"][0]["requirement"] == "searching the web"
        assert not (await c.run(pc.Task("dogs", capabilities=["web.search"]))).team.matches


@pytest.mark.parametrize("semantic", [None, 0.9999])
async def test_below_the_threshold_or_without_one_only_names_count(semantic: float | None) -> None:
    async with pc.Collective.local(seed=1, semantic=semantic) as c:
        c.add(searcher)
        result = await c.run(pc.Task("cats", capabilities=["searching the web"]))
        assert [f.kind for f in result.failures] == ["NoTeam"]


async def test_matching_waits_for_an_embedder_of_a_server_and_counts_redundancy_by_the_asked_name() -> None:
    async with pc.Collective.local(seed=1, embedder=Slow(), semantic=0.3) as c:
        c.add(searcher, replicas=3)
        task = pc.Task("cats", capabilities=["searching the web"], redundancy={"searching the web": 2})
        result = await c.run(task)
        assert result.ok
        assert len(result.team.members) == 2


async def test_a_run_that_is_resumed_keeps_what_was_matched(tmp_path: object) -> None:
    async with pc.Collective.local(seed=1, semantic=0.3, journal=f"{tmp_path}/runs.db") as c:
        c.add(searcher)
        run = c.start(pc.Task("cats", capabilities=["searching the web"]))
        assert (await run.result()).ok
        from pandacore.team.past import read_past

        opened = read_past(c._open_services().journal, run.id)  # type: ignore[arg-type]
        assert opened.past.plan is not None
        assert list(opened.past.plan.capabilities) == ["web.search"]


def test_the_resolver_serves_a_registry_alone() -> None:
    registry = Registry(resolver=SemanticResolver(HashingEmbedder(), threshold=0.3))
    registry.announce(bytes([1]) * 32, ["web.search"])
    registry.announce(bytes([2]) * 32, ["math.equations"])
    team = registry.assemble({"searching the web": 1, "equation": 1})
    assert team.complete
    assert {m.agent_id[0] for m in team.members} == {1, 2}
    assert registry.assemble(["cooking"]).missing == {"cooking": 1}
    # Capabilities that become known later, and such as nobody has any more.
    registry.announce(bytes([3]) * 32, ["cooking.rice"])
    assert registry.assemble(["cook some rice"]).members[0].agent_id[0] == 3
    registry.withdraw(bytes([1]) * 32)
    assert not registry.assemble(["searching the web"]).complete


def test_the_resolver_orders_by_similarity_and_keeps_to_one_registry() -> None:
    resolver = SemanticResolver(HashingEmbedder(), threshold=0.05, limit=2)
    registry = Registry(resolver=resolver)
    for number, name in enumerate(["web.search", "web.browse", "mail.search", "cook"]):
        registry.announce(bytes([number]) * 32, [name])
    matches = resolver.matches("search of the web", registry)
    assert matches[0].capability == "web.search"
    assert len(matches) == 2
    assert matches[0].similarity > matches[1].similarity
    with pytest.raises(errors.StateError):
        resolver.resolve("x", Registry())
    with pytest.raises(errors.ConfigError):
        SemanticResolver(HashingEmbedder(), threshold=1.5)


async def test_a_hosts_vectors_reach_the_index_of_the_others() -> None:
    here, there, foreign = Slow(), Slow(), Slow()
    foreign.model_id = "another"
    async with pc.Collective.join(embedder=here, seed=1) as a:
        a.add(searcher, solver, translator)
        async with asyncio.timeout(20):
            async for _ in a.changes():
                if [agent.subscription is not None for agent in a.all_agents()] == [True] * 3:
                    break
        async with (
            pc.Collective.join(a.seed_address, embedder=there, seed=2) as b,
            pc.Collective.join(a.seed_address, embedder=foreign, seed=3) as c,
        ):
            agent = next(agent for agent in b.all_agents() if agent.name == "solver")
            assert agent.subscription is not None
            assert (agent.subscription.model, len(agent.subscription.codes)) == ("slow", 384)
            found = await b.find("an equation to solve", k=1)
            assert [f.name for f in found] == ["solver"]
            assert there.texts == ["an equation to solve"], "the agents were embedded by their host"
            plain = (await a.find("an equation to solve", k=1))[0]
            assert abs(found[0].similarity - plain.similarity) < 0.02, "8 bits are enough"
            assert [f.name for f in await c.find("an equation to solve", k=1)] == ["solver"]
            assert len(foreign.texts) == 4, "vectors of another model are not compared"


async def test_other_hosts_follow_a_subscription_that_changes() -> None:
    async with pc.Collective.join(seed=1) as a, pc.Collective.join(a.seed_address, seed=2) as b:
        [agent, _] = a.add(reporter, searcher)

        async def announced(text: str) -> None:
            async with asyncio.timeout(20):
                while True:
                    entries = {e.agent: e for e in b.all_agents()}
                    entry = entries.get(agent.id)
                    if entry is not None and entry.subscription_text == text and entry.subscription:
                        return
                    await asyncio.sleep(0.02)

        await announced(agent.subscription)
        assert (await b.find("a flood after the storm", k=1))[0].agent_id == agent.id
        a.resubscribe(agent, "football matches\nand tournaments")
        await announced("football matches and tournaments")
        async with asyncio.timeout(20):
            while (await b.find("the football tournament", k=1))[0].agent_id != agent.id:
                await asyncio.sleep(0.02)
        assert (await b.find("a flood after the storm", k=1))[0].similarity < 0.2


async def test_an_agent_whose_vector_does_not_fit_is_found_by_its_text() -> None:
    class Wide(Slow):
        model_id = "wide"
        dimension = 1_024

        def __init__(self) -> None:
            super().__init__()
            self.inner = HashingEmbedder(1_024)

    async with (
        pc.Collective.join(embedder=Wide(), seed=1) as a,
        pc.Collective.join(a.seed_address, embedder=Wide(), seed=2) as b,
    ):
        a.add(searcher, solver)
        await b.wait_for("web.search", "math.integrals")
        assert [f.name for f in await b.find("an equation to solve", k=1)] == ["solver"]
        assert [agent.subscription for agent in b.all_agents()] == [None, None]
