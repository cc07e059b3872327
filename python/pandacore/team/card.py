"""An agent's card: what a host says of it to strangers, signed by the agent's own key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pandacore import errors
from pandacore.names import capability_name, display_name
from pandacore.rpc.v1 import agent_pb2
from pandacore.team.entry import Entry
from pandacore.trust import verify

if TYPE_CHECKING:
    from pandacore.agent import Agent

__all__ = ["MAX_AGENTS", "NONCE_BYTES", "card_of", "read_card"]

NONCE_BYTES: Final = 32
MAX_AGENTS: Final = 10_000
"""Most agents that are described in one reply."""
_DOMAIN: Final = b"pandacore/agent-card/v1\0"


def signed_card(card: agent_pb2.AgentCard, nonce: bytes) -> bytes:
    """The bytes that the agent signs: domain, nonce, and every field of the card but the signature."""
    fields = [
        card.agent_id.hex(),
        card.name,
        card.description,
        list(card.capabilities),
        card.concurrency,
    ]
    text = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
    return _DOMAIN + len(nonce).to_bytes(2, "big") + nonce + text.encode()


def card_of(agent: Agent, nonce: bytes) -> agent_pb2.AgentCard:
    """The signed card of an agent of this process."""
    card = agent_pb2.AgentCard(
        agent_id=agent.id,
        name=agent.name,
        description=agent.description[:1_000],
        capabilities=agent.capabilities,
        concurrency=agent.concurrency,
    )
    card.signature = agent.key.sign(signed_card(card, nonce))
    return card


def read_card(card: agent_pb2.AgentCard, nonce: bytes, address: str) -> Entry:
    """The directory entry that a card claims.

    Raises
    ------
    ProtocolError
        The signature does not match: whoever answered does not hold the agent's key.
    InvalidName
        Its name or a capability breaks the rule.
    """
    if len(card.agent_id) != 32 or not verify(card.agent_id, signed_card(card, nonce), card.signature):
        raise errors.ProtocolError(
            f"the card of agent {card.agent_id.hex()[:16]} is not signed by its key",
            where=address,
            hint="do not use this host: it claims an agent that is not its own",
        )
    if not 1 <= len(card.capabilities) <= 64 or not 1 <= card.concurrency <= 10_000:
        raise errors.ProtocolError(
            "a card names 1 to 64 capabilities and a concurrency of 1 to 10000", where=address
        )
    return Entry(
        card.agent_id,
        display_name(card.name),
        card.description[:1_000],
        tuple(capability_name(c) for c in card.capabilities),
        address,
    )
