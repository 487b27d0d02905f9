"""A vendor's command-line tool: run it within a deadline, and parse its output."""

from __future__ import annotations

import csv
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from hami_plugin.errors import HamiError
from hami_plugin.model.usage import DeviceLoad

KILL_TIMEOUT_S = 5.0
"""How long to wait for a killed tool."""

MAX_BYTES = 1 << 20
"""Maximum output of a tool. The largest machines' output has some ten kilobytes."""

MAX_BANNERS = 64
"""How many braces may stand before the JSON that a tool prints."""

MAX_LEVELS = 50
"""Maximum depth of its JSON."""

MAX_DIGITS = 30
"""Maximum digits of a number in it."""

LOAD_EVERY_S = 15.0
"""How long it is good what a tool has told of its devices' load: a process costs more than a file."""

MAX_MESSAGE = 200
"""Characters of a tool's error output that are reported: its end, after any warnings."""


_CHUNK = 1 << 16

T = TypeVar("T")


class ToolError(HamiError):
    """A tool is missing, failed, took too long, or printed unexpected output."""


def read(tool: Path, parse: Callable[[str], T], *arguments: str, deadline: float = 10.0) -> T:
    """Run the tool and parse its output. ``ToolError`` if the tool or ``parse`` fails.

    A tool may print anything, and a parser need not foresee all of it.
    """
    printed = output(tool, *arguments, deadline=deadline)
    try:
        return parse(printed)
    except ToolError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:MAX_MESSAGE] or type(error).__name__
        raise ToolError(f"{tool} printed unreadable output: {why}") from error


