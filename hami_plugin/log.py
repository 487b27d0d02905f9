"""The one way to a logger: events in lower case, facts as fields.

It is structlog's. Where structlog is not installed, as in a bare copy of the tree on a machine that is only to be
looked at, it is the standard library's behind the same calls.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol, cast


@contextmanager
def _unloaded(name: str) -> Iterator[None]:
    """Within, ``name`` cannot be imported.

    structlog loads rich wherever it is installed, to draw tracebacks that we do not use: 5 MiB in every daemon. The
    commands that draw import it later.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = cast("ModuleType", None)
    try:
        yield
    finally:
        del sys.modules[name]


class Logger(Protocol):
    """What the project uses of structlog's loggers. ``exc_info`` among the fields is an exception to show."""

    def bind(self, **fields: object) -> Logger:
        """The same logger, with these fields in every event."""

    def debug(self, event: str, **fields: object) -> object: ...

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...

    def error(self, event: str, **fields: object) -> object: ...

    def exception(self, event: str, **fields: object) -> object: ...


def logger(name: str) -> Logger:
    """The logger of a module. Safe at import: what is configured later holds for it too."""
    structured = structlog_logger()
    return cast("Logger", structured(name)) if structured else StandardLogger(logging.getLogger(name))


def structlog_logger() -> Callable[[str], Any] | None:
    """What makes structlog's loggers, where it is installed. The first call loads it, without rich."""
    try:
        with _unloaded("rich"):
            from structlog import get_logger  # noqa: PLC0415  # may be missing
    except ImportError:
        return None
    return get_logger


class StandardLogger:
    """Events as lines of the standard library: ``driver opened driver='570.1' cuda='12.8'``."""

    def __init__(self, target: logging.Logger, bound: Mapping[str, object] | None = None) -> None:
        self._target = target
        self._bound = bound or {}

    def bind(self, **fields: object) -> StandardLogger:
        return StandardLogger(self._target, {**self._bound, **fields})

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, {"exc_info": True, **fields})

    def _write(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        shown = {**self._bound, **fields}
        error = shown.pop("exc_info", None)
        trace = error if isinstance(error, BaseException) else bool(error)
        words = [event, *(f"{key}={value!r}" for key, value in shown.items())]
        self._target.log(level, "%s", " ".join(words), exc_info=trace)
