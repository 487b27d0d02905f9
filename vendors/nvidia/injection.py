"""What a node registers of NVIDIA cards, and what a container receives: HAMi's environment and mounts, CDI devices.

The CDI spec is the daemon's own, or that of NVIDIA's tool (``nvidia-ctk cdi generate``), checked before anybody relies
on it.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cdi.documents import read
from cdi.errors import CdiError
from cdi.names import Kind, device_problem
from cdi.spec import ContainerEdits, DeviceNode, Mount, Spec, SpecDevice
from hami_plugin.errors import HamiError, RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.delivery import Delivery
from hami_plugin.model.device import Device, Snapshot, node_labels
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.model.usage import ContainerUsage, Pace
from hami_plugin.process.log import logger
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import Family, Injection, Leftovers, NodeSide, Parameter, Parameters, ToolError
from hami_plugin.sdk.tools import output
from vendors.nvidia.delivery import control_nodes, device_nodes, is_there, visible
from vendors.nvidia.driver_files import (
    DriverFiles,
    HookProgram,
    RootedTree,
    driver_mounts,
    driver_places,
    find_driver_files,
    find_hook,
)
from vendors.nvidia.dynamic_mig import former_side, mode_side, partition_side
from vendors.nvidia.host import FAMILY, VISIBLE, VOID, HostTrees, instance, instances, read_capabilities
from vendors.nvidia.instances import MIG_MODE, TYPE, family
from vendors.nvidia.region import Allotted, read_usage, write_limits, write_pace
from vendors.nvidia.rules import BOTH_KINDS
from vendors.nvidia.settings import NvidiaSettings

LOCK_FOLDER = "/tmp/vgpulock"  # noqa: S108  # where HAMi-core looks for its lock in a container
LOCK = "lock"
LIBRARY = "libvgpu.so"
LIMIT_FOR_ALL, LIMIT_OF_EACH = b"set core utilization limit to", b": core utilization limit = "
MIN_ROOM = 8 << 20
MAX_OF_LIBRARY = 64 * 1024 * 1024
USAGE_FILES = ".cache"
CONTAINERS = "vgpu/containers"
MEMORY_LIMIT, CORE_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"

# What becomes part of a host path. Kubernetes promises as much; a forged annotation or a peer may not.
_POD_UID = re.compile(r"[0-9a-fA-F-]{1,64}")
_CONTAINER = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_CARD = re.compile(r"GPU-[0-9A-Za-z-]{1,59}|MIG-[0-9A-Za-z/-]{1,80}")
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


def inject(settings: NvidiaSettings, delivery: Delivery, assignment: Assignment, host: HostFiles) -> Injection:
    """Describe the container's edits. The i-th limit is of the i-th card that the container sees.

    The hardware limits a container with MIG instances; HAMi-core adds nothing.
    """
    check_names(assignment)
    shares = sorted(assignment.shares, key=lambda share: share.device.order)
    devices = [share.device for share in shares]
    if any(map(instance, devices)):
        return Injection(edits=whole_edits(settings, delivery, devices, host))
    vgpu, folder = _vgpu(host), _folder(assignment.pod.uid, assignment.container.name, host.paths)
    edits = whole_edits(settings, delivery, devices, host).merged(
        _limits(settings, assignment, shares, vgpu, host),
        _library_mounts(settings, assignment, vgpu, folder, host),
    )
    return Injection(edits=edits, directories=(folder,))


def whole_edits(
    settings: NvidiaSettings, delivery: Delivery, devices: Sequence[Device], host: HostFiles
) -> ContainerEdits:
    """What cards and instances add whatever is shared of them."""
    return visible(delivery, [device.uuid for device in devices]).merged(
        _nodes(settings, devices, host), _features(settings)
    )


def leftovers(uid: str, container: str, paths: HostPaths) -> Leftovers:
    """The usage file and the lock of a container's former start, under the names that HAMi's plugin gives them too.

    HAMi-core joins a usage file that it finds, whatever library has written it and whatever limits it was made for. Of
    a killed process it keeps the bytes as used, for good where another program has its number now.
    """
    _require_names(uid, container, "the kubelet's checkpoint")
    return Leftovers(
        directory=_folder(uid, container, paths), names=(_usage_file(uid, container), LOCK), suffix=USAGE_FILES
    )


def _require_names(uid: str, container: str, origin: str) -> None:
    """``RefusedError`` where they could lead out of their directory."""
    for what, value, pattern in (("pod UID", uid, _POD_UID), ("container name", container, _CONTAINER)):
        if not pattern.fullmatch(value):
            message = f"{what} {value[:80]!r} in {origin} is not one that Kubernetes makes"
            raise RefusedError(RefusalReason.INVALID_REQUEST, message, code="INVALID_ARGUMENT")


def folders(paths: HostPaths) -> Path:
    """Host directory with a directory for each container that HAMi-core limits."""
    return paths.hook / CONTAINERS


def _folder(uid: str, container: str, paths: HostPaths) -> Path:
    """Host directory of one container's usage file, where HAMi's monitor looks for it."""
    return paths.hook / CONTAINERS / f"{uid}_{container}"


def container_usage(uid: str, container: str, shares: Sequence[Share], host: HostFiles) -> ContainerUsage:
    """What HAMi-core counts in a container, against the limits that it was given."""
    folder, name = _region(uid, container, host)
    return read_usage(folder, name, _allotted(shares), now_s=time.time())


def limit(uid: str, container: str, shares: Sequence[Share], host: HostFiles) -> None:
    """Give a container that runs the limits of these shares: all of them or none, then ``HamiError``.

    Memory is held to them at the next allocation. A process reads its cores when it starts.
    """
    if cut := next((share.device.uuid for share in shares if share.device.place or share.device.mode == MIG_MODE), ""):
        raise HamiError(
            f"{cut} is a MIG instance, or cut into some, whose size is the hardware's", hint="make a new pod"
        )
    folder, name = _region(uid, container, host)
    try:
        write_limits(folder, name, _allotted(shares))
    except FileNotFoundError as error:
        raise HamiError(
            "none of its processes has used a card yet, so that its limits are nowhere", hint="ask when one has"
        ) from error


def pace(uid: str, container: str, shares: Sequence[Share], wanted: Pace, host: HostFiles) -> None:
    """Let a container that runs start kernels, or hold it back, by HAMi-core's two switches for this."""
    folder, name = _region(uid, container, host)
    with suppress(FileNotFoundError):
        write_pace(folder, name, wanted, limited=any(0 < share.grant.cores < 100 for share in shares))


