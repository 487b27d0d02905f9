"""What serves each vendor: run, restarted and ended. ``build`` makes it.

A vendor's driver feeds its inventory; the inventory shows each family in one snapshot; all else reads that snapshot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hami_plugin.allocation.allocator import Allocator
from hami_plugin.allocation.lending import LendingPlugin
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.daemon.dra import DraDriver
from hami_plugin.errors import HamiError
from hami_plugin.inventory.cdi_specs import SpecGate
from hami_plugin.inventory.discovery import DiscoveryLoop
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.kubelet.endpoint import Endpoint, StaleRegistration, drops_newcomers
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import DevicePlugin
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.process.concurrency import BoundedCalls, Watched
from hami_plugin.process.log import logger
from hami_plugin.protocol.pods import Question
from hami_plugin.vendor_boundary.guard import VendorSupervisor

if TYPE_CHECKING:  # loaded where cards are cut
    from hami_plugin.partitions.manager import Partitions
    from hami_plugin.partitions.modes import ModeReconciler

log = logger(__name__)

Work = Iterator[tuple[str, Coroutine[None, None, None]]]

NOTICED_S = 1.0
"""How long a kubelet may take to notice that a stream has ended."""


@dataclass(slots=True, kw_only=True)
class ServedResource:
    """One resource: its family's snapshot, and its plugin at the kubelet.

    ``begun`` is set once it is known what the family's cards are cut into, if they are cut. ``free`` is set once no
    claim of the vendor's DRA driver is left.
    """

    snapshot: Watched[Snapshot]
    plugin: Allocator | LendingPlugin
    endpoint: Endpoint
    begun: asyncio.Event | None = None
    free: asyncio.Event | None = None

    async def serve(self) -> None:
        """Register once there are devices and their shares are known: an empty list would withdraw what pods wait for.

        So the kubelet never hears of a family that this node has no device of.
        """
        while not (self.snapshot.value.ready and self.snapshot.value.devices) and not self.snapshot.closed:
            await self.snapshot.changed(self.snapshot.version)
        await self.plugin.met.wait()
        if self.begun:
            await self.begun.wait()
        if self.free:
            await self.free.wait()
        await self.endpoint.run()

    @property
    def problem(self) -> str:
        """Why the kubelet does not have this resource as it is now; empty when it does."""
        state = self.endpoint.state.value
        return state.problem or ("" if state.ready else "the kubelet has not taken the first list yet")


class Repairable(Protocol):
    """A task of one family that says what is wrong with it."""

    @property
    def problem(self) -> str:
        """Empty while nothing is wrong."""

    async def run(self) -> None:
        """Until it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTask:
    """What runs beside a family's resources. ``name`` is the component's, ``step`` what its restarts are counted under.

    With a ``snapshot`` it matters only while this node has devices of the family.
    """

    name: str
    step: str
    work: Repairable
    snapshot: Watched[Snapshot] | None = None

    @property
    def matters(self) -> bool:
        return self.snapshot is None or not _without_devices(self.snapshot.value)


MAX_FURTHER = 64
"""Device types of a vendor that its families do not list."""


