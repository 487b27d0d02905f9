"""Draw the board of a real run of ``hami-plugin demo`` as an SVG, the picture in the README."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from pathlib import Path

from rich.console import Console

from hami_plugin.demo.board import Board
from hami_plugin.demo.play import play
from hami_plugin.telemetry.logs import configure

COLUMNS = 94
PROFILE = "dgx-h100"


def picture(profile: str = PROFILE) -> str:
    """The board as a standalone SVG, without fonts from other hosts."""
    console = Console(
        file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor", width=COLUMNS, highlight=False
    )
    logs = configure("warning", "auto", sys.stderr)
    try:
        if not asyncio.run(play(profile, board=Board(console))):
            raise SystemExit("a step failed, so there is no picture; run: hami-plugin demo -v")
    finally:
        logs.close()
    svg = console.export_svg(title="make demo", unique_id="demo")
    return re.sub(r"\s*@font-face \{.*?\}\n", "\n", svg, flags=re.DOTALL)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