def _region(uid: str, container: str, host: HostFiles) -> tuple[Path, str]:
    _require_names(uid, container, "the daemon's journal")
    return host.seen(_folder(uid, container, host.paths)), _usage_file(uid, container)


def _allotted(shares: Sequence[Share]) -> Sequence[Allotted]:
    return [
        Allotted(
            uuid=share.device.uuid,
            memory_limit=(share.grant.memory or share.device.memory) << 20,
            core_limit=share.grant.cores,
            memory=max(share.grant.memory, share.device.memory) << 20,
        )
        for share in shares
    ]


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


def _nodes(settings: NvidiaSettings, devices: Sequence[Device], host: HostFiles) -> ContainerEdits:
    if not settings.pass_device_specs:
        return ContainerEdits()
    unknown = next((device.uuid for device in devices if device.minor is None), None)
    if unknown:
        raise RefusedError(
            RefusalReason.NOT_PREPARED,
            f"{unknown} has no device node that the driver knows of",
            hint="switch passDeviceSpecs off",
        )

    names = control_nodes(settings, host)
    for device in devices:
        names += [f"nvidia{device.minor}", *_capability_nodes(settings, device, host)]
    return device_nodes(settings, names)


def _capability_nodes(settings: NvidiaSettings, device: Device, host: HostFiles) -> tuple[str, ...]:
    """The two nodes that open an instance; none for a card. ``HamiError`` where the kernel lists none."""
    one = instance(device)
    if one is None:
        return ()
    found = read_capabilities(_proc(settings, host)).nodes(device.minor or 0, one.gi, one.ci)
    if not found:
        raise HamiError(
            f"the kernel lists no capability of {device.uuid} (GPU instance {one.gi}, compute instance {one.ci})",
            hint="it was unmade, or this process does not see the host's /proc/driver/nvidia-caps",
        )
    return found


