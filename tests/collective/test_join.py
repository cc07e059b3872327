"""A collective of several hosts: found by gossip, worked with, killed, left, refused."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pandacore as pc
from pandacore import errors
from pandacore.gossip import Announcement, Node, Request, Ticket, issue_ticket
from pandacore.launchers import HostSpec, LocalLauncher
from pandacore.team.client import AgentClient
from pandacore.team.passes import METADATA_KEY, Doorman, Passport
from pandacore.team.presence import Joining, collective_id
from pandacore.trust import did_of

CREW = """
import asyncio, os
import pandacore as pc

@pc.agent(capabilities=["work"], concurrency=4)
async def worker(task):
    '''Works, and says where.'''
    await asyncio.sleep(0.05)
    return f"{task.text} by {os.getpid()}"

@pc.agent(capabilities=["rare.work"])
def rare(task):
    return f"rarely by {os.getpid()}"
"""


@pc.agent(capabilities=["text.upper"])
async def upper(task: pc.Task) -> str:
    return task.text.upper()


@pc.agent(capabilities=["text.lower"], description="makes letters small")
async def lower(task: pc.Task) -> str:
    return task.text.lower()


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of agents that host processes can import."""
    (tmp_path / "crew.py").write_text(CREW)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return "crew"


def spec(c: pc.Collective, *agents: str, standby: tuple[str, ...] = ()) -> HostSpec:
    return HostSpec(c.id, agents=agents, standby=standby, seeds=(c.seed_address.partition("/")[0],))


async def until(check: Callable[[], bool], seconds: float = 10) -> float:
    start = time.monotonic()
    while not check():
        assert time.monotonic() - start < seconds
        await asyncio.sleep(0.01)
    return time.monotonic() - start


def work(text: str, *, steps: int = 1) -> pc.Task:
    plan = [pc.Subtask(f"s{n}", "work", f"{text} {n}", [f"s{n - 1}"] if n else []) for n in range(steps)]
    return pc.Task(text, plan=pc.Plan(plan), idempotent=True)


async def test_a_task_runs_on_another_process_that_was_found_by_gossip(crew: str) -> None:
    async with pc.Collective.join() as c, LocalLauncher() as launcher:
        host = await launcher.start(spec(c, f"{crew}:worker"))
        await c.wait_for("work", timeout_s=10)
        result = await c.run(pc.Task("hello", capabilities=["work"]))
        assert result.output == f"hello by {host.pid}"
        [member] = result.team.members
        [entry] = c.all_agents()
        assert (member.address, member.agent_id) == (f"{host.did}@{entry.endpoint}", entry.agent)
        assert entry.description == "Works, and says where."
        assert [(m.did, m.state, m.agents) for m in c.members()] == [
            (c.node.did, "alive", 0),
            (host.did, "alive", 1),
        ]
        [found] = await c.find("works and says where", threshold=0.3)
        assert found.agent_id == entry.agent
        start = time.monotonic()
        await launcher.stop(host)
        assert time.monotonic() - start < 2
        assert await until(lambda: not c.all_agents()) < 1, "a goodbye takes the agents along at once"


@pytest.mark.slow
async def test_a_killed_host_is_replaced_while_runs_go_on_and_a_late_one_is_used(crew: str) -> None:
    async with pc.Collective.join(seed=3) as c, LocalLauncher() as launcher:
        hosts = [await launcher.start(spec(c, f"{crew}:worker")) for _ in range(2)]
        await until(lambda: len(c.all_agents()) == 2)
        runs = [c.start(work(f"run {n}", steps=6)) for n in range(6)]
        await until(lambda: any(isinstance(e, pc.SubtaskCompleted) for e in runs[0]._events))
        os.kill(hosts[0].pid, signal.SIGKILL)
        results = await asyncio.gather(*(run.result() for run in runs))
        assert [r.status for r in results] == ["completed"] * 6, [r.failures for r in results]
        assert all(str(hosts[1].pid) in r.outputs["s5"] for r in results)
        for result in results:
            done = [e.subtask_id for e in result.events if isinstance(e, pc.SubtaskCompleted)]
            assert sorted(done) == [f"s{n}" for n in range(6)]
        # The dead host's agent may still be listed: it declines by not being there.
        late = await launcher.start(spec(c, f"{crew}:worker"))
        live = {hosts[1].did, late.did}
        await until(lambda: late.did in {did_of(a.host) for a in c.all_agents()})
        wide = pc.Task("both", capabilities=["work"], redundancy={"work": 2})
        team = (await c.run(wide)).team
        places = {f"{did_of(a.host)}@{a.endpoint}" for a in c.all_agents() if did_of(a.host) in live}
        assert {m.address for m in team.members} == places


