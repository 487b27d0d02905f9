"""The simulated NVML library and its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hami_plugin.simulation import c_compiler
from hami_plugin.simulation.c_compiler import Source

LIBRARY: Final = "libnvidia-ml.so.1"
SOURCES: Final = Path(__file__).with_name("native")


def build(target: Path) -> Path:
    """Put the library at ``target``, or under its usual name into that folder. BuildError when it does not compile."""
    return c_compiler.build(Source(library=LIBRARY, folder=SOURCES), target)
