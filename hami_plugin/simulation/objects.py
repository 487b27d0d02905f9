"""The objects of the simulated API server: kinds, versions and their history, patches, and what is refused."""

from __future__ import annotations

import copy
import re
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hami_plugin.process.concurrency import Watched

Object = dict[str, Any]
Key = tuple[str, str]

_SELECTOR = re.compile(r"([A-Za-z.]+)(!=|==|=)(.*)")


class StatusError(Exception):
    """An error response with a ``Status`` object."""

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
    """A kind of object that is served, and its field selectors."""

    plural: str
    kind: str
    namespaced: bool
    fields: frozenset[str]
    version: str = "v1"

    @property
    def root(self) -> str:
        """Where its API is."""
        return f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"


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
        Resource(
            plural="resourceslices",
            kind="ResourceSlice",
            namespaced=False,
            fields=_NAMED | {"spec.driver", "spec.nodeName"},
            version="resource.k8s.io/v1",
        ),
        Resource(
            plural="resourceclaims", kind="ResourceClaim", namespaced=True, fields=_NAMED, version="resource.k8s.io/v1"
        ),
        Resource(
            plural="resourceclaimtemplates",
            kind="ResourceClaimTemplate",
            namespaced=True,
            fields=_NAMED,
            version="resource.k8s.io/v1",
        ),
        Resource(
            plural="deviceclasses", kind="DeviceClass", namespaced=False, fields=_NAMED, version="resource.k8s.io/v1"
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """One write: the object before and after; None if it did not exist."""

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

    def event(self, change: ObjectChange) -> Object | None:
        """The change as a watcher sees it: an object that no longer matches counts as deleted."""
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
    """The object with another version."""
    return {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}


ANNOTATION_BYTES = 256 * 1024
_ANNOTATION_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def check_changeable(resource: str, before: Object, patch: Mapping[str, Any]) -> None:
    """A patch for another version is a conflict; one for another UID is an invalid change of an immutable field."""
    meta, present = patch.get("metadata") or {}, before["metadata"]
    if (version := meta.get("resourceVersion")) and version != present["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise StatusError(409, "Conflict", not_fulfilled(resource, present["name"], why))
    if (uid := meta.get("uid")) and uid != present["uid"]:
        why = f'metadata.uid: Invalid value: "{uid}": field is immutable'
        raise StatusError(422, "Invalid", f'{RESOURCES[resource].kind} "{present["name"]}" is invalid: {why}')


def validate(resource: Resource, item: Object) -> None:
    """``StatusError`` for invalid annotations, and for an Event outside its object's namespace."""
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


HISTORY = 20_000


class ObjectStore:
    """All objects. Stored objects are never changed in place, so they can be shared.

    ``shares`` is whether the server has the feature gate DRAConsumableCapacity on, ``counters`` the gate
    DRAPartitionableDevices. ``apart``: it wants counters in slices of their own, as Kubernetes does since 1.35.
    """

    def __init__(self) -> None:
        self.version = Watched(1)
        self.shares = self.counters = self.apart = True
        self._objects: dict[str, dict[Key, Object]] = {plural: {} for plural in RESOURCES}
        self._history: list[ObjectChange] = []
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

    def create(self, resource: Resource, namespace: str, manifest: Mapping[str, Any], *, keep: bool = True) -> Object:
        """Without ``keep`` the answer is right, but nothing is stored."""
        item = copy.deepcopy(dict(manifest))
        meta = item.setdefault("metadata", {})
        namespace = (namespace or meta.get("namespace") or "default") if resource.namespaced else ""
        name = meta.setdefault("name", f"{meta.get('generateName', '')}{uuid.uuid4().hex[:5]}")
        if (namespace, name) in self._objects[resource.plural]:
            raise StatusError(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()} | ({"namespace": namespace} if namespace else {})
        item |= {"apiVersion": resource.version, "kind": resource.kind}
        if resource.kind == "Pod":
            item["spec"] = {"schedulerName": "default-scheduler"} | item.get("spec", {})
            item["status"] = {"phase": "Pending"} | item.get("status", {})
        validate(resource, item)
        return self._store(resource.plural, (namespace, name), None, self._kept(item)) if keep else item

    def _kept(self, item: Object) -> Object:
        found: Object = kept(item, shares=self.shares, counters=self.counters)
        if item["kind"] == "ResourceSlice" and (why := misplaced(found, apart=self.apart)):
            raise StatusError(422, "Invalid", f'ResourceSlice "{item["metadata"]["name"]}" is invalid: {why}')
        return found

    def replace(self, key: tuple[str, str, str], manifest: Mapping[str, Any]) -> Object:
        """Put ``manifest`` in place of (resource, namespace, name), if it is of the present version."""
        resource, namespace, name = key
        before = self.get(resource, namespace, name)
        check_changeable(resource, before, manifest)
        after: Object = self._kept(copy.deepcopy(dict(manifest)))
        for fixed in ("uid", "name", "namespace", "creationTimestamp", "resourceVersion"):
            _restore(after["metadata"], before["metadata"], fixed)
        validate(RESOURCES[resource], after)
        return before if after == before else self._store(resource, (namespace, name), before, after)

    def patch(
        self, key: tuple[str, str, str], patch: Mapping[str, Any], *, part: str = "", keep: bool = True
    ) -> Object:
        """Merge ``patch`` into (resource, namespace, name). Without ``keep`` the answer is right, but nothing is
        stored.
        """
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

    def delete(self, key: tuple[str, str, str], *, uid: str = "", version: str = "", grace: int = 0) -> Object:
        """Delete (resource, namespace, name), or with ``grace`` only mark it, like a pod whose containers stop."""
        resource, namespace, name = key
        before = self.get(resource, namespace, name)
        if version and version != before["metadata"]["resourceVersion"]:
            raise StatusError(409, "Conflict", not_fulfilled(resource, name, "the ResourceVersion is another"))
        if uid and uid != before["metadata"]["uid"]:
            raise StatusError(409, "Conflict", not_fulfilled(resource, name, _other_uid(uid, before)))
        if grace:
            mark = {"metadata": {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}}
            return self._store(resource, (namespace, name), before, merged(before, mark))
        del self._objects[resource][namespace, name]
        self._record(resource, before, None)
        return before

    def changes(self, since: int) -> Sequence[ObjectChange]:
        """The changes after version ``since``; 410 if they are no longer known."""
        if since < self._compacted:
            raise StatusError(410, "Expired", f"too old resource version: {since} ({self._compacted})")
        return self._history[bisect_right(self._history, since, key=lambda change: change.version) :]

    def compact(self) -> None:
        """Forget the history, as etcd does every five minutes."""
        self._history.clear()
        self._compacted = self.version.value

    def rewind(self, version: int) -> None:
        """Restart versions at a lower ``version``, as after a restore of etcd."""
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
        self._history.append(ObjectChange(version=version, resource=resource, before=before, after=after))
        if len(self._history) > HISTORY:
            self._compacted = self._history[HISTORY // 2].version
            del self._history[: HISTORY // 2 + 1]
        self.version.set(version)


def misplaced(item: Object, *, apart: bool) -> str:
    """What a server has against where a slice's counters are; empty where nothing."""
    counters = {one["name"] for one in item["spec"].get("sharedCounters") or ()}
    devices = item["spec"].get("devices") or ()
    if apart:
        return "spec: Invalid value: it has both `sharedCounters` and `devices`" if counters and devices else ""
    consumed = {one["counterSet"] for device in devices for one in device.get("consumesCounters") or ()}
    unknown = sorted(consumed - counters)
    return f'spec.devices: Invalid value: "{unknown[0]}": must reference a counterSet of the slice' if unknown else ""


_MEBIBYTES = re.compile(r"([0-9]{1,15})Mi")


def kept(item: Object, *, shares: bool = True, counters: bool = True) -> Object:
    """The object as a server keeps it: quantities of memory are in the largest unit that needs no fraction.

    Without ``shares`` it drops what says that a device is shared, and without ``counters`` what it consumes beside
    others. It says nothing of that.
    """
    spec = item.get("spec")
    if not counters and item["kind"] == "ResourceSlice" and isinstance(spec, dict):
        spec.pop("sharedCounters", None)
        for device in spec.get("devices") or ():
            device.pop("consumesCounters", None)
    for device in spec.get("devices") or () if item["kind"] == "ResourceSlice" and isinstance(spec, dict) else ():
        device["capacity"] = _canonical(device.get("capacity") or {})
        if not shares:
            device.pop("allowMultipleAllocations", None)
            for capacity in device["capacity"].values():
                capacity.pop("requestPolicy", None)
    if item["kind"] == "ResourceClaimTemplate":
        item["spec"] = _canonical(spec)
    return item


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _canonical(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_canonical(one) for one in value]
    found = _MEBIBYTES.fullmatch(value) if isinstance(value, str) else None
    amount = int(found[1]) if found else 0
    return f"{amount >> 10}Gi" if amount and not amount % 1024 else value


def strategic(before: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A strategic merge patch as a plain one: conditions are merged by their types, and may be deleted."""
    status = patch.get("status") or {}
    if "conditions" not in status:
        return dict(patch)
    found = {one["type"]: one for one in (before.get("status") or {}).get("conditions") or ()}
    for one in status["conditions"]:
        if one.get("$patch") == "delete":
            found.pop(one["type"], None)
        else:
            found[one["type"]] = {**found.get(one["type"], {}), **one}
    return {**patch, "status": {**status, "conditions": list(found.values())}}


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
