"""The failure detector of the team plane: is a host still there?"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from pandacore import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pandacore.team.client import AgentClient

__all__ = ["BEAT_S", "MISSES", "watch"]

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.5
"""Seconds between two heartbeats; also how long one may take."""
MISSES: Final = 3
"""Heartbeats in a row that may fail before the host counts as dead."""


async def watch(client: AgentClient, down: Callable[[], None]) -> None:
    """Ask a host for proof of life until it gives none; then call ``down`` once.

    A host that is merely slow is found dead too: nothing of the runs' safety rests on being right here.
    """
    misses = 0
    while misses < MISSES:
        try:
            await client.heartbeat("", timeout_s=BEAT_S)
            misses = 0
        except errors.ConnectionLost:
            misses += 1
        except errors.PandacoreError as error:
            misses += 1
            logger.debug("heartbeat of %s: %s", client.address, error)
        await asyncio.sleep(BEAT_S)
    down()
