"""A kubelet's device manager as a real gRPC peer on real sockets: registration, lists, admission, restarts.

It ships with ``hami-plugin demo``. It behaves as the kubelet does, including what is inconvenient for plugins: calls
name no pod, ids come in any order, init containers' ids are passed on without a call, and NUMA nodes are chosen before
a plugin is asked.

They are chosen by its topology manager. Each resource with NUMA nodes gives hints, sets of nodes that could serve the
request. One is taken of each, and the best intersection decides, by the number of free ids alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

import grpc

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.api import deviceplugin_pb2 as pb
from hami_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from hami_plugin.kubelet.api import podresources_pb2 as resources_pb
from hami_plugin.kubelet.api import podresources_pb2_grpc as podresources
from hami_plugin.kubelet.api import podresources_pb2_grpc as resources_rpc
from hami_plugin.kubelet.servicer import API_VERSION, allocate_response, answer_of, offers_of
from hami_plugin.model.delivery import Answer
from hami_plugin.model.ports import Offer
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.process.concurrency import Watched, cancel

Nodes = frozenset[int]
Policy = Literal["none", "best-effort", "restricted", "single-numa-node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """These NUMA nodes could serve a request. ``preferred``: it never takes fewer."""

    nodes: Nodes
    preferred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """What the manager decided for a container. ``nodes`` is None where any will do."""

    nodes: Nodes | None
    admitted: bool


def hints(listed: Mapping[str, int | None], free: Collection[str], count: int, known: Nodes) -> list[Hint] | None:
    """The hints for ``count`` of the ids ``listed`` with their nodes; None where no id has one.

    A node that the machine does not have is left out, as the kubelet does since 1.36.
    """
    if all(node is None for node in listed.values()):
        return None
    of_all, of_free = _counts(listed, listed), _counts(listed, free)
    masks = list(_subsets(known.intersection(of_all) or known))
    enough = [len(mask) for mask in masks if sum(of_all.get(node, 0) for node in mask) >= count]
    least = min(enough, default=len(known))
    return [
        Hint(nodes=mask, preferred=len(mask) == least)
        for mask in masks
        if sum(of_free.get(node, 0) for node in mask) >= count
    ]


def merged(wishes: Sequence[Sequence[Hint] | None], known: Nodes, policy: Policy) -> Affinity:
    """The best of all ways to take one hint of each resource. None is a resource that does not care."""
    if policy == "none":
        return Affinity(nodes=None, admitted=True)
    caring = [list(wish) for wish in wishes if wish is not None]
    impossible = any(not wish for wish in caring)
    if policy == "single-numa-node":
        caring = [[hint for hint in wish if len(hint.nodes) == 1 and hint.preferred] for wish in caring]
        impossible = impossible or any(not wish for wish in caring)
    caring = [wish for wish in caring if wish]
    most = max((min(len(hint.nodes) for hint in wish) for wish in caring), default=0)
    best = Hint(nodes=known, preferred=not caring)
    found = [one for chosen in product(*caring) if (one := _intersection(chosen)).nodes] if caring else []
    if found:
        best = min(found, key=lambda hint: _rank(hint, most))
    preferred = best.preferred and not impossible
    admitted = preferred or policy == "best-effort"
    anywhere = best.nodes == known and policy == "single-numa-node"
    return Affinity(nodes=None if anywhere or impossible else best.nodes, admitted=admitted)


def _intersection(chosen: Sequence[Hint]) -> Hint:
    nodes = frozenset.intersection(*(hint.nodes for hint in chosen))
    same = all(hint.nodes == chosen[0].nodes for hint in chosen)
    return Hint(nodes=nodes, preferred=same and all(hint.preferred for hint in chosen))


def _rank(hint: Hint, most: int) -> tuple[bool, int, int, int]:
    """Preferred ones first, the narrowest of them first. Of the others those that are as wide as the resource that
    needs most nodes, then narrower ones, then wider ones. Among equals, those with the lowest nodes.
    """
    width = len(hint.nodes)
    if hint.preferred:
        order = (0, width)
    elif width <= most:
        order = (0, most - width)
    else:
        order = (1, width)
    return (not hint.preferred, *order, sum(1 << node for node in hint.nodes))


def _counts(listed: Mapping[str, int | None], ids: Collection[str]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for one in ids:
        if (node := listed.get(one)) is not None:
            counts[node] = counts.get(node, 0) + 1
    return counts


def _subsets(nodes: Nodes) -> Iterator[Nodes]:
    """All but the empty one."""
    ordered = sorted(nodes)
    for size in range(1, len(ordered) + 1):
        yield from map(frozenset, combinations(ordered, size))


UNEXPECTED, NOT_ALIGNED, SHUTDOWN = "UnexpectedAdmissionError", "TopologyAffinityError", "NodeShutdown"


class AdmissionError(HamiError):
    """A pod that the kubelet does not admit: it fails with ``reason``. ``code`` is the plugin's status."""

    def __init__(self, message: str, *, code: str = "", hint: str = "", reason: str = UNEXPECTED) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.reason = reason