def output(tool: Path, *arguments: str, deadline: float = 10.0) -> str:
    """The tool's output. The tool is killed, with its children, after ``deadline`` seconds or ``MAX_BYTES``."""
    try:
        process = subprocess.Popen(  # noqa: S603  # the path is the operator's
            [str(tool), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"{tool} cannot be run: {_cause(tool, error)}") from error
    try:
        printed, complaint = _output_of(process, deadline)
    except subprocess.TimeoutExpired as error:
        _end(process)
        raise ToolError(f"{tool} has not answered within {deadline:g} s") from error
    if len(printed) > MAX_BYTES:
        _end(process)
        raise ToolError(f"{tool} printed more than {MAX_BYTES >> 10} KiB and was killed")
    if process.returncode:
        why = " ".join((complaint or printed).decode("utf-8", errors="replace").split())
        why = why if len(why) <= MAX_MESSAGE else f"…{why[-MAX_MESSAGE:]}"
        raise ToolError(f"{tool} ended with status {process.returncode}: {why or 'no message'}")
    return printed.decode("utf-8", errors="replace")


def _cause(tool: Path, error: OSError) -> str:
    """Why the kernel does not start a tool. For a script without its interpreter it says that there is no such file."""
    with suppress(OSError):
        if isinstance(error, FileNotFoundError) and (first := _first_line(tool)).startswith(b"#!"):
            interpreter = first[2:].decode("utf-8", errors="replace").split()[:1] or ["nothing"]
            return f"it is a script for {interpreter[0]}, which is not here; use an image with it (make image BASE=...)"
    return error.strerror or str(error)


def _first_line(tool: Path) -> bytes:
    with tool.open("rb") as file:
        return file.readline(MAX_MESSAGE)


def _output_of(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """The tool's standard output, up to ``MAX_BYTES``, and the end of its standard error."""
    until = time.monotonic() + deadline
    assert process.stdout
    assert process.stderr
    outputs = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    printed, complaint = outputs
    with selectors.DefaultSelector() as selector:
        for file in outputs:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map() and len(outputs[printed]) <= MAX_BYTES:
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, deadline)
            for key, _events in ready:
                chunk = os.read(key.fd, _CHUNK)
                outputs[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            outputs[complaint] = outputs[complaint][-_CHUNK:]
    if len(outputs[printed]) <= MAX_BYTES:
        process.wait(max(0.0, until - time.monotonic()))
        process.stdout.close()
        process.stderr.close()
    return outputs[printed], outputs[complaint]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool with its process group, and abandon it if even that does not end it.

    A call that hangs in the kernel cannot be killed. The pipes are not read on: a child in another session keeps them
    open.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def json_object(printed: str, tool: Path) -> Mapping[str, Any]:
    """The JSON object in a tool's output; some tools print banners and warnings around it."""
    decoder = json.JSONDecoder(parse_int=_whole, parse_constant=_finite)
    start = -1
    for _ in range(MAX_BANNERS):
        start = printed.find("{", start + 1)
        if start < 0:
            break
        try:
            value, _end = decoder.raw_decode(printed, start)
        except _UnreadableError as error:
            raise ToolError(f"{tool} printed JSON in which {error}") from error
        except RecursionError as error:
            raise ToolError(f"{tool} printed JSON that is nested too deeply") from error
        except ValueError:
            continue
        if _deeper(value, MAX_LEVELS):
            raise ToolError(f"{tool} printed JSON that is nested more than {MAX_LEVELS} levels deep")
        return dict(value)
    raise ToolError(f"{tool} printed no JSON object: {' '.join(printed[:_CHUNK].split())[:80]!r}")


class _UnreadableError(Exception):
    """JSON that no driver can use. Not a ``ValueError``: the search for an object ends here."""


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _UnreadableError(f"a number has {len(digits)} digits")
    return int(digits)


def _finite(name: str) -> float:
    raise _UnreadableError(f"a number is {name}")


def _deeper(value: object, levels: int) -> bool:
    """Whether a parsed value has more than ``levels`` levels. The parser bounds the recursion."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(one, levels - 1) for one in inner)


class Kept(Generic[T]):
    """Caches the answer of ``ask`` for ``every`` seconds, or until ``about`` changes. Errors are not cached."""

    def __init__(self, ask: Callable[[], T], *, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._every = every
        self._clock = clock
        self._kept: tuple[T, Hashable, float] | None = None

    def answer(self, about: Hashable) -> T:
        """The answer, at most ``every`` seconds old."""
        now = self._clock()
        if self._kept is None or self._kept[1] != about or now - self._kept[2] >= self._every:
            self._kept = None
            self._kept = (self._ask(), about, now)
        return self._kept[0]


class LastKnown(Generic[T]):
    """The last answer of a tool, which is asked at most once in ``every`` seconds. It stays when the tool fails.

    ``problem`` is why the last call failed, if it did. An empty answer changes nothing.
    """

    def __init__(
        self, ask: Callable[[], T], first: T, *, every: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._known = first
        self._every = every
        self._clock = clock
        self._asked = float("-inf")
        self.problem = ""

    def answer(self) -> T:
        if self._clock() - self._asked >= self._every:
            try:
                self._known, self.problem = self._ask() or self._known, ""
            except ToolError as error:
                self.problem = str(error)
            self._asked = self._clock()
        return self._known


MAX_LINE_LENGTH = 4096
MAX_LINES = 4096
"""Maximum lines of a table. The largest has a line for each of some hundred devices."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def lines(text: str) -> Iterator[str]:
    """The lines of a tool's output. ``ValueError`` if there are too many, or one is too long."""
    for number, line in enumerate(text.splitlines()):
        if number >= MAX_LINES:
            raise ValueError(f"more than {MAX_LINES} lines")
        if len(line) > MAX_LINE_LENGTH:
            raise ValueError(f"line {number + 1} has {len(line)} characters")
        yield line


def matrix(text: str, label: str) -> dict[tuple[int, int], str]:
    """The cells of the table that ``topo -m`` prints, by the numbers behind ``label`` of row and column."""
    name = re.compile(rf"{label}(\d+)")
    split = (line.split() for line in lines(_COLOURS.sub("", text)))
    rows = [cells for cells in split if cells and name.fullmatch(cells[0])]
    columns = [int(found[1]) for cell in (rows[0] if rows else []) if (found := name.fullmatch(cell))]
    return {
        (int(cells[0].removeprefix(label)), column): cell
        for cells in rows[1:]
        for column, cell in zip(columns, cells[1:], strict=False)
    }


def rows(text: str, *columns: str) -> list[Mapping[str, str]]:
    """The rows of a CSV table with a header, by column name. Some versions of a tool add units to the names, as in
    ``memory.total [MiB]``. ``ValueError`` if a column is missing.
    """
    try:
        table = list(csv.reader(lines(text), skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"not a CSV table: {error}") from error
    header = [name.split(" ")[0].strip() for name in table[0]] if table else []
    if not set(columns) <= set(header):
        raise ValueError(f"the table lacks a column of {', '.join(columns)}: {text[:120]!r}")
    return [dict(zip(header, line, strict=False)) for line in table[1:] if line]


Row = Mapping[str, str]


def read_table(
    tool: Path, columns: Sequence[str], parse_row: Callable[[Row], T], *arguments: str, deadline: float = 10.0
) -> Sequence[T]:
    """Run the tool and parse each row of the table it prints. ``ToolError`` as in ``read``."""
    return read(tool, lambda table: parse_table(table, columns, parse_row), *arguments, deadline=deadline)


def parse_table(table: str, columns: Sequence[str], parse_row: Callable[[Row], T]) -> Sequence[T]:
    """Parse each row of a CSV table.

    A row has all ``columns``, stripped; missing cells are empty.
    """
    return [parse_row({name: row.get(name, "").strip() for name in columns}) for row in rows(table, *columns)]


def address(text: str) -> str:
    """The PCI address in ``text``, as sysfs writes it. Vendors write eight digits of domain, or none."""
    found = _ADDRESS.search(text)
    return f"{int(found[1] or '0', 16):04x}:{found[2].lower()}" if found else ""


def mebibytes(text: str) -> int:
    """``32768 MiB`` as a number. ``ValueError`` for anything else."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:MiB|MB)?\s*", text)
    if not found:
        raise ValueError(f"{text[:64]!r} is not an amount of memory in MiB")
    return int(found[1])


_PERCENT = re.compile(r"\s*(\d{1,3})(?:\.\d{1,9})?\s*%?\s*")


def device_load(memory: str, busy: str) -> DeviceLoad:
    """A device with ``1024 MiB`` in use that works ``37 %`` of the time. What a tool does not tell is None."""
    used = None
    with suppress(ValueError):
        used = mebibytes(memory) << 20
    percent = _PERCENT.fullmatch(busy)
    return DeviceLoad(memory_used=used, utilization=int(percent[1]) if percent else None)


def read_loads(
    tool: Path, columns: tuple[str, str, str], *arguments: str, deadline: float = 10.0
) -> Mapping[str, DeviceLoad]:
    """By PCI address, where the tool prints a table with columns of address, memory in use, and percent.

    ``ToolError`` as in ``read``.
    """
    place, memory, busy = columns
    table = read_table(
        tool,
        columns,
        lambda row: (address(row[place]), device_load(row[memory], row[busy])),
        *arguments,
        deadline=deadline,
    )
    return {where: load for where, load in table if where}
