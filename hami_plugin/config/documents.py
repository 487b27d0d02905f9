"""YAML and JSON files as plain values, each with its line. Ambiguous input is refused, not guessed at."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import yaml

from hami_plugin.errors import ConfigError
from hami_plugin.host.bounded_yaml import MAX_LEVELS, BoundedLoader, DuplicateKeyError, TooDeepError, TooLargeError

MAX_BYTES = 1024 * 1024
ATTEMPTS, PAUSE_S = 50, 0.002
"""How often a dangling link is followed again, and the pause in between."""


class MissingFileError(ConfigError):
    """Nothing is at this path, not even a dangling link."""


def read_text(path: Path) -> str:
    """The file's text without a byte-order mark. It is opened once, so a ConfigMap that is swapped does no harm."""
    raw = _read(path)
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            [f"{path}: is larger than {MAX_BYTES // 1024} KiB, too large for a configuration; check the mounted file"]
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
    """Open the file. A link may dangle for a moment, while a volume's old version is removed."""
    for _ in range(ATTEMPTS if path.is_symlink() else 0):
        with suppress(FileNotFoundError):
            return open(path, "rb", opener=_without_waiting)
        time.sleep(PAUSE_S)
    return open(path, "rb", opener=_without_waiting)


def _without_waiting(path: str, flags: int) -> int:
    # Otherwise opening a named pipe waits until someone writes to it.
    return os.open(path, flags | os.O_NONBLOCK)


def _missing(path: Path) -> ConfigError:
    if path.is_symlink():
        return ConfigError(
            [f"{path}: is a link to {path.readlink()}, which does not exist; check the ConfigMap and its keys"]
        )
    return MissingFileError([f"{path}: does not exist; mount it, or leave the option out"])


Keys = tuple[str | int, ...]
"""The path of a value in a document: keys of mappings and positions in lists, from the outside in."""

_MAX_DIGITS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file. ``lines`` count from 1; JSON has none."""

    path: Path
    value: object
    lines: Mapping[Keys, int] = field(default_factory=dict)


def read_yaml(path: Path) -> Document:
    """Read one YAML document. Duplicate keys, several documents and foreign tags are errors; an empty file is None."""
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, path: Path) -> Document:
    """The document in ``text``. Errors name ``path``."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return Document(path=path, value=None)
        lines = _Lines(path)
        lines.visit(root, ())
        return Document(path=path, value=loader.construct_document(root), lines=lines.found)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax(path, error)]) from error
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise ConfigError([f"{path}: is not YAML: {why}; remove the character"]) from error
    except DuplicateKeyError as error:
        where = f"{path}:{error.line}: {error.key}"
        raise ConfigError([f"{where}: is set twice, first on line {error.first_line}; remove one of them"]) from error
    except TooDeepError as error:
        raise ConfigError([_too_deep(path)]) from error
    except TooLargeError as error:
        raise ConfigError(
            [f"{path}: has more than {_Loader.most_nodes} values, aliases included; shorten it"]
        ) from error
    except ValueError as error:  # a date or number that looks right and is not, as 2024-13-45
        raise ConfigError([f"{path}: has an impossible value: {error}; put text in quotes"]) from error


def read_json(path: Path) -> Document:
    """Read one JSON document. Duplicate keys, NaN and Infinity are errors."""
    text = read_text(path)
    try:
        value = json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_not_a_constant, parse_int=_integer
        )
        if _deeper(value, MAX_LEVELS):
            raise ConfigError([_too_deep(path)])
        return Document(path=path, value=value)
    except json.JSONDecodeError as error:
        raise ConfigError(
            [f"{path}:{error.lineno}:{error.colno}: is not JSON: {error.msg}; correct the line, or the one above"]
        ) from error
    except RecursionError as error:
        raise ConfigError([_too_deep(path)]) from error
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error


def section(document: Document, keys: Keys, value: object) -> Mapping[str, object]:
    """The mapping at ``keys``, empty if absent. Anything else raises at once: a later layer would hide it."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    line = document.lines.get(keys)
    where = f"{document.path}:{line}" if line else str(document.path)
    name = ".".join(str(key) for key in keys)
    what = f"{name}: must be a section of keys" if name else "must hold keys at the top"
    raise ConfigError([f"{where}: {what}, not {type(value).__name__}; write `key: value`, one for each line"])


class _Loader(BoundedLoader):
    most_nodes = 50_000


class _Lines:
    """The line of each value in a YAML tree. Keys must be scalars."""

    def __init__(self, path: Path) -> None:
        self.found: dict[Keys, int] = {}
        self._path = path

    def visit(self, node: yaml.Node, keys: Keys) -> None:
        self.found.setdefault(keys, node.start_mark.line + 1)
        match node:
            case yaml.MappingNode():
                self._mapping(node, keys)
            case yaml.SequenceNode():
                for position, item in enumerate(node.value):
                    self.visit(item, (*keys, position))
            case _:
                pass

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> None:
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError([f"{self._path}:{line}: a list or mapping is used as a key; use plain text"])
            name = str(key.value)
            self.found[*keys, name] = line
            self.visit(value, (*keys, name))


def _syntax(path: Path, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    why = ", ".join(part for part in (error.context, error.problem) if part)
    remedy = "indent with spaces, not tabs" if "'\\t'" in why else "correct the line, or the one above"
    return f"{where}: is not YAML: {why}; {remedy}"


def _too_deep(path: Path) -> str:
    return f"{path}: is nested more than {MAX_LEVELS} levels deep, or contains itself; flatten it"


def _without_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key}: is set twice in one object; remove one of them")
        result[key] = value
    return result


def _deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(item, levels - 1) for item in inner)


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; the limit is {_MAX_DIGITS}")
    return int(digits)


def _not_a_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number; write a finite one")
