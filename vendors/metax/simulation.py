"""A simulated host with MetaX GPUs: sysfs and dev trees, and an ``mx-smi`` that prints lists as MetaX's does."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.model.machine import Machine, MachineDevice
from hami_plugin.simulation.disturbed import FileSimulator
from hami_plugin.simulation.trees import Tree, plug, unplug, write_numa
from vendors.metax.cards import CONTROL, DRIVER, PCI_VENDOR
from vendors.metax.node import OPTIONAL_CONTROL
from vendors.metax.smi import LINKED

IDS = {"MXC500": "0x4001", "MXC600-A": "0x4081"}
FIRST_RENDER = 128
HEADER = "=================== MetaX System Management Interface Log ==================="
TOOL = "opt/mxdriver/bin/mx-smi"
PRINTED = "opt/mxdriver/printed"
SCRIPT = f"""\
#!/bin/sh
here="$(dirname "$0")/../printed"
if [ -e "$here/hangs" ]; then sleep 3600; fi
echo "{HEADER}"
case "$*" in
  -L) cat "$here"/list/* ;;
  --show-memory) cat "$here/memory" ;;
  "topo -m") cat "$here/topology" ;;
  *) echo "unknown option $*" >&2; exit 2 ;;
esac
"""


def simulate(machine: Machine, directory: Path) -> FileSimulator:
    """Write the machine into ``directory``, unless it is there already, with whatever faults it has by now."""
    stage = Stage(Tree(root=directory), machine)
    tree = stage.tree
    if not tree.written:
        stage.write()
        tree.done()
    faults = {
        "lost": stage.lose,
        "back": stage.restore,
        "unavailable": lambda one, value: stage.list(one, str(value or "Unavailable")),
        "no-node": lambda one, _value: tree.remove(f"dev/dri/renderD{FIRST_RENDER + one.index}"),
        "unbound": lambda one, _value: tree.remove(f"{_folder(one)}/drm"),
    }
    machine_faults = {
        "driver-gone": stage.unload,
        "driver-back": stage.write,
        "no-devices": stage.empty,
        "tool-gone": lambda: tree.remove(TOOL),
        "tool-hangs": lambda: tree.write(f"{PRINTED}/hangs", ""),
        "tool-garbled": lambda: tree.write(TOOL, "#!/bin/sh\necho segmentation fault >&2\nexit 139\n"),
        "tool-back": stage.write_tool,
    }
    return FileSimulator(machine, {**tree.settings, "mxSmi": str(directory / TOOL)}, faults, machine_faults)


class Stage:
    """The machine's files."""

    def __init__(self, tree: Tree, machine: Machine) -> None:
        self.tree = tree
        self._machine = machine

    def write(self) -> None:
        self.tree.write_all("sys/module/metax", {"version": "2.33.0"})
        for name in (CONTROL, *OPTIONAL_CONTROL):
            self.tree.write(f"dev/{name}", "")
        for one in self._machine.devices:
            self.restore(one, 0)
        write_numa(self.tree, self._machine.numa_nodes)
        self.write_tool()

    def restore(self, one: MachineDevice, _value: int | str) -> None:
        self._plug(one, DRIVER)
        for name in _names(one):
            self.tree.write_all(f"{_folder(one)}/drm/{name}", {"uevent": ""})
            self.tree.write(f"dev/dri/{name}", "")
        self.list(one, "Available")

    def list(self, one: MachineDevice, state: str) -> None:
        self.tree.write(f"{PRINTED}/list/{one.index:02}", f"{_row(one)}    {state} (UUID: {one.uuid})\n")

    def lose(self, one: MachineDevice, _value: int | str) -> None:
        unplug(self.tree, one, DRIVER)
        self.tree.remove(*(f"dev/dri/{name}" for name in _names(one)), f"{PRINTED}/list/{one.index:02}")

    def unload(self) -> None:
        self.empty()
        for one in self._machine.devices:
            self._plug(one, "")

    def empty(self) -> None:
        self.tree.remove("sys/module/metax", f"dev/{CONTROL}")
        for one in self._machine.devices:
            self.lose(one, 0)

    def write_tool(self) -> None:
        devices, lanes = self._machine.devices, self._machine.lanes
        memory = (f"{_row(one)}\n    vis_vram total    : {one.memory * 1024} KB\n" for one in devices)
        names = [f"GPU{one.index}" for one in devices]
        levels = ["\t".join(("", *names))]
        for i, name in enumerate(names):
            cells = (LINKED if lanes[i][j] else level for j, level in enumerate(self._machine.levels[i]))
            levels.append("\t".join((name, *cells)))
        self.tree.write(f"{PRINTED}/memory", "".join(memory))
        self.tree.write(f"{PRINTED}/topology", f"Attached GPUs    : {len(names)}\n" + "\n".join(levels) + "\n")
        self.tree.remove(f"{PRINTED}/hangs")
        self.tree.write(TOOL, SCRIPT)
        (self.tree.root / TOOL).chmod(0o755)

    def _plug(self, one: MachineDevice, driver: str) -> None:
        plug(self.tree, self._machine, one, vendor=f"0x{PCI_VENDOR}", device=IDS[one.model], driver=driver)


def _names(one: MachineDevice) -> tuple[str, str]:
    return f"card{one.index + 1}", f"renderD{FIRST_RENDER + one.index}"


def _row(one: MachineDevice) -> str:
    return f"GPU#{one.index}    {one.model}    {one.pci}"


def _folder(one: MachineDevice) -> str:
    return f"sys/bus/pci/devices/{one.pci}"
