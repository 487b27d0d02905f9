"""Cards that a vendor's own tool lists, held against what the kernel shows of them: the PCI bus and the device nodes.

It is both functions of a ``LookingDriver`` for vendors whose library cannot be relied upon without their SDK.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Sighting
from hami_plugin.model.links import Links
from hami_plugin.sdk import pci
from hami_plugin.sdk.hardware import Hardware, distances
from hami_plugin.sdk.tools import ToolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as the tool tells of it. ``memory`` in MiB; ``trouble`` is what the tool could not tell, and ``traits``
    what its vendor alone makes something of.
    """

    index: int
    uuid: str
    model: str
    address: str
    memory: int = 0
    trouble: str = ""
    traits: object | None = None


Listing = Callable[[], Iterable[Card | str]]
"""Asks the tool. What can be no card is told in words. ``ToolError`` when the tool tells nothing."""
Naming = Callable[[Card], tuple[str, str] | None]
"""The word of a card's family and the name of the card; None for a card that no family serves."""
Lanes = Callable[[], Mapping[tuple[int, int], int]]
"""How many links of the vendor's fabric are between two cards, by the tool's numbers. ``ToolError`` as above."""


class ListedCards:
    """What the tool lists, at each look anew. A card keeps the number that it was first seen with.

    Its name may be made of that number, and its device node is; the tool counts anew when a card before it is gone.
    """

    def __init__(
        self,
        hardware: Hardware,
        paths: HostPaths,
        listing: Listing,
        naming: Naming,
        *,
        fabric: str = "",
        lanes: Lanes = dict,
    ) -> None:
        self._hardware = hardware
        self._paths = paths
        self._listing = listing
        self._naming = naming
        self._fabric = fabric
        self._lanes = lanes
        self._known: dict[str, Device] = {}
        self._numbers: dict[str, int] = {}

    def look(self, _ask: Callable[[str | None], None]) -> Discovery:
        """All cards. The tool tells of all at once, so that no single one can be named while it is asked."""
        bus = {one.address: one for one in self._hardware.plugged(self._paths)}
        self._check(bus.values())
        cards, problems = self._listed()
        self._numbers = {card.address: card.index for card in cards}
        sightings: dict[str, Sighting] = {}
        for card in cards:
            seen = self._seen(card, bus.get(card.address))
            if isinstance(seen, str):
                problems.append(seen)
            elif seen.device.uuid in sightings:
                twice = Fault(reason="DuplicateUuid", message=f"the tool lists {seen.device.uuid} twice")
                sightings[seen.device.uuid] = replace(sightings[seen.device.uuid], fault=twice)
            else:
                sightings[seen.device.uuid] = seen
        problems += self._unlisted(bus, cards, sightings)
        if not sightings:
            raise DriverUnavailableError(
                DriverReason.NO_DEVICES, f"no {self._hardware.title} can be served: {'; '.join(problems)}"
            )
        self._known |= {one.device.pci: one.device for one in sightings.values() if not one.fault}
        ordered = sorted(sightings.values(), key=lambda one: one.device.index)
        return Discovery(sightings=tuple(ordered), problems=tuple(problems), facts=self._facts())

    def links(self, devices: Sequence[Device]) -> Links:
        """The distance of every two devices on the bus, and their links of the vendor's fabric."""
        lanes: Mapping[tuple[int, int], int] = {}
        problems = []
        try:
            lanes = self._lanes()
        except ToolError as error:
            problems.append(f"links of the fabric are not known: {error}")

        def between(a: Device, b: Device) -> int:
            return lanes.get((self._numbers.get(a.pci, -1), self._numbers.get(b.pci, -1)), 0)

        bus = self._hardware.plugged(self._paths)
        return distances(devices, bus, lanes=between, fabric=self._fabric, problems=problems)

    def _listed(self) -> tuple[list[Card], list[str]]:
        try:
            every = list(self._listing())
        except ToolError as error:
            raise _unavailable(error) from error
        return [one for one in every if isinstance(one, Card)], [one for one in every if isinstance(one, str)]

    def _check(self, bus: Iterable[pci.PciDevice]) -> None:
        if not any(one.driver for one in bus):
            self._known.clear()  # whoever comes back is counted anew
            raise self._hardware.absent(self._paths)

    def _seen(self, card: Card, place: pci.PciDevice | None) -> Sighting | str:
        known = self._known.get(card.address)
        if known:
            card = replace(card, index=known.index)
        named = self._naming(card)
        if named is None:
            return f"card {card.index}, a {card.model}, is of no family that is configured"
        device_type, uuid = named
        node = self._paths.dev / f"{self._hardware.node}{card.index}"
        device = Device(
            uuid=uuid,
            family=device_type,
            index=card.index,
            minor=card.index,
            model=card.model,
            memory=card.memory,
            pci=card.address,
            numa=place.numa if place else None,
            traits=card.traits,
        )
        if card.trouble:
            return Sighting(device=known or device, fault=Fault(reason="DeviceSilent", message=card.trouble))
        if place is None:
            return Sighting(device=known or device, fault=Fault(reason="NotOnBus", message=f"{card.address} is empty"))
        if not node.exists():
            return Sighting(device=device, fault=Fault(reason="DeviceNodeMissing", message=f"there is no {node}"))
        return Sighting(device=device)

    def _unlisted(
        self, bus: Mapping[str, pci.PciDevice], cards: Iterable[Card], sightings: dict[str, Sighting]
    ) -> Iterator[str]:
        """Cards that are on the bus, and that the tool does not list any more, or never has."""
        for address in bus.keys() - {card.address for card in cards}:
            message = f"the vendor's tool does not list the card at {address}"
            known = self._known.get(address)
            if known and known.uuid not in sightings:
                sightings[known.uuid] = Sighting(device=known, fault=Fault(reason="NotListed", message=message))
            else:
                yield message

    def _facts(self) -> Mapping[str, str]:
        version = self._hardware.version(self._paths)
        return {"driver": version} if version else {}


def _unavailable(error: ToolError) -> DriverUnavailableError:
    """Without the tool nothing is known of the cards but where they are."""
    match error.__cause__:
        case subprocess.TimeoutExpired():
            return DriverUnavailableError(DriverReason.HUNG, error.message, hint="look into the kernel's log")
        case OSError():
            hint = "install the vendor's tools where this daemon sees them, and say where they are"
            return DriverUnavailableError(DriverReason.NO_LIBRARY, error.message, hint=hint)
        case _:
            return DriverUnavailableError(DriverReason.FAILED, error.message, hint="run it by hand")
