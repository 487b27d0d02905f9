"""Which version of the specification a document needs: the least that knows every field in use.

A runtime refuses a spec whose ``cdiVersion`` is older than its fields, and one that is newer than the runtime itself.
So the least version is the one that most runtimes read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
"""The released versions with these fields, in order. 0.8.0 and 1.0.0 brought no field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A field in use that asks for a version. ``device`` is the position of the device, None for the spec's own."""

    version: str
    device: int | None = None
    field: str


def least_version(document: Mapping[str, Any]) -> str:
    """The least version that knows all fields of a document, given as plain values."""
    return max((need.version for need in needs(document)), key=VERSIONS.index, default=VERSIONS[0])


def needs(document: Mapping[str, Any]) -> Iterator[Need]:
    """What in a document asks for more than the first version. A malformed part asks for nothing."""
    if "." in str(document.get("kind")).partition("/")[2]:
        yield Need(version="0.6.0", field="kind")
    yield from _needs_of_part(document, None)
    for position, device in enumerate(_items(document.get("devices"))):
        if str(device.get("name"))[:1].isdecimal():
            yield Need(version="0.5.0", device=position, field="name")
        yield from _needs_of_part(device, position)


def _needs_of_part(part: Mapping[str, Any], device: int | None) -> Iterator[Need]:
    """What annotations and edits, of the spec or of one device, ask for."""
    if part.get("annotations"):
        yield Need(version="0.6.0", device=device, field="annotations")
    edits = part.get("containerEdits")
    if not isinstance(edits, Mapping):
        return
    for position, mount in enumerate(_items(edits.get("mounts"))):
        if mount.get("type"):
            yield Need(version="0.4.0", device=device, field=f"containerEdits.mounts[{position}].type")
    for position, node in enumerate(_items(edits.get("deviceNodes"))):
        if node.get("hostPath"):
            yield Need(version="0.5.0", device=device, field=f"containerEdits.deviceNodes[{position}].hostPath")
    if edits.get("intelRdt") is not None:
        yield Need(version="0.7.0", device=device, field="containerEdits.intelRdt")
    if edits.get("additionalGids"):
        yield Need(version="0.7.0", device=device, field="containerEdits.additionalGids")


def _items(value: object) -> list[Mapping[str, Any]]:
    """The entries of a list that are mappings, at their places; others stand as empty ones."""
    return [item if isinstance(item, Mapping) else {} for item in value] if isinstance(value, list) else []
