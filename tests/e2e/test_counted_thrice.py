"""The whole daemon with a vendor whose shares the kubelet counts by three resources, under a lock without an owner."""

from __future__ import annotations

from typing import Any

import pytest

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.model.views import NodeView, pod_view
from hami_plugin.protocol import keys
from tests.e2e.manifests import manifest
from tests.e2e.steps import WITHIN_S
from tests.support.rigs import decision

MLU, CORES, MEMORY = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vcore", "cambricon.com/mlu.smlu.vmemory"
LOCK = "cambricon.com/dsmlu.lock"
CAPACITY = {MLU: 800, CORES: 800, MEMORY: 8 * 384}


@pytest.mark.full
async def test_a_share_is_handed_out_once_all_three_are_and_the_node_is_free_again(set_up: Any) -> None:
    stage: SimulatedNode = await set_up("cambricon-mlu590-8", vendors={"cambricon": {"unlimitedShares": True}})
    await stage.start_daemon()
    await stage.until(lambda: {one: stage.kubelet.capacity(one) for one in CAPACITY} == CAPACITY, "the offer", WITHIN_S)
    node = NodeView(name=NODE, capacity={name: str(count) for name, count in CAPACITY.items()})
    limits = {MLU: "1", CORES: "10", MEMORY: "20"}
    made = pod_view(stage.api.create_pod(manifest("share", [{"name": "main", "resources": {"limits": limits}}])))
    told = {**decision(stage.family, node, made), keys.ASSIGNED_NODE: NODE, keys.BIND_PHASE: keys.PHASE_ALLOCATING}
    stage.api.annotate_pod(made.namespace, made.name, told)
    stage.api.annotate_node(NODE, {LOCK: "2026-08-21T10:11:12Z"})
    pod = pod_view(stage.api.bind(made.namespace, made.name, NODE))

    await stage.kubelet.admit(pod)
    answer = await stage.kubelet.start_container(pod.uid, "main")

    def annotations() -> dict[str, str]:
        return dict(stage.api.pod(pod.namespace, pod.name)["metadata"]["annotations"])

    await stage.until(lambda: annotations()[keys.BIND_PHASE] == keys.PHASE_SUCCESS, "the record")
    await stage.until(lambda: LOCK not in stage.api.node(NODE)["metadata"].get("annotations", {}), "the release")
    assert answer.edits.env == {"CAMBRICON_VISIBLE_DEVICES": "7", "CAMBRICON_DSMLU_PROFILE": "7_10_20"}
    assert annotations()[stage.family.rules.annotations.to_allocate].strip(";") == ""
    assert annotations()[stage.family.rules.annotations.allocated] == f"{NODE}-cambricon-mlu-7,MLU,5120,10:;"
