"""The few fields of Kubernetes objects that decisions need, out of the API server's JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeGuard, TypeVar

from hami_plugin.model.quantity import whole

Json = Mapping[str, Any]

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"

_LARGEST = 10**30
_VERSION_DIGITS = 20
_SHORT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """One container. ``env`` holds literal values only; ``restartable`` marks a native sidecar."""

    name: str
    init: bool = False
    restartable: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False

    @property
    def alone(self) -> bool:
        """A plain init container: it is over before the next one starts."""
        return self.init and not self.restartable

    def amount(self, resource: str) -> int:
        """How much of ``resource`` the container asks for; 0 when it does not, or says so unreadably."""
        text = self.limits.get(resource, self.requests.get(resource, "0"))
        if len(text) < _SHORT and text.isdecimal() and text.isascii():  # nearly every amount is a plain number
            return int(text)
        try:
            return whole(text)
        except ValueError:
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod. ``containers`` are all of them, init containers first: the order in which the kubelet allocates.

    ``group`` is the pod group that it is to be scheduled with, of the scheduler plugin or of Kubernetes itself.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    phase: str = "Pending"
    created: str = ""
    deleted: bool = False
    scheduler: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ContainerView, ...] = ()
    resource_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""
    group: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def terminal(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def container(self, name: str) -> ContainerView | None:
        return next((container for container in self.containers if container.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node: its annotations, labels and resources, and the version they were read at."""

    name: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    resource_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """One ResourceQuota: its namespace, and what it allows of each resource."""

    namespace: str
    name: str
    hard: Mapping[str, str] = field(default_factory=dict)


def revision(resource_version: str) -> int:
    """A resource version as a number, by which two views of one object can be ordered; 0 for anything else."""
    return int(resource_version) if resource_version.isdecimal() and len(resource_version) <= _VERSION_DIGITS else 0


def pod_view(pod: Json) -> PodView:
    """Read a v1 Pod. Fields that are missing, or are not what they should be, are empty: nothing in a pod raises."""
    meta, spec, status = _map(pod, "metadata"), _map(pod, "spec"), _map(pod, "status")
    return PodView(
        uid=_text(meta, "uid"),
        namespace=_text(meta, "namespace") or "default",
        name=_text(meta, "name"),
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase") or "Pending",
        created=_text(meta, "creationTimestamp"),
        deleted=bool(meta.get("deletionTimestamp")),
        scheduler=_text(spec, "schedulerName"),
        annotations=_texts(meta, "annotations"),
        containers=(
            *(_container(item, init=True) for item in _items(spec, "initContainers")),
            *(_container(item, init=False) for item in _items(spec, "containers")),
        ),
        resource_version=_text(meta, "resourceVersion"),
        labels=_texts(meta, "labels"),
        runtime_class=_text(spec, "runtimeClassName"),
        group=_text(_map(meta, "labels"), GROUP_LABEL) or _text(_map(spec, "schedulingGroup"), "podGroupName"),
    )


def node_view(node: Json) -> NodeView:
    """Read a v1 Node, as ``pod_view`` reads a pod."""
    meta, status = _map(node, "metadata"), _map(node, "status")
    return NodeView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        annotations=_texts(meta, "annotations"),
        labels=_texts(meta, "labels"),
        capacity=_texts(status, "capacity"),
        allocatable=_texts(status, "allocatable"),
        resource_version=_text(meta, "resourceVersion"),
    )


def quota_view(quota: Json) -> QuotaView:
    """Read a v1 ResourceQuota, as ``pod_view`` reads a pod."""
    meta = _map(quota, "metadata")
    return QuotaView(
        namespace=_text(meta, "namespace") or "default",
        name=_text(meta, "name"),
        hard=_texts(_map(quota, "spec"), "hard"),
    )


def anonymous(item: object) -> str:
    """Why nobody can say which object this is; empty when its name can be read."""
    if not isinstance(item, Mapping):
        return f"it is no object, but {_kind(item)}"
    meta = item.get("metadata")
    if not isinstance(meta, Mapping):
        return f"its metadata is {_kind(meta)}"
    name = meta.get("name")
    return "" if isinstance(name, str) and name else f"its metadata.name is {_kind(name)}"


