"""NVIDIA's driver over NVML: discovery of cards and MIG instances, their links, and health events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.host.processes import hosts_processes_seen, owner_of
from hami_plugin.model.device import NO_LINKS, Device, Discovery, Fault, Link, Links, Sighting, symmetric
from hami_plugin.model.usage import MAX_PROCESSES, DeviceLoad, DeviceProcess
from hami_plugin.process.log import logger
from hami_plugin.sdk import HealthEvent
from hami_plugin.sdk.polling import QueriedDevice
from vendors.nvidia.health import (
    EventWatch,
    driver_unavailable,
    examine,
    fault_of,
    library_missing,
    make_exclusive,
    no_devices,
    no_permission,
)
from vendors.nvidia.host import FAMILY, UUID, DiscoveredInstance, HostTrees, instances, pci_address
from vendors.nvidia.instances import MIG_MODE, Parts
from vendors.nvidia.nvml import BARE_NAME, MAX_NVLINKS, Handle, NoLibraryError, Nvml, NvmlError
from vendors.nvidia.settings import NvidiaSettings

LEVEL_SCORES = {"INT": 60, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
LANE_SCORE = 100
# The most that HAMi's score knows. HAMi scores more links than these as none; we score them as these.
MAX_LANES = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """One NVLink of a card that is up. ``peer`` is the PCI address at its other end, as far as it is visible."""

    peer: str = ""
    switch: bool = False


def lanes(ports: Sequence[NvLink], peer: str, peer_ports: Sequence[NvLink]) -> int:
    """Count the NVLinks from the card with ``ports`` to the card at PCI address ``peer``.

    Without a direct one, cards behind NVSwitch reach each other with the links of the one that has fewer.
    """
    direct = sum(1 for port in ports if port.peer == peer)
    if direct:
        return direct
    return min(sum(port.switch for port in ports), sum(port.switch for port in peer_ports))


def link(level: str, count: int) -> Link:
    """Score a pair: its PCIe or host level (``PIX``, ``SYS``, …) plus 100 for each NVLink. An unknown level adds 0."""
    return Link(
        score=LEVEL_SCORES.get(level, 0) + LANE_SCORE * min(max(count, 0), MAX_LANES),
        label=f"NV{count}" if count > 0 else level,
        level=level,
        lanes=max(count, 0),
    )


def measured(
    levels: Mapping[tuple[str, str], str], ports: Mapping[str, Sequence[NvLink]], addresses: Mapping[str, str]
) -> dict[tuple[str, str], Link]:
    """Put levels and NVLinks together, one link for each direction that has a level."""
    return {
        (a, b): link(level, lanes(ports.get(a, ()), addresses[b], ports.get(b, ()))) for (a, b), level in levels.items()
    }


def measure(nvml: Nvml, handles: Mapping[str, Handle], addresses: Mapping[str, str], busy: QueriedDevice) -> Links:
    """Every pair of the cards at ``addresses``, both ways; a card without a handle is a problem in the answer.

    ``NvmlError`` only when the driver as a whole is gone.
    """
    problems = [f"{uuid}: not measured, since it does not answer" for uuid in addresses if uuid not in handles]
    ports = {uuid: _nvlinks(nvml, uuid, handle, busy, problems) for uuid, handle in handles.items()}
    levels = {}
    for a, first in handles.items():
        for b, second in handles.items():
            if a == b:
                continue
            with busy.asking(a):
                try:
                    levels[a, b] = nvml.level(first, second)
                except NvmlError as error:
                    problems.append(_link_problem(f"{a} to {b}", error))
    return symmetric(measured(levels, ports, addresses), problems)


def _nvlinks(nvml: Nvml, uuid: str, handle: Handle, busy: QueriedDevice, problems: list[str]) -> list[NvLink]:
    """The card's NVLinks that are up and could be read. Above a model's last link NVML answers that there is none."""
    found = []
    with busy.asking(uuid):
        for link in range(MAX_NVLINKS):
            try:
                if nvml.nvlink_up(handle, link):
                    found.append(_nvlink(nvml, handle, link))
            except NvmlError as error:
                problems.append(_link_problem(f"{uuid} NVLink {link}", error))
                if error.lost:
                    break
    return found


def _nvlink(nvml: Nvml, handle: Handle, link: int) -> NvLink:
    """A link's other end. In a virtual machine it may be invisible: then the link counts for no pair."""
    try:
        peer = pci_address(nvml.nvlink_peer(handle, link))
    except NvmlError as error:
        if error.driver_gone or error.lost:
            raise
        peer = ""
    try:
        switch = nvml.nvlink_to_switch(handle, link)
    except NvmlError as error:
        if error.driver_gone or error.lost:
            raise
        switch = False
    return NvLink(peer=peer, switch=switch)


