"""Logging for the whole process: JSON lines in a cluster, readable lines on a terminal, and never a wait.

Records of other libraries take the same way out, so that one reader understands every line.
"""

from __future__ import annotations

import atexit
import json
import logging
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from hami_plugin.telemetry.lines import LineWriter
from hami_plugin.telemetry.plain import escaped, plain

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
        """Lines that were lost because nobody read the stream."""
        return self._writer.dropped

    def close(self, timeout: float = 1.0) -> bool:
        """Write what is left, and leave logging as it was before. False: the stream is stuck, and lines are lost."""
        atexit.unregister(self.close)
        root = logging.getLogger()
        if self._handler in root.handlers:
            logging.captureWarnings(capture=False)
            root.handlers[:] = self._previous
            root.setLevel(self._previous_level)
            structlog.reset_defaults()
        return self._writer.close(timeout)


def configure(level: Level, format: Format, stream: TextIO) -> Logs:  # noqa: A002  # the option's own word
    """Send every event of structlog and of the standard library to ``stream``, from ``level`` on.

    Other libraries are heard from ``info`` on at the mildest: their debug records may hold whole requests.
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
            _named,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            lambda _logger, _method, event: render(event),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *names: _Outlet(writer.write, names),
        cache_logger_on_first_use=False,  # loggers are made at import, before this is called
    )
    return logs


class _Outlet:
    """What structlog hands a rendered line to."""

    def __init__(self, write: Callable[[str], None], names: tuple[object, ...]) -> None:
        self.name = ".".join(str(name) for name in names)
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
    except Exception:  # noqa: BLE001  # logging's own answer is to print to stderr, which may be stuck as well
        return f"{record.msg!r} {record.args!r}"


def _named(logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if getattr(logger, "name", ""):
        event.setdefault("logger", logger.name)
    return event


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
    return render({"timestamp": now, "level": "warning", "event": "log lines lost, nobody read them", "count": count})
