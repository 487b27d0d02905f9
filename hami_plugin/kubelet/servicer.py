"""The device plugin service: the kubelet's calls, checked, handed to one plugin, and answered.

The kubelet reads at most 4 MiB at once; a longer list silently takes the resource down until the next registration. So
the size of a list is computed first, and a list that is too long is an error that says how many shares fit.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import cache
from typing import Any, NoReturn, Protocol, TypeVar

import grpc

from cdi.spec import ContainerEdits, DeviceNode, Mount
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import physical_counts, physical_id, replica_ids
from hami_plugin.model.ports import DevicePlugin, Observer, Offer
from hami_plugin.process.log import logger

API_VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
MAX_ID = 340
"""Characters in a device id: a device's name, of up to 320, and a share's number. The kubelet's API asks for 63, which
no kubelet looks at; names made of a node's are longer."""
MAX_LIST = 3_670_016
"""Bytes in a device list: 3.5 MiB, with room to the kubelet's 4."""
_MIB = 1 << 20


class OversizedListError(HamiError):
    """A device list that the kubelet would not read."""


def list_response(offers: Collection[Offer]) -> pb.ListAndWatchResponse:
    topologies = {numa: _topology(numa) for numa in {offer.numa for offer in offers}}
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=offer.id,
                health=HEALTHY if offer.healthy else UNHEALTHY,
                topology=topologies[offer.numa],
            )
            for offer in offers
        ]
    )


def offers_of(response: pb.ListAndWatchResponse) -> tuple[Offer, ...]:
    """What the kubelet makes of a list. Of several NUMA nodes the first is kept."""
    return tuple(
        Offer(
            id=device.ID,
            healthy=device.health == HEALTHY,
            numa=device.topology.nodes[0].ID if device.topology.nodes else None,
        )
        for device in response.devices
    )


def allocate_response(answer: Answer) -> pb.ContainerAllocateResponse:
    edits = answer.edits
    return pb.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.path, host_path=node.source, permissions=node.permissions)
            for node in edits.device_nodes
        ],
        annotations=answer.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi_devices],
    )


def answer_of(response: pb.ContainerAllocateResponse) -> Answer:
    """What a kubelet reads in a response."""
    edits = ContainerEdits(
        env=dict(response.envs),
        device_nodes=tuple(
            DeviceNode(path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in response.devices
        ),
        mounts=tuple(
            Mount(host_path=mount.host_path, container_path=mount.container_path, read_only=mount.read_only)
            for mount in response.mounts
        ),
    )
    return Answer(
        edits=edits,
        annotations=dict(response.annotations),
        cdi_devices=tuple(device.name for device in response.cdi_devices),
    )


def list_size(offers: Iterable[Offer]) -> int:
    """Bytes of the list when every device is unhealthy, its longest form: a fault must not exceed the limit."""
    return sum(_entry_size(len(offer.id.encode()), offer.numa) for offer in offers)


def require_list_fits(offers: Sequence[Offer], *, limit: int = MAX_LIST) -> None:
    """``OversizedListError`` when the list of these replicas exceeds ``limit`` bytes; it names the split that fits."""
    size = list_size(offers)
    if size <= limit:
        return
    devices = {physical_id(offer.id): offer.numa for offer in offers}
    shares = max(physical_counts(offer.id for offer in offers).values())
    fits = largest_split(devices, limit=limit)
    raise OversizedListError(
        f"{len(devices)} devices with {shares} shares each make a device list of {size / _MIB:.1f} MiB, "
        f"more than the {limit / _MIB:.1f} MiB that are safe to send to the kubelet",
        hint=f"the largest deviceSplitCount that fits is {fits}",
    )


def largest_split(devices: Mapping[str, int | None], *, limit: int = MAX_LIST) -> int:
    """The most shares that each of ``devices`` (UUID → NUMA node, if hinted) can have within ``limit`` bytes."""

    def size(shares: int) -> int:
        return sum(
            _entry_size(len(replica.encode()), numa)
            for uuid, numa in devices.items()
            for replica in replica_ids(uuid, shares)
        )

    if not devices:
        return 0
    ceiling = limit // size(1)
    return max(0, bisect_right(range(ceiling + 1), limit, key=size) - 1)


@cache
def _entry_size(id_length: int, numa: int | None) -> int:
    device = pb.Device(ID="x" * id_length, health=UNHEALTHY, topology=_topology(numa))
    return pb.ListAndWatchResponse(devices=[device]).ByteSize()


def _topology(numa: int | None) -> pb.TopologyInfo | None:
    return None if numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)])


log = logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

MAX_DETAILS = 2000
"""Characters of an error's text; gRPC carries it in a header, and headers are small."""


T = TypeVar("T")


class Relay(Protocol):
    """Whoever else serves the plugin."""

    async def answer(self, call: str, request: Any, within: float) -> Any:
        """The answer to the call of this name. None: nobody else serves the plugin any more. ``RelayedError``."""


