"""Vastai cards, or single dies of them: a container's dies come from as few cards as possible."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from cdi.spec import ContainerEdits
from hami_plugin.config.settings import AbsolutePath
from hami_plugin.config.vendors import ResourceName, TreeSettings, setting
from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Links, Sighting
from hami_plugin.model.placement import Assignment
from hami_plugin.protocol.nodes import DeviceInfo, decode_json
from hami_plugin.scheduler.engine.devices import Context, DeviceState, Piece, Reason, in_percent
from hami_plugin.scheduler.engine.policy import Decision, by_group, share_together, when
from hami_plugin.sdk import (
    AnnotationKeys,
    DeviceNodes,
    Driver,
    Family,
    Hardware,
    Injection,
    NodeSide,
    PollingDriver,
    Resources,
    ToolError,
    Vendor,
    distances,
    json_object,
    read,
    serving,
    whole_devices,
)
from hami_plugin.sdk.pci import PciDevice
from hami_plugin.sdk.tools import Kept

# Settings


class VastaiSettings(TreeSettings):
    """Keys of HAMi's ``vastai`` section with its defaults, then ours."""

    cdi_class: ClassVar[str] = "vastai"

    count: ResourceName = setting("resourceCountName", "vastaitech.com/va", "Number of cards, or of dies.")
    strategy: Literal["card", "die"] = setting(
        "deviceStrategy", "card", "What a device is: a whole card, or each of its dies."
    )
    vasmi: AbsolutePath = setting(
        "vasmi", Path("/usr/bin/vasmi"), "Vastai's tool, which knows each die's card and memory."
    )


# Rules

DEVICE_TYPE: Final = "Vastai"
STRATEGY: Final = "DeviceStrategy"
CARD: Final = "AIC"


