"""Who had a device when it failed, who did not, and when it heals: told to the pods, kept for metrics and ``explain``.

Hardware names a device and seldom a process. So all containers that share the device are told; where there is one, it
is the one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hami_plugin.allocation.identity import HeldShare
from hami_plugin.model.device import Action, Device, Fault, Health
from hami_plugin.model.views import PodView
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import FamilySource

MAX_RECORDS = 1024
"""Devices whose last fault is kept: all of a node."""
MAX_COUNTED = 4096
"""Pairs of a device and a reason that are counted."""
MAX_PODS = 16
"""Pods that are told of one fault."""
MAX_NAMED = 5
"""Of pods or devices in one message."""

Key = tuple[str, str]
"""A vendor and a device's UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """One fault: ``holders`` had the device at that moment, ``others`` are the node's other pods, as namespace/name.
    ``time`` is in seconds since 1970.
    """

    vendor: str
    device: Device
    fault: Fault
    time: float
    holders: tuple[HeldShare, ...]
    others: tuple[str, ...]

    @property
    def harmless(self) -> bool:
        """Whether the device stays usable: the fault is an application's own."""
        return self.fault.action is Action.IGNORE


class FaultLog:
    """The last fault of each device. ``held`` is all that containers have, ``pod`` finds a pod by its UID."""

    def __init__(
        self,
        held: Callable[[], Iterable[HeldShare]],
        pod: Callable[[str], PodView | None],
        events: EventRecorder,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.last: dict[Key, FaultRecord] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._held = held
        self._pod = pod
        self._events = events
        self._clock = clock

    def inherit(self, former: FaultLog) -> None:
        """Go on from another one."""
        self.last, self.counts = dict(former.last), Counter(former.counts)

    def note(self, vendor: str, device: Device, fault: Fault, outlook: str) -> None:
        """A device has failed, or an application on it has. ``outlook`` says when the device heals."""
        held = list(self._held())
        holders = tuple(one for one in held if any(grant.uuid == device.uuid for grant in one.grants))
        mine = {one.uid for one in holders}
        others = tuple(sorted({_name(one) for one in held if one.uid not in mine}))
        record = FaultRecord(
            vendor=vendor, device=device, fault=fault, time=self._clock(), holders=holders, others=others
        )
        self.last.pop((vendor, device.uuid), None)
        self.last[vendor, device.uuid] = record
        while len(self.last) > MAX_RECORDS:
            self.last.pop(next(iter(self.last)))
        counted = (vendor, device.uuid, fault.reason)
        if counted in self.counts or len(self.counts) < MAX_COUNTED:
            self.counts[counted] += 1
        message = fault_message(record, outlook)
        for uid in list(dict.fromkeys(one.uid for one in holders))[:MAX_PODS]:
            if pod := self._pod(uid):
                self._events.pod(pod, "ApplicationFault" if record.harmless else "DeviceFault", message, warning=True)


def fault_message(record: FaultRecord, outlook: str) -> str:
    """One fault in words."""
    device, fault = record.device, record.fault
    ran = listed(_containers(record.holders)) or "nobody"
    spared = f"{len(record.others)} other pods of the node, on other devices, are not affected" if record.others else ""
    heals = f"it heals {outlook}" if outlook else ""
    parts = [
        f"{device.family} device {device.number} ({device.uuid}): {fault.reason}, {fault.message}".rstrip(", "),
        f"had by {ran}",
        spared,
        "the device stays in service: the fault is an application's own" if record.harmless else heals,
    ]
    return "; ".join(part for part in parts if part)


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _containers(held: Iterable[HeldShare]) -> list[str]:
    return sorted({f"{_name(one)} ({one.container})" for one in held})


def _name(held: HeldShare) -> str:
    return f"{held.namespace}/{held.pod}"


def faults_document(
    sources: Iterable[FamilySource],
    held: Iterable[HeldShare],
    log: FaultLog,
    outlook: Callable[[str, str], str],
    node: str,
) -> Mapping[str, Any]:
    """Every device with its health, who has it, its last fault, and when it heals; for ``hami-plugin explain``.

    ``outlook`` takes a vendor and a UUID.
    """
    everybody = list(held)
    devices = []
    for source in sources:
        for device in {device.uuid: device for device in source.snapshot.value.devices}.values():
            record = log.last.get((source.vendor, device.uuid))
            holders = [one for one in everybody if any(grant.uuid == device.uuid for grant in one.grants)]
            mine = {one.uid for one in holders}
            devices.append(
                {
                    "vendor": source.vendor,
                    "deviceType": device.family,
                    "uuid": device.uuid,
                    "number": device.number,
                    "model": device.model,
                    "health": device.health.value,
                    "offered": device.health.offered,
                    "reason": device.reason,
                    "message": device.message,
                    "outlook": outlook(source.vendor, device.uuid) if device.health is not Health.HEALTHY else "",
                    "holders": _containers(holders),
                    "others": sorted({_name(one) for one in everybody if one.uid not in mine}),
                    "fault": _shown(record) if record else None,
                }
            )
    return {"node": node, "devices": devices}


def _shown(record: FaultRecord) -> Mapping[str, Any]:
    return {
        "reason": record.fault.reason,
        "message": record.fault.message,
        "action": record.fault.action.value,
        "harmless": record.harmless,
        "time": record.time,
        "holders": _containers(record.holders),
        "others": list(record.others),
    }
