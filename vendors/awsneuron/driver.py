"""Neuron devices as sysfs shows them, and their PCI addresses as ``neuron-ls`` lists them: discovery, health, links."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action, Device, Discovery, Fault, Links, Sighting
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import (
    Driver,
    Hardware,
    PollingDriver,
    ToolError,
    distances,
    pci,
    read,
)
from vendors.awsneuron.rules import DEVICE_TYPE, MAX_CORES, NeuronChip, chip, name
from vendors.awsneuron.settings import AwsNeuronSettings

INFERENTIA: Final = ("7064", "7065", "7066", "7067", "7264")
"""Device ids of the chips that the driver numbers in the order of the bus."""
NEURONS: Final = Hardware(
    title="Neuron device", vendors=("1d0f",), devices=(*INFERENTIA, "7164", "7364"), module="neuron"
)

MEMORY_MIB: Final[Mapping[str, int]] = MappingProxyType(
    {"Inferentia": 8192, "Inferentia2": 32768, "Trainium1": 32768, "Trainium2": 98304}
)
"""Of one device. The driver does not tell it."""
LOGICAL_CORE_SIZE: Final[Mapping[str, int]] = MappingProxyType({"NCv3": 2})
"""Physical cores that make a logical one unless the runtime is told otherwise, by architecture."""


IN_USE = "neuron_core*/stats/memory_usage/device_mem/present"
DEADLINE_S = 10.0


class BusAddresses:
    """Asks the tool once for each set of devices: their places do not change while the driver is loaded."""

    def __init__(self, paths: HostPaths, tool: Path, deadline: float = DEADLINE_S) -> None:
        self._paths = paths
        self._tool = tool
        self._deadline = deadline
        self._of: tuple[int, ...] = ()
        self._places: Mapping[int, pci.PciDevice] = {}
        self.problems: tuple[str, ...] = ()

    def of(self, numbers: tuple[int, ...]) -> Mapping[int, pci.PciDevice]:
        """The devices on the bus by their numbers; those that nobody knows are absent."""
        if not set(numbers) <= set(self._of):
            self._of, self.problems = numbers, ()
            self._places = self._found(numbers)
        return self._places

    def _found(self, numbers: Sequence[int]) -> Mapping[int, pci.PciDevice]:
        bus = NEURONS.plugged(self._paths)
        if len(bus) == len(numbers) and (len(bus) == 1 or all(one.device in INFERENTIA for one in bus)):
            return dict(zip(sorted(numbers), bus, strict=True))
        by_address = {one.address: one for one in bus}
        try:
            listed = self._listed()
        except ToolError as error:
            why = error.message
            self.problems = (f"PCI addresses and NUMA nodes are not known, since {self._tool} does not tell: {why}",)
            return {}
        return {number: by_address[bdf] for number, bdf in listed.items() if bdf in by_address}

    def _listed(self) -> Mapping[int, str]:
        return read(self._tool, parsed, "-j", deadline=self._deadline)


def parsed(printed: str) -> Mapping[int, str]:
    """Addresses by device number. The tool leaves the domain out, which is 0 on every machine that AWS has."""
    entries = json.loads(printed)
    if not isinstance(entries, list) or not all(_names(entry) for entry in entries):
        raise ValueError("it is no list of devices with their numbers and addresses")
    return {entry["neuron_device"]: f"0000:{entry['bdf'].lower()}" for entry in entries}


def _names(entry: object) -> bool:
    return isinstance(entry, Mapping) and type(entry.get("neuron_device")) is int and isinstance(entry.get("bdf"), str)


ECC = {"mem_ecc_uncorrected": "MemoryEccUncorrected", "sram_ecc_uncorrected": "SramEccUncorrected"}


class NeuronDiscoverer:
    """Discovers devices, and remembers what each was when it last answered. ``logical`` is a logical core's size."""

    def __init__(self, paths: HostPaths, places: BusAddresses, logical: int | None = None) -> None:
        self._paths = paths
        self._places = places
        self._logical = logical
        self._known: dict[int, Device] = {}

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        folders = self._folders()
        if not folders:
            raise NEURONS.absent(self._paths)
        places = self._places.of(tuple(folders))
        sightings, refused = [], 0
        for number, folder in folders.items():
            ask(name(self._paths.node, number))
            try:
                device = self._device(number, folder, places.get(number))
                fault = self._fault(number, folder)
                self._known[number] = device
            except (OSError, ValueError) as error:
                refused += isinstance(error, PermissionError)
                device, fault = self._remembered(number), Fault(reason="DriverFailed", message=str(error))
            sightings.append(Sighting(device=device, fault=fault))
        if refused == len(folders):
            raise DriverUnavailableError(
                DriverReason.NO_PERMISSION, "the Neuron driver's files are for root only", hint="run as root"
            )
        kinds = {chip(one.device).instance_type for one in sightings} - {""}
        facts = {"driver": NEURONS.version(self._paths), "instance type": ", ".join(kinds)}
        return Discovery(sightings=tuple(sightings), facts=facts, problems=self._places.problems)

    def _folders(self) -> dict[int, Path]:
        """Device folders by the device's number."""
        found = (self._paths.sysfs / "devices/virtual/neuron_device").glob("neuron*")
        numbered = {int(m[1]): folder for folder in found if (m := re.fullmatch(r"neuron(\d{1,4})", folder.name))}
        return dict(sorted(numbered.items()))

    def _device(self, number: int, folder: Path, place: pci.PciDevice | None) -> Device:
        about = folder / "info/architecture"
        architecture, model = (pci.text(about / fact) for fact in ("arch_type", "device_name"))
        size = self._logical or LOGICAL_CORE_SIZE.get(architecture, 1)
        return Device(
            uuid=name(self._paths.node, number),
            family=DEVICE_TYPE,
            index=number,
            minor=number,
            model=model,
            memory=MEMORY_MIB.get(model, 0),
            pci=place.address if place else "",
            numa=place.numa if place else None,
            mode="",
            traits=NeuronChip(
                cores=_cores(folder) // size,
                neighbours=_neighbours(folder),
                architecture=architecture,
                instance_type=pci.text(about / "instance_type"),
                serial=pci.text(folder / "info/serial_number"),
            ),
        )

    def _fault(self, number: int, folder: Path) -> Fault | None:
        node = self._paths.dev / f"neuron{number}"
        if not node.exists():
            return Fault(reason="DeviceNodeMissing", message=f"there is no {node}")
        for counter, reason in ECC.items():
            count = pci.text(folder / "stats/hardware" / counter)
            if count.isdecimal() and int(count):
                return Fault(reason=reason, message=f"{counter} is {count}", action=Action.RESET)
        return None

    def _remembered(self, number: int) -> Device:
        unknown = Device(
            uuid=name(self._paths.node, number), family=DEVICE_TYPE, index=number, model="", memory=0, mode=""
        )
        return self._known.get(number, unknown)


