"""What all annotations share: text of bounded size, 32-bit numbers, and JSON that cannot exhaust the reader.

Anybody who may edit a pod writes these texts, so reading is linear, and whatever is wrong is a ``WireError``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from hami_plugin.errors import WireError

MAX_BYTES = 256 * 1024
"""The API server's limit for all annotations of one object."""

MAX_POD_BYTES = 64 * 1024
"""What is read of one text that a pod's author may write. A decision about 128 devices has 8 KiB."""

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MAX = 2**63 - 1

T = TypeVar("T")

Amount = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_MAX_DIGITS = 64
_SHOWN = 64

# Go's encoder writes these five inside strings as escapes. None of them occurs in JSON outside a string.
_GO_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def shown(value: object) -> str:
    """A value as an error message may quote it: short, and without characters that disturb a log."""
    match value:
        case str():
            return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
        case dict() | list():
            return "a map" if isinstance(value, dict) else "a list"
        case int() if value.bit_length() > _SHOWN * 8:
            return f"a number of {value.bit_length()} bits"
        case _:
            return str(value)[:_SHOWN]


def bounded(text: str, what: str, most: int = MAX_BYTES) -> str:
    """``text``, if it has ``most`` bytes at most; without that, if it is no larger than an annotation can be."""
    if len(text) > most or len(text.encode("utf-8", "surrogatepass")) > most:
        raise WireError(f"{what}: longer than {most} bytes", hint="no scheduler writes so much; find out who did")
    return text


def printable(text: str, what: str, *, without: str = "") -> str:
    """``text``, if it holds no control character, no half of a surrogate pair, and none of ``without``."""
    found = None if text.isprintable() else _UNPRINTABLE.search(text)
    at = found.start() if found else min((text.index(sign) for sign in without if sign in text), default=-1)
    if at >= 0:
        raise WireError(f"{what}: {shown(text)} contains {shown(text[at])} at {at}")
    return text


def in_range(value: int, what: str, low: int = INT32_MIN, high: int = INT32_MAX) -> int:
    """``value``, if it is within bounds. HAMi's numbers wrap around instead."""
    if not low <= value <= high:
        raise WireError(f"{what}: {shown(value)} is not within {low} to {high}")
    return value


def integer(text: str, what: str, low: int = INT32_MIN, high: int = INT32_MAX) -> int:
    """A decimal number as Go's ``ParseInt`` reads it: a sign, ASCII digits, and nothing around them."""
    if not _INTEGER.fullmatch(text):
        raise WireError(f"{what}: {shown(text)} is not a whole number")
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) > len(str(INT64_MAX)):
        raise WireError(f"{what}: {shown(text)} is not within {low} to {high}")
    return in_range(-int(digits) if text.startswith("-") else int(digits), what, low, high)


def from_usual_json(text: str, usual: msgspec.json.Decoder[T], what: str) -> T | None:
    """Parse JSON that is as nearly everybody writes it, which is several times as quick; None for any other, and for
    what is no JSON: ``from_json`` tells.
    """
    try:
        return usual.decode(bounded(text, what))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def from_json(text: str, what: str, most: int = MAX_BYTES) -> Any:
    """Parse JSON, refusing what Go refuses (NaN, infinities) and what would take long (deep nesting, long numbers)."""
    bounded(text, what, most)
    try:
        return _DECODER.decode(text)
    except WireError as error:
        raise WireError(f"{what}: {error}") from error
    except json.JSONDecodeError as error:
        raise WireError(f"{what}: no JSON at {error.pos}, {shown(text[error.pos : error.pos + 16])}") from error
    except RecursionError as error:
        raise WireError(f"{what}: JSON that is nested too deeply") from error


def to_json(value: Any, what: str) -> str:
    """Compact JSON, with the characters escaped that Go's encoder escapes."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise WireError(f"{what}: {error}", hint="only text, finite numbers, lists and maps can be written") from error
    return text.translate(_GO_ESCAPES)


def plain(value: Any, what: str, depth: int = 16) -> Any:
    """Free-form JSON, checked: no deeper than ``depth``, printable text, and maps by key, which is Go's order."""
    if not depth:
        raise WireError(f"{what}: nested too deeply")
    match value:
        case Mapping():
            keys = sorted(text_in(key, what) for key in value)
            return {key: plain(value[key], f"{what}.{shown(key)}", depth - 1) for key in keys}
        case list() | tuple():
            return [plain(item, what, depth - 1) for item in value]
        case str():
            return printable(value, what)
        case _:
            return value


def objects(value: Any, what: str) -> list[Mapping[str, Any]]:
    """A parsed list of objects. ``null`` is an empty list, as for HAMi."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise WireError(f"{what}: {shown(value)} is not a list")
    for position, item in enumerate(value):
        if not isinstance(item, dict):
            raise WireError(f"{what}[{position}]: {shown(item)} is not an object")
    return value


def text_in(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{what}: {shown(value)} is not a string")
    return printable(value, what)


def text_of(item: Mapping[str, Any], key: str, what: str) -> str:
    """A string member; empty when it is missing or null."""
    value = item.get(key)
    return "" if value is None else text_in(value, f"{what}.{key}")


def object_of(item: Mapping[str, Any], key: str, what: str) -> Mapping[str, Any] | None:
    """An object member; None when it is missing or null."""
    value = item.get(key)
    if value is not None and not isinstance(value, dict):
        raise WireError(f"{what}.{key}: {shown(value)} is not an object")
    return value


def int_of(item: Mapping[str, Any], key: str, what: str, low: int = INT32_MIN, high: int = INT32_MAX) -> int:
    """An integer member; 0 when it is missing or null."""
    value = item.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise WireError(f"{what}.{key}: {shown(value)} is not a whole number")
    return in_range(value, f"{what}.{key}", low, high)


def bool_of(item: Mapping[str, Any], key: str, what: str) -> bool:
    """A boolean member; False when it is missing or null."""
    value = item.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise WireError(f"{what}.{key}: {shown(value)} is neither true nor false")
    return value


def _json_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise WireError(f"a number of {len(text)} digits")
    return int(text)


def _json_float(text: str) -> float:
    if len(text) > _MAX_DIGITS:
        raise WireError(f"a number of {len(text)} digits")
    value = float(text)
    if math.isinf(value):
        raise WireError(f"{text} is too large")
    return value


def _no_constant(text: str) -> NoReturn:
    raise WireError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_json_integer, parse_float=_json_float, parse_constant=_no_constant)