def _link_problem(what: str, error: NvmlError) -> str:
    if error.driver_gone:
        raise error
    return f"{what}: {error}"


MIB = 1024 * 1024
# No card comes near it; what reports more reports nonsense.
MAX_MEMORY = 4 * 1024 * 1024


def minor_of(nvml: Nvml, handle: Handle) -> int | None:
    """The number of the card's device node; None where there are no device nodes, as on WSL."""
    try:
        return nvml.minor(handle)
    except NvmlError as error:
        if error.unsupported:
            return None
        raise


def memory_of(nvml: Nvml, handle: Handle, *, otherwise: int) -> int | Fault:
    """Memory in MiB, or why it cannot be told. ``otherwise`` stands in for a card that cannot tell, unless it is 0."""
    try:
        memory = nvml.memory(handle) // MIB
    except NvmlError as error:
        if not error.unsupported:
            raise
        return otherwise or Fault(
            reason="MemoryUnknown",
            message="the driver cannot tell this card's memory (a unified-memory part?), so it is not offered;"
            " set preConfiguredDeviceMemory to its MiB",
        )
    if not 0 < memory <= MAX_MEMORY:
        return Fault(reason="MemoryImplausible", message=f"the driver reports {memory} MiB of memory")
    return memory


def mig_instances(
    nvml: Nvml, card: Handle, before: Sequence[DiscoveredInstance] = ()
) -> tuple[DiscoveredInstance, ...] | None:
    """The instances of a card; None when it is not in MIG mode. ``NvmlError`` only for what concerns the whole card.

    ``before`` is what it had when it answered last.
    """
    try:
        if not nvml.mig_enabled(card):
            return None
    except NvmlError as error:
        if error.unsupported or error.no_permission:
            return None
        raise
    try:
        places = nvml.mig_places(card)
    except NvmlError as error:
        if error.unsupported or error.no_permission:
            return ()
        raise
    known = {one.index: one for one in before}
    return tuple(found for index in range(places) if (found := _instance(nvml, card, index, known.get(index))))


def _instance(nvml: Nvml, card: Handle, index: int, before: DiscoveredInstance | None) -> DiscoveredInstance | None:
    """One that goes away while it is looked at is not there. One that fails to answer is as it was ``before``."""
    try:
        handle = nvml.mig_device(card, index)
        if handle is None:
            return None
        gi = nvml.gpu_instance(handle)
        memory = memory_of(nvml, handle, otherwise=0)
        return DiscoveredInstance(
            uuid=nvml.uuid(handle),
            index=index,
            gi=gi,
            ci=nvml.compute_instance(handle),
            profile=_profile(nvml.name(handle)),
            slices=_slices(nvml, card, gi),
            memory=0 if isinstance(memory, Fault) else memory,
        )
    except NvmlError as error:
        if error.driver_gone or error.lost:
            raise
        return None if error.not_found or before is None else replace(before, problem=str(error))


def _profile(name: str) -> str:
    """``1g.5gb`` of ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``; empty where the driver does not say."""
    _model, mark, profile = name.rpartition(" MIG ")
    return profile.strip() if mark else ""


def _slices(nvml: Nvml, card: Handle, gpu_instance: int) -> str:
    """Where a GPU instance is, as ``4+2``; empty for whoever may not know."""
    try:
        start, size = nvml.memory_slices(card, gpu_instance)
    except NvmlError as error:
        if error.driver_gone or error.lost:
            raise
        return ""
    return f"{start}+{size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCards:
    """What one look found. ``handles`` has every card that answered to its name, by UUID."""

    sightings: tuple[Sighting, ...]
    problems: tuple[str, ...]
    handles: Mapping[str, Handle]


@dataclass(slots=True)
class _Draft:
    """A look in the making."""

    sightings: dict[str, Sighting] = field(default_factory=dict)
    nameless: dict[int, Fault] = field(default_factory=dict)
    hidden: dict[int, str] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    handles: dict[str, Handle] = field(default_factory=dict)
    refused: int = 0


