"""Whom a collective works with: accepted by the web of trust, and not excluded by what it did so far."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pandacore.registry import Registry
    from pandacore.reputation import Reputation, Standing
    from pandacore.trust import Explanation, TrustedSet

__all__ = ["Verdict", "Vetting"]

logger = logging.getLogger(__name__)

EPOCH_S: Final = 60.0
"""Seconds of an epoch of reputation: who was excluded comes back after some idle epochs."""
MAX_RATED: Final = 1_000_000
"""Agents that are rated without a web of trust to number them; the outcomes of later ones do not count."""
_COLLECTIVE: Final = 2**32 - 3
"""The observer's number where the web of trust has none for it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the collective works with an agent, and why.

    Attributes
    ----------
    reason : str
        One line, as shown beside a team's member.
    trust : Explanation, optional
        None: the collective has no web of trust and accepts everybody.
    reputation : Standing, optional
        None: the collective keeps no reputation, or the agent was never rated.
    """

    agent_id: bytes
    eligible: bool
    reason: str
    trust: Explanation | None
    reputation: Standing | None


class Vetting:
    """Keeps the registry's ``trusted`` flags equal to the trusted set less the excluded agents.

    Parameters
    ----------
    trusted : TrustedSet, optional
        None: everybody is accepted.
    reputation : Reputation, optional
        None: nobody is excluded. Peers are numbered by the trusted set's store, if there is one.
    clock : callable
        Seconds since 1970; the trusted set's reference time and the epochs follow it.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        trusted: TrustedSet | None,
        reputation: Reputation | None,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._trusted = trusted
        self._reputation = reputation
        self._clock = clock
        self._slots: dict[bytes, int] = {}
        # Nodes of the agents that statements name; the others are looked for again when there are new nodes.
        self._nodes: dict[bytes, int] = {}
        self._numbers: dict[bytes, int] = {}
        self._suspects: set[bytes] = set()
        self._excluded: set[bytes] = set()
        self._weighed_in: int | None = None
        self._version: tuple[int, int, int] | None = None
        me = trusted.store.me if trusted is not None else None
        self._observer = _COLLECTIVE if me is None or trusted is None else int(trusted.store.number([me])[0])

    def add(self, agent_id: bytes) -> None:
        """An agent was announced."""
        slot = self._registry.slot_of(agent_id)
        assert slot is not None
        self._slots[agent_id] = slot
        self._version = None
        self._registry.set_trusted(slot, False)

    def follow(self, agent_id: bytes) -> None:
        """An agent of another host was announced, perhaps not for the first time, or is gone again."""
        slot = self._registry.slot_of(agent_id)
        if slot is None:
            self.remove(agent_id)
        elif self._slots.get(agent_id) != slot:
            self.add(agent_id)

    def remove(self, agent_id: bytes) -> None:
        """An agent is about to be withdrawn. What it did is remembered."""
        self._slots.pop(agent_id, None)
        self._nodes.pop(agent_id, None)
        self._version = None

    def ingest(self, records: Sequence[bytes]) -> None:
        """Certificates and revocations that came from other hosts; those that are refused change nothing."""
        if self._trusted is None or not records:
            return
        refusals = self._trusted.store.ingest_many(records)
        if refused := sum(r is not None for r in refusals):
            logger.debug("%d of %d statements of other hosts were refused", refused, len(refusals))

    def refresh(self) -> None:
        """Bring the flags up to date with certificates, the time, and outcomes. Cheap if nothing changed."""
        self._catch_up()
        trusted = self._trusted
        version = (0, 0, 0) if trusted is None else trusted.version
        if version == self._version:
            return
        inside = np.ones(len(self._slots), np.bool_)
        if trusted is not None:
            if self._version is None or version[2] != self._version[2]:
                for agent_id in self._slots.keys() - self._nodes.keys():
                    if (node := trusted.store.node(agent_id)) is not None:
                        self._nodes[agent_id] = node
            known = np.fromiter((a in self._nodes for a in self._slots), np.bool_, len(self._slots))
            nodes = np.fromiter((self._nodes[a] for a in self._slots if a in self._nodes), np.uint32)
            inside[~known] = False
            inside[known] = trusted.contains_many(nodes)
        if self._excluded:
            inside &= np.fromiter((a not in self._excluded for a in self._slots), np.bool_, len(inside))
        self._registry.set_flags("trusted", np.fromiter(self._slots.values(), np.uint32), inside)
        self._version = version

    def _catch_up(self) -> None:
        """Let the trusted set follow the clock, and decide again who is excluded."""
        if self._trusted is not None and int(self._clock()) > self._trusted.store.now_s:
            self._trusted.store.advance(int(self._clock()))
        if self._suspects and self._weighed_in != self._epoch():
            self._weighed_in = self._epoch()
            # Only bad outcomes can exclude somebody, so who is free now is suspected again at the next one.
            self._suspects = {a for a in self._suspects if self._is_excluded(a)}
            if self._suspects != self._excluded:
                self._excluded = set(self._suspects)
                self._version = None

    def _is_excluded(self, agent_id: bytes) -> bool:
        assert self._reputation is not None
        number = self._number(agent_id)
        return number is not None and self._reputation.excluded(self._observer, number, epoch=self._epoch())

    def _epoch(self) -> int:
        return max(int(self._clock() / EPOCH_S), 0)

    def _number(self, agent_id: bytes) -> int | None:
        if self._trusted is not None:
            return self._trusted.store.node(agent_id)
        return self._numbers.get(agent_id)

    def observe(self, agent_id: bytes, *, bad: bool) -> None:
        """An outcome of an agent was judged."""
        if self._reputation is None:
            return
        number = self._number(agent_id)
        if number is None and self._trusted is None:
            if len(self._numbers) >= MAX_RATED:
                logger.warning("%d agents are rated, so another one is not", MAX_RATED)
                return
            number = self._numbers[agent_id] = len(self._numbers)
        if number is None or number == self._observer:
            return  # nobody vouches for it any more, or it is the collective's own agent
        self._reputation.observe(self._observer, number, bad=bad, epoch=self._epoch())
        if bad or agent_id in self._suspects:
            self._suspects.add(agent_id)
            self._weighed_in = None

    def accepts(self, agent_id: bytes) -> bool:
        """Whether the collective works with the agent now."""
        self._catch_up()
        if agent_id in self._excluded:
            return False
        return self._trusted is None or self._trusted.contains(agent_id)

    def explain(self, agent_id: bytes) -> Verdict:
        """Why the collective works with the agent, or not."""
        eligible = self.accepts(agent_id)
        trust = standing = None
        reasons = []
        if self._trusted is not None:
            trust = self._trusted.explain(agent_id)
            if trust.layer is None:
                reasons.append(f"not trusted: {trust.reason}")
            elif trust.layer == 0:
                reasons.append("trusted as an anchor")
            else:
                reasons.append(f"trusted at {_STEP[trust.rule]} {trust.layer}")
        number = self._number(agent_id)
        if self._reputation is not None and number is not None and number != self._observer:
            standing = self._reputation.standing(self._observer, number, epoch=self._epoch())
            if not standing.observations:
                standing = None
            elif standing.excluded:
                reasons.append(f"excluded after {standing.observations} judged outcomes")
            else:
                reasons.append(f"misbehaviour estimated at {standing.estimate:.0%}")
        return Verdict(agent_id, eligible, ", ".join(reasons), trust, standing)


_STEP: Final = {"threshold": "layer", "path": "distance"}
