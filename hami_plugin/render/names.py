"""What devices, pairs and labels are called in tables and pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hami_plugin.model.device import Device, Snapshot

_COUNTED = re.compile(r"([A-Z]+)([0-9]+)")

_LEVELS = {
    "INT": "the same board",
    "PIX": "one PCIe switch between them",
    "PXB": "several PCIe switches, no host bridge",
    "PHB": "one PCIe host bridge, the CPU's own",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
_NO_PATH = "-"


def device_name(device: Device, noun: str) -> str:
    """What people call a device: its vendor's noun and the index (``GPU0``, ``NPU3``)."""
    return f"{noun}{device.index}"


def numa_name(device: Device) -> str:
    return "-" if device.numa is None else str(device.numa)


def pair_label(snapshot: Snapshot, a: Device, b: Device) -> str:
    """The label of a pair, ``X`` for a device and itself, ``-`` where nothing was measured."""
    link = snapshot.links.between(a.uuid, b.uuid)
    return "X" if a is b else link.label if link else _NO_PATH


def differs(snapshot: Snapshot, a: Device, b: Device) -> bool:
    """Whether the two directions of the pair were measured differently."""
    return tuple(sorted((a.uuid, b.uuid))) in snapshot.links.asymmetric


def explained(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Each label among ``labels`` once, closest first, with what it means. ``NV4`` and ``NV18`` are one ``NV#``."""
    kinds = {match.group(1) for label in labels if (match := _COUNTED.fullmatch(label))}
    lines = [(f"{kind}#", "# fabric links") for kind in sorted(kinds)]
    lines += [(label, "a link of the fabric") for label in labels if label.isalpha() and label not in _LEVELS]
    lines += [(level, meaning) for level, meaning in _LEVELS.items() if level in labels]
    return [*lines, (_NO_PATH, "not measured")] if _NO_PATH in labels else lines
