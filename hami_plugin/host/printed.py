"""What vendors' tools print, as values: tables of how devices are linked, PCI addresses, amounts of memory."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping

LONGEST_LINE = 4096
MOST_LINES = 4096
"""Of a table. The largest has a line for each of some hundred devices."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def lines(text: str) -> Iterator[str]:
    """The lines of what a tool printed for people. ``ValueError`` where no table has so many, or such a long one."""
    for number, line in enumerate(text.splitlines()):
        if number >= MOST_LINES:
            raise ValueError(f"more than {MOST_LINES} lines")
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number + 1} has {len(line)} characters")
        yield line


def matrix(text: str, label: str) -> dict[tuple[int, int], str]:
    """The cells of the table that ``topo -m`` prints, by the numbers behind ``label`` of row and column."""
    name = re.compile(rf"{label}(\d+)")
    split = (line.split() for line in lines(_COLOURS.sub("", text)))
    rows = [words for words in split if words and name.fullmatch(words[0])]
    columns = [int(found[1]) for word in (rows[0] if rows else []) if (found := name.fullmatch(word))]
    return {
        (int(words[0].removeprefix(label)), column): cell
        for words in rows[1:]
        for column, cell in zip(columns, words[1:], strict=False)
    }


def rows(text: str, *columns: str) -> list[Mapping[str, str]]:
    """The rows of a table with commas under a line of its columns' names, by those names. Versions of a tool add units
    to them, as ``memory.total [MiB]``. ValueError where a column is missing.
    """
    try:
        table = list(csv.reader(lines(text), skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"no table: {error}") from error
    header = [name.split(" ")[0].strip() for name in table[0]] if table else []
    if not set(columns) <= set(header):
        raise ValueError(f"another table than was asked for: {text[:120]!r}")
    return [dict(zip(header, line, strict=False)) for line in table[1:] if line]


def address(text: str) -> str:
    """A PCI address somewhere in ``text``, spelt as sysfs does: vendors write eight digits of domain, or none."""
    found = _ADDRESS.search(text)
    return f"{int(found[1] or '0', 16):04x}:{found[2].lower()}" if found else ""


def mebibytes(text: str) -> int:
    """``32768 MiB`` as a number. ValueError when it is none, or of another unit."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:MiB|MB)?\s*", text)
    if not found:
        raise ValueError(f"{text[:64]!r} is no amount of memory in MiB")
    return int(found[1])
