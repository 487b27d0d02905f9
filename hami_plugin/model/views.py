"""The few fields of Kubernetes objects that decisions need, out of the API server's JSON.

Kubernetes quantities are exact integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Generic, Required, TypedDict, TypeGuard, TypeVar

from hami_plugin.process.concurrency import Pausing

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_NUMBER = r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})"
_QUANTITY = re.compile(rf"({_NUMBER})([numkMGTPE]?|[KMGTPE]i)|({_NUMBER}[eE][+-]?\d{{1,3}})", re.ASCII)
_SHORT = 10
_MOST = 2**63 - 1
"""Kubernetes takes whatever is more for this."""


def whole(text: object) -> int:
    """The integer value of a quantity, rounded away from 0 as Kubernetes' ``Value()`` does. ValueError names the text.

    Beyond 64 bits it is the most that these hold, with its sign.
    """
    if isinstance(text, str) and len(text) < _SHORT and text.isdecimal() and text.isascii():
        return int(text)  # as nearly every quantity is written
    value = _decimal(text)
    return int(value.to_integral_value(rounding="ROUND_UP"))


def exact(text: object) -> int | None:
    """The value of a quantity, None when it is no integer. ValueError names the text."""
    if isinstance(text, str) and len(text) < _SHORT and text.isdecimal() and text.isascii():
        return int(text)
    value = _decimal(text)
    return int(value) if value == value.to_integral_value() else None


def _decimal(text: object) -> Decimal:
    """A suffix or an exponent, not both. Without spaces around it, as the API server demands."""
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        raise ValueError(f"{str(text)[:64]!r} is not a Kubernetes quantity, such as 1, 500m or 2Gi")
    number, suffix, exponential = match.groups()
    value = Decimal(exponential) if exponential else Decimal(number) * _SUFFIXES[suffix]
    return max(min(value, Decimal(_MOST)), Decimal(-_MOST))


Json = Mapping[str, Any]

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"

_LARGEST = 10**30
_NUMBERS = re.compile(r"v?(\d{1,6})\.(\d{1,6})")
_VERSION_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """One container. ``env`` holds literal values only; ``restartable`` marks a native sidecar.

    ``claims`` are the pod's names of the ResourceClaims that it receives devices of, each with a request of it, or with
    an empty text for all.
    """

    name: str
    init: bool = False
    restartable: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False
    claims: tuple[tuple[str, str], ...] = ()

    @property
    def alone(self) -> bool:
        """A plain init container: it is over before the next one starts."""
        return self.init and not self.restartable

    def amount(self, resource: str) -> int:
        """How much of ``resource`` the container asks for; 0 when it does not, or says so unreadably."""
        text = self.limits.get(resource, self.requests.get(resource, "0"))
        try:
            return whole(text)
        except ValueError:
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod. ``containers`` are all of them, init containers first: the order in which the kubelet allocates.

    ``group`` is the pod group that it is to be scheduled with, of the scheduler plugin or of Kubernetes itself.
    ``claims`` are the ResourceClaims, by the pod's names for them, as far as they have been made. ``shares_processes``:
    its containers see each other's. ``running`` are its containers' names by the runtime's ids, where it has several.
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
    claims: Mapping[str, str] = field(default_factory=dict)
    shares_processes: bool = False
    running: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def terminal(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def container(self, name: str) -> ContainerView | None:
        return next((container for container in self.containers if container.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPatch:
    """What to write to a pod's metadata."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """What a node's status says of one subject. ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


DEGRADED = "Degraded"
"""Ends the types of the conditions that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node: its annotations, labels and resources, and the version they were read at. ``conditions`` are those of
    devices, ``kubelet`` is its kubelet's version.
    """

    name: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    resource_version: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    kubelet: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """One ResourceQuota: its namespace, and what it allows of each resource."""

    namespace: str
    name: str
    hard: Mapping[str, str] = field(default_factory=dict)


