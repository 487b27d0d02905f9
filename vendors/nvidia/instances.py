"""MIG instances that an administrator, or a tool of his, has made: as devices, by one of NVIDIA's two strategies.

``single``: every card of the node is cut into the same instances, and ``nvidia.com/gpu`` counts them. ``mixed``: each
profile is a resource of its own, beside the cards that are not in MIG mode. Nothing here makes or removes an instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Device, Fault, Sighting
from hami_plugin.sdk import Family, Resources, SchedulingRules
from vendors.nvidia.host import FAMILY, DiscoveredInstance, instances

Strategy = Literal["none", "single", "mixed"]

MIG_MODE = "mig"
"""``operatingMode`` of a card that is cut for containers, of which nothing here is made."""
PREFIX = "nvidia.com/mig-"
TYPE = "MIG-"
MAX_NAME = 63
"""Of a resource's name after the slash, in characters."""


def profile_name(profile: str) -> str:
    """A profile as a part of a resource's name: ``1g.10gb+me`` is ``1g.10gb.me``."""
    return profile.replace("+", ".").replace(",", ".")


def family(device_type: str) -> Family:
    """The instances of one profile, ``MIG-1g.5gb``. The kubelet counts them, so that nobody else decides."""
    return Family(
        resources=Resources(device_type=device_type, count=f"{PREFIX}{device_type.removeprefix(TYPE)}"),
        rules=SchedulingRules(lock=None),
    )


def instance_sightings(card: Sighting, strategy: Strategy) -> tuple[Sighting, ...]:
    """The instances of a card, each with the card's fault or its own."""
    return tuple(_sighted(card, one, strategy) for one in instances(card.device) if one.profile)


def _sighted(card: Sighting, one: DiscoveredInstance, strategy: Strategy) -> Sighting:
    whole = card.device
    device = Device(
        uuid=one.uuid,
        family=FAMILY if strategy == "single" else f"{TYPE}{profile_name(one.profile)}",
        index=whole.index,
        part=one.index,
        model=f"{whole.model} MIG {one.profile}",
        memory=one.memory,
        minor=whole.minor,
        pci=whole.pci,
        numa=whole.numa,
        mode=whole.mode,
        traits=replace(one, problem=""),
        place=f"{whole.uuid}/{one.slices or f'gi{one.gi}'}/ci{one.ci}",
    )
    return Sighting(device=device, fault=card.fault or _fault(device, one.problem))


def _fault(device: Device, problem: str) -> Fault | None:
    if problem:
        return Fault(reason="InstanceUnreadable", message=f"the instance does not answer: {problem}")
    name = device.family.removeprefix(TYPE)
    if len(f"mig-{name}") > MAX_NAME:
        return Fault(reason="ProfileName", message=f"no resource can be named mig-{name}")
    if not device.memory:
        return Fault(reason="MemoryUnknown", message="the driver does not tell this instance's memory")
    return None


def require_alike(cards: Sequence[Device]) -> None:
    """``DriverUnavailableError`` unless no card is in MIG mode, or all are, with instances of one profile.

    What the cards of a node are cut into differs for as long as somebody cuts them, and then is asked for again.
    """
    cut = [card for card in cards if card.traits is not None]
    if not cut:
        return
    uncut = [card for card in cards if card.traits is None]
    empty = [card for card in cut if not instances(card)]
    profiles: defaultdict[str, list[Device]] = defaultdict(list)
    for card in cut:
        for profile in sorted({one.profile for one in instances(card)}):
            profiles[profile].append(card)
    if uncut:
        problem = f"{_named(cut)} in MIG mode and {_named(uncut)} not"
        hint = (
            f"switch MIG on for all of them (nvidia-smi -i {_numbers(uncut)} -mig 1) or off "
            f"(nvidia-smi -i {_numbers(cut)} -mig 0)"
        )
    elif empty:
        problem = f"{_named(empty)} in MIG mode without any instance"
        hint = f"make them (nvidia-smi mig -i {_numbers(empty)} -cgi <profile> -C)"
    elif len(profiles) > 1:
        parts = [f"{profile or 'without a name'} on {_counted(on)}" for profile, on in sorted(profiles.items())]
        problem = f"the instances differ: {', '.join(parts)}"
        hint = "make instances of one profile only"
    else:
        return
    raise DriverUnavailableError(
        DriverReason.MIG_MIXTURE,
        f"migStrategy single needs all cards cut into instances of one profile, and {problem}",
        hint=f"{hint}, leave cards out with filterDevices, or set migStrategy: mixed; it is noticed without a restart",
    )


def _named(cards: Sequence[Device]) -> str:
    return f"{_counted(cards)} {'is' if len(cards) == 1 else 'are'}"


def _counted(cards: Sequence[Device]) -> str:
    return f"card{'s' if len(cards) > 1 else ''} {_numbers(cards)}"


def _numbers(cards: Sequence[Device]) -> str:
    return ",".join(str(card.index) for card in cards)


class Parts:
    """What cards in MIG mode are divided into, as of the last look."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy: Strategy = strategy
        self._cut: dict[str, tuple[Device, ...]] = {}

    def of(self, cards: Sequence[Sighting], answering: Iterable[str]) -> tuple[tuple[Sighting, ...], frozenset[str]]:
        """The devices of these cards, and the cards that are none.

        ``DriverUnavailableError`` where the cards that answer may not be as they are.
        """
        if self._strategy == "none":
            return tuple(cards), frozenset()
        if self._strategy == "single":
            known = set(answering)
            require_alike([card.device for card in cards if card.device.uuid in known])
        found = list(self._divide(cards))
        return tuple(found), frozenset(self._cut)

    def _divide(self, cards: Iterable[Sighting]) -> Iterator[Sighting]:
        self._cut.clear()
        for card in cards:
            if card.device.traits is None or card.device.mode == MIG_MODE:
                yield card
            else:
                parts = instance_sightings(card, self._strategy)
                self._cut[card.device.uuid] = tuple(part.device for part in parts)
                yield from parts

    def concerned(self, card: str, gi: int | None, ci: int | None) -> tuple[str, ...]:
        """Devices of a card that an event is about. All of them, where the named instance is none that is known."""
        if card not in self._cut:
            return (card,)
        parts = [(part.uuid, part.traits) for part in self._cut[card]]
        named = [
            uuid
            for uuid, one in parts
            if isinstance(one, DiscoveredInstance) and gi in (None, one.gi) and ci in (None, one.ci)
        ]
        return tuple(named) if named else tuple(uuid for uuid, _one in parts)
