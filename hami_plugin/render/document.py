"""A snapshot as JSON, for other programs."""

from __future__ import annotations

import json
from typing import Any

from hami_plugin.model.device import Device, Snapshot


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
