"""A vendor's command-line tool: run within a deadline, and what it printed."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hami_plugin.errors import HamiError

FAREWELL_S = 1.0
"""How long a tool that was killed is waited for."""

MOST_BYTES = 1 << 20
"""Of what a tool prints. The largest machines' answers have some ten kilobytes."""

MOST_BANNERS = 64
"""How many braces may stand before the JSON that a tool prints."""

MOST_LEVELS = 50
"""Of its JSON."""

MOST_DIGITS = 30
"""Of a number in it."""

MOST_WORDS = 200
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
        why = " ".join(str(error).split())[:MOST_WORDS] or type(error).__name__
        raise ToolError(f"{tool} printed what cannot be read: {why}") from error


def output(tool: Path, *arguments: str, deadline: float = 10.0) -> str:
    """What the tool prints. It is ended, with all that it has started, after ``deadline`` seconds or ``MOST_BYTES``."""
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
    if len(printed) > MOST_BYTES:
        _end(process)
        raise ToolError(f"{tool} prints more than {MOST_BYTES >> 10} KiB, and was ended")
    if process.returncode:
        why = " ".join((complaint or printed).decode("utf-8", errors="replace").split())
        why = why if len(why) <= MOST_WORDS else f"…{why[-MOST_WORDS:]}"
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
        while selector.get_map() and len(heard[printed]) <= MOST_BYTES:
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(process.args, deadline)
            for key, _events in ready:
                chunk = os.read(key.fd, _CHUNK)
                heard[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            heard[complaint] = heard[complaint][-_CHUNK:]
    if len(heard[printed]) <= MOST_BYTES:
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
    for _ in range(MOST_BANNERS):
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
        if _deeper(value, MOST_LEVELS):
            raise ToolError(f"{tool} printed JSON that is nested more than {MOST_LEVELS} levels deep")
        return dict(value)
    raise ToolError(f"{tool} printed no JSON object: {' '.join(printed[:_CHUNK].split())[:80]!r}")


class _UnreadableError(Exception):
    """JSON that no driver can make anything of. No ``ValueError``: what follows it is not looked at for an object."""


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _UnreadableError(f"a number has {len(digits)} digits")
    return int(digits)


def _finite(name: str) -> float:
    raise _UnreadableError(f"a number is {name}")


def _deeper(value: object, levels: int) -> bool:
    """Whether a value that has been read has more than so many levels. The reader bounds how deep this goes."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(one, levels - 1) for one in inner)
