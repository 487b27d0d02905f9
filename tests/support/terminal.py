"""The command line as a user has it: the real process, with its output in a pipe or on a terminal."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROGRAM = (sys.executable, "-m", "hami_plugin")
ROOT = Path(__file__).parents[2]
LIMIT_S = 240
"""Against a command that never ends; no test waits for it."""


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what changes how commands draw or what they read."""
    left_out = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "NODE_NAME", "KUBECONFIG")
    return {key: value for key, value in os.environ.items() if key not in left_out} | changes


def piped(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its output in pipes."""
    return subprocess.run(
        [*PROGRAM, *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
        cwd=ROOT,
        env=environment(**changes),
    )


def on_terminal(*words: str, columns: int = 80, changes: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command on a terminal: the exit status, and every character that it printed, escapes included."""
    ours, theirs = pty.openpty()
    surroundings = environment(TERM="xterm-256color", COLUMNS=str(columns), LINES="40", **(changes or {}))
    process = subprocess.Popen(
        [*PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=surroundings
    )
    os.close(theirs)
    printed = b""
    try:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError as error:  # how a terminal says that the other end has gone
                if error.errno != errno.EIO:
                    raise
                break
            if not part:
                break
            printed += part
        return process.wait(timeout=LIMIT_S), printed.decode("utf-8")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(timeout=LIMIT_S)
        os.close(ours)
