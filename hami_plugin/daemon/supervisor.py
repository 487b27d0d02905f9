"""The tasks of each vendor while the daemon serves: they run, are restarted, report problems, and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

from hami_plugin.aio import Watched
from hami_plugin.allocation.allocator import ResourcePlugin
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.host.threads import BoundedCalls
from hami_plugin.inventory.cdi_specs import SpecStage
from hami_plugin.inventory.discovery import DiscoveryLoop
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.kubelet.endpoint import Endpoint
from hami_plugin.model.device import Snapshot
from hami_plugin.node_status.annotations import Source
from hami_plugin.vendor_boundary.supervisor import VendorSupervisor

Work = Iterator[tuple[str, Coroutine[None, None, None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResource:
    """One resource: its family's snapshot, and its plugin at the kubelet."""

    snapshot: Watched[Snapshot]
    plugin: ResourcePlugin
    endpoint: Endpoint

    async def serve(self) -> None:
        """Register once there are devices and their shares are known: an empty list would withdraw what pods wait for.

        So the kubelet never hears of a family that this node has no device of.
        """
        while not (self.snapshot.value.ready and self.snapshot.value.devices) and not self.snapshot.closed:
            await self.snapshot.changed(self.snapshot.version)
        await self.plugin.rendered.wait()
        await self.endpoint.run()

    @property
    def problem(self) -> str:
        """Why the kubelet does not have this resource as it is now; empty when it does."""
        state = self.endpoint.state.value
        return state.problem or ("" if state.ready else "the kubelet has not taken the first list yet")


@dataclass(slots=True, kw_only=True)
class VendorTasks:
    """One vendor's objects, which no other vendor shares, and the tasks that they need.

    ``supervisor`` restarts a task that raised. ``calls`` makes the calls of the vendor's functions that use the host.
    ``broken``: its families are unknown.
    """

    supervisor: VendorSupervisor
    calls: BoundedCalls
    inventory: Inventory
    discovery: DiscoveryLoop
    specs: list[SpecStage] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    resources: list[ServedResource] = field(default_factory=list)
    hosts: list[HostCheck] = field(default_factory=list)
    broken: bool = False

    def work(self) -> Work:
        """The tasks, by name. One that raises is restarted, and touches no other."""
        keep = self.supervisor.keep
        name = f"driver {self.discovery.vendor}"
        yield name, keep(name, "driver", self.discovery.run, self.discovery.crashed)
        for specs in self.specs:
            name = f"cdi {specs.kind}"
            yield name, keep(name, "cdi", specs.run)
        for host in self.hosts:
            name = f"host {host.resource}"
            yield name, keep(name, "host problem", host.run)
        for resource in self.resources:
            name = f"offers {resource.plugin.resource}"
            yield name, keep(name, "offers", resource.plugin.follow)
            name = f"kubelet {resource.plugin.resource}"
            yield name, keep(name, "kubelet", resource.serve)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        found = self.inventory.found
        why = f"{found.reason}: {found.message}" if found.message else found.reason
        yield f"driver {self.discovery.vendor}", "" if found.ready else why
        for specs in self.specs:
            if not _without_devices(specs.snapshot.value):
                yield f"cdi {specs.kind}", specs.problem
        for host in self.hosts:
            if not _without_devices(host.snapshot.value):
                yield f"host {host.resource}", host.problem
        for resource in self.resources:
            if not _without_devices(resource.snapshot.value):
                yield f"kubelet {resource.plugin.resource}", resource.problem
        yield f"vendor {self.discovery.vendor}", "; ".join(self.supervisor.wrong.values())

    async def end_streams(self) -> None:
        """Let the servers stop at once."""
        self.inventory.close()
        for resource in self.resources:
            await resource.endpoint.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """All vendors' tasks, in the order of the vendors."""

    vendors: Sequence[VendorTasks]

    @property
    def sources(self) -> list[Source]:
        return [source for vendor in self.vendors for source in vendor.sources]

    @property
    def resources(self) -> list[ServedResource]:
        return [resource for vendor in self.vendors for resource in vendor.resources]

    @property
    def kinds(self) -> list[str]:
        """CDI kinds that are served. None while a vendor's are not known: any other kind may be its."""
        known = not any(vendor.broken for vendor in self.vendors)
        return [specs.kind for vendor in self.vendors for specs in vendor.specs] if known else []

    def work(self) -> Work:
        """The tasks of all vendors, by name."""
        for vendor in self.vendors:
            yield from vendor.work()

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        for vendor in self.vendors:
            yield from vendor.problems()

    async def close(self, settle: Callable[[], Coroutine[None, None, None]]) -> None:
        """End the streams, ``settle`` what was allocated, then close the drivers."""
        for vendor in self.vendors:
            await vendor.end_streams()
        await settle()
        await asyncio.gather(*(vendor.discovery.close() for vendor in self.vendors))
        for vendor in self.vendors:
            vendor.calls.close()


def _without_devices(snapshot: Snapshot) -> bool:
    """Whether the driver works, and this node has no device of the family."""
    return snapshot.ready and not snapshot.devices
