"""A driver for hardware that announces nothing: it looks again and again, and tells what has become worse."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hami_plugin.model.device import Device, Discovery, Fault
from hami_plugin.model.links import NO_LINKS, Links
from hami_plugin.sdk.vendor import HealthEvent

GONE = Fault(reason="DeviceGone", message="the host lists the device no more")

Look = Callable[[Callable[[str | None], None]], Discovery]
"""One look at all devices. It says by its argument which device it is about to ask, by UUID, and None afterwards."""


class Busy:
    """Which device is being asked. Written by the driver's thread, read by others."""

    def __init__(self) -> None:
        self.uuid: str | None = None

    @contextmanager
    def asking(self, uuid: str | None) -> Iterator[None]:
        self.uuid = uuid
        try:
            yield
        finally:
            self.uuid = None


class PollingDriver:
    """A ``Driver`` made of two functions: ``look`` at the devices, and measure the ``links`` between those found.

    ``every`` is the time in seconds between two looks of ``poll``; a short look may be taken often.
    """

    def __init__(
        self,
        look: Look,
        links: Callable[[Sequence[Device]], Links] = lambda _devices: NO_LINKS,
        *,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look
        self._links = links
        self._every = every
        self._clock = clock
        self._sleep = sleep
        self._busy: str | None = None
        self._last = Discovery(sightings=())
        self._looked = float("-inf")

    @property
    def busy_with(self) -> str | None:
        return self._busy

    def discover(self) -> Discovery:
        try:
            self._last = self._look(self._ask)
        finally:
            self._busy = None
            self._looked = self._clock()
        return self._last

    def links(self) -> Links:
        return self._links([sighting.device for sighting in self._last.sightings])

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        """New faults since the last look. Recoveries are for ``discover``, which is asked while anything is unwell."""
        due = self._looked + self._every - self._clock()
        self._sleep(max(0.0, min(timeout, due)))
        if due > timeout:
            return ()
        before = _faults(self._last)
        after = _faults(self.discover())
        worse = {uuid: fault for uuid, fault in after.items() if fault and fault != before.get(uuid)}
        worse |= {uuid: GONE for uuid in before if uuid not in after}
        return tuple(HealthEvent(uuid=uuid, fault=fault) for uuid, fault in worse.items())

    def close(self) -> None:
        self._last = Discovery(sightings=())

    def _ask(self, uuid: str | None) -> None:
        self._busy = uuid


def _faults(discovery: Discovery) -> dict[str, Fault | None]:
    return {sighting.device.uuid: sighting.fault for sighting in discovery.sightings}
