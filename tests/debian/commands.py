"""The machine's own commands, run to their end."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.runtimes.lacking import SYSTEM_PATH, LackingError

UMASK = 0o022  # what is made is for everybody to read, whatever the caller keeps for itself


def output(command: Sequence[str], *, deadline_s: float, cwd: Path | None = None, remedy: str = "") -> str:
    """Run a command to its end and return what it printed.

    ``LackingError`` says the command, its last words, and the ``remedy`` if there is one.
    """
    environment = {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    line, hint = " ".join(command), f" (try: {remedy})" if remedy else ""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            umask=UMASK,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LackingError(f"{line} did not end within {deadline_s} s{hint}") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-600:]
        raise LackingError(f"{line} failed ({done.returncode}): {words}{hint}")
    return done.stdout
