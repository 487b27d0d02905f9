"""How a container is given cards or MIG instances: by NVIDIA's variable, and by device nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdi.spec import ContainerEdits, DeviceNode, Mount
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.delivery import Delivery, Way
from vendors.nvidia.host import VISIBLE, VOID
from vendors.nvidia.settings import NvidiaSettings

DEVICE_LIST_FOLDER = "/var/run/nvidia-container-devices"
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def visible(delivery: Delivery, uuids: Sequence[str]) -> ContainerEdits:
    """Tell NVIDIA's runtime which cards or instances a container has."""
    if Way.VOLUME_MOUNTS in delivery.ways:
        mounts = tuple(
            Mount(host_path="/dev/null", container_path=f"{DEVICE_LIST_FOLDER}/{name}", read_only=False)
            for name in uuids
        )
        return ContainerEdits(env={VISIBLE: DEVICE_LIST_FOLDER}, mounts=mounts)
    if Way.ENVVAR in delivery.ways:
        return ContainerEdits(env={VISIBLE: ",".join(uuids)})
    # Where the runtime finds the cards in CDI specs, what an image says must open nothing in NVIDIA's own runtime.
    return ContainerEdits(env={VISIBLE: VOID} if delivery.cdi else {})


def is_there(settings: NvidiaSettings, name: str, host: HostFiles) -> bool:
    """A driver root of the host need not be where this process sees it; its ``/dev`` has the same nodes."""
    return host.exists(settings.device_node(name)) or host.exists(f"/dev/{name}")


def control_nodes(settings: NvidiaSettings, host: HostFiles) -> list[str]:
    """The driver's own nodes that there are."""
    return [name for name in CONTROL_NODES if is_there(settings, name, host)]


def device_nodes(settings: NvidiaSettings, names: Iterable[str]) -> ContainerEdits:
    """Nodes by their names below ``/dev``, each once."""
    nodes = (
        DeviceNode(path=f"/dev/{name}", host_path=str(settings.device_node(name))) for name in dict.fromkeys(names)
    )
    return ContainerEdits(device_nodes=tuple(nodes))
