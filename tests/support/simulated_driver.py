"""A driver in pure Python that plays a machine profile, with faults that can be caused while it runs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Action, Device, Discovery, Fault, Link, Links, Sighting, symmetric
from hami_plugin.model.machine import Machine
from hami_plugin.sdk import HealthEvent

FAULTS = (
    "lost",
    "back",
    "xid",
    "ecc",
    "not-supported",
    "slow",
    "hang",
    "asymmetric",
    "driver-gone",
    "mismatch",
    "no-devices",
    "driver-back",
    "unplug",
    "plug",
    "fail-call",
    "recovery-action",
    "used-memory",
)
_AWAY = {
    "driver-gone": DriverReason.NO_DRIVER,
    "mismatch": DriverReason.VERSION_MISMATCH,
    "no-devices": DriverReason.NO_DEVICES,
}
_LOST = Fault(reason="GpuIsLost", message="the device does not answer")
_OWN_FAULTS = {
    "lost": _LOST,
    "ecc": Fault(reason="RowRemapPending", message="memory has errors", action=Action.RESET),
    "not-supported": Fault(reason="MemoryUnknown", message="the device cannot tell its memory"),
}
_RECOVERY = {0: None, 2: Action.REBOOT, 3: Action.DRAIN}


def plain_event(number: int) -> Fault | None:
    """What an event means when no vendor says otherwise: the device is drained."""
    return Fault(reason=f"Event{number}", message=f"event {number}")


@dataclass(slots=True)
class _Condition:
    """What is wrong with one device at present."""

    present: bool = True
    crooked: bool = False
    faults: dict[str, Fault] = field(default_factory=dict)
    delay: float = 0.0
    answers: threading.Event = field(default_factory=threading.Event)

    def suffer(self, fault: str, value: int | str) -> None:
        """Take on one fault, or with ``back`` get rid of all."""
        match fault:
            case "back":
                self.faults.clear()
                self.crooked, self.delay = False, 0.0
                self.answers.set()
            case "slow":
                self.delay = int(value) / 1000
            case "hang":
                self.answers.clear()
            case "asymmetric":
                self.crooked = True
            case "unplug" | "plug":
                self.present = fault == "plug"
            case _:
                self._show(fault, _shown(fault, value))

    def _show(self, name: str, fault: Fault | None) -> None:
        self.faults.pop(name, None)
        if fault:
            self.faults[name] = fault


def _shown(fault: str, value: int | str) -> Fault | None:
    """The fault that a look shows; None when it shows nothing."""
    if fault == "fail-call":
        return Fault(reason="CallFailed", message=f"{value} fails")
    if fault == "recovery-action":
        action = _RECOVERY.get(int(value), Action.RESET)
        message = f"the driver asks for recovery action {value}"
        return Fault(reason="RecoveryAction", message=message, action=action) if action else None
    return _OWN_FAULTS.get(fault)


class SimulatedDriver:
    """A ``Driver`` whose devices are a profile's. ``inject`` may be called from any thread.

    Faults name a device by its place in the profile; its index is its place among those that are plugged in.
    ``link`` scores a pair by its level and lanes; ``event`` says what an ``xid`` of a given number means, None for
    nothing. Faults are those of the vendors' own simulators, by the same names.
    """

    def __init__(
        self,
        machine: Machine,
        family: str,
        link: Callable[[str, int], Link],
        *,
        mode: str = "hami-core",
        event: Callable[[int], Fault | None] = plain_event,
    ) -> None:
        self._machine = machine
        self._family = family
        self._link = link
        self._mode = mode
        self._event = event
        # Some vendors' devices have no names of their own.
        self._uuids = [device.uuid or f"{machine.name}-{device.index}" for device in machine.devices]
        self._devices = [_Condition() for _ in machine.devices]
        for condition in self._devices:
            condition.answers.set()
        self._away = ""
        self._seen: tuple[str, ...] = ()
        self._events: deque[HealthEvent] = deque(maxlen=4096)
        self._change = threading.Condition()
        self._busy: str | None = None

    @property
    def busy_with(self) -> str | None:
        return self._busy

    def discover(self) -> Discovery:
        if self._away:
            raise _unavailable(_AWAY[self._away])
        present = [place for place, condition in enumerate(self._devices) if condition.present]
        sightings = [self._look(place, index) for index, place in enumerate(present)]
        if not sightings:
            raise _unavailable(DriverReason.NO_DEVICES)
        self._seen = tuple(sighting.device.uuid for sighting in sightings)
        return Discovery(sightings=tuple(sightings), facts={"driver": "simulated", "machine": self._machine.name})

    def links(self) -> Links:
        directed: dict[tuple[str, str], Link] = {}
        problems = []
        for i, a in enumerate(self._uuids):
            for j, b in enumerate(self._uuids):
                if i == j or a not in self._seen or b not in self._seen:
                    continue
                if "lost" in self._devices[i].faults or "lost" in self._devices[j].faults:
                    problems.append(f"{a} to {b}: {_LOST.message}")
                    continue
                lanes = self._machine.lanes[i][j] - self._devices[i].crooked
                directed[a, b] = self._link(self._machine.levels[i][j], max(0, lanes))
        return symmetric(directed, problems)

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        with self._change:
            self._change.wait_for(lambda: self._events, timeout)
            events = tuple(self._events)
            self._events.clear()
        return events

    def close(self) -> None:
        """Forget what was seen. Faults stay, as they would with hardware."""
        self._seen = ()

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault by name, on one device or on all. ValueError lists the names.

        ``value`` is the number of an ``xid``, milliseconds for ``slow``, the action for ``recovery-action``. Memory in
        use is nothing that this driver shows, so ``used-memory`` changes nothing.
        """
        if fault not in FAULTS:
            raise ValueError(f"no fault is named {fault!r}; choose from: {', '.join(FAULTS)}")
        if device is not None and not 0 <= device < len(self._devices):
            raise ValueError(f"there is no device {device}; {self._machine.name} has {len(self._devices)}")
        with self._change:
            if fault in _AWAY or fault == "driver-back":
                self._away = "" if fault == "driver-back" else fault
            else:
                for index in range(len(self._devices)) if device is None else (device,):
                    self._disturb(fault, index, value)
            self._change.notify_all()

    def _disturb(self, fault: str, index: int, value: int | str) -> None:
        if fault != "xid":
            self._devices[index].suffer(fault, value)
        elif meaning := self._event(int(value)):
            self._events.append(HealthEvent(uuid=self._uuids[index], fault=meaning))

    def _look(self, place: int, index: int) -> Sighting:
        condition = self._devices[place]
        self._busy = self._uuids[place]
        try:
            condition.answers.wait()  # a hang is a call that ends with "back", as a driver's would with a reset
            if condition.delay:
                time.sleep(condition.delay)
        finally:
            self._busy = None
        return Sighting(device=self._device(place, index), fault=next(iter(condition.faults.values()), None))

    def _device(self, place: int, index: int) -> Device:
        described = self._machine.devices[place]
        return Device(
            uuid=self._uuids[place],
            family=self._family,
            index=index,
            model=described.model,
            memory=described.memory,
            minor=described.minor,
            pci=described.pci,
            numa=described.numa if described.numa >= 0 else None,
            mode=self._mode,
        )


def _unavailable(reason: DriverReason) -> DriverUnavailableError:
    return DriverUnavailableError(reason, f"the simulated driver plays {reason}", hint="inject driver-back or plug")
