"""What the scheduler process stands on: the protocols between its server, its decisions and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from hami_plugin.model.ports import Annotations, Subject
from hami_plugin.model.views import Feed, Json, NodeView, PodPatch, PodView, QuotaView
from hami_plugin.process.aio import Watched


class Cluster(Protocol):
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
