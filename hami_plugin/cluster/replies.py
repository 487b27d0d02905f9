"""What the API server answered, in words: replies become JSON or a ``ClusterError``."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from hami_plugin.errors import ClusterError

DEEPEST = 100
"""Levels of nesting. A pod needs about a dozen; what manages its fields, a few more."""
MAX_DIGITS = 40

_TOO_DEEP = "-Infinity"
"""A word that Python's parser hands to a function, and that no JSON has. Nobody else's number is that."""
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""Brackets, and texts as one: possessive, so that a quote without its counterpart costs no second look."""

_TERMINATED = "because it is being terminated"
"""How an API server refuses whatever is new in a namespace that is being deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read. ``cut`` names the objects of which a part was left out, and ``why``, the first reason."""

    value: Any
    cut: Sequence[str] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``verb`` and ``kind`` are RBAC's words; ``name`` is for people."""

    verb: str
    kind: str
    path: str
    name: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    @property
    def method(self) -> str:
        return {"create": "POST", "patch": "PATCH"}.get(self.verb, "GET")

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.name}".rstrip()


async def read(body: bytes) -> Reading:
    """JSON, however deep it is. ``ValueError`` for anything else.

    Whoever may create a pod may hide a tree of any depth in its ``managedFields``. What is nested too deeply is left
    out, and so is a number of too many digits: the object is read without it, and so are all others beside it. Bytes
    that are no UTF-8 are replaced. This takes several times as long, and so is done beside the event loop.
    """
    try:
        return Reading(value=json.loads(body))
    except RecursionError:
        why = f"it is nested more than {DEEPEST} levels deep"
    except ValueError as error:
        why = str(error)
    return await asyncio.to_thread(_Lenient(why).read, body)


class _Lenient:
    """Reads what Python's parser alone refuses."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._left_out = False
        self._cut: list[str] = []

    def read(self, body: bytes) -> Reading:
        text = body.decode("utf-8", "replace")
        self._left_out = "\ufffd" in text and not _is_utf8(body)
        value = json.loads(
            _without_depths(text), parse_constant=self._constant, parse_int=self._number, object_hook=self._object
        )
        if self._left_out:
            self._cut.append("")
        return Reading(value=value, cut=self._cut, why=self._why)

    def _constant(self, word: str) -> float | None:
        if word == _TOO_DEEP:
            self._left_out = True
            return None
        return float(word.lower())

    def _number(self, digits: str) -> int | None:
        if len(digits) <= MAX_DIGITS:
            return int(digits)
        self._left_out = True
        return None

    def _object(self, found: dict[str, Any]) -> dict[str, Any]:
        """Objects are read from the inside out: the first one with a name around a gap is the one that has it."""
        if self._left_out and (name := named(found)):
            self._left_out = False
            self._cut.append(name)
        return found


def _without_depths(text: str) -> str:
    """The same text, with a constant in place of whatever is nested too deeply."""
    kept: list[str] = []
    depth, start = 0, 0
    for match in _BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in "[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(text[start : match.start()])
        elif bracket in "]}":
            if depth == DEEPEST + 1:
                kept.append(_TOO_DEEP)
                start = match.end()
            depth -= 1
    if depth:
        raise ValueError(f"{abs(depth)} brackets have no counterpart")
    return "".join((*kept, text[start:]))


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def named(item: object) -> str:
    """Namespace and name of an object, as far as it has any."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(meta, dict):
        return ""
    return "/".join(part[:253] for key in ("namespace", "name") if isinstance(part := meta.get(key), str) and part)


async def decoded(call: Call, body: bytes) -> Reading:
    """A JSON object. ``ClusterError`` when the body is cut off or something else."""
    try:
        found = await read(body)
    except ValueError as error:
        raise _unreadable(call, body) from error
    if not isinstance(found.value, dict):
        raise _unreadable(call, body)
    return found


async def refused(call: Call, status: int, body: bytes, retry_after: float | None = None) -> ClusterError:
    """The error for an answer that is not a success; its text carries the server's own message."""
    message = await _message(body)
    if call.verb == "patch" and status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in message:
        # A patch that names another UID changes an immutable field: 422 from some servers, 409 from others.
        status = HTTPStatus.CONFLICT
    if call.verb == "create" and status == HTTPStatus.FORBIDDEN and _TERMINATED in message:
        # No right is missing: what is to be created has no place any more.
        status = HTTPStatus.GONE
    said = f": {message}" if message else ""
    return ClusterError(
        f"{call}: {status} {_phrase(status)}{said}",
        status=status,
        retry_after=retry_after,
        hint=_hint(call, status, retry_after),
    )


def unanswered(call: Call, why: object) -> ClusterError:
    """The error for a call that got no answer."""
    return ClusterError(
        f"{call}: no answer from the API server: {why}",
        hint="it is tried again; check the network between this node and the API server if it lasts",
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The header in seconds. A date is ignored: it would compare two machines' clocks."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _unreadable(call: Call, body: bytes) -> ClusterError:
    return ClusterError(
        f"{call}: the answer is not a JSON object ({len(body)} bytes, it begins {bytes(body[:40])!r})",
        hint="it is tried again; a proxy between us and the API server may cut or replace answers",
    )


async def _message(body: bytes) -> str:
    try:
        status = (await read(body)).value
    except ValueError:
        return body[:200].decode("utf-8", "replace").strip()
    return words(status.get("message")) if isinstance(status, dict) else ""


def words(message: object) -> str:
    """What an API server says, at a length that people read; empty when that is no text."""
    return message[:500] if isinstance(message, str) else ""


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else ""


def _hint(call: Call, status: int, wait: float | None) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "the API server has a problem of its own; it is tried again"
    too_large = "the same body will be refused again; correct or shorten what the message names"
    remedies: dict[int, str] = {
        HTTPStatus.UNAUTHORIZED: "check that the service account exists and that its token is mounted and not expired",
        HTTPStatus.FORBIDDEN: f'allow verb "{call.verb}" on "{call.kind}" in the ClusterRole of our service account',
        HTTPStatus.CONFLICT: "somebody changed or replaced the object; read it again before the next attempt",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: too_large,
        HTTPStatus.UNPROCESSABLE_ENTITY: too_large,
        HTTPStatus.TOO_MANY_REQUESTS: f"the API server is busy; writes wait {wait or 1:g} s",
    }
    return remedies.get(status, "")