class FurtherFamilies:
    """Serves what hardware is cut into: each device type that a vendor's families do not list, while there are such
    devices.

    ``make`` makes a resource and what shows its devices, ``endpoint`` a new endpoint of it. One that has had no device
    for ``linger`` seconds leaves the kubelet, which knows by then that there is none; ``withdrawn`` is told its name.
    """

    def __init__(
        self,
        supervisor: VendorSupervisor,
        found: Watched[Snapshot],
        listed: AbstractSet[str],
        make: Callable[[str], ServedResource],
        endpoint: Callable[[DevicePlugin], Endpoint],
        *,
        withdrawn: Callable[[str], None],
        linger: float,
    ) -> None:
        self.resources: dict[str, ServedResource] = {}
        self._supervisor = supervisor
        self._found = found
        self._listed = listed
        self._make = make
        self._endpoint = endpoint
        self._withdrawn = withdrawn
        self._linger = linger
        self._empty: dict[str, float] = {}

    @property
    def complete(self) -> bool:
        """Whether each device type that there is has been met."""
        return self._types() <= self.resources.keys()

    async def run(self) -> None:
        """Until the snapshot is closed, or this is cancelled."""
        async with asyncio.TaskGroup() as group:
            for resource in self.resources.values():  # from before this was started anew
                self._begin(group, resource)
            while not self._found.closed:
                seen = self._found.version
                for device_type in sorted(self._types() - self.resources.keys()):
                    self._begin(group, self._met(device_type))
                await self._found.changed(seen, timeout=await self._close_idle())

    def _types(self) -> AbstractSet[str]:
        return {device.family for device in self._found.value.devices} - self._listed

    def _met(self, device_type: str) -> ServedResource:
        if len(self.resources) >= MAX_FURTHER:
            raise HamiError(f"{device_type} is one more than {MAX_FURTHER} device types", hint="cut cards alike")
        self.resources[device_type] = self._make(device_type)
        return self.resources[device_type]

    def _begin(self, group: asyncio.TaskGroup, resource: ServedResource) -> None:
        name, keep = resource.plugin.resource, self._supervisor.keep
        group.create_task(keep(f"offers {name}", "offers", resource.plugin.follow), name=f"offers {name}")
        group.create_task(keep(f"kubelet {name}", "kubelet", partial(self._serve, resource)), name=f"kubelet {name}")

    async def _serve(self, resource: ServedResource) -> None:
        while not resource.snapshot.closed:
            await resource.serve()
            if not resource.snapshot.closed:
                resource.endpoint = self._endpoint(resource.plugin)

    async def _close_idle(self) -> float | None:
        """Let those go that have waited for devices; answers after how many seconds the next one has."""
        now = time.monotonic()
        empty = {t: one for t, one in self.resources.items() if not one.snapshot.value.devices}
        serving = {t: one for t, one in empty.items() if one.endpoint.state.value.serving}
        self._empty = {device_type: self._empty.get(device_type, now) for device_type in serving}
        for device_type, since in self._empty.items():
            if now - since >= self._linger:
                resource = serving[device_type]
                await resource.endpoint.close()
                self._withdrawn(resource.plugin.resource)
                log.info("withdrawn", resource=resource.plugin.resource)
        left = [since + self._linger - now for since in self._empty.values() if now - since < self._linger]
        return min(left, default=None)


