"""Logging for the whole process: JSON lines in a cluster, readable lines on a terminal. It never blocks.

Records of other libraries are rendered the same way, so that one parser reads every line.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import select
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from io import UnsupportedOperation
from typing import Literal, TextIO

import structlog

_CHUNK = 64 * 1024
_LIMIT = 4 * 1024 * 1024


class LineWriter:
    """A buffer of ``limit`` bytes, and one thread that writes it to the stream.

    ``lost`` makes the line that reports a number of dropped lines, once there is room again.
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
        self._unreported = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost since the start, to a full buffer or a broken stream."""
        return self._dropped

    def write(self, line: str) -> None:
        """Queue one line; a line break is added. Returns at once, even if the stream is stuck."""
        raw = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._closed or self._size + len(raw) > self._limit:
                self._dropped += 1
                self._unreported += 1
                return
            self._lines.append(raw)
            self._size += len(raw)
            self._changed.notify_all()

    def close(self, timeout: float = 1.0) -> bool:
        """Write the rest, for at most ``timeout`` seconds. False: the stream is stuck, and lines are lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._write_some():
            pass
        self._sink.close()

    def _write_some(self) -> bool:
        """Wait for lines and write some. False at the end."""
        with self._changed:
            while not self._lines and not self._closed:
                self._changed.wait()
            if not self._lines and not self._unreported:
                return False
            chunk, count, reported = self._take()
        try:
            self._sink.write(chunk)
        except (OSError, ValueError):  # the reader is gone, or the stream was closed; later lines may succeed
            with self._changed:
                self._dropped += count
                self._unreported += reported + count
                if self._closed:
                    self._dropped += len(self._lines)
                return not self._closed
        return True

    def _take(self) -> tuple[bytes, int, int]:
        """The next bytes, the number of their lines, and of the lost lines that they report."""
        parts: list[bytes] = []
        size = 0
        while self._lines and size < _CHUNK:
            parts.append(self._lines.popleft())
            size += len(parts[-1])
        self._size -= size
        count, reported = len(parts), 0
        if self._unreported and not self._lines:
            reported, self._unreported = self._unreported, 0
            parts.append(self._lost(reported).encode() + b"\n")
        return b"".join(parts), count, reported


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
            except BlockingIOError:  # another process has made the shared pipe non-blocking
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
        """The stream belongs to its opener."""


def _sink(stream: TextIO) -> _Descriptor | _Text:
    try:
        stream.flush()
        return _Descriptor(stream.fileno())
    except (UnsupportedOperation, AttributeError):
        return _Text(stream)


_MAX_TEXT = 8192
_MAX_DEPTH = 6
_MAX_BITS = 1024

# Control characters begin lines and drive terminals; the bidirectional ones reorder what is read.
_CODES = (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\u{code:04x}" for code in _CODES} | {9: "\\t", 10: "\\n", 13: "\\r"}
_ESCAPES_IN_LINES = {code: text for code, text in _ESCAPES.items() if code != 10}


def escaped(text: str, *, keep_lines: bool = False) -> str:
    """``text`` with control characters escaped. A traceback keeps its lines."""
    return text.translate(_ESCAPES_IN_LINES if keep_lines else _ESCAPES)


def plain(value: object, depth: int = 0) -> object:
    """``value`` as JSON's types. Long text is cut, and other types become their ``str``."""
    match value:
        case None | bool() | int() | float():
            return _number(value)
        case str():
            return _cut(str(value))
        case Mapping() if depth < _MAX_DEPTH:
            return {
                key if type(key) is str and len(key) <= _MAX_TEXT else _cut(_text(key)): item
                if type(item) is str and len(item) <= _MAX_TEXT
                else plain(item, depth + 1)
                for key, item in value.items()
            }
        case list() | tuple() | set() | frozenset() if depth < _MAX_DEPTH:
            items = sorted(value, key=_text) if isinstance(value, set | frozenset) else value
            return [item if type(item) is str and len(item) <= _MAX_TEXT else plain(item, depth + 1) for item in items]
        case _:
            return _cut(_text(value))


def _number(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return str(value)  # JSON has no such number
        case int() if value.bit_length() > _MAX_BITS:
            return f"an integer of {value.bit_length()} bits"
        case _:
            return value


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  # a log line must not fail because of a value
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text) - _MAX_TEXT} more)"


Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console", "auto"]
Render = Callable[[Mapping[str, object]], str]

