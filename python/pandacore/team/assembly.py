"""Assembly over the network: the registry proposes, agents are probed and invited, refusals are replaced."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from pandacore import errors
from pandacore.task import Member, TeamView
from pandacore.team.client import Load, gather_within

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from pandacore.registry import Team
    from pandacore.team.directory import Directory

__all__ = ["Assembler"]

PROBE_TIMEOUT_S: Final = 0.25
"""Probes that take longer are not waited for: what answered is enough."""
INVITE_TIMEOUT_S: Final = 2.0
LEAVE_S: Final = 0.5
"""Seconds that a cancelled assembly spends on giving back what it was about to be given."""
RESERVATION_S: Final = 60.0
"""How long an invited agent holds the place; a caller that dies leaks nothing."""
MAX_ROUNDS: Final = 4
"""Rounds of replacing members that were silent or declined for another reason than a full queue."""
_BACKOFF_S: Final = (0.01, 0.5)


class Assembler:
    """Forms teams out of the registry's agents.

    Parameters
    ----------
    directory : Directory
        Kept up to date with every choice.
    random : Random
        For ties between agents and the jitter of waits.
    """

    def __init__(self, directory: Directory, *, random: Random) -> None:
        self._directory = directory
        self._random = random

    async def form(
        self, required: Mapping[str, int], run_id: str, *, exclude: frozenset[bytes] = frozenset()
    ) -> TeamView:
        """A team with ``required[c]`` agents for each capability ``c``, each holding a place for the run.

        Different agents for different capabilities where the collective allows it, else the fewest agents
        that cover all. Agents whose queue is full are asked again with growing, jittered waits; bounded only
        by the caller's own deadline.

        Raises
        ------
        NoTeam
            No valid team exists, even if every queue were empty.
        """
        declined: set[bytes] = set()
        rounds = 0
        wait_s = _BACKOFF_S[0]
        while True:
            team, mode = self._propose(required, exclude | declined)
            choice = [(m.agent_id, capability, m.load) for m in team.members for capability in m.capabilities]
            for agent_id, _, _ in choice:
                self._directory.expect(agent_id, +1)
            try:
                loads = await self._probe({agent_id for agent_id, _, _ in choice})
                refused = await self._invite_or_leave(choice, run_id)
            finally:
                for agent_id, _, _ in choice:
                    self._directory.expect(agent_id, -1)
            if not refused:
                return TeamView(
                    tuple(
                        self._member(agent_id, capability, load, loads, mode)
                        for agent_id, capability, load in choice
                    ),
                    mode,
                )
            await self._release({agent_id for agent_id, _, _ in choice}, run_id)
            full = {agent_id for agent_id, reason in refused.items() if reason == "queue full"}
            declined |= refused.keys() - full
            if full:
                await asyncio.sleep(self._random.uniform(wait_s / 2, wait_s))
                wait_s = min(wait_s * 2, _BACKOFF_S[1])
                continue
            rounds += 1
            if rounds == MAX_ROUNDS:
                reasons = "; ".join(
                    f"{self._directory.entry(a).name}: {why}" for a, why in sorted(refused.items())
                )
                raise errors.NoTeam(
                    f"members kept declining: {reasons}",
                    missing=dict(required),
                    hint="add agents, or try later",
                )

    def _propose(
        self, required: Mapping[str, int], exclude: frozenset[bytes] | set[bytes]
    ) -> tuple[Team, str]:
        seed = self._random.getrandbits(32)
        for mode in ("dedicated", "consolidated"):
            team = self._directory.registry.assemble(
                dict(required), mode=mode, seed=seed, exclude=tuple(exclude)
            )
            if team.complete:
                return team, mode
        missing = dict(team.missing)
        listed = ", ".join(f"{count} more for {name!r}" for name, count in missing.items())
        raise errors.NoTeam(
            f"no team: {listed}", missing=missing, hint="add agents with these capabilities to the collective"
        )

    async def _probe(self, agent_ids: set[bytes]) -> dict[bytes, Load]:
        probes = {a: self._directory.client(a).probe(a, timeout_s=PROBE_TIMEOUT_S) for a in agent_ids}
        answers = await gather_within(probes, PROBE_TIMEOUT_S)
        loads = {a: load for a, load in answers.items() if isinstance(load, Load)}
        for agent_id, load in loads.items():
            self._directory.report(agent_id, load.total)
        return loads

    async def _invite_or_leave(self, choice: list[tuple[bytes, str, int]], run_id: str) -> dict[bytes, str]:
        """Invite all; a caller that is cancelled meanwhile leaves no place behind."""
        inviting = asyncio.ensure_future(self._invite(choice, run_id))
        try:
            return await asyncio.shield(inviting)
        except asyncio.CancelledError:
            # An invitation under way may still be accepted: wait for it, then give the places back. What is
            # not answered in time expires at the agent.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await asyncio.wait({inviting})
                    await self._release({agent_id for agent_id, _, _ in choice}, run_id)
            inviting.cancel()
            raise

    async def _invite(self, choice: list[tuple[bytes, str, int]], run_id: str) -> dict[bytes, str]:
        """Invite all; answers the reason of each that did not accept."""

        async def ask(agent_id: bytes, capability: str) -> str:
            try:
                accepted, reason, _ = await self._directory.client(agent_id).invite(
                    agent_id, run_id, capability, ttl_s=RESERVATION_S, timeout_s=INVITE_TIMEOUT_S
                )
            except errors.PandacoreError as error:
                return str(error)
            return "" if accepted else reason or "declined"

        reasons = await asyncio.gather(*(ask(agent_id, capability) for agent_id, capability, _ in choice))
        return {agent_id: why for (agent_id, _, _), why in zip(choice, reasons, strict=True) if why}

    async def _release(self, agent_ids: set[bytes], run_id: str) -> None:
        async def give_back(agent_id: bytes) -> None:
            with contextlib.suppress(errors.PandacoreError):  # the reservation also expires by itself
                await self._directory.client(agent_id).release(agent_id, run_id, timeout_s=INVITE_TIMEOUT_S)

        await asyncio.gather(*(give_back(a) for a in agent_ids))

    async def disband(self, team: TeamView, run_id: str) -> None:
        """Give back the places that the run did not use."""
        known = {m.agent_id for m in team.members if m.agent_id in self._directory}
        await self._release(known, run_id)

    def _member(
        self, agent_id: bytes, capability: str, load: int, loads: Mapping[bytes, Load], mode: str
    ) -> Member:
        entry = self._directory.entry(agent_id)
        probed = loads.get(agent_id)
        holders = len(self._directory.registry.holders(capability))
        wait_s = probed.expected_wait_s if probed else 0.0
        state = "idle" if probed and probed.total == 0 else f"load {probed.total if probed else load}"
        why = (
            f"holds {capability!r}, {state}, least loaded of {holders}"
            if holders > 1
            else f"only holder of {capability!r}"
        )
        return Member(agent_id, entry.name, capability, load, wait_s, holders, f"{why} ({mode})")
