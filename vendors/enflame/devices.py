"""One look at the GCUs that Enflame's driver shows on the PCI bus. One that fails is a sighting with a fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Sighting
from hami_plugin.sdk import pci
from hami_plugin.sdk.hardware import Hardware
from vendors.enflame.tool import DRS, Cut, Efsmi

GCUS: Final = Hardware(title="Enflame device", vendors=("1e36",), module="enflame")
_GCU = re.compile(r"gcu(\d{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A device's ``traits``: the tool's number for it, its serial number, and how it can be cut."""

    index: int
    serial: str = ""
    cut: Cut | None = None


@dataclass(slots=True, kw_only=True)
class Looker:
    """Looks at cards, and remembers what each was when it last answered.

    ``called`` makes, of the way in which cards are served and a card's number, the family's word and the scheduler's
    name of the card. ``way`` is how they were served at the last look.
    """

    paths: HostPaths
    tool: Efsmi
    serve: str
    called: Callable[[str, int], tuple[str, str]]
    known: dict[str, Device] = field(default_factory=dict)
    way: str = "whole"

    @property
    def cut(self) -> bool:
        """Whether cards are to be cut into partitions."""
        return self.serve == "partitions" or (self.serve == "auto" and self.way == "shared")

    def _settle(self, found: Sequence[pci.PciDevice]) -> None:
        """Under ``auto`` cards are shared where all are cut. While the tool tells of none, all stays as it was."""
        if self.serve != "auto":
            self.way = self.serve
            return
        rows = [row for place in found if (row := self.tool.row(place.address))]
        if rows:
            way = "shared" if all(row.virtual == DRS for row in rows) else "whole"
            if way != self.way:
                self.known.clear()
            self.way = way

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        found = GCUS.plugged(self.paths)
        self._settle(found)
        sightings, problems = [], []
        for place in found:
            known = self.known.get(place.address)
            ask(known.uuid if known else None)
            minor = self._minor(place.address)
            if minor is None:
                words = f"no driver shows {place.address}"
                fault = Fault(reason="DriverFailed", message=words)
                sightings += [Sighting(device=known, fault=fault)] if known else []
                problems += [] if known else [words]
                continue
            device = self._device(place, minor, known)
            self.known[place.address] = device
            sightings.append(Sighting(device=device, fault=self._fault(device)))
        if not any(self._minor(place.address) is not None for place in found):
            raise GCUS.absent(self.paths)
        ordered = tuple(sorted(sightings, key=lambda sighting: sighting.device.index))
        return Discovery(sightings=ordered, problems=(*problems, *filter(None, [self.tool.problem])))

    def _minor(self, address: str) -> int | None:
        """The number in the name of the card's node: that of the folder which the driver makes for it."""
        folder = self.paths.sysfs / "bus/pci/devices" / address / "enflame"
        numbers = (_GCU.fullmatch(one.name) for one in sorted(folder.glob("gcu*")))
        return next((int(found[1]) for found in numbers if found), None)

    def _device(self, place: pci.PciDevice, minor: int, known: Device | None) -> Device:
        row = self.tool.row(place.address)
        before = known.traits if known and isinstance(known.traits, Card) else Card(index=minor)
        index = row.index if row else before.index
        device_type, name = self.called(self.way, index)
        return Device(
            uuid=name,
            family=device_type,
            index=index,
            minor=minor,
            model=row.model if row else known.model if known else "",
            memory=row.memory if row else known.memory if known else 0,
            pci=place.address,
            numa=place.numa,
            mode="",
            traits=Card(index=index, serial=row.serial, cut=self.tool.cut(index) if self.cut else None)
            if row
            else before,
        )

    def _fault(self, device: Device) -> Fault | None:
        node: Path = self.paths.dev / f"gcu{device.minor}"
        if not node.exists():
            return Fault(reason="DeviceNodeMissing", message=f"there is no {node}")
        if not device.memory:
            return Fault(reason="MemoryUnknown", message=self.tool.problem or "efsmi does not list this card")
        row = self.tool.row(device.pci)
        if row and self.cut and row.virtual != DRS:
            words = f"efsmi says {row.virtual} of its partitions; switch them on: efsmi -i {row.index} --drs on"
            return Fault(reason="NotPartitioned", message=words)
        cut = self.tool.cut(device.index)
        if self.cut and not (cut and cut.profiles):
            words = self.tool.problem or "efsmi tells no profile that it can be cut to"
            return Fault(reason="ProfilesUnknown", message=words)
        if row and not self.cut and row.virtual == DRS:
            words = f"it is cut into partitions; undo it (efsmi -i {row.index} --drs off), or cut all cards"
            return Fault(reason="Partitioned", message=words)
        return None