def families(settings: VastaiSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    uuids = ("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid")
    whole = whole_devices(DEVICE_TYPE, settings.count, uuids=uuids, booked=False)
    policy = replace(
        whole,
        serves=(*whole.serves, on_an_idle_card),
        select=when(
            lambda context: by_die(context) and context.demand.count > 1,
            by_group(lambda candidate: card(candidate.state.info.custom)),
        ),
        score=dies_together,
    )
    resources = Resources(device_type=DEVICE_TYPE, count=settings.count)
    keys = AnnotationKeys.of_agent("va", pods=DEVICE_TYPE)
    return (Family.registered(resources, keys, policy, decode=in_percent(decode_json)),)


def by_die(context: Context) -> bool:
    """The node's agent offers single dies."""
    return any((state.info.custom or {}).get(STRATEGY) == "die" for state in context.states)


def card(custom: Mapping[str, Any] | None) -> str | None:
    """The card that a die is on."""
    name = (custom or {}).get(CARD)
    return name if isinstance(name, str) else None


def on_an_idle_card(state: DeviceState, context: Context) -> Reason | None:
    """Under the order ``mutex`` nobody else has a die of the same card."""
    own = card(state.info.custom)
    if "mutex" not in context.orders or own is None or not by_die(context):
        return None
    busy = any(other.slots > 0 and card(other.info.custom) == own for other in context.states)
    return Reason.EXCLUSIVE if busy else None


def dies_together(decision: Decision) -> float:
    """For each container the largest part of its dies on one card; 0 unless all are known to be dies."""
    grants = [grant for piece in decision.pieces for grant in piece]
    if any(card(grant.notes) is None or (grant.notes or {}).get(STRATEGY, "die") != "die" for grant in grants):
        return 0.0
    return sum(_together(piece) for piece in decision.pieces)


def _together(piece: Piece) -> float:
    cards = {grant.uuid: card(grant.notes) for grant in piece}
    return share_together((piece,), cards.get)


# Driver

DIES: Final = Hardware(title="Vastai die", vendors=("1ec6", "1edb"), devices=("0100",), module="vastai_pci")
"""Two ids are seen for this vendor; the device id is the same."""
QUERY: Final = ("getmem", "--display-format=json")
MEMORY: Final = ("Physical", "Physical memory")
"""What the tool calls a die's memory, on accelerators and on graphics cards."""
DEADLINE_S = 10.0
_OWN_NODE = re.compile(r"(?:vacc|vastai_video)(\d{1,4})")
_NAME = re.compile(r"[\w.-]+")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B", re.IGNORECASE)
_IN_MIB = {"": 1 / 1024**2, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dies:
    """A device's ``traits``: the numbers of its dies, and the serial number of the card that they are on."""

    numbers: tuple[int, ...]
    card: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDie:
    """What the tool tells of a die. ``memory`` is in MiB."""

    card: str
    memory: int


def dies(device: Device) -> Dies:
    """The traits of a Vastai device; of one that nothing is known of, no dies."""
    return device.traits if isinstance(device.traits, Dies) else Dies(numbers=(), card="")


def die_numbers(paths: HostPaths, addresses: Sequence[str], before: Mapping[str, int]) -> Mapping[str, int]:
    """The dies' numbers, by which the driver names their nodes; it gives them in the order of the bus.

    Those of ``before`` stay. The others are numbered where there are as many nodes left as dies: with one missing
    anywhere, nothing tells which number it had.
    """
    nodes = {int(m[1]) for node in paths.dev.glob("va*") if (m := _OWN_NODE.fullmatch(node.name))}
    kept = {address: number for address, number in before.items() if address in addresses}
    new = [address for address in addresses if address not in kept]
    left = sorted(nodes - set(kept.values()))
    return {**kept, **dict(zip(new, left, strict=True))} if len(new) == len(left) else kept


def list_dies(tool: Path, deadline: float = DEADLINE_S) -> Mapping[str, ListedDie]:
    """What the tool tells, by PCI address. A die of which it does not tell all is absent."""
    if not tool.is_file():
        raise DriverUnavailableError(
            DriverReason.NO_LIBRARY, f"there is no {tool}", hint="mount it from the host, or set vasmi"
        )
    try:
        return read(tool, partial(parsed, tool), *QUERY, deadline=deadline)
    except ToolError as error:
        raise DriverUnavailableError(DriverReason.FAILED, error.message) from error


def parsed(tool: Path, printed: str) -> Mapping[str, ListedDie]:
    """The dies of the tool's answer, by PCI address."""
    elements = json_object(printed, tool).get("elem")
    items = [item for item in elements if isinstance(item, dict)] if isinstance(elements, list) else []
    return {address: die for item in items if (address := _address(item)) and (die := _die(item))}


def _address(item: Mapping[str, Any]) -> str:
    domain, _, rest = str(item.get("pci_bus", "")).strip().lower().rpartition(":")[0].partition(":")
    last = str(item.get("pci_bus", "")).strip().lower().rpartition(":")[2]
    return f"{domain[-4:].rjust(4, '0')}:{rest}:{last}" if rest and last else ""


def _die(item: Mapping[str, Any]) -> ListedDie | None:
    values = item.get("vals")
    card = str(item.get("sn") or "").strip()
    amounts = [values[name] for name in MEMORY if name in values] if isinstance(values, dict) else []
    found = _AMOUNT.search(str(amounts[0].get("value"))) if amounts and isinstance(amounts[0], dict) else None
    memory = int(float(found[1]) * _IN_MIB[found[2].upper()]) if found else 0
    return ListedDie(card=card, memory=memory) if _NAME.fullmatch(card) and memory else None


ASK_EVERY_S = 10.0
"""How long the tool's answer is good for, while the same dies are there."""
OWN_NODES = ("vacc{}", "vastai_video{}")
"""A die's node is one of these, depending on the driver's generation."""


class DieDiscoverer:
    """Discovers dies, and remembers what the tool last reported of each. ``whole``: a card is one device."""

    def __init__(self, paths: HostPaths, tool: Path, *, whole: bool) -> None:
        self._paths = paths
        self._whole = whole
        self._listed = Kept(lambda: list_dies(tool), every=ASK_EVERY_S)
        self._known: dict[str, ListedDie] = {}
        self._numbers: Mapping[str, int] = {}

    def __call__(self, ask: Callable[[str | None], None]) -> Discovery:
        places = self._places()
        addresses = tuple(place.address for place in places)
        self._numbers = die_numbers(self._paths, addresses, self._numbers)
        ask(None)
        listed_dies = self._listed.answer(addresses)
        self._known.update(listed_dies)
        dies_seen = [(self._numbers[one.address], one) for one in places if one.address in self._numbers]
        seen = [self._die(number, place, listed_dies) for number, place in sorted(dies_seen, key=lambda die: die[0])]
        lost = [one for one in addresses if one not in self._numbers]
        problems = (f"nothing tells which nodes are those of the dies {', '.join(lost)}",) if lost else ()
        return Discovery(sightings=tuple(_cards(seen) if self._whole else seen), problems=problems)

    def _places(self) -> tuple[PciDevice, ...]:
        places = DIES.plugged(self._paths)
        if any(place.driver for place in places):
            return places
        self._numbers = {}  # a driver that comes back counts anew
        raise DIES.absent(self._paths)

    def _die(self, number: int, place: PciDevice, listed_dies: Mapping[str, ListedDie]) -> Sighting:
        known = self._known.get(place.address, ListedDie(card="", memory=0))
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
        return Sighting(device=device, fault=self._fault(number, place, listed_dies))

    def _fault(self, number: int, place: PciDevice, listed_dies: Mapping[str, ListedDie]) -> Fault | None:
        if place.address not in listed_dies:
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


def open_driver(settings: VastaiSettings, paths: HostPaths) -> Driver:
    """Vastai's driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    return PollingDriver(DieDiscoverer(roots, settings.vasmi, whole=settings.strategy == "card"), partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """Distances on the PCI bus, between the first dies."""
    return distances(devices, DIES.plugged(paths))


# Injection

CONTROL = ("vatools", "va_sync")
OF_A_DIE = ("vacc{}", "vastai_video{}", "va{}_ctl", "va_video{}", "vastai{}_version")
"""Nodes that a die has, depending on the generation of its driver."""


def node_side(settings: VastaiSettings, _family: Family) -> NodeSide:
    """One container for each card or die."""
    node = NodeSide(register=partial(register, settings), reports=True, inject=inject)
    return node.delivered(settings, device_edits, shared_edits)


def register(settings: VastaiSettings, device: Device, _legacy: bool) -> DeviceInfo:
    """With what HAMi's scheduler keeps a container's dies together by."""
    custom = {STRATEGY: settings.strategy, CARD: dies(device).card}
    return DeviceInfo.of(device, DEVICE_TYPE, numa=device.numa or 0, custom=custom)


def device_edits(settings: VastaiSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The nodes of its dies, each of which must have some."""
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    found = [nodes.take(*(name.format(number) for name in OF_A_DIE)) for number in dies(device).numbers]
    if not found or not all(edits.device_nodes for edits in found):
        raise HamiError(f"{device.uuid} has a die without nodes on this host", hint="its driver makes them")
    return ContainerEdits().merged(*found)


def shared_edits(settings: VastaiSettings, host: HostFiles) -> ContainerEdits:
    return DeviceNodes(host=host, root=settings.dev_root).take(*CONTROL)


def inject(assignment: Assignment, _host: HostFiles) -> Injection:
    """Which dies these are, for Vastai's runtime."""
    numbers = sorted(number for share in assignment.shares for number in dies(share.device).numbers)
    return Injection(edits=ContainerEdits(env={"VACC_VISIBLE_DEVICES": ",".join(map(str, numbers))}))


# Vendor

VENDOR = Vendor(
    name="vastai",
    title="Vastai cards",
    noun="VA",
    settings=VastaiSettings,
    families=serving(families, node_side),
    open=open_driver,
    present=DIES.present,
)