async def test_a_silent_host_is_found_by_gossip_and_its_work_is_done_elsewhere(crew: str) -> None:
    async with pc.Collective.join() as c, LocalLauncher() as launcher:
        sleeper = await launcher.start(spec(c, f"{crew}:worker"))
        await c.wait_for("work")
        run = c.start(work("asleep", steps=40))
        await until(lambda: any(isinstance(e, pc.SubtaskStarted) for e in run._events))
        os.kill(sleeper.pid, signal.SIGSTOP)
        try:

            @pc.agent(capabilities=["work"])
            async def local(task: pc.Task) -> str:
                return "done here"

            c.add(local)
            result = await run.result()
        finally:
            os.kill(sleeper.pid, signal.SIGCONT)
        assert result.outputs["s39"] == "done here", result.failures


@pytest.mark.parametrize("pattern", ["chain", "mesh"])
async def test_members_on_different_hosts_work_with_each_other(pattern: str) -> None:
    async with (
        pc.Collective.join() as a,
        pc.Collective.join(a.seed_address) as b,
        pc.Collective.join(a.seed_address) as c,
    ):
        b.add(upper)
        c.add(lower)
        await a.wait_for("text.upper", "text.lower")
        plan = pc.Plan([pc.Subtask("up", "text.upper", "Ab"), pc.Subtask("down", "text.lower", "Cd", ["up"])])
        result = await a.run(pc.Task("both", plan=plan), pattern=pattern)
        assert result.outputs == {"up": "AB", "down": "cd"}, result.failures


async def test_what_nobody_announces_is_asked_for_and_started(crew: str) -> None:
    async with pc.Collective.join() as c, LocalLauncher() as launcher:
        host = await launcher.start(spec(c, standby=(f"{crew}:rare",)))
        assert not c.all_agents()
        result = await c.run(pc.Task("x", capabilities=["rare.work"]))
        assert result.output == f"rarely by {host.pid}"
        assert [a.name for a in c.all_agents()] == ["rare"]
        start = time.monotonic()
        failed = await c.run(pc.Task("x", capabilities=["unheard.of"]))
        assert failed.failures[0].kind == "NoTeam"
        assert time.monotonic() - start < 4, "offers are waited for, but not for long"


async def test_a_lost_member_is_replaced_by_one_that_comes_up_when_asked() -> None:
    asked: list[Request] = []

    async def make(request: Request) -> list[object]:
        asked.append(request)
        return [upper]

    started = asyncio.Event()

    @pc.agent(capabilities=["text.upper"])
    async def slow(task: pc.Task) -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    async with pc.Collective.join() as a, pc.Collective.join(a.seed_address, on_request=make) as b:
        async with pc.Collective.join(a.seed_address) as victim:
            victim.add(slow)
            await a.wait_for("text.upper")
            run = a.start(pc.Task("swap", capabilities=["text.upper"], idempotent=True))
            await started.wait()
        result = await run.result()
        assert (result.status, result.value) == ("completed", "SWAP"), result.failures
        assert [r.capabilities for r in asked] == [("text.upper",)]
        assert [agent.name for agent in b.agents] == ["upper"]
        assert a.members()[1].did in {b.node.did, victim._presence.node.did if victim._presence else ""}


