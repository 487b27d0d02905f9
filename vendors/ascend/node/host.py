"""What the kernel's file trees tell of NPUs, and why a driver that does not answer does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.sdk.pci import look
from vendors.ascend.node.codes import NOT_PERMITTED, DcmiError
from vendors.ascend.node.settings import NodeSettings

CONTROL_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
NPUS = Hardware(title="NPU", vendors=("19e5",), kinds=("1200",), module="drv_davinci")
"""Huawei's network cards are of another class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTrees:
    """``/sys`` and ``/dev`` of the node, wherever this process sees them."""

    sysfs: Path
    dev: Path

    @classmethod
    def of(cls, settings: NodeSettings, paths: HostPaths) -> HostTrees:
        return cls(sysfs=settings.sysfs_root or paths.sysfs, dev=settings.dev_root or paths.dev)

    def numa_node(self, address: str) -> int | None:
        """The NUMA node of a PCI address; None when the kernel does not know one."""
        return look(self.sysfs / "bus/pci/devices" / address).numa

    def plugged_in(self) -> int:
        """How many NPUs are on the bus, whatever drives them."""
        return len(NPUS.plugged(HostPaths(sysfs=self.sysfs)))

    def unavailable(self, problem: str, error: DcmiError | None = None) -> DriverUnavailableError:
        """The reason that explains most: no NPU, else no kernel module, else what the library said.

        Without ``error`` there is no library to ask.
        """
        count, manager = self.plugged_in(), self.dev / CONTROL_NODES[0]
        if not count:
            return DriverUnavailableError(
                DriverReason.NO_DEVICES, f"no NPU is on the PCI bus ({problem})", hint="npu-smi info lists them"
            )
        if not manager.exists():
            return DriverUnavailableError(
                DriverReason.NO_DRIVER,
                f"{count} NPUs are on the PCI bus, and {manager} is missing ({problem})",
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
