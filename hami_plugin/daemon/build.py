"""From the settings and the enabled vendors to the objects that serve them.

A vendor's driver feeds its inventory; the inventory shows each family in one snapshot; all else reads that snapshot.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hami_plugin.aio import Watched
from hami_plugin.allocation.allocator import Allocator, ResourcePlugin
from hami_plugin.allocation.capacity import NodeState
from hami_plugin.allocation.container_start import StartCheck
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.config.settings import Settings
from hami_plugin.daemon.startup import Served
from hami_plugin.daemon.supervisor import ServedResource, Serving, VendorTasks
from hami_plugin.errors import ConfigError, HamiError
from hami_plugin.host.threads import BoundedCalls, once
from hami_plugin.inventory.cdi_specs import SpecFiles, SpecStage
from hami_plugin.inventory.discovery import DiscoveryLoop, DiscoveryTiming
from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.health_file import HealthMemory
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.kubelet.endpoint import Endpoint, PluginDirectory
from hami_plugin.kubelet.watch import DirectoryWatch
from hami_plugin.model.device import Snapshot
from hami_plugin.node_status.annotations import Source
from hami_plugin.sdk import Family, Units
from hami_plugin.telemetry.metrics import Metrics
from hami_plugin.vendor_boundary.guard import Guard, VendorErrors, guarded
from hami_plugin.vendor_boundary.supervisor import VendorSupervisor

CALL_TIMEOUT_S = 2.0
"""How long a vendor's function may look at the host. Until it returns, the next calls are refused."""
FAMILIES_TIMEOUT_S = 20.0


def build(vendors: Sequence[Served], builder: VendorBuilder) -> Serving:
    """The tasks of every vendor. ``ConfigError`` where two of them would use one name."""
    serving = Serving(vendors=[builder.vendor(served) for served in vendors])
    _require_distinct_names(serving)
    return serving


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorBuilder:
    """Makes a vendor's objects, from its driver to its endpoints, over those that all vendors share."""

    settings: Settings
    node: NodeState
    memory: HealthMemory
    watch: DirectoryWatch
    directory: PluginDirectory
    metrics: Metrics

    def vendor(self, served: Served) -> VendorTasks:
        """One vendor's. One whose families cannot be listed is served without any, and reports it."""
        name = served.vendor.name
        errors = VendorErrors(name, self.metrics)
        calls = BoundedCalls(f"{name}-families", timeout=CALL_TIMEOUT_S)
        inventory = self._inventory(name)
        tasks = VendorTasks(
            supervisor=VendorSupervisor(errors),
            calls=calls,
            inventory=inventory,
            discovery=self._discovery(served, inventory),
        )
        try:
            families = once(
                f"families of {name}",
                lambda: tuple(served.vendor.families(served.settings)),
                timeout=FAMILIES_TIMEOUT_S,
            )
            for family in families:
                self._add_family(tasks, family, Guard(calls, errors), errors, alone=len(families) == 1)
        except HamiError:
            raise
        except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
            why = errors.record("families", error).message
            tasks.supervisor.note("families", f"{why}; nothing of it is served until the daemon is started anew")
            return replace(tasks, specs=[], sources=[], resources=[], hosts=[], broken=True)
        return tasks

    def _inventory(self, vendor: str) -> Inventory:
        health = self.settings.health
        limits = HealthLimits(
            suspect_looks=health.suspect_looks,
            clean_looks=health.clean_looks,
            hold=health.hold_seconds,
            hold_cap=health.hold_cap_seconds,
        )
        return Inventory(limits, forget=health.forget_seconds, remembered=self.memory.recall(vendor))

    def _discovery(self, served: Served, inventory: Inventory) -> DiscoveryLoop:
        name, settings = served.vendor.name, self.settings
        return DiscoveryLoop(
            name,
            served.driver,
            inventory,
            timing=DiscoveryTiming(rescan=settings.rescan_seconds, probe=settings.health.probe_seconds),
            observer=self.metrics,
            events=self.node.events,
            remember=lambda: self.memory.note(name, inventory.conditions),
        )

    def _add_family(
        self, tasks: VendorTasks, family: Family, guard: Guard, errors: VendorErrors, *, alone: bool
    ) -> None:
        """The family's snapshot, and its readers: the node's annotations, the host check, and each resource.

        The CDI stage and the host check ask the family on threads of their own, so for them it is not guarded.
        """
        vendor, specs = tasks.discovery.vendor, None
        if family.node.delivery.cdi:
            specs = SpecStage(
                family.node.delivery.kind,
                SpecFiles(family, self.settings.cdi_dirs, self.node.host),
                events=self.node.events,
                observe=lambda: self.metrics.snapshot(vendor, tasks.inventory.shown),
            )
            tasks.specs.append(specs)
        snapshot = tasks.inventory.view("" if alone else family.device_type, specs)
        if family.node.needs_host:
            tasks.hosts.append(
                HostCheck(family, snapshot=snapshot, host=self.node.host, events=self.node.events, errors=errors)
            )
        safe = guarded(family, guard)
        tasks.sources.append(Source(vendor=vendor, family=safe, snapshot=snapshot, errors=errors))
        for units in (None, *safe.resources.units):
            tasks.resources.append(self._resource(safe, snapshot, units, guard))

    def _resource(
        self, family: Family, snapshot: Watched[Snapshot], units: Units | None, guard: Guard
    ) -> ServedResource:
        """One resource, from the family's snapshot to the kubelet."""
        settings = self.settings
        allocator = Allocator(family, self.node, snapshot=snapshot, guard=guard, units=units)
        check = StartCheck(allocator.question, self.node, clean=allocator.preparation.clean)
        plugin = ResourcePlugin(allocator, check if settings.identity_check == "required" else None, snapshot)
        endpoint = Endpoint(
            plugin,
            settings.kubelet_dir,
            self.metrics,
            watch=self.watch,
            plugins=self.directory,
            displaced=lambda why: self.node.events.node("Displaced", why),
        )
        return ServedResource(snapshot=snapshot, plugin=plugin, endpoint=endpoint)


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
