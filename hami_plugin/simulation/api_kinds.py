"""What a simulated API server serves: kinds of objects, changes of them, which a watcher asks for, and refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]

_SELECTOR = re.compile(r"([A-Za-z.]+)(!=|==|=)(.*)")


class StatusError(Exception):
    """A refusal, as the ``Status`` object that goes to the client."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    @property
    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of object that is served, and the fields that may select it."""

    plural: str
    kind: str
    namespaced: bool
    fields: frozenset[str]


_NAMED = frozenset({"metadata.name", "metadata.namespace"})
RESOURCES: Mapping[str, Resource] = {
    resource.plural: resource
    for resource in (
        Resource(plural="nodes", kind="Node", namespaced=False, fields=_NAMED),
        Resource(plural="pods", kind="Pod", namespaced=True, fields=_NAMED | {"spec.nodeName", "status.phase"}),
        Resource(plural="resourcequotas", kind="ResourceQuota", namespaced=True, fields=_NAMED),
        Resource(
            plural="events",
            kind="Event",
            namespaced=True,
            fields=_NAMED | {"involvedObject.name", "involvedObject.kind", "involvedObject.uid", "reason", "type"},
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write: the object before and after; None where it did not exist."""

    version: int
    resource: str
    before: Object | None
    after: Object | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which objects of a resource a list or watch asks for."""

    resource: Resource
    namespace: str = ""
    wanted: tuple[tuple[str, str, bool], ...] = ()

    @classmethod
    def parse(cls, resource: Resource, namespace: str, selector: str) -> Filter:
        wanted = []
        for term in filter(None, selector.split(",")):
            parts = _SELECTOR.fullmatch(term)
            if parts is None or parts[1] not in resource.fields:
                raise StatusError(400, "BadRequest", f"field label not supported: {term}")
            wanted.append((parts[1], parts[3], parts[2] != "!="))
        return cls(resource=resource, namespace=namespace, wanted=tuple(wanted))

    def accepts(self, item: Object | None) -> bool:
        if item is None or (self.namespace and item["metadata"].get("namespace") != self.namespace):
            return False
        return all((_field(item, path) == value) is equal for path, value, equal in self.wanted)

    def event(self, change: Change) -> Object | None:
        """The change as this watcher sees it: an object that stops matching is deleted for it."""
        if change.resource != self.resource.plural:
            return None
        match self.accepts(change.before), self.accepts(change.after):
            case False, True:
                return {"type": "ADDED", "object": change.after}
            case True, True:
                return {"type": "MODIFIED", "object": change.after}
            case True, False:
                gone = change.after or versioned(change.before or {}, change.version)
                return {"type": "DELETED", "object": gone}
            case _:
                return None


def _field(item: Object, path: str) -> str:
    value: Any = item
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return str(value or "")


def versioned(item: Object, version: int) -> Object:
    """The object as of another version."""
    return {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}
