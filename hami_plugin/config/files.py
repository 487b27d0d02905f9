"""Reading one configuration file: bounded in size and time, and what fails says which file, why, and what to do."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from hami_plugin.errors import ConfigError

MAX_BYTES = 1024 * 1024
ATTEMPTS, PAUSE_S = 50, 0.002
"""How often a link is followed that leads nowhere, and how long in between."""


class MissingFileError(ConfigError):
    """Nothing is at this path, not even a link that leads nowhere."""


def read_text(path: Path) -> str:
    """The file's text without a byte-order mark. One open file is read, so a ConfigMap that is swapped does no harm."""
    raw = _read(path)
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            [f"{path}: is larger than {MAX_BYTES // 1024} KiB; a configuration is not, so check what is mounted there"]
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8 text; save the file as UTF-8"]
        ) from error


def _read(path: Path) -> bytes:
    try:
        with _opened(path) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError([f"{path}: is not a regular file; mount or name a file"])
            return file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise ConfigError([f"{path}: is a directory; name the file inside it"]) from error
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{path}: cannot be read: {why}; check the mount and its permissions"]) from error


def _opened(path: Path) -> BinaryIO:
    """The file. A link may lead nowhere for a moment: it is followed into a volume's old version, which is removed."""
    for _ in range(ATTEMPTS if path.is_symlink() else 0):
        with suppress(FileNotFoundError):
            return open(path, "rb", opener=_without_waiting)
        time.sleep(PAUSE_S)
    return open(path, "rb", opener=_without_waiting)


def _without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe would otherwise wait for somebody to write into it.
    return os.open(path, flags | os.O_NONBLOCK)


def _missing(path: Path) -> ConfigError:
    if path.is_symlink():
        return ConfigError(
            [f"{path}: is a link to {path.readlink()}, which does not exist; check the ConfigMap and its keys"]
        )
    return MissingFileError([f"{path}: does not exist; mount it, or leave the option out"])
