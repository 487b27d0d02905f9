"""One look at every card, with a boundary round each: a card that fails is a sighting with a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hami_plugin.model.device import Device, Fault, Sighting
from hami_plugin.sdk.polling import Busy
from vendors.nvidia import mig_devices
from vendors.nvidia.binding import NvmlError
from vendors.nvidia.facts import memory_of, minor_of
from vendors.nvidia.health import examine, make_exclusive
from vendors.nvidia.host import FAMILY, UUID, HostTrees, pci_address
from vendors.nvidia.library import Handle, Nvml
from vendors.nvidia.trouble import fault_of, no_devices, no_permission

if TYPE_CHECKING:  # the driver also runs where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
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


class Discoverer:
    """Looks at cards, and remembers what each one was when it last answered."""

    def __init__(self, nvml: Nvml, host: HostTrees, settings: NvidiaSettings, busy: Busy) -> None:
        self._nvml = nvml
        self._host = host
        self._settings = settings
        self._busy = busy
        self._known: dict[str, Device] = {}
        self._by_index: dict[int, str] = {}

    def forget_order(self) -> None:
        """The driver was opened anew: indices may mean other cards now."""
        self._by_index.clear()

    def look(self) -> Look:
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
        return Look(sightings=tuple(sightings), problems=tuple(problems), handles=draft.handles)

    def _look_at(self, index: int, draft: _Draft) -> None:
        with self._busy.asking(self._by_index.get(index)):
            try:
                handle = self._nvml.handle(index)
                uuid = self._nvml.uuid(handle)
            except NvmlError as error:
                draft.refused += error.no_permission
                draft.nameless[index] = _fault(error)
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
                shared = self._settings.device_split_count > 1
                fault = fault or examine(self._nvml, handle, shared=shared)
                if fault is None and self._settings.compute_mode == "ExclusiveProcess":
                    fault = make_exclusive(self._nvml, handle)
            except NvmlError as error:
                return Sighting(device=self._remembered(uuid, index), fault=_fault(error))
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
            mode=self._settings.operating_mode,
            traits=mig_devices.look(self._nvml, handle),
        )
        return device, memory if isinstance(memory, Fault) else None

    def _remembered(self, uuid: str, index: int) -> Device:
        """What the card was when it last answered; else what the kernel lists; else its name alone."""
        known = self._known.get(uuid) or next((card for card in self._host.cards() if card.uuid == uuid), None)
        if known is None:
            known = Device(uuid=uuid, family=FAMILY, index=index, model="", memory=0)
        numa = known.numa if known.numa is not None else self._host.numa_node(known.pci)
        return replace(known, index=index, numa=numa, mode=self._settings.operating_mode)

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


def _fault(error: NvmlError) -> Fault:
    """The fault of one card, unless the error is about all of them."""
    if error.driver_gone:
        raise error
    return fault_of(error)
