"""What one vendor's driver has shown so far, reduced to one snapshot that publishers watch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from hami_plugin.aio import Watched
from hami_plugin.inventory.health import WELL, Condition, HealthLimits, after_event, after_look, after_reload
from hami_plugin.model.device import Action, Device, Discovery, Fault, Health, Sighting, Snapshot
from hami_plugin.model.links import NO_LINKS, Links

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
class Change:
    """A device whose health changed, for logs and Events."""

    device: Device
    before: Health | None


class Inventory:
    """Folds looks and events into ``snapshot``. Times are given by the caller; nothing here waits or reads a clock."""

    def __init__(
        self, patience: HealthLimits, *, forget: float, remembered: Mapping[str, Condition] | None = None
    ) -> None:
        self.snapshot: Watched[Snapshot] = Watched(Snapshot())
        self._patience = patience
        self._forget = forget
        self._known: dict[str, KnownDevice] = {}
        self._remembered = dict(remembered or {})
        self._links: Links = NO_LINKS

    @property
    def unwell(self) -> bool:
        """Whether any device needs another look soon."""
        return any(known.condition.health is not Health.HEALTHY for known in self._known.values())

    @property
    def conditions(self) -> dict[str, Condition]:
        """Every device that is not healthy, seen or not yet seen again; what a restart must remember."""
        known = {uuid: known.condition for uuid, known in self._known.items()}
        return self._remembered | {u: c for u, c in known.items() if c.health is not Health.HEALTHY}

    def looked(self, discovery: Discovery, now: float) -> list[Change]:
        """A look at the driver: devices appear, recover, fail, or are missing."""
        sighted = {sighting.device.uuid for sighting in discovery.sightings}
        missing = {(k.device.family, k.device.pci): u for u, k in self._known.items() if u not in sighted}
        for sighting in discovery.sightings:
            device = sighting.device
            before = self._known.get(device.uuid)
            former = before.former if before else missing.get((device.family, device.pci), "") if device.pci else ""
            if former in self._known and former not in sighted and sighting.fault is None:
                sighting = replace(sighting, fault=_renamed(device, former))  # noqa: PLW2901  # one and the same look
            condition = self._looked_at(sighting, now)
            self._known[device.uuid] = KnownDevice(device=device, condition=condition, seen=now, former=former)
        for uuid in set(self._known) - sighted:
            known = self._known[uuid]
            if now - known.seen > self._forget:
                del self._known[uuid]
            else:
                condition = after_event(known.condition, GONE, now)
                self._known[uuid] = replace(known, condition=replace(condition, broken=True))
        return self._publish(replace(self.snapshot.value, ready=True, reason="", message="", facts=discovery.facts))

    def _looked_at(self, sighting: Sighting, now: float) -> Condition:
        """After a look. One that was never seen well has not earned a second look: it is not offered first."""
        before = self._known.get(sighting.device.uuid)
        condition = before.condition if before else self._remembered.pop(sighting.device.uuid, None)
        if condition is None and sighting.fault:
            return after_look(WELL, sighting.fault, now, replace(self._patience, suspect_looks=1))
        return after_look(condition or WELL, sighting.fault, now, self._patience)

    def linked(self, links: Links, answering: Collection[str]) -> None:
        """New measurements of the pairs among ``answering``. A pair with a silent device keeps its last."""
        silent = {p: link for p, link in self._links.pairs.items() if not set(p) <= set(answering)}
        known = {p: link for p, link in silent.items() if set(p) <= set(self._known)}
        self._links = replace(links, pairs={**known, **links.pairs})
        self._publish(self.snapshot.value)

    def event(self, uuid: str | None, fault: Fault, now: float) -> list[Change]:
        """A fault of one device, or of all."""
        for known_uuid in [uuid] if uuid is not None else list(self._known):
            known = self._known.get(known_uuid)
            if known:
                self._known[known_uuid] = replace(known, condition=after_event(known.condition, fault, now))
        return self._publish(self.snapshot.value)

    def doubted(self, uuid: str, fault: Fault, now: float) -> list[Change]:
        """A look at one device that did not come back in time."""
        known = self._known.get(uuid)
        if known:
            condition = after_look(known.condition, fault, now, self._patience)
            self._known[uuid] = replace(known, condition=condition)
        return self._publish(self.snapshot.value)

    def unavailable(self, reason: str, message: str, now: float) -> list[Change]:
        """The driver as a whole does not answer: what was known stays, and is not offered."""
        fault = Fault(reason=reason, message=message)
        for uuid, known in self._known.items():
            condition = after_event(known.condition, fault, now)
            self._known[uuid] = replace(known, condition=replace(condition, broken=True), seen=now)
        return self._publish(replace(self.snapshot.value, ready=False, reason=reason, message=message))

    def reloaded(self) -> None:
        """The driver was opened anew after it had been away."""
        self._known = {u: replace(k, condition=after_reload(k.condition)) for u, k in self._known.items()}

    def _publish(self, base: Snapshot) -> list[Change]:
        before = {device.uuid: device.health for device in self.snapshot.value.devices}
        devices = tuple(
            replace(k.device, health=k.condition.health, reason=k.condition.reason, message=k.condition.message)
            for k in sorted(self._known.values(), key=lambda known: (known.device.index, known.device.uuid))
        )
        self.snapshot.set(replace(base, devices=devices, links=self._links))
        return [Change(device=d, before=before.get(d.uuid)) for d in devices if before.get(d.uuid) is not d.health]


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


class FamilyPart:
    """Follows ``found``, and publishes in ``snapshot`` what is the family's."""

    def __init__(self, device_type: str, found: Watched[Snapshot]) -> None:
        self.device_type = device_type
        self.snapshot = Watched(part(found.value, device_type))
        self._found = found

    async def run(self) -> None:
        """Until ``found`` is closed."""
        async for snapshot in self._found.follow():
            self.snapshot.set(part(snapshot, self.device_type))
        self.snapshot.close()
