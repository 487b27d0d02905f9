"""Which NVLink port of a device leads where: from the link counts of a profile to ports, as NVML shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from hami_plugin.model.machine import Machine

_SWITCH_PCI_IDS = {3: 0x1AF110DE, 4: 0x22A310DE}
"""By NVLink generation, where known; 0 otherwise."""


class Remote(IntEnum):
    """What NVML says is at the other end."""

    GPU = 0
    SWITCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One wired port. ``device`` is the peer's position, None for a switch; ``pci`` "" for one that nobody can see.

    ``last`` marks one port for each peer, or one for all switches.
    """

    number: int
    remote: Remote
    device: int | None = None
    pci: str = ""
    pci_device_id: int = 0
    last: bool = False


def ports(machine: Machine) -> tuple[tuple[Port, ...], ...]:
    """The wired ports of every device, in device order. Ports that lead nowhere are left out."""
    if machine.via_switch:
        return tuple(_to_switches(machine, index) for index in range(len(machine.devices)))
    return _to_peers(machine)


def port_count(machine: Machine, index: int) -> int:
    """How many ports the device has, wired or not."""
    lanes = machine.lanes[index]
    return max(machine.links_per_device, max(lanes, default=0) if machine.via_switch else sum(lanes))


def _to_peers(machine: Machine) -> tuple[tuple[Port, ...], ...]:
    made: list[list[Port]] = [[] for _ in machine.devices]
    for a, row in enumerate(machine.lanes):
        for b in range(a + 1, len(row)):
            for lane in range(row[b]):
                for here, there in ((a, b), (b, a)):
                    peer = machine.devices[there]
                    port = Port(
                        number=len(made[here]),
                        remote=Remote.GPU,
                        device=there,
                        pci=peer.pci,
                        pci_device_id=int(str(peer.extra.get("pci_device_id", "0")), 0),
                        last=lane == row[b] - 1,
                    )
                    made[here].append(port)
    return tuple(tuple(row) for row in made)


def _to_switches(machine: Machine, index: int) -> tuple[Port, ...]:
    count = max(machine.lanes[index], default=0) or (machine.links_per_device if len(machine.devices) == 1 else 0)
    switches = _switches_of(machine, index, count)
    pci_device_id = _SWITCH_PCI_IDS.get(int(machine.extra.get("fabric_version") or 0), 0)
    return tuple(
        Port(
            number=number,
            remote=Remote.SWITCH,
            pci=switches[number],
            pci_device_id=pci_device_id if switches[number] else 0,
            last=number == count - 1,
        )
        for number in range(count)
    )


def _switches_of(machine: Machine, index: int, count: int) -> Sequence[str]:
    """The bus id of the switch behind each port, "" where the switch is not on this machine's bus."""
    described: Mapping[str, Any] = machine.extra.get("fabric_nvswitch") or {}
    if "location" in described:
        return [""] * count
    total = int(described.get("count") or 1)
    names = [str(name) for name in described.get("pci_bus_ids") or ()] or _invented(machine, total)
    share = described.get("links_per_switch_per_gpu") or count
    shares = (
        [int(number) for number in share] if isinstance(share, list) else [int(share)] * max(1, count // int(share))
    )
    # A device may reach some of the switches only: DGX-2 has six on each of its two boards.
    groups = max(1, total // len(shares))
    first = index * groups // len(machine.devices) * len(shares)
    wired = [names[first + n] for n, links in enumerate(shares) for _ in range(links)]
    return (wired + [names[first]] * count)[:count]


def _invented(machine: Machine, total: int) -> list[str]:
    """Bus ids for switches whose real ones the profile does not tell: free ones on bus f0 and up."""
    taken = {device.pci for device in machine.devices}
    free = (f"0000:{bus:02x}:00.0" for bus in range(0xF0, 0x100))
    names = [name for name in free if name not in taken]
    return names[:total]
