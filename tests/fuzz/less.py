"""Less of what a fuzzer found: an input that breaks made smaller, or of many inputs those that lead to new lines.

``python -m tests.fuzz.less TARGET smaller FILE`` and ``python -m tests.fuzz.less TARGET keep FOLDER``.
"""

import hashlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
OURS = tuple(str(ROOT / name) for name in ("cdi", "hami_plugin", "vendors"))
LARGEST, MAX_KEPT, TRIES = 4096, 40, 4000


def outcome(feed: Callable[[bytes], None], data: bytes) -> str:
    """The error that the input ends with, and where it was raised; empty where it ends well."""
    try:
        feed(data)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was found
        trace = error.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        return f"{type(error).__name__} {trace.tb_frame.f_code.co_qualname if trace else ''}"
    return ""


def smaller(feed: Callable[[bytes], None], data: bytes) -> bytes:
    """The input without whatever it breaks without as well, from halves down to single bytes."""
    wanted, tries = outcome(feed, data), 0
    size = len(data) // 2
    while wanted and size:
        start = 0
        while start < len(data) and tries < TRIES:
            shorter = data[:start] + data[start + size :]
            tries += 1
            if outcome(feed, shorter) == wanted:
                data = shorter
            else:
                start += size
        size //= 2
    return data


def steps(feed: Callable[[bytes], None], data: bytes) -> set[tuple[str, int, int]]:
    """From which line to which line of ours an input leads."""
    found: set[tuple[str, int, int]] = set()
    last: dict[FrameType, int] = {}

    def within(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        return within

    def calls(frame: FrameType, _event: str, _argument: object) -> Any:
        return within if frame.f_code.co_filename.startswith(OURS) else None

    sys.settrace(calls)
    try:
        outcome(feed, data)
    finally:
        sys.settrace(None)
    return found


def keep(feed: Callable[[bytes], None], corpus: Path, folder: Path) -> int:
    """Copy the inputs that lead where no input of the corpus does. The smallest first; how many there were."""
    known: set[tuple[str, int, int]] = set()
    for file in corpus.iterdir():
        known |= steps(feed, file.read_bytes())
    kept = 0
    found = sorted(
        (file for file in folder.iterdir() if file.stat().st_size <= LARGEST), key=lambda f: f.stat().st_size
    )
    for file in found:
        content = file.read_bytes()
        fresh = steps(feed, content) - known
        if fresh and kept < MAX_KEPT:
            known |= fresh
            (corpus / f"new-{hashlib.sha256(content).hexdigest()[:12]}").write_bytes(content)
            kept += 1
    return kept


def main() -> None:
    target, what, path = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    feed = TARGETS[target]
    if what == "keep":
        print(keep(feed, CORPUS / target, path))
        return
    if not path.name.startswith("crash"):
        return
    path.write_bytes(smaller(feed, path.read_bytes()))


if __name__ == "__main__":
    main()
