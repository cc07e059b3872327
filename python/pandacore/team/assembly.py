"""Assembly over the network: the registry proposes, agents are invited, refusals are replaced.

The reply to an invitation carries the agent's load, so that nobody is probed in a call of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from pandacore import errors
from pandacore.planted import PLANTED
from pandacore.task import Member, TeamView
from pandacore.team.client import Load, invited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from random import Random

    from pandacore.registry import PreparedSpec, Team
    from pandacore.rpc.v1 import agent_pb2
    from pandacore.team.client import AgentClient
    from pandacore.team.directory import Directory
    from pandacore.team.entry import Entry

__all__ = ["Assembler"]

INVITE_TIMEOUT_S: Final = 2.0
LEAVE_S: Final = 0.5
"""Seconds that a cancelled assembly spends on giving back what it was about to be given."""
RESERVATION_S: Final = 60.0
"""How long an invited agent holds the place; a caller that dies leaks nothing."""
MAX_ROUNDS: Final = 4
"""Rounds of replacing members that were silent or declined for another reason than a full queue."""
MAX_LOST: Final = 64
"""Further rounds in which nobody was there to decline."""
MAX_ASKS: Final = 4
"""Times that the collective is asked for what the registry lacks."""
_BACKOFF_S: Final = (0.01, 0.5)
MAX_PREPARED: Final = 64
"""Specifications of teams that are kept ready for the next run."""
_NAMED: Final = 3
"""Refused agents that an error names."""


class Refusal(NamedTuple):
    """Why an invited agent is no member; ``gone``: nobody was there to ask."""

    reason: str
    gone: bool


class Assembler:
    """Forms teams out of the registry's agents.

    Parameters
    ----------
    directory : Directory
        Kept up to date with every choice.
    random : Random
        For ties between agents and the jitter of waits.
    ask : async callable, optional
        Asks elsewhere for what the registry lacks, agents by capability; true if it may have it now.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        random: Random,
        ask: Callable[[Mapping[str, int]], Awaitable[bool]] | None = None,
    ) -> None:
        self._directory = directory
        self._random = random
        self._ask = ask
        self._prepared: dict[tuple[tuple[str, int], ...], PreparedSpec] = {}

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
        rounds = asked = lost = 0
        last = False
        wait_s = _BACKOFF_S[0]
        while True:
            try:
                team, mode = self._propose(required, exclude | declined)
            except errors.NoTeam as error:
                if self._ask is None or asked == MAX_ASKS or last:
                    raise
                # Without an offer there is one more attempt: agents may have been announced meanwhile.
                last = not await self._ask(error.missing)
                asked += 1
                continue
            # Agents may leave at any moment; the registry learns of it a little later than the directory.
            entries = {m.agent_id: self._directory.find(m.agent_id) for m in team.members}
            unfit = {a for a, entry in entries.items() if entry is None or self._directory.refusal(a)}
            if unfit:
                declined |= unfit
                continue
            found = {a: entry for a, entry in entries.items() if entry is not None}
            choice = [(m.agent_id, capability, m.load) for m in team.members for capability in m.capabilities]
            for agent_id, _, _ in choice:
                self._directory.expect(agent_id, +1)
            try:
                refused, loads = await self._invite(choice, run_id)
            finally:
                for agent_id, _, _ in choice:
                    self._directory.expect(agent_id, -1)
            if not refused:
                holders = {
                    c: self._directory.registry.available(c) for c in dict.fromkeys(c for _, c, _ in choice)
                }
                members = (
                    self._member(found[agent_id], (capability, load), loads, mode, holders[capability])
                    for agent_id, capability, load in choice
                )
                return TeamView(tuple(members), mode)
            await self._release({agent_id for agent_id, _, _ in choice}, run_id)
            full = {agent_id for agent_id, refusal in refused.items() if refusal.reason == "queue full"}
            declined |= refused.keys() - full
            if full:
                await asyncio.sleep(self._random.uniform(wait_s / 2, wait_s))
                wait_s = min(wait_s * 2, _BACKOFF_S[1])
                continue
            # A host that died has many agents, each of which says so at once until the collective knows.
            if all(refusal.gone for refusal in refused.values()) and lost < MAX_LOST:
                lost += 1
                continue
            rounds += 1
            if rounds == MAX_ROUNDS:
                reasons = "; ".join(f"{found[a].name}: {why.reason}" for a, why in sorted(refused.items()))
                raise errors.NoTeam(
                    f"members kept declining: {reasons}",
                    missing=dict(required),
                    hint="add agents, or try later",
                )

    def _propose(
        self, required: Mapping[str, int], exclude: frozenset[bytes] | set[bytes]
    ) -> tuple[Team, str]:
        if self._directory.vetting is not None:
            self._directory.vetting.refresh()
        seed = self._random.getrandbits(32)
        registry = self._directory.registry
        wanted = None if exclude else tuple(required.items())
        if wanted is not None and (spec := self._prepared.get(wanted)) is not None:
            team = registry.assemble(spec, seed=seed)
            if team.complete:
                return team, "dedicated"
        for mode in ("dedicated", "consolidated"):
            team = registry.assemble(dict(required), mode=mode, seed=seed, exclude=tuple(exclude))
            if team.complete:
                if wanted is not None and mode == "dedicated" and all(map(registry.available, required)):
                    self._remember(wanted)
                return team, mode
        missing = dict(team.missing)
        listed = ", ".join(f"{count} more for {name!r}" for name, count in missing.items())
        refused = "; ".join(self._refused(missing))
        raise errors.NoTeam(
            f"no team: {listed}" + (f" ({refused})" if refused else ""),
            missing=missing,
            hint="certify them, or add others"
            if refused
            else "add agents with these capabilities to the collective",
        )

    def _remember(self, wanted: tuple[tuple[str, int], ...]) -> None:
        """Keep the specification ready; not where somebody else stands in for a capability by its meaning."""
        if len(self._prepared) >= MAX_PREPARED:
            del self._prepared[next(iter(self._prepared))]
        self._prepared[wanted] = self._directory.registry.prepare(dict(wanted))

    def _refused(self, missing: Mapping[str, int]) -> list[str]:
        """Who has the capabilities but may not be chosen, and why; the first few."""
        vetting = self._directory.vetting
        if vetting is None:
            return []
        holders = {a: None for name in missing for a in self._directory.registry.holders(name)}
        verdicts = [vetting.explain(a) for a in holders if a in self._directory]
        named = [f"{self._directory.entry(v.agent_id).name}: {v.reason}" for v in verdicts if not v.eligible]
        more = len(named) - _NAMED
        return named if more <= 0 else [*named[:_NAMED], f"{more} more"]

    async def _invite(
        self, choice: list[tuple[bytes, str, int]], run_id: str
    ) -> tuple[dict[bytes, Refusal], dict[bytes, Load]]:
        """Invite all; answers why some did not accept, and the others' loads. Cancelled, no place is left."""
        asked: list[tuple[bytes, AgentClient, asyncio.Future[agent_pb2.InviteReply]]] = []
        refused: dict[bytes, Refusal] = {}
        loads: dict[bytes, Load] = {}
        for agent_id, capability, _ in choice:
            try:
                client = self._directory.client(agent_id)
            except errors.UnknownAgent as error:
                refused[agent_id] = Refusal(str(error), True)
                continue
            reply = client.invitation(
                agent_id, run_id, capability, ttl_s=RESERVATION_S, timeout_s=INVITE_TIMEOUT_S
            )
            asked.append((agent_id, client, reply))
        try:
            for agent_id, client, reply in asked:
                try:
                    accepted, reason, load = invited(await reply, client)
                except errors.PandacoreError as error:
                    lost = isinstance(error, errors.ConnectionLost | errors.UnknownAgent)
                    refused[agent_id] = Refusal(str(error), lost)
                    continue
                self._directory.report(agent_id, load.total)
                if not accepted:
                    refused[agent_id] = Refusal(reason or "declined", False)
                elif agent_id not in loads:
                    loads[agent_id] = load
        except asyncio.CancelledError:
            for _, _, reply in asked:
                reply.cancel()
            with contextlib.suppress(TimeoutError):  # what is not answered in time expires at the agent
                async with asyncio.timeout(LEAVE_S):
                    await self._release({agent_id for agent_id, _, _ in asked}, run_id)
            raise
        return refused, loads

    async def _release(self, agent_ids: set[bytes], run_id: str) -> None:
        if "forget_release" in PLANTED:
            return

        sent: list[asyncio.Future[agent_pb2.ReleaseReply]] = []
        for agent_id in agent_ids:
            # On its way at once: whoever is cancelled while it waits for the replies leaves no place behind.
            with contextlib.suppress(errors.PandacoreError):  # the reservation also expires by itself
                client = self._directory.client(agent_id)
                sent.append(client.withdrawal(agent_id, run_id, timeout_s=INVITE_TIMEOUT_S))
        if sent:
            await asyncio.gather(*sent, return_exceptions=True)

    async def disband(
        self,
        team: TeamView,
        run_id: str,
        used: Mapping[bytes, int] | None = None,
        *,
        within_s: float = LEAVE_S,
    ) -> None:
        """Give back the places that the run did not use.

        Parameters
        ----------
        used : mapping of bytes to int, optional
            Subtasks per agent that were accepted: each took one place.
        within_s : float
            Seconds to wait for the agents' word.

        Raises
        ------
        TimeoutError
        """
        used = used or {}
        held: dict[bytes, int] = {}
        for member in team.members:
            held[member.agent_id] = held.get(member.agent_id, 0) + 1
        left = {a for a, places in held.items() if used.get(a, 0) < places and a in self._directory}
        if left:
            async with asyncio.timeout(within_s):
                await self._release(left, run_id)

    def _member(
        self,
        entry: Entry,
        choice: tuple[str, int],
        loads: Mapping[bytes, Load],
        mode: str,
        holders: int,
    ) -> Member:
        capability, load = choice
        probed = loads.get(entry.agent_id)
        vetting = self._directory.vetting
        # What an invited agent told counts the place that it holds for the invitation.
        before = load if probed is None else probed.total - 1
        wait_s = 0.0 if probed is None else probed.wait_s(behind=before)
        state = f"load {before}" if before or probed is None else "idle"
        why = (
            f"holds {capability!r}, {state}, least loaded of {holders}"
            if holders > 1
            else f"only {'holder' if vetting is None else 'accepted holder'} of {capability!r}"
        )
        if vetting is not None and (accepted := vetting.explain(entry.agent_id).reason):
            why += f", {accepted}"
        return Member(
            entry.agent_id, entry.name, capability, load, wait_s, holders, f"{why} ({mode})", entry.address
        )
