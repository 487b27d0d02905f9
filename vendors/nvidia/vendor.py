"""NVIDIA's entry in the vendors' contract. Importing it loads neither the driver library nor its binding."""

from __future__ import annotations

from pathlib import Path

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from hami_plugin.parity import Parity
from hami_plugin.vendor import Driver, Simulator, Vendor
from vendors.nvidia.family import families
from vendors.nvidia.host import HostTrees
from vendors.nvidia.settings import NvidiaSettings


def _open(settings: NvidiaSettings, paths: HostPaths) -> Driver:
    from vendors.nvidia.nvml import open_driver  # noqa: PLC0415  # listing vendors must not import the binding

    return open_driver(settings, paths)


def _present(settings: NvidiaSettings, paths: HostPaths) -> bool:
    trees = HostTrees(sysfs=settings.sysfs_root or paths.sysfs, proc=settings.proc_root or paths.proc)
    return settings.nvml_library is not None or trees.present()


def _simulate(machine: Machine, directory: Path) -> Simulator:
    from vendors.nvidia.simulation import simulate  # noqa: PLC0415  # needs a compiled library, and only here

    return simulate(machine, directory)


def _parity() -> Parity:
    from vendors.nvidia.scheduling.parity import parity  # noqa: PLC0415  # only comparisons with HAMi need it

    return parity()


VENDOR = Vendor(
    name="nvidia",
    title="NVIDIA GPUs",
    settings=NvidiaSettings,
    open=_open,
    present=_present,
    families=families,
    simulate=_simulate,
    parity=_parity,
    machine_vendors=("nvidia",),
)
