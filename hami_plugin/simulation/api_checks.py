"""What a simulated API server refuses to store, as a real one does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hami_plugin.simulation.api_kinds import RESOURCES, Object, Resource, StatusError

ANNOTATION_BYTES = 256 * 1024
_ANNOTATION_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def check_changeable(resource: str, before: Object, patch: Mapping[str, Any]) -> None:
    """A patch for another version conflicts; one for another UID is an invalid change to an immutable field."""
    meta, present = patch.get("metadata") or {}, before["metadata"]
    if (version := meta.get("resourceVersion")) and version != present["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise StatusError(409, "Conflict", not_fulfilled(resource, present["name"], why))
    if (uid := meta.get("uid")) and uid != present["uid"]:
        why = f'metadata.uid: Invalid value: "{uid}": field is immutable'
        raise StatusError(422, "Invalid", f'{RESOURCES[resource].kind} "{present["name"]}" is invalid: {why}')


def validate(resource: Resource, item: Object) -> None:
    """``StatusError`` for annotations that no object can have, and for an Event beside its object's namespace."""
    meta = item["metadata"]
    annotations = meta.get("annotations") or {}
    if not all(isinstance(value, str) for value in annotations.values()):
        raise StatusError(400, "BadRequest", "metadata.annotations: cannot unmarshal a value that is not a string")
    problems = [f'metadata.annotations: Invalid value: "{key}"' for key in annotations if not _named_well(key)]
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATION_BYTES:
        problems.append(f"metadata.annotations: Too long: may not be more than {ANNOTATION_BYTES} bytes")
    if resource.kind == "Event" and (item.get("involvedObject", {}).get("namespace") or "default") != meta["namespace"]:
        problems.append("involvedObject.namespace: Invalid value: does not match event.namespace")
    if problems:
        raise StatusError(422, "Invalid", f'{resource.kind} "{meta["name"]}" is invalid: {"; ".join(problems)}')


def _named_well(key: str) -> bool:
    return _ANNOTATION_KEY.fullmatch(key) is not None


def not_fulfilled(resource: str, name: str, why: str) -> str:
    """The message of a conflict."""
    return f'Operation cannot be fulfilled on {resource} "{name}": {why}'
