"""Plain values as YAML in the block style: indented, one entry a line, quoted wherever a reader could misread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# Starts with a letter or "/", has no space, and no ":" at its end: nothing but a text, in every version of YAML ...
_BARE = re.compile(r"[A-Za-z/]([A-Za-z0-9_./=,@+:-]*[A-Za-z0-9_./=,@+-])?", re.ASCII)
# ... unless some YAML version reads it as a boolean or null.
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def yaml_text(value: object) -> str:
    """A document of mappings, lists, texts, numbers and truth values."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    match value:
        case Mapping() if value:
            for key, entry in value.items():
                yield from _mapping_entry(_scalar(key), entry)
        case list() if value:
            for entry in value:
                first, *others = _lines(entry)
                yield f"- {first}"
                yield from (f"  {line}" for line in others)
        case _:
            yield _scalar(value)


def _mapping_entry(key: str, value: object) -> Iterator[str]:
    if isinstance(value, (Mapping, list)) and value:
        yield f"{key}:"
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{key}: {_scalar(value)}"


def _scalar(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            bare = _BARE.fullmatch(value) and value.lower() not in _RESERVED
            return value if bare else f'"{"".join(map(_quoted, value))}"'
        case Mapping():
            return "{}"
        case list():
            return "[]"
        case _:
            raise TypeError(f"{value!r} has no place in a document; use mappings, lists, texts, numbers, true or false")


def _quoted(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
