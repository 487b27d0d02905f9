"""GCUs as Enflame's driver shows them on the PCI bus and ``efsmi`` lists them: discovery, health, links."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Links, Sighting
from hami_plugin.sdk import Driver, PollingDriver, distances, pci, read
from hami_plugin.sdk.tools import LastKnown, lines
from vendors.enflame.partitions import DrsInstance, DrsState, Gcu
from vendors.enflame.rules import NAMES
from vendors.enflame.settings import GCUS, EnflameSettings

DRS = "DRS"
"""What the tool says of a card that is cut into partitions."""
_BUS = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_MEMORY = re.compile(r"(\d+)MiB\s+(\S+)")
T = TypeVar("T")

_PROFILE = re.compile(r"\d+g\.\d+gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class EfsmiRow:
    """A card of the table. ``bus`` is the end of its PCI address, ``memory`` in MiB, ``virtual`` how it is shared."""

    index: int
    model: str
    bus: str
    memory: int
    virtual: str
    serial: str


def rows(table: str) -> Iterator[EfsmiRow]:
    """The cards of the table. Each has two lines, of three columns each."""
    # | 0      Enflame S60          | 33.6.5           | 00:23:00.0  Enable        |
    # | 71℃    Sleep    118W / 300W | 42976MiB Disable | 0%          C807B40520388 |
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines(table)]
    for first, second in pairwise(cells):
        if len(first) != len(second) or len(first) != 3 or not _BUS.match(first[2]):
            continue
        number, _, model = first[0].partition(" ")
        amounts = _MEMORY.match(second[1])
        if number.isdecimal() and amounts:
            yield EfsmiRow(
                index=int(number),
                model=model.strip().removeprefix("Enflame "),
                bus=first[2].split()[0].lower(),
                memory=int(amounts[1]),
                virtual=amounts[2],
                serial=(second[2].split() or [""])[-1],
            )


def profiles(listing: str) -> Mapping[str, str]:
    """The ids of profiles by name, from lines of index, name and id."""
    return {fields[1]: fields[2] for fields in _named(listing)}


def instances(listing: str) -> Mapping[int, tuple[DrsInstance, ...]]:
    """By card, from lines of index, profile, id and UUID."""
    found: dict[int, list[DrsInstance]] = {}
    for fields in _named(listing):
        one = DrsInstance(profile=fields[1], uuid=fields[3].removeprefix("DRS-"), number=int(fields[2]))
        found.setdefault(int(fields[0]), []).append(one)
    return {index: tuple(there) for index, there in found.items()}


def _named(listing: str) -> Iterator[list[str]]:
    split = (line.strip().strip("|").split() for line in lines(listing))
    return (fields for fields in split if len(fields) > 3 and _PROFILE.fullmatch(fields[1]))


class Efsmi:
    """Asks the tool now and then for the cards, and how those can be cut that are to be."""

    def __init__(self, tool: Path, *, deadline: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._tool = tool
        self._deadline = deadline
        self._known: LastKnown[Mapping[EfsmiRow, DrsState | None]] = LastKnown(self._listed, {}, clock=clock)

    @property
    def problem(self) -> str:
        return self._known.problem

    def row(self, address: str) -> EfsmiRow | None:
        """The card at a PCI address. The tool shortens the address's domain."""
        return next((row for row in self._known.answer() if address.endswith(row.bus)), None)

    def cut(self, index: int) -> DrsState | None:
        """Of a card that can be cut, by the tool's number for it."""
        return next((cut for row, cut in self._known.answer().items() if row.index == index), None)

    def _listed(self) -> Mapping[EfsmiRow, DrsState | None]:
        """All cards of a node can be cut alike: Enflame's agent counts on it, too."""
        found = self._read(lambda table: tuple(rows(table)))
        first = next((row for row in found if row.virtual == DRS), None)
        if first is None:
            return dict.fromkeys(found)
        alike = self._read(profiles, "-i", str(first.index), "--drs", "--list-profile")

        def cut(listing: str) -> Mapping[EfsmiRow, DrsState | None]:
            there = instances(listing)
            return {
                row: DrsState(profiles=alike, partitions=there.get(row.index, ())) if row.virtual == DRS else None
                for row in found
            }

        return self._read(cut, "-L")

    def _read(self, parse: Callable[[str], T], *arguments: str) -> T:
        return read(self._tool, parse, *arguments, deadline=self._deadline)


_SWITCHED = "; the daemon switches the card once it is idle: hami-plugin partitions says what it waits for"
_GCU = re.compile(r"gcu(\d{1,4})")


@dataclass(slots=True, kw_only=True)
class GcuDiscoverer:
    """Discovers cards, and remembers what each was when it last answered.

    ``called`` makes, of the way in which cards are served and a card's number, the device type and the scheduler's
    name of the card. ``way`` is how they were served at the last look. ``divided`` is the mode that the daemon switches
    cards to, None for none.
    """

    paths: HostPaths
    tool: Efsmi
    serve: str
    called: Callable[[str, int], tuple[str, str]]
    known: dict[str, Device] = field(default_factory=dict)
    way: str = "whole"
    divided: bool | None = None

    @property
    def cut(self) -> bool:
        """Whether cards are to be cut into partitions."""
        return self.serve == "partitions" or (self.serve == "auto" and self.way == "shared")

    def _settle(self, found: Sequence[pci.PciDevice]) -> None:
        """Under ``auto`` cards are shared where all are cut. While the tool tells of none, all stays as it was."""
        if self.serve != "auto":
            self.way = self.serve
            return
        if self.divided is not None:
            self.way = "shared" if self.divided else "whole"
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
                message = f"no driver shows {place.address}"
                fault = Fault(reason="DriverFailed", message=message)
                sightings += [Sighting(device=known, fault=fault)] if known else []
                problems += [] if known else [message]
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
        before = known.traits if known and isinstance(known.traits, Gcu) else Gcu(index=minor)
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
            traits=Gcu(index=index, serial=row.serial, cut=self.tool.cut(index) if self.cut else None)
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
            remedy = (
                _SWITCHED if self.divided else f"; switch them on: efsmi -i {row.index} --drs on, or drsMode: enabled"
            )
            message = f"efsmi says {row.virtual} of its partitions{remedy}"
            return Fault(reason="NotPartitioned", message=message)
        cut = self.tool.cut(device.index)
        if self.cut and not (cut and cut.profiles):
            message = self.tool.problem or "efsmi tells no profile that it can be cut to"
            return Fault(reason="ProfilesUnknown", message=message)
        if row and not self.cut and row.virtual == DRS:
            remedy = f"; undo it (efsmi -i {row.index} --drs off, or drsMode: disabled), or cut all cards"
            message = f"it is cut into partitions{_SWITCHED if self.divided is False else remedy}"
            return Fault(reason="Partitioned", message=message)
        return None


def open_driver(settings: EnflameSettings, paths: HostPaths) -> Driver:
    """Enflame's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    looker = GcuDiscoverer(
        paths=roots,
        tool=Efsmi(settings.efsmi),
        serve=settings.serve,
        called=lambda way, number: (NAMES[way][0], f"{paths.node}-{NAMES[way][1]}-{number}"),
        divided=settings.divided,
    )
    return PollingDriver(looker, partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus. Links between cards (ESL) are not told by any file or table."""
    return distances(devices, GCUS.plugged(paths))
