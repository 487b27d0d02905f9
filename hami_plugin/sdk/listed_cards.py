"""Vendors whose cards are listed, usually by the vendor's tool, and visible on the PCI bus and in ``/dev``.

``listed_vendor`` creates such a ``Vendor`` from a few facts and functions.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cdi.spec import ContainerEdits
from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device, Discovery, Fault, Links, Sighting
from hami_plugin.model.placement import Assignment
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.protocol.nodes import DeviceInfo, decode_json
from hami_plugin.sdk import pci
from hami_plugin.sdk.device_nodes import DeviceNodes, mounted
from hami_plugin.sdk.family import AnnotationKeys, Family, Injection, NodeSide, Resources, whole_devices
from hami_plugin.sdk.hardware import Hardware, distances
from hami_plugin.sdk.polling import PollingDriver
from hami_plugin.sdk.tools import LOAD_EVERY_S, Kept, ToolError, mebibytes
from hami_plugin.sdk.vendor import Driver, Vendor, serving

if TYPE_CHECKING:  # a vendor's driver also runs where pydantic is not installed
    from hami_plugin.config.vendors import TreeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as the tool reports it. ``memory`` is in MiB, ``trouble`` is why a value is unreadable, and ``traits`` are
    for the vendor's own use.
    """

    index: int
    uuid: str
    model: str
    address: str
    memory: int = 0
    trouble: str = ""
    traits: object | None = None

    @classmethod
    def of_row(
        cls,
        tool: str,
        *,
        index: int,
        uuid: str,
        model: str,
        address: str,
        memory: str,
        traits: Callable[[], object] = lambda: None,
    ) -> Card:
        """A card from the tool's text. Unreadable memory or traits become the card's ``trouble``."""
        known = cls(index=index, uuid=uuid, model=model, address=address)
        try:
            return replace(known, memory=mebibytes(memory), traits=traits())
        except (KeyError, TypeError, ValueError) as error:
            return replace(known, trouble=f"{tool}: {error}")


TOOL = "the vendor's tool"
Listing = Callable[[], Iterable[Card | str]]
"""Asks the tool. An entry that names no card is returned as a message. ``ToolError`` if the tool fails."""
Naming = Callable[[Card], tuple[str, str] | None]
"""The device type of a card's family, and the card's name; None for a card that no family serves."""
Lanes = Callable[[], Mapping[tuple[int, int], int]]
"""The number of fabric links between two cards, by the tool's numbers. ``ToolError`` as above."""


class ListedCards:
    """The cards that the tool lists. A card keeps the number it was first seen with.

    Its device node has that number, and its name may; the tool renumbers the others when a card disappears.
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
        listed_by: str = TOOL,
    ) -> None:
        self._hardware = hardware
        self._paths = paths
        self._listing = listing
        self._naming = naming
        self._fabric = fabric
        self._lanes = lanes
        self._listed_by = listed_by
        self._known: dict[str, Device] = {}
        self._numbers: dict[str, int] = {}

    def look(self, _ask: Callable[[str | None], None]) -> Discovery:
        """All cards. The tool reports them together, so no single one is marked as being queried."""
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
                twice = Fault(reason="DuplicateUuid", message=f"{self._listed_by} lists {seen.device.uuid} twice")
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
        """The distance of each pair on the bus, and its fabric links."""
        lanes: Mapping[tuple[int, int], int] = {}
        problems = []
        try:
            lanes = self._lanes()
        except ToolError as error:
            problems.append(f"fabric links are unknown: {error}")

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
            self._known.clear()  # the tool renumbers cards that come back
            raise self._hardware.absent(self._paths)

    def _seen(self, card: Card, place: pci.PciDevice | None) -> Sighting | str:
        known = self._known.get(card.address)
        if known:
            card = replace(card, index=known.index)
        named = self._naming(card)
        if named is None:
            return f"card {card.index}, a {card.model}, belongs to no configured family"
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
        """Cards on the bus that the tool no longer lists, or never listed."""
        for address in bus.keys() - {card.address for card in cards}:
            message = f"{self._listed_by} does not list the card at {address}"
            known = self._known.get(address)
            if known and known.uuid not in sightings:
                sightings[known.uuid] = Sighting(device=known, fault=Fault(reason="NotListed", message=message))
            else:
                yield message

    def _facts(self) -> Mapping[str, str]:
        version = self._hardware.version(self._paths)
        return {"driver": version} if version else {}


def _unavailable(error: ToolError) -> DriverUnavailableError:
    """Without the tool, only the cards' addresses are known."""
    match error.__cause__:
        case subprocess.TimeoutExpired():
            return DriverUnavailableError(DriverReason.HUNG, error.message, hint="check the kernel's log (dmesg)")
        case OSError():
            hint = "install the vendor's tool where this daemon sees it, and set its path"
            return DriverUnavailableError(DriverReason.NO_LIBRARY, error.message, hint=hint)
        case _:
            return DriverUnavailableError(DriverReason.FAILED, error.message, hint="run it by hand")


