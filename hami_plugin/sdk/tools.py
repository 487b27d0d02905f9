"""A vendor's command-line tool: run within a deadline, and what it printed."""

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

FAREWELL_S = 1.0
"""How long a tool that was killed is waited for."""

MAX_BYTES = 1 << 20
"""Of what a tool prints. The largest machines' answers have some ten kilobytes."""

MAX_BANNERS = 64
"""How many braces may stand before the JSON that a tool prints."""

MAX_LEVELS = 50
"""Of its JSON."""

MAX_DIGITS = 30
"""Of a number in it."""

MAX_WORDS = 200
"""How many characters of a complaint are told: its end, where tools that warn a lot say what has failed."""


_CHUNK = 1 << 16

T = TypeVar("T")


class ToolError(HamiError):
    """A tool that is not there, failed, took too long or printed something else than was asked for."""


def read(tool: Path, parse: Callable[[str], T], *arguments: str, deadline: float = 10.0) -> T:
    """What ``parse`` makes of what the tool prints. Where it fails, that is the tool's problem: ``ToolError``.

    A tool may print anything, and a parser is not asked to foresee it all.
    """
    printed = output(tool, *arguments, deadline=deadline)
    try:
        return parse(printed)
    except ToolError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:MAX_WORDS] or type(error).__name__
        raise ToolError(f"{tool} printed what cannot be read: {why}") from error


def output(tool: Path, *arguments: str, deadline: float = 10.0) -> str:
    """What the tool prints. It is ended, with all that it has started, after ``deadline`` seconds or ``MAX_BYTES``."""
    try:
        process = subprocess.Popen(  # noqa: S603  # the path is the operator's
            [str(tool), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"{tool} cannot be run: {error.strerror}") from error
    try:
        printed, complaint = _heard(process, deadline)
    except subprocess.TimeoutExpired as error:
        _end(process)
        raise ToolError(f"{tool} has not answered within {deadline:g} s") from error
    if len(printed) > MAX_BYTES:
        _end(process)
        raise ToolError(f"{tool} prints more than {MAX_BYTES >> 10} KiB, and was ended")
    if process.returncode:
        why = " ".join((complaint or printed).decode("utf-8", errors="replace").split())
        why = why if len(why) <= MAX_WORDS else f"…{why[-MAX_WORDS:]}"
        raise ToolError(f"{tool} ended with status {process.returncode}: {why or 'it did not say why'}")
    return printed.decode("utf-8", errors="replace")


def _heard(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """What the tool prints until it ends, or until that is too much; and the end of what it complains of."""
    until = time.monotonic() + deadline
    assert process.stdout
    assert process.stderr
    heard = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    printed, complaint = heard
    with selectors.DefaultSelector() as selector:
        for file in heard:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map() and len(heard[printed]) <= MAX_BYTES:
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, deadline)
            for key, _events in ready:
                chunk = os.read(key.fd, _CHUNK)
                heard[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            heard[complaint] = heard[complaint][-_CHUNK:]
    if len(heard[printed]) <= MAX_BYTES:
        process.wait(max(0.0, until - time.monotonic()))
        process.stdout.close()
        process.stderr.close()
    return heard[printed], heard[complaint]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool with its group, and leave it to itself where even that does not end it.

    A call that hangs in the kernel cannot be killed, and a child in a session of its own holds the pipes open.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=FAREWELL_S)
    process.poll()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def json_object(printed: str, tool: Path) -> Mapping[str, Any]:
    """The JSON object in what a tool printed; some print banners and warnings around it."""
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
    """JSON that no driver can make anything of. No ``ValueError``: what follows it is not looked at for an object."""


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _UnreadableError(f"a number has {len(digits)} digits")
    return int(digits)


def _finite(name: str) -> float:
    raise _UnreadableError(f"a number is {name}")


def _deeper(value: object, levels: int) -> bool:
    """Whether a value that has been read has more than so many levels. The reader bounds how deep this goes."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(one, levels - 1) for one in inner)


class Kept(Generic[T]):
    """``ask`` is called again after ``every`` seconds, or when what the answer is about has changed.

    An error is not kept: the next one who wants the answer asks again.
    """

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
    """What a tool last told: it is asked at most once in ``every`` seconds, and what was known stays when it fails.

    ``problem`` is why it failed the last time, if it did. An empty answer is no news.
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


LONGEST_LINE = 4096
MAX_LINES = 4096
"""Of a table. The largest has a line for each of some hundred devices."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def lines(text: str) -> Iterator[str]:
    """The lines of what a tool printed for people. ``ValueError`` where no table has so many, or such a long one."""
    for number, line in enumerate(text.splitlines()):
        if number >= MAX_LINES:
            raise ValueError(f"more than {MAX_LINES} lines")
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


Row = Mapping[str, str]


def read_table(
    tool: Path, columns: Sequence[str], parse_row: Callable[[Row], T], *arguments: str, deadline: float = 10.0
) -> Sequence[T]:
    """What ``parse_row`` makes of each row of the table that the tool prints. ``ToolError`` as in ``read``."""
    return read(tool, lambda table: parse_table(table, columns, parse_row), *arguments, deadline=deadline)


def parse_table(table: str, columns: Sequence[str], parse_row: Callable[[Row], T]) -> Sequence[T]:
    """The same of a table with commas that was printed already.

    A row has all ``columns``, without blanks around; where a line is too short, the rest is empty.
    """
    return [parse_row({name: row.get(name, "").strip() for name in columns}) for row in rows(table, *columns)]


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
