"""The failure detector of the team plane: is a host still there?"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pandacore import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pandacore.team.client import AgentClient

__all__ = ["BEAT_S", "MISSES", "RETURN_S", "watch"]

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.5
"""Seconds between two heartbeats; also how long one may take."""
MISSES: Final = 3
"""Heartbeats in a row that may fail before the host counts as dead."""
RETURN_S: Final = 600.0
"""How long a host that counts as dead is still asked, in case it was only slow or cut off."""
_SLOWEST_S: Final = 5.0  # between two questions to a host that is gone


async def watch(client: AgentClient, down: Callable[[], None], back: Callable[[], Awaitable[None]]) -> None:
    """Ask a host for proof of life; call ``down`` when it gives none, ``back`` when it does again.

    A host that is merely slow is found dead too: nothing of the runs' safety rests on being right here. Ends
    when a host has been gone for :data:`RETURN_S`.
    """
    while True:
        misses = 0
        while misses < MISSES:
            misses = 0 if await _lives(client) else misses + 1
            await asyncio.sleep(BEAT_S)
        down()
        wait_s, gone_s = BEAT_S, 0.0
        while not await _returned(client, back):
            if gone_s >= RETURN_S:
                return
            await asyncio.sleep(wait_s)
            gone_s += wait_s + BEAT_S
            wait_s = min(wait_s * 2, _SLOWEST_S)


async def _lives(client: AgentClient) -> bool:
    try:
        await client.heartbeat("", timeout_s=BEAT_S)
    except errors.ConnectionLost:
        return False
    except errors.PandacoreError as error:
        logger.debug("heartbeat of %s: %s", client.address, error)
        return False
    return True


async def _returned(client: AgentClient, back: Callable[[], Awaitable[None]]) -> bool:
    if not await _lives(client):
        return False
    try:
        await back()
    except errors.PandacoreError as error:
        logger.info("%s is there again, but was not taken in: %s", client.address, error)
        return False
    return True
