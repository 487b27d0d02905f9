"""What containers really use of their devices, read again and again, and the folders that ended pods leave behind.

A vendor says how one container's usage is read. Each vendor's containers are read on its own thread, so one that hangs
delays no other, and a scrape only shows what was read last.

HAMi-core counts what programs ask it for; a static program, or one without the preload, asks the driver alone. So the
driver's own list of processes, which no container can forge, says who else uses a device.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from hami_plugin.allocation.identity import HeldShare, Key
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.placement import Grant, Share
from hami_plugin.model.usage import ContainerUsage, DeviceLoad, DeviceProcess, DeviceUsage, Pace, UsageState
from hami_plugin.model.views import PodView
from hami_plugin.node_status.occupancy import DeviceOccupancy, Portion
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.process.concurrency import BoundedCalls, StuckError, settable_error
from hami_plugin.process.log import logger

log = logger(__name__)

FindPod = Callable[[str], PodView | None]
"""A pod of this node by its UID."""


class Outsider(StrEnum):
    """Whose a process is that no container with a share of the device has."""

    NO_POD = "no pod"
    OTHER_POD = "another pod"
    UNKNOWN = "unknown"
    """It has ended meanwhile, or its cgroup is not to be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTotals:
    """So many processes, with so many bytes of the device as far as that is told."""

    processes: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsers:
    """All that use a device. Each container with a share of it is there, if with nothing."""

    containers: Mapping[Key, ProcessTotals]
    outsiders: Mapping[Outsider, ProcessTotals]


def device_users(one: DeviceOccupancy, load: DeviceLoad | None, pod: FindPod) -> DeviceUsers | None:
    """Who uses the device now; None where its driver does not list processes."""
    if load is None or load.processes is None:
        return None
    found: defaultdict[Key | Outsider, list[DeviceProcess]] = defaultdict(list)
    for process in load.processes:
        found[_user(one.portions, process, pod)].append(process)
    return DeviceUsers(
        containers={portion.held.key: _measured(found[portion.held.key]) for portion in one.portions},
        outsiders={kind: _measured(found[kind]) for kind in Outsider},
    )


def _user(portions: Sequence[Portion], process: DeviceProcess, pod: FindPod) -> Key | Outsider:
    if process.owner is None:
        return Outsider.UNKNOWN
    if not process.owner.pod:
        return Outsider.NO_POD
    theirs = [portion.held for portion in portions if portion.held.uid == process.owner.pod]
    if not theirs:
        return Outsider.OTHER_POD
    known = pod(process.owner.pod)
    name = known.running.get(process.owner.container, "") if known else ""
    if name:
        return next((held.key for held in theirs if held.container == name), Outsider.OTHER_POD)
    return theirs[0].key if len(theirs) == 1 else Outsider.UNKNOWN


def _measured(processes: Sequence[DeviceProcess]) -> ProcessTotals:
    return ProcessTotals(processes=len(processes), memory=sum(one.memory_used or 0 for one in processes))


