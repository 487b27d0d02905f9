"""One look at the Neuron driver's devices in sysfs. A device that fails is a sighting with a fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action, Device, Discovery, Fault, Sighting
from hami_plugin.sdk import pci
from vendors.awsneuron.chips import DEVICE_TYPE, LOGICAL_CORE_SIZE, MAX_CORES, MEMORY_MIB, NEURONS, Chip, chip, name
from vendors.awsneuron.places import Places

ECC = {"mem_ecc_uncorrected": "MemoryEccUncorrected", "sram_ecc_uncorrected": "SramEccUncorrected"}


class Looker:
    """Looks at devices, and remembers what each was when it last answered. ``logical`` is a logical core's size."""

    def __init__(self, paths: HostPaths, places: Places, logical: int | None = None) -> None:
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
            traits=Chip(
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
