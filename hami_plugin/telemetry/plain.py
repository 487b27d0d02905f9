"""Log events made of plain values, so that nothing in a name or message can forge a line or drive a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

_LONGEST = 8192
_DEEPEST = 6
_MOST_BITS = 1024

# Control characters begin lines and drive terminals; the bidirectional ones reorder what is read.
_CODES = (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\u{code:04x}" for code in _CODES} | {9: "\\t", 10: "\\n", 13: "\\r"}
_ESCAPES_IN_LINES = {code: text for code, text in _ESCAPES.items() if code != 10}


def escaped(text: str, *, keep_lines: bool = False) -> str:
    """``text`` with every control character spelt out. A traceback keeps its lines."""
    return text.translate(_ESCAPES_IN_LINES if keep_lines else _ESCAPES)


def plain(value: object, depth: int = 0) -> object:
    """``value`` as JSON's types; long text is cut, and what has no such type is told in its own words."""
    match value:
        case None | bool() | int() | float():
            return _number(value)
        case str():
            return _cut(str(value))
        case Mapping() if depth < _DEEPEST:
            return {_cut(_words(key)): plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if depth < _DEEPEST:
            return [plain(item, depth + 1) for item in _ordered(value)]
        case _:
            return _cut(_words(value))


def _number(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return str(value)  # JSON has no word for it
        case int() if value.bit_length() > _MOST_BITS:
            return f"an integer of {value.bit_length()} bits"
        case _:
            return value


def _ordered(values: Iterable[object]) -> Iterable[object]:
    return sorted(values, key=_words) if isinstance(values, set | frozenset) else values


def _words(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001  # a log line must not fail because of what it is about
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more)"
