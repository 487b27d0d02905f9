"""What one vendor's driver has reported so far, reduced to one snapshot for each family, which all its readers watch.

A fault goes from the driver to ``Inventory``, from there at once to the snapshot of the family, and from the snapshot
to its readers: the kubelet's list, the node's annotations, Allocate. Where containers receive devices by CDI, a
``SnapshotGate`` stands before the snapshot, and shows a device after its spec is in place.

A restart must remember which devices are not healthy: ``HealthMemory`` keeps them until the machine reboots.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hami_plugin.host.files import NewestText
from hami_plugin.inventory.health import WELL, Condition, HealthLimits, after_event, after_look, after_reload, outlook
from hami_plugin.model.device import NO_LINKS, Action, Device, Discovery, Fault, Health, Links, Sighting, Snapshot
from hami_plugin.process.concurrency import Watched
from hami_plugin.process.log import logger
from hami_plugin.sdk import HealthEvent

log = logger(__name__)

MAX_BYTES = 4 << 20
"""A thousand unwell devices are a tenth of it."""


class HealthMemory:
    """One file with all vendors' unwell devices. Monotonic times hold for one boot, and so does the file.

    It is written behind the call, on a thread of its own: a look at devices does not wait for the disk. While
    ``reading_only``, the file is another process's.
    """

    def __init__(self, path: Path, boot: str, *, reading_only: bool = False) -> None:
        self._path = path
        self._file = NewestText(path)
        self._complained = ""
        self._boot = boot
        self._reading_only = reading_only
        self._vendors: dict[str, dict[str, Any]] = self._read()

    def recall(self, vendor: str) -> dict[str, Condition]:
        """What was noted about a vendor's devices since the machine started."""
        found: dict[str, Condition] = {}
        for uuid, noted in self._vendors.get(vendor, {}).items():
            try:
                found[uuid] = _condition(noted)
            except (KeyError, TypeError, ValueError, ArithmeticError) as error:
                log.warning("remembered condition skipped", device=uuid, problem=repr(error))
        return found

    def note(self, vendor: str, conditions: Mapping[str, Condition]) -> None:
        """Write down a vendor's unwell devices, if that is news."""
        noted = {uuid: _entry(condition) for uuid, condition in conditions.items()}
        failed = self._file.failed
        if failed and failed != self._complained:
            log.warning("health not remembered", path=str(self._path), problem=failed)
        self._complained = failed
        if noted == self._vendors.get(vendor, {}) and not failed:
            return
        self._vendors = {**self._vendors, vendor: noted}
        if not self._reading_only:
            self._put()

    def own(self) -> None:
        """Write from now on, beginning with what was noted so far."""
        if self._reading_only:
            self._reading_only = False
            self._put()

    @property
    def problem(self) -> str:
        """Why it is not on file; empty when it is."""
        return self._file.failed

    def check(self) -> None:
        """Have it written once more, if somebody took the file away."""
        self._file.check()

    def wait(self, within: float = 5.0) -> bool:
        """Wait, on any thread, until all that was noted is on file, or has failed. False: not in time."""
        return self._file.wait(within)

    def close(self, within: float = 5.0) -> None:
        """As ``wait``, and let its thread end."""
        self._file.wait(within)
        self._file.close()

    def _put(self) -> None:
        self._file.put(json.dumps({"boot": self._boot, "vendors": self._vendors}))

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            text = json.loads(self._bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("remembered health not read", path=str(self._path), problem=str(error))
            return {}
        if not isinstance(text, dict) or text.get("boot") != self._boot or not isinstance(text.get("vendors"), dict):
            return {}
        return {str(name): dict(devices) for name, devices in text["vendors"].items() if isinstance(devices, dict)}

    def _bytes(self) -> bytes:
        with self._path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes, which no daemon writes")
        return data


def _entry(condition: Condition) -> dict[str, Any]:
    entry = asdict(condition)
    del entry["recovered"]  # minus infinity is no JSON, and a restart may count as a fresh start for relapses
    return entry


def _condition(noted: Mapping[str, Any]) -> Condition:
    fault = noted["fault"]
    since = float(noted["since"])
    if not math.isfinite(since):
        raise ValueError(f"since {since} is no time")
    return Condition(
        health=Health(noted["health"]),
        fault=Fault(reason=str(fault["reason"]), message=str(fault["message"]), action=Action(fault["action"]))
        if fault
        else None,
        since=since,
        looks=int(noted["looks"]),
        broken=bool(noted["broken"]),
        relapses=int(noted["relapses"]),
    )


NO_FAULT = Fault(reason="")
GONE = Fault(reason="DeviceGone", message="the driver no longer lists this device", action=Action.DRAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """A device as last seen well enough to be described. ``seen`` is a monotonic time in seconds.

    ``former`` is the name of the device that was missing from the same place when this one was first seen.
    """

    device: Device
    condition: Condition
    seen: float
    former: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A device whose health changed, for logs and Events."""

    device: Device
    before: Health | None


class SnapshotGate(Protocol):
    """Decides what readers see of a family's devices, and when. ``take`` must not wait."""

    snapshot: Watched[Snapshot]

    def take(self, found: Snapshot) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What one family's readers watch. No ``device_type``: the driver serves this family only."""

    device_type: str
    snapshot: Watched[Snapshot]
    gate: SnapshotGate | None

    def take(self, found: Snapshot) -> None:
        own = part(found, self.device_type) if self.device_type else found
        if self.gate:
            self.gate.take(own)
        else:
            self.snapshot.set(own)


class Inventory:
    """Folds discoveries and events into ``found``, and shows it in the families' snapshots.

    Times are given by the caller; nothing here waits or reads a clock.
    """

    def __init__(
        self, limits: HealthLimits, *, forget: float, remembered: Mapping[str, Condition] | None = None
    ) -> None:
        self.found = Snapshot()
        self._limits = limits
        self._forget = forget
        self._known: dict[str, KnownDevice] = {}
        self._remembered = dict(remembered or {})
        self._links: Links = NO_LINKS
        self._views: list[_View] = []

    def view(self, device_type: str = "", gate: SnapshotGate | None = None) -> Watched[Snapshot]:
        """The snapshot of one family, of its devices alone, as far as ``gate`` lets them pass."""
        view = _View(device_type=device_type, snapshot=gate.snapshot if gate else Watched(Snapshot()), gate=gate)
        view.take(self.found)
        self._views.append(view)
        return view.snapshot

    @property
    def shown(self) -> Snapshot:
        """All families' devices as their readers see them, for metrics."""
        return whole(self.found, (view.snapshot.value for view in self._views if view.gate))

    def close(self) -> None:
        """End every reader's wait."""
        for view in self._views:
            view.gate.close() if view.gate else view.snapshot.close()

    @property
    def unwell(self) -> bool:
        """Whether any device needs another look soon."""
        return any(known.condition.health is not Health.HEALTHY for known in self._known.values())

    @property
    def conditions(self) -> dict[str, Condition]:
        """Every device that is not healthy, seen or not yet seen again; what a restart must remember."""
        known = {_subject(known.device): known.condition for known in self._known.values()}
        return self._remembered | {u: c for u, c in known.items() if c.health is not Health.HEALTHY}

    def outlook(self, uuid: str, now: float) -> str:
        """When a device is well again, as far as can be said; empty when it is, or is not known."""
        known = self._known.get(uuid)
        return outlook(known.condition, now, self._limits) if known else ""

    def condition(self, uuid: str) -> tuple[Device, Condition] | None:
        """A device and its state; None for one that was never seen."""
        known = self._known.get(uuid)
        return (known.device, known.condition) if known else None

    def discovered(self, discovery: Discovery, now: float) -> list[HealthChange]:
        """The driver has listed its devices: they appear, recover, fail, or are missing."""
        sighted = {sighting.device.uuid for sighting in discovery.sightings}
        for uuid in [
            u for u, k in self._known.items() if u not in sighted and (k.device.place or u in discovery.divided)
        ]:
            self._let_go(self._known.pop(uuid))
        missing = {(k.device.family, k.device.pci): u for u, k in self._known.items() if u not in sighted}
        for sighting in discovery.sightings:
            device = sighting.device
            before = self._known.get(device.uuid)
            same_place = missing.get((device.family, device.pci), "") if device.pci and not device.place else ""
            former = before.former if before else same_place
            if former in self._known and former not in sighted and sighting.fault is None:
                sighting = replace(sighting, fault=_renamed(device, former))  # noqa: PLW2901  # one and the same look
            condition = self._after_sighting(sighting, now)
            self._known[device.uuid] = KnownDevice(device=device, condition=condition, seen=now, former=former)
        for uuid in set(self._known) - sighted:
            known = self._known[uuid]
            if now - known.seen > self._forget:
                del self._known[uuid]
            else:
                condition = after_event(known.condition, GONE, now)
                self._known[uuid] = replace(known, condition=replace(condition, broken=True))
        return self._publish(replace(self.found, ready=True, reason="", message="", facts=discovery.facts))

    def _after_sighting(self, sighting: Sighting, now: float) -> Condition:
        """After a look. One that was never seen well has not earned a second look: it is not offered first."""
        before = self._known.get(sighting.device.uuid)
        condition = before.condition if before else self._remembered.pop(_subject(sighting.device), None)
        if condition is None and sighting.fault:
            return after_look(WELL, sighting.fault, now, replace(self._limits, suspect_looks=1))
        return after_look(condition or WELL, sighting.fault, now, self._limits)

    def _let_go(self, known: KnownDevice) -> None:
        """A partition was unmade, or a card was divided: no fault. What is wrong with its place stays known.

        A reset of the card unmakes all of them, so that nothing more needs to be seen broken.
        """
        if known.device.place and known.condition.health is not Health.HEALTHY:
            self._remembered[_subject(known.device)] = replace(known.condition, broken=True)

    def linked(self, links: Links, answering: Collection[str]) -> None:
        """New measurements of the pairs among ``answering``. A pair with a silent device keeps its last."""
        silent = {p: link for p, link in self._links.pairs.items() if not set(p) <= set(answering)}
        known = {p: link for p, link in silent.items() if set(p) <= set(self._known)}
        self._links = replace(links, pairs={**known, **links.pairs})
        self._publish(self.found)

    def event(self, event: HealthEvent, now: float) -> list[HealthChange]:
        """A fault of one device, or of all."""
        for uuid in [event.uuid] if event.uuid is not None else list(self._known):
            known = self._known.get(uuid)
            if known:
                condition = after_event(known.condition, event.fault, now, confirmed=event.confirmed)
                self._known[uuid] = replace(known, condition=condition)
        return self._publish(self.found)

    def doubted(self, uuid: str, fault: Fault, now: float) -> list[HealthChange]:
        """A look at one device that did not come back in time."""
        known = self._known.get(uuid)
        if known:
            condition = after_look(known.condition, fault, now, self._limits)
            self._known[uuid] = replace(known, condition=condition)
        return self._publish(self.found)

    def unavailable(self, reason: str, message: str, now: float) -> list[HealthChange]:
        """The driver as a whole does not answer: what was known stays, and is not offered."""
        fault = Fault(reason=reason, message=message)
        for uuid, known in self._known.items():
            condition = after_event(known.condition, fault, now)
            self._known[uuid] = replace(known, condition=replace(condition, broken=True), seen=now)
        return self._publish(replace(self.found, ready=False, reason=reason, message=message))

    def reloaded(self) -> None:
        """The driver was opened anew after it had been away."""
        self._known = {u: replace(k, condition=after_reload(k.condition)) for u, k in self._known.items()}

    def _publish(self, base: Snapshot) -> list[HealthChange]:
        before = {device.uuid: device.health for device in self.found.devices}
        listed = sorted(self._known.values(), key=lambda known: known.device.order)
        faults = [(known, known.condition.fault or NO_FAULT) for known in listed]
        devices = tuple(
            replace(
                known.device,
                health=known.condition.health,
                reason=fault.reason,
                message=fault.message,
                grave=fault.action in (Action.RESET, Action.REBOOT),
            )
            for known, fault in faults
        )
        self.found = replace(base, devices=devices, links=self._links)
        for view in self._views:
            view.take(self.found)
        return [
            HealthChange(device=d, before=before.get(d.uuid)) for d in devices if before.get(d.uuid) is not d.health
        ]


def _subject(device: Device) -> str:
    """What a device's health is remembered under."""
    return device.place or device.uuid


def _renamed(device: Device, former: str) -> Fault:
    """Containers may still have the device under its former name, under which nothing more is handed out."""
    return Fault(
        reason="Renamed", message=f"the device at {device.pci} was {former} until now; it is not given out twice"
    )


def part(snapshot: Snapshot, device_type: str) -> Snapshot:
    """What a family sees of ``snapshot``: its devices and the links among them. The rest is the driver's."""
    devices = tuple(device for device in snapshot.devices if device.family == device_type)
    if len(devices) == len(snapshot.devices):
        return snapshot
    own = {device.uuid for device in devices}
    links = Links(
        pairs={pair: link for pair, link in snapshot.links.pairs.items() if own.issuperset(pair)},
        asymmetric=tuple(pair for pair in snapshot.links.asymmetric if own.issuperset(pair)),
        problems=snapshot.links.problems,
    )
    return replace(snapshot, devices=devices, links=links)


def whole(snapshot: Snapshot, parts: Iterable[Snapshot]) -> Snapshot:
    """``snapshot`` with its devices as they are shown in ``parts``."""
    shown = {device.uuid: device for one in parts for device in one.devices}
    return replace(snapshot, devices=tuple(shown.get(device.uuid, device) for device in snapshot.devices))
