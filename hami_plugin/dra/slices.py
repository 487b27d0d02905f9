"""ResourceSlices of one driver on one node: what they say, and which writes make the API server say so.

A device is shared where the family's limits are enforced on this node; it then has capacities that claims consume.
Any other is given to one claim whole. What is unwell is tainted, or left out: no claim is given it, and claims that
have it stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from typing import Any

from hami_plugin.model.device import Device, Links, Snapshot
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import Json, exact
from hami_plugin.protocol.nodes import refuses_key
from hami_plugin.scheduler.engine.topology import best_linked
from hami_plugin.sdk import Family

API_VERSION = "resource.k8s.io/v1"
DOMAIN = "hami.io"
MEMORY, CORES, SLOTS = "memory", "cores", "slots"
MAX_DEVICES = 64
"""In a slice. 128 are allowed, but not of devices that have taints or counters."""
MAX_COUNTER_SETS = 8
"""In a slice, which has nothing else then."""
MAX_DEVICES_TOGETHER, MAX_COUNTERS_TOGETHER = 128, 32
"""In a slice that has counters and the devices that consume them, as Kubernetes wants it before 1.35."""
MAX_LABEL, MAX_TEXT = 63, 64
MAX_CORES = 100
"""Percent of one card, beyond which no container may ask, however many cores are offered of it."""
_DIGITS = 10
_MIB = 1 << 20
_VALUE = re.compile(r"[^0-9A-Za-z._-]+")
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_PCI = re.compile(r"(?:0000)?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


def driver_name(vendor: str) -> str:
    """What claims and classes call a vendor's driver, for good."""
    return f"{vendor}.{DOMAIN}"


def device_name(uuid: str) -> str:
    """A device's name in its pool: its UUID as a DNS label, so that another card is another device."""
    name = re.sub(r"[^a-z0-9]+", "-", uuid.lower()).strip("-")
    if name == uuid.lower() and _LABEL.fullmatch(name):
        return name
    digits = hashlib.sha256(uuid.encode()).hexdigest()[:_DIGITS]
    return f"{name[: MAX_LABEL - _DIGITS - 1].rstrip('-')}-{digits}".lstrip("-")


class Taints(StrEnum):
    """What an unwell device is in the slices: left out, or tainted; and whether a grave fault evicts its pods."""

    OFF = "off"
    NO_SCHEDULE = "no-schedule"
    NO_EXECUTE = "no-execute"


