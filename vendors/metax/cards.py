"""One look at MetaX GPUs: on the PCI bus, at their nodes, and in what ``mx-smi`` says.

A GPU that fails is a sighting with a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action, Device, Discovery, Fault, Sighting
from hami_plugin.sdk import pci
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.sdk.tools import ToolError
from vendors.metax import gpu, sgpu
from vendors.metax.smi import Listed, Smi
from vendors.metax.zones import connected

GPUS: Final = Hardware(title="MetaX GPU", vendors=("9999",), module="metax")
CONTROL: Final = "mxcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU's ``traits``: its own UUID, its nodes in ``/dev/dri``, its link zone, and the GPUs it has a link to."""

    uuid: str
    nodes: tuple[str, ...]
    zone: int = 0
    linked: tuple[int, ...] = ()


class Looker:
    """Looks at GPUs, and remembers by its address what each was when it last answered. ``whole``: no shares."""

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
            known, told = self._known.get(one.address), listed.get(one.address)
            ask(known.uuid if known else None)
            try:
                device = self._device(one, told, zones) if told else known
                fault = self._fault(one, told, answered=answered)
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

    def _listed(self, addresses: set[str]) -> tuple[Mapping[str, Listed], list[str]]:
        """A tool that fails takes nothing away from what is known; without it no GPU has a name."""
        try:
            return self._smi.listed(addresses), []
        except ToolError as error:
            if not self._known:
                reason = DriverReason.FAILED if self._smi.tool.exists() else DriverReason.NO_LIBRARY
                raise DriverUnavailableError(reason, str(error), hint="see mxSmi in the configuration") from error
            return {}, [f"the GPUs' state is as it was: {error}"]

    def _device(self, one: pci.PciDevice, told: Listed, zones: Mapping[int, int]) -> Device:
        known = self._known.get(one.address)
        names = _nodes(self._paths.sysfs / "bus/pci/devices" / one.address)
        own = known.traits if known and isinstance(known.traits, Card) else None
        card = Card(
            uuid=told.uuid or (own.uuid if own else ""),
            nodes=names or (own.nodes if own else ()),
            zone=zones.get(told.number, 0),
            linked=tuple(b for a, b in sorted(self._smi.linked) if a == told.number),
        )
        return Device(
            uuid=f"{self._paths.node}-metax-{told.number}" if self._whole else card.uuid,
            family=gpu.DEVICE_TYPE if self._whole else sgpu.DEVICE_TYPE,
            index=told.number,
            minor=told.number,
            model=told.model,
            memory=told.memory,
            pci=one.address,
            numa=one.numa,
            mode="",
            traits=card,
        )

    def _fault(self, one: pci.PciDevice, told: Listed | None, *, answered: bool) -> Fault | None:
        """``answered``: the tool has told what it knows, and has left out what it does not list."""
        if answered and not told:
            return Fault(reason="NotListed", message=f"mx-smi does not list {one.address}")
        if told and not told.available:
            return Fault(
                reason="DeviceUnavailable", message=f"mx-smi calls it {told.state or 'nothing'}", action=Action.RESET
            )
        if told and not told.memory and not self._whole:
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