class StartError(HamiError):
    """A container that the kubelet does not start, because PreStartContainer failed; with the plugin's ``code``."""

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

        Ids without a node are at node -1, as a newer kubelet writes it; 1.20 writes 0.
        """
        by_node: dict[str, list[str]] = {}
        for one in self.ids:
            node = self.numa.get(one)
            by_node.setdefault("-1" if node is None else str(node), []).append(one)
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


class DeviceManager:
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
        """A plugin's newest list, which replaces the previous one."""
        self._offers[resource] = tuple(offers)
        self._healthy[resource] = frozenset(offer.id for offer in offers if offer.healthy)
        self._numa[resource] = {offer.id: offer.numa for offer in offers}

    def fail(self, resource: str) -> None:
        """The plugin's stream ended: every device is unhealthy until the next list."""
        self.listed(resource, [replace(offer, healthy=False) for offer in self.offers(resource)])

    def forget_lists(self) -> None:
        """After a restart, resources are known by name, without devices."""
        for resource in self._offers:
            self.listed(resource, ())

    def healthy(self, resource: str) -> frozenset[str]:
        return self._healthy.get(resource, frozenset())

    def written(self) -> tuple[str, str]:
        """The entries and devices of a checkpoint. Each is serialized once."""
        self._entries = {
            slot: known if (known := self._entries.get(slot)) and known[0] is held else (held, held.written(*slot))
            for slot, held in self.allotments.items()
        }
        devices = {resource: sorted(healthy) for resource, healthy in self._healthy.items()}
        return ",".join(text for _held, text in self._entries.values()), _json(devices)

    def allotment(self, resource: str, ids: tuple[str, ...], answer: Answer) -> Allotment:
        """These ids, with the NUMA nodes that they were listed with."""
        numa = self.numa(resource)
        return Allotment(ids=ids, answer=answer, numa={one: numa.get(one) for one in ids})

    def numa(self, resource: str) -> Mapping[str, int | None]:
        """The NUMA node that each id was listed with."""
        return self._numa.get(resource, {})

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
        """Healthy ids that nobody holds. ``AdmissionError`` if they are fewer than ``needed``."""
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
    """Ids that a pod's init containers leave to later containers."""

    def __init__(self) -> None:
        self._ids: dict[str, set[str]] = {}

    def of(self, resource: str) -> frozenset[str]:
        return frozenset(self._ids.get(resource, ()))

    def after(self, container: ContainerView, held: Mapping[str, Allotment]) -> None:
        """A plain init container ends and leaves its ids; any other keeps them."""
        for resource, allotment in held.items():
            ids = self._ids.setdefault(resource, set())
            if container.init and not container.restartable:
                ids.update(allotment.ids)
            else:
                ids.difference_update(allotment.ids)


def wanted(container: ContainerView, resources: Iterable[str]) -> dict[str, int]:
    """Resource → amount, for resources that plugins have registered. The kubelet ignores all others."""
    return {resource: amount for resource in resources if (amount := container.amount(resource)) > 0}


CHECKPOINT = "kubelet_internal_checkpoint"


def write_checkpoint(path: Path, ledger: DeviceManager) -> None:
    """Replace the file. The checksum is 0: the kubelet hashes Go's representation of the data."""
    entries, devices = ledger.written()
    new = os.fspath(path.with_name(f".{path.name}.new"))
    with open(new, "wb", buffering=0) as file:  # noqa: PTH123  # after each Allocate, and a Path is slow
        text = f'{{"Data":{{"PodDeviceEntries":[{entries}],"RegisteredDevices":{devices}}},"Checksum":0}}'
        file.write(text.encode())
    os.replace(new, path)  # noqa: PTH105


_json = json.JSONEncoder(separators=(",", ":")).encode


# The kubelet leaves gRPC's limit of 4 MiB for a received message as it is, and so do we.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


