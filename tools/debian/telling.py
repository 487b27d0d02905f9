"""How an installation tells of its progress and of its end."""

import sys
import time
from collections.abc import Callable

from tools.debian.commands import LackingError

Say = Callable[[str], None]


def silence(_line: str) -> None:
    """Say nothing."""


def timed(say: Say) -> Say:
    """Return how to say the same with the seconds since now in front."""
    start = time.monotonic()
    return lambda what: say(f"{time.monotonic() - start:6.1f} s  {what}")


def main(install: Callable[[Say], str], *, absent: str, required: bool = True) -> int:
    """Install as a command does: print the steps and the result, or why there is none after the words ``absent``.

    Return its exit status: what is not required may be lacking.
    """
    try:
        _print(install(_print))
    except LackingError as error:
        _print(f"{absent}: {error}")
        return int(required)
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