@dataclass(slots=True, kw_only=True)
class VendorTasks:
    """One vendor's objects, which no other vendor shares, and the tasks that they need.

    ``supervisor`` restarts a task that raised. ``calls`` makes the calls of the vendor's functions that use the host.
    ``further`` serves device types that its families do not list. ``broken``: its families are unknown. ``sources`` are
    all families', ``announced`` as the node's annotations show them: without the devices that ``dra`` offers.
    """

    supervisor: VendorSupervisor
    calls: BoundedCalls
    inventory: Inventory
    discovery: DiscoveryLoop
    specs: list[SpecGate] = field(default_factory=list)
    sources: list[FamilySource] = field(default_factory=list)
    announced: list[FamilySource] = field(default_factory=list)
    dra: DraDriver | None = None
    listed: list[ServedResource] = field(default_factory=list)
    stale: list[StaleRegistration] = field(default_factory=list)
    further: FurtherFamilies | None = None
    hosts: list[HostCheck] = field(default_factory=list)
    partitions: list[Partitions] = field(default_factory=list)
    modes: list[ModeReconciler] = field(default_factory=list)
    broken: bool = False

    @property
    def resources(self) -> list[ServedResource]:
        """All that the kubelet is to know, or has known."""
        return [*self.listed, *(self.further.resources.values() if self.further else ())]

    def discover(self) -> Work:
        """The tasks that write nothing. One that raises is restarted, and touches no other."""
        keep = self.supervisor.keep
        name = f"driver {self.discovery.vendor}"
        yield name, keep(name, "driver", self.discovery.run, self.discovery.crashed)
        for resource in self.listed:
            name = f"offers {resource.plugin.resource}"
            yield name, keep(name, "offers", resource.plugin.follow)

    def serve(self) -> Work:
        """The others, in the same way."""
        keep = self.supervisor.keep
        for task in self._family_tasks():
            yield task.name, keep(task.name, task.step, task.work.run)
        for resource in self.listed:
            name = f"kubelet {resource.plugin.resource}"
            yield name, keep(name, "kubelet", resource.serve)
        for stale in self.stale:
            name = f"kubelet {stale.resource}"
            yield name, keep(name, "kubelet", stale.run)
        if self.further:
            name = f"further families of {self.discovery.vendor}"
            yield name, keep(name, "families", self.further.run)
        if self.dra:
            yield f"dra {self.dra.driver}", keep(f"dra {self.dra.driver}", "dra", self.dra.run)

    def _family_tasks(self) -> Iterator[FamilyTask]:
        for specs in self.specs:
            yield FamilyTask(name=f"cdi {specs.kind}", step="cdi", work=specs, snapshot=specs.snapshot)
        for host in self.hosts:
            yield FamilyTask(name=f"host {host.resource}", step="host problem", work=host, snapshot=host.snapshot)
        for partitions in self.partitions:
            yield FamilyTask(name=f"partitions {partitions.resource}", step="partitions", work=partitions)
        for modes in self.modes:
            yield FamilyTask(name=f"modes {modes.resource}", step="modes", work=modes)

    @property
    def driver_problem(self) -> str:
        """Why the devices are not known; empty when they are."""
        found = self.inventory.found
        return "" if found.ready else f"{found.reason}: {found.message}" if found.message else found.reason

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        yield f"driver {self.discovery.vendor}", self.driver_problem
        for task in self._family_tasks():
            if task.matters:
                yield task.name, task.work.problem
        for resource in self.resources:
            if not _without_devices(resource.snapshot.value):
                yield f"kubelet {resource.plugin.resource}", resource.problem
        if self.dra:
            yield from self.dra.problems()
        yield f"vendor {self.discovery.vendor}", "; ".join(self.supervisor.wrong.values())

    async def end_streams(self) -> None:
        """Let the servers stop at once."""
        self.inventory.close()
        for resource in self.resources:
            await resource.endpoint.close()
        if self.dra:
            await self.dra.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """All vendors' tasks, in the order of the vendors."""

    vendors: Sequence[VendorTasks]

    @property
    def sources(self) -> list[FamilySource]:
        return [source for vendor in self.vendors for source in vendor.sources]

    @property
    def announced(self) -> list[FamilySource]:
        """The sources of the node's annotations."""
        return [source for vendor in self.vendors for source in vendor.announced]

    @property
    def drivers(self) -> list[DraDriver]:
        """The vendors' DRA drivers."""
        return [vendor.dra for vendor in self.vendors if vendor.dra]

    @property
    def resources(self) -> list[ServedResource]:
        return [resource for vendor in self.vendors for resource in vendor.resources]

    @property
    def partitions(self) -> list[Partitions]:
        return [one for vendor in self.vendors for one in vendor.partitions]

    @property
    def modes(self) -> list[ModeReconciler]:
        return [one for vendor in self.vendors for one in vendor.modes]

    @property
    def questions(self) -> list[Question]:
        """How decisions about each resource are read, of which schedulers decide."""
        plugins = [resource.plugin for resource in self.resources]
        return [plugin.question for plugin in plugins if isinstance(plugin, Allocator)]

    @property
    def lending(self) -> list[str]:
        """Resources of which no scheduler decides, and that this node has devices of."""
        shown = [one for one in self.resources if isinstance(one.plugin, LendingPlugin)]
        return [one.plugin.resource for one in shown if one.snapshot.value.devices]

    @property
    def kinds(self) -> list[str]:
        """CDI kinds that are served. None while a vendor's are not known: any other kind may be its."""
        known = not any(vendor.broken for vendor in self.vendors)
        return [specs.kind for vendor in self.vendors for specs in vendor.specs] if known else []

    def discover(self) -> Work:
        """The tasks of all vendors that write nothing, by name."""
        for vendor in self.vendors:
            yield from vendor.discover()

    def serve(self) -> Work:
        """The other tasks of all vendors, by name."""
        for vendor in self.vendors:
            yield from vendor.serve()

    def driver_problems(self) -> dict[str, str]:
        """Why each vendor's devices are not known; empty for one whose are."""
        return {vendor.discovery.vendor: vendor.driver_problem for vendor in self.vendors}

    @property
    def discovered(self) -> bool:
        """Whether each driver has answered once, or failed."""
        return all(vendor.inventory.found != Snapshot() for vendor in self.vendors)

    def registered(self, awaited: AbstractSet[str]) -> bool:
        """Whether the kubelet has every resource that this node has devices of, as far as the drivers work. One of the
        vendors that are ``awaited`` has to work for that.
        """
        return (
            self.discovered
            and all(not vendor.further or vendor.further.complete for vendor in self.vendors)
            and all(driver.registered for driver in self.drivers)
            and all(
                resource.endpoint.state.value.ready or _without_devices(resource.snapshot.value)
                for vendor in self.vendors
                if not vendor.driver_problem or vendor.discovery.vendor in awaited
                for resource in vendor.resources
            )
        )

    def leave(self) -> None:
        """Pass the kubelet's calls on from now on, and keep its streams open."""
        for resource in self.resources:
            resource.endpoint.leave()
        for driver in self.drivers:
            driver.leave()

    @asynccontextmanager
    async def kept(self, kubelet: str) -> AsyncIterator[None]:
        """Within, a predecessor's streams may end. At a kubelet that would drop us too we are not registered meanwhile,
        and register again once it has noticed.
        """
        drops = drops_newcomers(kubelet)
        if drops:
            await self.unregister()
        yield
        if drops:
            await asyncio.sleep(NOTICED_S)
            await asyncio.gather(*(resource.endpoint.register_again() for resource in self.resources))

    async def unregister(self) -> None:
        """Have the kubelet forget who serves the resources that it has of us. The streams go on."""
        ready = [resource.endpoint for resource in self.resources if resource.endpoint.state.value.ready]
        await asyncio.gather(*(endpoint.unregister() for endpoint in ready))

    def hold(self) -> None:
        """Keep the kubelet's calls waiting from now on, for those who take the sockets over."""
        for resource in self.resources:
            resource.endpoint.hold()

    @property
    def claimed(self) -> list[str]:
        """The vendors whose devices are offered or held by ResourceClaims."""
        return [
            vendor.discovery.vendor
            for vendor in self.vendors
            if vendor.dra and (vendor.dra.offering or not vendor.dra.idle.is_set())
        ]

    def stay(self) -> None:
        """Answer the kubelet again."""
        for resource in self.resources:
            resource.endpoint.stay()
        for driver in self.drivers:
            driver.stay()

    @property
    def running(self) -> int:
        """Calls of the kubelet that are being answered."""
        plugins = sum(resource.endpoint.running for resource in self.resources)
        return plugins + sum(driver.running for driver in self.drivers)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        for vendor in self.vendors:
            yield from vendor.problems()

    async def cut_no_more(self) -> None:
        """Finish what is under way at the cards, before another daemon may begin."""
        await asyncio.gather(*(one.close() for one in self.partitions), *(one.close() for one in self.modes))

    async def close(self, settle: Callable[[], Coroutine[None, None, None]]) -> None:
        """End the streams, ``settle`` what was allocated, then close the drivers."""
        await self.end_streams()
        await self.release(settle)

    async def end_streams(self) -> None:
        """End what the kubelet listens to."""
        for vendor in self.vendors:
            await vendor.end_streams()

    async def release(self, settle: Callable[[], Coroutine[None, None, None]]) -> None:
        """``settle`` what was allocated, and close the drivers."""
        await settle()
        await asyncio.gather(*(vendor.discovery.close() for vendor in self.vendors))
        for vendor in self.vendors:
            vendor.calls.close()


def _without_devices(snapshot: Snapshot) -> bool:
    """Whether the driver works, and this node has no device of the family."""
    return snapshot.ready and not snapshot.devices


def partitions_document(
    all_of: Sequence[Partitions], node: str, modes: Sequence[ModeReconciler] = ()
) -> dict[str, object]:
    """What ``hami-plugin partitions`` reads: ages in seconds, placements in slices of the card."""
    kept: Sequence[Partitions | ModeReconciler] = [*all_of, *modes]
    return {
        "node": node,
        "partitions": [{"resource": one.resource, **asdict(each)} for one in all_of for each in one.shown()],
        "placeable": [
            {"resource": one.resource, "card": card, "profile": profile.name, "left": left}
            for one in all_of
            for card, profile, left in one.placeable()
        ],
        "modes": [{"resource": one.resource, **asdict(each)} for one in modes for each in one.shown()],
        "problems": {one.resource: one.problem for one in kept if one.problem},
    }
