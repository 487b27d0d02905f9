"""MetaX GPUs on the PCI bus, at their device nodes, and as ``mx-smi`` lists them: discovery, health, links."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action, Device, Discovery, Fault, Links, Sighting
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import (
    Driver,
    PollingDriver,
    ToolError,
    distances,
    matrix,
    pci,
    tools,
)
from hami_plugin.sdk.tools import LOAD_EVERY_S, Kept, lines
from vendors.metax import rules
from vendors.metax.settings import GPUS, MetaxSettings
from vendors.metax.zones import connected

T = TypeVar("T")

_ROW = re.compile(
    r"GPU#?\s{0,16}(\d{1,9})[:\s]{1,16}(\S{1,64})\s{1,64}([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s{0,64}"
    r"(.{0,64}?)\s{0,64}(?:\(UUID:\s{0,16}([^)\s]{1,64})\))?$"
)
_MEMORY = re.compile(r"\bvis_vram total\s*:\s*(\d+)\s*KB", re.IGNORECASE)
_USED = re.compile(r"\bvis_vram used\s*:\s*(\d+)\s*KB", re.IGNORECASE)
BUSY = re.compile(r"^\s*GPU\s*:\s*(\d{1,3})(?:\.\d+)?\s*%")
LINKED = "MX"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGpu:
    """One GPU in the tool's list. ``state`` is ``Available`` for one that works; ``memory`` is in MiB."""

    number: int
    model: str
    address: str
    state: str
    uuid: str
    memory: int = 0

    @property
    def available(self) -> bool:
        return self.state == "Available"


