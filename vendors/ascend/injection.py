"""What a node registers of NPUs, and what a container receives: devices, driver files, its share.

HAMi's core for NPUs counts a container's memory in a file, which is read without mapping it and without trusting it.
It has one limit for all NPUs of a container, and a place for each of its processes. Nothing marks a version.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from cdi.spec import ContainerEdits, Mount
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths, opened_shared
from hami_plugin.model.delivery import Delivery, Way
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.model.usage import ContainerUsage, DeviceUsage, UsageState
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.sdk import DeviceNodes, Family, Injection, NodeSide, Partition, PartitionDriver, PartitionSide
from vendors.ascend import vnpu
from vendors.ascend.driver import CONTROL_NODES
from vendors.ascend.rules import NETWORKED, NODE_MODE, soft
from vendors.ascend.settings import MODULES, AscendSettings, Chip, shares
from vendors.ascend.vnpu import VnpuPartitions

FILE: Final = "vnpu_local_shmem"
LAYOUT: Final = "vnpu"
PROCESSES_AT, PROCESS_BYTES, MAX_PROCESSES = 1080, 80, 64
MAX_DEVICES = 8
MEMORY_TOLERANCE = 1.1
_LIMIT = struct.Struct("<Q")
_PROCESS = struct.Struct(f"<i4x{MAX_DEVICES}QI")
"""Its id, the bytes that it has of each of the container's NPUs, and whether it is there."""


def read_usage(folder: Path, shares: Sequence[Share]) -> ContainerUsage:
    """What a container uses of its NPUs, in the order in which it sees them. ``OSError`` where that cannot be read."""
    try:
        with opened_shared(folder, FILE) as file:
            content = os.pread(file, PROCESSES_AT + PROCESS_BYTES * MAX_PROCESSES, 0)
    except FileNotFoundError:
        return ContainerUsage(state=UsageState.ABSENT, detail="no process of the container has used an NPU yet")
    if len(content) < PROCESSES_AT + PROCESS_BYTES:
        return ContainerUsage(state=UsageState.CORRUPT, detail=f"the file has {len(content)} bytes")
    return usage(content, shares)


def usage(content: bytes, shares: Sequence[Share]) -> ContainerUsage:
    """By the file's content. A process with more memory than its NPU has is left out of that, and counted."""
    whole = range(PROCESSES_AT, len(content) - PROCESS_BYTES + 1, PROCESS_BYTES)
    found = (_PROCESS.unpack_from(content, place) for place in whole)
    processes = [used for pid, *used, there in found if pid > 0 and there]
    (limit,) = _LIMIT.unpack_from(content)
    devices, corrupt = [], 0
    for index, share in enumerate(shares[:MAX_DEVICES]):
        memory = share.device.memory << 20
        amounts = [used[index] for used in processes]
        true = [amount for amount in amounts if amount <= memory * MEMORY_TOLERANCE]
        corrupt += len(amounts) - len(true)
        devices.append(
            DeviceUsage(
                uuid=share.device.uuid,
                memory_used=min(sum(true), memory),
                memory_limit=min(limit, memory),
                utilization=None,
                core_limit=share.grant.cores,
                buffer=min(sum(true), memory),
            )
        )
    return ContainerUsage(
        state=UsageState.OK,
        layout=LAYOUT,
        devices=tuple(devices),
        processes=len(processes),
        corrupt_slots=corrupt,
    )


VISIBLE, TEMPLATE = "ASCEND_VISIBLE_DEVICES", "ASCEND_VNPU_SPECS"
VOID = "void"
"""Adds nothing in a container of Ascend's own runtime."""
OPTIONAL_NODES = ("dvpp_cmdlist", "ummu", "uburma")
DRIVER_FILES = (
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/etc/ascend_install.info",
    "/etc/hccl_rootinfo.json",
)
CORE, REGION = "hami-vnpu-core", "hami-shared-region"
"""Below HAMi's hook path: the library that shares NPUs, and what all its processes on the node have in common."""

# What becomes part of a host path. Kubernetes promises as much; a forged annotation or a peer may not.
_POD_UID = re.compile(r"[0-9a-fA-F-]{1,64}")
_CONTAINER = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


