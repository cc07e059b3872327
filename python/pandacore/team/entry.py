"""One agent as others see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandacore.gossip import Subscription

__all__ = ["Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An agent as others see it.

    ``address`` is its host's, as ``host:port``, or ``did:key:…@host:port`` where hosts know each other.
    ``vector`` is what its host says that it is about, so that not every host has to embed it.
    """

    agent_id: bytes
    name: str
    description: str
    capabilities: tuple[str, ...]
    address: str
    subscription: str = ""
    vector: Subscription | None = None
