"""A simulated machine in files: what its vendor's driver and tool make of it, and the faults to disturb it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.simulation.tools import SILENT, UNLISTED, Tool
from hami_plugin.simulation.trees import Files, Tree, attributes, plug, unplug, write_numa

Change = Callable[[MachineDevice, int | str], None]
"""What a fault changes of one device. The value is whatever the fault asks for."""


class FileSimulator:
    """A ``Simulator``. ``faults`` are of one device each, ``machine_faults`` of the machine as a whole.

    It keeps nothing in memory, so any process that has been given the same folder may cause or end a fault.
    """

    def __init__(
        self,
        machine: Machine,
        settings: Mapping[str, Any],
        faults: Mapping[str, Change],
        machine_faults: Mapping[str, Callable[[], None]],
    ) -> None:
        self._machine = machine
        self._settings = settings
        self._faults = faults
        self._machine_faults = machine_faults

    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def inject(self, fault: str, device: int | None = None, value: int | str = 0) -> None:
        """Cause a fault, on one device by its index or on all."""
        if fault in self._machine_faults:
            self._machine_faults[fault]()
            return
        disturb = self._faults.get(fault)
        if disturb is None:
            names = ", ".join((*self._faults, *self._machine_faults))
            raise ValueError(f"no fault is named {fault!r}; choose from: {names}")
        chosen = [one for one in self._machine.devices if device is None or one.index == device]
        if not chosen:
            raise ValueError(f"there is no device {device}; {self._machine.name} has {len(self._machine.devices)}")
        for one in chosen:
            disturb(one, value)


Disturb = Callable[["Stage", MachineDevice, int | str], None]
"""What a fault changes of one device. The value is whatever the fault asks for, 0 where nothing was said."""

OwnFiles = Callable[[Machine, MachineDevice], Files]
"""The files that one device has."""


def _no_files(*_asked: object) -> Files:
    return {}


def _no_paths(_one: MachineDevice) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What a vendor's machines are made of. ``device`` is the id on the PCI bus, four hex digits.

    ``driver`` is the one that the bus names, where that is not the module. ``own`` are the files of one device, and
    ``shared`` those of all: they are there while the driver is. ``control`` are such nodes in ``/dev``, and ``version``
    is what the module has in sysfs, if it is there. ``installed`` files stay, and ``settings`` name their folders to
    the vendor's driver. ``left`` are paths that faults may add to a device.
    """

    hardware: Hardware
    device: Callable[[MachineDevice], str]
    driver: str = ""
    own: OwnFiles
    shared: Callable[[Machine], Files] = _no_files
    control: tuple[str, ...] = ()
    version: str = ""
    installed: Files = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    tool: Tool | None = None
    faults: Mapping[str, Disturb] = field(default_factory=dict)
    left: Callable[[MachineDevice], tuple[str, ...]] = _no_paths

    def simulate(self, machine: Machine, directory: Path) -> FileSimulator:
        """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
        tree = Tree(root=directory)
        stage = Stage(tree, machine, self)
        if not tree.written:
            stage.write()
            tree.done()
        named = {**self.settings, **({self.tool.setting: self.tool.path} if self.tool else {})}
        faults = {"lost": Stage.lose, "back": Stage.restore, **self.faults}
        machine_faults = {"driver-gone": stage.unload, "driver-back": stage.write, "no-devices": stage.empty}
        return FileSimulator(
            machine,
            {**tree.settings, **{setting: str(directory / path) for setting, path in named.items()}},
            {name: partial(disturb, stage) for name, disturb in faults.items()},
            {**machine_faults, **(self.tool.faults(tree, stage.tell_all) if self.tool else {})},
        )


def listed(
    hardware: Hardware, device: str, tool: Tool, *, control: tuple[str, ...] = (), more: OwnFiles = _no_files
) -> Board:
    """A machine whose cards a tool lists, each with a node by its number. A card that is silent tells no numbers."""

    def own(machine: Machine, one: MachineDevice) -> Files:
        return {f"dev/{hardware.node}{one.index}": "", **more(machine, one)}

    faults = {
        SILENT: noted(SILENT),
        UNLISTED: noted(UNLISTED),
        "no-node": without(lambda one: f"dev/{hardware.node}{one.index}"),
    }
    return Board(
        hardware=hardware,
        device=lambda _one: device,
        version="1.0.0",
        control=control,
        own=own,
        tool=tool,
        faults=faults,
    )


class Stage:
    """The files of one machine, as they come and go."""

    def __init__(self, tree: Tree, machine: Machine, board: Board) -> None:
        self.tree = tree
        self.machine = machine
        self._board = board
        self._driver = board.driver or board.hardware.module

    def write(self) -> None:
        """Everything, and everything well."""
        self.tree.put({**self._board.installed, **self._shared()})
        for one in self.machine.devices:
            self._appear(one)
        write_numa(self.tree, self.machine.numa_nodes)
        self.tell_all()

    def restore(self, one: MachineDevice, _value: int | str = 0) -> None:
        self._appear(one)
        self.tell()

    def lose(self, one: MachineDevice, _value: int | str = 0) -> None:
        """Fallen off the bus: the tool lists it no more."""
        self._vanish(one)
        self.note(UNLISTED, one)

    def unload(self) -> None:
        """The driver is gone; its devices stay on the bus."""
        self.tree.take(self._shared())
        self.empty()
        for one in self.machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        """There is no device."""
        for one in self.machine.devices:
            self.lose(one)

    def note(self, what: str, one: MachineDevice, value: str = "") -> None:
        """For the tool, which says so from now on."""
        if self._board.tool:
            self._board.tool.note(self.tree, what, one, value)
            self.tell()

    def noted(self, what: str, one: MachineDevice) -> str:
        """The value of such a note; empty where there is none."""
        return self._board.tool.told(self.tree, self.machine).note(what, one) if self._board.tool else ""

    def tell_all(self) -> None:
        """The tool is there, and works."""
        if self._board.tool:
            self._board.tool.install(self.tree)
            self.tell()

    def tell(self) -> None:
        if tool := self._board.tool:
            tool.teach(self.tree, tool.says(tool.told(self.tree, self.machine)))

    def _shared(self) -> Files:
        board = self._board
        folder = f"sys/module/{board.hardware.module}"
        version = attributes(folder, {"version": board.version}) if board.version else {}
        return {**version, **{f"dev/{name}": "" for name in board.control}, **board.shared(self.machine)}

    def _appear(self, one: MachineDevice) -> None:
        self._plug(one, self._driver)
        self.tree.remove(*self._board.left(one))
        self.tree.put(self._board.own(self.machine, one))
        if self._board.tool:
            self._board.tool.forget(self.tree, one)

    def _vanish(self, one: MachineDevice) -> None:
        self.tree.take(self._board.own(self.machine, one))
        self.tree.remove(*self._board.left(one))
        unplug(self.tree, one, self._driver)

    def _plug(self, one: MachineDevice, driver: str) -> None:
        ids = {"vendor": f"0x{self._board.hardware.vendors[0]}", "device": f"0x{self._board.device(one)}"}
        plug(self.tree, self.machine, one, driver=driver, **ids)


def noted(what: str) -> Disturb:
    """The tool knows of it, with the fault's value."""
    return lambda stage, one, value: stage.note(what, one, str(value or ""))


def without(path: Callable[[MachineDevice], str]) -> Disturb:
    """One of the device's files, or a folder, is missing."""
    return lambda stage, one, _value: stage.tree.remove(path(one))


def rewritten(path: Callable[[MachineDevice], str], text: Callable[[int | str], str]) -> Disturb:
    """One of the device's files says something else, which the fault's value makes."""
    return lambda stage, one, value: stage.tree.write(path(one), text(value))


def topology(machine: Machine, label: str, link: Callable[[int], str]) -> str:
    """The table of ``topo -m``: a pair's link where it has lanes of the fabric, else its level on the bus."""
    heads = " ".join(f"{label}{one.index}" for one in machine.devices)
    lines = [f"      {heads} CPU Affinity NUMA Affinity"]
    for one, levels, lanes in zip(machine.devices, machine.levels, machine.lanes, strict=True):
        cells = (link(count) if count else level for level, count in zip(levels, lanes, strict=True))
        lines.append(f"{label}{one.index}  {' '.join(cells)} {machine.numa_nodes.get(one.numa, '')} {one.numa}")
    return "\n".join([*lines, "", "Legend:", "  X = Self", ""])
