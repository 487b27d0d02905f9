"""The machine's own commands: where they are, and how they are run to their end."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UMASK = 0o022  # what is made is for everybody to read, whatever the caller keeps for itself


class LackingError(Exception):
    """This machine cannot do what a test needs; the message says why, and the remedy."""


def tool(name: str) -> str:
    """Return where ``name`` is, whatever PATH the caller has."""
    return shutil.which(name, path=SYSTEM_PATH) or name


def output(
    command: Sequence[str],
    *,
    deadline_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    remedy: str = "",
) -> str:
    """Run a command to its end and return what it printed. ``environment`` is this process's own if it is None.

    ``LackingError`` says the command, its last words, and the ``remedy`` if there is one.
    """
    inherited = os.environ if environment is None else environment
    fixed = {"PATH": SYSTEM_PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    line, hint = " ".join(command), f" (try: {remedy})" if remedy else ""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**inherited, **fixed},
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