READ_TIMEOUT_S = 4.0
"""How long a vendor may read the usage of all its containers."""
ALONE = "its device's own account: nobody else has it"
MAX_FOLDERS = 4096
"""Folders of containers that are looked at in one turn."""
MAX_REMOVED = 64
"""Folders that are removed in one turn."""
FOLDER_KEPT_S = 300.0
"""How long a folder stays whose pod is unknown: a list of pods may be behind the kubelet."""
_FOLDER = re.compile(
    r"(?P<uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})_[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReading:
    """The usage of one container, whose share ``held`` is."""

    source: FamilySource
    held: HeldShare
    usage: ContainerUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What is known of this node's pods. ``known`` is None while the API server's list may be out of date."""

    held: Callable[[], Iterable[HeldShare]]
    known: Callable[[], AbstractSet[str] | None]


class Loads:
    """What the hardware said last of each device. What is older than ``kept`` seconds is nobody's word any more."""

    def __init__(self, *, kept: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept = kept
        self._clock = clock
        self._of: dict[str, tuple[float, Mapping[str, DeviceLoad]]] = {}

    def note(self, vendor: str, loads: Mapping[str, DeviceLoad]) -> None:
        """All that a vendor's driver tells."""
        self._of[vendor] = (self._clock(), loads)

    def of(self, vendor: str, uuid: str) -> DeviceLoad | None:
        when, loads = self._of.get(vendor, (0.0, {}))
        return loads.get(uuid) if self._clock() - when < self._kept else None


def by_device(occupied: Iterable[DeviceOccupancy], loads: Loads, known: AbstractSet[Key]) -> Iterator[UsageReading]:
    """The usage of containers that have devices alone, by what the hardware says of these.

    ``known`` are those whose usage is read otherwise.
    """
    alone: dict[Key, tuple[FamilySource, HeldShare, list[DeviceUsage]]] = {}
    for one in occupied:
        load = loads.of(one.source.vendor, one.device.uuid)
        if len(one.portions) != 1 or load is None or load.memory_used is None:
            continue
        (portion,) = one.portions
        if portion.held.key not in known:
            used = DeviceUsage(
                uuid=one.device.uuid,
                memory_used=load.memory_used,
                memory_limit=int(portion.memory) << 20,
                utilization=load.utilization,
                core_limit=round(portion.cores * 100),
            )
            alone.setdefault(portion.held.key, (one.source, portion.held, []))[2].append(used)
    for source, held, devices in alone.values():
        usage = ContainerUsage(state=UsageState.OK, detail=ALONE, layout="device", devices=tuple(devices))
        yield UsageReading(source=source, held=held, usage=usage)


class UsageObserver(Protocol):
    """What follows from each reading, on the event loop."""

    async def turn(
        self, readings: Iterable[tuple[FamilySource, HeldShare, ContainerUsage]], *, connected: bool
    ) -> None: ...

    async def release(self) -> None:
        """There will be no more readings."""


class UsageReader:
    """Reads every ``interval`` seconds; ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        sources: Sequence[FamilySource],
        pods: Pods,
        *,
        host: HostFiles,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        nodes = [(source, source.family.node) for source in sources]
        self._vendors = [_Vendor(source) for source, node in nodes if node.usage or node.folders]
        self._pods = pods
        self._host = host
        self._interval = interval
        self._clock = clock
        self.after: UsageObserver | None = None
        self.further: Callable[[AbstractSet[Key]], Iterable[UsageReading]] = lambda _known: ()
        self._read: Sequence[UsageReading] = ()
        self.read_at: float | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        if not self._vendors:
            return
        try:
            while True:
                await self.turn()
                await asyncio.sleep(self._interval)
        finally:
            if self.after:
                await self.after.release()
            for vendor in self._vendors:
                vendor.calls.close()

    async def turn(self) -> None:
        """Read every container once, and remove the folders of pods that are gone."""
        held, known = list(self._pods.held()), self._pods.known()
        if known is not None:
            known = {*known, *(one.uid for one in held)}
        turns = (vendor.turn(held, known, self._host, self._clock()) for vendor in self._vendors)
        self._read = [reading for readings in await asyncio.gather(*turns) for reading in readings]
        self.read_at = self._clock()
        if self.after:
            readings = [(one.source, one.held, one.usage) for one in self._read]
            await self.after.turn(readings, connected=known is not None)

    @property
    def readings(self) -> Sequence[UsageReading]:
        """The last one of each container, with those whose usage ``further`` sources tell."""
        return [*self._read, *self.further({one.held.key for one in self._read})]

    async def pace(self, source: FamilySource, held: HeldShare, pace: Pace) -> None:
        """Let a container that runs start work on its devices, or hold it back. ``HamiError`` where that cannot be."""
        vendor = next((one for one in self._vendors if one.source is source), None)
        if vendor:
            await vendor.pace(held, pace, self._host)

    async def limit(self, held: HeldShare, grants: Sequence[Grant]) -> None:
        """Hold a container that runs to these amounts, all of them or none: then ``HamiError``."""
        vendor = next((one for one in self._vendors if one.limits(held)), None)
        if vendor is None:
            why = "the daemon does not look at what containers use" if not self._vendors else ""
            raise HamiError(
                why or f"the limits of {held.resource} are fixed when a container starts",
                hint="set usageSeconds" if why else "make a new pod",
            )
        await vendor.limit(held, grants, self._host)

    def age_s(self) -> float | None:
        """Seconds since the last reading; None before the first."""
        return None if self.read_at is None else self._clock() - self.read_at


class _Vendor:
    """One family's containers, on a thread of their own."""

    def __init__(self, source: FamilySource) -> None:
        self.source = self._source = source
        self._unknown: Mapping[str, float] = {}
        self.calls = BoundedCalls(f"usage of {source.family.resources.device_type}", timeout=READ_TIMEOUT_S)

    async def turn(
        self, held: Iterable[HeldShare], known: AbstractSet[str] | None, host: HostFiles, now: float
    ) -> Sequence[UsageReading]:
        """Of a family whose usage nobody reads, only what its ended pods have left is removed."""
        family = self._source.family
        wanted = [one for one in held if family.node.usage and one.resource == family.resources.count]
        try:
            readings = await self.calls.ask(partial(self._read_all, wanted, host))
        except (StuckError, HamiError) as error:
            why = ContainerUsage(state=UsageState.UNREADABLE, detail=str(error))
            return [UsageReading(source=self._source, held=one, usage=why) for one in wanted]
        if known is not None:
            with suppress(StuckError, HamiError):  # the next turn tries again; what was read stands
                await self.calls.ask(partial(self._tidy, known, host, now))
        return readings

    def limits(self, held: HeldShare) -> bool:
        """Whether this family has given the container its devices, and can change how much of them it may use."""
        family = self._source.family
        return family.node.limit is not None and held.resource == family.resources.count

    async def limit(self, held: HeldShare, grants: Sequence[Grant], host: HostFiles) -> None:
        shares = self._shares(grants)
        if len(shares) != len(grants):
            raise HamiError("a device of it is not on this node any more", hint="hami-plugin explain has more")
        try:
            await self.calls.ask(partial(self._limit, held, shares, host))
        except StuckError as error:
            raise HamiError(
                f"its limits cannot be written: {error}", hint="see whether the host's disk hangs"
            ) from error

    async def pace(self, held: HeldShare, pace: Pace, host: HostFiles) -> None:
        call = self._source.family.node.pace
        if call is None:
            return
        try:
            await self.calls.ask(partial(call, held.uid, held.container, self._shares(held.grants), pace, host))
        except OSError as error:
            raise HamiError(f"its region cannot be written: {error}") from error

    def _limit(self, held: HeldShare, shares: Sequence[Share], host: HostFiles) -> None:
        limit = self._source.family.node.limit
        assert limit
        try:
            limit(held.uid, held.container, shares, host)
        except HamiError:
            raise
        except OSError as error:
            raise HamiError(f"its limits cannot be written: {error.strerror or error}") from error
        except Exception as error:
            raise self._source.errors.record("limit", settable_error(error)) from error

    def _shares(self, grants: Iterable[Grant]) -> Sequence[Share]:
        """In the order in which the container sees the devices, without those that are gone."""
        devices = {device.uuid: device for device in self._source.snapshot.value.devices}
        shares = (Share(grant=grant, device=devices[grant.uuid]) for grant in grants if grant.uuid in devices)
        return sorted(shares, key=lambda share: share.device.order)

    def _read_all(self, wanted: Sequence[HeldShare], host: HostFiles) -> Sequence[UsageReading]:
        readings = []
        for one in wanted:
            shares = self._shares(one.grants)
            if len(shares) == len(one.grants):
                usage = self._read(one, shares, host)
                if one.resized and not one.resize and usage.changed_limits and self._held_again(one, shares, host):
                    usage = self._read(one, shares, host)
            else:
                usage = ContainerUsage(
                    state=UsageState.UNREADABLE, detail="a device of it is not on this node any more"
                )
            readings.append(UsageReading(source=self._source, held=one, usage=usage))
        return readings

    def _read(self, held: HeldShare, shares: Sequence[Share], host: HostFiles) -> ContainerUsage:
        read = self._source.family.node.usage
        assert read
        try:
            return read(held.uid, held.container, shares, host)
        except OSError as error:
            return ContainerUsage(state=UsageState.UNREADABLE, detail=error.strerror or str(error))
        except HamiError as error:
            return ContainerUsage(state=UsageState.UNREADABLE, detail=str(error))
        except Exception as error:  # noqa: BLE001  # the line between one vendor and all others
            problem = self._source.errors.record("usage", settable_error(error))
            return ContainerUsage(state=UsageState.UNREADABLE, detail=str(problem))

    def _held_again(self, held: HeldShare, shares: Sequence[Share], host: HostFiles) -> bool:
        """A container that was resized has started again, with the limits that it had at first: give it its own."""
        if not self.limits(held):
            return False
        try:
            self._limit(held, shares, host)
        except HamiError:  # the metrics say that its limits are others, and the next turn tries again
            return False
        log.info("limits of a resized container written", pod=f"{held.namespace}/{held.pod}", container=held.container)
        return True

    def _tidy(self, known: AbstractSet[str], host: HostFiles, now: float) -> None:
        folders = self._source.family.node.folders
        if folders is None:
            return
        root = host.seen(folders(host.paths))
        try:
            names = [path.name for path in islice(root.iterdir(), MAX_FOLDERS)]
        except OSError:
            return  # nothing was handed out on this host yet
        self._unknown, removable = expired_folders(names, known, self._unknown, now)
        for name in removable:
            if _remove(root / name):
                log.info(
                    "folder of an ended pod removed", folder=name, device_type=self._source.family.resources.device_type
                )


def expired_folders(
    names: Iterable[str], known: AbstractSet[str], unknown: Mapping[str, float], now: float
) -> tuple[Mapping[str, float], Sequence[str]]:
    """Which folders may go: ``<pod UID>_<container>`` of a pod that was unknown for five minutes, 64 at a time.

    ``unknown`` and the first answer are since when, in monotonic seconds. A name of another form is nobody's and stays.
    """
    since: dict[str, float] = {}
    for name in names:
        match = _FOLDER.fullmatch(name)
        if match and match["uid"] not in known:
            since[name] = unknown.get(name, now)
    return since, [name for name, start in since.items() if now - start >= FOLDER_KEPT_S][:MAX_REMOVED]


def _remove(folder: Path) -> bool:
    """Remove it without following a link: the container could write to it. Another turn tries again."""
    if not shutil.rmtree.avoids_symlink_attacks:
        return False
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("folder of an ended pod cannot be removed", folder=folder.name, why=error.strerror or str(error))
        return False
    return True


def usage_document(
    occupied: Iterable[DeviceOccupancy], reader: UsageReader, loads: Loads, pod: FindPod, node: str
) -> Mapping[str, Any]:
    """Every device with its containers, what they may use and what they use, as JSON has it. Memory is in bytes.

    ``driver…`` is by the driver's list of processes, and ``outsiders`` are processes of others; None where unlisted.
    """
    readings = reader.readings
    used = {(one.held.key, device.uuid): device for one in readings for device in one.usage.devices}
    states = {one.held.key: one.usage for one in readings}
    devices = []
    for one in occupied:
        load = loads.of(one.source.vendor, one.device.uuid) or DeviceLoad()
        users = device_users(one, load, pod)
        containers = []
        for portion in one.portions:
            listed = users.containers[portion.held.key] if users else None
            found, usage = used.get((portion.held.key, one.device.uuid)), states.get(portion.held.key)
            containers.append(
                {
                    "namespace": portion.held.namespace,
                    "pod": portion.held.pod,
                    "container": portion.held.container,
                    "memoryLimit": int(portion.memory) << 20,
                    "cores": portion.cores,
                    "memoryUsed": found.memory_used if found else None,
                    "utilization": found.utilization / 100 if found and found.utilization is not None else None,
                    "processes": usage.processes if usage else None,
                    "driverMemory": listed.memory if listed else None,
                    "driverProcesses": listed.processes if listed else None,
                    "state": usage.state.value if usage else "not measured",
                    "detail": usage.detail if usage else "",
                }
            )
        devices.append(
            {
                "vendor": one.source.vendor,
                "deviceType": one.source.family.resources.device_type,
                "uuid": one.device.uuid,
                "index": one.device.index,
                "number": one.device.number,
                "model": one.device.model,
                "health": one.device.health.value,
                "reason": one.device.reason,
                "memory": one.memory << 20,
                "memoryUsed": load.memory_used,
                "utilization": None if load.utilization is None else load.utilization / 100,
                "shares": one.shares,
                "sharesAllocated": one.handed,
                "containers": containers,
                "outsiders": users
                and [
                    {"who": str(who), "processes": those.processes, "memory": those.memory}
                    for who, those in users.outsiders.items()
                    if those.processes
                ],
            }
        )
    return {"node": node, "ageSeconds": reader.age_s(), "devices": devices}