def _features(settings: NvidiaSettings) -> ContainerEdits:
    wanted = {
        "NVIDIA_GDRCOPY": settings.gdrcopy_enabled,
        "NVIDIA_GDS": settings.gds_enabled,
        "NVIDIA_MOFED": settings.mofed_enabled,
    }
    return ContainerEdits(env={name: "enabled" for name, on in wanted.items() if on})


def _limits(
    settings: NvidiaSettings, assignment: Assignment, shares: Sequence[Share], vgpu: str, host: HostFiles
) -> ContainerEdits:
    # Without a limit, or with 0, HAMi-core tells a program that the card has 0 bytes. So it is all that the card has.
    env = {f"{MEMORY_LIMIT}_{i}": f"{share.grant.memory or share.device.memory}m" for i, share in enumerate(shares)}
    cores = [share.grant.cores for share in shares]
    env[CORE_LIMIT] = str(cores[0] if cores else 0)
    if len({percent or 100 for percent in cores}) > 1:
        if not settings.disable_core_limit:
            _require_limits_of_each(cores, _library(settings, vgpu, host), assignment, host)
        # HAMi gives all cards the first one's limit. A zero here would fall back to it, so 100 is "no limit".
        env |= {f"{CORE_LIMIT}_{i}": str(percent or 100) for i, percent in enumerate(cores)}
    own = _usage_file(assignment.pod.uid, assignment.container.name)
    env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{vgpu}/{own}"
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
    vgpu = _vgpu(host)
    preload = f"{vgpu}/ld.so.preload"
    missing = [path for path in (_library(settings, vgpu, host), preload) if not host.is_file(path)]
    if missing:
        return (
            f"no file {' and no file '.join(missing)} on the host; "
            "containers with limits do not start until HAMi-core is there"
        )
    return _preload_problem(preload, f"{vgpu}/{LIBRARY}", host) or _full(f"{vgpu}/containers", host)


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


def _library(settings: NvidiaSettings, vgpu: str, host: HostFiles) -> str:
    """HAMi-core under its versioned name where that is installed, else under the plain one."""
    plain = f"{vgpu}/{LIBRARY}"
    versioned = f"{plain}.{settings.libvgpu_version}"
    return versioned if settings.libvgpu_version and host.is_file(versioned) else plain


def _library_mounts(
    settings: NvidiaSettings, assignment: Assignment, vgpu: str, folder: Path, host: HostFiles
) -> ContainerEdits:
    """HAMi-core, its usage file's folder, its lock, and what makes every process load it."""
    mounts = [
        Mount(host_path=_library(settings, vgpu, host), container_path=f"{vgpu}/{LIBRARY}"),
        Mount(host_path=str(folder), container_path=vgpu, read_only=False),
        # A lock of the container's own. One for all, as HAMi has it, lets one container stall the others.
        Mount(host_path=str(folder), container_path=LOCK_FOLDER, read_only=False),
    ]
    if assignment.container.env.get("CUDA_DISABLE_CONTROL", "") not in _TRUE:
        mounts.append(Mount(host_path=f"{vgpu}/ld.so.preload", container_path="/etc/ld.so.preload"))
    if host.exists(f"{vgpu}/license"):
        mounts.append(Mount(host_path=f"{vgpu}/license", container_path="/tmp/license"))  # noqa: S108  # its place
        mounts.append(Mount(host_path=f"{vgpu}/vgpuvalidator", container_path="/usr/bin/vgpuvalidator"))
    return ContainerEdits(mounts=tuple(mounts))


log = logger(__name__)


