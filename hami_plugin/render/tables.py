"""A snapshot as text: the devices one a line, and the matrix of how they are linked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hami_plugin.model.device import Device, Snapshot
from hami_plugin.render.names import device_name, differs, explained, numa_name, pair_label

_HEADER = ("INDEX", "UUID", "MODEL", "MEMORY", "NUMA", "PCI", "HEALTH")


def device_table(snapshot: Snapshot) -> str:
    """One line a device: index, UUID, model, memory, NUMA node, PCI address, health and the reason when it is not well.

    A snapshot that is not ready says why, above what was seen last.
    """
    state = [] if snapshot.ready else [f"not ready: {_because(snapshot.reason, snapshot.message)}"]
    if not snapshot.devices:
        return "\n".join([*state, "no devices"])
    rows = [_HEADER, *(_row(device) for device in snapshot.devices)]
    return "\n".join([*state, *aligned(rows, right=(0, 3, 4))])


def topology_matrix(snapshot: Snapshot) -> str:
    """Labels of all pairs with NUMA nodes and a legend, then the pair scores.

    Pairs whose two directions were measured differently are marked ``*`` in both matrices and named below.
    """
    if not snapshot.devices:
        return "no devices"
    devices, links = snapshot.devices, snapshot.links
    labels = sorted({pair_label(snapshot, a, b) for a in devices for b in devices if a is not b})
    odd = [f"{_pair(snapshot, a, b)}: the directions differ, the worse one counts" for a, b in links.asymmetric]
    legend = [("X", "the device itself"), *explained(labels)]
    blocks = [
        _matrix(snapshot, lambda a, b: pair_label(snapshot, a, b), numa=True),
        [f"  {label:<5} {meaning}" for label, meaning in legend],
        ["Pair scores", *_matrix(snapshot, lambda a, b: "X" if a is b else str(links.score(a.uuid, b.uuid)))],
        [f"* {line}" for line in odd] + [f"! {problem}" for problem in links.problems],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _row(device: Device) -> tuple[str, ...]:
    health = str(device.health)
    why = _because(device.reason, device.message)
    return (
        str(device.index),
        device.uuid,
        device.model,
        f"{device.memory} MiB",
        numa_name(device),
        device.pci or "-",
        f"{health} ({why})" if why else health,
    )


def _because(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message) if part)


def _matrix(snapshot: Snapshot, cell: Callable[[Device, Device], str], *, numa: bool = False) -> list[str]:
    devices = snapshot.devices
    names = [device_name(device) for device in devices]
    rows = [["", *names, *(["NUMA"] if numa else [])]]
    for name, a in zip(names, devices, strict=True):
        cells = [cell(a, b) + ("*" if differs(snapshot, a, b) else "") for b in devices]
        rows.append([name, *cells, *([numa_name(a)] if numa else [])])
    return aligned(rows, right=range(1, len(rows[0])))


def _pair(snapshot: Snapshot, a: str, b: str) -> str:
    devices = [snapshot.device(uuid) for uuid in (a, b)]
    return " and ".join(device_name(device) if device else uuid for device, uuid in zip(devices, (a, b), strict=True))


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> list[str]:
    """Rows of equal length as lines, each column as wide as its widest cell; ``right`` columns end together."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