Env = Callable[[Sequence[Device]], Mapping[str, str]]
"""The environment of a container with these devices, which are sorted by index."""


def comma_lists(**values: Callable[[Device], object]) -> Env:
    """An environment in which each variable lists one value per device, comma-separated."""

    def env(devices: Sequence[Device]) -> Mapping[str, str]:
        return {name: ",".join(str(value(device)) for device in devices) for name, value in values.items()}

    return env


def whole_cards(
    device_type: str,
    annotations: AnnotationKeys,
    *,
    uuids: tuple[str, str],
    same_numa: bool = False,
    booked: bool = True,
    decode: Callable[[str], tuple[DeviceInfo, ...]] = decode_json,
) -> Callable[[Any], tuple[Family, ...]]:
    """The only family of a vendor with whole cards, requested by ``settings.count``. See ``whole_devices``."""

    def families(settings: Any) -> tuple[Family, ...]:
        policy = whole_devices(device_type, settings.count, uuids=uuids, same_numa=same_numa, booked=booked)
        resources = Resources(device_type=device_type, count=settings.count)
        return (Family.registered(resources, annotations, policy, decode=decode),)

    return families


NodeHook = Callable[[Any, Family, NodeSide], NodeSide]
"""The vendor's changes to the usual node side of a family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The vendor's links between cards: their ``title`` in tables, and the ``lanes`` of each linked pair."""

    title: str
    lanes: Callable[[Any], Mapping[tuple[int, int], int]]


NO_FABRIC = Fabric(title="", lanes=lambda _settings: {})
CardLoads = Callable[[Any], Mapping[str, DeviceLoad]]
"""How much of each card is in use, by PCI address. ``ToolError`` if the tool fails."""