class RelayedError(HamiError):
    """Another process has refused a call. ``code`` is its gRPC status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class DevicePluginServicer(rpc.DevicePluginServicer):
    """One plugin as a gRPC service. ``changed`` is called when a stream opens, ends, or has sent a list.

    ``pace`` is the least time in seconds between two lists on one stream, ``deadline`` the most that a plugin may take
    over one call: the kubelet itself waits for Allocate without end.
    """

    def __init__(
        self,
        plugin: DevicePlugin,
        observer: Observer,
        *,
        changed: Callable[[], None] = lambda: None,
        pace: float = 0.2,
        deadline: float = 25.0,
    ) -> None:
        self._plugin = plugin
        self._observer = observer
        self._changed = changed
        self._pace = pace
        self._deadline = deadline
        self._streams: dict[asyncio.Task[Any], bool] = {}
        self._ended = False
        self._oversized = ""
        self._listed: tuple[Sequence[Offer], frozenset[str]] = ((), frozenset())
        self.relay: Relay | None = None
        """Answers calls in place of the plugin, which another process serves by now."""
        self.running = 0
        """Calls that the plugin is answering."""

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def list_sent(self) -> bool:
        """Whether an open stream has sent a list."""
        return any(self._streams.values())

    @property
    def oversized(self) -> str:
        """Why the newest list is not sent, or nothing."""
        return self._oversized

    def become(self, plugin: DevicePlugin, observer: Observer, changed: Callable[[], None]) -> None:
        """Serve another plugin of the same resource. Streams stay open and go on with its offers, and calls that wait
        are its.
        """
        former, self._plugin = self._plugin, plugin
        self._observer, self._changed = observer, changed
        former.offers.close()

    def end_streams(self) -> None:
        """End every stream, as a closed plugin would. Calls in progress go on."""
        self._ended = True
        for stream in self._streams:
            stream.cancel()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:  # noqa: ARG002, N802  # gRPC's signature
        return pb.DevicePluginOptions(
            pre_start_required=self._plugin.pre_start_required, get_preferred_allocation_available=True
        )

    async def ListAndWatch(  # noqa: N802  # gRPC's name
        self,
        request: pb.Empty,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Every state of the offers, whole; a slow reader gets the newest. Streams do not take from one another."""
        stream = asyncio.current_task()
        assert stream is not None
        self._streams[stream] = False
        self._changed()
        try:
            plugin: DevicePlugin | None = None
            while plugin is not self._plugin:  # another one has taken its place, and its offers are closed
                plugin = self._plugin
                async with aclosing(plugin.offers.follow(every=self._pace)) as states:
                    async for offers in states:
                        if self._fits(offers):
                            yield list_response(offers)
                            self._sent(stream)
        except asyncio.CancelledError:
            if not self._ended:
                raise
        finally:
            del self._streams[stream]
            self._changed()

    async def GetPreferredAllocation(  # noqa: N802  # gRPC's name
        self,
        request: pb.PreferredAllocationRequest,
        context: Context,
    ) -> pb.PreferredAllocationResponse:
        """Advice, so no error: one would fail the pod, and Allocate says better what is wrong."""
        if self.relay and (
            relayed := await self._relayed(
                self.relay, "GetPreferredAllocation", request, context, pb.PreferredAllocationResponse
            )
        ):
            return relayed
        until = asyncio.get_running_loop().time() + self._deadline
        with self._counted():
            return pb.PreferredAllocationResponse(
                container_responses=[
                    pb.ContainerPreferredAllocationResponse(deviceIDs=await self._preferred(container, until))
                    for container in request.container_requests
                ]
            )

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:  # noqa: N802
        if self.relay and (
            relayed := await self._relayed(self.relay, "Allocate", request, context, pb.AllocateResponse)
        ):
            return relayed
        started = time.monotonic()
        try:
            ids = self._checked_request(request)
        except RefusedError as refusal:
            self._observer.allocation(self._plugin.resource, refusal.reason, time.monotonic() - started)
            await self._refuse(context, "Allocate", refusal)
        try:
            async with asyncio.timeout(self._deadline):
                with self._counted():
                    answer = allocate_response(await self._plugin.allocate(ids))
        except Exception as error:  # noqa: BLE001  # boundary: one call fails, with its reason; the daemon serves on
            await self._refuse(context, "Allocate", error)
        return pb.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(  # noqa: N802  # gRPC's name
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        if self.relay and (
            relayed := await self._relayed(
                self.relay, "PreStartContainer", request, context, pb.PreStartContainerResponse
            )
        ):
            return relayed
        try:
            ids = _checked_ids(request.devices_ids)
            async with asyncio.timeout(self._deadline):
                with self._counted():
                    await self._plugin.pre_start(ids)
        except Exception as error:  # noqa: BLE001  # boundary, as for Allocate
            await self._refuse(context, "PreStartContainer", error)
        return pb.PreStartContainerResponse()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    async def _relayed(self, relay: Relay, call: str, request: Any, context: Context, response: type[T]) -> T | None:
        """The answer of whoever serves the plugin now; None once nobody else does."""
        try:
            answer = await relay.answer(call, request, self._deadline)
        except RelayedError as error:
            await context.abort(error.code, error.message[:MAX_DETAILS])
        return answer if isinstance(answer, response) else None

    def _fits(self, offers: Sequence[Any]) -> bool:
        try:
            require_list_fits(offers)
        except OversizedListError as error:
            if self._oversized != str(error):
                log.error("device list not sent", resource=self._plugin.resource, why=str(error))  # noqa: TRY400  # designed
            self._oversized = str(error)
            self._changed()
            return False
        if self._oversized:
            self._oversized = ""
            self._changed()
        return True

    def _sent(self, stream: asyncio.Task[Any]) -> None:
        if not self._streams[stream]:
            self._streams[stream] = True
            self._changed()

    async def _preferred(self, request: pb.ContainerPreferredAllocationRequest, until: float) -> Sequence[str]:
        available, must = tuple(request.available_deviceIDs), tuple(request.must_include_deviceIDs)
        size = request.allocation_size
        try:
            if not 0 < size <= len(set(available)) or len(set(must)) > size or not set(must) <= set(available):
                return ()
            async with asyncio.timeout_at(until):
                preferred = tuple(await self._plugin.prefer(available, must, size))
        except Exception:  # boundary: an error here would fail the pod, and the kubelet can choose by itself
            log.exception("preferred allocation failed", resource=self._plugin.resource, size=size)
            return ()
        if preferred and not _answers(preferred, set(available), set(must), size):
            log.error("preferred allocation dropped", resource=self._plugin.resource, size=size, ids=preferred)
            return ()
        return preferred

    def _checked_request(self, request: pb.AllocateRequest) -> tuple[str, ...]:
        """The ids of one container. Several could be served in part only, and a kubelet asks for one at a time."""
        if len(request.container_requests) != 1:
            raise _invalid(
                f"Allocate for {len(request.container_requests)} containers, where one at a time can be served"
            )
        ids = _checked_ids(request.container_requests[0].devices_ids)
        offers = self._plugin.offers.value
        if self._listed[0] is not offers:  # thousands, so gathered anew for another list only
            self._listed = (offers, frozenset(offer.id for offer in offers))
        unknown = sorted(set(ids) - self._listed[1])
        if unknown:
            raise RefusedError(
                RefusalReason.UNKNOWN_DEVICE,
                f"device {unknown[0]} is not offered as {self._plugin.resource}",
                code="INVALID_ARGUMENT",
                hint="it went away after the kubelet chose it; the pod can be created again",
            )
        return ids

    async def _refuse(self, context: Context, call: str, error: Exception) -> NoReturn:
        """Answer with a gRPC status: designed errors by their text, anything else as a bug with its trace."""
        resource = self._plugin.resource
        match error:
            case RefusedError():
                log.warning("refused", resource=resource, call=call, reason=error.reason, why=str(error))
                code, text = grpc.StatusCode[error.code], str(error)
            case TimeoutError():
                log.error("call timed out", resource=resource, call=call, deadline=self._deadline)
                code, text = grpc.StatusCode.DEADLINE_EXCEEDED, f"{call} took over {self._deadline:g} s; try again"
            case HamiError():
                log.warning("call failed", resource=resource, call=call, why=str(error))
                code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)
            case _:
                log.error("call broke", resource=resource, call=call, exc_info=error)
                code, text = grpc.StatusCode.INTERNAL, f"{call} broke: {type(error).__name__}; see hami-plugin's log"
        await context.abort(code, text[:MAX_DETAILS])
        raise AssertionError  # abort always raises; its signature does not say so


def _checked_ids(ids: Sequence[str]) -> tuple[str, ...]:
    if not ids:
        raise _invalid("no device ids")
    for device in ids:
        if not 0 < len(device) <= MAX_ID or not device.isprintable():
            raise _invalid(f"device id {device[:64]!r} of {len(device)} characters")
    if len(set(ids)) < len(ids):
        raise _invalid(f"{len(ids) - len(set(ids))} repeated device ids")
    return tuple(ids)


def _answers(preferred: Sequence[str], available: set[str], must: set[str], size: int) -> bool:
    chosen = set(preferred)
    return len(preferred) == len(chosen) == size and must <= chosen <= available


def _invalid(what: str) -> RefusedError:
    return RefusedError(
        RefusalReason.INVALID_REQUEST,
        f"a request with {what}",
        code="INVALID_ARGUMENT",
        hint=f"each container names at least one id, each id once, of 1 to {MAX_ID} printable characters",
    )
