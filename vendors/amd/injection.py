"""What a node registers of AMD's GPUs, and what a container receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import groupby

from cdi.spec import ContainerEdits, Mount
from hami_plugin.errors import RefusalReason, RefusedError
from hami_plugin.host.paths import HostFiles
from hami_plugin.model.device import Device, Snapshot
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.protocol.nodes import DeviceInfo, Refuses, refuses_key
from hami_plugin.sdk import DeviceNodes, Family, Injection, NodeSide
from vendors.amd.driver import LIMITER, gpu, unlimited
from vendors.amd.rules import DEVICE_TYPE
from vendors.amd.settings import AmdSettings

UNITS = "units"
"""Where a grant notes its compute units: their numbers on the card."""


def node_side(settings: AmdSettings, _family: Family) -> NodeSide:
    """Cards that containers share by compute units and memory."""
    return NodeSide(
        every_core=lambda device: gpu(device).units,
        replicas=lambda _device: settings.split_count,
        register=partial(register, settings),
        inject=inject,
        place=place,
        announce=partial(announce, DEVICE_TYPE),
    ).delivered(settings, device_edits, shared_edits)


def announce(device_type: str, snapshot: Snapshot, _taken: AbstractSet[str]) -> Mapping[str, str | None]:
    """That only whole cards are handed out, while nothing on the host would hold a container to a part."""
    why = next(filter(None, (gpu(device).unlimited for device in snapshot.devices)), "")
    return {refuses_key(device_type): Refuses(what="parts", why=why).text} if why else {}


def register(settings: AmdSettings, device: Device, _legacy: bool) -> DeviceInfo:
    """A card's entry: its cores are compute units. A model's name has no blanks there, as in AMD's node labels."""
    kind, numa = device.model.replace(" ", "_"), max(0, device.numa or 0)
    return DeviceInfo.of(device, kind, count=settings.split_count, cores=gpu(device).units, numa=numa)


def device_edits(settings: AmdSettings, device: Device, host: HostFiles) -> ContainerEdits:
    return DeviceNodes(host=host, root=settings.dev_root).need(*gpu(device).dev, whose=device.uuid)


def shared_edits(settings: AmdSettings, host: HostFiles) -> ContainerEdits:
    return DeviceNodes(host=host, root=settings.dev_root).need("kfd", whose="amdgpu")


def place(grant: Grant, device: Device, others: Sequence[Grant]) -> Grant:
    """Note which compute units a part of a card has: those that the fewest others have, so that none is shared while
    there is room.
    """
    total = gpu(device).units
    if not 0 < grant.cores < total:
        return grant
    taken = Counter(unit for other in others for unit in (other.notes or {}).get(UNITS, ()))
    chosen = sorted(range(total), key=lambda unit: (taken[unit], unit))[: grant.cores]
    return replace(grant, notes={**(grant.notes or {}), UNITS: sorted(chosen)})


def inject(assignment: Assignment, host: HostFiles) -> Injection:
    """Which GPUs, which of their compute units, and how much memory."""
    shares = sorted(assignment.shares, key=lambda share: share.device.index)
    env = {}
    names = [gpu(share.device).visible for share in shares]
    if all(names):  # partitions have no names of their own: the container sees those whose nodes it has
        env["ROCR_VISIBLE_DEVICES"] = ",".join(names)
    masks = {number: units for number, share in enumerate(shares) if (units := (share.grant.notes or {}).get(UNITS))}
    if masks:
        env["HSA_CU_MASK"] = ";".join(f"{number}:{_ranges(units)}" for number, units in masks.items())
    edits = ContainerEdits(env=env)
    parts = [share for share in shares if _part(share)]
    if parts and (why := unlimited(host)):
        held = f"{parts[0].grant.memory} MiB and {parts[0].grant.cores} compute units of {parts[0].device.uuid}"
        raise RefusedError(
            RefusalReason.NOT_PREPARED, f"a container cannot be held to {held}: {why}", code="UNAVAILABLE"
        )
    limits = [share for share in parts if 0 < share.grant.memory < share.device.memory]
    return Injection(edits=edits.merged(_limit(limits[0], host)) if limits else edits)


def _part(share: Share) -> bool:
    grant, device = share.grant, share.device
    return 0 < grant.memory < device.memory or 0 < grant.cores < gpu(device).units


def _limit(share: Share, host: HostFiles) -> ContainerEdits:
    """HAMi's limiter knows one limit for all of a container's cards: the first one's."""
    library = host.paths.hook / LIMITER
    inside = f"/usr/local/{LIMITER}"
    return ContainerEdits(
        env={"HIP_DEVICE_MEMORY_LIMIT": f"{share.grant.memory}m", "LD_AUDIT": inside},
        mounts=(Mount(host_path=str(library), container_path=inside),),
    )


def _ranges(units: Iterable[int]) -> str:
    """Sorted numbers as ``0-75,80``."""
    runs = [[unit for _, unit in run] for _, run in groupby(enumerate(units), key=lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
