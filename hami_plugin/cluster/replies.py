"""Responses of the API server, as JSON or as a ``ClusterError``."""

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
"""Levels of nesting. A pod needs about a dozen, its managedFields a few more."""
MAX_DIGITS = 40

_TOO_DEEP = "-Infinity"
"""A constant that Python's parser passes to a function, and that no JSON has."""
_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""Brackets, and whole strings: possessive, so that an unbalanced quote does not cause backtracking."""

_TERMINATED = "because it is being terminated"
"""The message of an API server that refuses objects in a namespace that is being deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Parsed JSON. ``truncated`` names objects that were read only in part, and ``why`` is the first reason."""

    value: Any
    truncated: Sequence[str] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``verb`` and ``kind`` are those of RBAC; ``name`` is for messages."""

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
    """Parse JSON of any depth. ``ValueError`` for anything else.

    A pod's author can hide a tree of any depth in its ``managedFields``. Values that are nested too deeply, and numbers
    with too many digits, are left out, so that all other objects can be read. Invalid UTF-8 is replaced. This takes
    several times as long, and so runs beside the event loop.
    """
    try:
        return Reading(value=json.loads(body))
    except RecursionError:
        why = f"it is nested more than {DEEPEST} levels deep"
    except ValueError as error:
        why = str(error)
    return await asyncio.to_thread(_Lenient(why).read, body)


class _Lenient:
    """Parses JSON that Python's parser alone refuses."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._left_out = False
        self._truncated: list[str] = []

    def read(self, body: bytes) -> Reading:
        text = body.decode("utf-8", "replace")
        self._left_out = "\ufffd" in text and not _is_utf8(body)
        value = json.loads(
            _without_depths(text), parse_constant=self._constant, parse_int=self._number, object_hook=self._object
        )
        if self._left_out:
            self._truncated.append("")
        return Reading(value=value, truncated=self._truncated, why=self._why)

    def _constant(self, name: str) -> float | None:
        if name == _TOO_DEEP:
            self._left_out = True
            return None
        return float(name.lower())

    def _number(self, digits: str) -> int | None:
        if len(digits) <= MAX_DIGITS:
            return int(digits)
        self._left_out = True
        return None

    def _object(self, found: dict[str, Any]) -> dict[str, Any]:
        """Objects are parsed from the inside out: the first with a name around a gap is the truncated one."""
        if self._left_out and (name := named(found)):
            self._left_out = False
            self._truncated.append(name)
        return found


def _without_depths(text: str) -> str:
    """The text with a constant in place of values that are nested too deeply."""
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
        raise ValueError(f"{abs(depth)} brackets are unbalanced")
    return "".join((*kept, text[start:]))


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def named(item: object) -> str:
    """An object's namespace and name, as far as it has them."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(meta, dict):
        return ""
    return "/".join(part[:253] for key in ("namespace", "name") if isinstance(part := meta.get(key), str) and part)


async def decoded(call: Call, body: bytes) -> Reading:
    """Parse a JSON object. ``ClusterError`` if the body is truncated or anything else."""
    try:
        found = await read(body)
    except ValueError as error:
        raise _unreadable(call, body) from error
    if not isinstance(found.value, dict):
        raise _unreadable(call, body)
    return found


async def refused(call: Call, status: int, body: bytes, retry_after: float | None = None) -> ClusterError:
    """The error for a failed request, with the server's own message."""
    message = await _message(body)
    if call.verb == "patch" and status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in message:
        # A patch that names another UID changes an immutable field: 422 from some servers, 409 from others.
        status = HTTPStatus.CONFLICT
    if call.verb == "create" and status == HTTPStatus.FORBIDDEN and _TERMINATED in message:
        # No permission is missing: the namespace is going away.
        status = HTTPStatus.GONE
    detail = f": {message}" if message else ""
    return ClusterError(
        f"{call}: {status} {_phrase(status)}{detail}",
        status=status,
        retry_after=retry_after,
        hint=_hint(call, status, retry_after),
    )


def unanswered(call: Call, why: object) -> ClusterError:
    """The error for a request without a response."""
    return ClusterError(
        f"{call}: no answer from the API server: {why}",
        hint="it is retried; if it persists, check the network between this node and the API server",
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The Retry-After header in seconds. A date is ignored, since it would compare two machines' clocks."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _unreadable(call: Call, body: bytes) -> ClusterError:
    return ClusterError(
        f"{call}: the response is not a JSON object ({len(body)} bytes, starting with {bytes(body[:40])!r})",
        hint="it is retried; a proxy in front of the API server may truncate or replace responses",
    )


async def _message(body: bytes) -> str:
    try:
        status = (await read(body)).value
    except ValueError:
        return body[:200].decode("utf-8", "replace").strip()
    return message_text(status.get("message")) if isinstance(status, dict) else ""


def message_text(message: object) -> str:
    """A message of an API server, cut to a readable length; empty if it is not text."""
    return message[:500] if isinstance(message, str) else ""


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else ""


def _hint(call: Call, status: int, wait: float | None) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "the API server has an internal problem; it is retried"
    too_large = "the same body will be refused again; correct or shorten the field in the message"
    remedies: dict[int, str] = {
        HTTPStatus.UNAUTHORIZED: "check that the service account exists and that its token is mounted and not expired",
        HTTPStatus.FORBIDDEN: f'allow verb "{call.verb}" on "{call.kind}" in the ClusterRole of our service account',
        HTTPStatus.CONFLICT: "the object was changed or replaced; read it again before the next attempt",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: too_large,
        HTTPStatus.UNPROCESSABLE_ENTITY: too_large,
        HTTPStatus.TOO_MANY_REQUESTS: f"the API server is busy; writes wait {wait or 1:g} s",
    }
    return remedies.get(status, "")
