"""What serves each vendor: built from the settings and the vendor's families, then run, restarted and ended.

A vendor's driver feeds its inventory; the inventory shows each family in one snapshot; all else reads that snapshot.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from hami_plugin.allocation.allocator import Allocator, ResourcePlugin, question_of
from hami_plugin.allocation.capacity import NodeState
from hami_plugin.allocation.container_start import StartCheck
from hami_plugin.allocation.lending import LendingPlugin
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import ServedSettings
from hami_plugin.daemon.dra import DraDriver, DraNode
from hami_plugin.daemon.startup import ServedVendor
from hami_plugin.errors import ConfigError, HamiError, WireError
from hami_plugin.host.paths import HostFiles
from hami_plugin.inventory.cdi_specs import PartitionSpecs, SpecFiles, SpecGate
from hami_plugin.inventory.discovery import DiscoveryLoop, DiscoveryTiming
from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.health_file import HealthMemory
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.kubelet.endpoint import Endpoint, PluginDirectory
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import DevicePlugin
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.node_status.annotations import FamilySource, Rendered
from hami_plugin.node_status.faults import FaultLog
from hami_plugin.partitions.journal import ModeJournal, PartitionJournal
from hami_plugin.partitions.manager import Partitions, Peers
from hami_plugin.partitions.modes import CardUsers, ModeReconciler
from hami_plugin.process.aio import Watched
from hami_plugin.process.log import logger
from hami_plugin.process.threads import BoundedCalls, once
from hami_plugin.protocol.decisions import Question, claims
from hami_plugin.sdk import Family, ModeDriver, PartitionDriver, Units
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor_boundary.guard import (
    CheckedModeDriver,
    CheckedPartitionDriver,
    Guard,
    VendorErrors,
    VendorSupervisor,
    guarded,
)

log = logger(__name__)

CALL_TIMEOUT_S = 2.0
"""How long a vendor's function may look at the host. Until it returns, the next calls are refused."""
FAMILIES_TIMEOUT_S = 20.0

Work = Iterator[tuple[str, Coroutine[None, None, None]]]


@dataclass(slots=True, kw_only=True)
class ServedResource:
    """One resource: its family's snapshot, and its plugin at the kubelet.

    ``begun`` is set once it is known what the family's cards are cut into, if they are cut. ``free`` is set once no
    claim of the vendor's DRA driver is left.
    """

    snapshot: Watched[Snapshot]
    plugin: ResourcePlugin | LendingPlugin
    endpoint: Endpoint
    begun: asyncio.Event | None = None
    free: asyncio.Event | None = None

    async def serve(self) -> None:
        """Register once there are devices and their shares are known: an empty list would withdraw what pods wait for.

        So the kubelet never hears of a family that this node has no device of.
        """
        while not (self.snapshot.value.ready and self.snapshot.value.devices) and not self.snapshot.closed:
            await self.snapshot.changed(self.snapshot.version)
        await self.plugin.rendered.wait()
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
                await self._found.changed(seen, timeout=await self._withdraw())

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

    async def _withdraw(self) -> float | None:
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
            await self.dra.endpoint.close()


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
        return [plugin.question for plugin in plugins if isinstance(plugin, ResourcePlugin)]

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
            driver.endpoint.leave()

    async def be_forgotten(self) -> None:
        """Make a kubelet that drops newcomers forget who serves the resources that it has of us."""
        ready = [resource.endpoint for resource in self.resources if resource.endpoint.state.value.ready]
        await asyncio.gather(*(endpoint.be_forgotten() for endpoint in ready))

    async def be_known(self) -> None:
        """Let it know us again."""
        await asyncio.gather(*(resource.endpoint.be_known() for resource in self.resources))

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
            driver.endpoint.stay()

    @property
    def running(self) -> int:
        """Calls of the kubelet that are being answered."""
        plugins = sum(resource.endpoint.running for resource in self.resources)
        return plugins + sum(driver.endpoint.running for driver in self.drivers)

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


def build(vendors: Sequence[ServedVendor], builder: VendorBuilder) -> Serving:
    """The tasks of every vendor. ``ConfigError`` where two of them would use one name."""
    serving = Serving(vendors=[builder.vendor(served) for served in vendors])
    _require_distinct_names(serving)
    return serving


def _isolated_modes(opening: Callable[[], ModeDriver]) -> ModeDriver:
    from hami_plugin.vendor_boundary.isolated_driver import IsolatedModeDriver  # noqa: PLC0415  # as below

    return IsolatedModeDriver(opening)


