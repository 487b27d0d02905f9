"""Device nodes of the host, as edits: a container finds them at their usual path, wherever the host keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cdi.edits import ContainerEdits, DeviceNode, Mount
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import DEV, HostFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNodes:
    """``root`` stands in for ``/dev`` on the host, as in a simulation."""

    host: HostFiles
    root: Path | None = None

    def need(self, *names: str, whose: str) -> ContainerEdits:
        """Nodes without which a device is of no use. ``HamiError`` names the first that is not there."""
        missing = next((name for name in names if not self._is_there(name)), None)
        if missing:
            raise HamiError(f"{whose} has no node {self._place(missing)} on this host", hint="its driver makes it")
        return self._edits(names)

    def take(self, *names: str) -> ContainerEdits:
        """Those of the nodes that are there."""
        return self._edits([name for name in names if self._is_there(name)])

    def _edits(self, names: tuple[str, ...] | list[str]) -> ContainerEdits:
        return ContainerEdits(device_nodes=tuple(self._node(name) for name in names))

    def _node(self, name: str) -> DeviceNode:
        """Its type and numbers are the host's, when the container is made."""
        return DeviceNode(path=str(DEV / name), host_path=str(self._place(name)) if self.root else "")

    def _place(self, name: str) -> Path:
        return (self.root or DEV) / name

    def _is_there(self, name: str) -> bool:
        return self.host.exists(self._place(name))


def mounted(host: HostFiles, files: Iterable[Path]) -> ContainerEdits:
    """Those of the host's files and folders that are there, read-only under the same names."""
    there = (str(file) for file in files if host.exists(file))
    return ContainerEdits(mounts=tuple(Mount(host_path=path, container_path=path) for path in there))