async def test_a_host_that_closes_is_no_cancellation_of_other_hosts_runs() -> None:
    started = asyncio.Event()

    @pc.agent(capabilities=["text.upper"])
    async def slow(task: pc.Task) -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    async with pc.Collective.join() as a, pc.Collective.join(a.seed_address) as leaving:
        leaving.add(slow)
        await a.wait_for("text.upper")
        runs = [a.start(pc.Task(t, capabilities=["text.upper"], idempotent=True)) for t in ("one", "two")]
        await started.wait()
        a.add(upper)
        assert leaving._host is not None
        await leaving._host.close()  # before its goodbye has reached anybody
        results = [await run.result() for run in runs]
        assert [r.value for r in results] == ["ONE", "TWO"], [r.failures for r in results]


async def test_the_wrong_collective_is_refused_with_both_ids() -> None:
    async with pc.Collective.join(collective="ours") as c:
        ours, other = collective_id("ours").hex(), collective_id("other").hex()
        assert c.id.hex() == ours
        with pytest.raises(errors.WrongCollective) as early:
            await pc.Collective.join(c.seed_address, collective="other").__aenter__()
        with pytest.raises(errors.WrongCollective) as late:
            await pc.Collective.join(c.node.address, collective="other").__aenter__()
        for caught in (early, late):
            assert ours in str(caught.value)
            assert other in str(caught.value)
            assert {caught.value.ours, caught.value.theirs} == {ours, other}
        with pytest.raises(errors.ConfigError, match="which collective"):
            await pc.Collective.join(c.node.address).__aenter__()
        async with pc.Collective.join(c.node.address, collective="ours") as again:
            assert again.joined.complete
            assert again.joined.members == 2


async def test_two_collectives_in_one_process_stay_apart() -> None:
    async with pc.Collective.join() as a, pc.Collective.join() as b:
        a.add(upper)
        b.add(lower)
        await a.wait_for("text.upper")
        await b.wait_for("text.lower")
        assert (await a.run(pc.Task("Ab", capabilities=["text.upper"]))).output == "AB"
        assert (await b.run(pc.Task("Ab", capabilities=["text.lower"]))).output == "ab"
        # An own agent can be worked with at once, and is announced a moment later.
        await until(lambda: [x.name for x in a.all_agents()] == ["upper"])
        await until(lambda: [x.name for x in b.all_agents()] == ["lower"])
        with pytest.raises(errors.CallRefused):
            await a.attach(b.address)


async def test_changes_are_read_by_version_and_none_is_missed() -> None:
    async with pc.Collective.join() as a, pc.Collective.join(a.seed_address) as b:
        names: set[str] = set()
        removed: set[bytes] = set()
        made = b.add(upper, lower)

        async def read() -> None:
            async for change in a.changes():
                names.update(agent.name for agent in change.updated)
                removed.update(change.removed)
                if len(names) == 2 and made[0] in b.agents:
                    await b.remove(made[0])
                if removed:
                    return

        await asyncio.wait_for(read(), 10)
        assert names == {"upper", "lower"}
        assert removed == {made[0].id}
        since = a.node.changes(0).version
        b.add(upper)

        async def next_one() -> list[str]:
            async for change in a.changes(since):
                if change.updated:
                    return [agent.name for agent in change.updated]
            return []

        assert await asyncio.wait_for(next_one(), 10) == ["upper"]


async def test_calls_without_a_good_pass_are_refused() -> None:
    stranger = pc.KeyPair.generate()
    async with pc.Collective.join() as c:
        c.add(upper)
        for passport in (None, Passport(stranger, c.id), Passport(stranger, bytes(32))):
            shown = None if passport is None else (lambda p=passport: p.metadata(c.node.id))
            client = AgentClient(c.address.rpartition("@")[2], peer=c.node.id, metadata=shown)
            with pytest.raises(errors.CallRefused):
                await client.heartbeat("", timeout_s=5)
            await client.close()


async def test_a_pass_holds_for_one_host_one_collective_and_a_short_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, home = pc.KeyPair.generate(), bytes(32)
    members = {key.public}

    async def is_member(host: bytes) -> bool:
        return host in members

    doorman = Doorman(b"b" * 32, home, is_member)
    good = Passport(key, home).metadata(b"b" * 32)
    assert not await doorman.refusal(good)
    assert "made out" in await doorman.refusal(Passport(key, home).metadata(b"c" * 32))
    assert "made out" in await doorman.refusal(Passport(key, b"x" * 32).metadata(b"b" * 32))
    [(_, value)] = good
    for at in (0, 35, 60):  # caller, end, signature
        bad = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
        assert await doorman.refusal(((METADATA_KEY, bad),))
    assert "no pass" in await doorman.refusal(())
    other = pc.KeyPair.generate()
    assert "no live member" in await doorman.refusal(Passport(other, home).metadata(b"b" * 32))
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 300)
    assert "not valid now" in await doorman.refusal(good)


