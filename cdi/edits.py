"""What a device adds to a container: environment, device nodes, mounts, hooks, and how several add up.

The names are those of the CDI specification's ``containerEdits``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node. ``permissions`` is any of ``r``, ``w`` and ``m`` (mknod)."""

    path: str
    host_path: str = ""
    permissions: str = "rw"

    @property
    def source(self) -> str:
        return self.host_path or self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount of ``host_path`` at ``container_path``."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """The edits of one device, or of all devices of one container. Later additions follow earlier ones."""

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def merged(self, *others: ContainerEdits) -> ContainerEdits:
        """Add ``others`` in order: a later environment value wins, an identical node or mount stays once."""
        everything = (self, *others)
        return ContainerEdits(
            env={key: value for edits in everything for key, value in edits.env.items()},
            device_nodes=_once(node for edits in everything for node in edits.device_nodes),
            mounts=_once(mount for edits in everything for mount in edits.mounts),
        )


def _once(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
