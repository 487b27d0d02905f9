"""Who has what of all nodes' devices, by the pods' annotations and by each kubelet: nothing may be given twice."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import grpc

from hami_plugin.kubelet.api.podresources_pb2 import AllocatableResourcesRequest, ListPodResourcesRequest
from hami_plugin.kubelet.api.podresources_pb2_grpc import PodResourcesListerStub
from hami_plugin.simulation.machines import load_machine
from tests.realnode.api import Object
from tests.realnode.node import Node

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
BITS = "AWSNeuron"
"""Of this device type, the cores of a share are bits: each is a core of the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one container has of one device: MiB of memory, and percent of the cores, or their bits."""

    node: str
    pod: str
    device_type: str
    device: str
    memory: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What there is of a device, and of how many shares."""

    count: int
    memory: int
    cores: int


SHARES: Mapping[str, int] = MappingProxyType({"nvidia": 10, "ascend": 4})
"""Of each device, by the vendor, as the chart has it by default."""


def capacity(node: str, profiles: str) -> Mapping[str, Whole]:
    """By device, what a node has on which these machines are simulated."""
    found: dict[str, Whole] = {}
    for machine in map(load_machine, profiles.split(",")):
        for device in machine.devices:
            if machine.vendor in SHARES:
                found[device.uuid] = Whole(count=SHARES[machine.vendor], memory=device.memory, cores=100)
            else:
                cores = device.extra["nc_count"]
                found[f"{node}-{BITS}-{device.index}"] = Whole(count=cores, memory=0, cores=(1 << cores) - 1)
    return found


def given(pods: Iterable[Object]) -> Iterator[Share]:
    """Everything that pods have which are bound and have not ended, as their annotations say."""
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if not node or pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        annotations = pod["metadata"].get("annotations", {})
        for text in (text for key, text in annotations.items() if key.endswith("-devices-allocated")):
            for part in text.replace(";", ":").split(":"):
                if part:
                    device, device_type, memory, cores, *_ = part.split(",")
                    yield Share(
                        node=node,
                        pod=pod["metadata"]["name"],
                        device_type=device_type,
                        device=device,
                        memory=int(memory),
                        cores=int(cores),
                    )


def overdrawn(shares: Iterable[Share], there: Mapping[str, Mapping[str, Whole]]) -> list[str]:
    """The devices of which more is given than is ``there``, by node and device; and those that are not there."""
    of_device: dict[tuple[str, str], list[Share]] = defaultdict(list)
    for share in shares:
        of_device[share.node, share.device].append(share)
    return [
        f"{device} on {node}: {', '.join(map(str, found))}"
        for (node, device), found in of_device.items()
        if (whole := there[node].get(device)) is None or not _suffices(whole, found)
    ]


def _suffices(whole: Whole, shares: Sequence[Share]) -> bool:
    if len(shares) > whole.count or sum(share.memory for share in shares) > whole.memory:
        return False
    if any(share.device_type == BITS for share in shares):
        taken = 0
        for share in shares:
            if share.cores & taken or share.cores & ~whole.cores:
                return False
            taken |= share.cores
        return True
    return sum(share.cores for share in shares) <= whole.cores


def held(node: Node) -> Counter[tuple[str, str]]:
    """How often each id of each resource is a container's, as the node's kubelet says."""
    with grpc.insecure_channel(f"unix:{node.path(SOCKET)}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        answer = PodResourcesListerStub(channel).List(ListPodResourcesRequest(), timeout=20)
    return Counter(
        (devices.resource_name, one)
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
        for one in devices.device_ids
    )


def offered(node: Node, resource: str) -> int:
    """How many healthy ids of a resource the node's kubelet has, by its own word; 0 while it does not answer."""
    try:
        with grpc.insecure_channel(f"unix:{node.path(SOCKET)}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            answer = PodResourcesListerStub(channel).GetAllocatableResources(AllocatableResourcesRequest(), timeout=5)
    except grpc.RpcError:
        return 0
    return sum(len(devices.device_ids) for devices in answer.devices if devices.resource_name == resource)


def twice(nodes: Iterable[Node]) -> list[str]:
    """The ids that a kubelet has given to two containers."""
    return [f"{node.name}: {one} {times} times" for node in nodes for one, times in held(node).items() if times > 1]
