"""What agents say of themselves, searched by meaning."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pandacore import errors
from pandacore.broker import SemanticIndex, SemanticResolver, nearest, spoken
from pandacore.gossip import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pandacore.agent import Agent
    from pandacore.broker import CapabilityMatch
    from pandacore.models.embedders import Embedder
    from pandacore.plan import Plan
    from pandacore.registry import Registry
    from pandacore.team.entry import Entry

__all__ = ["FoundAgent", "Meaning"]

MAX_TEXT: Final = 4_000
"""Characters of an agent's text that are embedded."""
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class FoundAgent:
    """An agent that was found by meaning.

    Attributes
    ----------
    agent_id : bytes
    name, description : str
    capabilities : tuple of str
    similarity : float
        Cosine of its text and the one that was looked for.
    """

    agent_id: bytes
    name: str
    description: str
    capabilities: tuple[str, ...]
    similarity: float

    @property
    def did(self) -> str:
        """The id as ``did:key:z6Mk…``."""
        from pandacore.trust import did_of

        return did_of(self.agent_id)


class Meaning:
    """The texts of a collective's agents, and their capabilities, by nearness.

    Adding and removing agents takes no time to speak of: texts are embedded when something is looked for,
    each once, in batches.

    Parameters
    ----------
    embedder : Embedder
    threshold : float, optional
        Least cosine at which a capability is taken for one that nobody has by name; None: names only.
    """

    def __init__(self, embedder: Embedder, *, threshold: float | None = None) -> None:
        self._embedder = embedder
        self._index = SemanticIndex(embedder.dimension, model_id=embedder.model_id, flags=())
        self._entries: dict[int, Entry] = {}
        self._numbers: dict[bytes, int] = {}
        self._next = 0
        self._pending: dict[int, str] = {}
        self._holders: Counter[str] = Counter()
        self._said: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self.resolver = (
            None
            if threshold is None
            else SemanticResolver(
                embedder, threshold=threshold, describe=lambda name: self._said.get(name, "")
            )
        )

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Take in an agent, or what is new of one."""
        known = self._numbers.get(entry.agent_id)
        if known is not None:
            if replace(self._entries[known], vector=entry.vector) == entry:
                self._entries[known] = entry  # its vector came, and says what its text said
                return
            self.remove(entry.agent_id)
        number, self._next = self._next, self._next + 1
        self._entries[number] = entry
        self._numbers[entry.agent_id] = number
        self._pending[number] = _text(entry.subscription or entry.description, entry.capabilities)
        for name in entry.capabilities:
            self._holders[name] += 1
            self._said.setdefault(name, entry.description)

    def remove(self, agent_id: bytes) -> None:
        """Forget an agent; it is in no answer from now on."""
        number = self._numbers.pop(agent_id, None)
        if number is None:
            return
        for name in self._entries.pop(number).capabilities:
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name], self._said[name]
        self._pending.pop(number, None)
        if number in self._index:
            self._index.remove([number])

    async def find(
        self, text: str, k: int, *, threshold: float | None, allowed: Callable[[bytes], bool]
    ) -> list[FoundAgent]:
        """The agents nearest to a text, among those that are allowed, best first."""
        if not text.strip():
            raise errors.ConfigError("the text is empty", where="find", hint="say what is looked for")
        async with self._lock:
            await self._catch_up()
        vector = (await self._embedder.embed([text[:MAX_TEXT]]))[0]
        found: list[FoundAgent] = []

        def wanted(number: int, score: float) -> bool:
            entry = self._entries[number]
            if not allowed(entry.agent_id):
                return False
            found.append(FoundAgent(entry.agent_id, entry.name, entry.description, entry.capabilities, score))
            return True

        if vector.any():
            nearest(self._index, vector, k, wanted, threshold=threshold)
        return found

    async def _catch_up(self) -> None:
        while self._pending:
            part = dict(list(self._pending.items())[:_AT_ONCE])
            vectors = await self._vectors(part)
            # Who left meanwhile is not put in, and a text without content is nowhere.
            rows = [i for i, n in enumerate(part) if n in self._pending and vectors[i].any()]
            numbers = list(part)
            if rows:
                self._index.add([numbers[i] for i in rows], vectors[rows])
            for number in part:
                self._pending.pop(number, None)
            await asyncio.sleep(0)

    async def _vectors(self, part: dict[int, str]) -> NDArray[np.float32]:
        """The vectors of agents: their hosts' own where they are of this model, else made from the texts."""
        vectors = np.zeros((len(part), self._embedder.dimension), np.float32)
        texts: dict[int, str] = {}
        for row, (number, text) in enumerate(part.items()):
            entry = self._entries.get(number)
            stated = None if entry is None else entry.vector
            if (
                stated is not None
                and stated.model == self._embedder.model_id
                and len(stated.codes) == self._embedder.dimension
            ):
                vectors[row] = np.frombuffer(stated.codes, np.int8)  # a cosine does not ask for the scale
            else:
                texts[row] = text
        if texts:
            vectors[list(texts)] = await self._embedder.embed(list(texts.values()))
        return vectors

    async def states(self, agents: Sequence[Agent]) -> list[Subscription | None]:
        """What to announce of agents: the vectors of their texts in 8 bits; None where a text has no content.

        Raises
        ------
        ModelError
            The embedder's server failed.
        """
        texts = [_text(agent.subscription or agent.description, agent.capabilities) for agent in agents]
        different = list(dict.fromkeys(texts))
        made = zip(different, await self._embedder.embed(different), strict=True)
        stated = {text: _coded(self._embedder.model_id, vector) for text, vector in made}
        return [stated[text] for text in texts]

    async def fit(self, plan: Plan, registry: Registry) -> tuple[Plan, tuple[CapabilityMatch, ...]]:
        """The plan with every capability that nobody has replaced by the one that means the same."""
        if self.resolver is None:
            return plan, ()
        unknown = [name for name in plan.capabilities if not registry.holders(name)]
        if not unknown:
            return plan, ()
        async with self._lock:
            await self.resolver.learn(unknown, registry)
        matches = {name: found[0] for name in unknown if (found := self.resolver.matches(name, registry))}
        if not matches:
            return plan, ()
        subtasks = [
            replace(s, capability=matches[s.capability].capability) if s.capability in matches else s
            for s in plan.subtasks
        ]
        return replace(plan, subtasks=subtasks), tuple(matches.values())


def _text(about: str, capabilities: Sequence[str]) -> str:
    words = ", ".join(map(spoken, capabilities))
    return f"{about}\n{words}".strip()[:MAX_TEXT]


def _coded(model: str, vector: NDArray[np.float32]) -> Subscription | None:
    scale = float(np.abs(vector).max()) / 127
    if not scale:
        return None
    return Subscription(model, scale, np.rint(vector / scale).astype(np.int8).tobytes())
