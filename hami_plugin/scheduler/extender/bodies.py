"""Bodies of requests: how many bytes of them there may be at once, and the JSON in them, read in slices."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from json.decoder import JSONDecodeError, JSONDecoder
from typing import Any

from hami_plugin.model.pausing import Pausing

MAX_DEPTH = 64
"""So deep may values lie in each other. Pods and nodes need some twenty levels."""
MAX_VALUES = 400_000
"""So many values may a request have that anybody may send, about: what parts them is counted, also within texts."""

_STEPPED = 3
_ESCAPED_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_NEXT = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


class Budget:
    """Bytes that may be taken at once. A part of another budget takes of both."""

    def __init__(self, most: int, *, of: Budget | None = None) -> None:
        self.most = most
        self._whole = of
        self._taken = 0

    @property
    def left(self) -> int:
        own = self.most - self._taken
        return min(own, self._whole.left) if self._whole else own

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, size: int) -> bool:
        """Whether so many were left; then they are taken."""
        if size > self.left:
            return False
        self.give_back(-size)
        return True

    def give_back(self, size: int) -> None:
        self._taken -= size
        if self._whole:
            self._whole.give_back(size)

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """What is taken by it is given back in the end."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self.give_back(lease.size)


class Lease:
    """What one request has of a budget."""

    def __init__(self, budget: Budget) -> None:
        self.size = 0
        self.budget = budget

    def take(self, size: int) -> bool:
        """Whether so many more were left; then they are taken."""
        if not self.budget.take(size):
            return False
        self.size += size
        return True


class NestedTooDeepError(ValueError):
    """JSON whose values lie too deep in each other."""

    def __init__(self) -> None:
        super().__init__(f"its values lie more than {MAX_DEPTH} levels deep in each other")


def reading(body: bytes) -> Pausing[Any]:
    """The value, with a pause after each part of it. ``ValueError`` for what is no JSON as Kubernetes reads it."""
    text = body.decode()
    value, end = yield from _value(text, _space(text, 0), _STEPPED)
    if _space(text, end) != len(text):
        raise JSONDecodeError("Extra data", text, end)
    if _ESCAPED_PAIR.search(body):
        yield
        _whole_pairs(value)
    return value


def _whole_pairs(value: Any) -> None:
    """``ValueError`` for half a pair of surrogates, which no text in UTF-8 can hold: nobody could be told of it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text has half a surrogate pair in it") from error


def values(body: bytes) -> int:
    """At least how many values there are; more where texts have commas and brackets in them."""
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:64]} is too large a number")
    return number


_DECODER = JSONDecoder(parse_constant=_constant, parse_float=_finite)


def _value(text: str, at: int, levels: int) -> Pausing[tuple[Any, int]]:
    """A value that begins here, and where it ends. Objects and lists are gone through for so many levels."""
    opening = text[at : at + 1]
    if levels and opening == "{":
        return (yield from _object(text, at + 1, levels - 1))
    if levels and opening == "[":
        return (yield from _list(text, at + 1, levels - 1))
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError as error:
        raise NestedTooDeepError from error
    yield
    if opening in ("{", "["):
        yield from _bounded(value, MAX_DEPTH - _STEPPED + levels)
    return value, end


def _object(text: str, at: int, levels: int) -> Pausing[tuple[dict[str, Any], int]]:
    found: dict[str, Any] = {}
    at = _space(text, at)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = _DECODER.raw_decode(text, at)
        if not (colon := _COLON.match(text, at)):
            raise JSONDecodeError("Expecting ':' delimiter", text, _space(text, at))
        found[key], at = yield from _value(text, colon.end(), levels)
        if not (comma := _NEXT.match(text, at)):
            return found, _end(text, at, "}")
        at = comma.end()


def _list(text: str, at: int, levels: int) -> Pausing[tuple[list[Any], int]]:
    found: list[Any] = []
    at = _space(text, at)
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        value, at = yield from _value(text, at, levels)
        found.append(value)
        if not (comma := _NEXT.match(text, at)):
            return found, _end(text, at, "]")
        at = comma.end()


def _end(text: str, at: int, sign: str) -> int:
    at = _space(text, at)
    if text[at : at + 1] != sign:
        raise JSONDecodeError("Expecting ',' delimiter", text, at)
    return at + 1


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere, if only nothing


def _bounded(value: Any, levels: int) -> Pausing[None]:
    """``NestedTooDeepError`` where more levels lie in each other."""
    level = [value]
    while level:
        if not levels:
            raise NestedTooDeepError
        below: list[Any] = []
        for one in level:
            inside = one.values() if isinstance(one, dict) else one
            below += [each for each in inside if isinstance(each, dict | list)]
            yield
        level, levels = below, levels - 1
