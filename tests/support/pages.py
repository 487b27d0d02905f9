"""What stands between two marks of a page is made by a test."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def generated(name: str, mark: str, wanted: str) -> str:
    """What stands between a page's two marks. With ``UPDATE_DOCS=1`` in the environment it is written first."""
    page = (ROOT / name).read_text(encoding="utf-8")
    head, opening, rest = page.partition(f"<!-- {mark}: ")
    comment, _, rest = rest.partition("\n")
    shown, closing, tail = rest.partition(f"<!-- end of {mark} -->")
    assert closing, f"{name} has no place for {mark}"
    if os.environ.get("UPDATE_DOCS"):
        (ROOT / name).write_text(f"{head}{opening}{comment}\n{wanted}{closing}{tail}", encoding="utf-8")
        return wanted
    return shown
