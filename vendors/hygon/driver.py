"""DCUs as sysfs shows them, and their NUMA nodes as ``hy-smi`` lists them: discovery, health, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Action, Device, Discovery, Fault, Links, Sighting
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import Driver, PollingDriver, distances, pci, tools
from hami_plugin.sdk.pci import PciDevice
from vendors.hygon.rules import DEVICE_TYPE
from vendors.hygon.settings import DCUS, DRIVERS, HygonSettings

QUESTION = ("--showbus", "--showtoponuma", "--json")
ADDRESS, NODE = "PCI Bus", "(Topology) Numa Node"


class NumaNodes:
    """Asks the tool once for each set of devices: their places do not change while the driver is loaded."""

    def __init__(self, tool: Path, deadline: float = 10.0) -> None:
        self._tool = tool
        self._deadline = deadline
        self._asked: frozenset[str] = frozenset()
        self._nodes: Mapping[str, int] = {}
        self.problems: tuple[str, ...] = ()

    def numa(self, found: Sequence[PciDevice]) -> Mapping[str, int | None]:
        """NUMA nodes by PCI address; sysfs' word where the tool says nothing."""
        addresses = frozenset(one.address for one in found)
        if not addresses <= self._asked:
            self._asked, self.problems = addresses, ()
            try:
                self._nodes = self._listed()
            except tools.ToolError as error:
                self._nodes = {}
                self.problems = (f"NUMA nodes are those of sysfs, which may be wrong: {error}",)
        return {one.address: self._nodes.get(one.address, one.numa) for one in found}

    def _listed(self) -> Mapping[str, int]:
        return tools.read(self._tool, partial(parsed, self._tool), *QUESTION, deadline=self._deadline)


def parsed(tool: Path, printed: str) -> Mapping[str, int]:
    """NUMA nodes by PCI address."""
    cards = (card for card in tools.json_object(printed, tool).values() if isinstance(card, Mapping))
    # Newer versions print the serial number behind the address: 0000:05:00.0 --> SN: 25...
    rows = ((str(card.get(ADDRESS, "")).partition(" ")[0].lower(), str(card.get(NODE, ""))) for card in cards)
    return {address: int(node) for address, node in rows if address and node.isdecimal()}


FIRST_RENDER: Final = 128
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Dcu:
    """A DCU's ``traits``: the numbers of its nodes in ``/dev/dri``, and its compute units.

    ``uncut`` says why no part of it can be handed out on this host; empty where one can.
    """

    card: int
    render: int
    compute_units: int = 0
    uncut: str = ""


