"""The whole daemon with cards that have been cut beforehand: who has which partition outlives the daemon."""

from __future__ import annotations

from typing import Any

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.model.views import NodeView, pod_view
from hami_plugin.protocol import keys
from tests.e2e.manifests import manifest
from tests.support.rigs import decision

SLICES = "enflame.com/drs-gcu"
CAPACITY = "enflame.com/gcu-drs-capacity"


def annotated(stage: SimulatedNode) -> dict[str, str]:
    return dict(stage.api.node(NODE)["metadata"].get("annotations", {}))


async def partition(stage: SimulatedNode, name: str) -> str:
    """What a pod with two slices of the node's last card receives."""
    limits = {SLICES: "2"}
    made = pod_view(stage.api.create_pod(manifest(name, [{"name": "main", "resources": {"limits": limits}}])))
    node = NodeView(name=NODE, annotations=annotated(stage))
    told = {**decision(stage.family, node, made), keys.ASSIGNED_NODE: NODE, keys.BIND_PHASE: keys.PHASE_ALLOCATING}
    stage.api.annotate_pod(made.namespace, made.name, told)
    pod = pod_view(stage.api.bind(made.namespace, made.name, NODE))
    await stage.kubelet.admit(pod)
    answer = await stage.kubelet.start_container(pod.uid, "main")
    stage.api.set_phase(pod.namespace, pod.name, "Running")
    return answer.edits.env["TOPS_VISIBLE_DEVICES"]


async def test_partitions_are_handed_out_once_also_after_a_restart(set_up: Any) -> None:
    stage: SimulatedNode = await set_up("enflame-s60-8", vendors={"enflame": {"serve": "partitions"}})
    stage.hardware.simulator.inject("partitions")
    for _ in range(2):
        stage.hardware.simulator.inject("cut", 7, 2)
    await stage.start_daemon()
    await stage.until(lambda: stage.kubelet.allocatable(SLICES) == 4, "the offer", 20)
    await stage.until(lambda: CAPACITY in annotated(stage), "the announcement")

    first = await partition(stage, "first")
    await stage.stop_daemon(kill=True)
    await stage.start_daemon()
    await stage.until(lambda: stage.kubelet.registered(SLICES), "the new registration")
    await stage.until(lambda: stage.kubelet.allocatable(SLICES) == 4, "the offer after the restart")

    assert {first, await partition(stage, "second")} == {"DRS-00070000", "DRS-00070001"}
