"""The text that the simulated library reads: the NPUs, what is wrong with each, and how they are connected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hami_plugin.model.machine import Machine

VERSION = "24.1.rc3"
ERROR = 0x80E01801
_KINDS = {"SYS": 1, "NODE": 1, "PHB": 2, "PXB": 4, "PIX": 5}
_HCCS, _SIO, _SWITCHED = 3, 6, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One NPU at present. ``code`` is what DCMI answers when it is asked about it; without ``die`` it has no name.

    ``shared``: several containers may open it.
    """

    present: bool = True
    code: int = 0
    health: int = 0
    hangs: bool = False
    die: bool = True
    shared: bool = True


def text(machine: Machine, conditions: Sequence[Condition], driver: int) -> str:
    """``driver`` is what DCMI answers to every question at all; 0 when it works."""
    places = [place for place, condition in enumerate(conditions) if condition.present]
    lines = [f"driver {VERSION} {driver} units {len(places)}"]
    lines += [_unit(machine, place, conditions[place]) for place in places]
    lines += [" ".join(str(kind(machine, one, other)) for other in places) for one in places]
    return "\n".join((*lines, ""))


def kind(machine: Machine, one: int, other: int) -> int:
    """DCMI's number for a pair of the profile. The fabric hides the PCIe level."""
    level = machine.levels[one][other]
    if not machine.lanes[one][other]:
        return _KINDS.get(level, 0)
    if level == "INT":
        return _SIO
    return _SWITCHED if machine.via_switch else _HCCS


def _unit(machine: Machine, place: int, condition: Condition) -> str:
    device = machine.devices[place]
    ids = " ".join(str(device.extra[key]) for key in ("card_id", "device_id"))
    numbers = f"{device.extra['aicore']} {device.extra['logic_id']} {device.extra['phy_id']}"
    die = " ".join(str(int(word, 16) if condition.die else 0) for word in device.uuid.split("-"))
    health = f"{condition.health} {ERROR if condition.health else 0:x}"
    present = f"{health} {condition.code} {int(condition.hangs)} {int(condition.shared)}"
    return f"npu {ids} {device.model} {numbers} {die} {device.pci} {present}"
