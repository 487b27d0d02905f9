"""What a node registers of NVIDIA cards, and what a container receives: HAMi's environment and mounts, CDI devices."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from cdi.edits import ContainerEdits, DeviceNode, Mount
from cdi.names import device_problem
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.log import logger
from hami_plugin.model.delivery import Way
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.protocol.register import DeviceInfo
from hami_plugin.sdk import Family, Injection, Leftovers, NodeSide
from vendors.nvidia.driver_files import DriverFiles, HookProgram, driver_places, find_hook, mounted, search
from vendors.nvidia.host import FAMILY, VISIBLE, VOID, HostTrees, instances, read_capabilities
from vendors.nvidia.host_files import RootedTree
from vendors.nvidia.settings import NvidiaSettings
from vendors.nvidia.toolkit import generator

DEVICE_LIST_FOLDER = "/var/run/nvidia-container-devices"
LOCK_FOLDER = "/tmp/vgpulock"  # noqa: S108  # where HAMi-core looks for its lock in a container
LOCK = "lock"
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
LIBRARY = "libvgpu.so"
LIMIT_FOR_ALL, LIMIT_OF_EACH = b"set core utilization limit to", b": core utilization limit = "
MIN_ROOM = 8 << 20
MAX_OF_LIBRARY = 64 * 1024 * 1024
USAGE_FILES = ".cache"
MEMORY_LIMIT, CORE_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"

# What becomes part of a host path. Kubernetes promises as much; a forged annotation or a peer may not.
_POD_UID = re.compile(r"[0-9a-fA-F-]{1,64}")
_CONTAINER = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_CARD = re.compile(r"GPU-[0-9A-Za-z-]{1,59}")
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


def inject(settings: NvidiaSettings, assignment: Assignment, host: HostFiles) -> Injection:
    """Describe the container's edits. The i-th limit is of the i-th card that the container sees."""
    check_names(assignment)
    shares = sorted(assignment.shares, key=lambda share: share.device.index)
    edits = _visible(settings, shares).merged(
        _nodes(settings, shares, host), _features(settings), _limits(settings, assignment, shares, host)
    )
    folder = container_folder(assignment, host)
    mounts = _library_mounts(settings, assignment, folder, host)
    return Injection(edits=edits.merged(ContainerEdits(mounts=mounts)), directories=(folder,))


def container_folder(assignment: Assignment, host: HostFiles) -> Path:
    """Host directory of one container's usage file, where HAMi's monitor looks for it."""
    return _folder(assignment.pod.uid, assignment.container.name, host.paths)


def leftovers(uid: str, container: str, paths: HostPaths) -> Leftovers:
    """The usage file and the lock of a container's former start, under the names that HAMi's plugin gives them too.

    HAMi-core joins a usage file that it finds, whatever library has written it and whatever limits it was made for. Of
    a killed process it keeps the bytes as used, for good where another program has its number now.
    """
    for what, value, pattern in (("pod UID", uid, _POD_UID), ("container name", container, _CONTAINER)):
        if not pattern.fullmatch(value):
            message = f"{what} {value[:80]!r} in the kubelet's checkpoint is not one that Kubernetes makes"
            raise RefusedError(RefusalReason.INVALID_REQUEST, message, code="INVALID_ARGUMENT")
    return Leftovers(
        directory=_folder(uid, container, paths), names=(_usage_file(uid, container), LOCK), suffix=USAGE_FILES
    )


def _folder(uid: str, container: str, paths: HostPaths) -> Path:
    return paths.hook / f"vgpu/containers/{uid}_{container}"


