"""One agent as others see it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An agent as others see it.

    ``address`` is its host's, as ``host:port``, or ``did:key:…@host:port`` where hosts know each other.
    """

    agent_id: bytes
    name: str
    description: str
    capabilities: tuple[str, ...]
    address: str