def device_edits(settings: NvidiaSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The node of one card, and those with which it draws, or that open an instance of it. HamiError when the card has
    no node.
    """
    name = _card_node(settings, device, host)
    if instance(device):
        own = _capability_nodes(settings, device, host)
        return ContainerEdits(device_nodes=tuple(_node(settings, each) for each in (name, *own)))
    drawing = (f"dri/{node}" for node in _drawing_nodes(settings, device, host))
    nodes = (name, *(node for node in drawing if is_there(settings, node, host)))
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
    edits = ContainerEdits(
        env={VISIBLE: VOID}, device_nodes=tuple(_node(settings, name) for name in control_nodes(settings, host))
    )
    files, hook = driver_files(settings, host), hook_program(settings)
    reports.tell((*files.report(), hook.remark), found=files.place is not None)
    return edits.merged(driver_mounts(files, hook))


def slices(settings: NvidiaSettings, device: Device, host: HostFiles) -> Mapping[str, ContainerEdits]:
    """A card's MIG instances, each under its UUID and as ``<card>:<instance>``: the card's node, and their own two.

    An instance of which the kernel lists no capability cannot be opened, and is left out.
    """
    cut = instances(device)
    if not cut or device.mode == MIG_MODE:  # those that are made for containers have specs of their own
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
    return find_driver_files(driver_places(tree.host, tree.view), version)


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
    if not is_there(settings, name, host):
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


PARAMETERS = Parameters(
    fields={
        "corePolicy": Parameter(
            variable="GPU_CORE_UTILIZATION_POLICY",
            values={"default": "default", "force": "force", "disable": "disable"},
            granted=frozenset({"disable"}),
        ),
        "priority": Parameter(variable="CUDA_TASK_PRIORITY", values={0: "0", 1: "1"}),
        "oversubscribe": Parameter(
            variable="CUDA_OVERSUBSCRIBE", values={True: "true", False: "false"}, granted=frozenset({True})
        ),
        "logLevel": Parameter(variable="LIBCUDA_LOG_LEVEL", values={level: str(level) for level in range(5)}),
    }
)
"""What HAMi-core reads in a container beside its limits."""


def node_side(settings: NvidiaSettings, _family: Family) -> NodeSide:
    """Cards that containers share under HAMi-core's limits, cards cut for them, or MIG instances that exist."""
    if settings.operating_mode == MIG_MODE and not settings.cut_devices.some:
        return NodeSide(
            delivery=settings.delivery,
            device_edits=partial(device_edits, settings),
            shared_edits=partial(shared_edits, settings, Reports()),
            replicas=lambda _device: settings.device_split_count,
            register=partial(register_cut, settings),
            labels=partial(labels, settings),
            numa_hints=settings.enable_numa_topology,
            partitions=partition_side(settings, partial(card_type, legacy=False)),
            modes=mode_side(settings),
        )
    beside = settings.operating_mode == MIG_MODE  # some cards are cut, and the others are not: claims know one kind
    some = replace(partition_side(settings, partial(card_type, legacy=False)), by_claims=False)
    return replace(
        instances_side(settings),
        specification=None if beside else generator(settings),
        explain=partial(explain, settings),
        replicas=lambda device: 1 if device.place else settings.device_split_count,
        inject=partial(inject, settings, settings.delivery),
        host_problem=partial(missing_library, settings),
        limited=lambda device: not device.place and device.mode != MIG_MODE,
        labels=partial(labels, settings),
        leftovers=leftovers,
        parameters=PARAMETERS,
        usage=container_usage,
        limit=limit,
        pace=pace,
        folders=folders,
        numa_hints=settings.enable_numa_topology,
        register=partial(register_cut if beside else register, settings),
        notes={BOTH_KINDS: "true"} if beside else {},
        partitions=some if beside else former_side(settings),
        modes=mode_side(settings),
    )


def instances_side(settings: NvidiaSettings) -> NodeSide:
    """MIG instances, of which the kubelet hands out whole ones by itself, and so may know their NUMA node."""
    return NodeSide(
        delivery=settings.delivery,
        device_edits=partial(device_edits, settings),
        shared_edits=partial(shared_edits, settings, Reports()),
        slices=partial(slices, settings),
        register=partial(register, settings),
        lend=partial(whole_edits, settings, settings.delivery),
        labels=instance_labels,
        numa_hints=True,
    )


def instances_family(settings: NvidiaSettings, device_type: str) -> Family:
    """The instances of one profile."""
    return replace(family(device_type), node=instances_side(settings))


PLACES = 16
"""More instances than any card has: the register has one number for each device."""


def register(settings: NvidiaSettings, device: Device, legacy: bool) -> DeviceInfo:
    """A card's entry in the node's register. ``legacy`` is HAMi 2.7, which prefixes every model's name.

    An instance is a card with one share, of exactly what it has.
    """
    shared = not device.place
    return DeviceInfo(
        id=device.uuid,
        index=device.index if shared else device.index * PLACES + device.part,
        count=settings.device_split_count if shared else 1,
        devmem=int(device.memory * settings.device_memory_scaling) if shared else device.memory,
        devcore=int(settings.device_core_scaling * 100) if shared else 100,
        type=card_type(device.model, legacy=legacy),
        numa=max(0, device.numa or 0),
        mode=device.mode,
        health=device.health.offered,
    )


def register_cut(settings: NvidiaSettings, device: Device, legacy: bool) -> DeviceInfo:
    """The same, and of a card that is cut: nothing of it can be given out twice."""
    if device.mode != MIG_MODE:
        return register(settings, device, legacy)
    return replace(register(settings, device, legacy), devmem=device.memory, devcore=100)


def card_type(model: str, *, legacy: bool) -> str:
    """HAMi's schedulers find NVIDIA cards by NVIDIA in their type."""
    return model if model.startswith(FAMILY) and not legacy else f"{FAMILY}-{model}"


DOMAIN: Final = "nvidia.com"
GENERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"7.0": "volta", "7.5": "turing", "8.9": "ada-lovelace", "8": "ampere", "9": "hopper", "10": "blackwell"}
)
"""By compute capability, else by its first number."""


