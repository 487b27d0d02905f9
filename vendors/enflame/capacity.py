"""The cards that Enflame's agent says a node has for partitions."""

from __future__ import annotations

from collections.abc import Mapping

from hami_plugin.errors import WireError
from hami_plugin.model.views import NodeView
from hami_plugin.protocol.grammar import from_json, object_of, objects, text_of
from hami_plugin.protocol.register import DeviceInfo
from vendors.enflame.profiles import MIB_PER_GB, number, size

DEVICE_TYPE = "Enflame"
CAPACITY = "enflame.com/gcu-drs-capacity"


def cards(node: NodeView) -> tuple[DeviceInfo, ...]:
    """The cards of Enflame's own node annotation, each with all profiles of the node."""
    text = node.annotations.get(CAPACITY, "")
    spec = {"drs": from_json(text, CAPACITY)} if text else {}
    listed = object_of(spec, "drs", CAPACITY) or {}
    items = objects(listed.get("devices"), f"{CAPACITY}.devices")
    named = object_of(listed, "profiles", CAPACITY) or {}
    profiles = {name: text_of(named, name, f"{CAPACITY}.profiles") for name in named}
    slices, memory = (max(sizes, default=0) for sizes in zip(*map(size, ["", *profiles]), strict=True))
    if items and slices <= 0:
        raise WireError(f"{CAPACITY} of node {node.name} has no readable profile", hint="one is called 3g.24gb")
    notes = {"profiles": profiles, "maxSlice": slices}
    return tuple(_card(node, item, place, memory or slices, notes) for place, item in enumerate(items))


def _card(
    node: NodeView, item: Mapping[str, object], place: int, memory: int, notes: Mapping[str, object]
) -> DeviceInfo:
    """``memory`` in GB. A card without a readable index is known by its place in the list."""
    where = f"{CAPACITY}.devices[{place}]"
    text, count = text_of(item, "index", where).strip(), number(item.get("capacity"))
    index = int(text) if text.isascii() and text.isdecimal() else place
    if count <= 0:
        raise WireError(f"{where}.capacity: {item.get('capacity')!r} is no number of slices above 0")
    minor = text_of(item, "minor", where).strip() or str(index)
    return DeviceInfo(
        id=f"{node.name}-enflame-drs-{index}",
        index=index,
        count=count,
        devmem=memory * MIB_PER_GB,
        devcore=100,
        type=DEVICE_TYPE,
        health=True,
        custom={"minor": minor, "index": str(index), **notes},
    )
