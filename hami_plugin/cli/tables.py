"""A snapshot as text: a table of the devices, a matrix of their links, and all of it as JSON for other programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

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
    return f"{noun}{device.number}"


def numa_name(device: Device) -> str:
    return "-" if device.numa is None else str(device.numa)


def pair_label(snapshot: Snapshot, a: Device, b: Device) -> str:
    """The label of a pair: ``X`` for a device with itself, ``-`` if nothing was measured."""
    link = snapshot.links.between(a.uuid, b.uuid)
    return "X" if a is b else link.label if link else _NO_PATH


def differs(snapshot: Snapshot, a: Device, b: Device) -> bool:
    """Whether the two directions of the pair were measured differently."""
    return tuple(sorted((a.uuid, b.uuid))) in snapshot.links.asymmetric


def explained(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Each distinct label with its meaning, closest first. ``NV4`` and ``NV18`` are one entry, ``NV#``."""
    kinds = {match.group(1) for label in labels if (match := _COUNTED.fullmatch(label))}
    lines = [(f"{kind}#", "# fabric links") for kind in sorted(kinds)]
    lines += [(label, "a link of the fabric") for label in labels if label.isalpha() and label not in _LEVELS]
    lines += [(level, meaning) for level, meaning in _LEVELS.items() if level in labels]
    return [*lines, (_NO_PATH, "not measured")] if _NO_PATH in labels else lines


_HEADER = ("INDEX", "UUID", "MODEL", "MEMORY", "NUMA", "PCI", "HEALTH")
DEVICE_RIGHT = (0, 3, 4)
"""The right-aligned columns of the device table."""


def device_table(snapshot: Snapshot) -> str:
    """One line per device: index, UUID, model, memory, NUMA node, PCI address, health and the reason if unhealthy.

    For a snapshot that is not ready, the reason precedes what was seen last.
    """
    state = [] if snapshot.ready else [not_ready(snapshot)]
    if not snapshot.devices:
        return "\n".join([*state, "no devices"])
    return "\n".join([*state, *aligned(device_rows(snapshot), right=DEVICE_RIGHT)])


def not_ready(snapshot: Snapshot) -> str:
    """Why a snapshot is not ready."""
    return f"not ready: {_because(snapshot.reason, snapshot.message)}"


def device_rows(snapshot: Snapshot) -> list[Sequence[str]]:
    """The device table as cells, header first."""
    return [_HEADER, *(_row(device) for device in snapshot.devices)]


def topology_matrix(snapshot: Snapshot, noun: str, width: int | None = None) -> str:
    """Labels of all pairs with NUMA nodes and a legend, then the pair scores. Devices are named by ``noun``.

    Pairs whose two directions were measured differently are marked ``*`` in both matrices and named below. A matrix
    wider than ``width`` continues below, with the row names repeated.
    """
    if not snapshot.devices:
        return "no devices"
    devices, links = snapshot.devices, snapshot.links
    labels = sorted({pair_label(snapshot, a, b) for a in devices for b in devices if a is not b})
    odd = [f"{_pair(snapshot, a, b, noun)}: the directions differ, the worse one counts" for a, b in links.asymmetric]
    legend = [("X", "the device itself"), *explained(labels)]

    def score(a: Device, b: Device) -> str:
        return "X" if a is b else str(links.score(a.uuid, b.uuid))

    blocks = [
        *_matrix(snapshot, noun, lambda a, b: pair_label(snapshot, a, b), width, numa=True),
        [f"  {label:<5} {meaning}" for label, meaning in legend],
        *_titled("Pair scores", _matrix(snapshot, noun, score, width)),
        [f"* {line}" for line in odd] + [f"! {problem}" for problem in links.problems],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _row(device: Device) -> tuple[str, ...]:
    health = str(device.health)
    why = _because(device.reason, device.message)
    return (
        device.number,
        device.uuid,
        device.model,
        f"{device.memory} MiB",
        numa_name(device),
        device.pci or "-",
        f"{health} ({why})" if why else health,
    )


def _because(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message) if part)


def _matrix(
    snapshot: Snapshot, noun: str, cell: Callable[[Device, Device], str], width: int | None, *, numa: bool = False
) -> list[list[str]]:
    """One block of lines, or several if it exceeds ``width``."""
    devices = snapshot.devices
    names = [device_name(device, noun) for device in devices]
    rows = [["", *names, *(["NUMA"] if numa else [])]]
    for name, a in zip(names, devices, strict=True):
        cells = [cell(a, b) + ("*" if differs(snapshot, a, b) else "") for b in devices]
        rows.append([name, *cells, *([numa_name(a)] if numa else [])])
    parts = _folded(rows, width)
    return [aligned(part, right=range(1, len(part[0]))) for part in parts]


def _folded(rows: Sequence[Sequence[str]], width: int | None) -> list[list[Sequence[str]]]:
    """The columns in parts that fit into ``width`` beside the first one; each part has at least one column."""
    sizes = [max(len(row[column]) for row in rows) + 2 for column in range(len(rows[0]))]
    parts: list[list[int]] = [[]]
    for column, size in enumerate(sizes[1:], 1):
        if width and parts[-1] and sizes[0] - 2 + sum(sizes[c] for c in parts[-1]) + size > width:
            parts.append([])
        parts[-1].append(column)
    return [[[row[0], *(row[column] for column in part)] for row in rows] for part in parts]


def _titled(title: str, blocks: Sequence[Sequence[str]]) -> list[list[str]]:
    first, *others = blocks
    return [[title, *first], *map(list, others)]


def _pair(snapshot: Snapshot, a: str, b: str, noun: str) -> str:
    known = ((uuid, snapshot.device(uuid)) for uuid in (a, b))
    return " and ".join(device_name(device, noun) if device else uuid for uuid, device in known)


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> list[str]:
    """Rows of equal length as lines, each column as wide as its widest cell; ``right`` columns are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def snapshot_json(snapshot: Snapshot) -> str:
    """All of the snapshot except the vendors' traits. Memory is in MiB, cores in percent."""
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
    """The links for other programs: the devices by name, and each pair once, by their names."""
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
        "place": device.place,
        "part": device.part,
        "grave": device.grave,
    }
