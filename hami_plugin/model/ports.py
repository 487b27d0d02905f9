"""What the use-cases need of the outside, as protocols. Each has a real adapter and a simulated peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from hami_plugin.model.delivery import Answer, container_key
from hami_plugin.model.device import Snapshot
from hami_plugin.model.views import Feed, Json, NodeView, PodPatch, PodView, QuotaView
from hami_plugin.process.concurrency import Watched

Annotations = Mapping[str, str | None]
"""Changes to annotations: a value sets a key, None removes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object that an Event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


PodFeed = Feed[PodView]
"""Where a pod watch delivers. The order of the API server is the order in which the kubelet sees changes."""


class NodeApi(Protocol):
    """The API server, limited to what a node's daemon may touch. Every call has a deadline.

    Calls raise ``ClusterError``. The two ``follow`` calls run for ever: they list, watch, and start over by themselves.
    """

    @property
    def reachable(self) -> Watched[str]:
        """Empty while the API server answers, else what is wrong."""

    async def patch_pod(self, pod: PodView, annotations: Annotations) -> PodView:
        """Merge-patch a pod's annotations, only if it still has this UID."""

    async def patch_node(
        self, annotations: Annotations, *, labels: Annotations | None = None, resource_version: str = ""
    ) -> NodeView:
        """Merge-patch this node's annotations and labels; with a version, only if it is still the present one (status
        409).
        """

    async def get_node(self) -> NodeView: ...

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None: ...

    async def follow_pods(self, feed: PodFeed) -> NoReturn:
        """Deliver this node's pods, limited by ``spec.nodeName``."""

    async def follow_node(self, deliver: Callable[[NodeView | None], None]) -> NoReturn:
        """Deliver this node at each change; None when it does not exist."""


class ClusterApi(Protocol):
    """The API server as a scheduler sees it: every node, pod and quota. Every call has a deadline.

    Calls raise ``ClusterError``. The ``follow`` calls run for ever: they list, watch, and start over by themselves.
    """

    @property
    def reachable(self) -> Watched[str]:
        """Empty while the API server answers, else what is wrong."""

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        """The pod as it is now; None when there is none of this name."""

    async def get_node(self, name: str) -> NodeView | None:
        """The node as it is now; None when there is none of this name."""

    async def patch_pod(self, pod: PodView, changes: PodPatch) -> PodView:
        """Merge annotations and labels into a pod, only if it still has this UID and version (status 409)."""

    async def patch_node(self, name: str, annotations: Annotations, *, resource_version: str) -> NodeView:
        """Merge-patch a node's annotations, only if this is still its present version (status 409)."""

    async def bind(self, pod: PodView, node: str) -> None:
        """Assign the pod to the node, only if it still has this UID and version and is at no node (status 409)."""

    async def create_event(self, subject: Subject, *, reason: str, message: str, warning: bool) -> None: ...

    async def follow_pods(self, feed: Feed[PodView]) -> NoReturn:
        """Deliver the pods of all namespaces that have not ended. One that ends is deleted from the feed."""

    async def follow_nodes(self, feed: Feed[NodeView]) -> NoReturn: ...

    async def follow_quotas(self, feed: Feed[QuotaView]) -> NoReturn: ...

    async def get_device_class(self, name: str) -> Json | None:
        """The DeviceClass; None when there is none of this name."""

    async def get_claim_template(self, namespace: str, name: str) -> Json | None:
        """The ResourceClaimTemplate; None when there is none of this name."""

    async def create_claim_template(self, document: Json) -> None:
        """Create it. A ``conflict`` where there is one of this name."""

    async def patch_claim_template(self, namespace: str, name: str, annotations: Annotations) -> None: ...

    async def list_claim_templates(self, label: str, most: int) -> Sequence[Json]:
        """Those of all namespaces that have this label, ``key=value``; at most so many."""

    async def delete_claim_template(self, namespace: str, name: str, *, resource_version: str) -> None:
        """Delete it, only if this is still its present version (status 409)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A container that holds devices of a resource, by the kubelet's PodResources socket."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """What the kubelet keeps for one container of a resource: its ids, and the answer that it will start it with.

    ``answered_for`` is whom that answer was made for, as ``container_key`` writes it; empty for an answer that is not
    ours.
    """

    uid: str
    container: str
    ids: frozenset[str]
    answered_for: str = ""

    @property
    def right(self) -> bool:
        """Whether the answer was made for this very container."""
        return self.answered_for == container_key(self.uid, self.container)


class Checkpoint(Protocol):
    """The kubelet's own memory of what it was answered, complete before any container of a pod starts."""

    async def kept(self, resource: str, ids: frozenset[str] | None = None) -> tuple[CheckpointEntry, ...]:
        """Every container with devices of ``resource``, or with exactly these ``ids``. ``HamiError`` when it cannot be
        read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One id that the kubelet may hand out."""

    id: str
    healthy: bool
    numa: int | None = None


