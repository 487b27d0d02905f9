"""The kubelet's messages in the project's own words, and how large a device list may grow.

The kubelet reads at most 4 MiB at once; a longer list silently takes the resource down until the next registration.
So the size is computed before anything is sent, and a list that is too long is an error with the way out in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

from cdi.edits import ContainerEdits, DeviceNode, Mount
from hami_plugin.errors import HamiError
from hami_plugin.kubelet.v1beta1 import deviceplugin_pb2 as pb
from hami_plugin.model.delivery import Answer
from hami_plugin.model.device import physical_counts, physical_id, replica_ids
from hami_plugin.model.ports import Offer

API_VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
MAX_ID = 340
"""Characters in a device id: a device's name, of up to 320, and a share's number. The kubelet's API asks for 63, which
no kubelet looks at; names made of a node's are longer."""
MAX_LIST = 3_670_016
"""Bytes in a device list: 3.5 MiB, with room to the kubelet's 4."""
_MIB = 1 << 20


class OversizedListError(HamiError):
    """A device list that the kubelet would not read."""


def list_response(offers: Collection[Offer]) -> pb.ListAndWatchResponse:
    topologies = {numa: _topology(numa) for numa in {offer.numa for offer in offers}}
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=offer.id,
                health=HEALTHY if offer.healthy else UNHEALTHY,
                topology=topologies[offer.numa],
            )
            for offer in offers
        ]
    )


def offers_of(response: pb.ListAndWatchResponse) -> tuple[Offer, ...]:
    """What the kubelet makes of a list. Of several NUMA nodes the first is kept."""
    return tuple(
        Offer(
            id=device.ID,
            healthy=device.health == HEALTHY,
            numa=device.topology.nodes[0].ID if device.topology.nodes else None,
        )
        for device in response.devices
    )


def allocate_response(answer: Answer) -> pb.ContainerAllocateResponse:
    edits = answer.edits
    return pb.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.path, host_path=node.source, permissions=node.permissions)
            for node in edits.device_nodes
        ],
        annotations=answer.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi_devices],
    )


def answer_of(response: pb.ContainerAllocateResponse) -> Answer:
    """What a kubelet reads in a response."""
    edits = ContainerEdits(
        env=dict(response.envs),
        device_nodes=tuple(
            DeviceNode(path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in response.devices
        ),
        mounts=tuple(
            Mount(host_path=mount.host_path, container_path=mount.container_path, read_only=mount.read_only)
            for mount in response.mounts
        ),
    )
    return Answer(
        edits=edits,
        annotations=dict(response.annotations),
        cdi_devices=tuple(device.name for device in response.cdi_devices),
    )


def list_size(offers: Iterable[Offer]) -> int:
    """Bytes of the list with every device unhealthy, the longer word: a fault must not push a list over the limit."""
    return sum(_entry_size(len(offer.id.encode()), offer.numa) for offer in offers)


def require_list_fits(offers: Sequence[Offer], *, limit: int = MAX_LIST) -> None:
    """``OversizedListError`` when the list of these replicas exceeds ``limit`` bytes; it names the split that fits."""
    size = list_size(offers)
    if size <= limit:
        return
    devices = {physical_id(offer.id): offer.numa for offer in offers}
    shares = max(physical_counts(offer.id for offer in offers).values())
    fits = largest_split(devices, limit=limit)
    raise OversizedListError(
        f"{len(devices)} devices with {shares} shares each make a device list of {size / _MIB:.1f} MiB, "
        f"more than the {limit / _MIB:.1f} MiB that are safe to send to the kubelet",
        hint=f"the largest deviceSplitCount that fits is {fits}",
    )


def largest_split(devices: Mapping[str, int | None], *, limit: int = MAX_LIST) -> int:
    """The most shares that each of ``devices`` (UUID → NUMA node, if hinted) can have within ``limit`` bytes."""

    def size(shares: int) -> int:
        return sum(
            _entry_size(len(replica.encode()), numa)
            for uuid, numa in devices.items()
            for replica in replica_ids(uuid, shares)
        )

    if not devices:
        return 0
    ceiling = limit // size(1)
    return max(0, bisect_right(range(ceiling + 1), limit, key=size) - 1)


@cache
def _entry_size(id_length: int, numa: int | None) -> int:
    device = pb.Device(ID="x" * id_length, health=UNHEALTHY, topology=_topology(numa))
    return pb.ListAndWatchResponse(devices=[device]).ByteSize()


def _topology(numa: int | None) -> pb.TopologyInfo | None:
    return None if numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)])
