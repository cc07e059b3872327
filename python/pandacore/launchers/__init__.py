"""Start host processes: `LocalLauncher` on this machine; the `Launcher` protocol for everywhere else.

A launcher only starts processes and tells where the first ones listen. Nothing of the collective goes through
it: hosts find each other by gossip, and go on when the launcher is gone.
"""

from __future__ import annotations

from pandacore.launchers.base import HostHandle, HostSpec, Launcher
from pandacore.launchers.local import LocalLauncher

__all__ = ["HostHandle", "HostSpec", "Launcher", "LocalLauncher"]
