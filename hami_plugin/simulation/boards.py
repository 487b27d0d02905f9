"""A simulated machine as files for its vendor's driver and tool, and the faults to inject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.simulation.tools import LOAD, SILENT, UNLISTED, Tool
from hami_plugin.simulation.trees import Files, Tree, attributes, plug, unplug, write_numa

Change = Callable[[MachineDevice, int | str], None]
"""What a fault changes of one device. The value depends on the fault."""


class FileSimulator:
    """A ``Simulator``. ``faults`` are of one device each, ``machine_faults`` of the machine as a whole.

    It keeps nothing in memory, so any process with the same directory may cause or end a fault.
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


Disturb = Callable[["MachineFiles", MachineDevice, int | str], None]
"""What a fault changes on one device. The value depends on the fault; the default is 0."""

OwnFiles = Callable[[Machine, MachineDevice], Files]
"""The files of one device."""


def _no_files(*_asked: object) -> Files:
    return {}


def _no_paths(_one: MachineDevice) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBoard:
    """How a vendor's machines are built. ``device`` is the PCI device id, four hex digits.

    ``driver`` is the driver's name on the bus, if it is not the module's. ``own`` are the files of one device, and
    ``shared`` those of all: they exist while the driver is loaded. So do ``control``, nodes in ``/dev``, and
    ``version``, the module's in sysfs. ``installed`` files stay, and ``settings`` point the vendor's driver to their
    directories; ``chosen`` are others, as the profile says. ``left`` are paths that faults may add to a device.
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
    chosen: Callable[[Machine], Mapping[str, Any]] = lambda _machine: {}
    tool: Tool | None = None
    faults: Mapping[str, Disturb] = field(default_factory=dict)
    left: Callable[[MachineDevice], tuple[str, ...]] = _no_paths

    def simulate(self, machine: Machine, directory: Path) -> FileSimulator:
        """Write the machine into ``directory``, unless it already exists, with its current faults."""
        tree = Tree(root=directory)
        machine_files = MachineFiles(tree, machine, self)
        if not tree.written:
            machine_files.write()
            tree.done()
        named = {**self.settings, **({self.tool.setting: self.tool.path} if self.tool else {})}
        places = {setting: str(directory / path) for setting, path in named.items()}
        faults = {"lost": MachineFiles.lose, "back": MachineFiles.restore, **self.faults}
        machine_faults = {
            "driver-gone": machine_files.unload,
            "driver-back": machine_files.write,
            "no-devices": machine_files.empty,
        }
        return FileSimulator(
            machine,
            {**tree.settings, **places, **self.chosen(machine)},
            {name: partial(disturb, machine_files) for name, disturb in faults.items()},
            {**machine_faults, **(self.tool.faults(tree, machine_files.install_tool) if self.tool else {})},
        )


def listed(
    hardware: Hardware, device: str, tool: Tool, *, control: tuple[str, ...] = (), more: OwnFiles = _no_files
) -> SimulatedBoard:
    """A machine whose cards a tool lists, each with a numbered device node. A silent card reports no numbers."""

    def own(machine: Machine, one: MachineDevice) -> Files:
        return {f"dev/{hardware.node}{one.index}": "", **more(machine, one)}

    faults = {
        SILENT: noted(SILENT),
        UNLISTED: noted(UNLISTED),
        LOAD: noted(LOAD),
        "no-node": without(lambda one: f"dev/{hardware.node}{one.index}"),
    }
    return SimulatedBoard(
        hardware=hardware,
        device=lambda _one: device,
        version="1.0.0",
        control=control,
        own=own,
        tool=tool,
        faults=faults,
    )


class MachineFiles:
    """The changing files of one machine."""

    def __init__(self, tree: Tree, machine: Machine, board: SimulatedBoard) -> None:
        self.tree = tree
        self.machine = machine
        self._board = board
        self._driver = board.driver or board.hardware.module

    def write(self) -> None:
        """Write everything, without faults."""
        self.tree.put({**self._board.installed, **self._shared()})
        for one in self.machine.devices:
            self._appear(one)
        write_numa(self.tree, self.machine.numa_nodes)
        self.install_tool()

    def restore(self, one: MachineDevice, _value: int | str = 0) -> None:
        self._appear(one)
        self.refresh_tool()

    def lose(self, one: MachineDevice, _value: int | str = 0) -> None:
        """The device falls off the bus, and the tool no longer lists it."""
        self._vanish(one)
        self.note(UNLISTED, one)

    def unload(self) -> None:
        """Unload the driver; its devices stay on the bus."""
        self.tree.take(self._shared())
        self.empty()
        for one in self.machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        """Remove all devices."""
        for one in self.machine.devices:
            self.lose(one)

    def note(self, what: str, one: MachineDevice, value: str = "") -> None:
        """Leave a note for the tool, which acts on it from now on."""
        if self._board.tool:
            self._board.tool.note(self.tree, what, one, value)
            self.refresh_tool()

    def noted(self, what: str, one: MachineDevice) -> str:
        """The value of a note; empty if there is none."""
        return self._board.tool.state(self.tree, self.machine).note(what, one) if self._board.tool else ""

    def install_tool(self) -> None:
        """Install a working tool."""
        if self._board.tool:
            self._board.tool.install(self.tree)
            self.refresh_tool()

    def refresh_tool(self) -> None:
        if tool := self._board.tool:
            tool.set_output(self.tree, tool.says(tool.state(self.tree, self.machine)))

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
        vendor = next(iter(self._board.hardware.vendors), "ffff")  # nobody's, if the vendor's id is not public
        ids = {"vendor": f"0x{vendor}", "device": f"0x{self._board.device(one)}"}
        plug(self.tree, self.machine, one, driver=driver, **ids)


def noted(what: str) -> Disturb:
    """The tool prints the fault with its value."""
    return lambda machine_files, one, value: machine_files.note(what, one, str(value or ""))


def loaded(machine_files: MachineFiles, one: MachineDevice, value: int | str) -> None:
    """``37:1024``: percent of the time in which it works, and MiB in use, as amdgpu shows them."""
    busy, _, used = str(value or "0:0").partition(":")
    for name, number in (("gpu_busy_percent", int(busy)), ("mem_info_vram_used", int(used) << 20)):
        machine_files.tree.write(f"sys/bus/pci/devices/{one.pci}/{name}", f"{number}\n")


def without(path: Callable[[MachineDevice], str]) -> Disturb:
    """One of the device's files or directories is missing."""
    return lambda machine_files, one, _value: machine_files.tree.remove(path(one))


def rewritten(path: Callable[[MachineDevice], str], text: Callable[[int | str], str]) -> Disturb:
    """One of the device's files has other content, computed from the fault's value."""
    return lambda machine_files, one, value: machine_files.tree.write(path(one), text(value))


def topology(machine: Machine, label: str, link: Callable[[int], str]) -> str:
    """The table of ``topo -m``: a pair's fabric link if it has lanes, else its level on the bus."""
    heads = " ".join(f"{label}{one.index}" for one in machine.devices)
    lines = [f"      {heads} CPU Affinity NUMA Affinity"]
    for one, levels, lanes in zip(machine.devices, machine.levels, machine.lanes, strict=True):
        cells = (link(count) if count else level for level, count in zip(levels, lanes, strict=True))
        lines.append(f"{label}{one.index}  {' '.join(cells)} {machine.numa_nodes.get(one.numa, '')} {one.numa}")
    return "\n".join([*lines, "", "Legend:", "  X = Self", ""])
