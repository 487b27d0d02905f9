"""Dynamic Resource Allocation on both sides of a driver: the kubelet's part, and kube-scheduler's.

The kubelet finds drivers, and calls them. It deletes its node's slices when it starts, asks about all claims of a pod
at once, and forgets with a restart which of them were ready.

kube-scheduler gives a ResourceClaim the first devices that fit, in the order of the slices, with its weakness as seen
on 1.36: it books a device's counters before it looks at taints and constraints, and does not give them back where one
of these refuses the device, nor those of a shared device where it has to turn back.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from hami_plugin.model.views import Json, PodView, whole
from hami_plugin.process.concurrency import cancel
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.objects import Object, StatusError

_TERM = re.compile(
    r"""device\.attributes\[["'](?P<domain>[^"']+)["']\]\.(?P<name>\w+)\s*(?P<how>==|>=|<=)\s*(?P<value>"[^"]*"|\d+)"""
)
_KINDS = {"sets": "set", "partitions": "partition"}
"""What the chart's DeviceClasses select by the first label of their names. The others select neither."""


class UnschedulableError(HamiError):
    """No device is left for a request of a claim."""


def allocate(api: SimulatedApiServer, claim: Object, pod: Object, node: str) -> Object:
    """Allocate a claim on ``node``, and reserve it for the pod.

    A DeviceClass has the driver's name, or that with ``sets.`` or ``partitions.`` before it. ``UnschedulableError``
    where not all of the claim's requests can be served.
    """
    meta = claim["metadata"]
    results = _Search(api=api, node=node, spec=claim["spec"]["devices"]).results()
    if results is None:
        raise UnschedulableError("cannot allocate all claims", hint="no device of a whole pool has enough left")
    reserved = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    config = [{"source": "FromClaim", **one} for one in claim["spec"]["devices"].get("config", ())]
    devices = {"results": results, **({"config": config} if config else {})}
    status = {"allocation": {"devices": devices}, "reservedFor": [reserved]}
    return api.set_claim_status(meta["namespace"], meta["name"], status)


