"""Kunlun XPUs on their node: found by ``xpu-smi`` and on the PCI bus, offered whole or in parts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.usage import DeviceLoad
from hami_plugin.sdk import Card, Fabric, Hardware, address, device_load, matrix, mebibytes, read
from hami_plugin.sdk.tools import lines
from vendors.kunlun.rules import PART, WHOLE
from vendors.kunlun.settings import KunlunSettings

T = TypeVar("T")

XPUS = Hardware(title="Kunlun XPU", vendors=("1d22",), module="kunlun", node="xpu")
CONTROL = "xpuctrl"

# Columns of ``xpu-smi -m``, one XPU a line, 32 in all; what most of the others mean is Kunlunxin's to know.
ADDRESS, INDEX, USED, MEMORY, BUSY, MODEL = 0, 1, 17, 18, 19, 21
_NAMED = re.compile(r"XPU\s+(\d+):.{0,200}?(GPU-[0-9A-Fa-f-]{36})")
_LINKED = "XL"


def naming(settings: KunlunSettings, paths: HostPaths, card: Card) -> tuple[str, str]:
    """HAMi's scheduler makes names for whole XPUs up; parts are registered, under the XPU's own."""
    return (PART, card.uuid) if settings.serve == "parts" else (WHOLE, f"{paths.node}-{WHOLE}-{card.index}")


def query_tool(settings: KunlunSettings, parse: Callable[[str], T], *arguments: str) -> T:
    return read(settings.xpu_smi, parse, *arguments, deadline=settings.tool_seconds)


def list_cards(settings: KunlunSettings, _paths: HostPaths) -> Sequence[Card | str]:
    """The XPUs, by two answers of the tool: facts by column, and names."""
    names = query_tool(settings, parse_names, "-L")
    return query_tool(settings, lambda table: [card(line, names) for line in lines(table) if line.strip()], "-m")


def parse_names(listing: str) -> Mapping[str, str]:
    """Names by index."""
    return {found[1]: found[2] for line in lines(listing) if (found := _NAMED.search(line))}


def card(line: str, names: Mapping[str, str]) -> Card | str:
    """One line of ``xpu-smi -m``; what is wrong with it, in fields, when it is none."""
    try:
        fields = shlex.split(line)
        place, index = address(fields[ADDRESS]), int(fields[INDEX])
        uuid = names[fields[INDEX]]
    except (ValueError, IndexError, KeyError):
        return f"xpu-smi tells nothing that names an XPU: {line[:120]!r}"
    try:
        memory, model = mebibytes(fields[MEMORY]), fields[MODEL]
    except (ValueError, IndexError):
        return Card(index=index, uuid=uuid, model="", address=place, trouble=f"xpu-smi tells {line[:120]!r}")
    return Card(index=index, uuid=uuid, model=model, address=place, memory=memory)


def loads(settings: KunlunSettings) -> Mapping[str, DeviceLoad]:
    """By two more columns: MiB in use, and percent."""
    found = query_tool(settings, lambda table: [load(line) for line in lines(table)], "-m")
    return {place: one for place, one in found if place}


def load(line: str) -> tuple[str, DeviceLoad]:
    """The address, and what is in use; no address where a line has none, or too few columns."""
    try:
        fields = shlex.split(line)
        return address(fields[ADDRESS]), device_load(fields[USED], fields[BUSY])
    except (ValueError, IndexError):
        return "", DeviceLoad()


def list_links(settings: KunlunSettings) -> Mapping[tuple[int, int], int]:
    """Pairs with an XPU-Link, as the board has them and not as the wings of an older one would."""
    return query_tool(settings, direct_links, "topo", "-m")


def direct_links(table: str) -> Mapping[tuple[int, int], int]:
    return {pair: 1 for pair, cell in matrix(table, "XPU").items() if cell == _LINKED}


FABRIC = Fabric(title=_LINKED, lanes=list_links)
