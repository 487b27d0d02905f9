"""Who holds which devices, by the kubelet's PodResources socket. ``v1`` is generated from ``proto/``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import grpc

from hami_plugin.aio import Backoff
from hami_plugin.errors import HamiError
from hami_plugin.kubelet.listener import dial, status_text
from hami_plugin.kubelet.podresources.v1 import podresources_pb2 as pb
from hami_plugin.kubelet.podresources.v1 import podresources_pb2_grpc as rpc
from hami_plugin.model.ports import Holder


class PodResourcesClient:
    """``ports.PodResources`` over the kubelet's socket. ``timeout`` in seconds covers one answer, with retries.

    Each question has its own connection (about a millisecond), so a restarted kubelet needs no care.
    """

    def __init__(self, socket: Path, *, timeout: float = 5.0, retry: Backoff | None = None) -> None:
        self._socket = socket
        self._timeout = timeout
        self._retry = retry or Backoff(first=0.05, cap=0.5)

    async def holders(self, resource: str) -> tuple[Holder, ...]:
        """Containers with devices of ``resource``, each once. Plain init containers are never among them.

        ``HamiError`` when the kubelet does not tell.
        """
        return holders_of(await self._list(), resource)

    async def everything(self) -> Mapping[str, tuple[Holder, ...]]:
        """The same of every resource, by its name, in one question."""
        response = await self._list()
        containers = (container for pod in response.pod_resources for container in pod.containers)
        resources = {entry.resource_name for container in containers for entry in container.devices}
        return {resource: holders_of(response, resource) for resource in resources}

    async def _list(self) -> pb.ListPodResourcesResponse:
        try:
            async with asyncio.timeout(self._timeout):
                for delay in self._retry.delays():
                    try:
                        return await self._ask()
                    except grpc.aio.AioRpcError as error:
                        if not _temporary(error):
                            raise self._failed(status_text(error)) from error
                    await asyncio.sleep(delay)
        except TimeoutError as error:
            raise self._failed(f"no answer within {self._timeout:g} s") from error
        raise AssertionError  # the delays do not end

    async def _ask(self) -> pb.ListPodResourcesResponse:
        if not self._socket.exists():
            raise self._failed("no such socket")
        async with dial(self._socket) as channel:
            response: object = await rpc.PodResourcesListerStub(channel).List(
                pb.ListPodResourcesRequest(), timeout=self._timeout
            )
        if not isinstance(response, pb.ListPodResourcesResponse):  # gRPC gives None for bytes that it cannot read
            raise self._failed("the answer is no list of PodResources")
        return response

    def _failed(self, why: str) -> HamiError:
        return HamiError(
            f"the kubelet's PodResources cannot be read on {self._socket}: {why}",
            hint="mount the kubelet's pod-resources directory, or set podResourcesSocket to where it is",
        )


def holders_of(response: pb.ListPodResourcesResponse, resource: str) -> tuple[Holder, ...]:
    """The containers in ``response`` that hold ``resource``. The kubelet may give each device an entry of its own."""
    found = (
        Holder(
            namespace=pod.namespace,
            pod=pod.name,
            container=container.name,
            ids=frozenset(
                device for entry in container.devices if entry.resource_name == resource for device in entry.device_ids
            ),
        )
        for pod in response.pod_resources
        for container in pod.containers
    )
    return tuple(holder for holder in found if holder.ids)


def _temporary(error: grpc.aio.AioRpcError) -> bool:
    """The kubelet limits questions to about a hundred a second, and is away for a moment when it restarts."""
    return error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
