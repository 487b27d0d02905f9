"""The node's half of the DCU family: what is registered, and what a container receives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdi.edits import ContainerEdits, Mount
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.links import Links
from hami_plugin.model.placement import Assignment, Grant
from hami_plugin.protocol.register import LEGACY_MODE, DeviceInfo, Refuses, encode_legacy
from hami_plugin.protocol.register import key as refuses_key
from hami_plugin.sdk import Driver, Injection, NodeSide
from hami_plugin.sdk.device_nodes import DeviceNodes
from hami_plugin.sdk.hardware import distances
from hami_plugin.sdk.polling import PollingDriver
from vendors.hygon.cards import DCUS, DEVICE_TYPE, Card, Looker, without_files
from vendors.hygon.places import Places
from vendors.hygon.settings import HygonSettings
from vendors.hygon.vdcu import PIPE, UNITS, number, part, text

CONTROL, OPTIONAL_CONTROL = "kfd", "mkfd"
INSIDE = "/etc/vdev/docker/"
DRIVER_INSIDE, HAL_INSIDE = "/opt/hygondriver", "/opt/hyhal"
_NAME = re.compile(r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,62}[0-9A-Za-z])?")


def open_driver(settings: HygonSettings, paths: HostPaths) -> Driver:
    """The DCU driver of this host. Nothing is read yet."""
    roots = paths.rooted(settings)
    return PollingDriver(Looker(roots, Places(settings.hy_smi), settings.vdcu_files), partial(links, roots))


def links(paths: HostPaths, devices: Sequence[Device]) -> Links:
    """How far apart the cards are on the PCI bus. The NUMA node is the device's: that of sysfs may be wrong."""
    numa = {device.pci: device.numa for device in devices}
    return distances(devices, [replace(one, numa=numa.get(one.address)) for one in DCUS.plugged(paths)])


def node_side(settings: HygonSettings) -> NodeSide:
    """DCUs that containers share. Their scheduler side reads the text of old, and waits for handshakes."""
    return NodeSide(
        replicas=lambda _device: settings.split_count,
        register=partial(register, settings),
        encode=encode_legacy,
        reports=True,
        inject=partial(inject, settings),
        place=partial(place, settings),
        announce=partial(announce, DEVICE_TYPE),
    ).delivered(settings, device_edits, shared_edits)


def announce(device_type: str, snapshot: Snapshot, _taken: AbstractSet[str]) -> Mapping[str, str | None]:
    """That only whole DCUs are handed out, while the host lacks what a part needs."""
    why = next((one.uncut for device in snapshot.devices if isinstance(one := device.traits, Card) and one.uncut), "")
    return {refuses_key(device_type): Refuses(what="parts", why=why).text} if why else {}


def register(settings: HygonSettings, device: Device, _legacy: bool) -> DeviceInfo:
    """The scheduler finds the family's word in the type, and the rest of it is the model."""
    kind = device.model if DEVICE_TYPE in device.model else f"{DEVICE_TYPE}-{device.model}"
    count, memory = settings.split_count, settings.offered(device.memory)
    return DeviceInfo.of(device, kind, count=count, memory=memory, numa=device.numa or 0, mode=LEGACY_MODE)


def card(device: Device) -> Card:
    """The traits of a DCU; ``RefusedError`` for one that never told them."""
    if isinstance(device.traits, Card):
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
    units = device.traits.compute_units if isinstance(device.traits, Card) else 0
    if not units or _whole(settings, grant, device):
        return grant
    return replace(grant, notes={**(grant.notes or {}), **part(grant.cores, units, others)})


def inject(settings: HygonSettings, assignment: Assignment, host: HostFiles) -> Injection:
    """For a part of one card, the file that says which part. Several cards are handed out whole, as by HAMi's agent."""
    shares = assignment.shares
    parts = [share for share in shares if not _whole(settings, share.grant, share.device)]
    if parts and (why := without_files(host, settings.vdcu_files)):
        raise RefusedError(RefusalReason.NOT_PREPARED, why)
    if len(shares) != 1 or _whole(settings, shares[0].grant, shares[0].device):
        return Injection(edits=ContainerEdits())
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
    said = text(device.pci, device.index, own, grant.memory or device.memory)
    return Injection(edits=ContainerEdits(mounts=mounts), directories=(folder,), files={file: said})


def _folder(assignment: Assignment, host: HostFiles) -> Path:
    """The container's own, on the host. ``RefusedError`` for names that could lead out of the folder of all."""
    pod, names = assignment.pod, (assignment.pod.uid, assignment.container.name)
    for name in names:
        if not _NAME.fullmatch(name):
            words = f"{name[:80]!r} of pod {pod.key} is no pod UID or container name of Kubernetes"
            raise RefusedError(RefusalReason.INVALID_REQUEST, words, code="INVALID_ARGUMENT")
    return host.paths.hook / "vgpu/dcu" / "_".join(names)


def _whole(settings: HygonSettings, grant: Grant, device: Device) -> bool:
    enough = grant.memory == 0 or grant.memory >= settings.offered(device.memory)
    return enough and grant.cores in (0, 100)
