"""What a node registers of DCUs, and what a container receives: whole DCUs, or virtual ones by a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from cdi.spec import ContainerEdits, Mount
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.protocol.nodes import LEGACY_MODE, DeviceInfo, Refuses, encode_legacy, refuses_key
from hami_plugin.sdk import DeviceNodes, Family, Injection, NodeSide
from vendors.hygon.driver import Dcu, without_files
from vendors.hygon.rules import DEVICE_TYPE
from vendors.hygon.settings import HygonSettings

ONE_FILE = "a container is told of a part of one DCU only; request one DCU or whole ones"
PIPES = 20
"""How many virtual DCUs a card can have."""
UNITS, PIPE = "units", "pipe"
_MASK_BITS = 64

Part = Mapping[str, Any]
"""Notes at a grant: a mask of compute units, and the pipe."""


def part(percent: int, units: int, others: Sequence[Grant]) -> Part:
    """So many of a card's compute units, those that the fewest ``others`` have: none is shared while there is room.

    Without a percentage it is all of them, which takes nothing away from anybody.
    """
    every = (1 << units) - 1
    notes = [other.notes or {} for other in others]
    masks = [mask for note in notes if (mask := int(note.get(UNITS, 0))) != every]
    taken = Counter(unit for mask in masks for unit in range(units) if mask >> unit & 1)
    chosen = sorted(range(units), key=lambda unit: (taken[unit], unit))[: max(1, units * percent // 100)]
    pipes = {note[PIPE] for note in notes if PIPE in note}
    return {
        UNITS: sum(1 << unit for unit in chosen) if percent else every,
        PIPE: next(number for number in count() if number not in pipes),
    }


def number(device: int, own: Part) -> int:
    """The virtual DCU's number on its node."""
    return device * PIPES + int(own[PIPE])


def text(address: str, device: int, own: Part, memory: int) -> str:
    """The file. ``memory`` is in MiB; compute units are two words of 64 bits."""
    mask = int(own[UNITS])
    return (
        f"PciBusId: {address}\n"
        f"cu_mask: 0x{mask & (1 << _MASK_BITS) - 1:016x}\n"
        f"cu_mask: 0x{mask >> _MASK_BITS:016x}\n"
        f"cu_count: {mask.bit_count()}\n"
        f"mem: {memory} MiB\n"
        f"device_id: {device}\n"
        f"vdev_id: {number(device, own)}\n"
        f"pipe_id: {own[PIPE]}\n"
        "enable: 1\n"
    )


CONTROL, OPTIONAL_CONTROL = "kfd", "mkfd"
INSIDE = "/etc/vdev/docker/"
DRIVER_INSIDE, HAL_INSIDE = "/opt/hygondriver", "/opt/hyhal"
_NAME = re.compile(r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,62}[0-9A-Za-z])?")


def node_side(settings: HygonSettings, _family: Family) -> NodeSide:
    """DCUs that containers share. Their scheduler side reads the text of old, and waits for handshakes."""
    return NodeSide(
        replicas=lambda _device: settings.split_count,
        register=partial(register, settings),
        encode=encode_legacy,
        reports=True,
        inject=partial(inject, settings),
        place=partial(place, settings),
        announce=partial(announce, DEVICE_TYPE),
        folders=_folders,
    ).delivered(settings, device_edits, shared_edits)


def announce(device_type: str, snapshot: Snapshot, _taken: AbstractSet[str]) -> Mapping[str, str | None]:
    """That only whole DCUs are handed out, while the host lacks what a part needs; and always so to a container of
    several.
    """
    if not snapshot.devices:
        return {}
    why = next((one.uncut for device in snapshot.devices if isinstance(one := device.traits, Dcu) and one.uncut), "")
    refuses = Refuses(what="parts", why=why) if why else Refuses(what="several", why=ONE_FILE)
    return {refuses_key(device_type): refuses.text}