class CardDiscoverer:
    """Discovers cards, and remembers what each one was when it last answered."""

    def __init__(self, nvml: Nvml, host: HostTrees, settings: NvidiaSettings, busy: QueriedDevice) -> None:
        self._nvml = nvml
        self._host = host
        self._settings = settings
        self._busy = busy
        self._known: dict[str, Device] = {}
        self._by_index: dict[int, str] = {}

    def forget_order(self) -> None:
        """The driver was opened anew: indices may mean other cards now."""
        self._by_index.clear()

    def look(self) -> FoundCards:
        """Ask every card. ``NvmlError`` when the driver as a whole is gone, ``DriverUnavailableError`` when it is
        there and shows nothing.
        """
        count = self._nvml.count()
        if count == 0:
            raise no_devices(self._host)
        draft = _Draft()
        for index in range(count):
            if self._hides(index=index):
                draft.skipped.append(index)
            else:
                self._look_at(index, draft)
        asked = count - len(draft.skipped)
        if asked and draft.refused == asked:
            raise no_permission(f"all {asked} cards answer NoPermission")
        problems = self._name_the_nameless(draft)
        sightings = sorted(draft.sightings.values(), key=lambda sighting: sighting.device.index)
        self._by_index = {s.device.index: s.device.uuid for s in sightings} | draft.hidden
        return FoundCards(sightings=tuple(sightings), problems=tuple(problems), handles=draft.handles)

    def _look_at(self, index: int, draft: _Draft) -> None:
        with self._busy.asking(self._by_index.get(index)):
            try:
                handle = self._nvml.handle(index)
                uuid = self._nvml.uuid(handle)
            except NvmlError as error:
                draft.refused += error.no_permission
                draft.nameless[index] = _card_fault(error)
                return
        if not UUID.fullmatch(uuid):
            draft.nameless[index] = Fault(
                reason="GarbledUuid", message=f"the driver names card {index} {uuid[:64]!r}, which is no GPU UUID"
            )
        elif self._hides(uuid=uuid):
            draft.hidden[index] = uuid
        elif uuid in draft.sightings:
            first = draft.sightings[uuid].device
            fault = Fault(reason="DuplicateUuid", message=f"cards {first.index} and {index} both answer to {uuid}")
            draft.sightings[uuid] = Sighting(device=first, fault=fault)
        else:
            draft.handles[uuid] = handle
            draft.sightings[uuid] = self._sighting(index, handle, uuid)

    def _sighting(self, index: int, handle: Handle, uuid: str) -> Sighting:
        with self._busy.asking(uuid):
            try:
                device, fault = self._facts(index, handle, uuid)
                self._known[uuid] = device
                shared = self._settings.device_split_count > 1 and not self._divides(device)
                cut = device.mode == MIG_MODE
                divisible = self._settings.mig_strategy != "none" and not cut
                switched = self._settings.mig_mode == ("enabled" if cut else "disabled")
                fault = fault or examine(
                    self._nvml, handle, shared=shared, divisible=divisible, cut=cut, switched=switched
                )
                exclusive = self._settings.compute_mode == "ExclusiveProcess" and not self._divides(device)
                if fault is None and exclusive:
                    fault = make_exclusive(self._nvml, handle)
            except NvmlError as error:
                return Sighting(device=self._remembered(uuid, index), fault=_card_fault(error))
        return Sighting(device=device, fault=fault)

    def _facts(self, index: int, handle: Handle, uuid: str) -> tuple[Device, Fault | None]:
        pci = pci_address(self._nvml.bus_id(handle))
        memory = memory_of(self._nvml, handle, otherwise=self._settings.pre_configured_device_memory)
        device = Device(
            uuid=uuid,
            family=FAMILY,
            index=index,
            model=self._nvml.name(handle),
            memory=self._remembered(uuid, index).memory if isinstance(memory, Fault) else memory,
            minor=minor_of(self._nvml, handle),
            pci=pci,
            numa=self._host.numa_node(pci),
            mode=self._settings.mode_of(uuid=uuid, index=index),
            traits=mig_instances(self._nvml, handle, instances(self._remembered(uuid, index))),
        )
        return device, memory if isinstance(memory, Fault) else None

    def _divides(self, card: Device) -> bool:
        """Whether the card's instances are devices, and it is none."""
        return card.traits is not None and self._settings.mig_strategy != "none" and card.mode != MIG_MODE

    def _remembered(self, uuid: str, index: int) -> Device:
        """What the card was when it last answered; else what the kernel lists; else its name alone."""
        known = self._known.get(uuid) or next((card for card in self._host.cards() if card.uuid == uuid), None)
        if known is None:
            known = Device(uuid=uuid, family=FAMILY, index=index, model="", memory=0)
        numa = known.numa if known.numa is not None else self._host.numa_node(known.pci)
        return replace(known, index=index, numa=numa, mode=self._settings.mode_of(uuid=uuid, index=index))

    def _name_the_nameless(self, draft: _Draft) -> list[str]:
        """Tell who a card is that cannot say it: by its index in the last look, else by the kernel's list.

        The list helps only when exactly as many cards are left on it as have no name: both are in PCI order.
        """
        named = {i: u for i in draft.nameless if (u := self._by_index.get(i)) and u not in draft.sightings}
        rest = sorted({*draft.nameless, *draft.skipped} - named.keys())
        taken = {*draft.sightings, *draft.hidden.values(), *named.values()}
        listed = [card.uuid for card in self._host.cards() if card.uuid not in taken]
        if len(listed) == len(rest):
            named |= dict(zip(rest, listed, strict=True))
        for index, fault in draft.nameless.items():
            uuid = named.get(index)
            if uuid and not self._hides(uuid=uuid):
                draft.sightings[uuid] = Sighting(device=self._remembered(uuid, index), fault=fault)
        return [f"card {index}: {fault.message}" for index, fault in draft.nameless.items() if index not in named]

    def _hides(self, *, uuid: str = "", index: int = -1) -> bool:
        return self._settings.filter_devices.hides(uuid=uuid, index=index)


