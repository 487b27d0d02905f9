"""Kunlun XPUs on their node: found by ``xpu-smi`` and on the PCI bus, offered whole or in parts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Card, Fabric, Family, Hardware, NodeSide, address, matrix, mebibytes, read
from hami_plugin.sdk.tools import lines
from vendors.kunlun.family import CARD, PART, WHOLE
from vendors.kunlun.settings import KunlunSettings

T = TypeVar("T")

XPUS = Hardware(title="Kunlun XPU", vendors=("1d22",), module="kunlun", node="xpu")
CONTROL = "xpuctrl"
SMALLEST = CARD // 4

# Columns of ``xpu-smi -m``, one XPU a line, 32 in all; what most of the others mean is Kunlunxin's to know.
ADDRESS, INDEX, MEMORY, MODEL = 0, 1, 18, 21
_NAMED = re.compile(r"XPU\s+(\d+):.{0,200}?(GPU-[0-9A-Fa-f-]{36})")
_LINKED = "XL"


def naming(settings: KunlunSettings, paths: HostPaths, card: Card) -> tuple[str, str]:
    """HAMi's scheduler makes names for whole XPUs up; parts are registered, under the XPU's own."""
    return (PART, card.uuid) if settings.serve == "parts" else (WHOLE, f"{paths.node}-{WHOLE}-{card.index}")


def asked(settings: KunlunSettings, parse: Callable[[str], T], *arguments: str) -> T:
    return read(settings.xpu_smi, parse, *arguments, deadline=settings.tool_seconds)


def list_cards(settings: KunlunSettings, _paths: HostPaths) -> Sequence[Card | str]:
    """The XPUs, by two answers of the tool: facts by column, and names."""
    names = asked(settings, named, "-L")
    return asked(settings, lambda table: [card(line, names) for line in lines(table) if line.strip()], "-m")


def named(listing: str) -> Mapping[str, str]:
    """Names by index."""
    return {found[1]: found[2] for line in lines(listing) if (found := _NAMED.search(line))}


def card(line: str, names: Mapping[str, str]) -> Card | str:
    """One line of ``xpu-smi -m``; what is wrong with it, in words, when it is none."""
    try:
        words = shlex.split(line)
        place, index = address(words[ADDRESS]), int(words[INDEX])
        uuid = names[words[INDEX]]
    except (ValueError, IndexError, KeyError):
        return f"xpu-smi tells nothing that names an XPU: {line[:120]!r}"
    try:
        memory, model = mebibytes(words[MEMORY]), words[MODEL]
    except (ValueError, IndexError):
        return Card(index=index, uuid=uuid, model="", address=place, trouble=f"xpu-smi tells {line[:120]!r}")
    return Card(index=index, uuid=uuid, model=model, address=place, memory=memory)


def linked(settings: KunlunSettings) -> Mapping[tuple[int, int], int]:
    """Pairs with an XPU-Link, as the board has them and not as the wings of an older one would."""
    return asked(settings, direct, "topo", "-m")


def direct(table: str) -> Mapping[tuple[int, int], int]:
    return {pair: 1 for pair, cell in matrix(table, "XPU").items() if cell == _LINKED}


FABRIC = Fabric(title=_LINKED, lanes=linked)


def node_side(settings: KunlunSettings, family: Family, usual: NodeSide) -> NodeSide:
    """XPUs whole, or in parts. Of whole XPUs the scheduler learns from their number alone."""
    kind = f"{settings.cdi.vendor}/{'v' if family.device_type == PART else ''}{settings.cdi.cls}"
    handed = replace(usual, delivery=replace(settings.delivery, kind=kind))
    if (family.device_type == PART) is not (settings.serve == "parts"):
        return replace(handed, register=register, absent=f"it has serve: {settings.serve}")
    if family.device_type == WHOLE:
        return replace(handed, register=register)
    return replace(
        handed,
        whole_only=settings.whole_only("Kunlunxin's own agent"),
        replicas=shares if settings.unlimited_shares else lambda _device: 1,
        register=register if settings.unlimited_shares else alone,
        reports=True,
    )


def shares(device: Device) -> int:
    """How many of the smallest parts a card has."""
    return max(1, device.memory // SMALLEST)


def register(device: Device, _legacy: bool) -> DeviceInfo:
    kind, numa = device.family, max(0, device.numa or 0)
    return DeviceInfo.of(device, kind, count=shares(device), numa=numa, mode=device.mode, vendor=kind)


def alone(device: Device, legacy: bool) -> DeviceInfo:
    """A card that is handed out whole: HAMi's scheduler too puts one container on it."""
    return replace(register(device, legacy), count=1)


def env(devices: Sequence[Device]) -> Mapping[str, str]:
    """Which XPUs Kunlunxin's own runtime would add, where it is the one that runs the container."""
    return {"CXPU_VISIBLE_DEVICES": ",".join(str(device.index) for device in devices)}