def register(settings: HygonSettings, device: Device, _legacy: bool) -> DeviceInfo:
    """The scheduler finds the device type in the type, and the rest of it is the model."""
    kind = device.model if DEVICE_TYPE in device.model else f"{DEVICE_TYPE}-{device.model}"
    count, memory = settings.split_count, settings.offered(device.memory)
    return DeviceInfo.of(device, kind, count=count, memory=memory, numa=device.numa or 0, mode=LEGACY_MODE)


def card(device: Device) -> Dcu:
    """The traits of a DCU; ``RefusedError`` for one that never reported them."""
    if isinstance(device.traits, Dcu):
        return device.traits
    raise RefusedError(RefusalReason.UNHEALTHY_DEVICE, f"{device.uuid} has not told its device nodes")


def device_edits(settings: HygonSettings, device: Device, host: HostFiles) -> ContainerEdits:
    nodes, own = DeviceNodes(host=host, root=settings.dev_root), card(device)
    return nodes.need(f"dri/card{own.card}", f"dri/renderD{own.render}", whose=device.uuid)


def shared_edits(settings: HygonSettings, host: HostFiles) -> ContainerEdits:
    nodes = DeviceNodes(host=host, root=settings.dev_root)
    mounts = (Mount(host_path=str(settings.hyhal), container_path=HAL_INSIDE),) if host.exists(settings.hyhal) else ()
    control = nodes.need(CONTROL, whose="every DCU").merged(nodes.take(OPTIONAL_CONTROL))
    return control.merged(ContainerEdits(mounts=mounts))


def place(settings: HygonSettings, grant: Grant, device: Device, others: Sequence[Grant]) -> Grant:
    """Note which part of a card is meant, if it is a part."""
    units = device.traits.compute_units if isinstance(device.traits, Dcu) else 0
    if not units or _whole(settings, grant, device):
        return grant
    return replace(grant, notes={**(grant.notes or {}), **part(grant.cores, units, others)})


def inject(settings: HygonSettings, assignment: Assignment, host: HostFiles) -> Injection:
    """For a part of one card, the file that says which part."""
    shares = assignment.shares
    parts = [share for share in shares if not _whole(settings, share.grant, share.device)]
    if not parts:
        return Injection(edits=ContainerEdits())
    if why := without_files(host, settings.vdcu_files) or (ONE_FILE if len(shares) > 1 else ""):
        raise RefusedError(RefusalReason.NOT_PREPARED, why)
    grant, device = shares[0].grant, shares[0].device
    own = grant.notes or {}
    if not {UNITS, PIPE} <= own.keys():
        why = f"the driver does not tell how many compute units {device.uuid} has, so no part of it can be handed out"
        raise RefusedError(RefusalReason.NOT_PREPARED, why)
    folder = _folder(assignment, host)
    mounts = (
        Mount(host_path=str(folder), container_path=INSIDE, read_only=False),
        Mount(host_path=str(settings.vdcu_files), container_path=DRIVER_INSIDE),
    )
    file = folder / f"vdev{number(device.index, own)}.conf"
    content = text(device.pci, device.index, own, grant.memory or device.memory)
    return Injection(edits=ContainerEdits(mounts=mounts), directories=(folder,), files={file: content})


def _folder(assignment: Assignment, host: HostFiles) -> Path:
    """The container's own, on the host. ``RefusedError`` for names that could lead out of the folder of all."""
    pod, names = assignment.pod, (assignment.pod.uid, assignment.container.name)
    for name in names:
        if not _NAME.fullmatch(name):
            message = f"{name[:80]!r} of pod {pod.key} is no pod UID or container name of Kubernetes"
            raise RefusedError(RefusalReason.INVALID_REQUEST, message, code="INVALID_ARGUMENT")
    return _folders(host.paths) / "_".join(names)


def _folders(paths: HostPaths) -> Path:
    """Where each container with a part of a DCU has a folder, as with HAMi's agent."""
    return paths.hook / "vgpu/dcu"


def _whole(settings: HygonSettings, grant: Grant, device: Device) -> bool:
    enough = grant.memory == 0 or grant.memory >= settings.offered(device.memory)
    return enough and grant.cores in (0, 100)
