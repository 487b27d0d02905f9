"""The files of a simulated machine that are not its library: PCI devices, device nodes, the driver's own files."""

from __future__ import annotations

from collections.abc import Sequence

from hami_plugin.model.machine import Machine
from hami_plugin.simulation.trees import Tree, plug, unplug, write_nodes, write_numa
from vendors.ascend.node.simulation.library import VERSION, Condition

_DRIVER = "davinci"
_PCI_MODELS = {"310P3": "0xd500", "910A": "0xd801", "Ascend910": "0xd803"}
_910B = "0xd802"
_CONTROL_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
_INSTALLED = {
    "usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
    "usr/local/Ascend/driver/version.info": f"Version={VERSION}\n",
    "usr/local/dcmi/libdcmi.so": "",
    "usr/local/bin/npu-smi": "",
    "etc/ascend_install.info": "UserName=HwHiAiUser\n",
}


def write(tree: Tree, machine: Machine, conditions: Sequence[Condition], *, loaded: bool) -> None:
    """Bring the files in line with what is plugged in, and with whether the kernel module is ``loaded``."""
    if not tree.written:
        for path, text in _INSTALLED.items():
            tree.write(f"root/{path}", text)
        write_numa(tree, machine.numa_nodes)
        tree.done()
    _nodes(tree, _CONTROL_NODES, there=loaded)
    for device, condition in zip(machine.devices, conditions, strict=True):
        if condition.present:
            model, driver = _PCI_MODELS.get(device.model, _910B), _DRIVER if loaded else ""
            plug(tree, machine, device, vendor="0x19e5", device=model, driver=driver)
        else:
            unplug(tree, device, _DRIVER)
        _nodes(tree, [f"davinci{device.extra['phy_id']}"], there=loaded and condition.present)


def _nodes(tree: Tree, names: Sequence[str], *, there: bool) -> None:
    if there:
        write_nodes(tree, names)
    else:
        tree.remove(*(f"dev/{name}" for name in names))
