"""The event loop of processes that do little but gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]


def run(main: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run``, on uvloop where it is installed: gRPC calls then cost about a tenth less."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
