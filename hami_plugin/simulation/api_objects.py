"""The objects of a simulated API server: versions, history and merge patches."""

from __future__ import annotations

import copy
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hami_plugin.aio import Watched
from hami_plugin.simulation.api_checks import check_changeable, not_fulfilled, validate
from hami_plugin.simulation.api_kinds import RESOURCES, Change, Filter, Key, Object, Resource, StatusError, versioned

HISTORY = 20_000


class ObjectStore:
    """All objects. Stored objects are never changed in place, so they can be handed out."""

    def __init__(self) -> None:
        self.version = Watched(1)
        self._objects: dict[str, dict[Key, Object]] = {plural: {} for plural in RESOURCES}
        self._history: list[Change] = []
        self._compacted = 0

    def get(self, resource: str, namespace: str, name: str) -> Object:
        try:
            return self._objects[resource][namespace, name]
        except KeyError:
            raise StatusError(404, "NotFound", f'{resource} "{name}" not found') from None

    def select(self, wanted: Filter) -> list[tuple[Key, Object]]:
        """Matching objects in the order of their keys."""
        return sorted(
            ((key, item) for key, item in self._objects[wanted.resource.plural].items() if wanted.accepts(item)),
            key=lambda pair: pair[0],
        )

    def create(self, resource: Resource, namespace: str, manifest: Mapping[str, Any]) -> Object:
        item = copy.deepcopy(dict(manifest))
        meta = item.setdefault("metadata", {})
        namespace = (namespace or meta.get("namespace") or "default") if resource.namespaced else ""
        name = meta.setdefault("name", f"{meta.get('generateName', '')}{uuid.uuid4().hex[:5]}")
        if (namespace, name) in self._objects[resource.plural]:
            raise StatusError(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()} | ({"namespace": namespace} if namespace else {})
        item |= {"apiVersion": "v1", "kind": resource.kind}
        if resource.kind == "Pod":
            item["spec"] = {"schedulerName": "default-scheduler"} | item.get("spec", {})
            item["status"] = {"phase": "Pending"} | item.get("status", {})
        validate(resource, item)
        return self._store(resource.plural, (namespace, name), None, item)

    def patch(
        self, key: tuple[str, str, str], patch: Mapping[str, Any], *, part: str = "", keep: bool = True
    ) -> Object:
        """Merge ``patch`` into (resource, namespace, name). Without ``keep`` the answer is right, but lost."""
        resource, namespace, name = key
        before = self.get(resource, namespace, name)
        check_changeable(resource, before, patch)
        after: Object = merged(before, patch)
        for fixed in ("uid", "name", "namespace", "creationTimestamp", "resourceVersion"):
            _restore(after["metadata"], before["metadata"], fixed)
        _restore(after, before, "spec" if part == "status" else "status")
        if resource == "pods" and after.get("spec") != before.get("spec"):
            raise StatusError(
                422, "Invalid", f'Pod "{name}" is invalid: spec: Forbidden: pod updates may not change it'
            )
        validate(RESOURCES[resource], after)
        if after == before:
            return before
        if not keep:
            return versioned(after, self.version.value + 1)
        return self._store(resource, (namespace, name), before, after)

    def bind(self, namespace: str, name: str, node: str, *, uid: str = "", version: str = "") -> Object:
        before = self.get("pods", namespace, name)
        if uid and uid != before["metadata"]["uid"]:
            raise StatusError(409, "Conflict", not_fulfilled("pods", name, _other_uid(uid, before)))
        if version and version != before["metadata"]["resourceVersion"]:
            why = f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: "
            raise StatusError(409, "Conflict", not_fulfilled("pods", name, why + before["metadata"]["resourceVersion"]))
        if before["metadata"].get("deletionTimestamp"):
            raise StatusError(409, "Conflict", f"pod {name} is being deleted, cannot be assigned to a host")
        if bound := before["spec"].get("nodeName"):
            raise StatusError(409, "Conflict", f'pod {name} is already assigned to node "{bound}"')
        return self._store("pods", (namespace, name), before, merged(before, {"spec": {"nodeName": node}}))

    def delete(self, key: tuple[str, str, str], *, uid: str = "", grace: int = 0) -> Object:
        """Remove (resource, namespace, name), or with ``grace`` only mark it, as a pod whose containers still stop."""
        resource, namespace, name = key
        before = self.get(resource, namespace, name)
        if uid and uid != before["metadata"]["uid"]:
            raise StatusError(409, "Conflict", not_fulfilled(resource, name, _other_uid(uid, before)))
        if grace:
            mark = {"metadata": {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}}
            return self._store(resource, (namespace, name), before, merged(before, mark))
        del self._objects[resource][namespace, name]
        self._record(resource, before, None)
        return before

    def changes(self, since: int) -> Sequence[Change]:
        """What happened after version ``since``; 410 when that is no longer known."""
        if since < self._compacted:
            raise StatusError(410, "Expired", f"too old resource version: {since} ({self._compacted})")
        return self._history[bisect_right(self._history, since, key=lambda change: change.version) :]

    def compact(self) -> None:
        """Forget the history, as etcd does every five minutes."""
        self._history.clear()
        self._compacted = self.version.value

    def rewind(self, version: int) -> None:
        """Versions start again at ``version``, lower than before: what clients see after etcd was restored."""
        self._history.clear()
        self._compacted = 0
        self.version.set(version)

    def _store(self, resource: str, key: Key, before: Object | None, after: Object) -> Object:
        after = versioned(after, self.version.value + 1)
        self._objects[resource][key] = after
        self._record(resource, before, after)
        return after

    def _record(self, resource: str, before: Object | None, after: Object | None) -> None:
        version = self.version.value + 1
        self._history.append(Change(version=version, resource=resource, before=before, after=after))
        if len(self._history) > HISTORY:
            self._compacted = self._history[HISTORY // 2].version
            del self._history[: HISTORY // 2 + 1]
        self.version.set(version)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: mappings merge, null removes, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _restore(target: Object, source: Object, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _other_uid(uid: str, present: Object) -> str:
    return f"Precondition failed: UID in precondition: {uid}, UID in object meta: {present['metadata']['uid']}"
