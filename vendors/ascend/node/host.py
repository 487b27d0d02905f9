"""What the kernel's file trees tell of NPUs, and why a driver that does not answer does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hami_plugin.errors import DriverReason, DriverUnavailableError
from vendors.ascend.node.dcmi import NOT_PERMITTED, DcmiError

CONTROL_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
_VENDOR, _ACCELERATOR = "0x19e5", "0x1200"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTrees:
    """``/sys`` and ``/dev`` of the node, wherever this process sees them."""

    sysfs: Path
    dev: Path

    def numa_node(self, address: str) -> int | None:
        """The NUMA node of a PCI address; None when the kernel does not know one."""
        text = _read(self._pci / address / "numa_node")
        return int(text) if text.isdecimal() else None

    def plugged_in(self) -> int:
        """How many NPUs are on the bus, whatever drives them. Huawei's network cards have another class."""
        folders = self._pci.glob("*")
        return sum(_read(f / "vendor") == _VENDOR and _read(f / "class").startswith(_ACCELERATOR) for f in folders)

    @property
    def _pci(self) -> Path:
        return self.sysfs / "bus/pci/devices"

    def unavailable(self, problem: str, error: DcmiError | None = None) -> DriverUnavailableError:
        """The reason that explains most: no NPU, else no kernel module, else what the library said.

        Without ``error`` there is no library to ask.
        """
        count = self.plugged_in()
        if not count:
            return DriverUnavailableError(
                DriverReason.NO_DEVICES, f"no NPU is on the PCI bus ({problem})", hint="npu-smi info lists them"
            )
        if not (self.dev / CONTROL_NODES[0]).exists():
            return DriverUnavailableError(
                DriverReason.NO_DRIVER,
                f"{count} NPUs are on the PCI bus, and {self.dev / CONTROL_NODES[0]} is missing ({problem})",
                hint="install Ascend's driver, or look in dmesg why its module was not loaded",
            )
        if error is None:
            return DriverUnavailableError(
                DriverReason.NO_LIBRARY,
                f"the driver's library cannot be loaded: {problem}",
                hint="mount the driver into this container, and set containerDriverRoot or dcmiLibrary",
            )
        if error.code == NOT_PERMITTED:
            return DriverUnavailableError(
                DriverReason.NO_PERMISSION, problem, hint="run the daemon as root, with the host's /dev"
            )
        return DriverUnavailableError(DriverReason.FAILED, problem, hint="npu-smi info shows whether the driver works")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