def check_names(assignment: Assignment) -> None:
    """Refuse names that could lead out of their directory, and a card that is listed twice."""
    uuids = [share.device.uuid for share in assignment.shares]
    checks = [
        ("pod UID", assignment.pod.uid, _POD_UID),
        ("container name", assignment.container.name, _CONTAINER),
        *(("device UUID", name, _CARD) for name in uuids),
    ]
    for what, value, pattern in checks:
        if not pattern.fullmatch(value):
            raise RefusedError(
                RefusalReason.INVALID_REQUEST,
                f"{what} {value[:80]!r} of pod {assignment.pod.key} is not one that Kubernetes or the driver makes",
                code="INVALID_ARGUMENT",
            )
    twice = next((name for name in uuids if uuids.count(name) > 1), None)
    if twice:
        raise RefusedError(
            RefusalReason.BAD_ANNOTATION,
            f'container "{assignment.container.name}" of pod {assignment.pod.key} is granted {twice} twice',
            hint="its limits could not be told apart; grant the sum once",
        )


def _visible(settings: NvidiaSettings, shares: Sequence[Share]) -> ContainerEdits:
    uuids = [share.device.uuid for share in shares]
    delivery = settings.delivery
    # Where the runtime finds the cards in CDI specs, what an image says must open nothing in NVIDIA's own runtime.
    edits = ContainerEdits(env={VISIBLE: VOID} if delivery.cdi else {})
    if Way.ENVVAR in delivery.ways:
        edits = edits.merged(ContainerEdits(env={VISIBLE: ",".join(uuids)}))
    if Way.VOLUME_MOUNTS in delivery.ways:
        mounts = tuple(
            Mount(host_path="/dev/null", container_path=f"{DEVICE_LIST_FOLDER}/{name}", read_only=False)
            for name in uuids
        )
        edits = edits.merged(ContainerEdits(env={VISIBLE: DEVICE_LIST_FOLDER}, mounts=mounts))
    return edits


def _nodes(settings: NvidiaSettings, shares: Sequence[Share], host: HostFiles) -> ContainerEdits:
    if not settings.pass_device_specs:
        return ContainerEdits()
    unknown = next((share.device.uuid for share in shares if share.device.minor is None), None)
    if unknown:
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"{unknown} has no device node that the driver knows of",
            hint="switch passDeviceSpecs off",
        )

    names = [name for name in CONTROL_NODES if _is_there(settings, name, host)]
    names += [f"nvidia{share.device.minor}" for share in shares]
    return ContainerEdits(
        device_nodes=tuple(DeviceNode(path=f"/dev/{name}", host_path=str(settings.device_node(name))) for name in names)
    )


def _is_there(settings: NvidiaSettings, name: str, host: HostFiles) -> bool:
    """A driver root of the host need not be where this process sees it; its ``/dev`` has the same nodes."""
    return host.exists(settings.device_node(name)) or host.exists(f"/dev/{name}")


def _features(settings: NvidiaSettings) -> ContainerEdits:
    wanted = {
        "NVIDIA_GDRCOPY": settings.gdrcopy_enabled,
        "NVIDIA_GDS": settings.gds_enabled,
        "NVIDIA_MOFED": settings.mofed_enabled,
    }
    return ContainerEdits(env={name: "enabled" for name, on in wanted.items() if on})


def _limits(
    settings: NvidiaSettings, assignment: Assignment, shares: Sequence[Share], host: HostFiles
) -> ContainerEdits:
    # Without a limit, or with 0, HAMi-core tells a program that the card has 0 bytes. So it is all that the card has.
    env = {f"{MEMORY_LIMIT}_{i}": f"{share.grant.memory or share.device.memory}m" for i, share in enumerate(shares)}
    cores = [share.grant.cores for share in shares]
    env[CORE_LIMIT] = str(cores[0] if cores else 0)
    if len({percent or 100 for percent in cores}) > 1:
        if not settings.disable_core_limit:
            _require_limits_of_each(cores, _library(settings, host), assignment, host)
        # HAMi gives all cards the first one's limit. A zero here would fall back to it, so 100 is "no limit".
        env |= {f"{CORE_LIMIT}_{i}": str(percent or 100) for i, percent in enumerate(cores)}
    own = _usage_file(assignment.pod.uid, assignment.container.name)
    env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{_vgpu(host)}/{own}"
    if settings.device_memory_scaling > 1:  # no open build of HAMi-core reads it; HAMi says it to those that may
        env["CUDA_OVERSUBSCRIBE"] = "true"
    if settings.lib_cuda_log_level is not None:
        env["LIBCUDA_LOG_LEVEL"] = str(settings.lib_cuda_log_level)
    if settings.disable_core_limit:
        env["GPU_CORE_UTILIZATION_POLICY"] = "disable"
    return ContainerEdits(env=env)


