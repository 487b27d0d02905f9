"""A kubelet's device manager as a real gRPC peer on real sockets: registration, lists, admission, restarts.

It ships with ``hami-plugin demo``. It behaves as the kubelet does without a topology policy, including what plugins
find inconvenient: no names in any call, ids in any order, init containers' ids handed on without asking.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from hami_plugin.aio import Watched, cancelled
from hami_plugin.errors import HamiError
from hami_plugin.kubelet.podresources.v1 import podresources_pb2 as resources_pb
from hami_plugin.kubelet.podresources.v1 import podresources_pb2_grpc as podresources
from hami_plugin.kubelet.podresources.v1 import podresources_pb2_grpc as resources_rpc
from hami_plugin.kubelet.servicer import API_VERSION, allocate_response, answer_of, offers_of
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2 as pb
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2_grpc as rpc
from hami_plugin.model.delivery import Answer
from hami_plugin.model.ports import Offer
from hami_plugin.model.views import ContainerView, PodView


class AdmissionError(HamiError):
    """A pod that the kubelet does not admit: it becomes Failed, with ``reason``. ``code`` is the plugin's status."""

    reason = "UnexpectedAdmissionError"

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """The ids of one resource that one container holds, in the order of its Allocate; ``numa`` gives their nodes."""

    ids: tuple[str, ...]
    answer: Answer
    numa: Mapping[str, int | None] = field(default_factory=dict)

    def written(self, uid: str, container: str, resource: str) -> str:
        """As the checkpoint has it, where an answer is an AllocateResponse's container in base64.

        The kubelet writes ids without a node as if they were at node 0.
        """
        by_node: dict[str, list[str]] = {}
        for one in self.ids:
            by_node.setdefault(str(self.numa.get(one) or 0), []).append(one)
        entry = {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": by_node,
            "AllocResp": base64.b64encode(allocate_response(self.answer).SerializeToString()).decode(),
        }
        return _json(entry)


Slot = tuple[str, str, str]
"""Pod UID, container, resource."""


class Ledger:
    """The devices that plugins listed, and who holds them. Allotments outlive a restart, lists do not."""

    def __init__(self) -> None:
        self.pods: dict[str, PodView] = {}
        self.allotments: dict[Slot, Allotment] = {}
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._healthy: dict[str, frozenset[str]] = {}
        self._entries: dict[Slot, tuple[Allotment, str]] = {}
        self._numa: dict[str, Mapping[str, int | None]] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource that a plugin ever registered."""
        return tuple(sorted(self._offers))

    def offers(self, resource: str) -> tuple[Offer, ...]:
        return self._offers.get(resource, ())

    def listed(self, resource: str, offers: Sequence[Offer]) -> None:
        """A plugin's newest list: it replaces the one before."""
        self._offers[resource] = tuple(offers)
        self._healthy[resource] = frozenset(offer.id for offer in offers if offer.healthy)
        self._numa[resource] = {offer.id: offer.numa for offer in offers}

    def fail(self, resource: str) -> None:
        """The plugin's stream ended: every device is unhealthy until the next list."""
        self.listed(resource, [replace(offer, healthy=False) for offer in self.offers(resource)])

    def forget_lists(self) -> None:
        """A restart: resources stay known by name, with no device."""
        for resource in self._offers:
            self.listed(resource, ())

    def healthy(self, resource: str) -> frozenset[str]:
        return self._healthy.get(resource, frozenset())

    def written(self) -> tuple[str, str]:
        """The entries and the devices of a checkpoint. Each is put into words once."""
        self._entries = {
            slot: known if (known := self._entries.get(slot)) and known[0] is held else (held, held.written(*slot))
            for slot, held in self.allotments.items()
        }
        devices = {resource: sorted(healthy) for resource, healthy in self._healthy.items()}
        return ",".join(text for _held, text in self._entries.values()), _json(devices)

    def allotment(self, resource: str, ids: tuple[str, ...], answer: Answer) -> Allotment:
        """These ids, at the nodes that they were listed with."""
        numa = self._numa.get(resource, {})
        return Allotment(ids=ids, answer=answer, numa={one: numa.get(one) for one in ids})

    def taken(self, resource: str) -> frozenset[str]:
        return frozenset(device for slot, held in self.allotments.items() if slot[2] == resource for device in held.ids)

    def held_by(self, uid: str, container: str) -> dict[str, Allotment]:
        """Resource → allotment of one container."""
        return {slot[2]: held for slot, held in self.allotments.items() if slot[:2] == (uid, container)}

    def remove(self, uid: str) -> None:
        """The pod is gone: its ids are free."""
        self.pods.pop(uid, None)
        self.allotments = {slot: held for slot, held in self.allotments.items() if slot[0] != uid}

    def free(self, resource: str, needed: int) -> frozenset[str]:
        """Healthy ids that nobody holds. ``AdmissionError`` when they are fewer than ``needed``."""
        healthy = self.healthy(resource)
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        free = healthy - self.taken(resource)
        if len(free) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(free)}"
            )
        return free