class Smi:
    """Asks the tool, and keeps what it said of memory and links for as long as the same GPUs are there.

    The list is asked for again after ``fresh`` seconds: it says which GPUs cannot be used. So is memory that it has not
    reported of one of them.
    """

    def __init__(
        self, tool: Path, *, deadline: float = 10.0, fresh: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tool = tool
        self._deadline = deadline
        self._fresh = fresh
        self._clock = clock
        self._asked: AbstractSet[str] = frozenset()
        self._until = float("-inf")
        self._listed: Mapping[str, ListedGpu] = {}
        self._memory: Mapping[str, int] = {}
        self.linked: AbstractSet[tuple[int, int]] = frozenset()
        self._loads = Kept(self._in_use, every=LOAD_EVERY_S, clock=clock)

    def listed(self, addresses: AbstractSet[str]) -> Mapping[str, ListedGpu]:
        """The GPUs by PCI address. ``ToolError`` when the tool does not tell."""
        anew = not addresses <= self._asked
        if anew or self._clock() >= self._until:
            if anew or not all(one.memory for one in self._listed.values()):
                self._memory = {**self._memory, **self._read(memory_of, "--show-memory")}
            if anew:
                self.linked = self._read(links_of, "topo", "-m")
            listed = self._read(partial(listed_of, memory=self._memory), "-L")
            self._listed = {one.address: one for one in listed}
            self._asked, self._until = addresses, self._clock() + self._fresh
        return self._listed

    def loads(self) -> Mapping[str, DeviceLoad]:
        """How much of each GPU is in use, by PCI address. ``ToolError`` when the tool does not tell."""
        return self._loads.answer("all")

    def _in_use(self) -> Mapping[str, DeviceLoad]:
        used = self._read(partial(numbers_of, _USED), "--show-memory")
        busy = self._read(partial(numbers_of, BUSY), "--show-usage")
        return {
            place: DeviceLoad(memory_used=used[place] * 1024 if place in used else None, utilization=busy.get(place))
            for place in {*used, *busy}
        }

    def _read(self, parse: Callable[[str], T], *arguments: str) -> T:
        return tools.read(self.tool, parse, *arguments, deadline=self._deadline)


def listed_of(printed: str, memory: Mapping[str, int]) -> Sequence[ListedGpu]:
    """The GPUs of ``-L``. ``memory`` is what is known of it, by address."""
    return tuple(_rows(printed, memory))


def memory_of(printed: str) -> Mapping[str, int]:
    """MiB by address."""
    return {place: amount // 1024 for place, amount in numbers_of(_MEMORY, printed).items()}


def numbers_of(pattern: re.Pattern[str], printed: str) -> Mapping[str, int]:
    """What stands in a line below each GPU's own, by the GPU's address."""
    return dict(_below(pattern, printed))


def links_of(printed: str) -> AbstractSet[tuple[int, int]]:
    """The pairs of GPUs with a MetaXLink between them: it stands in place of their distance on the PCI bus."""
    return frozenset(pair for pair, cell in matrix(printed, "GPU").items() if cell == LINKED)


def _rows(printed: str, memory: Mapping[str, int]) -> Iterator[ListedGpu]:
    for line in lines(printed):
        if row := _ROW.search(line.rstrip()):
            number, model, address, state, uuid = row.groups()
            address = address.lower()
            yield ListedGpu(
                number=int(number),
                model=model,
                address=address,
                state=state,
                uuid=uuid or "",
                memory=memory.get(address, 0),
            )


def _below(pattern: re.Pattern[str], printed: str) -> Iterator[tuple[str, int]]:
    address = ""
    for line in lines(printed):
        if row := _ROW.search(line.rstrip()):
            address = row[3].lower()
        elif address and (found := pattern.search(line)):
            yield address, int(found[1])


CONTROL: Final = "mxcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaxGpu:
    """A GPU's ``traits``: its own UUID, its nodes in ``/dev/dri``, its link zone, and the GPUs it has a link to."""

    uuid: str
    nodes: tuple[str, ...]
    zone: int = 0
    linked: tuple[int, ...] = ()


class MetaxDiscoverer:
    """Discovers GPUs, and remembers by its address what each was when it last answered. ``whole``: no shares."""

    def __init__(self, paths: HostPaths, smi: Smi, *, whole: bool) -> None:
        self._paths = paths
        self._smi = smi
        self._whole = whole
        self._known: dict[str, Device] = {}

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        found = GPUS.driven(self._paths)
        listed, problems = self._listed({one.address for one in found})
        zones = connected(self._smi.linked, [one.number for one in listed.values()])
        sightings, answered = [], not problems
        for one in found:
            known, row = self._known.get(one.address), listed.get(one.address)
            ask(known.uuid if known else None)
            try:
                device = self._device(one, row, zones) if row else known
                fault = self._fault(one, row, answered=answered)
            except OSError as error:
                device, fault = known, Fault(reason="DriverFailed", message=str(error))
            if device is None:
                problems.append(f"GPU {one.address}: {self._smi.tool} does not list it")
                continue
            self._known[one.address] = device
            sightings.append(Sighting(device=device, fault=fault))
        sightings.sort(key=lambda sighting: sighting.device.index)
        version = GPUS.version(self._paths)
        return Discovery(sightings=tuple(sightings), problems=tuple(problems), facts={"driver": version})

    def _listed(self, addresses: set[str]) -> tuple[Mapping[str, ListedGpu], list[str]]:
        """A tool that fails takes nothing away from what is known; without it no GPU has a name."""
        try:
            return self._smi.listed(addresses), []
        except ToolError as error:
            if not self._known:
                reason = DriverReason.FAILED if self._smi.tool.exists() else DriverReason.NO_LIBRARY
                raise DriverUnavailableError(reason, str(error), hint="see mxSmi in the configuration") from error
            return {}, [f"the GPUs' state is as it was: {error}"]

    def _device(self, one: pci.PciDevice, row: ListedGpu, zones: Mapping[int, int]) -> Device:
        known = self._known.get(one.address)
        names = _nodes(self._paths.sysfs / "bus/pci/devices" / one.address)
        own = known.traits if known and isinstance(known.traits, MetaxGpu) else None
        card = MetaxGpu(
            uuid=row.uuid or (own.uuid if own else ""),
            nodes=names or (own.nodes if own else ()),
            zone=zones.get(row.number, 0),
            linked=tuple(b for a, b in sorted(self._smi.linked) if a == row.number),
        )
        return Device(
            uuid=f"{self._paths.node}-metax-{row.number}" if self._whole else card.uuid,
            family=rules.WHOLE_TYPE if self._whole else rules.SHARED_TYPE,
            index=row.number,
            minor=row.number,
            model=row.model,
            memory=row.memory,
            pci=one.address,
            numa=one.numa,
            mode="",
            traits=card,
        )

    def _fault(self, one: pci.PciDevice, row: ListedGpu | None, *, answered: bool) -> Fault | None:
        """``answered``: the tool has reported all that it knows."""
        if answered and not row:
            return Fault(reason="NotListed", message=f"mx-smi does not list {one.address}")
        if row and not row.available:
            return Fault(
                reason="DeviceUnavailable", message=f"mx-smi calls it {row.state or 'nothing'}", action=Action.RESET
            )
        if row and not row.memory and not self._whole:
            return Fault(reason="MemoryUnknown", message=f"mx-smi tells no memory of {one.address}")
        names = _nodes(self._paths.sysfs / "bus/pci/devices" / one.address)
        if not names:
            return Fault(reason="DriverUnbound", message=f"the driver shows no nodes of {one.address}")
        missing = next((name for name in (CONTROL, *names) if not (self._paths.dev / name).exists()), None)
        return (
            Fault(reason="DeviceNodeMissing", message=f"there is no {self._paths.dev / missing}") if missing else None
        )


def _nodes(folder: Path) -> tuple[str, ...]:
    """Its nodes below ``/dev``: the card's, then the one to render."""
    names = sorted(one.name for one in (folder / "drm").glob("*") if re.fullmatch(r"(card|renderD)\d+", one.name))
    return tuple(f"dri/{name}" for name in names)


def open_driver(settings: MetaxSettings, paths: HostPaths) -> Driver:
    """The MetaX driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    smi = Smi(settings.mx_smi)
    look = MetaxDiscoverer(roots, smi, whole=settings.mode == "native")
    return PollingDriver(look, partial(links, roots), load=partial(load, smi))


def load(smi: Smi, devices: Sequence[Device]) -> Mapping[str, DeviceLoad]:
    card_loads = smi.loads()
    return {one.uuid: card_loads[one.pci] for one in devices if one.pci in card_loads}


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """MetaXLinks as the tool tells them, and the distance on the PCI bus."""
    return distances(devices, GPUS.plugged(paths), lanes=lambda a, b: card(a).linked.count(b.index), fabric="MX")


def card(device: Device) -> MetaxGpu:
    """The traits of a GPU; of one that never answered, no nodes."""
    return device.traits if isinstance(device.traits, MetaxGpu) else MetaxGpu(uuid=device.uuid, nodes=())