def misshapen(item: Json) -> str:
    """The first part that is not what it should be, and so is read as if it were empty; empty when all is well."""
    meta, spec, status = (_map(item, part) for part in ("metadata", "spec", "status"))
    parts: list[tuple[str, object, type]] = [
        ("spec", item.get("spec"), Mapping),
        ("status", item.get("status"), Mapping),
    ]
    parts += [(f"metadata.{key}", meta.get(key), str) for key in ("uid", "namespace", "resourceVersion")]
    parts += [(f"metadata.{key}", meta.get(key), Mapping) for key in ("annotations", "labels")]
    parts += [("spec.nodeName", spec.get("nodeName"), str), ("status.phase", status.get("phase"), str)]
    parts += [(f"status.{key}", status.get(key), Mapping) for key in ("capacity", "allocatable")]
    for name in ("initContainers", "containers"):
        parts.append((f"spec.{name}", spec.get(name), list))
        for at, container in enumerate(_list(spec, name)):
            parts.append((f"spec.{name}[{at}]", container, Mapping))
            if _is_map(container):
                parts.append((f"spec.{name}[{at}].name", container.get("name"), str))
                parts.append((f"spec.{name}[{at}].resources", container.get("resources"), Mapping))
                parts.append((f"spec.{name}[{at}].env", container.get("env"), list))
    for name, part, kind in parts:
        fits = part is None or (_is_map(part) if kind is Mapping else isinstance(part, kind))
        if not fits:
            return f"{name} is {_kind(part)}"
    return ""


def _container(item: Json, *, init: bool) -> ContainerView:
    resources = _map(item, "resources")
    return ContainerView(
        name=_text(item, "name"),
        init=init,
        restartable=init and item.get("restartPolicy") == "Always",
        limits=_texts(resources, "limits"),
        requests=_texts(resources, "requests"),
        env={_text(e, "name"): _text(e, "value") for e in _items(item, "env") if e.get("value") is not None},
        privileged=bool(_map(item, "securityContext").get("privileged")),
    )


def _is_map(value: object) -> TypeGuard[Json]:
    """As JSON is read it is a dict; asking an abstract class takes ten times as long, for each field of each pod."""
    return type(value) is dict or isinstance(value, Mapping)


def _map(parent: Json, key: str) -> Json:
    value = parent.get(key) if _is_map(parent) else None
    return value if _is_map(value) else {}


def _list(parent: Json, key: str) -> Sequence[Any]:
    value = parent.get(key)
    return value if isinstance(value, list) else ()


def _items(parent: Json, key: str) -> Iterator[Json]:
    return (item for item in _list(parent, key) if _is_map(item))


def _text(parent: Json, key: str) -> str:
    return _as_text(parent.get(key)) or ""


def _texts(parent: Json, key: str) -> dict[str, str]:
    texts = ((_as_text(name), _as_text(value)) for name, value in _map(parent, key).items())
    return {name: value for name, value in texts if name is not None and value is not None}


def _as_text(value: object) -> str | None:
    """A text, or a number as one. None for what has no text: nobody writes out a list that is a thousand deep."""
    match value:
        case str():
            # Half a surrogate pair is legal in JSON, and in nothing that the text is written to later.
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case bool() | float():
            return str(value)
        case int():
            return str(value) if abs(value) < _LARGEST else None
        case _:
            return None


def _kind(value: object) -> str:
    """What a value is in JSON."""
    match value:
        case None:
            return "null"
        case str():
            return "a text" if value else "an empty text"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case Mapping():
            return "an object"
        case _:
            return "a list"


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)  # a frozen class with slots cannot be made by an alias such as Feed[PodView]
class Feed(Generic[T]):
    """``replace`` is a whole list (after a start or a gap), in no particular order; ``update`` and ``delete`` follow in
    the order of the API server.
    """

    replace: Callable[[Sequence[T]], None]
    update: Callable[[T], None]
    delete: Callable[[T], None]
