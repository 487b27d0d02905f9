"""A gate of the inventory: its readers see only devices that a container runtime would find in CDI specs.

A device is offered, registered and handed out after its spec is in place. A spec that is wrong makes the device
unhealthy, with the reason, until it is mended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from cdi.documents import to_json
from cdi.errors import CdiError
from cdi.names import Kind, device_problem
from cdi.registry import Registry
from cdi.spec import ContainerEdits, Spec, SpecDevice
from cdi.store import Changes, Store, load
from hami_plugin.errors import HamiError
from hami_plugin.host.bounded_yaml import read_yaml
from hami_plugin.host.paths import HostFiles
from hami_plugin.inventory.inventory import part
from hami_plugin.model.device import Action, Device, Fault, Health, Snapshot
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import StuckError, Watched, WorkThread, wait_event
from hami_plugin.process.log import logger
from hami_plugin.sdk import Family, Partition

ALL = "all"
"""The name under which a container would receive every device."""
MISSING, CONFLICT = "CDISpecMissing", "CDIConflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedDevice:
    """A device, what it adds to a container, and its parts that have names of their own."""

    device: Device
    edits: ContainerEdits
    slices: Mapping[str, ContainerEdits] = field(default_factory=dict)


def specification(kind: Kind, described: Sequence[DescribedDevice], shared: ContainerEdits) -> Spec:
    """Each device by its UUID and by its number, the parts by theirs, and all devices under one name."""
    named: dict[str, ContainerEdits] = {}
    for one in described:
        named |= {one.device.uuid: one.edits, one.device.number: one.edits, **one.slices}
    if described:
        named[ALL] = ContainerEdits().merged(*(one.edits for one in described))
    return Spec(kind=kind, devices=tuple(SpecDevice(name=n, edits=e) for n, e in named.items()), edits=shared)


def unresolved_faults(spec: Spec, file: str, devices: Sequence[Device], found: Registry) -> Mapping[str, Fault]:
    """Why a runtime would not give out ``devices`` as ``spec`` says, by UUID. ``file`` is where the spec should be.

    What another file defines too is a fault even where ours would win: which one wins is a matter of the runtime's
    configuration, and the other describes a device that is not its own.
    """
    ours = {device.name: device.edits for device in spec.devices}
    faults = ((device.uuid, _fault(spec, file, device.uuid, ours, found)) for device in devices)
    return {uuid: fault for uuid, fault in faults if fault}


def _fault(spec: Spec, file: str, uuid: str, ours: Mapping[str, ContainerEdits], found: Registry) -> Fault | None:
    name = spec.kind.device(uuid)
    definitions = found.definitions.get(name, ())
    others = sorted({one.source.file for one in definitions} - {file})
    if others:
        message = f"{name} is defined by {' and '.join((file, *others))}; remove one of them"
        return Fault(reason=CONFLICT, message=message, action=Action.DRAIN)
    if uuid not in ours:
        return Fault(reason=MISSING, message=f"{name} cannot be described", action=Action.DRAIN)
    if not definitions:
        message = "; ".join((f"{file} does not define {name}", *_about(file, found)))
        return Fault(reason=MISSING, message=message, action=Action.DRAIN)
    (definition,) = definitions
    if (definition.device.edits, definition.source.spec.edits) != (ours[uuid], spec.edits):
        return Fault(reason=MISSING, message=f"{file} describes {name} as it no longer is", action=Action.DRAIN)
    return None


def _about(file: str, found: Registry) -> Iterator[str]:
    return (problem.message for problem in found.problems if problem.file == file)


PREFIX = "hami-plugin_"
MAX_BESIDE = 100
"""Problems of others' files that are reported at once."""


def file_name(kind: str) -> str:
    """The spec file of a kind, as ``hami-plugin_hami.io-gpu.json``."""
    return f"{PREFIX}{kind.replace('/', '-')}.json"


def remove_stale_specs(directory: Path, kinds: Iterable[str]) -> Changes:
    """Remove what an earlier daemon left: half-written files, and specs of kinds that are served no more."""
    store = Store(directory, PREFIX)
    store.clean()
    return Changes(removed=store.remove_others([file_name(kind) for kind in kinds]))