def labels(settings: NvidiaSettings, snapshot: Snapshot) -> Mapping[str, str]:
    """Labels of a node as NVIDIA's GPU feature discovery writes them, so that selectors that are in use go on working.

    Of its cards, or of their instances where these are served as cards.
    """
    if not snapshot.devices:
        return {}
    gpu = f"{DOMAIN}/gpu"
    shares = 1 if all(device.place for device in snapshot.devices) else settings.device_split_count
    found = {f"{gpu}.present": "true", **node_labels(gpu, snapshot.devices), f"{gpu}.replicas": str(shares)}
    found |= _capability_labels(snapshot.facts.get("capability", ""))
    found |= _version_labels(f"{DOMAIN}/cuda.driver-version", snapshot.facts.get("driver", ""))
    found |= _version_labels(f"{DOMAIN}/cuda.runtime-version", snapshot.facts.get("cuda", ""))
    if mig := snapshot.facts.get("mig"):
        found[f"{DOMAIN}/mig.capable"] = mig
    if settings.mig_strategy != "none":
        found[f"{DOMAIN}/mig.strategy"] = settings.mig_strategy
    return found


def instance_labels(snapshot: Snapshot) -> Mapping[str, str]:
    """The same, of instances that are resources of their own (strategy mixed)."""
    profiles: defaultdict[str, list[Device]] = defaultdict(list)
    for device in snapshot.devices:
        profiles[device.family.removeprefix(TYPE)].append(device)
    described_all = (node_labels(f"{DOMAIN}/mig-{profile}", some) for profile, some in profiles.items())
    return {key: text for one in described_all for key, text in one.items()}


def _capability_labels(capability: str) -> dict[str, str]:
    major, dot, minor = capability.partition(".")
    if not dot:
        return {}
    found = {f"{DOMAIN}/gpu.compute.major": major, f"{DOMAIN}/gpu.compute.minor": minor}
    generation = GENERATIONS.get(capability) or GENERATIONS.get("10" if major == "12" else major)
    return found | ({f"{DOMAIN}/gpu.family": generation} if generation else {})


