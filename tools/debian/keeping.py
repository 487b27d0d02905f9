"""What is expensive to make is made once, kept in a folder, and made again when its recipe changes."""

import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.debian.commands import LackingError

MARK = "complete.json"
POLL_S = 0.2


def once(folder: Path, recipe: str, make: Callable[[], Mapping[str, object]], *, wait_s: float) -> None:
    """Have ``make`` fill the folder, unless it has done so by this recipe. What it returns is noted beside the recipe.

    Other processes wait for up to ``wait_s`` seconds, then raise ``LackingError``. Where ``make`` is broken off, the
    folder has no mark, and the next call makes again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    with alone(folder, wait_s):
        if mark.exists() and json.loads(mark.read_text())["recipe"] == recipe:
            return
        mark.unlink(missing_ok=True)
        partial = mark.with_suffix(".partial")
        partial.write_text(json.dumps({"recipe": recipe, **make()}, indent=1))
        partial.rename(mark)


@contextmanager
def alone(folder: Path, wait_s: float) -> Iterator[None]:
    """Have a folder that is there to oneself. ``LackingError`` when another process has it for ``wait_s`` seconds."""
    with (folder / "lock").open("w") as lock:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    why = f"{lock.name} is held by another installation for {wait_s:g} s; wait for it, or end it"
                    raise LackingError(why) from None
                time.sleep(POLL_S)
        yield
