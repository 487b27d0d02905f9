"""A vendor's command-line tool: run within a deadline, and what it printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hami_plugin.errors import HamiError

FAREWELL_S = 1.0
"""How long a tool that was killed is waited for."""

MOST_WORDS = 200
"""How many characters of a complaint are told: its end, where tools that warn a lot say what has failed."""


class ToolError(HamiError):
    """A tool that is not there, failed, took too long or printed something else than was asked for."""


def output(tool: Path, *arguments: str, deadline: float = 10.0) -> str:
    """What the tool prints. After ``deadline`` seconds it is ended, with all that it has started."""
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
        printed, complaint = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired as error:
        _end(process)
        raise ToolError(f"{tool} has not answered within {deadline:g} s") from error
    if process.returncode:
        why = " ".join((complaint or printed).decode("utf-8", errors="replace").split())
        why = why if len(why) <= MOST_WORDS else f"…{why[-MOST_WORDS:]}"
        raise ToolError(f"{tool} ended with status {process.returncode}: {why or 'it did not say why'}")
    return printed.decode("utf-8", errors="replace")


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
    decoder = json.JSONDecoder()
    start = printed.find("{")
    while start >= 0:
        with suppress(ValueError):
            value, _end = decoder.raw_decode(printed, start)
            return dict(value)
        start = printed.find("{", start + 1)
    raise ToolError(f"{tool} printed no JSON object: {' '.join(printed.split())[:80]!r}")
