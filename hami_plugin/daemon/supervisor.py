"""What is served, while it is: the loops of each vendor and resource, what is wrong with them, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

from hami_plugin.aio import Watched
from hami_plugin.allocation.allocator import ResourcePlugin
from hami_plugin.allocation.preparation import HostCheck
from hami_plugin.host.threads import BoundedCalls
from hami_plugin.inventory.cdi_specs import SpecPublisher
from hami_plugin.inventory.discovery import DiscoveryLoop
from hami_plugin.inventory.inventory import FamilyPart
from hami_plugin.kubelet.endpoint import Endpoint
from hami_plugin.model.device import Snapshot
from hami_plugin.node_status.annotations import Source
from hami_plugin.vendor_boundary.guard import Guard
from hami_plugin.vendor_boundary.supervisor import VendorSupervisor

Work = Iterator[tuple[str, Coroutine[None, None, None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResource:
    """One resource: its family's devices as the others may see them, and its plugin at the kubelet."""

    snapshot: Watched[Snapshot]
    plugin: ResourcePlugin
    endpoint: Endpoint

    async def register(self) -> None:
        """Tell the kubelet nothing before there are devices: an empty list would withdraw what pods wait for.

        A family that this node has no device of stays unknown to the kubelet, and so does one whose shares cannot be
        told.
        """
        while not (self.snapshot.value.ready and self.snapshot.value.devices) and not self.snapshot.closed:
            await self.snapshot.changed(self.snapshot.version)
        await self.plugin.rendered.wait()
        await self.endpoint.run()

    def problem(self) -> str:
        """Why the kubelet does not have this resource as it is now; empty when it does."""
        state = self.endpoint.state.value
        return state.problem or ("" if state.ready else "the kubelet has not taken the first list yet")


@dataclass(slots=True, kw_only=True)
class VendorTasks:
    """Everything of one vendor. ``keeper`` runs its loops, ``calls`` its functions that look at the host, by ``guard``.

    They are nobody else's.
    """

    keeper: VendorSupervisor
    calls: BoundedCalls
    guard: Guard
    watch: DiscoveryLoop
    parts: list[FamilyPart] = field(default_factory=list)
    specs: list[SpecPublisher] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    lines: list[ServedResource] = field(default_factory=list)
    hosts: list[HostCheck] = field(default_factory=list)
    broken: bool = False

    def work(self) -> Work:
        """The loops, by name. One that fails begins again, and touches no other."""
        keep = self.keeper.keep
        name = f"driver {self.watch.vendor}"
        yield name, keep(name, "driver", self.watch.run, self.watch.fell)
        for part in self.parts:
            name = f"devices of {part.device_type}"
            yield name, keep(name, "devices", part.run)
        for specs in self.specs:
            name = f"cdi {specs.kind}"
            yield name, keep(name, "cdi", specs.run)
        for host in self.hosts:
            name = f"host {host.resource}"
            yield name, keep(name, "host problem", host.run)
        for line in self.lines:
            name = f"offers {line.plugin.resource}"
            yield name, keep(name, "offers", line.plugin.follow)
            name = f"kubelet {line.plugin.resource}"
            yield name, keep(name, "kubelet", line.register)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        snapshot = self.watch.snapshot.value
        words = f"{snapshot.reason}: {snapshot.message}" if snapshot.message else snapshot.reason
        yield f"driver {self.watch.vendor}", "" if snapshot.ready else words
        for specs in self.specs:
            if not _without_devices(specs.snapshot.value):
                yield f"cdi {specs.kind}", specs.problem
        for host in self.hosts:
            if not _without_devices(host.snapshot.value):
                yield f"host {host.resource}", host.problem
        for line in self.lines:
            if not _without_devices(line.snapshot.value):
                yield f"kubelet {line.plugin.resource}", line.problem()
        yield f"vendor {self.watch.vendor}", "; ".join(self.keeper.wrong.values())

    async def end_streams(self) -> None:
        """Let the servers stop at once."""
        self.watch.snapshot.close()
        for part in self.parts:
            part.snapshot.close()
        for specs in self.specs:
            specs.snapshot.close()
        for line in self.lines:
            await line.endpoint.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Everything that is served, in the order of the vendors."""

    vendors: Sequence[VendorTasks]

    @property
    def sources(self) -> list[Source]:
        return [source for own in self.vendors for source in own.sources]

    @property
    def lines(self) -> list[ServedResource]:
        return [line for own in self.vendors for line in own.lines]

    @property
    def kinds(self) -> list[str]:
        """CDI kinds that are served. None while a vendor's are not known: what is not named here may be its."""
        known = not any(own.broken for own in self.vendors)
        return [specs.kind for own in self.vendors for specs in own.specs] if known else []

    def work(self) -> Work:
        """The loops of all vendors, by name."""
        for own in self.vendors:
            yield from own.work()

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        for own in self.vendors:
            yield from own.problems()

    async def close(self, last: Callable[[], Coroutine[None, None, None]]) -> None:
        """Streams end first; ``last`` is done before the drivers are let go."""
        for own in self.vendors:
            await own.end_streams()
        await last()
        await asyncio.gather(*(own.watch.close() for own in self.vendors))
        for own in self.vendors:
            own.calls.close()


def _without_devices(snapshot: Snapshot) -> bool:
    """Whether the driver works, and this node has no device of the family."""
    return snapshot.ready and not snapshot.devices
