"""A simulated machine whose cards a fake vendor tool lists: its trees, its tool, and their faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.tools import hang_tool, tool_path, write_tool
from hami_plugin.simulation.trees import Tree, plug, unplug, write_numa

Says = Callable[[Machine, list[MachineDevice], frozenset[int]], dict[str, str]]
"""What the tool prints for each command line: of the cards that it lists, some of which tell no numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What a vendor's machines have in common: PCI ids, kernel module, nodes, and the tool.

    ``drawing``: its cards have nodes of the kernel's graphics system too.
    """

    vendor: str
    device: str
    module: str
    node: str
    control: tuple[str, ...]
    tool: str
    says: Says
    drawing: bool = False


def boards(machine: Machine, directory: Path, board: Board, *, tool_setting: str) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    stage = _Stage(Tree(root=directory), machine, board)
    tree = stage.tree
    if not tree.written:
        stage.write()
        tree.done()
    settings = {**tree.settings, tool_setting: str(tool_path(tree, board.tool))}
    faults = {
        "lost": stage.lose,
        "back": stage.restore,
        "silent": lambda one, _value: stage.note("silent", one),
        "unlisted": lambda one, _value: stage.note("unlisted", one),
        "no-node": lambda one, _value: tree.remove(f"dev/{board.node}{one.index}"),
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "tool-gone": lambda: tree.remove(f"bin/{board.tool}"),
        "tool-hangs": lambda: hang_tool(tree, board.tool),
        "tool-garbled": lambda: write_tool(tree, board.tool, dict.fromkeys(stage.said(), "%$ oops\n")),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, settings, faults, machine_faults)


def topology(machine: Machine, label: str, link: Callable[[int], str]) -> str:
    """The table of ``topo -m``: a pair's link where it has lanes of the fabric, else its level on the bus."""
    heads = " ".join(f"{label}{one.index}" for one in machine.devices)
    lines = [f"      {heads} CPU Affinity NUMA Affinity"]
    for one, levels, lanes in zip(machine.devices, machine.levels, machine.lanes, strict=True):
        cells = (link(count) if count else level for level, count in zip(levels, lanes, strict=True))
        lines.append(f"{label}{one.index}  {' '.join(cells)} {machine.numa_nodes.get(one.numa, '')} {one.numa}")
    return "\n".join([*lines, "", "Legend:", "  X = Self", ""])


class _Stage:
    """The machine's files. Which cards the tool leaves out, or knows no numbers of, is noted in a folder beside it."""

    def __init__(self, tree: Tree, machine: Machine, board: Board) -> None:
        self.tree = tree
        self._machine = machine
        self._board = board

    def write(self) -> None:
        self.tree.write_all(f"sys/module/{self._board.module}", {"version": "1.0.0"})
        for name in self._board.control:
            self.tree.write(f"dev/{name}", "")
        for one in self._machine.devices:
            self.restore(one, 0)
        write_numa(self.tree, self._machine.numa_nodes)
        self.write_tool()

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        self._plug(one, self._board.module)
        for name in (f"{self._board.node}{one.index}", *self._drawn(one)):
            self.tree.write(f"dev/{name}", "")
        self.tree.remove(f"bin/silent.{one.index}", f"bin/unlisted.{one.index}")
        self.write_tool()

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        """Fallen off the bus: the tool lists it no more."""
        self.tree.remove(f"dev/{self._board.node}{one.index}")
        unplug(self.tree, one, self._board.module)
        self.note("unlisted", one)

    def note(self, what: str, one: MachineDevice) -> None:
        self.tree.write(f"bin/{what}.{one.index}", "")
        self.write_tool()

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        self.tree.remove(f"sys/module/{self._board.module}", *(f"dev/{name}" for name in self._board.control))
        for one in self._machine.devices:
            self.lose(one, 0)

    def said(self) -> dict[str, str]:
        listed = [one for one in self._machine.devices if not self._noted("unlisted", one)]
        silent = frozenset(one.index for one in listed if self._noted("silent", one))
        return self._board.says(self._machine, listed, silent)

    def write_tool(self) -> None:
        write_tool(self.tree, self._board.tool, self.said())

    def _noted(self, what: str, one: MachineDevice) -> bool:
        return (self.tree.root / f"bin/{what}.{one.index}").exists()

    def _plug(self, one: MachineDevice, driver: str) -> None:
        ids = {"vendor": f"0x{self._board.vendor}", "device": self._board.device}
        plug(self.tree, self._machine, one, driver=driver, **ids)
        for name in self._drawn(one):
            folder = name.replace("dri/", f"sys/bus/pci/devices/{one.pci}/drm/")
            self.tree.write_all(folder, {"dev": "226:0"})

    def _drawn(self, one: MachineDevice) -> tuple[str, ...]:
        """After the host's own graphics card, which is the first."""
        return (f"dri/card{one.index + 1}", f"dri/renderD{one.index + 129}") if self._board.drawing else ()
