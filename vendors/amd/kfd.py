"""The kernel's compute topology of AMD GPUs, ``/sys/class/kfd``: which nodes compute, and how they are linked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.sdk.pci import text

XGMI = 11
ONE_HOP = 15
"""Weight of a direct xGMI link. What the tools call hops is 1 over any number of them."""
_VRAM = ("1", "2")
"""Heap types of memory banks: visible to the host, and not."""
MIB = 1024 * 1024
_ON_BUS = 0xFFFF
"""Of a place, what is the card's on the bus. Newer kernels write the number of a partition into the highest bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU, or one partition of it. ``links`` has the number of each node at the other end of a direct xGMI link.

    ``unique_id`` is 0 where the card has none; ``memory`` is in MiB.
    """

    number: int
    address: str
    render: int
    units: int
    memory: int
    unique_id: int = 0
    links: tuple[int, ...] = ()


def nodes(sysfs: Path) -> tuple[KfdNode | str, ...]:
    """Every node that computes and can be opened, in the kernel's order; a node that cannot be read is told in words.

    Processors are nodes too, and have no compute units.
    """
    folders = [one for one in (sysfs / "class/kfd/kfd/topology/nodes").glob("*") if one.name.isdecimal()]
    read = (_node(folder) for folder in sorted(folders, key=lambda one: int(one.name)))
    return tuple(one for one in read if one is not None)


def _node(folder: Path) -> KfdNode | str | None:
    facts = _properties(folder)
    if not facts:
        return f"compute node {folder.name} tells nothing: {folder / 'properties'} cannot be read"
    if not facts.get("simd_count") or facts.get("drm_render_minor", 0) <= 0:
        return None
    place = facts.get("location_id", 0) & _ON_BUS
    banks = (_properties(bank) for bank in (folder / "mem_banks").glob("*"))
    return KfdNode(
        number=int(folder.name),
        address=f"{facts.get('domain', 0):04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7:x}",
        render=facts["drm_render_minor"],
        units=facts["simd_count"] // max(1, facts.get("simd_per_cu", 1)),
        memory=sum(bank.get("size_in_bytes", 0) for bank in banks if str(bank.get("heap_type")) in _VRAM) // MIB,
        unique_id=facts.get("unique_id", 0),
        links=tuple(_direct(folder)),
    )


def _direct(folder: Path) -> Iterator[int]:
    for link in sorted((folder / "io_links").glob("*")):
        facts = _properties(link)
        if facts.get("type") == XGMI and 0 < facts.get("weight", 0) <= ONE_HOP and "node_to" in facts:
            yield facts["node_to"]


def _properties(folder: Path) -> Mapping[str, int]:
    """Lines of a name and a number."""
    pairs = (line.split() for line in text(folder / "properties").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
