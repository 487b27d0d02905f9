"""What stands between two marks of a page is made by a test."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def generated(name: str, mark: str, wanted: str) -> str:
    """What stands between a page's two marks. With ``UPDATE_DOCS=1`` in the environment it is written first."""
    if os.environ.get("UPDATE_DOCS"):
        with _alone((ROOT / name).parent):
            before, _shown, after = _parts(name, mark)
            _write(ROOT / name, f"{before}{wanted}{after}")
    return _parts(name, mark)[1]


def _parts(name: str, mark: str) -> tuple[str, str, str]:
    """What stands before, between and after the marks."""
    head, opening, rest = (ROOT / name).read_text(encoding="utf-8").partition(f"<!-- {mark}: ")
    comment, line, rest = rest.partition("\n")
    shown, closing, tail = rest.partition(f"<!-- end of {mark} -->")
    assert closing, f"{name} has no place for {mark}"
    return f"{head}{opening}{comment}{line}", shown, f"{closing}{tail}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Tests run in several processes, and one page may be made by several tests."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _write(page: Path, text: str) -> None:
    """At once, for whoever reads the page meanwhile."""
    new = page.with_name(f".{page.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(page)