class DevicePlugin(Protocol):
    """What one kubelet endpoint serves: one resource. Refusals are ``RefusedError``."""

    @property
    def resource(self) -> str: ...

    @property
    def pre_start_required(self) -> bool: ...

    @property
    def offers(self) -> Watched[tuple[Offer, ...]]:
        """All ids, sorted; whole states."""

    async def allocate(self, ids: Sequence[str]) -> Answer: ...

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Which ids the kubelet should take; empty when there is no opinion. Never raises for a valid request."""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Confirm that the container about to start is the one whose limits were handed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointState:
    """How far one resource has come with the kubelet. ``since`` is a monotonic time in seconds."""

    resource: str = ""
    serving: bool = False
    registered: bool = False
    streams: int = 0
    list_sent: bool = False
    since: float = 0.0
    registrations: int = 0
    problem: str = "not started"

    @property
    def ready(self) -> bool:
        return self.registered and self.streams > 0 and self.list_sent


class Observer(Protocol):
    """Where use-cases and adapters report what they did, so that it can be counted."""

    def allocation(self, resource: str, outcome: str, seconds: float) -> None:
        """One Allocate; ``outcome`` is ``ok``, a ``RefusalReason``, or ``failed`` for a call that was given up."""

    def unchecked(self, resource: str) -> None:
        """One Allocate beyond what a device has left, as far as was known while the API server was away."""

    def container_start(self, resource: str, outcome: str) -> None:
        """One PreStartContainer."""

    def api_call(self, verb: str, kind: str, outcome: str, seconds: float) -> None:
        """One call to the API server; ``outcome`` is an HTTP status or ``unreachable``."""

    def unreadable(self, kind: str) -> None:
        """One object from the API server that could not be read, or in part only."""

    def snapshot(self, vendor: str, snapshot: Snapshot) -> None:
        """A vendor's devices after a change."""

    def endpoint(self, state: EndpointState) -> None:
        """A kubelet endpoint after a change."""

    def claim(self, driver: str, operation: str, outcome: str, seconds: float) -> None:
        """One claim that was made ready or released (``prepare``, ``unprepare``); ``outcome`` is ``ok`` or a reason."""

    def slice_write(self, driver: str, verb: str) -> None:
        """One ResourceSlice written: created, updated or deleted."""

    def mistake(self, vendor: str, step: str) -> None:
        """A vendor's own code failed unexpectedly. ``step`` is one of a few names."""


class NullObserver:
    """Counts nothing. For commands and tests that do not look at metrics."""

    def allocation(self, resource: str, outcome: str, seconds: float) -> None: ...

    def unchecked(self, resource: str) -> None: ...

    def container_start(self, resource: str, outcome: str) -> None: ...

    def api_call(self, verb: str, kind: str, outcome: str, seconds: float) -> None: ...

    def unreadable(self, kind: str) -> None: ...

    def snapshot(self, vendor: str, snapshot: Snapshot) -> None: ...

    def endpoint(self, state: EndpointState) -> None: ...

    def claim(self, driver: str, operation: str, outcome: str, seconds: float) -> None: ...

    def slice_write(self, driver: str, verb: str) -> None: ...

    def mistake(self, vendor: str, step: str) -> None: ...
