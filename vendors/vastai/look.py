"""One look at Vastai devices, each a card or a die. One that fails is a sighting with a fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Sighting
from hami_plugin.sdk.pci import PciDevice
from hami_plugin.sdk.tools import Kept
from vendors.vastai.dies import DEVICE_TYPE, DIES, Dies, Listed, dies, listed, numbered

ASK_EVERY_S = 10.0
"""How long the tool's answer is good for, while the same dies are there."""
OWN_NODES = ("vacc{}", "vastai_video{}")
"""A die's node is one of these, depending on the driver's generation."""


class Looker:
    """Looks at dies, and remembers what the tool last told of each. ``whole``: a card is one device."""

    def __init__(self, paths: HostPaths, tool: Path, *, whole: bool) -> None:
        self._paths = paths
        self._whole = whole
        self._listed = Kept(lambda: listed(tool), every=ASK_EVERY_S)
        self._known: dict[str, Listed] = {}
        self._numbers: Mapping[str, int] = {}

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        places = self._places()
        addresses = tuple(place.address for place in places)
        self._numbers = numbered(self._paths, addresses, self._numbers)
        ask(None)
        told = self._listed.answer(addresses)
        self._known.update(told)
        dies_seen = [(self._numbers[one.address], one) for one in places if one.address in self._numbers]
        seen = [self._die(number, place, told) for number, place in sorted(dies_seen, key=lambda die: die[0])]
        lost = [one for one in addresses if one not in self._numbers]
        problems = (f"nothing tells which nodes are those of the dies {', '.join(lost)}",) if lost else ()
        return Discovery(sightings=tuple(_cards(seen) if self._whole else seen), problems=problems)

    def _places(self) -> tuple[PciDevice, ...]:
        places = DIES.plugged(self._paths)
        if any(place.driver for place in places):
            return places
        self._numbers = {}  # a driver that comes back counts anew
        raise DIES.absent(self._paths)

    def _die(self, number: int, place: PciDevice, told: Mapping[str, Listed]) -> Sighting:
        known = self._known.get(place.address, Listed(card="", memory=0))
        device = Device(
            # The place on the bus tells a card's dies apart, whichever of them answer. Names have no colons.
            uuid=f"{known.card or f'{self._paths.node}-vastai'}-{place.address.replace(':', '.')}",
            family=DEVICE_TYPE,
            index=number,
            minor=number,
            model="Vastai die",
            memory=known.memory,
            pci=place.address,
            numa=place.numa,
            mode="",
            traits=Dies(numbers=(number,), card=known.card),
        )
        return Sighting(device=device, fault=self._fault(number, place, told))

    def _fault(self, number: int, place: PciDevice, told: Mapping[str, Listed]) -> Fault | None:
        if place.address not in told:
            return Fault(reason="DeviceSilent", message=f"vasmi does not tell card and memory of die {place.address}")
        if not any((self._paths.dev / name.format(number)).exists() for name in OWN_NODES):
            names = " nor ".join(str(self._paths.dev / name.format(number)) for name in OWN_NODES)
            return Fault(reason="DeviceNodeMissing", message=f"there is neither {names}")
        return None


def _cards(seen: list[Sighting]) -> list[Sighting]:
    """Dies of one serial number together, in the order of their first. What one of them suffers, the card does."""
    grouped: dict[str, list[Sighting]] = {}
    for one in seen:
        grouped.setdefault(dies(one.device).card or one.device.uuid, []).append(one)
    return [_card(index, name, parts) for index, (name, parts) in enumerate(grouped.items())]


def _card(index: int, name: str, parts: list[Sighting]) -> Sighting:
    first = parts[0].device
    device = replace(
        first,
        uuid=name,
        index=index,
        minor=None,
        model="Vastai card",
        memory=sum(part.device.memory for part in parts),
        traits=Dies(numbers=tuple(n for part in parts for n in dies(part.device).numbers), card=dies(first).card),
    )
    return Sighting(device=device, fault=next((part.fault for part in parts if part.fault), None))