def major_minor(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version such as ``v1.34.4-gke.100``; None where it does not begin with them."""
    found = _NUMBERS.match(version)
    return (int(found[1]), int(found[2])) if found else None


def revision(resource_version: str) -> int:
    """A resource version as a number, by which two views of one object can be ordered; 0 for anything else."""
    return int(resource_version) if resource_version.isdecimal() and len(resource_version) <= _VERSION_DIGITS else 0


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The whole object once more, as text: no decision needs it, and it may be most of what is kept."""


Texts = dict[str, str]


class _Metadata(TypedDict, total=False):
    name: Required[str]
    namespace: str
    uid: str
    resourceVersion: str
    creationTimestamp: str | None
    deletionTimestamp: str | None
    labels: Texts
    annotations: Texts


class _Resources(TypedDict, total=False):
    limits: Texts
    requests: Texts


class _SecurityContext(TypedDict, total=False):
    privileged: bool


class _Container(TypedDict, total=False):
    name: str
    restartPolicy: str
    resources: _Resources
    securityContext: _SecurityContext


class _SchedulingGroup(TypedDict, total=False):
    podGroupName: str


class _PodSpec(TypedDict, total=False):
    nodeName: str
    schedulerName: str
    runtimeClassName: str
    shareProcessNamespace: bool
    schedulingGroup: _SchedulingGroup
    initContainers: list[_Container]
    containers: list[_Container]


class _PodStatus(TypedDict, total=False):
    phase: str


class BriefPod(TypedDict, total=False):
    """What ``brief_pod_view`` reads of a v1 Pod: whoever parses a list may pass over the rest, some nine tenths."""

    metadata: Required[_Metadata]
    spec: _PodSpec
    status: _PodStatus


class _Condition(TypedDict, total=False):
    type: str
    status: str
    reason: str
    message: str


class _NodeInfo(TypedDict, total=False):
    kubeletVersion: str


class _NodeStatus(TypedDict, total=False):
    nodeInfo: _NodeInfo
    capacity: Texts
    allocatable: Texts
    conditions: list[_Condition]


class BriefNode(TypedDict, total=False):
    """What ``node_view`` reads of a v1 Node."""

    metadata: Required[_Metadata]
    status: _NodeStatus


def brief_pod_view(pod: Json) -> PodView:
    """``pod_view`` without labels and environments, for whoever keeps tens of thousands and decides where they go."""
    return pod_view(pod, brief=True)


def shaped_pod_view(pod: BriefPod) -> PodView:
    """``brief_pod_view`` in half the time, of a pod that was parsed as a ``BriefPod``: all is what it should be."""
    meta, spec = pod["metadata"], pod.get("spec", _PodSpec())
    return PodView(
        uid=meta.get("uid", ""),
        namespace=meta.get("namespace") or "default",
        name=meta["name"],
        node=spec.get("nodeName", ""),
        phase=pod.get("status", _PodStatus()).get("phase") or "Pending",
        created=meta.get("creationTimestamp") or "",
        deleted=bool(meta.get("deletionTimestamp")),
        scheduler=spec.get("schedulerName", ""),
        annotations=_without_last_applied(meta.get("annotations", {})),
        containers=(
            *[_shaped_container(one, init=True) for one in spec.get("initContainers", ())],
            *[_shaped_container(one, init=False) for one in spec.get("containers", ())],
        ),
        resource_version=meta.get("resourceVersion", ""),
        runtime_class=spec.get("runtimeClassName", ""),
        group=meta.get("labels", {}).get(GROUP_LABEL) or spec.get("schedulingGroup", {}).get("podGroupName", ""),
        shares_processes=spec.get("shareProcessNamespace", False),
    )


def _shaped_container(item: _Container, *, init: bool) -> ContainerView:
    resources = item.get("resources", _Resources())
    return ContainerView(
        name=item.get("name", ""),
        init=init,
        restartable=init and item.get("restartPolicy") == "Always",
        limits=resources.get("limits", {}),
        requests=resources.get("requests", {}),
        privileged=item.get("securityContext", _SecurityContext()).get("privileged", False),
    )


MAX_CONTAINERS = 512
CONTAINER_LISTS = ("initContainers", "containers")


def crowded(pod: Mapping[str, Any]) -> str:
    """Why a v1 Pod has too many containers for a scheduler, which shows each to each family; empty when it has not."""
    spec = pod.get("spec")
    lists = [spec.get(key) for key in CONTAINER_LISTS] if isinstance(spec, Mapping) else []
    count = sum(len(one) for one in lists if isinstance(one, Sequence))
    if count <= MAX_CONTAINERS:
        return ""
    return f"pod has {count} containers, and at most {MAX_CONTAINERS} are looked at; split it into several pods"


def pod_view(pod: Json, *, brief: bool = False) -> PodView:
    """Read a v1 Pod. Fields that are missing, or are not what they should be, are empty: nothing in a pod raises."""
    meta, spec, status = _map(pod, "metadata"), _map(pod, "spec"), _map(pod, "status")
    extended = _map(status, "extendedResourceClaimStatus")
    return PodView(
        uid=_text(meta, "uid"),
        namespace=_text(meta, "namespace") or "default",
        name=_text(meta, "name"),
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase") or "Pending",
        created=_text(meta, "creationTimestamp"),
        deleted=bool(meta.get("deletionTimestamp")),
        scheduler=_text(spec, "schedulerName"),
        annotations=_annotations(meta),
        containers=(
            *[_container(item, extended, init=True, brief=brief) for item in _items(spec, "initContainers")],
            *[_container(item, extended, init=False, brief=brief) for item in _items(spec, "containers")],
        ),
        resource_version=_text(meta, "resourceVersion"),
        labels={} if brief else _texts(meta, "labels"),
        runtime_class=_text(spec, "runtimeClassName"),
        group=_text(_map(meta, "labels"), GROUP_LABEL) or _text(_map(spec, "schedulingGroup"), "podGroupName"),
        claims={} if brief else _claims(spec, status, extended),
        shares_processes=spec.get("shareProcessNamespace") is True,
        running={} if brief else _running(status),
    )


def _running(status: Json) -> Mapping[str, str]:
    """Names of the containers that have started, by the runtime's ids: ``containerd://<id>``."""
    known = [*_items(status, "initContainerStatuses"), *_items(status, "containerStatuses")]
    if len(known) < 2:
        return {}
    return {_text(one, "containerID").rpartition("://")[2]: _text(one, "name") for one in known}


def changed_pod_view(pod: PodView, now: Json) -> PodView:
    """The pod as an answer to a change of its metadata has it ``now``: what it asks for is as it was."""
    meta = _map(now, "metadata")
    return replace(
        pod,
        node=_text(_map(now, "spec"), "nodeName"),
        phase=_text(_map(now, "status"), "phase") or "Pending",
        deleted=bool(meta.get("deletionTimestamp")),
        annotations=_annotations(meta),
        resource_version=_text(meta, "resourceVersion"),
    )


def node_view(node: Json) -> NodeView:
    """Read a v1 Node, as ``pod_view`` reads a pod."""
    meta, status = _map(node, "metadata"), _map(node, "status")
    return NodeView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        annotations=_annotations(meta),
        labels=_texts(meta, "labels"),
        capacity=_texts(status, "capacity"),
        allocatable=_texts(status, "allocatable"),
        resource_version=_text(meta, "resourceVersion"),
        conditions=tuple(
            NodeCondition(
                type=_text(one, "type"),
                status=_text(one, "status"),
                reason=_text(one, "reason"),
                message=_text(one, "message"),
            )
            for one in _items(status, "conditions")
            if _text(one, "type").endswith(DEGRADED)
        ),
        kubelet=_text(_map(status, "nodeInfo"), "kubeletVersion"),
    )