def _cores(folder: Path) -> int:
    """Physical cores. OSError and ValueError when the driver does not tell a number that can be."""
    text = (folder / "core_count").read_text(encoding="ascii").strip()
    if not text.isdecimal() or not 0 < int(text) <= MAX_CORES:
        raise ValueError(f"{folder.name} tells {text[:32]!r} as its number of cores")
    return int(text)


def _neighbours(folder: Path) -> tuple[int, ...]:
    """As the driver lists them. A device of a machine with one device has none."""
    text = (folder / "connected_devices").read_text(encoding="ascii").strip()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{folder.name} tells {text[:64]!r} as the devices that it is connected to")
    return tuple(map(int, parts))


def open_driver(settings: AwsNeuronSettings, paths: HostPaths) -> Driver:
    """The Neuron driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    look = NeuronDiscoverer(roots, BusAddresses(roots, settings.neuron_ls), settings.logical_core_size)
    return PollingDriver(look, partial(links, roots), load=partial(load, roots))


def load(paths: HostPaths, devices: Sequence[Device]) -> Mapping[str, DeviceLoad]:
    """The memory that the driver has given out for each core. How busy they are is told to the runtime's process only.

    A device of which a core does not tell is left out, as with drivers that have the file elsewhere.
    """
    device_loads = {}
    for device in devices:
        files = list((paths.sysfs / f"devices/virtual/neuron_device/neuron{device.index}").glob(IN_USE))
        amounts = [amount for file in files if (amount := pci.number(file)) is not None]
        if files and len(amounts) == len(files):
            device_loads[device.uuid] = DeviceLoad(memory_used=sum(amounts))
    return device_loads


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """NeuronLinks as the devices list their neighbours, and the distance on the PCI bus where both places are known."""
    return distances(devices, NEURONS.plugged(paths), lanes=lambda a, b: chip(a).neighbours.count(b.index), fabric="NL")