def _version_labels(name: str, version: str) -> dict[str, str]:
    if not version:
        return {}
    parts = zip(("major", "minor", "revision"), version.split("."), strict=False)
    return {f"{name}.full": version, **{f"{name}.{part}": number for part, number in parts}}


PROGRAM = "nvidia-ctk"
DEADLINE_S = 4.0
"""The driver is open while the daemon runs, so the tool has no card to wake. Whoever waits for a spec has 5 s."""
_BUILT_IN = "the daemon's own description is used; set cdi.generator to builtin, or mend nvidia-ctk"
ALL = "all"


def specification(
    settings: NvidiaSettings, devices: Sequence[Device], _host: HostFiles, *, deadline_s: float = DEADLINE_S
) -> Spec:
    """What nvidia-ctk says of ``devices``, under our names. HamiError says why it cannot be used."""
    kind = Kind.parse(settings.delivery.kind)
    text = _output(_command(settings, kind), deadline_s)
    try:
        spec = read(text, f"{PROGRAM}.json")
    except CdiError as error:
        raise HamiError(f"{PROGRAM} writes a spec that no runtime would read: {error}", hint=_BUILT_IN) from error
    if spec.kind != kind:
        raise HamiError(f"{PROGRAM} describes {spec.kind}, and was asked for {kind}", hint=_BUILT_IN)
    return _under_our_names(spec, devices)


def generator(settings: NvidiaSettings) -> Callable[[Sequence[Device], HostFiles], Spec] | None:
    """The tool, if the settings choose it."""
    if settings.cdi_generator != PROGRAM:
        return None
    return lambda devices, host: specification(settings, devices, host)


def _command(settings: NvidiaSettings, kind: Kind) -> list[str]:
    """Without ``--output`` the tool writes to its standard output."""
    options = {
        "--format": "json",
        "--vendor": kind.vendor,
        "--class": kind.cls,
        "--device-name-strategy": "uuid",
        "--driver-root": str(settings.nvidia_driver_root),
        "--dev-root": str(settings.nvidia_dev_root or ""),
        "--nvidia-cdi-hook-path": str(settings.nvidia_cdi_hook_path or ""),
    }
    return [PROGRAM, "cdi", "generate", *(part for key, value in options.items() if value for part in (key, value))]


def _output(command: Sequence[str], deadline_s: float) -> str:
    program = shutil.which(command[0])
    if program is None:
        raise HamiError(f"{command[0]} is not installed here", hint=_BUILT_IN)
    try:
        return output(Path(program), *command[1:], deadline=deadline_s)
    except ToolError as error:
        raise HamiError(error.message, hint=_BUILT_IN) from error


def _under_our_names(spec: Spec, devices: Sequence[Device]) -> Spec:
    """Each card and instance under its UUID and its index, whatever else the tool knows left out but ``all``."""
    known = {device.name: device.edits for device in spec.devices}
    wanted = _names(devices)
    missing = sorted({part for parts in wanted.values() for part in parts if part not in known})
    if missing:
        raise HamiError(f"{PROGRAM} does not describe {', '.join(missing)}", hint=_BUILT_IN)
    edits = {name: ContainerEdits().merged(*(known[part] for part in parts)) for name, parts in wanted.items()}
    edits[ALL] = ContainerEdits().merged(*edits.values())
    return replace(spec, devices=tuple(SpecDevice(name=name, edits=each) for name, each in edits.items()))


def _names(devices: Sequence[Device]) -> Mapping[str, Sequence[str]]:
    """Our names, and what each is to the tool. It does not know a card that is cut: that is all of its instances."""
    names: dict[str, Sequence[str]] = {}
    for device in devices:
        if device.place:
            names |= {device.uuid: (device.uuid,), device.number: (device.uuid,)}
            continue
        cut = instances(device)
        parts = [one.uuid for one in cut] if device.traits is not None else [device.uuid]
        if parts:
            names |= {device.uuid: parts, str(device.index): parts}
        for one in cut:
            names |= {one.uuid: (one.uuid,), f"{device.index}:{one.index}": (one.uuid,)}
    return names