def _isolated_partitions(opening: Callable[[], PartitionDriver]) -> PartitionDriver:
    from hami_plugin.vendor_boundary.isolated_driver import (  # noqa: PLC0415  # with multiprocessing; few vendors need it
        IsolatedPartitionDriver,
    )

    return IsolatedPartitionDriver(opening)


D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltVendor:
    """A vendor while its ``tasks`` are made: ``guard`` and ``errors`` stand between its code and all else."""

    served: ServedVendor
    tasks: VendorTasks
    guard: Guard
    errors: VendorErrors

    @property
    def name(self) -> str:
        return self.served.vendor.name

    @property
    def cut(self) -> bool:
        """Whether there may be devices of further families."""
        return self.served.vendor.further is not None

    def changer(
        self, opening: Callable[[HostFiles], D], isolate: Callable[[Callable[[], D]], D], host: HostFiles
    ) -> Callable[[], D]:
        """What opens a driver that changes cards: in a process of its own where the vendor's driver has one."""
        opened = partial(opening, host)
        return partial(isolate, opened) if self.served.isolated else opened

    def journal(self, what: str, family: Family) -> str:
        """The name of the file with what is changed at a family's cards."""
        return re.sub(r"[^A-Za-z0-9.-]", "_", f"{what}-{self.name}-{family.device_type}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorBuilder:
    """Makes a vendor's objects, from its driver to its endpoints, over those that all vendors share.

    ``boot`` names the boot that the host is in.
    """

    settings: Settings
    boot: str
    node: NodeState
    memory: HealthMemory
    watch: DirectoryWatch
    directory: PluginDirectory
    metrics: Metrics
    dra: DraNode
    faults: FaultLog
    metered: Callable[[str, Mapping[str, float]], None] | None = None
    loaded: Callable[[str, Mapping[str, DeviceLoad]], None] | None = None

    def vendor(self, served: ServedVendor) -> VendorTasks:
        """One vendor's. One whose families cannot be listed is served without any, and reports it."""
        name = served.vendor.name
        errors = VendorErrors(name, self.metrics)
        calls = BoundedCalls(f"{name}-families", timeout=CALL_TIMEOUT_S)
        inventory, supervisor = self._inventory(name), VendorSupervisor(errors)
        discovery = self._discovery(served, inventory)
        tasks = VendorTasks(supervisor=supervisor, calls=calls, inventory=inventory, discovery=discovery)
        try:
            self._add_families(BuiltVendor(served=served, tasks=tasks, guard=Guard(calls, errors), errors=errors))
        except HamiError:
            raise
        except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
            why = errors.record("families", error).message
            supervisor.note("families", f"{why}; nothing of it is served until the daemon is started anew")
            return VendorTasks(
                supervisor=supervisor, calls=calls, inventory=inventory, discovery=discovery, broken=True
            )
        return tasks

    def _add_families(self, vendor: BuiltVendor) -> None:
        """Everything of each family that the vendor lists, and what serves those that it does not."""
        served, tasks = vendor.served, vendor.tasks
        families = once(
            f"families of {vendor.name}",
            lambda: tuple(served.vendor.families(served.settings)),
            timeout=FAMILIES_TIMEOUT_S,
        )
        tasks.dra = driver = self._dra(vendor)
        for family in families:
            self._add_family(vendor, family, driver, alone=len(families) == 1)
        if served.vendor.further and not driver.offering:
            listed = frozenset(family.device_type for family in families)
            tasks.further = self._further(vendor, partial(served.vendor.further, served.settings), listed)

    def _dra(self, vendor: BuiltVendor) -> DraDriver:
        """The vendor's DRA driver, which offers devices only if its settings say so."""
        own = vendor.served.settings if isinstance(vendor.served.settings, ServedSettings) else None
        return DraDriver(
            vendor.name,
            self.settings,
            self.node,
            self.dra,
            vendor.guard,
            offering=own is not None and own.front_end == "dra",
            taints=own.fault_taints if own else "off",
            sets=own is not None and own.linked_devices == "sets",
        )

    def _inventory(self, vendor: str) -> Inventory:
        health = self.settings.health
        limits = HealthLimits(
            suspect_looks=health.suspect_looks,
            clean_looks=health.clean_looks,
            hold=health.hold_seconds,
            hold_cap=health.hold_cap_seconds,
        )
        return Inventory(limits, forget=health.forget_seconds, remembered=self.memory.recall(vendor))

    def _discovery(self, served: ServedVendor, inventory: Inventory) -> DiscoveryLoop:
        name, settings = served.vendor.name, self.settings
        return DiscoveryLoop(
            name,
            served.driver,
            inventory,
            timing=DiscoveryTiming(
                rescan=settings.rescan_seconds, probe=settings.health.probe_seconds, load=settings.usage_seconds
            ),
            observer=self.metrics,
            events=self.node.events,
            faulty=partial(self.faults.note, name),
            remember=lambda: self.memory.note(name, inventory.conditions),
            metered=partial(self.metered, name) if self.metered else None,
            loaded=partial(self.loaded, name) if self.loaded else None,
        )

    def _add_family(self, vendor: BuiltVendor, family: Family, driver: DraDriver, *, alone: bool) -> None:
        """The family's snapshot, and its readers: the node's annotations, the host check, and each resource.

        The CDI gate and the host check ask the family on threads of their own, so for them it is not guarded.
        """
        tasks = vendor.tasks
        snapshot = self._snapshot(vendor, family, alone=alone)
        if family.node.needs_host:
            tasks.hosts.append(
                HostCheck(family, snapshot=snapshot, host=self.node.host, events=self.node.events, errors=vendor.errors)
            )
        safe = guarded(family, vendor.guard)
        partitions = self._partitions(vendor, safe, snapshot)
        if partitions:
            tasks.partitions.append(partitions)
        if driver.offering:
            if partitions:
                driver.cut[safe.device_type] = partitions
            source = FamilySource(vendor=vendor.name, family=safe, snapshot=snapshot, errors=vendor.errors)
            self._offer_by_claims(tasks, driver, source)
            return
        if modes := self._modes(vendor, safe, snapshot):
            tasks.modes.append(modes)
        source = FamilySource(
            vendor=vendor.name,
            family=safe,
            snapshot=snapshot,
            cuttable=partitions.cuttable if partitions else None,
            errors=vendor.errors,
        )
        tasks.sources.append(source)
        tasks.announced.append(source)
        for units in (None, *safe.resources.units):
            resource = self._resource(safe, snapshot, units, vendor.guard, partitions)
            tasks.listed.append(replace(resource, free=driver.idle))

    def _snapshot(self, vendor: BuiltVendor, family: Family, *, alone: bool) -> Watched[Snapshot]:
        """The family's devices, once their CDI spec is written where there is one.

        The spec of a vendor whose cards are cut has the devices of further families too. ``alone``: there is no other
        family, so all devices are its.
        """
        tasks, delivery = vendor.tasks, family.node.delivery
        if not delivery.cdi:
            return tasks.inventory.view("" if alone and not vendor.cut else family.device_type, None)
        specs = SpecGate(
            delivery.kind,
            SpecFiles(family, self.settings.cdi_dirs, self.node.host),
            events=self.node.events,
            observe=lambda: self.metrics.snapshot(vendor.name, tasks.inventory.shown),
        )
        tasks.specs.append(specs)
        if vendor.cut:
            tasks.inventory.view("", specs)
            return specs.part(family.device_type)
        return tasks.inventory.view("" if alone else family.device_type, specs)

    def _offer_by_claims(self, tasks: VendorTasks, driver: DraDriver, source: FamilySource) -> None:
        """The family's devices, of which the kubelet counts none and the node's annotations have none."""
        node, vendor = source.family.node, tasks.discovery.vendor
        if not node.delivery.cdi:
            ways = ", ".join(node.delivery.ways)
            raise ConfigError(
                [f"vendors.{vendor}.frontEnd: dra needs CDI, and deviceListStrategy is {ways}; leave it out"]
            )
        if node.partitions and not node.partitions.by_claims:
            raise ConfigError([f"vendors.{vendor}.frontEnd: dra cuts no cards for claims; set frontEnd: device-plugin"])
        if node.modes:
            raise ConfigError([f"vendors.{vendor}.frontEnd: dra switches no card's mode; set frontEnd: device-plugin"])
        driver.sources.append(source)
        tasks.sources.append(source)
        tasks.announced.append(replace(source, snapshot=Watched(Snapshot(ready=True)), rendered=Rendered()))

    def _partitions(self, vendor: BuiltVendor, family: Family, snapshot: Watched[Snapshot]) -> Partitions | None:
        """The life of what the family's cards are cut into, if they are."""
        side, node = family.node.partitions, self.node
        if side is None or node.listed is None:
            return None
        driver = CheckedPartitionDriver(vendor.changer(side.open, _isolated_partitions, node.host), vendor.errors)
        return Partitions(
            family.resources.count,
            side,
            driver,
            PartitionJournal(self.settings.state_dir / vendor.journal("partitions", family), self.boot),
            snapshot=snapshot,
            specs=PartitionSpecs(family, self.settings.cdi_dirs[-1], node.host) if family.node.delivery.cdi else None,
            peers=Peers(
                pods=node.pods,
                current=node.current,
                listed=node.listed,
                settle=node.settlement.note,
                claimed=partial(self.dra.claims.claimed, family.device_type),
                claims=self.dra.claims.changes,
            ),
            events=node.events,
            ended=driver.close,
        )

    def _modes(self, vendor: BuiltVendor, family: Family, snapshot: Watched[Snapshot]) -> ModeReconciler | None:
        """What switches the mode of the family's cards, if that is asked for."""
        side, node = family.node.modes, self.node
        if side is None:
            return None
        driver = CheckedModeDriver(vendor.changer(side.open, _isolated_modes, node.host), vendor.errors)
        return ModeReconciler(
            family.resources.count,
            side,
            driver,
            ModeJournal(self.settings.state_dir / vendor.journal("modes", family), self.boot),
            snapshot=snapshot,
            users=CardUsers(of=partial(_users, node, question_of(family)), current=node.current),
            aside=vendor.tasks.discovery.aside,
            events=node.events,
            ended=driver.close,
        )

    def _resource(
        self,
        family: Family,
        snapshot: Watched[Snapshot],
        units: Units | None,
        guard: Guard,
        partitions: Partitions | None,
    ) -> ServedResource:
        """One resource, from the family's snapshot to the kubelet."""
        settings = self.settings
        allocator = Allocator(family, self.node, snapshot=snapshot, guard=guard, units=units, partitions=partitions)
        check = StartCheck(allocator.question, self.node, clean=allocator.preparation.clean)
        plugin = ResourcePlugin(allocator, check if settings.identity_check == "required" else None, snapshot)
        begun = partitions.begun if partitions else None
        return ServedResource(snapshot=snapshot, plugin=plugin, endpoint=self._endpoint(plugin), begun=begun)

    def _endpoint(self, plugin: DevicePlugin) -> Endpoint:
        return Endpoint(
            plugin,
            self.settings.kubelet_dir,
            self.metrics,
            watch=self.watch,
            plugins=self.directory,
            displaced=lambda why: self.node.events.node("Displaced", why),
        )

    def _further(
        self, vendor: BuiltVendor, family_of: Callable[[str], Family], listed: frozenset[str]
    ) -> FurtherFamilies:
        """The families of what hardware is cut into. Of them the node's annotations say nothing."""
        tasks, inventory = vendor.tasks, vendor.tasks.inventory

        def make(device_type: str) -> ServedResource:
            family = guarded(family_of(device_type), vendor.guard)
            snapshot = tasks.specs[0].part(device_type) if tasks.specs else inventory.view(device_type)
            source = FamilySource(vendor=vendor.name, family=family, snapshot=snapshot)
            tasks.sources.append(source)
            tasks.announced.append(source)
            plugin = LendingPlugin(family, self.node, snapshot=snapshot, guard=vendor.guard)
            return ServedResource(snapshot=snapshot, plugin=plugin, endpoint=self._endpoint(plugin))

        return FurtherFamilies(
            tasks.supervisor,
            inventory.view(),
            listed,
            make,
            self._endpoint,
            withdrawn=self.metrics.withdrawn,
            linger=self.settings.rescan_seconds,
        )


def _users(node: NodeState, question: Question, uuid: str) -> list[str]:
    """The pods that have a card, or are to have it, by what was handed out and by what schedulers have decided."""
    names = {f"{held.namespace}/{held.pod}" for held in node.ledger.held.on(uuid)}
    for pod in node.pods.pods:
        if pod.terminal:
            continue
        try:
            decided = claims(pod, question)
        except WireError:
            continue  # one that cannot be read is never served
        if any(grant.uuid == uuid for claim in decided for grant in claim.grants):
            names.add(pod.key)
    return sorted(names)


def _require_distinct_names(serving: Serving) -> None:
    """``ConfigError`` where two would have one name: one of them would be taken for the other."""
    kinds = Counter(specs.kind for vendor in serving.vendors for specs in vendor.specs)
    problems = [
        f"two families would both be CDI kind {kind}; set cdi.class of one of them"
        for kind, n in kinds.items()
        if n > 1
    ]
    sockets: defaultdict[str, list[str]] = defaultdict(list)
    for vendor in serving.vendors:
        for one in vendor.resources:
            sockets[one.endpoint.socket.name].append(f"{one.plugin.resource} of {vendor.discovery.vendor}")
    problems += [
        f"{' and '.join(names)} would be served on the same socket, {socket}; give one of them another resource name"
        for socket, names in sockets.items()
        if len(names) > 1
    ]
    if problems:
        raise ConfigError(problems)
