"""Lines to a stream that may be stuck: whoever writes never waits, and what finds no room is counted instead."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from io import UnsupportedOperation
from typing import TextIO

_CHUNK = 64 * 1024
_LIMIT = 4 * 1024 * 1024


class LineWriter:
    """A buffer of ``limit`` bytes, and one thread that empties it.

    ``lost`` turns a number of dropped lines into the line that reports them, once there is room again.
    """

    def __init__(self, stream: TextIO, *, lost: Callable[[int], str], limit: int = _LIMIT) -> None:
        self._sink = _sink(stream)
        self._lost = lost
        self._limit = limit
        # Re-entrant: the garbage collector may run a finaliser that logs, at any point, on this same thread.
        self._changed = threading.Condition(threading.RLock())
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._dropped = 0
        self._untold = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many lines were lost since the start, to a full buffer or a broken stream."""
        return self._dropped

    def write(self, line: str) -> None:
        """Queue one line; a line break is added. Returns at once, whatever the stream does."""
        raw = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._closed or self._size + len(raw) > self._limit:
                self._dropped += 1
                self._untold += 1
                return
            self._lines.append(raw)
            self._size += len(raw)
            self._changed.notify_all()

    def close(self, timeout: float = 1.0) -> bool:
        """Write what is left, for at most ``timeout`` seconds. False: the stream is stuck, and some lines are lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._pass_on():
            pass
        self._sink.close()

    def _pass_on(self) -> bool:
        """Wait for lines and write some. False when there will be no more."""
        with self._changed:
            while not self._lines and not self._closed:
                self._changed.wait()
            if not self._lines and not self._untold:
                return False
            chunk, count, told = self._take()
        try:
            self._sink.write(chunk)
        except (OSError, ValueError):  # the reader is gone, or the stream was closed; a later line may fare better
            with self._changed:
                self._dropped += count
                self._untold += told + count
                if self._closed:
                    self._dropped += len(self._lines)
                return not self._closed
        return True

    def _take(self) -> tuple[bytes, int, int]:
        """The next bytes, how many lines they are, and how many lost ones they report."""
        parts: list[bytes] = []
        size = 0
        while self._lines and size < _CHUNK:
            parts.append(self._lines.popleft())
            size += len(parts[-1])
        self._size -= size
        count, told = len(parts), 0
        if self._untold and not self._lines:
            told, self._untold = self._untold, 0
            parts.append(self._lost(told).encode() + b"\n")
        return b"".join(parts), count, told


class _Descriptor:
    """A stream's descriptor, past its buffer.

    A thread that is stuck inside a buffered stream holds its lock, and the interpreter aborts when it flushes the
    stream at exit. The descriptor is duplicated, so that closing the stream cannot hand its number to another file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)

    def write(self, raw: bytes) -> None:
        rest = memoryview(raw)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody who shares the pipe has made it non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll(1000)

    def close(self) -> None:
        os.close(self._descriptor)


class _Text:
    """A stream that exists in memory only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, raw: bytes) -> None:
        self._stream.write(raw.decode())
        self._stream.flush()

    def close(self) -> None:
        """The stream belongs to whoever opened it."""


def _sink(stream: TextIO) -> _Descriptor | _Text:
    try:
        stream.flush()
        return _Descriptor(stream.fileno())
    except (UnsupportedOperation, AttributeError):
        return _Text(stream)