FAULT = "fault"
"""The part of a taint's key after the driver's name. Its value is the fault's reason."""
GROUP_SIZES = (2, 4, 8)
"""Of devices that are linked directly, each with each."""
MAX_LINKED = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A device as claims see it. ``memory`` in MiB, ``cores`` in percent of a card, both 0 where there is no such
    capacity. One that is not ``shared`` has one slot.

    ``whole`` is the family's grant of all of it, ``every_core`` how the family counts 100 percent of its cores.
    ``groups`` are the linked groups that it is in, by their size. ``cut``: its shares are partitions, of which each has
    cores of its own, and memory in multiples of ``unit``. ``lessened``: others have made some of it already.
    """

    name: str
    device: Device
    memory: int = 0
    cores: int = 0
    slots: int = 1
    whole: Grant
    every_core: int = MAX_CORES
    groups: Mapping[int, int] = field(default_factory=dict)
    cut: bool = False
    unit: int = 1
    lessened: bool = False

    @property
    def shared(self) -> bool:
        return self.slots > 1

    def grant(self, memory: int, cores: int, slots: int) -> Grant:
        """The family's grant of a part, as consumed; ``cores`` of 0 are no limit.

        Rounded down, as the scheduler adds up percents: parts of all of a device are no more of its cores than it has.
        """
        if not self.shared:
            return self.whole
        own = max(1, cores * self.every_core // MAX_CORES) if cores else 0
        return Grant(
            uuid=self.device.uuid, device_type=self.whole.device_type, memory=memory, cores=own, slots=max(1, slots)
        )


def offered_devices(family: Family, snapshot: Snapshot) -> tuple[Offered, ...]:
    """All devices of a family, the unwell too, in their order.

    None where they are lent in pieces that no claim can ask for: in a number of slices, or in percent alone.
    """
    resources = family.resources
    in_pieces = resources.sized_by_count or (resources.memory_in_percent and not family.node.unlimited)
    if in_pieces and not family.node.partitions:
        return ()
    shared = _shares(family, snapshot)
    return tuple(_offered(family, device, shared=shared) for device in snapshot.devices)


def offered_with_links(family: Family, snapshot: Snapshot) -> tuple[Offered, ...]:
    """As ``offered_devices``, with the linked groups: for slices. Claims that are made ready ask for none."""
    cards = [device.uuid for device in snapshot.devices if not device.place]
    groups = link_groups(cards, snapshot.links) if snapshot.links.pairs else {}
    return tuple(replace(one, groups=groups.get(one.device.uuid, {})) for one in offered_devices(family, snapshot))


def limits_shares(family: Family) -> bool:
    """Whether containers can be held to parts of the family's devices, which a claim can say in MiB and percent."""
    node, resources = family.node, family.resources
    if node.whole_only or node.unlimited or node.partitions or not (resources.memory or resources.cores):
        return False
    return not (resources.units or resources.cores_are_bits or resources.memory_in_percent)


def _shares(family: Family, snapshot: Snapshot) -> bool:
    """Whether containers are held to parts of these devices, on this node."""
    if family.node.partitions:
        return family.node.partitions.sized is not None
    if not limits_shares(family):
        return False
    return not family.node.announce(snapshot, frozenset()).get(refuses_key(family.resources.device_type))


def _offered(family: Family, device: Device, *, shared: bool) -> Offered:
    info, every_core = family.node.register(device, False), family.node.every_core(device)
    name = device_name(device.uuid)
    whole = Grant(uuid=device.uuid, device_type=family.resources.device_type, memory=info.devmem, cores=every_core)
    if not shared or device.place or info.count <= 1 or info.devmem <= 1:
        return Offered(name=name, device=device, memory=device.memory, whole=whole, every_core=every_core)
    cores = info.devcore * MAX_CORES // max(1, every_core) if family.resources.cores else 0
    sized = family.node.partitions.sized if family.node.partitions else None
    return Offered(
        name=name,
        device=device,
        memory=info.devmem if family.resources.memory else 0,
        cores=cores if cores > 1 else 0,
        slots=info.count,
        whole=whole,
        every_core=every_core,
        cut=sized is not None,
        unit=sized.unit if sized else 1,
    )


def device_entry(one: Offered) -> dict[str, Any]:
    """The device in a slice."""
    device = one.device
    attributes: dict[str, Any] = {"type": {"string": device.family[:MAX_TEXT]}, "index": {"int": device.index}}
    for name, text in (("uuid", device.uuid), ("productName", device.model)):
        if text.isascii() and text.isprintable() and 0 < len(text) <= MAX_TEXT:
            attributes[name] = {"string": text}
    for size, number in one.groups.items():
        attributes[f"linkGroup{size}"] = {"int": number}
    attributes |= location_attributes(device)
    if not one.shared:
        capacity = {MEMORY: {"value": f"{one.memory}Mi"}} if one.memory else {}
        return {"name": one.name, "attributes": attributes, **({"capacity": capacity} if capacity else {})}
    capacities = {}
    if one.memory:
        capacities[MEMORY] = _capacity(one.memory, "Mi", default=one.memory, least=one.unit, step=one.unit)
    if one.cores:
        most, all_of = min(one.cores, MAX_CORES), one.cores if one.cut else 0
        capacities[CORES] = _capacity(one.cores, "", default=all_of, least=1 if one.cut else 0, most=most)
    capacities[SLOTS] = _capacity(one.slots, "", default=1, least=1)
    return {"name": one.name, "attributes": attributes, "allowMultipleAllocations": True, "capacity": capacities}


