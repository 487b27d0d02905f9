"""What serves the vendors, built from the settings and the families of each: from its driver to its endpoints."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from hami_plugin.allocation.allocator import Allocator, question_of
from hami_plugin.allocation.capacity import NodeState
from hami_plugin.allocation.lending import LendingPlugin
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.config.settings import Settings
from hami_plugin.config.vendors import ServedSettings
from hami_plugin.daemon.dra import DraDriver, DraNode
from hami_plugin.daemon.serving import FurtherFamilies, ServedResource, Serving, VendorTasks
from hami_plugin.daemon.startup import ServedVendor
from hami_plugin.errors import ConfigError, HamiError, WireError
from hami_plugin.inventory.cdi_specs import PartitionSpecs, SpecFiles, SpecGate
from hami_plugin.inventory.discovery import DiscoveryLoop, DiscoveryTiming
from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.inventory import HealthMemory, Inventory
from hami_plugin.kubelet.endpoint import Endpoint, PluginDirectory, StaleRegistration
from hami_plugin.kubelet.holders import CheckpointFile
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.device import Snapshot
from hami_plugin.model.ports import DevicePlugin, NullObserver, Observer
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.node_status.faults import FaultLog
from hami_plugin.node_status.registration import FamilySource, Rendered
from hami_plugin.process.concurrency import BoundedCalls, Watched, call_on_thread
from hami_plugin.protocol.pods import Question, decided_shares
from hami_plugin.sdk import Family, Units
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor_boundary.guard import (
    CheckedModeDriver,
    CheckedPartitionDriver,
    Guard,
    VendorErrors,
    VendorSupervisor,
    guard_family,
)

if TYPE_CHECKING:  # loaded where cards are cut
    from hami_plugin.partitions.manager import Partitions
    from hami_plugin.partitions.modes import ModeReconciler

CALL_TIMEOUT_S = 2.0
"""How long a vendor's function may look at the host. Until it returns, the next calls are refused."""
FAMILIES_TIMEOUT_S = 20.0


def build(vendors: Sequence[ServedVendor], builder: VendorBuilder) -> Serving:
    """The tasks of every vendor. ``ConfigError`` where two of them would use one name."""
    serving = Serving(vendors=[builder.vendor(served) for served in vendors])
    _require_distinct_names(serving)
    return serving


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

    def journal(self, what: str, family: Family) -> str:
        """The name of the file with what is changed at a family's cards."""
        return re.sub(r"[^A-Za-z0-9.-]", "_", f"{what}-{self.name}-{family.resources.device_type}")


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
        families = call_on_thread(
            f"families of {vendor.name}",
            lambda: tuple(served.vendor.families(served.settings)),
            timeout=FAMILIES_TIMEOUT_S,
        )
        tasks.dra = driver = self._dra(vendor)
        for family in families:
            self._add_family(vendor, family, driver, alone=len(families) == 1)
        if served.vendor.further and not driver.offering:
            listed = frozenset(family.resources.device_type for family in families)
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
        safe = guard_family(family, vendor.guard)
        partitions = self._partitions(vendor, safe, snapshot)
        if partitions:
            tasks.partitions.append(partitions)
        if driver.offering:
            if partitions:
                driver.cut[safe.resources.device_type] = partitions
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
            return tasks.inventory.view("" if alone and not vendor.cut else family.resources.device_type, None)
        specs = SpecGate(
            delivery.kind,
            SpecFiles(family, self.settings.cdi_dirs, self.node.host),
            events=self.node.events,
            observe=lambda: self.metrics.snapshot(vendor.name, tasks.inventory.shown),
        )
        tasks.specs.append(specs)
        if vendor.cut:
            tasks.inventory.view("", specs)
            return specs.part(family.resources.device_type)
        return tasks.inventory.view("" if alone else family.resources.device_type, specs)

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
        tasks.stale += [
            StaleRegistration(
                resource=resource,
                node=self.dra.live,
                checkpoint=CheckpointFile(self.settings.kubelet_dir),
                endpoint=partial(self._endpoint, observer=NullObserver()),
            )
            for resource in (source.family.resources.count, *(one.resource for one in source.family.resources.units))
        ]
        tasks.sources.append(source)
        tasks.announced.append(replace(source, snapshot=Watched(Snapshot(ready=True)), rendered=Rendered()))

    def _partitions(self, vendor: BuiltVendor, family: Family, snapshot: Watched[Snapshot]) -> Partitions | None:
        """The life of what the family's cards are cut into, if they are."""
        side, node = family.node.partitions, self.node
        if side is None or node.listed is None:
            return None
        from hami_plugin.partitions.journal import PartitionJournal  # noqa: PLC0415  # loaded where cards are cut
        from hami_plugin.partitions.manager import Partitions, Peers  # noqa: PLC0415

        opening, isolated = partial(side.open, node.host), vendor.served.isolated
        driver = CheckedPartitionDriver(opening, vendor.errors, isolated=isolated)
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
                claimed=partial(self.dra.claims.claimed, family.resources.device_type),
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
        from hami_plugin.partitions.journal import ModeJournal  # noqa: PLC0415  # as above
        from hami_plugin.partitions.modes import CardUsers, ModeReconciler  # noqa: PLC0415

        opening, isolated = partial(side.open, node.host), vendor.served.isolated
        driver = CheckedModeDriver(opening, vendor.errors, isolated=isolated)
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
        plugin = Allocator(
            family,
            self.node,
            snapshot=snapshot,
            guard=guard,
            units=units,
            partitions=partitions,
            proving=self.settings.identity_check == "required",
        )
        begun = partitions.begun if partitions else None
        return ServedResource(snapshot=snapshot, plugin=plugin, endpoint=self._endpoint(plugin), begun=begun)

    def _endpoint(self, plugin: DevicePlugin, observer: Observer | None = None) -> Endpoint:
        return Endpoint(
            plugin,
            self.settings.kubelet_dir,
            observer or self.metrics,
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
            family = guard_family(family_of(device_type), vendor.guard)
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
            decided = decided_shares(pod, question)
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
