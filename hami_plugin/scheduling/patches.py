"""A JSON patch (RFC 6902): what turns one document into another, as admission answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Operation = Mapping[str, Any]
"""``op``, ``path``, and the ``value`` unless something is removed."""


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Operation, ...]:
    """The operations in order of their paths. Lists of another length are replaced whole."""
    return tuple(sorted(_differences("", before, after), key=lambda one: str(one["path"])))


def _differences(path: str, before: Any, after: Any) -> list[Operation]:
    if before is after:  # what was taken over as it is may be large, and nested deep
        return []
    match before, after:
        case Mapping(), Mapping():
            return _of_maps(path, before, after)
        case list(), list() if len(before) == len(after):
            pairs = enumerate(zip(before, after, strict=True))
            return [one for n, (old, new) in pairs for one in _differences(f"{path}/{n}", old, new)]
    return [] if before == after else [{"op": "replace", "path": path, "value": after}]


def _of_maps(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Operation]:
    found: list[Operation] = []
    for key in {**before, **after}:
        place = f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"
        if key not in after:
            found.append({"op": "remove", "path": place})
        elif key not in before:
            found.append({"op": "add", "path": place, "value": after[key]})
        else:
            found += _differences(place, before[key], after[key])
    return found
