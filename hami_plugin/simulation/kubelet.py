"""A kubelet's device manager as a real gRPC peer on real sockets: registration, lists, admission, restarts.

It ships with ``hami-plugin demo``. It behaves as the kubelet does without a topology policy, including what plugins
find inconvenient: no names in any call, ids in any order, init containers' ids handed on without asking.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from hami_plugin.aio import Watched
from hami_plugin.errors import HamiError
from hami_plugin.kubelet.messages import API_VERSION
from hami_plugin.kubelet.podresources.v1 import podresources_pb2_grpc as podresources
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2 as pb
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2_grpc as rpc
from hami_plugin.model.delivery import Answer
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.simulation.kubelet_checkpoint import CHECKPOINT, write_checkpoint
from hami_plugin.simulation.kubelet_ledger import AdmissionError, Allotment, Ledger, Reuse, wanted
from hami_plugin.simulation.kubelet_plugin import PluginConnection
from hami_plugin.simulation.kubelet_podresources import PodResourcesServicer

Context = grpc.aio.ServicerContext[Any, Any]


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
        self.give(pod, container.name, resource, Allotment(ids=ids, answer=answer))

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
