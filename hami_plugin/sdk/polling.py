"""A driver for hardware without events: it polls the devices and reports new faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hami_plugin.model.device import NO_LINKS, Device, Discovery, Fault, Links
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk.vendor import HealthEvent

GONE = Fault(reason="DeviceGone", message="the host no longer lists the device")

Look = Callable[[Callable[[str | None], None]], Discovery]
"""Discovers all devices. It passes the UUID of the device that it is about to query to its argument, then None."""


class QueriedDevice:
    """The device that is being queried. Written by the driver's thread, read by others."""

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
    """A ``Driver`` of functions: ``look`` discovers the devices, and ``links`` measures the links between them.

    ``energy`` tells the joules that they have drawn, ``load`` how much of them is in use. ``every`` is the minimum poll
    interval in seconds.
    """

    def __init__(
        self,
        look: Look,
        links: Callable[[Sequence[Device]], Links] = lambda _devices: NO_LINKS,
        *,
        energy: Callable[[Sequence[Device]], Mapping[str, float]] = lambda _devices: {},
        load: Callable[[Sequence[Device]], Mapping[str, DeviceLoad]] = lambda _devices: {},
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look
        self._links = links
        self._energy = energy
        self._load = load
        self._every = every
        self._clock = clock
        self._sleep = sleep
        self._busy: str | None = None
        self._last = Discovery(sightings=())
        self._polled_at = float("-inf")

    @property
    def busy_with(self) -> str | None:
        return self._busy

    def discover(self) -> Discovery:
        try:
            self._last = self._look(self._ask)
        finally:
            self._busy = None
            self._polled_at = self._clock()
        return self._last

    def links(self) -> Links:
        return self._links([sighting.device for sighting in self._last.sightings])

    def energy(self) -> Mapping[str, float]:
        return self._energy([sighting.device for sighting in self._last.sightings])

    def load(self) -> Mapping[str, DeviceLoad]:
        return self._load([sighting.device for sighting in self._last.sightings])

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        """New faults since the last discovery. Recoveries are found by ``discover``, which runs while a device is
        unhealthy.
        """
        due = self._polled_at + self._every - self._clock()
        self._sleep(max(0.0, min(timeout, due)))
        if due > timeout:
            return ()
        before = _faults(self._last)
        after = _faults(self.discover())
        worse = {uuid: fault for uuid, fault in after.items() if fault and fault != before.get(uuid)}
        worse |= {uuid: GONE for uuid in before if uuid not in after}
        return tuple(HealthEvent(uuid=uuid, fault=fault, confirmed=True) for uuid, fault in worse.items())

    def close(self) -> None:
        self._last = Discovery(sightings=())

    def _ask(self, uuid: str | None) -> None:
        self._busy = uuid


def _faults(discovery: Discovery) -> dict[str, Fault | None]:
    return {sighting.device.uuid: sighting.fault for sighting in discovery.sightings}
