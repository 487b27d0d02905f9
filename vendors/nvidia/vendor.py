"""NVIDIA's entry in the vendors' contract. Importing it loads neither the driver library nor its binding."""

from __future__ import annotations

from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk import Vendor
from hami_plugin.sdk.lazy import deferred
from vendors.nvidia.family import families
from vendors.nvidia.host import HostTrees
from vendors.nvidia.settings import NvidiaSettings


def _present(settings: NvidiaSettings, paths: HostPaths) -> bool:
    trees = HostTrees(sysfs=settings.sysfs_root or paths.sysfs, proc=settings.proc_root or paths.proc)
    return settings.nvml_library is not None or trees.present()


VENDOR = Vendor(
    name="nvidia",
    title="NVIDIA GPUs",
    noun="GPU",
    settings=NvidiaSettings,
    families=families,
    open=deferred("vendors.nvidia.nvml.open_driver"),
    present=_present,
    simulate=deferred("vendors.nvidia.simulation.simulate"),
)
