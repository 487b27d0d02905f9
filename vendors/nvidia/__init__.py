"""NVIDIA cards: discovery over NVML, XIDs, NVLink scores, MIG, and HAMi-core's injection.

Importing this package loads neither NVIDIA's library nor its binding.
"""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk import Driver, Vendor, serving
from vendors.nvidia.host import HostTrees
from vendors.nvidia.injection import instances_side, node_side
from vendors.nvidia.instances import family
from vendors.nvidia.rules import families
from vendors.nvidia.settings import NvidiaSettings


def _present(settings: NvidiaSettings, paths: HostPaths) -> bool:
    trees = HostTrees(sysfs=settings.sysfs_root or paths.sysfs, proc=settings.proc_root or paths.proc)
    return settings.nvml_library is not None or trees.present()


def _open(settings: NvidiaSettings, paths: HostPaths) -> Driver:
    from vendors.nvidia.driver import open_driver  # noqa: PLC0415  # it loads NVIDIA's binding

    return open_driver(settings, paths)


VENDOR = Vendor(
    name="nvidia",
    title="NVIDIA GPUs",
    noun="GPU",
    settings=NvidiaSettings,
    families=serving(families, node_side),
    further=lambda settings, device_type: replace(family(device_type), node=instances_side(settings)),
    open=_open,
    present=_present,
)
