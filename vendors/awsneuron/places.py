"""Where Neuron devices are on the PCI bus, which their driver's own files do not tell.

AWS's ``neuron-ls`` knows; where it is not installed, a single device is the only one there is, and Inferentia's are
numbered in the order of the bus. Trainium's are not, so without the tool their addresses stay unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk import pci
from hami_plugin.sdk.tools import ToolError, read
from vendors.awsneuron.chips import INFERENTIA, NEURONS

DEADLINE_S = 10.0


class Places:
    """Asks the tool once for each set of devices: their places do not change while the driver is loaded."""

    def __init__(self, paths: HostPaths, tool: Path, deadline: float = DEADLINE_S) -> None:
        self._paths = paths
        self._tool = tool
        self._deadline = deadline
        self._of: tuple[int, ...] = ()
        self._places: Mapping[int, pci.PciDevice] = {}
        self.problems: tuple[str, ...] = ()

    def of(self, numbers: tuple[int, ...]) -> Mapping[int, pci.PciDevice]:
        """The devices on the bus by their numbers; those that nobody knows are absent."""
        if not set(numbers) <= set(self._of):
            self._of, self.problems = numbers, ()
            self._places = self._found(numbers)
        return self._places

    def _found(self, numbers: Sequence[int]) -> Mapping[int, pci.PciDevice]:
        bus = NEURONS.plugged(self._paths)
        if len(bus) == len(numbers) and (len(bus) == 1 or all(one.device in INFERENTIA for one in bus)):
            return dict(zip(sorted(numbers), bus, strict=True))
        by_address = {one.address: one for one in bus}
        try:
            listed = self._listed()
        except ToolError as error:
            why = error.message
            self.problems = (f"PCI addresses and NUMA nodes are not known, since {self._tool} does not tell: {why}",)
            return {}
        return {number: by_address[bdf] for number, bdf in listed.items() if bdf in by_address}

    def _listed(self) -> Mapping[int, str]:
        return read(self._tool, parsed, "-j", deadline=self._deadline)


def parsed(printed: str) -> Mapping[int, str]:
    """Addresses by device number. The tool leaves the domain out, which is 0 on every machine that AWS has."""
    entries = json.loads(printed)
    if not isinstance(entries, list) or not all(_names(entry) for entry in entries):
        raise ValueError("it is no list of devices with their numbers and addresses")
    return {entry["neuron_device"]: f"0000:{entry['bdf'].lower()}" for entry in entries}


def _names(entry: object) -> bool:
    return isinstance(entry, Mapping) and type(entry.get("neuron_device")) is int and isinstance(entry.get("bdf"), str)