class Reuse:
    """Ids that a pod's init containers leave to the containers after them."""

    def __init__(self) -> None:
        self._ids: dict[str, set[str]] = {}

    def of(self, resource: str) -> frozenset[str]:
        return frozenset(self._ids.get(resource, ()))

    def after(self, container: ContainerView, held: Mapping[str, Allotment]) -> None:
        """A plain init container ends and leaves its ids; any other keeps what it took."""
        for resource, allotment in held.items():
            ids = self._ids.setdefault(resource, set())
            if container.init and not container.restartable:
                ids.update(allotment.ids)
            else:
                ids.difference_update(allotment.ids)


def wanted(container: ContainerView, resources: Iterable[str]) -> dict[str, int]:
    """Resource → amount, of those resources that plugins have registered. The kubelet ignores all others."""
    return {resource: amount for resource in resources if (amount := container.amount(resource)) > 0}


CHECKPOINT = "kubelet_internal_checkpoint"


def write_checkpoint(path: Path, ledger: Ledger) -> None:
    """Replace the file. Its checksum is over Go's own view of the data, which nobody else computes; it is 0."""
    entries, devices = ledger.written()
    new = os.fspath(path.with_name(f".{path.name}.new"))
    with open(new, "wb", buffering=0) as file:  # noqa: PTH123  # after each Allocate, and a Path is slow
        text = f'{{"Data":{{"PodDeviceEntries":[{entries}],"RegisteredDevices":{devices}}},"Checksum":0}}'
        file.write(text.encode())
    os.replace(new, path)  # noqa: PTH105


_json = json.JSONEncoder(separators=(",", ":")).encode


# The kubelet leaves gRPC's limit of 4 MiB for a received message as it is, and so do we.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


