"""MLUs as Cambricon's driver shows them in ``/proc`` and ``cnmon`` lists them: discovery, health, links."""

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
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import (
    Driver,
    PollingDriver,
    ToolError,
    device_load,
    distances,
    matrix,
    pci,
    read,
)
from hami_plugin.sdk.tools import LastKnown, lines
from vendors.cambricon.cndev import Cndev, CndevError
from vendors.cambricon.rules import DEVICE_TYPE, name
from vendors.cambricon.settings import DYNAMIC, MLUS, CambriconSettings

# | 0     /   MLU370-X4    v1.1.6 | On          v4.20.11 | 0%          N/A       |
# |  0%   32C         30 W/ 150 W |     0 MiB/ 23308 MiB | 10240 MiB/1048576 MiB |
_FIRST = re.compile(r"\|\s*(\d+)\s+\S+\s+\S+\s+v[\d.]+\s*\|\s*(\S+)(?:[^|]*\|\s*(\d{1,3}) ?%)?")
_SECOND = re.compile(r"\|[^|]*\|\s*(\d+) MiB/\s*(\d+) MiB\s*\|")
LINKED = "MLK"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CnmonCard:
    """A card of the table. ``memory`` is in MiB; ``working`` is False where the tool says that it did not start."""

    memory: int
    working: bool = True
    load: DeviceLoad = field(default_factory=DeviceLoad)


def cards(table: str) -> Mapping[int, CnmonCard]:
    """The cards of the table by number. Older tools say whether a card has started, newer ones where it is."""
    found = ((_FIRST.match(one), _SECOND.match(two)) for one, two in pairwise(lines(table)))
    return {
        int(a[1]): CnmonCard(memory=int(b[2]), working=a[2] not in ("Off", "Error"), load=device_load(b[1], a[3] or ""))
        for a, b in found
        if a and b
    }


def linked_pairs(table: str) -> frozenset[tuple[int, int]]:
    """The pairs of cards, in either order, that the table of ``topo -m`` names as linked directly."""
    return frozenset(pair for pair, cell in matrix(table.replace("|", " "), "MLU").items() if LINKED in cell)


