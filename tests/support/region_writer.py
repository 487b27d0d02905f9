"""A process that counts its memory in a region as HAMi-core does, written in C and linked whole: it runs anywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hami_plugin.simulation.c_compiler import compiler

SOURCE = Path(__file__).with_suffix(".c")
LAYOUTS = ("v0a", "v0", "v1.1", "v1.1s", "v1.2")


def built(folder: Path) -> Path:
    """The program, in this folder."""
    program = folder / "region_writer"
    command = [*compiler(), "-O1", "-static", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program