def describe(family: Family, devices: Sequence[Device], host: HostFiles) -> tuple[Spec, tuple[str, ...]]:
    """The spec of a family's devices, and why the others could not be described."""
    node, problems = family.node, list[str]()
    if node.specification:
        try:
            return node.specification(devices, host), ()
        except HamiError as error:
            problems.append(str(error))
    found: list[DescribedDevice] = []
    shared = ContainerEdits()
    try:
        shared = node.shared_edits(host)
    except (HamiError, OSError) as error:
        problems.append(str(error))
    for device in devices:
        if why := device_problem(device.uuid):
            problems.append(f"{device.uuid} can be no CDI name: {why}")
            continue
        try:
            edits, slices = node.device_edits(device, host), node.slices(device, host)
            if edits == ContainerEdits():
                problems.append(f"{device.uuid} adds nothing to a container: its device node is not known")
            else:
                found.append(DescribedDevice(device=device, edits=edits, slices=slices))
        except (HamiError, OSError) as error:
            problems.append(str(error))
    return specification(Kind.parse(node.delivery.kind), found, shared), tuple(problems)


PARTITIONS_PREFIX = "hami-partition_"


class PartitionSpecs:
    """A spec for each partition of a family's cards, beside the one of its cards. Every call touches the disk.

    Partitions come and go with containers, which wait for their specs and for no other's.
    """

    def __init__(self, family: Family, directory: Path, host: HostFiles) -> None:
        self._family = family
        self._host = host
        self._prefix = f"{PARTITIONS_PREFIX}{family.node.delivery.kind.replace('/', '-')}_"
        self._store = Store(directory, self._prefix)

    def publish(self, made: Sequence[tuple[Device, Partition]]) -> None:
        """Describe these, each with its card. ``HamiError`` or ``CdiError`` where one cannot be described."""
        node = self._family.node
        assert node.partitions
        kind, shared = Kind.parse(node.delivery.kind), node.shared_edits(self._host)
        for device, partition in made:
            edits = node.partitions.edits(device, partition, self._host)
            spec = Spec(kind=kind, devices=(SpecDevice(name=partition.uuid, edits=edits),), edits=shared)
            name = self._name(partition.uuid)
            self._store.write(name, to_json(spec, name))

    def keep(self, uuids: Iterable[str]) -> None:
        """Remove the specs of all other partitions."""
        self._store.remove_others([self._name(uuid) for uuid in uuids])

    def _name(self, uuid: str) -> str:
        return f"{self._prefix}{uuid}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCheck:
    """What is wrong, by UUID of the device, and what could not be done.

    ``beside`` are files of others that no runtime can use. They take nothing away from our devices.
    """

    faults: Mapping[str, Fault]
    trouble: str = ""
    beside: tuple[str, ...] = ()


class SpecFiles:
    """One family's spec in ``directories``, the last of which is written to. Every call touches the disk."""

    def __init__(self, family: Family, directories: Sequence[Path], host: HostFiles) -> None:
        self._family = family
        self._directories = directories
        self._host = host
        self._name = file_name(family.node.delivery.kind)
        self._store = Store(directories[-1], PREFIX)
        self._seen: object = None

    def publish(self, devices: Sequence[Device]) -> SpecCheck:
        """Make the disk describe ``devices``, and see what a runtime would find there."""
        spec, problems = describe(self._family, devices, self._host)
        trouble = "; ".join(problems)
        if spec.devices:
            try:
                self._store.write(self._name, to_json(spec, self._name))
            except CdiError as error:
                trouble = "; ".join((*problems, str(error)))
        self._seen = self._marks()
        found, own = self._load(), str(self._store.path(self._name))
        faults = unresolved_faults(spec, own, devices, found)
        explained = {u: replace(f, message=f"{f.message}; {trouble}") if trouble else f for u, f in faults.items()}
        beside = tuple(str(problem) for problem in found.problems if problem.file != own)
        return SpecCheck(faults=explained, trouble=trouble, beside=beside[:MAX_BESIDE])

    def disturbed(self) -> bool:
        """Whether anybody has touched the directories since the last ``publish``."""
        return self._marks() != self._seen

    def _load(self) -> Registry:
        return load(self._directories, yaml=read_yaml)

    def _marks(self) -> object:
        """Every file's identity, size and times: cheap to ask, and different after any change."""
        return tuple(mark for directory in self._directories for mark in _marks_of(directory))