def listed_vendor(
    *,
    name: str,
    title: str,
    noun: str,
    settings: type[TreeSettings],
    families: Callable[[Any], tuple[Family, ...]],
    hardware: Hardware,
    list_cards: Callable[[Any, HostPaths], Iterable[Card | str]],
    device_nodes: Sequence[str],
    env: Env,
    control_nodes: Sequence[str] = (),
    optional_nodes: Sequence[str] = (),
    naming: Callable[[Any, HostPaths, Card], tuple[str, str] | None] | None = None,
    fabric: Fabric = NO_FABRIC,
    loads: CardLoads = lambda _settings: {},
    node: NodeHook = lambda _settings, _family, usual: usual,
    every: float = 5.0,
    listed_by: str = TOOL,
    machines: tuple[str, ...] = (),
) -> Vendor:
    """A vendor whose tool lists its cards.

    ``families`` need no node side: it is created here, and ``node`` may change it. ``list_cards`` asks the tool, at
    most once in ``every`` seconds while all cards are healthy. ``device_nodes`` are the names of a card's nodes below
    ``/dev``, with ``{}`` for its number; ``control_nodes`` are shared by all cards, and so are ``optional_nodes``, if
    the host has them. ``loads`` asks the tool how much of them is in use. ``listed_by`` is who lists the cards, for
    messages, if it is not a tool. ``naming`` is needed for several families, or if a card's name is not the UUID that
    the tool prints.
    """

    def node_side(chosen: Any, family: Family) -> NodeSide:
        usual = _node_side(
            chosen, device_nodes, env, control_nodes=control_nodes, optional_nodes=optional_nodes, title=title
        )
        return node(chosen, family, usual)

    def named(chosen: Any, _paths: HostPaths, card: Card) -> tuple[str, str]:
        served = families(chosen)
        if len(served) != 1:
            raise ValueError(f"{name} has {len(served)} families; naming has to say to which of them a card belongs")
        return served[0].resources.device_type, card.uuid

    return Vendor(
        name=name,
        title=title,
        noun=noun,
        settings=settings,
        families=serving(families, node_side),
        open=_driver(hardware, list_cards, naming or named, fabric, loads, every=every, listed_by=listed_by),
        present=hardware.present,
        machines=machines,
    )


def _driver(
    hardware: Hardware,
    list_cards: Callable[[Any, HostPaths], Iterable[Card | str]],
    naming: Callable[[Any, HostPaths, Card], tuple[str, str] | None],
    fabric: Fabric,
    loads: CardLoads,
    *,
    every: float,
    listed_by: str,
) -> Callable[[Any, HostPaths], Driver]:
    """Opens the driver of such cards. It asks nothing before the first discovery."""

    def opened(settings: Any, paths: HostPaths) -> Driver:
        roots = paths.rooted(settings)
        cards = ListedCards(
            hardware,
            roots,
            partial(list_cards, settings, roots),
            partial(naming, settings, roots),
            fabric=fabric.title,
            lanes=partial(fabric.lanes, settings),
            listed_by=listed_by,
        )
        cached_loads = Kept(partial(loads, settings), every=LOAD_EVERY_S)

        def load(devices: Sequence[Device]) -> Mapping[str, DeviceLoad]:
            found = cached_loads.answer("all")
            return {one.uuid: found[one.pci] for one in devices if one.pci in found}

        return PollingDriver(cards.look, cards.links, load=load, every=every)

    return opened


def _node_side(
    settings: Any,
    device_nodes: Sequence[str],
    env: Env,
    *,
    control_nodes: Sequence[str],
    optional_nodes: Sequence[str],
    title: str,
) -> NodeSide:
    """The node side of whole cards: their nodes, the shared nodes and driver files, and ``env``."""

    def device_edits(_settings: Any, device: Device, host: HostFiles) -> ContainerEdits:
        names = (node.format(device.minor) for node in device_nodes)
        return DeviceNodes(host=host, root=settings.dev_root).need(*names, whose=device.uuid)

    def shared_edits(_settings: Any, host: HostFiles) -> ContainerEdits:
        nodes = DeviceNodes(host=host, root=settings.dev_root)
        control = nodes.need(*control_nodes, whose=f"the driver of {title}").merged(nodes.take(*optional_nodes))
        return control.merged(mounted(host, getattr(settings, "driver_files", ())))

    def inject(assignment: Assignment, _host: HostFiles) -> Injection:
        devices = sorted((share.device for share in assignment.shares), key=lambda device: device.index)
        return Injection(edits=ContainerEdits(env=env(devices)))

    return NodeSide(register=_whole, inject=inject).delivered(settings, device_edits, shared_edits)


def _whole(device: Device, _legacy: bool) -> DeviceInfo:
    """A card that is allocated whole."""
    kind = device.family
    return DeviceInfo.of(device, kind, numa=max(0, device.numa or 0), vendor=kind)