def is_silent(node: Json) -> bool:
    """Whether a node's kubelet is not heard of any more: what a v1 Node's status says is what was once."""
    conditions = _items(_map(node, "status"), "conditions")
    return any(_text(one, "type") == "Ready" and _text(one, "status") == "Unknown" for one in conditions)


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
    return "" if _well_shaped(item) else _misshapen(item)


def _well_shaped(item: Json) -> bool:
    """Whether everything is what it should be, in the short way for objects as JSON has them."""
    meta, spec, status = item.get("metadata"), item.get("spec", {}), item.get("status", {})
    if not type(item) is type(meta) is type(spec) is type(status) is dict:
        return False
    parts = [meta.get("annotations", {}), meta.get("labels", {}), status.get("capacity", {})]
    texts = [meta.get("uid", ""), meta.get("namespace", ""), meta.get("resourceVersion", "")]
    texts += [spec.get("nodeName", ""), status.get("phase", "")]
    lists = [spec.get("containers", []), spec.get("initContainers", [])]
    parts.append(status.get("allocatable", {}))
    if any(type(one) is not list for one in lists):
        return False
    for container in (*lists[0], *lists[1]):
        if type(container) is not dict:
            return False
        texts.append(container.get("name", ""))
        parts.append(container.get("resources", {}))
        lists.append(container.get("env", []))
    return {*map(type, parts)} == {dict} and {*map(type, texts)} == {str} and {*map(type, lists)} == {list}


