"""Several sources of values, merged in order of precedence, and which source set each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hami_plugin.config.documents import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLocation:
    """Where a value was written: the file and line, and the path as that file spells it."""

    where: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One source. ``places`` has the keys that the source spells differently, or whose line is known.

    ``lenient`` marks HAMi's files, where an unknown key is a warning and no error.
    """

    name: str
    values: Mapping[str, object]
    places: Mapping[Keys, ValueLocation] = field(default_factory=dict)
    lenient: bool = False

    def place(self, keys: Keys) -> ValueLocation:
        for size in range(len(keys), 0, -1):
            known = self.places.get(keys[:size])
            if known:
                return ValueLocation(where=known.where, path=dotted(keys[size:], known.path))
        return ValueLocation(where=self.name, path=dotted(keys))


class Layers:
    """A stack, lowest precedence first. ``values`` is the result: mappings merge key by key, all else is replaced."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)
        self.values: dict[str, Any] = {}
        for layer in self._layers:
            _overlay(self.values, layer.values)

    def source(self, keys: Keys) -> Layer | None:
        """The layer that sets the value at ``keys``."""
        return next((layer for layer in reversed(self._layers) if _holds(layer.values, keys)), None)

    def place(self, keys: Keys) -> ValueLocation:
        """Where the value at ``keys``, or the section around it, was written; ``configuration`` if nowhere."""
        for size in range(len(keys), 0, -1):
            layer = self.source(keys[:size])
            if layer:
                return layer.place(keys)
        return ValueLocation(where="configuration", path=dotted(keys))

    def at(self, keys: Keys) -> object:
        """The value at ``keys``, or None."""
        return _walk(self.values, keys)

    def drop(self, keys: Keys) -> None:
        """Remove one key from the result."""
        parent = _walk(self.values, keys[:-1])
        if isinstance(parent, dict):
            parent.pop(keys[-1], None)


def dotted(keys: Keys, start: str = "") -> str:
    """``("a", 0, "b")`` as ``a[0].b``."""
    text = start
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def nested(path: str, value: object) -> dict[str, object]:
    """``a.b`` and a value as ``{"a": {"b": value}}``."""
    result = value
    for key in reversed(path.split(".")):
        result = {key: result}
    assert isinstance(result, dict)
    return result


def without_none(value: object) -> object:
    """A copy without keys that hold None: a key without a value sets nothing."""
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return value


def _overlay(below: dict[str, Any], above: Mapping[str, object]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping):
            inner = below.get(key)
            below[key] = inner if isinstance(inner, dict) else {}
            _overlay(below[key], value)
        else:
            below[key] = _copy(value)


def _copy(value: object) -> object:
    """A copy that can change without changing its source."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _walk(value: object, keys: Keys) -> object:
    for key in keys:
        match value:
            case Mapping():
                value = value.get(key)
            case list() | tuple() if isinstance(key, int) and key < len(value):
                value = value[key]
            case _:
                return None
    return value


def _holds(value: object, keys: Keys) -> bool:
    parent = _walk(value, keys[:-1])
    match parent:
        case Mapping():
            return not keys or keys[-1] in parent
        case list() | tuple():
            return isinstance(keys[-1], int) and keys[-1] < len(parent)
        case _:
            return False
