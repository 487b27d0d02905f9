"""Output of commands: tables with colour on a terminal, and plain, stable lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import click

from hami_plugin.cli.tables import aligned

if TYPE_CHECKING:
    from rich.console import Console


UNLIMITED = 1000
"""Columns where the output is not a terminal: no line is folded."""


def terminal() -> Console:
    """Standard output as rich sees it; ``NO_COLOR`` and ``FORCE_COLOR`` hold. Only commands that draw load rich."""
    from rich.console import Console  # noqa: PLC0415  # the daemon must not load it

    wide = None if sys.stdout.isatty() else UNLIMITED
    return Console(highlight=False, markup=False, emoji=False, width=wide)


def width() -> int | None:
    """The terminal's width; None where the output is not a terminal, and may be of any width."""
    return terminal().width if sys.stdout.isatty() else None


def show_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), bad: Collection[int] = ()) -> None:
    """Print ``rows``, the header first; ``right`` columns end together, ``bad`` rows are red.

    On a terminal long cells are folded to its width. Elsewhere each row is one line, its columns two spaces apart.
    """
    if not sys.stdout.isatty():
        click.echo("\n".join(aligned(rows, right=tuple(right))))
        return
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    header, *body = rows
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, name in enumerate(header):
        table.add_column(name, justify="right" if column in right else "left", overflow="fold")
    for number, row in enumerate(body):
        table.add_row(*map(Text, row), style="red" if number in bad else None)
    terminal().print(table)
