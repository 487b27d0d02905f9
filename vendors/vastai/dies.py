"""The dies of Vastai cards: which there are, by the PCI bus, and whose and how large, by ``vasmi``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.sdk.tools import ToolError, json_object, read

DEVICE_TYPE: Final = "Vastai"
STRATEGY: Final = "DeviceStrategy"
CARD: Final = "AIC"
DIES: Final = Hardware(title="Vastai die", vendors=("1ec6", "1edb"), devices=("0100",), module="vastai_pci")
"""Two ids are seen for this vendor; the device id is the same."""
QUERY: Final = ("getmem", "--display-format=json")
MEMORY: Final = ("Physical", "Physical memory")
"""What the tool calls a die's memory, on accelerators and on graphics cards."""
DEADLINE_S = 10.0
_OWN_NODE = re.compile(r"(?:vacc|vastai_video)(\d{1,4})")
_NAME = re.compile(r"[\w.-]+")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B", re.IGNORECASE)
_IN_MIB = {"": 1 / 1024**2, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dies:
    """A device's ``traits``: the numbers of its dies, and the serial number of the card that they are on."""

    numbers: tuple[int, ...]
    card: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What the tool tells of a die. ``memory`` is in MiB."""

    card: str
    memory: int


def dies(device: Device) -> Dies:
    """The traits of a Vastai device; of one that nothing is known of, no dies."""
    return device.traits if isinstance(device.traits, Dies) else Dies(numbers=(), card="")


def numbered(paths: HostPaths, addresses: Sequence[str], before: Mapping[str, int]) -> Mapping[str, int]:
    """The dies' numbers, by which the driver names their nodes; it gives them in the order of the bus.

    Those of ``before`` stay. The others are numbered where there are as many nodes left as dies: with one missing
    anywhere, nothing tells which number it had.
    """
    nodes = {int(m[1]) for node in paths.dev.glob("va*") if (m := _OWN_NODE.fullmatch(node.name))}
    kept = {address: number for address, number in before.items() if address in addresses}
    new = [address for address in addresses if address not in kept]
    left = sorted(nodes - set(kept.values()))
    return {**kept, **dict(zip(new, left, strict=True))} if len(new) == len(left) else kept


def listed(tool: Path, deadline: float = DEADLINE_S) -> Mapping[str, Listed]:
    """What the tool tells, by PCI address. A die of which it does not tell all is absent."""
    if not tool.is_file():
        raise DriverUnavailableError(
            DriverReason.NO_LIBRARY, f"there is no {tool}", hint="mount it from the host, or set vasmi"
        )
    try:
        return read(tool, partial(parsed, tool), *QUERY, deadline=deadline)
    except ToolError as error:
        raise DriverUnavailableError(DriverReason.FAILED, error.message) from error


def parsed(tool: Path, printed: str) -> Mapping[str, Listed]:
    """The dies of the tool's answer, by PCI address."""
    told = json_object(printed, tool).get("elem")
    items = [item for item in told if isinstance(item, dict)] if isinstance(told, list) else []
    return {address: die for item in items if (address := _address(item)) and (die := _die(item))}


def _address(item: Mapping[str, Any]) -> str:
    domain, _, rest = str(item.get("pci_bus", "")).strip().lower().rpartition(":")[0].partition(":")
    last = str(item.get("pci_bus", "")).strip().lower().rpartition(":")[2]
    return f"{domain[-4:].rjust(4, '0')}:{rest}:{last}" if rest and last else ""


def _die(item: Mapping[str, Any]) -> Listed | None:
    values = item.get("vals")
    card = str(item.get("sn") or "").strip()
    amounts = [values[name] for name in MEMORY if name in values] if isinstance(values, dict) else []
    found = _AMOUNT.search(str(amounts[0].get("value"))) if amounts and isinstance(amounts[0], dict) else None
    memory = int(float(found[1]) * _IN_MIB[found[2].upper()]) if found else 0
    return Listed(card=card, memory=memory) if _NAME.fullmatch(card) and memory else None