def _require_limits_of_each(cores: Sequence[int], library: str, assignment: Assignment, host: HostFiles) -> None:
    """Refuse limits that differ where HAMi-core is known to hold all cards to the first one's.

    After a first card without a limit it would limit nothing. A build says in its log how it understands the limits,
    and what it can say stands in its file.
    """
    try:
        content = host.read(library, most=MAX_OF_LIBRARY)
    except OSError:
        return  # before the container starts it must be there
    if LIMIT_FOR_ALL in content and LIMIT_OF_EACH not in content:
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f'container "{assignment.container.name}" of pod {assignment.pod.key} is granted '
            f"{', '.join(map(str, cores))} percent of its cards' cores, and {library} on the host is a HAMi-core "
            "that has one limit for all cards",
            hint="install HAMi-core of after April 2026 (HAMi 2.8.2, 2.9 or newer), or grant as much of each card",
        )


def _usage_file(uid: str, container: str) -> str:
    """The same for the same container, so that an Allocate that is repeated gives the same answer."""
    return f"{uuid.uuid5(uuid.NAMESPACE_OID, f'{uid}/{container}')}{USAGE_FILES}"


def missing_library(settings: NvidiaSettings, host: HostFiles) -> str:
    """What of HAMi-core this host lacks. A container that started without it would have no limits."""
    preload = f"{_vgpu(host)}/ld.so.preload"
    missing = [path for path in (_library(settings, host), preload) if not host.is_file(path)]
    if missing:
        return (
            f"no file {' and no file '.join(missing)} on the host; "
            "containers with limits do not start until HAMi-core is there"
        )
    return _preload_problem(preload, f"{_vgpu(host)}/{LIBRARY}", host) or _full(f"{_vgpu(host)}/containers", host)


def _full(folders: str, host: HostFiles) -> str:
    """A usage file is made whole by its first program, which dies where there is no room for it."""
    room = host.room(folders)
    if room is None or room >= MIN_ROOM:
        return ""
    return (
        f"the file system of {folders} has less than {MIN_ROOM >> 20} MiB left, and HAMi-core needs 2 MiB for each "
        f"container, or its programs die; look for a container that has filled its folder (du -s {folders}/*)"
    )


def _preload_problem(preload: str, mounted: str, host: HostFiles) -> str:
    try:
        named = _preloaded(host.read(preload).decode(errors="replace"))
    except OSError as error:
        return f"{preload} on the host cannot be read: {error.strerror or error}"
    if mounted in named:
        return ""
    return (
        f"{preload} names {' and '.join(named) or 'no library'}, and not {mounted}, where containers have HAMi-core, "
        "so that no program would load it; write that path into it, or set hookPath as HAMi-core was installed"
    )


