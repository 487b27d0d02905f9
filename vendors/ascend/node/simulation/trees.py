"""The files of a simulated machine that are not its library: PCI devices, device nodes, the driver's own files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hami_plugin.model.machine import Machine
from vendors.ascend.node.simulation.library import VERSION, Condition

_CONTROL_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
_INSTALLED = {
    "usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
    "usr/local/Ascend/driver/version.info": f"Version={VERSION}",
    "usr/local/dcmi/libdcmi.so": "",
    "usr/local/bin/npu-smi": "",
    "etc/ascend_install.info": "UserName=HwHiAiUser",
}


def write(machine: Machine, directory: Path, conditions: Sequence[Condition], *, loaded: bool) -> None:
    """Bring the files in line with what is plugged in, and with whether the kernel module is ``loaded``."""
    _files(directory / "root", _INSTALLED)
    for name in _CONTROL_NODES:
        _node(directory, name, there=loaded)
    for device, condition in zip(machine.devices, conditions, strict=True):
        folder = directory / "sys/bus/pci/devices" / device.pci
        if condition.present:
            _files(folder, {"vendor": "0x19e5", "class": "0x120000", "numa_node": str(device.numa)})
        else:
            shutil.rmtree(folder, ignore_errors=True)
        _node(directory, f"davinci{device.extra['phy_id']}", there=loaded and condition.present)


def _files(folder: Path, content: Mapping[str, str]) -> None:
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(f"{text}\n", encoding="ascii")


def _node(directory: Path, name: str, *, there: bool) -> None:
    path = directory / "dev" / name
    path.parent.mkdir(exist_ok=True)
    path.touch() if there else path.unlink(missing_ok=True)
