"""The project's loggers: structlog's, with events in lower case and facts as fields."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Protocol, cast


@contextmanager
def _blocked(name: str) -> Iterator[None]:
    """Make imports of ``name`` fail, unless it is loaded already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = cast("ModuleType", None)
    try:
        yield
    finally:
        del sys.modules[name]


# structlog imports rich wherever it is installed, to draw tracebacks that we do not use, and has no setting for it:
# that would cost 5 MiB in every daemon. The commands that draw import rich later.
with _blocked("rich"):
    import structlog


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
    """The logger of a module. Modules may call it at import: a later configuration applies to it too."""
    return cast("Logger", structlog.get_logger(name))