def location_attributes(device: Device) -> dict[str, Any]:
    """Where it is, in attributes that all drivers have."""
    found: dict[str, Any] = {}
    if device.numa is not None and device.numa >= 0:
        found["resource.kubernetes.io/numaNode"] = {"int": device.numa}
    if address := _PCI.fullmatch(device.pci.lower()):
        found["resource.kubernetes.io/pciBusID"] = {"string": address[1]}
    return found


def _capacity(
    value: int, unit: str, *, default: int, least: int, most: int | None = None, step: int = 1
) -> dict[str, Any]:
    bounds = {"min": f"{least}{unit}", "max": f"{value if most is None else most}{unit}", "step": f"{step}{unit}"}
    return {"value": f"{value}{unit}", "requestPolicy": {"default": f"{default}{unit}", "validRange": bounds}}


def devices(
    all_offered: Iterable[Offered],
    withheld: AbstractSet[str] = frozenset(),
    *,
    driver: str = "",
    taints: Taints = Taints.OFF,
) -> list[dict[str, Any]]:
    """What is published of the devices, in this order, but for those whose UUIDs are ``withheld``.

    An unhealthy one is tainted, or left out. The scheduler gives out the first that fits.
    """
    published = []
    for one in all_offered:
        tainted = taints_of(one.device, driver, taints)
        if one.device.uuid not in withheld and (one.device.health.offered or tainted):
            published.append({**device_entry(one), **tainted})
    return published