def _marks_of(directory: Path) -> Sequence[object]:
    try:
        files = [(entry.name, entry.lstat()) for entry in sorted(directory.iterdir())]
    except OSError as error:
        return (error.errno,)
    return [(name, f.st_ino, f.st_mode, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for name, f in files]


log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecTiming:
    """Seconds: between checks of the directories, until devices are described anew, and a disk's time to answer."""

    check: float = 2.0
    describe: float = 60.0
    timeout: float = 5.0


class Files(Protocol):
    """A family's spec on the disk. Both calls block."""

    def publish(self, devices: tuple[Device, ...]) -> SpecCheck: ...

    def disturbed(self) -> bool: ...


class SpecGate:
    """A gate of the inventory: ``snapshot`` shows a device once a runtime would find its spec.

    ``take`` only notes what the inventory has found. ``run`` does the rest, on a thread where it touches the disk.
    """

    def __init__(
        self,
        kind: str,
        files: Files,
        *,
        events: EventRecorder,
        observe: Callable[[], None] = lambda: None,
        timing: SpecTiming | None = None,
    ) -> None:
        self.kind = kind
        self.snapshot: Watched[Snapshot] = Watched(Snapshot())
        self._parts: dict[str, Watched[Snapshot]] = {}
        self.problem = "no spec is written yet"
        self._found = Snapshot()
        self._wake = asyncio.Event()
        self._files = files
        self._events = events
        self._observe = observe
        self._timing = timing or SpecTiming()
        self._thread = WorkThread(f"cdi {kind}")
        self._verdict = SpecCheck(faults={})

    def part(self, device_type: str) -> Watched[Snapshot]:
        """What is shown of one family's devices, where the spec describes several families'."""
        if device_type not in self._parts:
            self._parts[device_type] = Watched(part(self.snapshot.value, device_type))
        return self._parts[device_type]

    def take(self, found: Snapshot) -> None:
        """Show this next."""
        if found != self._found:
            self._found = found
            self._wake.set()

    def close(self) -> None:
        """End ``run``, and every reader's wait."""
        self.snapshot.close()
        for one in self._parts.values():
            one.close()
        self._wake.set()

    async def run(self) -> None:
        """Until ``close``: after each change of the devices or of the directories, and now and then anyway."""
        taken: Snapshot | None = None
        due = 0.0
        while not self.snapshot.closed:
            self._wake.clear()
            found, changed = self._found, self._found is not taken
            taken = found
            if found.devices and (
                changed or time.monotonic() >= due or self._verdict.faults or await self._disturbed()
            ):
                due = time.monotonic() + self._timing.describe
                self._judge(await self._published(found), found)
            if changed or found.devices:
                self._show(found)
            await wait_event(self._wake, within=self._timing.check)
        self._thread.close()

    async def _disturbed(self) -> bool:
        try:
            return await self._thread.call(self._files.disturbed, self._timing.timeout)
        except StuckError:
            return True

    async def _published(self, snapshot: Snapshot) -> SpecCheck:
        try:
            return await self._thread.call(lambda: self._files.publish(snapshot.devices), self._timing.timeout)
        except StuckError as error:
            message = f"the disk with the CDI specs does not answer: {error}"
            known = {device.uuid for device in self.snapshot.value.devices}
            new = {d.uuid: Fault(reason=MISSING, message=message) for d in snapshot.devices if d.uuid not in known}
            return replace(self._verdict, faults={**self._verdict.faults, **new}, trouble=message)

    def _judge(self, verdict: SpecCheck, snapshot: Snapshot) -> None:
        """Report what is new, once."""
        reported = {(fault.reason, fault.message) for fault in self._verdict.faults.values()}
        for fault in dict.fromkeys(verdict.faults.values()):
            if (fault.reason, fault.message) not in reported:
                log.warning("cdi spec", kind=self.kind, reason=fault.reason, why=fault.message)
                self._events.node(fault.reason, fault.message)
        if verdict.trouble and verdict.trouble != self._verdict.trouble:
            log.warning("cdi spec", kind=self.kind, why=verdict.trouble)
        for why in verdict.beside:
            if why not in self._verdict.beside:
                log.warning("a cdi spec of others cannot be used", kind=self.kind, why=why)
        if self._verdict.faults and not verdict.faults:
            log.info("cdi spec is in order again", kind=self.kind, devices=len(snapshot.devices))
        self._verdict = verdict
        self.problem = next((fault.message for fault in verdict.faults.values()), verdict.trouble)

    def _show(self, snapshot: Snapshot) -> None:
        shown = replace(snapshot, devices=tuple(self._marked(device) for device in snapshot.devices))
        if self.snapshot.set(shown):
            for device_type, one in self._parts.items():
                one.set(part(shown, device_type))
            self._observe()

    def _marked(self, device: Device) -> Device:
        fault = self._verdict.faults.get(device.uuid)
        if fault is None or not device.health.offered:
            return device
        return replace(device, health=Health.UNHEALTHY, reason=fault.reason, message=fault.message)