def _preloaded(text: str) -> list[str]:
    """The libraries that the loader reads out of a preload file."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return [name for line in lines for name in re.split(r"[\s:]+", line) if name]


def _vgpu(host: HostFiles) -> str:
    """Host directory of HAMi-core. Paths below it are put together as text, which is what becomes of them."""
    return str(host.paths.hook / "vgpu")


def _library(settings: NvidiaSettings, host: HostFiles) -> str:
    """HAMi-core under its versioned name where that is installed, else under the plain one."""
    plain = f"{_vgpu(host)}/{LIBRARY}"
    versioned = f"{plain}.{settings.libvgpu_version}"
    return versioned if settings.libvgpu_version and host.is_file(versioned) else plain


def _library_mounts(
    settings: NvidiaSettings, assignment: Assignment, folder: Path, host: HostFiles
) -> tuple[Mount, ...]:
    """HAMi-core, its usage file's folder, its lock, and what makes every process load it."""
    vgpu = _vgpu(host)
    mounts = [
        Mount(host_path=_library(settings, host), container_path=f"{vgpu}/{LIBRARY}"),
        Mount(host_path=str(folder), container_path=vgpu, read_only=False),
        # A lock of the container's own. One for all, as HAMi has it, lets one container stall the others.
        Mount(host_path=str(folder), container_path=LOCK_FOLDER, read_only=False),
    ]
    if assignment.container.env.get("CUDA_DISABLE_CONTROL", "") not in _TRUE:
        mounts.append(Mount(host_path=f"{vgpu}/ld.so.preload", container_path="/etc/ld.so.preload"))
    if host.exists(f"{vgpu}/license"):
        mounts.append(Mount(host_path=f"{vgpu}/license", container_path="/tmp/license"))  # noqa: S108  # its place
        mounts.append(Mount(host_path=f"{vgpu}/vgpuvalidator", container_path="/usr/bin/vgpuvalidator"))
    return tuple(mounts)


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
        self._logged: tuple[str, ...] = ()

    def tell(self, report: tuple[str, ...], *, found: bool) -> None:
        if report != self._logged:
            self._logged = report
            (log.info if found else log.warning)("driver files looked for", found=found, report=report)


def shared_edits(settings: NvidiaSettings, reports: Reports, host: HostFiles) -> ContainerEdits:
    """The nodes of the driver as a whole, its libraries and programs, and what keeps NVIDIA's runtime away."""
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
    node, listed = _card_node(settings, device, host), read_capabilities(_proc(settings, host))
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
    return search(driver_places(tree.host, tree.view), version)


def hook_program(settings: NvidiaSettings) -> HookProgram:
    """The hook runs on the host itself, whatever the driver's root is."""
    tree, root = _driver_tree(settings), Path("/")
    own = RootedTree(host=root, view=root) if tree.host == tree.view else None
    configured = settings.nvidia_cdi_hook_path
    return find_hook(str(configured) if configured else "", tree if tree.host == root else own)


def _driver_tree(settings: NvidiaSettings) -> RootedTree:
    """The driver's root, seen through the mount that this container has of it, or directly where there is none."""
    root, mounted_at = settings.nvidia_driver_root, settings.container_driver_root
    return RootedTree(host=root, view=mounted_at if mounted_at.is_dir() else root)


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


def _sysfs(settings: NvidiaSettings, host: HostFiles) -> Path:
    return settings.sysfs_root or host.paths.sysfs


def _proc(settings: NvidiaSettings, host: HostFiles) -> Path:
    return settings.proc_root or host.paths.proc


def node_side(settings: NvidiaSettings, _family: Family) -> NodeSide:
    """Cards that containers share under HAMi-core's limits, and MIG instances."""
    return NodeSide(
        delivery=settings.delivery,
        device_edits=partial(device_edits, settings),
        shared_edits=partial(shared_edits, settings, Reports()),
        slices=partial(slices, settings),
        specification=generator(settings),
        explain=partial(explain, settings),
        replicas=lambda _device: settings.device_split_count,
        register=partial(register, settings),
        inject=partial(inject, settings),
        host_problem=partial(missing_library, settings),
        leftovers=leftovers,
        numa_hints=settings.enable_numa_topology,
    )


def register(settings: NvidiaSettings, device: Device, legacy: bool) -> DeviceInfo:
    """A card's entry in the node's register. ``legacy`` is HAMi 2.7, which prefixes every model's name."""
    return DeviceInfo(
        id=device.uuid,
        index=device.index,
        count=settings.device_split_count,
        devmem=int(device.memory * settings.device_memory_scaling),
        devcore=int(settings.device_core_scaling * 100),
        type=card_type(device.model, legacy=legacy),
        numa=max(0, device.numa or 0),
        mode=device.mode,
        health=device.health.offered,
    )


def card_type(model: str, *, legacy: bool) -> str:
    """HAMi's schedulers find NVIDIA cards by NVIDIA in their type."""
    return model if model.startswith(FAMILY) and not legacy else f"{FAMILY}-{model}"
