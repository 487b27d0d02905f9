"""YAML and JSON text as plain values, each with the line it came from. What is doubtful is refused, not guessed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from hami_plugin.bounded_yaml import MOST_LEVELS, BoundedLoader, TooDeepError, TooLargeError
from hami_plugin.config.files import read_text
from hami_plugin.errors import ConfigError

Keys = tuple[str | int, ...]
"""Where a value stands in a document: keys of mappings and positions in lists, from the outside in."""

_MAX_DIGITS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file. ``lines`` count from 1; JSON has none."""

    path: Path
    value: object
    lines: Mapping[Keys, int] = field(default_factory=dict)


def read_yaml(path: Path) -> Document:
    """Read one YAML document. Duplicate keys, several documents and foreign tags are errors; an empty file is None."""
    text = read_text(path)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return Document(path=path, value=None)
        survey = _Survey(path)
        survey.visit(root, ())
        return Document(path=path, value=loader.construct_document(root), lines=survey.lines)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax(path, error)]) from error
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise ConfigError([f"{path}: is not YAML: {why}; remove the character"]) from error
    except TooDeepError as error:
        raise ConfigError([_too_deep(path)]) from error
    except TooLargeError as error:
        raise ConfigError(
            [f"{path}: holds more than {_Loader.most_nodes} values, aliases included; shorten it"]
        ) from error
    except ValueError as error:  # a date or number that looks right and is not, as 2024-13-45
        raise ConfigError([f"{path}: has an impossible value: {error}; put text in quotes"]) from error


def read_json(path: Path) -> Document:
    """Read one JSON document. Duplicate keys, NaN and Infinity are errors."""
    text = read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_once_each, parse_constant=_not_a_constant, parse_int=_whole)
        if _deeper(value, MOST_LEVELS):
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
    """A mapping, which is empty when nothing was written. Anything else raises at once: a later layer would hide it."""
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


class _Survey:
    """Walks a YAML tree before it becomes values: lines and duplicates."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[Keys, int] = {}
        self._path = path

    def visit(self, node: yaml.Node, keys: Keys) -> None:
        self.lines.setdefault(keys, node.start_mark.line + 1)
        match node:
            case yaml.MappingNode():
                self._mapping(node, keys)
            case yaml.SequenceNode():
                for position, item in enumerate(node.value):
                    self.visit(item, (*keys, position))
            case _:
                pass

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> None:
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError([f"{self._path}:{line}: a list or mapping is used as a key; write a plain word"])
            name = str(key.value)
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise ConfigError(
                    [f"{self._path}:{line}: {name}: stands twice, first in line {seen[name]}; remove one of them"]
                )
            seen[name] = line
            self.lines[*keys, name] = line
            self.visit(value, (*keys, name))


def _syntax(path: Path, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    why = ", ".join(part for part in (error.context, error.problem) if part)
    remedy = "indent with spaces, not tabs" if "'\\t'" in why else "correct the line, or the one above"
    return f"{where}: is not YAML: {why}; {remedy}"


def _too_deep(path: Path) -> str:
    return f"{path}: is nested more than {MOST_LEVELS} levels deep, or contains itself; flatten it"


def _once_each(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key}: stands twice in one object; remove one of them")
        result[key] = value
    return result


def _deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(item, levels - 1) for item in inner)


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; {_MAX_DIGITS} are enough for everything here")
    return int(digits)


def _not_a_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON number; write a finite one")