def inject(settings: AscendSettings, chip: Chip, assignment: Assignment, host: HostFiles) -> Injection:
    """The container's own edits, in the order of its grants, as HAMi's agent gives them."""
    left_to_runtime = settings.delivery.ways == (Way.ENVVAR,)
    numbers = ",".join(str(share.device.minor) for share in assignment.shares)
    visible = ContainerEdits(env={VISIBLE: numbers if Way.ENVVAR in settings.delivery.ways else VOID})
    if soft(assignment.pod):
        files = driver_files(settings) if left_to_runtime else ContainerEdits()
        return _shared(assignment, visible.merged(files), host)
    template = next((found for s in assignment.shares if (found := chip.template(s.grant.memory))), None)
    if template is None:
        return Injection(edits=visible)
    return Injection(edits=visible.merged(ContainerEdits(env={TEMPLATE: template.name})))


def _shared(assignment: Assignment, edits: ContainerEdits, host: HostFiles) -> Injection:
    """HAMi's core limits all NPUs of a container alike: by what was granted of the first."""
    for value, pattern in ((assignment.pod.uid, _POD_UID), (assignment.container.name, _CONTAINER)):
        if not pattern.fullmatch(value):
            raise RefusedError(
                RefusalReason.INVALID_REQUEST,
                f"{value[:80]!r} of pod {assignment.pod.key} is no pod UID or container name of Kubernetes",
                code="INVALID_ARGUMENT",
            )
    first = assignment.shares[0]
    core, region = host.paths.hook / CORE, host.paths.hook / REGION
    own = _folder(assignment.pod.uid, assignment.container.name, host.paths)
    limits = {"NPU_MEM_QUOTA": first.grant.memory, "NPU_PRIORITY": first.grant.cores}
    env = {
        **{name: str(amount) for name, amount in limits.items() if amount},
        "NPU_GLOBAL_SHM_PATH": f"/{REGION}/{first.device.minor}_global_registry",
        "NPU_LOCAL_SHM_PATH": f"/hami-vnpu-shmem/{FILE}",
    }
    mounts = (
        Mount(host_path=str(core), container_path=f"/{CORE}"),
        Mount(host_path=str(core / "ld.so.preload"), container_path="/etc/ld.so.preload"),
        Mount(host_path=str(region), container_path=f"/{REGION}", read_only=False),
        Mount(host_path=str(own), container_path="/hami-vnpu-shmem", read_only=False),
    )
    return Injection(edits=edits.merged(ContainerEdits(env=env, mounts=mounts)), directories=(region, own))


def folders(paths: HostPaths) -> Path:
    """Host directory with one directory for each container that has a share by HAMi's core."""
    return paths.hook / CORE / "containers"


def _folder(uid: str, container: str, paths: HostPaths) -> Path:
    return folders(paths) / f"{uid}_{container}"


def container_usage(uid: str, container: str, shares: Sequence[Share], host: HostFiles) -> ContainerUsage:
    """What a container uses by the account of HAMi's core in it. ``OSError`` where that cannot be read."""
    return read_usage(host.seen(_folder(uid, container, host.paths)), shares)


def device_edits(settings: AscendSettings, device: Device, host: HostFiles) -> ContainerEdits:
    """The node of one NPU. HamiError when it has none."""
    return DeviceNodes(host=host, root=settings.dev_root).need(f"davinci{device.minor}", whose=device.uuid)


def shared_edits(settings: AscendSettings, host: HostFiles) -> ContainerEdits:
    """The driver's own nodes and files, and what keeps Ascend's runtime away. HamiError without a node."""
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    control = nodes.need(*CONTROL_NODES, whose="Ascend's driver").merged(nodes.take(*OPTIONAL_NODES))
    return ContainerEdits(env={VISIBLE: VOID}).merged(control, driver_files(settings))


def driver_files(settings: AscendSettings) -> ContainerEdits:
    """Those of the driver's files that this host has, under the names that programs know."""
    there = (path for path in DRIVER_FILES if settings.seen(path).exists())
    return ContainerEdits(mounts=tuple(Mount(host_path=settings.on_host(p), container_path=p) for p in there))


def missing_core(settings: AscendSettings, host: HostFiles) -> str:
    """What hami-core mode lacks on this host, in words."""
    files = (host.paths.hook / CORE / name for name in ("libvnpu.so", "ld.so.preload"))
    missing: list[Path] = [file for file in files if settings.soft and not host.is_file(file)]
    return f"NPUs cannot be shared by HAMi's core without {missing[0]}; install it there" if missing else ""