def taints_of(device: Device, driver: str, taints: Taints) -> dict[str, Any]:
    """What an unhealthy device has in a slice; nothing of one that is healthy, or is left out."""
    if device.health.offered or taints is Taints.OFF:
        return {}
    effect = "NoExecute" if taints is Taints.NO_EXECUTE and device.grave else "NoSchedule"
    value = _VALUE.sub("-", device.reason)[:MAX_LABEL].strip("-_.")
    return {"taints": [{"key": f"{driver}/{FAULT}", "value": value, "effect": effect}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContents:
    """What a driver publishes of a node: devices in the order of their preference, and the counters they consume."""

    devices: Sequence[Json] = ()
    counters: Sequence[Json] = ()

    def with_part(self, other: PoolContents) -> PoolContents:
        return PoolContents(devices=[*self.devices, *other.devices], counters=[*self.counters, *other.counters])


def link_groups(uuids: Sequence[str], links: Links) -> dict[str, dict[int, int]]:
    """The linked groups of each device, by their size, so that a claim's ``matchAttribute`` finds devices of one.

    Groups of a size have no device in common, and hold only devices that are linked directly, each with each; the best
    are taken first.
    """
    found: dict[str, dict[int, int]] = {uuid: {} for uuid in uuids}
    for size in GROUP_SIZES if len(uuids) <= MAX_LINKED else ():
        left, number = list(uuids), 0
        while len(left) >= size:
            group = best_linked(left, size, links)
            if not all((link := links.between(a, b)) and link.lanes for a, b in combinations(group, 2)):
                break
            for uuid in group:
                found[uuid][size] = number
                left.remove(uuid)
            number += 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Whose slices they are: one pool for each driver and node. ``node_uid`` is the owner's."""

    driver: str
    node: str
    node_uid: str

    def name(self, number: int) -> str:
        """Of the slice that is the pool's ``number``-th, by which the scheduler orders them."""
        return f"{self.driver}-{self.node}-{number:05x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSlice:
    """A slice as the API server has it."""

    name: str
    uid: str
    version: str
    document: Json = field(default_factory=dict)

    @property
    def spec(self) -> Json:
        spec = self.document.get("spec")
        return spec if isinstance(spec, Mapping) else {}

    @property
    def driver(self) -> str:
        return str(self.spec.get("driver", ""))

    @property
    def generation(self) -> int:
        pool = self.spec.get("pool")
        number = pool.get("generation") if isinstance(pool, Mapping) else 0
        return number if isinstance(number, int) else 0


def slice_view(document: Json) -> PublishedSlice:
    """Read a ResourceSlice. Nothing in it raises."""
    meta = document.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    return PublishedSlice(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        version=str(meta.get("resourceVersion", "")),
        document=document,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """In this order: too many slices of one generation would be as useless as too few."""

    deletes: tuple[PublishedSlice, ...] = ()
    updates: tuple[dict[str, Any], ...] = ()
    creates: tuple[dict[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)


def writes(
    place: Pool,
    wanted: PoolContents,
    there: Mapping[str, PublishedSlice],
    same: Callable[[Json, Json], bool] | None = None,
    *,
    together: bool = False,
) -> Writes:
    """What makes ``there``, by name, the slices of what is ``wanted``; nothing where they are already.

    One slice may change within its generation. Readers take a pool of several for whole once all have the newest.
    Counters are in slices of their own, and the first: a server that keeps none is found out before it has a device
    that consumes them. ``together``: they are with these devices, if ``counter_set_problem`` says nothing against it.
    ``same`` may take more documents for equal than are.
    """
    equal = same or same_document
    chunks = list(_together(wanted) if together else _apart(wanted))
    now = max((one.generation for one in there.values()), default=0)

    def documents(generation: int) -> dict[str, dict[str, Any]]:
        return {place.name(n): _document(place, n, chunk, generation, len(chunks)) for n, chunk in enumerate(chunks)}

    listed = documents(max(1, now))
    changed = [name for name, one in listed.items() if name in there and not equal(one, there[name].document)]
    if listed.keys() != there.keys() or len(changed) > 1:
        listed = documents(now + 1)
        changed = [name for name in listed if name in there]
    return Writes(
        deletes=tuple(one for name, one in there.items() if name not in listed),
        updates=tuple(_over(listed[name], there[name]) for name in changed),
        creates=tuple(one for name, one in listed.items() if name not in there),
    )


def _apart(wanted: PoolContents) -> Iterator[dict[str, list[dict[str, Any]]]]:
    yield from ({"sharedCounters": some} for some in _chunks(wanted.counters, MAX_COUNTER_SETS) if some)
    yield from ({"devices": some} for some in _chunks(wanted.devices, MAX_DEVICES))


def _together(wanted: PoolContents) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Each counter set with all devices that consume it, then those that consume none. The order of the devices holds
    within a slice.
    """
    alone = [one for one in wanted.devices if not one.get("consumesCounters")]
    counters, devices = list[dict[str, Any]](), list[dict[str, Any]]()
    for one in wanted.counters:
        own = _consumers(wanted, one)
        every = sum(len(each["counters"]) for each in (*counters, one))
        if counters and (every > MAX_COUNTERS_TOGETHER or len(devices) + len(own) > MAX_DEVICES_TOGETHER):
            yield {"sharedCounters": counters, "devices": devices}
            counters, devices = [], []
        counters.append(dict(one))
        devices += own
    if counters:
        yield {"sharedCounters": counters, "devices": devices}
    if alone or not counters:
        yield from ({"devices": some} for some in _chunks(alone, MAX_DEVICES))


def _consumers(wanted: PoolContents, counters: Json) -> list[dict[str, Any]]:
    """The devices that consume a counter set before any other."""
    return [
        dict(one)
        for one in wanted.devices
        if one.get("consumesCounters") and one["consumesCounters"][0]["counterSet"] == counters["name"]
    ]


def counter_set_problem(wanted: PoolContents) -> str:
    """Why no slice can have a counter set and all devices that consume it; empty where each can."""
    for one in wanted.counters:
        count, own = len(one["counters"]), len(_consumers(wanted, one))
        if count > MAX_COUNTERS_TOGETHER or own > MAX_DEVICES_TOGETHER:
            return f"{count} counters of {own} devices do not fit into one slice"
    if any(len(one.get("consumesCounters") or ()) > 1 for one in wanted.devices):
        return "a device consumes counters of two slices"
    return ""


def _chunks(every: Sequence[Json], most: int) -> Iterator[list[dict[str, Any]]]:
    """At least one, which may be empty: a slice without devices says that the driver is there."""
    for at in range(0, max(1, len(every)), most):
        yield [dict(one) for one in every[at : at + most]]


def _document(
    place: Pool, number: int, chunk: Mapping[str, Sequence[Json]], generation: int, count: int
) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": place.node, "uid": place.node_uid, "controller": True}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": place.name(number), "ownerReferences": [owner]},
        "spec": {
            "driver": place.driver,
            "nodeName": place.node,
            "pool": {"name": place.node, "generation": generation, "resourceSliceCount": count},
            **chunk,
        },
    }


def _over(document: dict[str, Any], there: PublishedSlice) -> dict[str, Any]:
    """The document in place of the one that is there, if nobody has changed it since."""
    meta = {**document["metadata"], "uid": there.uid, "resourceVersion": there.version}
    added = {
        (device.get("name"), _taint(taint)): taint["timeAdded"]
        for device in there.spec.get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }
    found = []
    for device in document["spec"].get("devices") or ():
        taints = [
            {**taint, "timeAdded": added[key]} if (key := (device["name"], _taint(taint))) in added else taint
            for taint in device.get("taints") or ()
        ]
        found.append({**device, "taints": taints} if taints else device)
    devices = {"devices": found} if found else {}
    return {**document, "metadata": meta, "spec": {**document["spec"], **devices}}


def _taint(taint: Json) -> tuple[object, ...]:
    """What a taint says. When it was added is the API server's to note, and stays while it says the same."""
    return taint.get("key"), taint.get("value") or "", taint.get("effect")


def same_document(one: Json, other: Json) -> bool:
    """Whether two documents say the same. The API server writes quantities in a way of its own."""
    return bool(normalize(one) == normalize(other))


def normalize(document: Json) -> Any:
    """What a slice says, with quantities as numbers."""
    meta, spec = document.get("metadata", {}), document.get("spec", {})
    owners = meta.get("ownerReferences", [])
    found = [_plain(device) for device in spec.get("devices") or ()]
    return {
        "owners": [(owner.get("kind"), owner.get("uid")) for owner in owners],
        "spec": {
            **{key: value for key, value in spec.items() if key not in ("devices", "sharedCounters")},
            "devices": found,
            "sharedCounters": numbers(spec.get("sharedCounters") or []),
        },
    }


def _plain(device: Json) -> dict[str, Any]:
    capacity = {name: numbers(value) for name, value in (device.get("capacity") or {}).items()}
    plain = {key: value for key, value in device.items() if value not in (None, {}, [])}
    if "taints" in plain:
        plain["taints"] = [_taint(taint) for taint in plain["taints"]]
    if "consumesCounters" in plain:
        plain["consumesCounters"] = numbers(plain["consumesCounters"])
    return {**plain, "capacity": capacity}


def numbers(value: Any) -> Any:
    """The value with each quantity in it as a number; what is none stays as it is."""
    if isinstance(value, Mapping):
        return {key: numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [numbers(one) for one in value]
    try:
        return exact(value)
    except ValueError:
        return value


def consumed_mebibytes(text: object) -> int:
    """A quantity of bytes in MiB, rounded up. ``ValueError`` for what is none."""
    amount = exact(text)
    if amount is None or amount < 0:
        raise ValueError(f"{str(text)[:64]!r} is no amount of memory")
    return -(-amount // _MIB)
