"""A kubelet's PodResources service over its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from hami_plugin.kubelet.podresources.v1 import podresources_pb2 as pb
from hami_plugin.kubelet.podresources.v1 import podresources_pb2_grpc as rpc
from hami_plugin.model.views import PodView
from hami_plugin.simulation.kubelet_ledger import Allotment, Ledger

Context = grpc.aio.ServicerContext[Any, Any]


class PodResourcesServicer(rpc.PodResourcesListerServicer):
    """Lists app containers and native sidecars. With ``entry_per_device``, as a kubelet that knows NUMA nodes."""

    def __init__(self, ledger: Ledger, *, entry_per_device: bool = True) -> None:
        self._ledger = ledger
        self.entry_per_device = entry_per_device

    async def List(  # noqa: N802  # gRPC's name
        self,
        request: pb.ListPodResourcesRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> pb.ListPodResourcesResponse:
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._ledger.pods.values()])

    async def Get(self, request: pb.GetPodResourcesRequest, context: Context) -> pb.GetPodResourcesResponse:  # noqa: N802
        for pod in self._ledger.pods.values():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.pod_name} not found")
        raise AssertionError  # abort always raises

    async def GetAllocatableResources(  # noqa: N802  # gRPC's name
        self,
        request: pb.AllocatableResourcesRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> pb.AllocatableResourcesResponse:
        return pb.AllocatableResourcesResponse(
            devices=[
                pb.ContainerDevices(resource_name=resource, device_ids=sorted(self._ledger.healthy(resource)))
                for resource in self._ledger.resources
            ]
        )

    def _pod(self, pod: PodView) -> pb.PodResources:
        return pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pb.ContainerResources(
                    name=container.name,
                    devices=[
                        entry
                        for resource, held in self._ledger.held_by(pod.uid, container.name).items()
                        for entry in self._entries(resource, held)
                    ],
                )
                for container in pod.containers
                if not container.init or container.restartable
            ],
        )

    def _entries(self, resource: str, held: Allotment) -> Iterator[pb.ContainerDevices]:
        if not self.entry_per_device:
            yield pb.ContainerDevices(resource_name=resource, device_ids=held.ids)
            return
        numa = {offer.id: offer.numa for offer in self._ledger.offers(resource)}
        for device in held.ids:
            node = numa.get(device)
            topology = None if node is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)])
            yield pb.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)