_RING = 4
"""NPUs that are in one network, by their numbers, where they are not all in one."""


WHOLE_BY_CLAIMS = "NPUs that go by ResourceClaims are given out whole"


def node_side(settings: AscendSettings, family: Family) -> NodeSide:
    """The node side of the chip that the family is for."""
    chip = next(chip for chip in settings.chips if chip.device_type == family.resources.device_type)
    return NodeSide(
        replicas=lambda _device: replicas(chip),
        partitions=partition_side(settings, chip) if settings.cuts and chip.templates else None,
        whole_only=WHOLE_BY_CLAIMS if settings.front_end == "dra" and not settings.cut_for_claims else "",
        register=partial(register, settings, chip),
        notes={NODE_MODE: str(settings.soft).lower()},
        delivery=delivery(settings, chip),
        device_edits=partial(device_edits, settings),
        shared_edits=partial(shared_edits, settings),
        inject=partial(inject, settings, chip),
        host_problem=partial(missing_core, settings),
        usage=container_usage if settings.soft else None,
        folders=folders if settings.soft else None,
    )


def partition_side(settings: AscendSettings, chip: Chip) -> PartitionSide:
    """Virtual NPUs of one chip, which this node cuts itself."""
    return PartitionSide(
        open=partial(_open, settings, chip),
        reserved=partial(vnpu.reservations, chip),
        wanted=partial(vnpu.wanted_reservations, chip),
        inject=partial(inject_made, settings),
        names=partial(vnpu.names, chip),
        without=partial(vnpu.subtract_blocked, chip),
        edits=lambda _device, made, host: vnpu_node(settings, made, host),
        by_claims=True,
        whole=True,
        lasting=True,
    )


def _open(settings: AscendSettings, chip: Chip, host: HostFiles) -> PartitionDriver:
    return VnpuPartitions(settings, chip, host)


def inject_made(
    settings: AscendSettings, _assignment: Assignment, made: Sequence[Partition], host: HostFiles
) -> Injection:
    """The virtual NPU, under the name that the driver's programs look for."""
    edits = ContainerEdits(env={VISIBLE: VOID})
    if Way.DEVICE_SPECS in settings.delivery.ways:
        edits = edits.merged(shared_edits(settings, host), *(vnpu_node(settings, one, host) for one in made))
    return Injection(edits=edits)


def vnpu_node(settings: AscendSettings, made: Partition, host: HostFiles) -> ContainerEdits:
    """A virtual NPU's node. HamiError when it has none."""
    number = made.ids["vnpu"]
    (node,) = DeviceNodes(host=host, root=settings.dev_root).need(f"vdavinci{number}", whose=made.card).device_nodes
    return ContainerEdits(device_nodes=(replace(node, path=f"/dev/davinci{number}", host_path=node.source),))


def replicas(chip: Chip) -> int:
    """As many containers as there are smallest templates on a chip; one where it cannot be cut."""
    return shares(chip.memory_allocatable, (template.memory for template in chip.templates))


def register(settings: AscendSettings, chip: Chip, device: Device, _legacy: bool) -> DeviceInfo:
    """An NPU's entry in the node's register. Its number there is the driver's, by which 910C are paired."""
    custom = {"NetworkID": network(chip, device.index)} if chip.device_type.startswith(NETWORKED) else None
    return DeviceInfo(
        id=device.uuid,
        index=device.index,
        count=replicas(chip),
        devmem=device.memory,
        devcore=100 if settings.soft else chip.ai_cores,
        type=chip.device_type,
        numa=max(0, device.numa or 0),
        health=device.health.offered,
        custom=custom,
    )


def network(chip: Chip, number: int) -> int:
    """The network that HAMi's agent says an NPU is in: one for all 910C, else one for four."""
    return 0 if chip.device_type == MODULES or number < _RING else 1


def delivery(settings: AscendSettings, chip: Chip) -> Delivery:
    """Each chip has a CDI kind of its own, as ``hami.io/npu-910b3``."""
    name = re.sub(r"[^a-z0-9_-]", "-", chip.device_type.removeprefix("Ascend").lower()).strip("-_")
    return replace(settings.delivery, kind=f"{settings.delivery.kind}-{name}")
