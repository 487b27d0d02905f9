"""The cases of HAMi's own tests about what the node writes when a pod has its devices, or cannot have them."""

from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK
from tests.support.builders import grant, ids, pod
from tests.support.hami import asks
from tests.support.node import Node


async def after(case, node: Node, act) -> None:
    """The phase and the lock are in the end what they are for HAMi."""
    put, (expected,) = case["input"], case["expected"]["cluster_after"]["pods"].values()
    if put["cluster"]["nodes"]:
        (there,) = put["cluster"]["nodes"].values()
        node.cluster.annotate(**{NODE_LOCK: there["annotations"][NODE_LOCK].replace("{now}", "2026-08-21T10:11:12Z")})
    one = node.cluster.add(pod(put["pod"]["name"], pieces=[[grant(0)]]))

    await act(one)
    await node.settled()

    assert node.cluster.pod(one).annotations[BIND_PHASE] == expected["annotations"][BIND_PHASE]
    left = [node for node in case["expected"]["cluster_after"]["nodes"].values() if NODE_LOCK in node["annotations"]]
    assert (NODE_LOCK in node.cluster.node.annotations) is bool(left)


@asks("nvidia_device_plugin", "PodAllocationSuccess", "PodAllocationTrySuccess")
async def test_a_pod_that_has_all_its_devices_is_told_so_and_the_lock_is_free(case, node):
    async def allocate(_pod) -> None:
        await node.allocator.allocate(ids((0, 0)))

    await after(case, node, allocate)


@asks("nvidia_device_plugin", "PodAllocationFailed")
async def test_a_pod_that_cannot_have_them_is_told_so_and_the_lock_is_free(case, node):
    async def fail(one) -> None:
        node.settlement.fail(one)

    await after(case, node, fail)