class DcuDiscoverer:
    """Discovers cards, and remembers by its address what each was when it last answered."""

    def __init__(self, paths: HostPaths, places: NumaNodes, vdcu_files: Path) -> None:
        self._paths = paths
        self._vdcu_files = vdcu_files
        self._places = places
        self._known: dict[str, Device] = {}

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        found = DCUS.driven(self._paths)
        numa, units = self._places.numa(found), _compute_units(self._paths.sysfs)
        sightings, problems = [], [*self._places.problems]
        for one in found:
            known = self._known.get(one.address)
            ask(known.uuid if known else None)
            try:
                device = self._device(one, numa.get(one.address), units)
                fault = self._fault(device)
                self._known[one.address] = device
            except (OSError, ValueError) as error:
                if known is None:
                    problems.append(f"DCU {one.address}: {error}")
                    continue
                device, fault = known, Fault(reason="DriverFailed", message=str(error))
            sightings.append(Sighting(device=device, fault=fault))
        sightings.sort(key=lambda sighting: sighting.device.index)
        versions = (pci.text(self._paths.sysfs / "module" / name / "version") for name in DRIVERS)
        return Discovery(
            sightings=tuple(sightings), problems=tuple(problems), facts={"driver": next(filter(None, versions), "")}
        )

    def _device(self, one: pci.PciDevice, numa: int | None, units: Mapping[int, int]) -> Device:
        folder = self._folder(one.address)
        card, render = (_minor(folder, name) for name in ("card", "renderD"))
        return Device(
            uuid=f"{DEVICE_TYPE}-{_name(folder)}",
            family=DEVICE_TYPE,
            index=render - FIRST_RENDER,
            minor=render,
            model=pci.text(folder / "product_name") or one.device,
            memory=int((folder / "mem_info_vram_total").read_text(encoding="ascii")) // MIB,
            pci=one.address,
            numa=numa,
            traits=Dcu(
                card=card, render=render, compute_units=units.get(render, 0), uncut=self._uncut(units.get(render, 0))
            ),
        )

    def _uncut(self, units: int) -> str:
        if not units:
            return "the driver does not tell how many compute units a DCU has; ask for whole DCUs"
        return without_files(HostFiles(paths=self._paths), self._vdcu_files)

    def _fault(self, device: Device) -> Fault | None:
        node = self._paths.dev / f"dri/renderD{device.minor}"
        missing = next((path for path in (self._paths.dev / "kfd", node) if not path.exists()), None)
        if missing:
            return Fault(reason="DeviceNodeMissing", message=f"there is no {missing}")
        errors = re.search(r"ue:\s*(\d+)", pci.text(self._folder(device.pci) / "ras/umc_err_count"))
        if errors and int(errors[1]):
            message = f"{errors[1]} uncorrectable memory errors"
            return Fault(reason="MemoryEccUncorrected", message=message, action=Action.RESET)
        return None

    def _folder(self, address: str) -> Path:
        return self._paths.sysfs / "bus/pci/devices" / address


def without_files(host: HostFiles, vdcu_files: Path) -> str:
    """Why a container could use the whole DCU on this host; empty where Hygon's files for parts are there."""
    if host.paths.prepared or host.exists(vdcu_files):
        return ""
    return (
        f"there is no {vdcu_files} on the host, without which a container could use the whole DCU; "
        "put Hygon's vDCU files there, or set hygonPath, or ask for whole DCUs"
    )


def _name(folder: Path) -> str:
    """The serial number, by which HAMi's agent names a card; where it has none, the chip's own number."""
    for attribute in ("serial_number", "unique_id"):
        text = pci.text(folder / attribute)
        if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
            return text
    raise ValueError("it has neither a serial number nor a unique id")


def _minor(folder: Path, name: str) -> int:
    """The number of its node ``/dev/dri/<name><number>``."""
    numbers = [
        m[1] for one in (folder / "drm").glob(f"{name}*") if (m := re.fullmatch(rf"{name}(\d{{1,7}})", one.name))
    ]
    if not numbers:
        raise ValueError(f"its driver shows no {name} node")
    return int(numbers[0])


def _compute_units(sysfs: Path) -> dict[int, int]:
    """By render node. A driver that does not tell leaves a card out."""
    found = {}
    for file in (sysfs / "class/kfd/kfd/topology/nodes").glob("*/properties"):
        pairs = (line.split() for line in pci.text(file).splitlines())
        numbers = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
        if numbers.get("simd_count") and numbers.get("simd_per_cu"):
            found[numbers.get("drm_render_minor", -1)] = numbers["simd_count"] // numbers["simd_per_cu"]
    return found


def open_driver(settings: HygonSettings, paths: HostPaths) -> Driver:
    """The DCU driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    look = DcuDiscoverer(roots, NumaNodes(settings.hy_smi), settings.vdcu_files)
    return PollingDriver(look, partial(links, roots), load=partial(load, roots))


def load(paths: HostPaths, devices: Sequence[Device]) -> Mapping[str, DeviceLoad]:
    """By the kernel's files of each DCU: the driver is made of amdgpu."""
    return {one.uuid: pci.drm_load(paths.sysfs / "bus/pci/devices" / one.pci) for one in devices}


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """How far apart the cards are on the PCI bus. The NUMA node is the device's: that of sysfs may be wrong."""
    numa = {device.pci: device.numa for device in devices}
    return distances(devices, [replace(one, numa=numa.get(one.address)) for one in DCUS.plugged(paths)])
