"""The few fields of Kubernetes objects that decisions need, out of the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hami_plugin.model.quantity import whole

Json = Mapping[str, Any]

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


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
    return int(resource_version) if resource_version.isdecimal() else 0


def pod_view(pod: Json) -> PodView:
    """Read a v1 Pod. Fields that are missing are empty; nothing raises on an object an API server can send."""
    meta, spec, status = _map(pod, "metadata"), _map(pod, "spec"), _map(pod, "status")
    return PodView(
        uid=str(meta.get("uid", "")),
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Pending"),
        created=str(meta.get("creationTimestamp") or ""),
        deleted=bool(meta.get("deletionTimestamp")),
        scheduler=str(spec.get("schedulerName") or ""),
        annotations=_texts(meta, "annotations"),
        containers=(
            *(_container(item, init=True) for item in spec.get("initContainers") or ()),
            *(_container(item, init=False) for item in spec.get("containers") or ()),
        ),
        resource_version=str(meta.get("resourceVersion", "")),
        labels=_texts(meta, "labels"),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        group=str(_map(meta, "labels").get(GROUP_LABEL) or _map(spec, "schedulingGroup").get("podGroupName") or ""),
    )


def node_view(node: Json) -> NodeView:
    """Read a v1 Node."""
    meta, status = _map(node, "metadata"), _map(node, "status")
    return NodeView(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        annotations=_texts(meta, "annotations"),
        labels=_texts(meta, "labels"),
        capacity=_texts(status, "capacity"),
        allocatable=_texts(status, "allocatable"),
        resource_version=str(meta.get("resourceVersion", "")),
    )


def quota_view(quota: Json) -> QuotaView:
    """Read a v1 ResourceQuota."""
    meta = _map(quota, "metadata")
    return QuotaView(
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        hard=_texts(_map(quota, "spec"), "hard"),
    )


def _container(item: Json, *, init: bool) -> ContainerView:
    resources = _map(item, "resources")
    return ContainerView(
        name=str(item.get("name", "")),
        init=init,
        restartable=init and item.get("restartPolicy") == "Always",
        limits=_texts(resources, "limits"),
        requests=_texts(resources, "requests"),
        env={str(e.get("name", "")): str(e["value"]) for e in item.get("env") or () if e.get("value") is not None},
        privileged=bool(_map(item, "securityContext").get("privileged")),
    )


def _map(parent: Json, key: str) -> Json:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def _texts(parent: Json, key: str) -> dict[str, str]:
    return {str(k): str(v) for k, v in _map(parent, key).items()}
