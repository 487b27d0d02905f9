"""NVIDIA cards: discovery over NVML, XIDs, NVLink scores, MIG, and HAMi-core's injection.

Importing this package loads neither NVIDIA's library nor its binding.
"""

from __future__ import annotations

from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk import Vendor, lazy, serving
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
    families=serving(lazy("vendors.nvidia.rules:families"), lazy("vendors.nvidia.injection:node_side")),
    further=lazy("vendors.nvidia.injection:instances_family"),
    open=lazy("vendors.nvidia.driver:open_driver"),  # it loads NVIDIA's binding
    present=_present,
)
