"""A collective works only with whom it trusts, and not with who broke contracts; over real gRPC."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.reputation import ReputationPolicy
from pandacore.team.vetting import EPOCH_S
from pandacore.trust import Certificate, Genesis, KeyPair, Revocation, TrustPolicy, TrustStore

FOUNDERS = [KeyPair.from_seed(bytes([n]) * 32) for n in (1, 2)]
GENESIS = Genesis([key.public for key in FOUNDERS], threshold=2)
LENGTH = pc.Contract("say how long it is", output_schema={"type": "integer"})
NOW_S = 1_000
WEEK_S = 604_800  # a shorter certificate takes no place in an issuer's budget, so it does not count


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s


def certify(store: TrustStore, key: KeyPair, *, until: int = NOW_S + WEEK_S) -> list[Certificate]:
    """Both founders vouch for a key."""
    made = [
        Certificate.issue(f, key.public, GENESIS.collective_id, not_before=NOW_S, not_after=until)
        for f in FOUNDERS
    ]
    made = [certificate.consented(key) for certificate in made]
    assert store.ingest_many(made) == [None, None]
    return made


def named(
    name: str, say: Callable[[pc.Task], Any], key: KeyPair | None = None, can: str = "work"
) -> pc.Agent:
    """An agent that answers by a function."""

    async def answer(task: pc.Task) -> Any:
        return say(task)

    return pc.Agent(answer, capabilities=[can], name=name, key=key)


@pytest.fixture
def store() -> TrustStore:
    return TrustStore(GENESIS, now_s=NOW_S, policy=TrustPolicy.strict())


async def test_only_accepted_agents_get_work(store: TrustStore) -> None:
    insider, outsider = KeyPair.from_seed(b"i" * 32), KeyPair.from_seed(b"o" * 32)
    certify(store, insider)
    async with pc.Collective.local(seed=1, trust=store, clock=Clock()) as c:
        inside, outside = c.add(
            named("insider", lambda _: "in", insider), named("outsider", lambda _: "out", outsider)
        )
        results = await asyncio.gather(*(c.run("go") for _ in range(8)))
        assert Counter(r.output for r in results) == {"in": 8}
        [member] = results[0].team.members
        assert member.why == "only accepted holder of 'work', trusted at layer 1 (dedicated)"
        verdict = c.explain(member.agent_id)
        assert verdict.eligible
        assert verdict.trust is not None
        assert verdict.trust.support == tuple((f.public, inside.id) for f in sorted(FOUNDERS, key=_public))
        refused = c.explain(outside)
        assert (refused.eligible, refused.reason) == (False, "not trusted: unknown")


async def test_certificates_and_revocations_of_other_hosts_decide_who_gets_work(store: TrustStore) -> None:
    key = KeyPair.from_seed(b"i" * 32)
    made = certify(TrustStore(GENESIS, now_s=NOW_S, policy=TrustPolicy.strict()), key)
    home = GENESIS.collective_id
    task = pc.Task("go", capabilities=["work"])
    async with (
        pc.Collective.join(collective=home, trust=store, clock=Clock()) as a,
        pc.Collective.join(a.seed_address) as b,
    ):
        b.add(named("insider", lambda _: "in", key))
        async with asyncio.timeout(10):
            while not a.all_agents():
                await asyncio.sleep(0.01)
        assert (await a.run(task)).failures[0].kind == "NoTeam", "nobody vouches for it yet"
        b.publish(*made)
        await a.wait_for("work", timeout_s=10)
        assert (await a.run(task)).output == "in"
        b.publish(*(Revocation.of(c, f, at=NOW_S) for f, c in zip(FOUNDERS, made, strict=True)))
        async with asyncio.timeout(10):
            while a.explain(key.public).eligible:
                await asyncio.sleep(0.01)
        assert (await a.run(task)).failures[0].kind == "NoTeam"


def _public(key: KeyPair) -> bytes:
    return key.public


async def test_without_an_accepted_agent_the_run_says_who_was_refused_and_why(store: TrustStore) -> None:
    half = KeyPair.from_seed(b"h" * 32)
    one = Certificate.issue(
        FOUNDERS[0], half.public, GENESIS.collective_id, not_before=NOW_S, not_after=NOW_S + WEEK_S
    )
    store.ingest(one.consented(half))
    async with pc.Collective.local(seed=1, trust=store, clock=Clock()) as c:
        c.add(named("half", lambda _: "no", half))
        result = await c.run(pc.Task("go", capabilities=["work"]))
        assert result.status == "failed"
        [failure] = result.failures
        assert failure.kind == "NoTeam"
        assert "half: not trusted: too few certificates" in failure.message


async def test_a_certificate_that_expires_takes_the_agent_out(store: TrustStore) -> None:
    clock, key = Clock(), KeyPair.from_seed(b"k" * 32)
    certify(store, key, until=NOW_S + WEEK_S)
    task = pc.Task("go", capabilities=["work"])
    async with pc.Collective.local(seed=1, trust=store, clock=clock) as c:
        c.add(named("brief", lambda _: "done", key))
        clock.now_s = NOW_S + WEEK_S - 1
        assert (await c.run(task)).output == "done"
        clock.now_s = NOW_S + WEEK_S
        assert (await c.run(task)).failures[0].kind == "NoTeam"


async def test_an_agent_that_is_certified_later_gets_work(store: TrustStore) -> None:
    key = KeyPair.from_seed(b"l" * 32)
    task = pc.Task("go", capabilities=["work"])
    with store.trusted() as accepted:
        async with pc.Collective.local(seed=1, trust=accepted, clock=Clock()) as c:
            c.add(named("late", lambda _: "done", key))
            assert (await c.run(task)).failures[0].kind == "NoTeam"
            certify(store, key)
            assert (await c.run(task)).output == "done"


async def test_a_revocation_in_the_middle_of_a_run_moves_the_work_to_another(store: TrustStore) -> None:
    first, second, third = (KeyPair.from_seed(bytes([n]) * 32) for n in (11, 12, 13))
    certificates = {key.public: certify(store, key) for key in (first, second, third)}
    revoked = asyncio.Event()

    async def prepare(_: pc.Task) -> str:
        await revoked.wait()
        return "ready"

    plan = pc.Plan([pc.Subtask("a", "prepare", "prepare"), pc.Subtask("b", "work", "work", depends_on=["a"])])
    async with pc.Collective.local(seed=1, trust=store, clock=Clock()) as c:
        c.add(pc.Agent(prepare, capabilities=["prepare"], key=first))
        pair = c.add(named("one", lambda _: "one", second), named("two", lambda _: "two", third))
        async with c.stream(pc.Task("go", plan=plan)) as events:
            async for event in events:
                if isinstance(event, pc.TeamFormed):
                    [chosen] = event.team.holders("work")
                    for certificate, founder in zip(certificates[chosen.agent_id], FOUNDERS, strict=True):
                        store.ingest(Revocation.of(certificate, founder, at=NOW_S))
                    revoked.set()
                if isinstance(event, pc.RunFinished):
                    result = event.result
        assert result.status == "completed", result.failures
        assert [result.outputs["b"]] == [agent.name for agent in pair if agent.id != chosen.agent_id]


async def test_who_breaks_contracts_is_excluded_and_returns_after_idle_epochs() -> None:
    clock, asked = Clock(), Counter[str]()

    def length(name: str, says: Callable[[pc.Task], Any]) -> pc.Agent:
        def answer(task: pc.Task) -> Any:
            asked[name] += 1
            return says(task)

        return named(name, answer)

    task = pc.Task("four", capabilities=["work"], contracts={"s1": LENGTH})
    async with pc.Collective.local(seed=3, reputation=ReputationPolicy.robust(), clock=clock) as c:
        liar, _ = c.add(length("liar", lambda _: "many"), length("honest", lambda task: len(task.text)))
        for _ in range(12):
            result = await c.run(task)
            assert result.output == 4
        # One run asks it twice: a broken contract is sent back once. Then it is never asked again.
        assert asked["liar"] == 2
        verdict = c.explain(liar)
        assert (verdict.eligible, verdict.reason) == (False, "excluded after 2 judged outcomes")
        assert "misbehaviour estimated at" in result.team.members[0].why
        clock.now_s += 12 * EPOCH_S
        assert c.explain(liar).eligible


async def test_alone_an_excluded_agent_leaves_no_team_and_a_rating_from_outside_counts() -> None:
    async with pc.Collective.local(seed=3, reputation=ReputationPolicy.robust(), clock=Clock()) as c:
        [worker] = c.add(named("worker", lambda _: "done"))
        task = pc.Task("go", capabilities=["work"])
        assert (await c.run(task)).output == "done"
        assert c.explain(worker).reputation is None, "what nobody judged says nothing"
        for _ in range(2):
            c.rate(worker, bad=True)
        [failure] = (await c.run(task)).failures
        assert failure.kind == "NoTeam"
        assert "worker: excluded after 2 judged outcomes" in failure.message
        await c.remove(worker)
        c.add(worker)
        assert not c.explain(worker).eligible, "leaving and coming back washes nothing off"


async def test_agents_of_another_process_need_certificates_too(store: TrustStore, tmp_path: Path) -> None:
    (tmp_path / "crew.py").write_text(
        "import pandacore as pc\n"
        "@pc.agent(capabilities=['work'])\n"
        "async def stranger(task):\n"
        "    return 'stranger'\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pandacore.team.serve", "crew"), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        async with pc.Collective.local(seed=1, trust=store, clock=Clock()) as c:
            assert await c.attach(ready["address"]) == 1
            [failure] = (await c.run(pc.Task("go", capabilities=["work"]))).failures
            assert "stranger: not trusted: unknown" in failure.message
    finally:
        process.terminate()
        await process.wait()


def test_the_blocking_face_explains_and_rates() -> None:
    with pc.Collective.local(seed=1, reputation=ReputationPolicy.robust(), clock=Clock()) as c:
        [worker] = c.add(named("worker", lambda _: "done"))
        c.rate(worker, bad=False)
        assert c.explain(worker).reason.startswith("misbehaviour estimated at")


async def test_a_collective_without_reputation_refuses_ratings() -> None:
    async with pc.Collective.local() as c:
        [worker] = c.add(named("worker", lambda _: "done"))
        assert c.explain(worker).reason == "everybody is accepted"
        with pytest.raises(errors.StateError, match="keeps no reputation"):
            c.rate(worker, bad=True)