class Cnmon:
    """Asks for the table now and then, and for the matrix when somebody wants it."""

    def __init__(self, tool: Path, *, deadline: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._tool = tool
        self._deadline = deadline
        self._cards: LastKnown[Mapping[int, CnmonCard]] = LastKnown(lambda: self._ask(cards), {}, clock=clock)

    @property
    def problem(self) -> str:
        return self._cards.problem

    def cards(self) -> Mapping[int, CnmonCard]:
        """All cards that the tool has told of when it last answered."""
        return self._cards.answer()

    def loads(self) -> Mapping[int, DeviceLoad]:
        """How much of each card is in use, as far as the tool answers."""
        known = self._cards.answer()
        return {} if self.problem else {number: card.load for number, card in known.items()}

    def linked(self) -> frozenset[tuple[int, int]]:
        """``ToolError`` when the tool does not tell."""
        return self._ask(linked_pairs, "topo", "-m")

    def _ask(self, parse: Callable[[str], T], *arguments: str) -> T:
        return read(self._tool, parse, *arguments, deadline=self._deadline)


CARDS = "driver/cambricon/mlus"
NODE = re.compile(r"/dev/cambricon_dev(\d{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlu:
    """A device's ``traits``: its board's serial number."""

    serial: str


@dataclass(slots=True, kw_only=True)
class MluDiscoverer:
    """Discovers MLUs, and remembers what each was when it last answered.

    ``library``: they must be in sMLU mode, or out of it if they are not ``cut``. ``switched``: the daemon sees to it.
    """

    paths: HostPaths
    tool: Cnmon
    library: Cndev | None = None
    cut: bool = True
    switched: bool = False
    known: dict[str, Device] = field(default_factory=dict)

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        folders = sorted((self.paths.proc / CARDS).glob("*:*"))
        if not folders:
            raise MLUS.absent(self.paths)
        sightings: list[Sighting] = []
        problems = [self.tool.problem] if self.tool.problem else []
        driver = ""
        for folder in folders:
            known = self.known.get(folder.name)
            ask(known.uuid if known else None)
            try:
                facts = _facts(folder)
                device = self._device(folder.name, facts)
                driver = facts.get("Driver Version", driver)
            except (OSError, ValueError) as error:
                fault = Fault(reason="DriverFailed", message=str(error))
                sightings += [Sighting(device=known, fault=fault)] if known else []
                problems += [] if known else [f"{folder.name}: {error}"]
                continue
            if device:
                self.known[folder.name] = device
                sightings.append(Sighting(device=device, fault=self._fault(device)))
        ordered = sorted(sightings, key=lambda sighting: sighting.device.index)
        return Discovery(sightings=tuple(ordered), problems=tuple(problems), facts={"driver": driver})

    def _device(self, address: str, facts: Mapping[str, str]) -> Device | None:
        """None for a virtual function, which is a part of another MLU."""
        node = NODE.fullmatch(facts.get("Device inode path", ""))
        model = facts.get("Device name", "")
        if model.endswith("-VF"):
            return None
        if not node or not model:
            raise ValueError(f"the driver tells neither name nor node of {address}: {dict(facts)!r:.200}")
        number = int(node[1])
        before, card = self.known.get(address), self.tool.cards().get(number)
        return Device(
            family=DEVICE_TYPE,
            uuid=name(self.paths.node, number),
            index=number,
            minor=number,
            pci=address,
            numa=pci.look(self.paths.sysfs / "bus/pci/devices" / address).numa,
            model=model,
            memory=card.memory if card else before.memory if before else 0,
            mode="",
            traits=Mlu(serial=facts.get("Board Serial Number", "").removeprefix("SN/")),
        )

    def _fault(self, device: Device) -> Fault | None:
        node = self.paths.dev / f"cambricon_dev{device.minor}"
        if not node.exists():
            return Fault(reason="DeviceNodeMissing", message=f"there is no {node}")
        card = self.tool.cards().get(device.index)
        if card and not card.working:
            return Fault(reason="NotInitialised", message=f"cnmon says that card {device.index} did not start")
        if not device.memory:
            return Fault(reason="MemoryUnknown", message=self.tool.problem or "cnmon does not list this card")
        return self._undivided(device)

    def _undivided(self, device: Device) -> Fault | None:
        try:
            if self.library is None or self.library.divisible(device.index) == self.cut:
                return None
        except CndevError as error:
            return Fault(reason="DriverFailed", message=str(error))
        if not self.cut:
            return Fault(reason="Divisible", message=f"the MLU is in sMLU mode, and smluMode is disabled{SWITCHED}")
        how = SWITCHED if self.switched else f": cnmon set -c {device.index} -smlu on, or set smluMode: enabled"
        return Fault(reason="NotDivisible", message=f"the MLU is not in sMLU mode, and mode is {DYNAMIC}{how}")


SWITCHED = "; the daemon switches it once the MLU is idle: hami-plugin partitions says what it waits for"


def _facts(folder: Path) -> dict[str, str]:
    """The driver's lines of one card, each a key and a value. OSError when it does not answer."""
    return dict(_lines((folder / "information").read_text(encoding="utf-8", errors="replace")))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()


def open_driver(settings: CambriconSettings, paths: HostPaths) -> Driver:
    """Cambricon's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    tool = Cnmon(settings.cnmon)
    switched = settings.smlu_mode != "keep"
    library = Cndev(settings.cndev) if settings.cuts or switched else None
    discoverer = MluDiscoverer(paths=roots, tool=tool, library=library, cut=settings.cuts, switched=switched)
    return PollingDriver(discoverer, partial(links, roots, tool), load=partial(load, tool))


def load(tool: Cnmon, devices: Sequence[Device]) -> Mapping[str, DeviceLoad]:
    """By the tool's table, which is asked for anyway."""
    card_loads = tool.loads()
    return {one.uuid: card_loads[one.index] for one in devices if one.index in card_loads}


def links(paths: HostPaths, tool: Cnmon, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus, and the MLU-Links that ``cnmon`` tells of, each counted as one."""
    problems = []
    try:
        linked = tool.linked()
    except ToolError as error:
        linked = frozenset()
        problems.append(f"MLU-Links are not known: {error}")
    return distances(
        devices,
        MLUS.plugged(paths),
        lanes=lambda a, b: int((a.index, b.index) in linked),
        fabric="MLK",
        problems=problems,
    )