def deallocate(api: SimulatedApiServer, namespace: str, name: str) -> None:
    """The claim's last pod is gone: what it had is free, as the claim controller does it."""
    api.set_claim_status(namespace, name, {"allocation": None, "reservedFor": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """One device that a request asks for, the ``number``-th of it."""

    request: str
    asked: Json
    number: int


@dataclass(slots=True)
class _Search:
    """By depth first over the requests. ``booked`` are counters that are taken, by driver, set and name."""

    api: SimulatedApiServer
    node: str
    spec: Json
    pools: dict[str, list[Object]] = field(default_factory=dict)
    given: list[Object] = field(default_factory=list)
    room: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    started: set[tuple[str, str]] = field(default_factory=set)

    def results(self) -> list[Object] | None:
        self.given = list(_allocated(self.api))
        for slots in _ways(self.spec["requests"]):
            found: list[Object] = []
            if self._served(slots, found, 0):
                return found
        return None

    def _served(self, slots: Sequence[_Slot], found: list[Object], first: int) -> bool:
        if len(found) == len(slots):
            return True
        slot = slots[len(found)]
        driver = _driver(slot)
        devices = self._pool(driver)
        for place in range(first if slot.number else 0, len(devices)):
            device, mark = devices[place], len(found)
            result = self._taken(slot, driver, device, found)
            if result is None:
                continue
            found.append(result)
            if self._served(slots, found, place + 1):
                return True
            del found[mark:]
            if not device.get("allowMultipleAllocations"):
                self._book(driver, device, -1)
                self.started.discard((driver, device["name"]))
        return False

    def _taken(self, slot: _Slot, driver: str, device: Object, own: Sequence[Object]) -> Object | None:
        """The result, if the device can be had. What is booked for one that cannot stays booked."""
        if not _selected(slot, driver, device):
            return None
        mine = [one for one in (*self.given, *own) if (one["driver"], one["device"]) == (driver, device["name"])]
        consumed = _consumed_of(device, slot.asked, mine)
        if consumed is None or not self._counted(driver, device, has=bool(mine)):
            return None
        if any(one["effect"] != "None" for one in device.get("taints") or ()) or not self._allowed(slot, device, own):
            return None
        result = {"request": slot.request, "driver": driver, "pool": self.node, "device": device["name"]}
        if device.get("allowMultipleAllocations"):
            amounts = {name: _written(amount) for name, amount in consumed.items()}
            return {**result, "shareID": str(uuid.uuid4()), "consumedCapacity": amounts}
        return result

    def _counted(self, driver: str, device: Object, *, has: bool) -> bool:
        """Book its counters, if there are enough: once for a device, however many shares of it are given out."""
        if has or (driver, device["name"]) in self.started:
            return has or not device.get("consumesCounters")
        if any(self.room[key] < amount for key, amount in _counters_of(driver, device)):
            return False
        self._book(driver, device, 1)
        self.started.add((driver, device["name"]))
        return True

    def _book(self, driver: str, device: Object, sign: int) -> None:
        for key, amount in _counters_of(driver, device):
            self.room[key] -= sign * amount

    def _allowed(self, slot: _Slot, device: Object, own: Sequence[Object]) -> bool:
        for one in self.spec.get("constraints") or ():
            names = one.get("requests") or ()
            if names and slot.request not in names:
                continue
            key = one.get("matchAttribute") or one["distinctAttribute"]
            mine = _attribute(device, _driver(slot), key)
            peers = [r for r in own if not names or r["request"] in names]
            others = [
                _attribute(each, r["driver"], key)
                for r in peers
                for each in self._pool(r["driver"])
                if each["name"] == r["device"]
            ]
            alike = "matchAttribute" in one
            if mine is None or any((mine == other) != alike for other in others):
                return False
        return True

    def _pool(self, driver: str) -> list[Object]:
        """The devices of the driver's pool; what is left of its counters is known then."""
        if driver not in self.pools:
            specs = pool_slices(self.api, driver, self.node)
            self.pools[driver] = [device for spec in specs for device in spec.get("devices") or ()]
            for counters in (one for spec in specs for one in spec.get("sharedCounters") or ()):
                for name, counter in counters["counters"].items():
                    self.room[driver, counters["name"], name] = whole(counter["value"])
            names = {one["device"] for one in self.given if one["driver"] == driver}
            for device in self.pools[driver]:
                if device["name"] in names:
                    self._book(driver, device, 1)
        return self.pools[driver]


def _ways(requests: Sequence[Json]) -> Iterator[list[_Slot]]:
    """What to look for, by preference: a request may have alternatives."""
    ways: list[list[_Slot]] = [[]]
    for request in requests:
        alternatives = (
            [(request["name"], request["exactly"])]
            if "exactly" in request
            else [(f"{request['name']}/{one['name']}", one) for one in request["firstAvailable"]]
        )
        ways = [
            [*way, *(_Slot(request=name, asked=asked, number=number) for number in range(asked.get("count", 1)))]
            for way in ways
            for name, asked in alternatives
        ]
    yield from ways


def _driver(slot: _Slot) -> str:
    label, _, rest = str(slot.asked["deviceClassName"]).partition(".")
    return rest if label in _KINDS else str(slot.asked["deviceClassName"])


def _selected(slot: _Slot, driver: str, device: Object) -> bool:
    """Whether the DeviceClass and all selectors have the device. Of CEL only comparisons of attributes are known."""
    label = str(slot.asked["deviceClassName"]).partition(".")[0]
    kind = device.get("attributes", {}).get("type", {}).get("string")
    if kind != _KINDS[label] if label in _KINDS else kind in _KINDS.values():
        return False
    for selector in slot.asked.get("selectors") or ():
        for text in selector["cel"]["expression"].split("&&"):
            term = _TERM.fullmatch(text.strip())
            if not term:
                raise ValueError(f"the simulated scheduler does not know the CEL expression {text.strip()!r}")
            own = _attribute(device, driver, f"{term['domain']}/{term['name']}")
            value: Any = term["value"][1:-1] if term["value"].startswith('"') else int(term["value"])
            if own is None or not {"==": own == value, ">=": own >= value, "<=": own <= value}[term["how"]]:
                return False
    return True


def _attribute(device: Object, driver: str, name: str) -> Any:
    """Its value; None where the device has none of that name. Names without a domain are the driver's."""
    attributes = device.get("attributes") or {}
    short = name.removeprefix(f"{driver}/")
    value = attributes.get(short) or attributes.get(name)
    return next(iter(value.values())) if value else None


def _consumed_of(device: Object, asked: Json, mine: Sequence[Object]) -> Mapping[str, int] | None:
    """What the device would give; None where it has not as much left."""
    wanted = (asked.get("capacity") or {}).get("requests") or {}
    capacity = device.get("capacity") or {}
    if not wanted.keys() <= capacity.keys():
        return None
    if not device.get("allowMultipleAllocations"):
        fits = not mine and all(whole(capacity[name]["value"]) >= whole(amount) for name, amount in wanted.items())
        return {} if fits else None
    consumed = {name: _consumed(one, wanted.get(name)) for name, one in capacity.items()}
    taken: Counter[str] = Counter()
    for one in mine:
        taken.update({name: whole(amount) for name, amount in one["consumedCapacity"].items()})
    fits = all(consumed[name] + taken[name] <= whole(one["value"]) for name, one in capacity.items())
    return consumed if fits else None


def _consumed(capacity: Json, asked: object) -> int:
    """What a request consumes: the default where it says nothing, else rounded up as the policy has it."""
    policy = capacity.get("requestPolicy") or {}
    if asked is None:
        return whole(policy.get("default", capacity["value"]))
    bounds = policy["validRange"]
    least, step = whole(bounds["min"]), whole(bounds["step"])
    amount = max(least, least + -(-(whole(asked) - least) // step) * step)
    return amount if amount <= whole(bounds["max"]) else whole(capacity["value"]) + 1


def _counters_of(driver: str, device: Object) -> Iterator[tuple[tuple[str, str, str], int]]:
    for one in device.get("consumesCounters") or ():
        for name, counter in one["counters"].items():
            yield (driver, one["counterSet"], name), whole(counter["value"])


def _written(amount: int) -> str:
    for power, unit in ((30, "Gi"), (20, "Mi")):
        if amount and not amount % (1 << power):
            return f"{amount >> power}{unit}"
    return str(amount)


def _allocated(api: SimulatedApiServer) -> Iterator[Object]:
    for claim in api.claims():
        yield from ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())


def pool_slices(api: SimulatedApiServer, driver: str, node: str) -> list[Object]:
    """The slices of a pool as they are specified, if all of its newest generation are there, and their counters are."""
    specs = [
        one["spec"] for one in api.slices() if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == (driver, node)
    ]
    newest = max((spec["pool"]["generation"] for spec in specs), default=0)
    own = [spec for spec in specs if spec["pool"]["generation"] == newest]
    if not own or len(own) != own[0]["pool"]["resourceSliceCount"]:
        return []
    known = {
        (counters["name"], name)
        for spec in own
        for counters in spec.get("sharedCounters") or ()
        for name in counters["counters"]
    }
    used = {key[1:] for spec in own for device in spec.get("devices") or () for key, _ in _counters_of("", device)}
    return own if used <= known else []


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
