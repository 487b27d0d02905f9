"""On which NUMA node each DCU is. On some hosts sysfs says 0 for all of them; Hygon's ``hy-smi`` knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from hami_plugin.sdk import tools
from hami_plugin.sdk.pci import PciDevice

QUESTION = ("--showbus", "--showtoponuma", "--json")
ADDRESS, NODE = "PCI Bus", "(Topology) Numa Node"


class Places:
    """Asks the tool once for each set of devices: their places do not change while the driver is loaded."""

    def __init__(self, tool: Path, deadline: float = 10.0) -> None:
        self._tool = tool
        self._deadline = deadline
        self._asked: frozenset[str] = frozenset()
        self._nodes: Mapping[str, int] = {}
        self.problems: tuple[str, ...] = ()

    def numa(self, found: Sequence[PciDevice]) -> Mapping[str, int | None]:
        """NUMA nodes by PCI address; sysfs' word where the tool says nothing."""
        addresses = frozenset(one.address for one in found)
        if not addresses <= self._asked:
            self._asked, self.problems = addresses, ()
            try:
                self._nodes = self._told()
            except tools.ToolError as error:
                self._nodes = {}
                self.problems = (f"NUMA nodes are those of sysfs, which may be wrong: {error}",)
        return {one.address: self._nodes.get(one.address, one.numa) for one in found}

    def _told(self) -> Mapping[str, int]:
        return tools.read(self._tool, partial(parsed, self._tool), *QUESTION, deadline=self._deadline)


def parsed(tool: Path, printed: str) -> Mapping[str, int]:
    """NUMA nodes by PCI address."""
    cards = (card for card in tools.json_object(printed, tool).values() if isinstance(card, Mapping))
    # Newer versions print the serial number behind the address: 0000:05:00.0 --> SN: 25...
    said = ((str(card.get(ADDRESS, "")).partition(" ")[0].lower(), str(card.get(NODE, ""))) for card in cards)
    return {address: int(node) for address, node in said if address and node.isdecimal()}
