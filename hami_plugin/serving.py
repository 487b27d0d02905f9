"""What is served, while it is: the loops of each vendor and resource, what is wrong with them, and their end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field

from hami_plugin.aio import Watched
from hami_plugin.kubelet.endpoint import Endpoint
from hami_plugin.model.device import Snapshot
from hami_plugin.node.discovery import Watch
from hami_plugin.node.parts import FamilyPart
from hami_plugin.node.plugin import ResourcePlugin
from hami_plugin.node.registration import Source
from hami_plugin.node.specs import SpecPublisher

Work = Iterator[tuple[str, Coroutine[None, None, None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One resource: its family's devices as the others may see them, and its plugin at the kubelet."""

    snapshot: Watched[Snapshot]
    plugin: ResourcePlugin
    endpoint: Endpoint

    def work(self) -> Work:
        yield f"offers {self.plugin.resource}", self.plugin.follow()
        yield f"kubelet {self.plugin.resource}", _once_there(self.snapshot, self.endpoint.run)

    def problem(self) -> str:
        """Why the kubelet does not have this resource; empty when it does."""
        state = self.endpoint.state.value
        return "" if state.ready else state.problem or "the kubelet has not taken the first list yet"


@dataclass(slots=True, kw_only=True)
class Serving:
    """Everything that is served, in the order of the vendors."""

    watches: list[Watch] = field(default_factory=list)
    parts: list[FamilyPart] = field(default_factory=list)
    specs: list[SpecPublisher] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def work(self) -> Work:
        """The loops, by name."""
        for watch in self.watches:
            yield f"driver {watch.vendor}", watch.run()
        for part in self.parts:
            yield f"devices of {part.word}", part.run()
        for specs in self.specs:
            yield f"cdi {specs.kind}", specs.run()
        for line in self.lines:
            yield from line.work()

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each component with its problem, which is empty when the component is ready."""
        for watch in self.watches:
            snapshot = watch.snapshot.value
            words = f"{snapshot.reason}: {snapshot.message}" if snapshot.message else snapshot.reason
            yield f"driver {watch.vendor}", "" if snapshot.ready else words
        for specs in self.specs:
            if not _without_devices(specs.snapshot.value):
                yield f"cdi {specs.kind}", specs.problem
        for line in self.lines:
            if not _without_devices(line.snapshot.value):
                yield f"kubelet {line.plugin.resource}", line.problem()

    async def close(self, last: Callable[[], Coroutine[None, None, None]]) -> None:
        """Streams end first, so that the servers stop at once; ``last`` is done before the drivers are let go."""
        for watch in self.watches:
            watch.snapshot.close()
        for part in self.parts:
            part.snapshot.close()
        for specs in self.specs:
            specs.snapshot.close()
        for line in self.lines:
            await line.endpoint.close()
        await last()
        for watch in self.watches:
            await watch.close()


def _without_devices(snapshot: Snapshot) -> bool:
    """Whether the driver works, and this node has no device of the family."""
    return snapshot.ready and not snapshot.devices


async def _once_there(snapshot: Watched[Snapshot], run: Callable[[], Coroutine[None, None, None]]) -> None:
    """Tell the kubelet nothing before the driver has shown devices: an empty list would withdraw what pods wait for.

    A family that this node has no device of stays unknown to the kubelet.
    """
    while not (snapshot.value.ready and snapshot.value.devices) and not snapshot.closed:
        await snapshot.changed(snapshot.version)
    await run()
