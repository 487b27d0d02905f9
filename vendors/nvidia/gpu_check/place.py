"""Where a card sits: its files in sysfs, /proc and /dev against what NVML says."""

from __future__ import annotations

import ctypes
from pathlib import Path

from vendors.nvidia.gpu_check.binding import ask, constant, refused
from vendors.nvidia.gpu_check.card import Card
from vendors.nvidia.gpu_check.refused import Refused
from vendors.nvidia.host import pci_address

_WORDS = 16
"""64-bit words of a CPU mask: room for 1024 CPUs, whatever the machine has."""


def check_place(card: Card) -> None:
    info = ask("nvmlDeviceGetPciInfo", card.handle)
    pci = pci_address(str(getattr(info, "busId", "")))
    folder = card.bench.trees.sysfs / "bus/pci/devices" / pci
    with card.about("place") as findings:
        _minor(card, pci)
        if not pci or not folder.is_dir():
            findings.not_done("sysfs", f"{pci or 'the card'} is not in sysfs as this process sees it")
            return
        findings.equal("vendor in sysfs", "0x10de", _read(folder / "vendor"))
        _numa(card, _read(folder / "numa_node"))
        near = _cpus(_read(folder / "local_cpulist"))
        affinity = ask("nvmlDeviceGetCpuAffinity", card.handle, _WORDS)
        findings.equal(
            "CPU affinity against sysfs", near, affinity if isinstance(affinity, Refused) else _bits(affinity)
        )


def _minor(card: Card, pci: str) -> None:
    findings, trees = card.findings, card.bench.trees
    minor = ask("nvmlDeviceGetMinorNumber", card.handle)
    node = f"nvidia{minor}"
    findings.judge("device node", "there", node, same=isinstance(minor, int) and (trees.dev / node).exists())
    information = _read(trees.proc / "driver/nvidia/gpus" / pci / "information")
    if not information:
        findings.not_done("minor in /proc", "the kernel module's files are not where this process looks for them")
        return
    listed = [line.partition(":")[2].strip() for line in information.splitlines() if line.startswith("Device Minor")]
    findings.equal("minor in /proc", listed, [str(minor)])


def _numa(card: Card, node: str) -> None:
    """Near a node, NVML's mask is that node; where the kernel knows none (-1), it is every node there is."""
    findings = card.findings
    mask = ask("nvmlDeviceGetMemoryAffinity", card.handle, 1, constant("NVML_AFFINITY_SCOPE_NODE") or 0)
    nodes = mask if isinstance(mask, Refused) else _bits(mask)
    if node.isdecimal():
        findings.equal("NUMA node against sysfs", [int(node)], nodes)
    else:
        findings.judge(
            "NUMA node against sysfs", "all nodes, for sysfs says -1", nodes, same=bool(nodes) and nodes is not mask
        )
    own = ask("nvmlDeviceGetNumaNodeId", card.handle)
    if True in card.facts.get("own_memory_node", ()):
        card.supported("NUMA node of its own memory", "own_memory_node", own)
    else:
        findings.equal("NUMA node of its own memory", refused(card.code("NOT_SUPPORTED")), own)


def _bits(words: ctypes.Array[ctypes.c_ulong]) -> list[int]:
    return [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _cpus(text: str) -> list[int]:
    """A Linux list: ``0-3,8``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
