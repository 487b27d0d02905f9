"""What NVIDIA's cards add to a container, for a runtime that reads CDI specs: nodes, driver files, MIG instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdi.edits import ContainerEdits, DeviceNode
from cdi.names import device_problem
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles
from hami_plugin.log import logger
from hami_plugin.model.device import Device
from vendors.nvidia import capabilities
from vendors.nvidia.driver_files import hooks
from vendors.nvidia.driver_files.hooks import HookProgram
from vendors.nvidia.driver_files.mounts import mounted
from vendors.nvidia.driver_files.search import DriverFiles, places, search
from vendors.nvidia.driver_files.tree import Tree
from vendors.nvidia.host import VISIBLE, VOID, HostTrees
from vendors.nvidia.injection import CONTROL_NODES
from vendors.nvidia.instances import instances

if TYPE_CHECKING:  # the driver also runs where pydantic is not installed
    from vendors.nvidia.settings import NvidiaSettings

log = logger(__name__)


def device_edits(settings: NvidiaSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The node of one card, and those with which it draws. HamiError when the card has no node."""
    name = _card_node(settings, device, host)
    drawing = (f"dri/{node}" for node in _drawing_nodes(settings, device, host))
    nodes = (name, *(node for node in drawing if _is_there(settings, node, host)))
    return ContainerEdits(device_nodes=tuple(_node(settings, node) for node in nodes))


class Reports:
    """Logs how the search went, and logs it again only when it went otherwise."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()

    def tell(self, report: tuple[str, ...], *, found: bool) -> None:
        if report != self._told:
            self._told = report
            (log.info if found else log.warning)("driver files looked for", found=found, report=report)


def shared_edits(settings: NvidiaSettings, reports: Reports, host: HostFiles) -> ContainerEdits:
    """The nodes of the driver as a whole, its libraries and programs, and a word to NVIDIA's runtime to stay away."""
    control = (name for name in CONTROL_NODES if _is_there(settings, name, host))
    edits = ContainerEdits(env={VISIBLE: VOID}, device_nodes=tuple(_node(settings, name) for name in control))
    files, hook = driver_files(settings, host), hook_program(settings)
    reports.tell((*files.report(), hook.remark), found=files.place is not None)
    return edits.merged(mounted(files, hook))


def slices(settings: NvidiaSettings, device: Device, host: HostFiles) -> Mapping[str, ContainerEdits]:
    """A card's MIG instances, each under its UUID and as ``<card>:<instance>``: the card's node, and their own two.

    An instance of which the kernel lists no capability cannot be opened, and is left out.
    """
    cut = instances(device)
    if not cut:
        return {}
    node, listed = _card_node(settings, device, host), capabilities.read(_proc(settings, host))
    named: dict[str, ContainerEdits] = {}
    for one in cut:
        own = listed.nodes(device.minor or 0, one.gi, one.ci)
        if not own:
            log.debug("kernel lists no capability of a MIG instance", card=device.uuid, instance=one.uuid)
            continue
        edits = ContainerEdits(device_nodes=tuple(_node(settings, name) for name in (node, *own)))
        # Drivers before R470 have UUIDs with a slash, which no CDI name can hold.
        names = (one.uuid, f"{device.index}:{one.index}")
        named |= {name: edits for name in names if device_problem(name) is None}
    return named


def explain(settings: NvidiaSettings, host: HostFiles) -> tuple[str, ...]:
    """Where the driver's files were looked for, which were found, and what is missing: one line for each fact."""
    return (*driver_files(settings, host).report(), hook_program(settings).remark)


def driver_files(settings: NvidiaSettings, host: HostFiles) -> DriverFiles:
    """The files of the driver that the kernel has loaded."""
    tree = _driver_tree(settings)
    version = HostTrees(sysfs=_sysfs(settings, host), proc=_proc(settings, host)).kernel_version()
    return search(places(tree.host, tree.view), version)


def hook_program(settings: NvidiaSettings) -> HookProgram:
    """The hook runs on the host itself, whatever the driver's root is."""
    tree, root = _driver_tree(settings), Path("/")
    own = Tree(host=root, view=root) if tree.host == tree.view else None
    configured = settings.nvidia_cdi_hook_path
    return hooks.find(str(configured) if configured else "", tree if tree.host == root else own)


def _driver_tree(settings: NvidiaSettings) -> Tree:
    """The driver's root, seen through the mount that this container has of it, or directly where there is none."""
    root, mounted_at = settings.nvidia_driver_root, settings.container_driver_root
    return Tree(host=root, view=mounted_at if mounted_at.is_dir() else root)


def _card_node(settings: NvidiaSettings, device: Device, host: HostFiles) -> str:
    if device.minor is None:
        raise HamiError(
            f"{device.uuid} has no device node that the driver knows of",
            hint="hand this node's cards over by envvar (deviceListStrategy)",
        )
    name = f"nvidia{device.minor}"
    if not _is_there(settings, name, host):
        raise HamiError(
            f"{device.uuid} has no node {settings.device_node(name)} on this host",
            hint="nvidia-smi makes it; set nvidiaDevRoot if the nodes are elsewhere",
        )
    return name


def _drawing_nodes(settings: NvidiaSettings, device: Device, host: HostFiles) -> Iterator[str]:
    """Names in ``/dev/dri`` of one card: programs that render or show pictures open them."""
    folder = _sysfs(settings, host) / "bus/pci/devices" / device.pci / "drm"
    if device.pci and folder.is_dir():
        yield from sorted(path.name for path in folder.iterdir() if path.name.startswith(("card", "renderD")))


def _node(settings: NvidiaSettings, name: str) -> DeviceNode:
    """A node under its usual path; its type and numbers are the host's, when the container is made."""
    path, source = f"/dev/{name}", str(settings.device_node(name))
    return DeviceNode(path=path, host_path="" if source == path else source)


def _is_there(settings: NvidiaSettings, name: str, host: HostFiles) -> bool:
    """A driver root of the host need not be where this process sees it; its ``/dev`` has the same nodes."""
    return host.exists(settings.device_node(name)) or host.exists(f"/dev/{name}")


def _sysfs(settings: NvidiaSettings, host: HostFiles) -> Path:
    return settings.sysfs_root or host.paths.sysfs


def _proc(settings: NvidiaSettings, host: HostFiles) -> Path:
    return settings.proc_root or host.paths.proc
