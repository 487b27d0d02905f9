"""The whole daemon with vendors that live in file trees, each counted and published in its own way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.model.delivery import Answer
from hami_plugin.model.views import NodeView, PodView, pod_view
from hami_plugin.protocol import keys
from tests.e2e.manifests import manifest
from tests.e2e.steps import WITHIN_S
from tests.support.rigs import decision

NEURON, CORE, GPU = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "amd.com/gpu"
DECIDED = "hami.io/aws-neuron-devices-allocated"


def node(stage: SimulatedNode, *resources: str) -> NodeView:
    """The node as a scheduler sees it."""
    return NodeView(
        name=NODE,
        annotations=stage.api.node(NODE)["metadata"].get("annotations", {}),
        labels={"node.kubernetes.io/instance-type": stage.hardware.machine.extra.get("instance_type", "")},
        capacity={name: str(stage.kubelet.capacity(name)) for name in resources},
    )


async def started(stage: SimulatedNode, **counts: int) -> None:
    names = {"neuron": NEURON, "neuroncore": CORE, "gpu": GPU}
    await stage.start_daemon()
    await allocatable(stage, {names[name]: count for name, count in counts.items()})


async def allocatable(stage: SimulatedNode, counts: dict[str, int]) -> None:
    def offered() -> bool:
        return all(stage.kubelet.allocatable(name) == count for name, count in counts.items())

    await stage.until(offered, f"the offer of {counts}", WITHIN_S)


async def ready(stage: SimulatedNode) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not (await stage.readiness())["ready"]:  # noqa: ASYNC110  # the daemon is another process
            await asyncio.sleep(0.02)


async def run(stage: SimulatedNode, name: str, view: NodeView, **limits: int) -> tuple[PodView, Answer]:
    """A pod of one container, decided about, admitted and started."""
    asked: dict[str, Any] = {key.replace("_", "/"): str(value) for key, value in limits.items()}
    made = pod_view(stage.api.create_pod(manifest(name, [{"name": "main", "resources": {"limits": asked}}])))
    told = {**decision(stage.family, view, made), keys.ASSIGNED_NODE: NODE, keys.BIND_PHASE: keys.PHASE_ALLOCATING}
    stage.api.annotate_pod(made.namespace, made.name, told)
    pod = pod_view(stage.api.bind(made.namespace, made.name, NODE))
    await stage.kubelet.admit(pod)
    answer = await stage.kubelet.start_container(pod.uid, "main")

    def done() -> bool:
        return annotations(stage, pod)[keys.BIND_PHASE] == keys.PHASE_SUCCESS

    await stage.until(done, f"the record of {pod.key}")
    return pod, answer


def annotations(stage: SimulatedNode, pod: PodView) -> dict[str, str]:
    return dict(stage.api.pod(pod.namespace, pod.name)["metadata"]["annotations"])


@pytest.mark.full
async def test_a_neuron_node_is_counted_by_devices_and_by_cores(set_up: Any) -> None:
    stage = await set_up("aws-inf2-24xlarge")
    await started(stage, neuron=6, neuroncore=12)
    view = node(stage, NEURON, CORE)

    pod, answer = await run(stage, "cores", view, **{"aws.amazon.com_neuroncore": 4})

    assert answer.edits.env == {"AWS_NEURON_VISIBLE_DEVICES": "0,1", "NEURON_RT_VISIBLE_CORES": "0,1,2,3"}
    assert [one.path for one in answer.edits.device_nodes] == ["/dev/neuron0", "/dev/neuron1"]
    assert annotations(stage, pod)[DECIDED] == f"{NODE}-AWSNeuron-0,AWSNeuron,0,3:{NODE}-AWSNeuron-1,AWSNeuron,0,3:;"
    assert not [key for key in view.annotations if key.startswith("hami.io/node")]
    await ready(stage)


@pytest.mark.full
async def test_a_whole_neuron_device_is_the_one_that_was_decided(set_up: Any) -> None:
    stage = await set_up("aws-trn1-32xlarge")
    await started(stage, neuron=16, neuroncore=32)

    _pod, answer = await run(stage, "devices", node(stage, NEURON, CORE), **{"aws.amazon.com_neuron": 4})

    assert answer.edits.env == {"AWS_NEURON_VISIBLE_DEVICES": "0,1,2,3"}


@pytest.mark.full
async def test_a_lost_neuron_device_takes_its_cores_along(set_up: Any) -> None:
    stage = await set_up("aws-inf2-24xlarge")
    await started(stage, neuron=6, neuroncore=12)

    stage.hardware.simulator.inject("lost", 2)
    await allocatable(stage, {NEURON: 5, CORE: 10})
    stage.hardware.simulator.inject("back", 2)

    await allocatable(stage, {NEURON: 6, CORE: 12})


async def test_parts_of_one_card_get_compute_units_of_their_own(set_up: Any) -> None:
    stage = await set_up("mi300x-8")
    (stage.directory / "hook/vgpu/libamvgpu.so").touch()
    await started(stage, gpu=80)
    await stage.until(lambda: "hami.io/node-amd-register" in node(stage).annotations, "the registration")
    asked = {GPU.replace("/", "_"): 1, "amd.com_gpumem": 16384, "amd.com_gpucores": 25}

    _first, one = await run(stage, "first", node(stage, GPU), **asked)
    _second, other = await run(stage, "second", node(stage, GPU), **asked)

    assert one.edits.env["ROCR_VISIBLE_DEVICES"] == other.edits.env["ROCR_VISIBLE_DEVICES"]
    assert (one.edits.env["HSA_CU_MASK"], other.edits.env["HSA_CU_MASK"]) == ("0:0-75", "0:76-151")
