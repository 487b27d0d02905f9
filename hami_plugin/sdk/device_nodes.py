"""The host's device nodes as container edits. A container sees them at their usual paths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cdi.spec import ContainerEdits, DeviceNode, Mount
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import DEV, HostFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNodes:
    """``root`` replaces ``/dev`` on the host, for example in a simulation."""

    host: HostFiles
    root: Path | None = None

    def need(self, *names: str, whose: str) -> ContainerEdits:
        """Nodes that a device cannot work without. ``HamiError`` names the first that is missing."""
        missing = next((name for name in names if not self._is_there(name)), None)
        if missing:
            raise HamiError(
                f"{whose} has no node {self._place(missing)} on this host",
                hint="load its driver",
            )
        return self._edits(names)

    def take(self, *names: str) -> ContainerEdits:
        """The nodes that exist."""
        return self._edits([name for name in names if self._is_there(name)])

    def _edits(self, names: tuple[str, ...] | list[str]) -> ContainerEdits:
        return ContainerEdits(device_nodes=tuple(self._node(name) for name in names))

    def _node(self, name: str) -> DeviceNode:
        """The runtime takes type and numbers from the host when it creates the container."""
        return DeviceNode(path=str(DEV / name), host_path=str(self._place(name)) if self.root else "")

    def _place(self, name: str) -> Path:
        return (self.root or DEV) / name

    def _is_there(self, name: str) -> bool:
        return self.host.exists(self._place(name))


def mounted(host: HostFiles, files: Iterable[Path]) -> ContainerEdits:
    """Mount the host's files and directories that exist, read-only at the same paths."""
    there = (str(file) for file in files if host.exists(file))
    return ContainerEdits(mounts=tuple(Mount(host_path=path, container_path=path) for path in there))