def _misshapen(item: Json) -> str:
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


def _annotations(meta: Json) -> Mapping[str, str]:
    return _without_last_applied(_texts(meta, "annotations"))


def _without_last_applied(found: Mapping[str, str]) -> Mapping[str, str]:
    return {name: text for name, text in found.items() if name != LAST_APPLIED} if LAST_APPLIED in found else found


EXTENDED = ""
"""What a pod calls the claim that the scheduler has made for its extended resources."""


def _claims(spec: Json, status: Json, extended: Json) -> Mapping[str, str]:
    """A claim that the pod names itself, one made from a template, or one for extended resources."""
    found = {_text(one, "name"): _text(one, "resourceClaimName") for one in _items(spec, "resourceClaims")}
    made = {_text(one, "name"): _text(one, "resourceClaimName") for one in _items(status, "resourceClaimStatuses")}
    found |= {name: claim for name, claim in made.items() if claim}
    if claim := _text(extended, "resourceClaimName"):
        found[EXTENDED] = claim
    return {name: claim for name, claim in found.items() if claim}


def _container_claims(item: Json, extended: Json) -> tuple[tuple[str, str], ...]:
    own = [(_text(one, "name"), _text(one, "request")) for one in _items(_map(item, "resources"), "claims")]
    if not extended:
        return tuple(own)
    name = _text(item, "name")
    mapped = (one for one in _items(extended, "requestMappings") if _text(one, "containerName") == name)
    return (*own, *((EXTENDED, _text(one, "requestName")) for one in mapped))


def _container(item: Json, extended: Json, *, init: bool, brief: bool) -> ContainerView:
    resources = _map(item, "resources")
    return ContainerView(
        name=_text(item, "name"),
        init=init,
        restartable=init and item.get("restartPolicy") == "Always",
        limits=_texts(resources, "limits"),
        requests=_texts(resources, "requests"),
        env={}
        if brief
        else {_text(e, "name"): _text(e, "value") for e in _items(item, "env") if e.get("value") is not None},
        privileged=bool(_map(item, "securityContext").get("privileged")),
        claims=() if brief else _container_claims(item, extended),
    )


def _is_map(value: object) -> TypeGuard[Json]:
    """As JSON is read it is a dict: who reads a field of each pod asks for that first, in a tenth of the time."""
    return isinstance(value, Mapping)


def _map(parent: Json, key: str) -> Json:
    value = parent.get(key) if type(parent) is dict or _is_map(parent) else None
    return value if type(value) is dict or _is_map(value) else {}


def _list(parent: Json, key: str) -> Sequence[Any]:
    value = parent.get(key)
    return value if isinstance(value, list) else ()


def _items(parent: Json, key: str) -> Iterator[Json]:
    return (item for item in _list(parent, key) if type(item) is dict or _is_map(item))


def _text(parent: Json, key: str) -> str:
    value = parent.get(key, "")
    return value if type(value) is str and value.isascii() else _as_text(value) or ""


def _texts(parent: Json, key: str) -> Mapping[str, str]:
    found = parent.get(key, {})
    if type(found) is dict:
        try:  # nearly all are texts in ASCII, and taken as they are
            if "".join(found.values()).isascii() and "".join(found).isascii():
                return found
        except TypeError:
            pass
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
    the order of the API server. ``replacing`` is ``replace`` with pauses, where a list may be long: in between, readers
    see some objects as they were.
    """

    replace: Callable[[Sequence[T]], None]
    update: Callable[[T], None]
    delete: Callable[[T], None]
    replacing: Callable[[Sequence[T]], Pausing[None]] | None = None
