"""The board: one line for each step, the devices as tiles, and a summary table.

On a terminal it has colours, and shows the running step; in a pipe it prints the same lines without either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from hami_plugin.demo.node import Tile

REFRESH_S = 0.1
NAME_WIDTH = 30
CAPTION_WIDTH = 7
IN_A_ROW = (8, 4, 2)
INDENT = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of a step. ``problem`` is empty if it succeeded, and ``note`` is a short result.

    ``unshown`` is why the node cannot show the step: then nothing was proven, and nothing failed.
    """

    step: str
    about: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    problem: str = ""
    unshown: str = ""

    @property
    def held(self) -> bool:
        return not self.problem and not self.unshown


Frame = tuple[str, Sequence[Tile]]
"""A caption, and the devices at that moment."""


class Board:
    """Draws on ``console``; with ``verbose`` also everything that each step found.

    ``animated`` shows the running step and its devices, and needs a terminal.
    """

    def __init__(self, console: Console, *, verbose: bool = False, animated: bool = False) -> None:
        self._console = console
        self._animated = animated and not console.is_dumb_terminal
        self._verbose = verbose
        unicode = console.encoding.lower().startswith("utf")
        self._marks = ("✓", "✗", "-", "●") if unicode else ("ok", "FAILED", "not shown", "in use")

    def heading(self, title: str, text: str) -> None:
        self._print(Text.assemble((title, "bold"), "\n", (text, "dim"), "\n"))

    @asynccontextmanager
    async def running(self, name: str, tiles: Callable[[], Sequence[Tile]]) -> AsyncIterator[None]:
        """While a step runs: its name and the tiles."""
        if not self._animated:
            yield
            return
        spinner = Spinner("dots", text=name)

        def now() -> RenderableType:
            return Group(spinner, *self._tiles("now", tiles()))

        with Live(now(), console=self._console, auto_refresh=False, transient=True) as live:
            drawing = asyncio.create_task(_refreshed(live, now))
            try:
                yield
            finally:
                drawing.cancel()
                with suppress(asyncio.CancelledError):
                    await drawing

    def step(self, outcome: StepOutcome, frames: Iterable[Frame]) -> None:
        """The line of a finished step, and its frames."""
        mark, style = self._mark(outcome)
        result = outcome.note if outcome.held else "" if outcome.problem else "not shown on this node"
        line = Table.grid(padding=(0, 1))
        line.add_column(style=style)
        line.add_column(min_width=NAME_WIDTH)
        line.add_column(justify="right", min_width=7, no_wrap=True)
        if result:
            line.add_column(overflow="fold", style="dim")
        line.add_row(mark, outcome.step, f"{outcome.seconds:.2f} s", *([result] if result else []))
        self._print(line)
        for why, colour in ((outcome.problem, "red"), (outcome.unshown, "yellow")):
            for text in why.splitlines():
                self._print(Text(f"{INDENT}{text}", style=colour))
        for caption, tiles in frames:
            for row in self._tiles(caption, tiles):
                self._print(row)
        if self._verbose:
            self._print(Text("\n".join(details(outcome)) + "\n", style="dim"))

    def summary(self, rows: Sequence[Mapping[str, str]], text: str, *, ok: bool) -> None:
        """One row for each machine, and the overall result."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for number, name in enumerate(rows[0] if rows else ()):
            table.add_column(name.upper(), justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*row.values())
        self._print("")
        self._print(table)
        self._print("")
        self._print(Text(text, style="bold green" if ok else "bold red"))

    def _mark(self, outcome: StepOutcome) -> tuple[str, str]:
        held, failed, unshown, _ = self._marks
        return (failed, "bold red") if outcome.problem else (unshown, "yellow") if outcome.unshown else (held, "green")

    def _tiles(self, caption: str, tiles: Sequence[Tile]) -> list[Text]:
        """The devices, some in a row; the caption stands before the first."""
        drawn = [self._tile(tile) for tile in tiles]
        room = self._console.width - len(f" {'':<{CAPTION_WIDTH}}")
        widest = max((len(tile) for tile in drawn), default=0) + 1
        fitting = next((count for count in IN_A_ROW if count * widest <= room), 1)
        rows = []
        for start in range(0, len(drawn), fitting):
            some = [part for tile in drawn[start : start + fitting] for part in (" ", tile)]
            rows.append(Text.assemble(f" {'' if start else caption:<{CAPTION_WIDTH}}", *some))
        return rows

    def _tile(self, tile: Tile) -> Text:
        held, failed, absent, used = self._marks
        if not tile.listed:
            return Text(f"[{tile.name} {absent}]", style="dim")
        if not tile.well:
            return Text(f"[{tile.name} {failed}]", style="bold white on red")
        return Text(
            f"[{tile.name} {used if tile.used else held}]", style="black on cyan" if tile.used else "black on green"
        )

    def _print(self, what: RenderableType) -> None:
        self._console.print(what)


async def _refreshed(live: Live, now: Callable[[], RenderableType]) -> None:
    while True:
        live.update(now(), refresh=True)
        await asyncio.sleep(REFRESH_S)


def details(outcome: StepOutcome) -> list[str]:
    """Everything that the step found, one fact a line."""
    lines = [f"    {outcome.about}"]
    for key, value in outcome.facts.items():
        if key == "containers":
            lines += _containers(value)
        elif key == "text":
            lines += ["", *(f"    {line}" for line in value.splitlines())]
        else:
            lines.append(f"    {key}: {value}")
    return lines


def _containers(containers: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, got in containers.items():
        lines.append(f"    container {name}:")
        lines += [f"      {key}={value}" for key, value in got["env"].items()]
        lines += [f"      mount {mount}" for mount in got["mounts"]]
        lines += [f"      device {device}" for device in got["devices"]]
    return lines
