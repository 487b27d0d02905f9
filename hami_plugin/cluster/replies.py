"""What the API server answered, in words: replies become JSON or a ``ClusterError``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from hami_plugin.errors import ClusterError

_TERMINATED = "because it is being terminated"
"""How an API server refuses whatever is new in a namespace that is being deleted."""


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


def decoded(call: Call, body: bytes) -> dict[str, Any]:
    """A JSON object. ``ClusterError`` when the body is cut off or something else."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise _unreadable(call, body) from error
    if not isinstance(value, dict):
        raise _unreadable(call, body)
    return value


def refused(call: Call, status: int, body: bytes, retry_after: float | None = None) -> ClusterError:
    """The error for an answer that is not a success; its text carries the server's own message."""
    message = _message(body)
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


def _message(body: bytes) -> str:
    try:
        status = json.loads(body)
    except ValueError:
        return body[:200].decode("utf-8", "replace").strip()
    return str(status.get("message", ""))[:500] if isinstance(status, dict) else ""


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