class Rivals(StrEnum):
    """What becomes of two plugins of one resource, by the kubelet's version. Since 1.11 none ends the first one's
    stream, and each takes the lists of both.

    ``BY_SOCKET``, since 1.36: both are known. The last to register is asked; when one ends, the other one stays. A
    second registration on a socket that is in use is refused, and makes the kubelet forget to notice its end.
    ``BY_RESOURCE``, 1.26 to 1.35: when the first one ends, the second one is dropped; and none, once a registration of
    the resource has failed, until the next one.
    ``NEWEST``, 1.11 to 1.25: the first one is known no more.
    ``REPLACED``, up to 1.10: its stream is ended, too.
    """

    BY_SOCKET = "by socket"
    BY_RESOURCE = "by resource"
    NEWEST = "newest"
    REPLACED = "replaced"


class PluginConnection:
    """``resource`` as served on ``socket``. ``changed`` is called after each list and at the stream's end.

    Clear ``reading`` to stop reading until it is set again.
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
            await cancel(self._stream)
        await self._channel.close(None)

    async def preferred(self, available: Iterable[str], must: Iterable[str], size: int) -> frozenset[str]:
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        with self._closing("GetPreferredAllocation", AdmissionError):
            answer = await self._stub.GetPreferredAllocation(
                pb.PreferredAllocationRequest(container_requests=[request])
            )
        return frozenset(device for container in answer.container_responses for device in container.deviceIDs)

    async def allocate(self, ids: Sequence[str]) -> Answer:
        """Without a deadline, as the kubelet does it."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        with self._closing("Allocate", AdmissionError):
            answers = (await self._stub.Allocate(request)).container_responses
        if not answers:
            raise AdmissionError("no containers return in allocation response")
        return answer_of(answers[0])

    async def pre_start(self, ids: Sequence[str], *, within: float) -> None:
        with self._closing("PreStartContainer", StartError):
            await self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=within)

    @contextmanager
    def _closing(self, call: str, error: type[AdmissionError | StartError]) -> Iterator[None]:
        """A call that is under way when the kubelet drops the plugin fails; gRPC would cancel whoever waits for it."""
        try:
            yield
        except asyncio.CancelledError:
            if not self.ended:
                raise
            raise error(f"{call} failed: the client connection is closing", code="CANCELLED") from None

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

    def __init__(self, ledger: DeviceManager, *, entry_per_device: bool = True) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How this kubelet behaves. Without ``dial_back`` it accepts a registration and never calls.

    ``rivals`` is the version's way with two plugins of one resource.
    Times are in seconds; ``grace`` is how long the devices of a lost plugin stay in the capacity. ``numa`` are the
    machine's NUMA nodes, ``cpus`` those that have CPUs for a container alone; None where containers share all.
    One that is ``shutting_down`` with its machine admits nobody; pods with devices end before the daemon does.
    """

    versions: tuple[str, ...] = (API_VERSION,)
    dial_back: bool = True
    dial_timeout: float = 10.0
    pre_start_timeout: float = 30.0
    grace: float = 300.0
    entry_per_device: bool = True
    topology: Policy = "none"
    numa: Nodes = frozenset({0, 1})
    cpus: Nodes | None = None
    rivals: Rivals = Rivals.BY_SOCKET
    shutting_down: bool = False


class FakeKubelet(rpc.RegistrationServicer):
    """The kubelet of one node. After ``start``, ``admit`` and ``remove`` pods.

    ``manners`` may be replaced at any time. ``changes`` counts all changes; ``until`` waits for one.
    Clear ``calling`` to hold it up between the choice of a plugin for Allocate and the call, as a busy machine may.
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
        self.calling = asyncio.Event()
        self.calling.set()
        self.registrations: list[pb.RegisterRequest] = []
        self.ledger = DeviceManager()
        self._plugins: dict[str, PluginConnection] = {}
        self._connected: dict[str, list[PluginConnection]] = {}
        self._overlooked: list[PluginConnection] = []
        self._known: dict[str, PluginConnection] = {}
        self._dropping: set[asyncio.Future[None]] = set()
        self._lost: dict[str, float] = {}
        self._started: set[tuple[str, str]] = set()
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
        for plugin in [one for connected in self._connected.values() for one in connected]:
            await plugin.close()
        self._plugins.clear()
        self._connected.clear()
        self._overlooked.clear()
        self._known.clear()
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        if not killed:
            for socket in (self.socket, self.pod_resources_socket):
                if socket:
                    socket.unlink(missing_ok=True)
        self._happened()

    async def restart(self, *, checkpoint_removed: bool = False) -> None:
        """Stop and start. Allotments are remembered, unless the checkpoint has been removed; devices are not, until
        their plugins register again.
        """
        await self.stop()
        self.ledger.forget_lists()
        if checkpoint_removed:
            (self.directory / CHECKPOINT).unlink(missing_ok=True)
            self.ledger.allotments.clear()
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
        """The connection in use. ``HamiError`` if no plugin is registered."""
        try:
            return self._plugins[resource]
        except KeyError:
            raise HamiError(f"no plugin is registered for {resource}", hint="wait for its registration") from None

    async def second_stream(self, resource: str) -> PluginConnection:
        """Open another stream to a registered plugin. The caller closes it."""
        extra = PluginConnection(resource, self.plugin(resource).socket, lambda _: self._happened())
        await extra.connect(within=self.manners.dial_timeout)
        return extra

    async def until(self, condition: Callable[[], bool], *, within: float = 60.0) -> None:
        """Wait until ``condition`` holds. TimeoutError after the timeout."""
        async with asyncio.timeout(within):
            while not condition():
                await self.changes.changed(self.changes.version)

    async def admit(self, pod: PodView) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Allocate for every container in order, one pod at a time. Container → resource → ids.

        ``AdmissionError`` if it fails; the pod then holds nothing. A pod that was admitted before keeps its ids; after
        a restart it fails if a container has not started and no plugin is back.
        """
        async with self._admission:
            if self.manners.shutting_down:
                raise AdmissionError("Pod was rejected as the node is shutting down.", reason=SHUTDOWN)
            self.ledger.pods[pod.uid] = pod
            reuse = Reuse()
            try:
                for container in pod.containers:
                    asked = wanted(container, self.ledger.resources)
                    held = self.ledger.held_by(pod.uid, container.name)
                    nodes = self._affinity({r: n for r, n in asked.items() if r not in held}, reuse)
                    for resource, amount in asked.items():
                        slot = (pod.uid, container.name, resource)
                        await self._allocate(slot, amount, reuse.of(resource), nodes)
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
        """Call PreStartContainer of each plugin that requires it, and return the plugins' answers to Allocate."""
        merged = Answer()
        allotted = self.ledger.held_by(uid, container)
        for view in self.ledger.pods[uid].containers if uid in self.ledger.pods else ():
            if view.name == container and (missing := set(wanted(view, self.ledger.resources)) - allotted.keys()):
                raise StartError(
                    f"no devices found allocated in local cache for pod {uid}, container {container}, "
                    f"resource {min(missing)}"
                )
        for resource, held in allotted.items():
            plugin = self.plugin(resource)
            if plugin.pre_start_required:
                try:
                    await plugin.pre_start(held.ids, within=self.manners.pre_start_timeout)
                except grpc.aio.AioRpcError as error:
                    raise StartError(
                        f"PreStartContainer failed for {container}: {error.code().name}: {error.details()}",
                        code=error.code().name,
                    ) from error
            merged = merged.merged(held.answer)
        self._started.add((uid, container))
        return merged

    def give(self, pod: PodView, container: str, resource: str, allotment: Allotment) -> None:
        """Record what the container has, and write the checkpoint."""
        self.ledger.pods[pod.uid] = pod
        self.ledger.allotments[pod.uid, container, resource] = allotment
        write_checkpoint(self.directory / CHECKPOINT, self.ledger)

    def remove(self, uid: str) -> None:
        """Release the ids of a pod that has ended."""
        self.ledger.remove(uid)
        self._started = {one for one in self._started if one[0] != uid}
        self._happened()

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.Empty:  # noqa: N802  # gRPC's name
        """Dial the plugin back, then answer. The newest plugin of a resource is the one that is asked."""
        self.registrations.append(request)
        self._happened()
        wrong = self._wrong(request)
        if wrong:
            await context.abort(grpc.StatusCode.UNKNOWN, wrong)
        if self.manners.dial_back:
            plugin = PluginConnection(request.resource_name, self.directory / request.endpoint, self._heard)
            if self._in_use(plugin):
                await context.abort(grpc.StatusCode.UNKNOWN, f"device plugin already connected: {plugin.socket}")
            self._known[plugin.resource] = plugin
            try:
                await plugin.connect(within=self.manners.dial_timeout)
            except grpc.aio.AioRpcError as error:
                self._known.pop(plugin.resource, None)
                await plugin.close()
                await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error.details()}")
            self._connected.setdefault(plugin.resource, []).append(plugin)
            before, self._plugins[plugin.resource] = self._plugins.get(plugin.resource), plugin
            self._lost.pop(plugin.resource, None)
            if before and self.manners.rivals is Rivals.REPLACED:
                await before.close()
        return pb.Empty()

    def _in_use(self, plugin: PluginConnection) -> bool:
        """Whether the plugin is connected already. A kubelet that refuses it will not notice the first one's end."""
        first = [one for one in self._connected.get(plugin.resource, ()) if one.socket == plugin.socket]
        if not first or self.manners.rivals is not Rivals.BY_SOCKET:
            return False
        self._overlooked += first
        return True

    def _affinity(self, asked: Mapping[str, int], reuse: Reuse) -> Nodes | None:
        """The NUMA nodes that a container's ids come from; None where any will do."""
        manners, ledger = self.manners, self.ledger
        wishes: list[Sequence[Hint] | None] = []
        for resource, amount in asked.items():
            free = (ledger.healthy(resource) - ledger.taken(resource)) | reuse.of(resource)
            wishes.append(hints(ledger.numa(resource), free, amount, manners.numa))
        if manners.cpus is not None:
            wishes.append([Hint(nodes=frozenset({node}), preferred=True) for node in sorted(manners.cpus)])
        affinity = merged(wishes, manners.numa, manners.topology)
        if not affinity.admitted:
            raise AdmissionError("Resources cannot be allocated with Topology locality", reason=NOT_ALIGNED)
        return affinity.nodes

    async def _allocate(self, slot: Slot, amount: int, reusable: frozenset[str], nodes: Nodes | None) -> None:
        uid, container, resource = slot
        if slot in self.ledger.allotments:
            if (uid, container) not in self._started:
                self.ledger.free(resource, 0)
            return
        try:
            ids = await self._choose(resource, amount, reusable, nodes)
            plugin = self.plugin(resource)
            await self.calling.wait()
            answer = await plugin.allocate(ids)
        except grpc.aio.AioRpcError as error:
            raise AdmissionError(
                f"Allocate failed due to rpc error: code = {error.code().name} desc = {error.details()}",
                code=error.code().name,
            ) from error
        self.give(self.ledger.pods[uid], container, resource, self.ledger.allotment(resource, ids, answer))

    async def _choose(
        self, resource: str, amount: int, reusable: frozenset[str], nodes: Nodes | None
    ) -> tuple[str, ...]:
        """Ids that init containers left come first. For the rest, the plugin may state a preference.

        If more ids than needed are free at the container's NUMA ``nodes``, it is asked about these only; if not, all of
        them are taken without asking.
        """
        chosen = self._some(reusable, amount)
        if len(chosen) == amount:
            return chosen
        free = self.ledger.free(resource, amount - len(chosen))
        numa = self.ledger.numa(resource)
        aligned = frozenset(one for one in free if nodes is not None and numa.get(one) in nodes)
        if amount - len(chosen) < len(aligned):
            free = aligned
        else:
            chosen += self._some(aligned, amount - len(chosen))
            free -= aligned
            if len(chosen) == amount:
                return chosen
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
        """Up to ``count`` of the ids, in random order."""
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
        """A list arrived, or a stream ended."""
        if not plugin.ended:
            self.ledger.listed(plugin.resource, plugin.offers.value)
            write_checkpoint(self.directory / CHECKPOINT, self.ledger)
        elif plugin not in self._overlooked and plugin in (connected := self._connected.get(plugin.resource, [])):
            connected.remove(plugin)
            self._ended(plugin, connected)
        self._happened()

    def _ended(self, plugin: PluginConnection, others: Sequence[PluginConnection]) -> None:
        """What the end of a stream means for its resource."""
        newest = self._plugins.get(plugin.resource) is plugin
        match self.manners.rivals:
            case Rivals.BY_SOCKET if others:
                self._plugins[plugin.resource] = others[-1]
                return
            case Rivals.BY_RESOURCE:
                known = self._known.pop(plugin.resource, None)
                if known is None:
                    return
                if not known.ended:
                    dropped = asyncio.ensure_future(known.close())
                    self._dropping.add(dropped)
                    dropped.add_done_callback(self._dropping.discard)
            case Rivals.NEWEST | Rivals.REPLACED if not newest:
                return
        self.ledger.fail(plugin.resource)
        self._lost[plugin.resource] = asyncio.get_running_loop().time()

    async def _serve(self, server: grpc.aio.Server, path: Path) -> None:
        # Bound beside its final path, so that gRPC does not remove it: a killed kubelet leaves its socket.
        bound = path.with_name(f".{path.name}.new")
        server.add_insecure_port(f"unix://{bound.absolute()}")
        await server.start()
        self._servers.append(server)
        bound.rename(path)

    def _happened(self) -> None:
        self.changes.set(self.changes.value + 1)