def _card_fault(error: NvmlError) -> Fault:
    """The fault of one card, unless the error is about all of them."""
    if error.driver_gone:
        raise error
    return fault_of(error)


log = logger(__name__)

# How often a card that does not answer is reason enough to open the driver anew.
REOPEN_SECONDS = 60.0
_LIBRARY_FOLDERS = ("usr/lib64", "usr/lib/*-linux-gnu", "usr/lib", "lib64", "lib/*-linux-gnu", "lib")


def library_places(settings: NvidiaSettings) -> tuple[str, ...]:
    """Where to look for NVML: the configured file alone, else the loader's own way, else the driver's root."""
    if settings.nvml_library:
        return (str(settings.nvml_library),)
    root = settings.container_driver_root
    return (BARE_NAME, *(str(root / folder / BARE_NAME) for folder in _LIBRARY_FOLDERS))


class NvmlDriver:
    """A ``Driver`` over NVML. It opens the library at the first look, and anew when its view may be out of date.

    NVML lists cards once, when it is opened. So a driver that was replaced, a card that came or went, and, once in a
    while, a card that does not answer, are reasons to open it anew.
    """

    def __init__(
        self,
        settings: NvidiaSettings,
        paths: HostPaths,
        *,
        clock: Callable[[], float] = time.monotonic,
        load: Callable[[str], Any] = ctypes.CDLL,
    ) -> None:
        self._host = HostTrees(sysfs=settings.sysfs_root or paths.sysfs, proc=settings.proc_root or paths.proc)
        self._nvml = Nvml(library_places(settings), load=load)
        self._busy = QueriedDevice()
        self._cards = CardDiscoverer(self._nvml, self._host, settings, self._busy)
        self._parts = Parts(settings.mig_strategy)
        self._events = EventWatch(
            self._nvml, settings.healthchecks.policy(), self._busy, concerned=self._parts.concerned
        )
        self._clock = clock
        self._lists_processes = settings.process_usage
        self._opened_at = 0.0
        self._opened_on: tuple[str, ...] = ()
        self._silent = False
        self._facts: Mapping[str, str] = {}
        self._handles: Mapping[str, Handle] = {}
        self._addresses: Mapping[str, str] = {}

    @property
    def busy_with(self) -> str | None:
        return self._busy.uuid

    def discover(self) -> Discovery:
        try:
            if self._nvml.is_open and self._up_to_date():
                try:
                    return self._look()
                except NvmlError as error:
                    log.warning("driver does not answer, opening it anew", error=str(error))
            self.close()
            self._open()
            return self._look()
        except NvmlError as error:
            version = self._version()
            self.close()
            raise driver_unavailable(error, self._host, version) from error
        except DriverUnavailableError as error:
            if error.reason is not DriverReason.MIG_MIXTURE:  # then it is well, and its events go on
                self.close()
            raise

    def _up_to_date(self) -> bool:
        """Whether the library that is open still sees the driver and the cards that there are."""
        if self._host.signature() != self._opened_on:
            log.info("driver or cards have changed, opening the driver anew")
            return False
        if self._silent and self._clock() - self._opened_at >= REOPEN_SECONDS:
            log.info("a card does not answer, opening the driver anew")
            return False
        return True

    def links(self) -> Links:
        if not self._nvml.is_open:
            return NO_LINKS
        try:
            return measure(self._nvml, self._handles, self._addresses, self._busy)
        except NvmlError as error:
            return Links(problems=(f"the driver went away while links were measured: {error}",))

    def energy(self) -> Mapping[str, float]:
        """By NVML's counter, which cards since Volta have."""
        found = {}
        for uuid, handle in self._handles.items() if self._nvml.is_open else ():
            with self._busy.asking(uuid), suppress(NvmlError):
                found[uuid] = self._nvml.energy(handle) / 1000
        return found

    def load(self) -> Mapping[str, DeviceLoad]:
        """Of each card, as far as it tells: one in MIG mode does not say how busy it is."""
        found = {}
        for uuid, handle in self._handles.items() if self._nvml.is_open else ():
            with self._busy.asking(uuid):
                found[uuid] = self._load(handle)
        return found

    def _load(self, handle: Handle) -> DeviceLoad:
        used = busy = memory = None
        with suppress(NvmlError):
            used = self._nvml.memory_used(handle)
        with suppress(NvmlError):
            busy, memory = self._nvml.utilization(handle)
        processes = self._processes(handle) if self._lists_processes else None
        return DeviceLoad(memory_used=used, utilization=busy, memory_utilization=memory, processes=processes)

    def _processes(self, handle: Handle) -> tuple[DeviceProcess, ...] | None:
        """Those that the driver lists, and whose they are by their cgroups."""
        try:
            listed = self._nvml.processes(handle)
        except NvmlError:
            return None
        return tuple(
            DeviceProcess(pid=pid, memory_used=used, owner=owner_of(self._host.proc, pid))
            for pid, used in listed[:MAX_PROCESSES]
        )

    def poll(self, timeout: float) -> Sequence[HealthEvent]:
        events = self._events.poll(timeout)
        if self._events.driver_gone:
            self.discover()  # opens the driver anew, or tells why it cannot
        return events

    def close(self) -> None:
        self._events.suspend()
        self._handles = {}
        self._cards.forget_order()
        self._nvml.close()

    def _open(self) -> None:
        self._opened_on, self._opened_at = self._host.signature(), self._clock()
        try:
            self._nvml.open()
        except NoLibraryError as error:
            raise library_missing(str(error), self._host) from error
        self._facts = self._versions()
        log.info("driver opened", **self._facts)
        if self._lists_processes and not hosts_processes_seen(self._host.proc):
            log.warning("processUsage shows no other container's processes: the pod needs hostPID: true")

    def _version(self) -> str:
        """Version of the driver that the library belongs to: ``12.535.104.05`` is that of 535.104.05."""
        with suppress(NvmlError):
            return self._nvml.nvml_version().partition(".")[2]
        return ""

    def _versions(self) -> dict[str, str]:
        """Versions as far as the driver tells them: none is needed to work."""
        asked = {"driver": self._nvml.driver_version, "cuda": self._nvml.cuda_version, "nvml": self._nvml.nvml_version}
        facts = {}
        for name, ask in asked.items():
            with suppress(NvmlError):
                facts[name] = ask()
        return facts

    def _able(self, handles: Mapping[str, Handle]) -> dict[str, str]:
        """What the first card that answers can do, asked once."""
        if "capability" in self._facts or not handles:
            return {}
        handle = next(iter(handles.values()))
        able = {}
        with suppress(NvmlError):
            able["capability"] = self._nvml.capability(handle)
        try:
            self._nvml.mig_enabled(handle)
        except NvmlError:
            able["mig"] = "false"
        else:
            able["mig"] = "true"
        return able

    def _look(self) -> Discovery:
        look = self._cards.look()
        self._handles = look.handles
        self._facts = {**self._able(look.handles), **self._facts}
        self._silent = bool(look.problems) or any(s.device.uuid not in look.handles for s in look.sightings)
        self._addresses = {sighting.device.uuid: sighting.device.pci for sighting in look.sightings}
        well = {s.device.uuid for s in look.sightings if s.fault is None}
        faults = self._events.watch(look.handles, well)
        cards = [_with_fault(sighting, faults) for sighting in look.sightings]
        sightings, divided = self._parts.of(cards, look.handles)
        return Discovery(sightings=sightings, problems=look.problems, facts=self._facts, divided=divided)


def _with_fault(sighting: Sighting, faults: Mapping[str, Fault]) -> Sighting:
    fault = faults.get(sighting.device.uuid)
    return Sighting(device=sighting.device, fault=fault) if fault else sighting


def open_driver(settings: NvidiaSettings, paths: HostPaths) -> NvmlDriver:
    """What the daemon calls to get the driver. Nothing is loaded before the first look."""
    if settings.operating_mode == "mps":
        log.warning("operating mode mps is registered as such, and containers share cards as in hami-core")
    return NvmlDriver(settings, paths)
