"""Vendors' command-line tools, asked with a deadline: some wait for hardware that does not answer."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

DEADLINE_S = 5.0


class ToolError(Exception):
    """A tool that is not there, failed, or did not answer in time. The text says which, in one line."""


def said(tool: Path, arguments: Sequence[str] = (), *, deadline: float = DEADLINE_S) -> str:
    """What the tool prints. ``ToolError`` unless it ends well within ``deadline`` seconds."""
    command = [str(tool), *arguments]
    try:
        run = subprocess.run(  # noqa: S603  # the path is the operator's
            command, capture_output=True, timeout=deadline, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{' '.join(command)} did not answer within {deadline:g} s") from None
    except OSError as error:
        raise ToolError(f"{tool} cannot be run: {error.strerror}") from error
    if run.returncode:
        words = " ".join((run.stderr or run.stdout).decode(errors="replace").split())
        raise ToolError(f"{' '.join(command)} ended with status {run.returncode}: {words[:200]}")
    return run.stdout.decode(errors="replace")