async def test_an_agent_that_did_not_agree_to_its_host_is_not_used() -> None:
    victim = pc.KeyPair.generate()
    async with pc.Collective.join() as c:
        thief = Node.start(pc.KeyPair.generate(), c.id, seeds=[c.node.address])
        await thief.join(10)
        thief.announce(Announcement(victim.public, ["text.upper"], name="stolen", endpoint="127.0.0.1:1"))
        await c.wait_for("text.upper")
        result = await c.run(pc.Task("x", capabilities=["text.upper"]))
        assert result.failures[0].kind == "NoTeam"
        thief.close()


def test_a_host_in_a_script_without_a_loop() -> None:
    with pc.Collective.join() as a, pc.Collective.join(a.seed_address) as b:
        b.add(upper)
        b.standby(lower)
        a.wait_for("text.upper", timeout_s=10)
        assert a.run(pc.Task("Ab", capabilities=["text.upper"])).output == "AB"
        assert a.run(pc.Task("Ab", capabilities=["text.lower"])).output == "ab"
        assert [m.agents for m in a.members()] == [0, 2]
        assert len(a.all_agents()) == 2


async def test_one_process_alone_has_no_members() -> None:
    async with pc.Collective.local() as c:
        for read in (c.members, c.all_agents, lambda: c.seed_address, lambda: c.joined):
            with pytest.raises(errors.StateError, match=r"alone|no collective"):
                read()
        c.add(upper)
        await c.wait_for("text.upper", timeout_s=1)
        with pytest.raises(errors.DeadlineExceeded, match=r"text\.lower"):
            await c.wait_for("text.upper", "text.lower", timeout_s=0.05)


async def test_a_ticket_says_for_whom_where_and_until_when() -> None:
    admission, host, other = (pc.KeyPair.generate() for _ in range(3))
    home, now = bytes(range(32)), 1_000_000
    ticket = issue_ticket(admission, home, host.public, not_after=now)
    assert Ticket.parse(str(ticket)) == ticket
    joining = Joining(ticket=ticket)
    assert joining.target() == (home, ())
    assert joining.admitted_by(host.public, now + 299) == admission.public
    with pytest.raises(errors.ConfigError, match=r"is for did:key:.* this host is did:key:"):
        joining.admitted_by(other.public, now)
    with pytest.raises(errors.ConfigError, match="ended 301 s ago"):
        joining.admitted_by(host.public, now + 301)
    with pytest.raises(errors.ConfigError, match="another key"):
        Joining(ticket=ticket, admission=other.public).admitted_by(host.public, now)
    with pytest.raises(errors.WrongCollective, match="the ticket belongs to collective 0001"):
        Joining(ticket=ticket, collective="kitchen").target()
    text = str(ticket)
    for bad in ("", "x", text[:-8], text[:-6] + "AAAA=="):
        with pytest.raises(errors.ConfigError, match=r"no ticket|not signed"):
            Ticket.parse(bad)


def test_seeds_say_which_collective_they_belong_to() -> None:
    home = "ab" * 32
    assert Joining(seeds=(f"127.0.0.1:1/{home}",)).target() == (bytes.fromhex(home), ("127.0.0.1:1",))
    assert Joining(collective=home).target() == (bytes.fromhex(home), ())
    with pytest.raises(errors.ConfigError, match="64 hexadecimal"):
        Joining(seeds=("127.0.0.1:1/zz",)).target()
    with pytest.raises(errors.WrongCollective):
        Joining(seeds=(f"127.0.0.1:1/{home}", f"127.0.0.1:2/{'cd' * 32}")).target()
    assert Joining().target()[0] != Joining().target()[0]
