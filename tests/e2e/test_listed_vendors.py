"""The whole daemon with vendors whose tool lists the cards, each told to HAMi's scheduler in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.model.delivery import Answer
from hami_plugin.model.views import ContainerView, NodeView, pod_view
from hami_plugin.protocol import keys
from hami_plugin.scheduler.engine.devices import Context, Demand, idle_state
from hami_plugin.scheduler.engine.fit import Granted, fit
from tests.e2e.manifests import manifest
from tests.e2e.steps import WITHIN_S

XPU = "kunlunxin.com/xpu"
VGPU, MEMORY, CORES = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
BI = "iluvatar.ai/BI-V150-vgpu"


async def offered(stage: SimulatedNode, counts: Mapping[str, int]) -> None:
    def there() -> bool:
        return all(stage.kubelet.allocatable(name) == count for name, count in counts.items())

    await stage.until(there, f"the offer of {counts}", WITHIN_S)


def node(stage: SimulatedNode, *resources: str) -> NodeView:
    """The node as a scheduler sees it."""
    return NodeView(
        name=NODE,
        annotations=stage.api.node(NODE)["metadata"].get("annotations", {}),
        capacity={name: str(stage.kubelet.capacity(name)) for name in resources},
    )


async def run(stage: SimulatedNode, view: NodeView, limits: Mapping[str, int]) -> Answer:
    """A pod of one container, decided about on an idle node, admitted and started."""
    asked = {name: str(count) for name, count in limits.items()}
    made = pod_view(stage.api.create_pod(manifest("one", [{"name": "main", "resources": {"limits": asked}}])))
    family = stage.family
    assert family.rules.policy
    demand = family.rules.policy.request(ContainerView(name="main", limits=asked))
    assert isinstance(demand, Demand)
    states = [idle_state(info) for info in family.rules.node_devices(view)]
    outcome = fit(family.rules.policy, states, Context(demand=demand, pod=made))
    assert isinstance(outcome, Granted)
    told = family.rules.patch(family, made, {family.resources.device_type: (outcome.grants,)})
    bound = {keys.ASSIGNED_NODE: NODE, keys.BIND_PHASE: keys.PHASE_ALLOCATING}
    stage.api.annotate_pod(made.namespace, made.name, {**told, **bound})
    pod = pod_view(stage.api.bind(made.namespace, made.name, NODE))
    await stage.kubelet.admit(pod)
    answer = await stage.kubelet.start_container(pod.uid, "main")

    def settled() -> bool:
        annotations = stage.api.pod(pod.namespace, pod.name)["metadata"]["annotations"]
        return bool(annotations[keys.BIND_PHASE] == keys.PHASE_SUCCESS)

    await stage.until(settled, "the record of the pod")
    return answer


async def readiness(stage: SimulatedNode, *, ready: bool) -> str:
    async with asyncio.timeout(WITHIN_S):
        while (said := await stage.readiness())["ready"] is not ready:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
    return str(said)


@pytest.mark.full
async def test_whole_xpus_are_counted_and_a_lost_one_is_withdrawn(set_up: Any) -> None:
    stage = await set_up("kunlun-p800-8")
    await stage.start_daemon()
    await offered(stage, {XPU: 8})

    answer = await run(stage, node(stage, XPU), {XPU: 4})

    assert answer.edits.env == {"CXPU_VISIBLE_DEVICES": "0,1,2,3"}
    assert [one.path for one in answer.edits.device_nodes] == ["/dev/xpuctrl", *(f"/dev/xpu{i}" for i in range(4))]
    assert not [key for key in node(stage).annotations if key.startswith("hami.io/node-register")]
    stage.hardware.simulator.inject("lost", 7)
    await offered(stage, {XPU: 7})
    stage.hardware.simulator.inject("back", 7)
    await offered(stage, {XPU: 8})


@pytest.mark.full
async def test_a_tool_that_is_gone_shows_in_the_readiness_and_comes_back(set_up: Any) -> None:
    stage = await set_up("kunlun-p800-8")
    await stage.start_daemon()
    await offered(stage, {XPU: 8})
    await readiness(stage, ready=True)

    stage.hardware.simulator.inject("tool-gone")

    assert "NoLibrary" in await readiness(stage, ready=False)
    stage.hardware.simulator.inject("tool-back")
    await readiness(stage, ready=True)
    await offered(stage, {XPU: 8})


@pytest.mark.full
async def test_an_iluvatar_node_offers_the_chip_that_it_has_and_no_other(set_up: Any) -> None:
    stage = await set_up("iluvatar-biv150-8")
    await stage.start_daemon()
    await offered(stage, {BI: 8})
    await stage.until(lambda: "hami.io/node-BI-V150-register" in node(stage).annotations, "the register")

    answer = await run(stage, node(stage), {BI: 1})

    assert [one.path for one in answer.edits.device_nodes][-1] == "/dev/iluvatar7"
    assert answer.edits.env == {"IX_VISIBLE_DEVICES": stage.hardware.machine.devices[7].uuid}
    annotations = node(stage).annotations
    assert not [key for key in annotations if "MR-V" in key or "BI-V100" in key]
    assert annotations["hami.io/node-handshake-BI-V150"].startswith("Reported")
    assert not stage.kubelet.registered("iluvatar.ai/MR-V100-vgpu")


async def test_moore_threads_gpus_are_counted_by_cards_cores_and_memory(set_up: Any) -> None:
    stage = await set_up("mthreads-s4000-8", vendors={"mthreads": {"unlimitedShares": True}})
    await stage.start_daemon()
    await offered(stage, {VGPU: 128, CORES: 128, MEMORY: 768})

    answer = await run(stage, node(stage, VGPU, CORES, MEMORY), {VGPU: 2, CORES: 32, MEMORY: 192})

    assert answer.edits.env == {"MTHREADS_VISIBLE_DEVICES": "6,7"}
    assert {one.path for one in answer.edits.device_nodes} >= {"/dev/mtgpu.6", "/dev/mtgpu.7"}