class PluginConnection:
    """``resource`` as served on ``socket``. ``changed`` is called after each list and at the stream's end.

    Clear ``reading`` to be a slow reader; nothing is read until it is set again.
    """

    def __init__(self, resource: str, socket: Path, changed: Callable[[PluginConnection], None]) -> None:
        self.resource = resource
        self.socket = socket
        self.offers: Watched[tuple[Offer, ...]] = Watched(())
        self.lists = 0
        self.ended = ""
        self.reading = asyncio.Event()
        self.reading.set()
        self.pre_start_required = False
        self.preferred_available = False
        self._changed = changed
        self._channel = grpc.aio.insecure_channel(f"unix://{socket.absolute()}", options=_OPTIONS)
        self._stub = rpc.DevicePluginStub(self._channel)
        self._stream: asyncio.Task[None] | None = None

    async def connect(self, *, within: float) -> None:
        """Dial and ask for options; ``grpc.aio.AioRpcError`` after ``within`` seconds. Then listen to lists."""
        options = await self._stub.GetDevicePluginOptions(pb.Empty(), timeout=within, wait_for_ready=True)
        self.pre_start_required = options.pre_start_required
        self.preferred_available = options.get_preferred_allocation_available
        self._stream = asyncio.create_task(self._listen(), name=f"kubelet listens to {self.resource}")

    async def close(self) -> None:
        """End the stream, as a kubelet that stops or has a newer registration does."""
        if self._stream:
            await cancelled(self._stream)
        await self._channel.close(None)

    async def preferred(self, available: Iterable[str], must: Iterable[str], size: int) -> frozenset[str]:
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        answer = await self._stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
        return frozenset(device for container in answer.container_responses for device in container.deviceIDs)

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """Without a deadline, as the kubelet does it."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answers = (await self._stub.Allocate(request)).container_responses
        if not answers:
            raise AdmissionError("no containers return in allocation response")
        return answer_of(answers[0])

    async def pre_start(self, ids: Sequence[str], *, within: float) -> None:
        await self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=within)

    async def _listen(self) -> None:
        try:
            call = self._stub.ListAndWatch(pb.Empty())
            while True:
                await self.reading.wait()
                message = await call.read()
                if not isinstance(message, pb.ListAndWatchResponse):
                    self.ended = "end of stream"
                    return
                self.lists += 1
                self.offers.set(offers_of(message))
                self._changed(self)
        except grpc.aio.AioRpcError as error:
            self.ended = f"{error.code().name}: {error.details()}"
        except asyncio.CancelledError:
            self.ended = "closed by the kubelet"
            raise
        finally:
            self.offers.close()
            self._changed(self)


Context = grpc.aio.ServicerContext[Any, Any]


class PodResourcesServicer(resources_rpc.PodResourcesListerServicer):
    """Lists app containers and native sidecars. With ``entry_per_device``, as a kubelet that knows NUMA nodes."""

    def __init__(self, ledger: Ledger, *, entry_per_device: bool = True) -> None:
        self._ledger = ledger
        self.entry_per_device = entry_per_device

    async def List(  # noqa: N802  # gRPC's name
        self,
        request: resources_pb.ListPodResourcesRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> resources_pb.ListPodResourcesResponse:
        pods = [self._pod(pod) for pod in self._ledger.pods.values()]
        return resources_pb.ListPodResourcesResponse(pod_resources=pods)

    async def Get(  # noqa: N802
        self,
        request: resources_pb.GetPodResourcesRequest,
        context: Context,
    ) -> resources_pb.GetPodResourcesResponse:
        for pod in self._ledger.pods.values():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return resources_pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.pod_name} not found")
        raise AssertionError  # abort always raises

    async def GetAllocatableResources(  # noqa: N802  # gRPC's name
        self,
        request: resources_pb.AllocatableResourcesRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> resources_pb.AllocatableResourcesResponse:
        return resources_pb.AllocatableResourcesResponse(
            devices=[
                resources_pb.ContainerDevices(resource_name=resource, device_ids=sorted(self._ledger.healthy(resource)))
                for resource in self._ledger.resources
            ]
        )

    def _pod(self, pod: PodView) -> resources_pb.PodResources:
        return resources_pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                resources_pb.ContainerResources(
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

    def _entries(self, resource: str, held: Allotment) -> Iterator[resources_pb.ContainerDevices]:
        if not self.entry_per_device:
            yield resources_pb.ContainerDevices(resource_name=resource, device_ids=held.ids)
            return
        numa = {offer.id: offer.numa for offer in self._ledger.offers(resource)}
        for device in held.ids:
            node = numa.get(device)
            topology = None if node is None else resources_pb.TopologyInfo(nodes=[resources_pb.NUMANode(ID=node)])
            yield resources_pb.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


class StartError(HamiError):
    """A container that the kubelet does not start, since PreStartContainer failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How this kubelet behaves. ``dial_back`` False: it accepts a registration and then never calls.

    Times are in seconds; ``grace`` is how long the devices of a lost plugin stay in the capacity.
    """

    versions: tuple[str, ...] = (API_VERSION,)
    dial_back: bool = True
    dial_timeout: float = 10.0
    pre_start_timeout: float = 30.0
    grace: float = 300.0
    entry_per_device: bool = True


class FakeKubelet(rpc.RegistrationServicer):
    """The kubelet of one node. ``start`` it; pods come by ``admit`` and go by ``remove``.

    ``manners`` may be replaced at any time. ``changes`` counts whatever happens; ``until`` waits on it.
    """

    def __init__(
        self,
        directory: Path,
        pod_resources_socket: Path | None = None,
        *,
        manners: Manners | None = None,
        seed: int = 1,
    ) -> None:
        self.directory = directory
        self.pod_resources_socket = pod_resources_socket
        self.manners = manners or Manners()
        self.changes = Watched(0)
        self.registrations: list[pb.RegisterRequest] = []
        self.ledger = Ledger()
        self._plugins: dict[str, PluginConnection] = {}
        self._lost: dict[str, float] = {}
        self._servers: list[grpc.aio.Server] = []
        self._admission = asyncio.Lock()
        self._random = random.Random(seed)  # noqa: S311  # an order, not a secret

    @property
    def socket(self) -> Path:
        return self.directory / "kubelet.sock"

    async def start(self) -> None:
        """Remove every socket in the directory, then serve."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)
        if self.pod_resources_socket:
            server = grpc.aio.server()
            servicer = PodResourcesServicer(self.ledger, entry_per_device=self.manners.entry_per_device)
            podresources.add_PodResourcesListerServicer_to_server(servicer, server)
            self.pod_resources_socket.parent.mkdir(parents=True, exist_ok=True)
            await self._serve(server, self.pod_resources_socket)
        registration = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, registration)
        await self._serve(registration, self.socket)

    async def stop(self, *, killed: bool = False) -> None:
        """End the streams and stop serving. A killed kubelet leaves its sockets behind."""
        for plugin in (*self._plugins.values(),):
            await plugin.close()
        self._plugins.clear()
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        if not killed:
            for socket in (self.socket, self.pod_resources_socket):
                if socket:
                    socket.unlink(missing_ok=True)
        self._happened()

    async def restart(self) -> None:
        """Stop and start. Allotments are remembered; devices are not, until their plugins register again."""
        await self.stop()
        self.ledger.forget_lists()
        self._lost.clear()
        await self.start()

    def registered(self, resource: str) -> bool:
        plugin = self._plugins.get(resource)
        return plugin is not None and not plugin.ended

    def capacity(self, resource: str) -> int:
        """Devices on the node's status, healthy or not. A lost plugin's stay for ``grace`` seconds."""
        lost = self._lost.get(resource)
        if lost is not None and asyncio.get_running_loop().time() - lost > self.manners.grace:
            return 0
        return len(self.ledger.offers(resource))

    def allocatable(self, resource: str) -> int:
        """Healthy devices on the node's status, free or not."""
        return len(self.ledger.healthy(resource))

    def plugin(self, resource: str) -> PluginConnection:
        """The connection in use. ``HamiError`` when no plugin is registered."""
        try:
            return self._plugins[resource]
        except KeyError:
            raise HamiError(f"no plugin is registered for {resource}", hint="wait for its registration") from None

    async def second_stream(self, resource: str) -> PluginConnection:
        """Listen to a registered plugin once more. The caller closes it."""
        extra = PluginConnection(resource, self.plugin(resource).socket, lambda _: self._happened())
        await extra.connect(within=self.manners.dial_timeout)
        return extra

    async def until(self, condition: Callable[[], bool], *, within: float = 10.0) -> None:
        """Wait until ``condition`` holds. TimeoutError when it does not within the time."""
        async with asyncio.timeout(within):
            while not condition():
                await self.changes.changed(self.changes.version)

    async def admit(self, pod: PodView) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Allocate for every container in order, one pod at a time. Container → resource → ids.

        ``AdmissionError`` when it fails; the pod then holds nothing. A pod that is admitted already keeps what it has.
        """
        async with self._admission:
            self.ledger.pods[pod.uid] = pod
            reuse = Reuse()
            try:
                for container in pod.containers:
                    for resource, amount in wanted(container, self.ledger.resources).items():
                        await self._allocate(pod, container, resource, amount, reuse.of(resource))
                    reuse.after(container, self.ledger.held_by(pod.uid, container.name))
            except BaseException:  # also when the call is cancelled: a pod that was not admitted holds nothing
                self.ledger.remove(pod.uid)
                raise
            finally:
                self._happened()
        return {
            container.name: {
                resource: held.ids for resource, held in self.ledger.held_by(pod.uid, container.name).items()
            }
            for container in pod.containers
        }

    async def start_container(self, uid: str, container: str) -> Answer:
        """Confirm the start with each plugin that asked for it, and give out what the plugins answered to Allocate."""
        merged = Answer()
        for resource, held in self.ledger.held_by(uid, container).items():
            plugin = self.plugin(resource)
            if plugin.pre_start_required:
                try:
                    await plugin.pre_start(held.ids, within=self.manners.pre_start_timeout)
                except grpc.aio.AioRpcError as error:
                    raise StartError(
                        f"PreStartContainer failed for {container}: {error.code().name}: {error.details()}"
                    ) from error
            merged = merged.merged(held.answer)
        return merged

    def give(self, pod: PodView, container: str, resource: str, allotment: Allotment) -> None:
        """The container has this now, which is written down at once."""
        self.ledger.pods[pod.uid] = pod
        self.ledger.allotments[pod.uid, container, resource] = allotment
        write_checkpoint(self.directory / CHECKPOINT, self.ledger)

    def remove(self, uid: str) -> None:
        """The pod has ended: its ids are free."""
        self.ledger.remove(uid)
        self._happened()

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.Empty:  # noqa: N802  # gRPC's name
        """Dial the plugin back, then answer. The newest registration of a resource replaces the one before."""
        self.registrations.append(request)
        self._happened()
        wrong = self._wrong(request)
        if wrong:
            await context.abort(grpc.StatusCode.UNKNOWN, wrong)
        if self.manners.dial_back:
            plugin = PluginConnection(request.resource_name, self.directory / request.endpoint, self._heard)
            try:
                await plugin.connect(within=self.manners.dial_timeout)
            except grpc.aio.AioRpcError as error:
                await plugin.close()
                await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error.details()}")
            before = self._plugins.get(plugin.resource)
            self._plugins[plugin.resource] = plugin
            self._lost.pop(plugin.resource, None)
            if before:
                await before.close()
        return pb.Empty()

    async def _allocate(
        self, pod: PodView, container: ContainerView, resource: str, amount: int, reusable: frozenset[str]
    ) -> None:
        slot = (pod.uid, container.name, resource)
        if slot in self.ledger.allotments:
            return
        try:
            ids = await self._choose(resource, amount, reusable)
            answer = await self.plugin(resource).allocate(ids)
        except grpc.aio.AioRpcError as error:
            raise AdmissionError(
                f"Allocate failed due to rpc error: code = {error.code().name} desc = {error.details()}",
                code=error.code().name,
            ) from error
        self.give(pod, container.name, resource, self.ledger.allotment(resource, ids, answer))

    async def _choose(self, resource: str, amount: int, reusable: frozenset[str]) -> tuple[str, ...]:
        """Ids that init containers left come first. For the rest the plugin is asked, and may leave it to chance."""
        chosen = self._some(reusable, amount)
        if len(chosen) == amount:
            return chosen
        free = self.ledger.free(resource, amount - len(chosen))
        preferred = await self._preferred(resource, free, chosen, amount)
        for source in (preferred & free, free):
            chosen += self._some(source - set(chosen), amount - len(chosen))
        return chosen

    async def _preferred(
        self, resource: str, free: frozenset[str], chosen: tuple[str, ...], amount: int
    ) -> frozenset[str]:
        plugin = self.plugin(resource)
        if not plugin.preferred_available:
            return frozenset()
        return await plugin.preferred(self._some({*free, *chosen}, len(free) + len(chosen)), chosen, amount)

    def _some(self, ids: Iterable[str], count: int) -> tuple[str, ...]:
        """Up to ``count`` of the ids, in no order that a plugin could rely on."""
        pool = sorted(ids)
        return tuple(self._random.sample(pool, min(count, len(pool))))

    def _wrong(self, request: pb.RegisterRequest) -> str:
        if request.version not in self.manners.versions:
            supported = ", ".join(self.manners.versions)
            return f"requested API version {request.version!r} is not supported by kubelet, which supports {supported}"
        if "/" in request.endpoint or not request.endpoint:
            return f"endpoint {request.endpoint!r} is not a base name"
        if "/" not in request.resource_name:
            return f"the ResourceName {request.resource_name!r} is invalid"
        return ""

    def _heard(self, plugin: PluginConnection) -> None:
        """A list came, or a stream ended. A connection that was replaced has no say any more."""
        if self._plugins.get(plugin.resource, plugin) is plugin:
            if plugin.ended:
                self.ledger.fail(plugin.resource)
                self._lost[plugin.resource] = asyncio.get_running_loop().time()
            else:
                self.ledger.listed(plugin.resource, plugin.offers.value)
        self._happened()

    async def _serve(self, server: grpc.aio.Server, path: Path) -> None:
        # Bound beside its place, so that gRPC does not remove it at the end: a killed kubelet leaves its socket.
        bound = path.with_name(f".{path.name}.new")
        server.add_insecure_port(f"unix://{bound.absolute()}")
        await server.start()
        self._servers.append(server)
        bound.rename(path)

    def _happened(self) -> None:
        self.changes.set(self.changes.value + 1)
