"""The cluster's state as the scheduler knows it, for its status page: made when somebody looks, bounded, no secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hami_plugin.node_status.events import events_of
from hami_plugin.scheduler.engine.devices import DeviceState
from hami_plugin.scheduler.engine.node_info import subtract_held
from hami_plugin.scheduler.engine.pod_info import PodInfo
from hami_plugin.scheduler.extender.extender import Extender
from hami_plugin.sdk import Family

MAX_NODES = 200
"""Nodes that are shown and summed up, by name: what more of them took would hold up decisions."""
MAX_HOLDERS = 16
"""Pods that are named at one device."""


def cluster_status(extender: Extender, *, name: str) -> dict[str, Any]:
    """Nodes with their devices and who holds them, their sums by device type, what was refused, and the last Events."""
    cache = extender.cache
    families = {family.resources.device_type: family for family in cache.families}
    nodes: list[Mapping[str, Any]] = []
    sums: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    more = 0
    for node, info in sorted(cache.nodes.node_infos.items()):
        if not info.pools:
            continue
        if len(nodes) >= MAX_NODES:
            more += 1
            continue
        entries = cache.pods.index.on(node)
        full = subtract_held(info, cache.families, [entry.held for entry in entries])
        devices = [(families[device_type], state) for device_type, pool in full.pools.items() for state in pool.states]
        for family, state in devices:
            _count(sums[family.resources.device_type], state)
        holders = _holders(entries)
        shown = [
            _device(family, state, holders.get((family.resources.device_type, state.uuid), ()))
            for family, state in devices
        ]
        nodes.append({"name": node, "devices": shown})
    events = events_of(extender.recent)
    return {
        "scheduler": name,
        "nodes": nodes,
        "more": more,
        "sums": {device_type: dict(amounts) for device_type, amounts in sorted(sums.items())},
        "refused": [event for event in events if event["warning"]],
        "events": events,
    }


def _count(amounts: defaultdict[str, int], state: DeviceState) -> None:
    amounts["devices"] += 1
    amounts["healthy"] += state.info.health
    amounts["shares"] += state.info.count
    amounts["sharesTaken"] += state.slots
    amounts["memory"] += state.info.devmem
    amounts["memoryTaken"] += state.memory


def _holders(entries: Sequence[PodInfo]) -> Mapping[tuple[str, str], Sequence[str]]:
    """The pods of each device, by device type and UUID."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        for key in dict.fromkeys(_devices_of(entry)):
            found[key].append(entry.pod.key)
    return found


def _devices_of(entry: PodInfo) -> Iterator[tuple[str, str]]:
    for device_type, held in entry.held.items():
        for piece in held.pieces:
            for grant in piece:
                yield device_type, grant.uuid


def _device(family: Family, state: DeviceState, holders: Sequence[str]) -> Mapping[str, Any]:
    return {
        "deviceType": family.resources.device_type,
        "uuid": state.uuid,
        "index": state.index,
        "model": state.info.type,
        "healthy": state.info.health,
        "shares": state.info.count,
        "sharesTaken": state.slots,
        "memory": state.info.devmem,
        "memoryTaken": state.memory,
        "unit": "%" if family.resources.memory_in_percent else "MiB",
        "cores": family.resources.core_count(state.info.devcore),
        "coresTaken": family.resources.core_count(state.cores),
        "holders": sorted(holders)[:MAX_HOLDERS],
        "moreHolders": max(0, len(holders) - MAX_HOLDERS),
    }
