"""A snapshot as JSON, for other programs."""

from __future__ import annotations

import json
from typing import Any

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.render.names import device_name


def snapshot_json(snapshot: Snapshot) -> str:
    """Everything the snapshot holds but the vendor's own traits. Memory is in MiB, cores in percent."""
    links = snapshot.links
    document = {
        "ready": snapshot.ready,
        "reason": snapshot.reason,
        "message": snapshot.message,
        "facts": dict(sorted(snapshot.facts.items())),
        "devices": [_device(device) for device in snapshot.devices],
        "links": [
            {"a": a, "b": b, "score": link.score, "label": link.label, "level": link.level, "lanes": link.lanes}
            for (a, b), link in sorted(links.pairs.items())
        ],
        "asymmetric": [list(pair) for pair in links.asymmetric],
        "problems": list(links.problems),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def links_document(snapshot: Snapshot, noun: str) -> dict[str, Any]:
    """How the devices are linked, for other programs: the devices by name, and each pair once, by their names."""
    names = {device.uuid: device_name(device, noun) for device in snapshot.devices}
    return {
        "devices": [
            {
                "name": names[device.uuid],
                "uuid": device.uuid,
                "index": device.index,
                "model": device.model,
                "numa": device.numa,
                "pci": device.pci,
                "offered": device.health.offered,
            }
            for device in snapshot.devices
        ],
        "links": [
            {
                "a": names.get(a, a),
                "b": names.get(b, b),
                "label": link.label,
                "score": link.score,
                "level": link.level,
                "lanes": link.lanes,
                "asymmetric": (a, b) in snapshot.links.asymmetric,
            }
            for (a, b), link in sorted(snapshot.links.pairs.items())
        ],
        "problems": list(snapshot.links.problems),
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "uuid": device.uuid,
        "index": device.index,
        "family": device.family,
        "model": device.model,
        "memory": device.memory,
        "cores": device.cores,
        "minor": device.minor,
        "pci": device.pci,
        "numa": device.numa,
        "mode": device.mode,
        "health": str(device.health),
        "offered": device.health.offered,
        "reason": device.reason,
        "message": device.message,
    }
