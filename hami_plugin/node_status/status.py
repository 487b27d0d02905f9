"""The whole state of a node as one document of JSON's types, for the status page and whoever else looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hami_plugin.model.device import Device, Links
from hami_plugin.node_status.registration import FamilySource

MAX_PAIRS = 600
"""Links in one document: those of 35 devices, each with each."""


def links_of(sources: Iterable[FamilySource]) -> list[dict[str, Any]]:
    """The links between devices, one entry for each vendor that has any."""
    found: dict[str, tuple[Links, dict[str, Device]]] = {}
    for source in sources:
        snapshot = source.snapshot.value
        known = found.setdefault(source.vendor, (snapshot.links, {}))[1]
        known.update({device.uuid: device for device in snapshot.devices})
    return [
        {"vendor": vendor, "pairs": pairs[:MAX_PAIRS], "more": max(0, len(pairs) - MAX_PAIRS)}
        for vendor, (links, devices) in found.items()
        if (pairs := _pairs(links, devices))
    ]


def _pairs(links: Links, devices: Mapping[str, Device]) -> list[dict[str, Any]]:
    return [
        {"a": devices[a].number, "b": devices[b].number, "label": link.label, "score": link.score}
        for (a, b), link in sorted(links.pairs.items(), key=lambda pair: -pair[1].score)
        if a in devices and b in devices
    ]


def status_document(
    usage: Mapping[str, Any],
    partitions: Mapping[str, Any],
    *,
    links: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    messages: Mapping[str, str],
    nouns: Mapping[str, str],
) -> dict[str, Any]:
    """``messages`` say what is wrong with devices, by UUID; ``nouns`` name devices of a vendor."""
    devices = [
        {**device, "message": messages.get(device["uuid"], ""), "noun": nouns.get(device["vendor"], "device")}
        for device in usage["devices"]
    ]
    return {
        "node": usage["node"],
        "devices": devices,
        "links": list(links),
        "partitions": partitions["partitions"],
        "placeable": partitions["placeable"],
        "refused": [event for event in events if event["warning"] and event["kind"] == "Pod"],
        "events": list(events),
    }


def empty_status(node: str) -> dict[str, Any]:
    """Of a process that does not have the node."""
    return {"node": node, "devices": [], "links": [], "partitions": [], "placeable": [], "refused": [], "events": []}
