"""What a container is to get, in the words of the kubelet's device plugin API, and who can run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cdi.spec import DeviceNode, Mount
from hami_plugin.kubelet.api import deviceplugin_pb2 as api
from tests.runtimes import image
from tests.runtimes.inside import Inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One container. ``cdi`` are qualified names for the runtime; ``read`` are files of which to tell the content."""

    image: str = image.PLAIN
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    @classmethod
    def of_answer(cls, answer: api.ContainerAllocateResponse, **more: Any) -> Wanted:
        """Take one container's part of an Allocate answer, as the kubelet does."""
        return cls(
            env=dict(answer.envs),
            mounts=tuple(
                Mount(host_path=mount.host_path, container_path=mount.container_path, read_only=mount.read_only)
                for mount in answer.mounts
            ),
            devices=tuple(
                DeviceNode(path=node.container_path, host_path=node.host_path, permissions=node.permissions)
                for node in answer.devices
            ),
            annotations=dict(answer.annotations),
            cdi=tuple(device.name for device in answer.cdi_devices),
            **more,
        )


class RefusedError(Exception):
    """The runtime would not make or start the container; the message is the runtime's own."""


class Runtime(Protocol):
    def run(self, wanted: Wanted) -> Inside:
        """Run one container to its end and tell what it saw, or raise ``RefusedError``."""
