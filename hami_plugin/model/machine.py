"""A machine as a profile describes it: devices, levels and links, in the vendor's enumeration order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDevice:
    """One device of a profile. ``memory`` is in MiB; ``extra`` holds the vendor's own keys."""

    index: int
    minor: int
    uuid: str
    model: str
    pci: str
    numa: int
    memory: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A profile (schema ``accel-topology/v1``). ``levels`` and ``lanes`` are square, in device order.

    ``levels`` holds INT, PIX, PXB, PHB, NODE, SYS and X on the diagonal; ``lanes`` the direct fabric links of a pair,
    or with ``via_switch`` the smaller link count of the two devices.
    """

    name: str
    title: str
    vendor: str
    devices: tuple[MachineDevice, ...]
    levels: tuple[tuple[str, ...], ...]
    lanes: tuple[tuple[int, ...], ...]
    fabric: str = ""
    via_switch: bool = False
    links_per_device: int = 0
    p2p_status: str = ""
    numa_nodes: Mapping[int, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


_DEVICE_KEYS = frozenset({"index", "minor", "uuid", "model", "pci_bus_id", "numa_node", "memory_mib"})
_MACHINE_KEYS = frozenset({"id", "title", "vendor", "devices", "p2p_level", "fabric", "host", "p2p_status"})


def machine(description: Mapping[str, Any]) -> Machine:
    """Read a parsed profile. ValueError names what is missing or does not fit together."""
    try:
        fabric = description.get("fabric") or {}
        devices = tuple(_device(item) for item in description["devices"])
        size = len(devices)
        if not devices:
            raise ValueError("devices: a machine has one or more")
        result = Machine(
            name=str(description["id"]),
            title=str(description.get("title", description["id"])),
            vendor=str(description["vendor"]),
            devices=devices,
            levels=_square(description.get("p2p_level") or _filled(size, "SYS", "X"), size, "p2p_level", str),
            lanes=_square(fabric.get("links") or _filled(size, 0, 0), size, "fabric.links", int),
            fabric=str(fabric.get("kind", "")),
            via_switch=bool(fabric.get("via_switch")),
            links_per_device=int(fabric.get("links_per_device") or 0),
            p2p_status=str(description.get("p2p_status") or ""),
            numa_nodes={int(n["id"]): str(n["cpus"]) for n in (description.get("host") or {}).get("numa_nodes") or ()},
            extra={key: value for key, value in description.items() if key not in _MACHINE_KEYS}
            | {f"fabric_{key}": value for key, value in fabric.items() if key != "links"},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a machine profile: {error!r}") from error
    return result


def _device(item: Mapping[str, Any]) -> MachineDevice:
    return MachineDevice(
        index=int(item["index"]),
        minor=int(item.get("minor", item["index"])),
        uuid=str(item.get("uuid", "")),
        model=str(item.get("model", "")),
        pci=str(item.get("pci_bus_id", "")),
        numa=int(item.get("numa_node", -1)),
        memory=int(item.get("memory_mib", 0)),
        extra={key: value for key, value in item.items() if key not in _DEVICE_KEYS},
    )


def _filled(size: int, value: Any, diagonal: Any) -> list[list[Any]]:
    return [[diagonal if i == j else value for j in range(size)] for i in range(size)]


def _square(rows: Sequence[Sequence[Any]], size: int, name: str, kind: type[Any]) -> tuple[tuple[Any, ...], ...]:
    if len(rows) != size or any(len(row) != size for row in rows):
        raise ValueError(f"{name} must be {size} rows of {size}, one for each device")
    return tuple(tuple(kind(cell) for cell in row) for row in rows)
