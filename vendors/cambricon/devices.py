"""One look at the MLUs that Cambricon's driver shows in ``/proc``. One that fails is a sighting with a fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Sighting
from hami_plugin.sdk import pci
from vendors.cambricon.names import DEVICE_TYPE, MLUS, name
from vendors.cambricon.tool import Cnmon

CARDS = "driver/cambricon/mlus"
NODE = re.compile(r"/dev/cambricon_dev(\d{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A device's ``traits``: its board's serial number."""

    serial: str


@dataclass(slots=True, kw_only=True)
class Looker:
    """Looks at MLUs, and remembers what each was when it last answered."""

    paths: HostPaths
    tool: Cnmon
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
            traits=Board(serial=facts.get("Board Serial Number", "").removeprefix("SN/")),
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
        return None


def _facts(folder: Path) -> dict[str, str]:
    """The driver's lines of one card, each a key and a value. OSError when it does not answer."""
    return dict(_lines((folder / "information").read_text(encoding="utf-8", errors="replace")))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()
