"""Who holds which devices, by the kubelet: its device checkpoint, and its PodResources socket.

The kubelet replaces the checkpoint after each container's Allocate, with each container's ids and the answer it was
given, and reads it when it starts. Its format is the kubelet's own (``pkg/kubelet/cm/devicemanager/checkpoint``). It
has changed once, in 1.20: ids stand in a list before, by NUMA node after.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import podresources_pb2 as resources_pb
from hami_plugin.kubelet.api import podresources_pb2_grpc as resources_rpc
from hami_plugin.kubelet.listener import dial, status_text
from hami_plugin.model.delivery import ANSWERED_FOR
from hami_plugin.model.ports import CheckpointEntry, Holder
from hami_plugin.process.concurrency import Backoff, StuckError, WorkThread

T = TypeVar("T")

NAME = "kubelet_internal_checkpoint"
MAX_BYTES = 32 << 20
"""A thousand containers with long answers are a third of it."""


class CheckpointFile:
    """``ports.Checkpoint`` over the kubelet's file in ``directory``. ``timeout`` in seconds."""

    def __init__(self, directory: Path, *, timeout: float = 5.0) -> None:
        self.path = directory / NAME
        self._timeout = timeout
        self._thread = WorkThread("kubelet checkpoint")

    async def kept(self, resource: str, ids: frozenset[str] | None = None) -> tuple[CheckpointEntry, ...]:
        """Every container with devices of ``resource``, or with exactly these ``ids``, init containers too.

        ``HamiError`` when it cannot be read.
        """
        return await self._read(lambda text: tuple(kept_in(text, resource, ids)))

    async def knows(self, resource: str) -> bool:
        """Whether a device plugin has registered ``resource``, or had and the kubelet has yet to forget it.

        ``HamiError`` when it cannot be read.
        """
        return await self._read(lambda text: resource in (json.loads(text)["Data"]["RegisteredDevices"] or {}))

    async def _read(self, understood: Callable[[bytes], T]) -> T:
        try:
            return await self._thread.call(lambda: understood(self._text()), self._timeout)
        except StuckError as error:
            raise self._failed(str(error)) from error
        except OSError as error:
            raise self._failed(error.strerror or repr(error)) from error
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, DecodeError) as error:
            raise self._failed(f"it is not in a known format ({error!r:.200})") from error

    def _text(self) -> bytes:
        """On the thread: a long file takes its time to be read, and to be understood."""
        with self.path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return text

    def _failed(self, why: str) -> HamiError:
        return HamiError(
            f"the kubelet's device checkpoint {self.path} cannot be read: {why}",
            hint="mount the kubelet's device-plugins directory, or set identityCheck: off to do without this proof",
        )


def kept_in(text: bytes, resource: str, ids: frozenset[str] | None = None) -> Iterator[CheckpointEntry]:
    """What a checkpoint has of ``resource``. Raises for anything else; ``CheckpointFile`` says what.

    Answers are the larger part of it, and only those to exactly these ``ids`` are understood, if they are given.
    """
    for entry in json.loads(text)["Data"]["PodDeviceEntries"] or ():
        if entry["ResourceName"] == resource:
            held = _ids(entry["DeviceIDs"])
            if ids is not None and held != ids:
                continue
            answer = pb.ContainerAllocateResponse.FromString(b64decode(entry["AllocResp"] or ""))
            yield CheckpointEntry(
                uid=_text(entry["PodUID"]),
                container=_text(entry["ContainerName"]),
                ids=held,
                answered_for=answer.annotations.get(ANSWERED_FOR, ""),
            )


def _ids(value: Any) -> frozenset[str]:
    lists = value.values() if isinstance(value, dict) else [value or ()]
    return frozenset(_text(device) for one in lists for device in one or ())


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value


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

    async def _list(self) -> resources_pb.ListPodResourcesResponse:
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

    async def _ask(self) -> resources_pb.ListPodResourcesResponse:
        if not self._socket.exists():
            raise self._failed("no such socket")
        async with dial(self._socket) as channel:
            response: object = await resources_rpc.PodResourcesListerStub(channel).List(
                resources_pb.ListPodResourcesRequest(), timeout=self._timeout
            )
        if not isinstance(
            response, resources_pb.ListPodResourcesResponse
        ):  # gRPC gives None for bytes that it cannot read
            raise self._failed("the answer is no list of PodResources")
        return response

    def _failed(self, why: str) -> HamiError:
        return HamiError(
            f"the kubelet's PodResources cannot be read on {self._socket}: {why}",
            hint="mount the kubelet's pod-resources directory, or set podResourcesSocket to where it is",
        )


def holders_of(response: resources_pb.ListPodResourcesResponse, resource: str) -> tuple[Holder, ...]:
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
