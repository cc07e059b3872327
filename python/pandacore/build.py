"""Facts of the installed build: version, optimisation, and where the extension lies."""

from __future__ import annotations

from pathlib import Path

from pandacore import _core

__all__ = ["EXTENSION", "RELEASE_BUILD", "VERSION"]

VERSION: str = _core.__version__
RELEASE_BUILD: bool = _core.RELEASE_BUILD
"""True if the extension was compiled with optimisation; benches refuse to run without."""
EXTENSION: Path = Path(str(_core.__file__))