_FIRST = ("timestamp", "level", "event")


class Logs:
    """The logging of this process from ``configure`` until ``close``; the interpreter's exit closes it too."""

    def __init__(self, writer: LineWriter, handler: logging.Handler) -> None:
        root = logging.getLogger()
        self._writer = writer
        self._handler = handler
        self._previous = (*root.handlers,)
        self._previous_level = root.level
        root.handlers[:] = [handler]
        logging.captureWarnings(capture=True)
        atexit.register(self.close)

    @property
    def dropped(self) -> int:
        """Lines lost because nothing read the stream."""
        return self._writer.dropped

    def set_level(self, level: str) -> None:
        """Log from this level on, also by loggers that exist."""
        threshold = logging.getLevelNamesMapping()[level.upper()]
        logging.getLogger().setLevel(max(threshold, logging.INFO))
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(threshold))

    def close(self, timeout: float = 1.0) -> bool:
        """Write the rest, and restore the previous logging. False: the stream is stuck, and lines are lost."""
        atexit.unregister(self.close)
        root = logging.getLogger()
        if self._handler in root.handlers:
            logging.captureWarnings(capture=False)
            root.handlers[:] = self._previous
            root.setLevel(self._previous_level)
            structlog.reset_defaults()
        return self._writer.close(timeout)


def configure(level: Level, format: Format, stream: TextIO) -> Logs:  # noqa: A002  # the option's name
    """Send events of structlog and of the standard library to ``stream``, from ``level`` on.

    Other libraries log from ``info`` on at most: their debug records may hold whole requests.
    """
    people = format == "console" or (format == "auto" and stream.isatty())
    render = _console(colors=stream.isatty()) if people else _json
    writer = LineWriter(stream, lost=lambda count: _lost(render, count))
    logs = Logs(writer, _StandardLibrary(lambda event: writer.write(render(event))))
    threshold = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(threshold, logging.INFO))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            lambda logger, _method, event: render({**logger.fields, **event}),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=cache(lambda *names: _LineLogger(writer.write, names)),  # one for each module
        cache_logger_on_first_use=False,  # loggers are made at import, before this is called
    )
    return logs


class _LineLogger:
    """Receives rendered lines from structlog."""

    def __init__(self, write: Callable[[str], None], names: tuple[object, ...]) -> None:
        name = ".".join(str(name) for name in names)
        self.fields = {"logger": name} if name else {}
        self.msg = self.debug = self.info = self.warning = self.error = self.critical = write


class _StandardLibrary(logging.Handler):
    """Turns records of the standard library into events."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": _message(record),
            "logger": record.name,
        }
        if record.exc_info and record.exc_info[0] is not None:
            event["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        self._send(event)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # logging itself would print to stderr, which may be stuck as well
        return f"{record.msg!r} {record.args!r}"


def _json(event: Mapping[str, object]) -> str:
    ordered = {key: event[key] for key in _FIRST if key in event} | dict(event)
    return json.dumps(plain(ordered))


def _console(*, colors: bool) -> Render:
    renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)

    def render(event: Mapping[str, object]) -> str:
        readable = {
            escaped(key): escaped(value, keep_lines=key in ("exception", "stack")) if isinstance(value, str) else value
            for key, value in ((str(key), plain(value)) for key, value in event.items())
        }
        return renderer(None, "", readable)

    return render


def _lost(render: Render, count: int) -> str:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return render(
        {"timestamp": now, "level": "warning", "event": "log lines lost: nothing reads the log", "count": count}
    )
