"""A kubelet's part of Dynamic Resource Allocation: it finds drivers, and calls them.

It deletes its node's slices when it starts, asks about all claims of a pod at once, and forgets with a restart which of
them were ready.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISSOCK
from typing import Any

import grpc

from hami_plugin.errors import HamiError
from hami_plugin.kubelet.api import dra_v1_pb2 as v1
from hami_plugin.kubelet.api import dra_v1_pb2_grpc as v1_rpc
from hami_plugin.kubelet.api import dra_v1beta1_pb2 as v1beta1
from hami_plugin.kubelet.api import dra_v1beta1_pb2_grpc as v1beta1_rpc
from hami_plugin.kubelet.api import pluginregistration_pb2 as registration_pb
from hami_plugin.kubelet.api import pluginregistration_pb2_grpc as registration_rpc
from hami_plugin.kubelet.listener import FileIdentity
from hami_plugin.model.views import PodView
from hami_plugin.process.concurrency import cancel
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.objects import StatusError

SERVICES: Mapping[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (v1, v1_rpc.DRAPluginStub),
    "v1beta1.DRAPlugin": (v1beta1, v1beta1_rpc.DRAPluginStub),
}
PREPARE_S = 45.0
FIRST_S, LONGEST_S = 0.5, 122.0
"""Until a socket is asked again that did not answer, the first time and at most."""
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))


class PrepareError(HamiError):
    """A claim that a driver has not made ready, or not released."""


@dataclass(slots=True, kw_only=True)
class _Plugin:
    """A registered driver."""

    driver: str
    endpoint: str
    service: str
    channel: grpc.aio.Channel
    socket: Path


@dataclass(slots=True, kw_only=True)
class _ClaimInfo:
    """A claim in the kubelet's memory: its driver's answers, and whether they are of this life of the kubelet."""

    name: str
    namespace: str
    drivers: set[str] = field(default_factory=set)
    devices: list[Any] = field(default_factory=list)
    pods: set[str] = field(default_factory=set)
    ready: bool = False


class ClaimManager:
    """The part of a kubelet under ``root`` that calls DRA drivers. ``services`` are those that its version knows.

    ``notified`` are the registrations so far: a driver, and why it was refused, empty where it was not.
    """

    def __init__(
        self, root: Path, api: SimulatedApiServer, node: str, *, services: Sequence[str] = tuple(SERVICES)
    ) -> None:
        self.services = services
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.notified: list[tuple[str, str]] = []
        self._registry = root / "plugins_registry"
        self._root = root
        self._api = api
        self._node = node
        self._seen: dict[Path, FileIdentity] = {}
        self._delays: dict[Path, float] = {}
        self._due: dict[Path, float] = {}
        self._plugins: list[_Plugin] = []
        self._claims: dict[str, _ClaimInfo] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Delete all slices of the node, and look for drivers from now on."""
        for folder in (self._registry, self._root / "plugins"):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.wipe()
        self._task = asyncio.create_task(self._look(), name="kubelet looks for drivers")

    def wipe(self) -> None:
        """Delete all slices of the node, of whatever driver."""
        for one in self._api.slices():
            if one["spec"].get("nodeName") == self._node:
                with suppress(StatusError):
                    self._api.delete_slice(one["metadata"]["name"])

    async def stop(self) -> None:
        if self._task:
            await cancel(self._task)
        for plugin in self._plugins:
            await plugin.channel.close(None)
        self._plugins.clear()
        for kept in (self._seen, self._delays, self._due):
            kept.clear()

    async def restart(self) -> None:
        """Which claims are ready is forgotten; which there are is not."""
        await self.stop()
        for known in self._claims.values():
            known.ready = False
        await self.start()

    def registered(self, driver: str) -> bool:
        return any(plugin.driver == driver and plugin.socket.exists() for plugin in self._plugins)

    async def prepare(self, pod: PodView) -> None:
        """Before the pod's sandbox is made. ``PrepareError`` says what its Event would."""
        wanted: defaultdict[str, list[str]] = defaultdict(list)
        for name in pod.claims.values():
            claim = self._api.claim(pod.namespace, name)
            status = claim.get("status") or {}
            uid = claim["metadata"]["uid"]
            if pod.uid not in {one["uid"] for one in status.get("reservedFor") or ()}:
                raise PrepareError(f"pod {pod.key} is not allowed to use ResourceClaim {name}")
            known = self._claims.setdefault(uid, _ClaimInfo(name=name, namespace=pod.namespace))
            known.pods.add(pod.uid)
            known.drivers = {one["driver"] for one in status["allocation"]["devices"]["results"]}
            if not known.ready:
                for driver in known.drivers:
                    wanted[driver].append(uid)
        answers: defaultdict[str, list[Any]] = defaultdict(list)
        for driver, uids in wanted.items():
            response = await self._call(driver, "NodePrepareResources", uids)
            for uid in uids:
                if uid not in response.claims:
                    raise PrepareError("NodePrepareResources skipped 1 ResourceClaims")
                if error := response.claims[uid].error:
                    raise PrepareError(
                        f"NodePrepareResources failed for ResourceClaim {self._claims[uid].name}: {error}"
                    )
                answers[uid] += response.claims[uid].devices
        for uid, devices in answers.items():
            self._claims[uid].devices, self._claims[uid].ready = devices, True

    async def unprepare(self, pod: PodView) -> None:
        """After all containers of the pod have stopped. A claim that another pod here uses stays ready."""
        wanted: defaultdict[str, list[str]] = defaultdict(list)
        for uid, known in self._claims.items():
            if known.pods == {pod.uid}:
                for driver in known.drivers:
                    wanted[driver].append(uid)
            else:
                known.pods.discard(pod.uid)
        for driver, uids in wanted.items():
            response = await self._call(driver, "NodeUnprepareResources", uids)
            for uid in uids:
                if uid not in response.claims or response.claims[uid].error:
                    error = response.claims[uid].error if uid in response.claims else "skipped"
                    raise PrepareError(
                        f"NodeUnprepareResources failed for ResourceClaim {self._claims[uid].name}: {error}"
                    )
        for uids in wanted.values():
            for uid in uids:
                self._claims.pop(uid, None)

    def cdi_devices(self, pod: PodView, container: str) -> tuple[str, ...]:
        """What the runtime is told for a container, in the order of its own list."""
        view = pod.container(container)
        assert view
        found: list[str] = []
        for name, request in view.claims:
            known = next(one for one in self._claims.values() if one.name == pod.claims[name])
            for device in known.devices:
                if not request or not device.request_names or request in device.request_names:
                    found += device.cdi_device_ids
        return tuple(found)

    def devices(self, claim: str) -> list[Any]:
        """What a driver has answered for a claim, by the claim's name."""
        return [device for known in self._claims.values() if known.name == claim for device in known.devices]

    async def _call(self, driver: str, method: str, uids: Sequence[str]) -> Any:
        plugin = next((one for one in reversed(self._plugins) if one.driver == driver and one.socket.exists()), None)
        if plugin is None:
            raise PrepareError(f"DRA driver {driver} is not registered")
        messages, stub = SERVICES[plugin.service]
        claims = [
            messages.Claim(uid=uid, namespace=self._claims[uid].namespace, name=self._claims[uid].name) for uid in uids
        ]
        self.calls.append((method, tuple(uids)))
        try:
            request = getattr(messages, f"{method}Request")(claims=claims)
            return await getattr(stub(plugin.channel), method)(request, timeout=PREPARE_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise PrepareError(f"{method}: {error.code().name}: {error.details()}") from error

    async def _look(self) -> None:
        while True:
            there = {path: identity for path in self._sockets() if (identity := FileIdentity.of(path))}
            for path in [path for path in self._seen if there.get(path) != self._seen[path]]:
                del self._seen[path]
                self._plugins = [plugin for plugin in self._plugins if plugin.socket != path]
            for path, identity in there.items():
                if path not in self._seen and time.monotonic() >= self._due.get(path, 0.0):
                    await self._ask(path, identity)
            await asyncio.sleep(0.05)

    async def _ask(self, path: Path, identity: FileIdentity) -> None:
        """Who does not answer is asked again, under the same path later and later."""
        try:
            await self._register(path)
        except grpc.aio.AioRpcError:
            delay = self._delays[path] = min(2 * self._delays.get(path, FIRST_S / 2), LONGEST_S)
            self._due[path] = time.monotonic() + delay
        else:
            self._seen[path] = identity

    def _sockets(self) -> list[Path]:
        found = []
        with suppress(OSError):
            for path in sorted(self._registry.iterdir()):
                with suppress(OSError):
                    if not path.name.startswith(".") and S_ISSOCK(path.stat().st_mode):
                        found.append(path)
        return found

    async def _register(self, path: Path) -> None:
        async with grpc.aio.insecure_channel(f"unix://{path}", options=_OPTIONS) as channel:
            stub = registration_rpc.RegistrationStub(channel)
            info = await stub.GetInfo(registration_pb.InfoRequest(), timeout=1.0)
            service = next((one for one in info.supported_versions if one in self.services), "")
            why = "" if service else f"this kubelet knows none of {info.supported_versions}"
            if service:
                plugin = _Plugin(
                    driver=info.name,
                    endpoint=info.endpoint,
                    service=service,
                    channel=grpc.aio.insecure_channel(f"unix://{info.endpoint}", options=_OPTIONS),
                    socket=path,
                )
                self._plugins.append(plugin)
            self.notified.append((info.name, why))
            status = registration_pb.RegistrationStatus(plugin_registered=not why, error=why)
            await stub.NotifyRegistrationStatus(status, timeout=5.0)
