"""The whole daemon with cards that have been cut beforehand: who has which partition outlives the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.views import NodeView, pod_view
from hami_plugin.protocol import keys
from hami_plugin.sdk import Partition
from tests.e2e.manifests import manifest
from tests.e2e.steps import WITHIN_S
from tests.support.live import Live, RefusedError, live
from tests.support.rigs import decision
from vendors.ascend.settings import AscendSettings
from vendors.ascend.vnpu import VnpuPartitions
from vendors.enflame.on_demand import DrsPartitions
from vendors.enflame.settings import EnflameSettings

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


@pytest.mark.full
async def test_partitions_are_handed_out_once_also_after_a_restart(set_up: Any) -> None:
    stage: SimulatedNode = await set_up(
        "enflame-s60-8", vendors={"enflame": {"serve": "partitions", "cut": "beforehand"}}
    )
    stage.hardware.simulator.inject("partitions")
    for _ in range(2):
        stage.hardware.simulator.inject("cut", 7, 2)
    await stage.start_daemon()
    await stage.until(lambda: stage.kubelet.allocatable(SLICES) == 4, "the offer", WITHIN_S)
    await stage.until(lambda: CAPACITY in annotated(stage), "the announcement")

    first = await partition(stage, "first")
    before = stage.kubelet.plugin(SLICES)
    await stage.stop_daemon(kill=True)
    await stage.start_daemon()
    await stage.until(lambda: stage.kubelet.plugin(SLICES) is not before, "the new registration", WITHIN_S)
    await stage.until(lambda: stage.kubelet.allocatable(SLICES) == 4, "the offer after the restart")

    assert {first, await partition(stage, "second")} == {"DRS-00070000", "DRS-00070001"}


@pytest.mark.full
@pytest.mark.parametrize("call", ["create:die-before", "create:die-after", "destroy:die-after"])
async def test_a_daemon_that_dies_while_the_tool_cuts_leaves_nothing(call: str) -> None:
    async with live("enflame-s60-8-drs", vendors={"enflame": {"serve": "partitions"}}) as one:
        settings = EnflameSettings.model_validate(one.stage.hardware.settings)
        cards = DrsPartitions(settings, f"{NODE}-enflame-drs")
        one.stage.hardware.simulator.inject("order", value=call)
        main = {"name": "main", "image": "i", "resources": {"limits": {SLICES: "2"}}}
        asked = {"metadata": {"name": "a"}, "spec": {"containers": [main], "schedulerName": "hami-scheduler"}}
        pod = await one.created(asked)
        await one.bound(pod)
        with suppress(RefusedError):
            await one.served(pod)
        one.end("a")
        assert one.stage.daemon
        await one.stage.daemon.wait()
        one.stage.hardware.simulator.inject("order", value="none")
        await one.stage.start_daemon()

        await one.stage.until(lambda: cards.partitions() == (), "the end of what was left")
        await one.stage.until(lambda: one.stage.kubelet.allocatable(SLICES) == 48, "the offer")
        await one.run(asked, "b")
        (made,) = cards.partitions()
        assert (made.profile, one.answers["b"].edits.env["TOPS_VISIBLE_DEVICES"]) == ("2g.16gb", f"DRS-{made.uuid}")


NPU = "huawei.com/Ascend910B3"
NPU_SETTINGS = {"ascend": {"deviceListStrategy": "device-specs"}}


def vnpus(one: Live) -> Sequence[Partition]:
    """What the NPUs are cut into."""
    settings = AscendSettings.model_validate(one.stage.hardware.settings)
    chip = next(chip for chip in settings.chips if chip.count == NPU)
    return VnpuPartitions(settings, chip, HostFiles(paths=HostPaths())).partitions()


def part_of_an_npu(name: str) -> dict[str, Any]:
    main = {"name": "main", "image": "i", "resources": {"limits": {NPU: "1", f"{NPU}-memory": "16384"}}}
    return {"metadata": {"name": name}, "spec": {"containers": [main], "schedulerName": "hami-scheduler"}}


@pytest.mark.full
async def test_a_virtual_npu_is_cut_for_a_container_and_goes_with_its_pod() -> None:
    async with live("ascend-910b3-8", vendors=NPU_SETTINGS) as one:
        for name in ("kept", "gone"):
            await one.run(part_of_an_npu(name))
            await one.stage.until(lambda: "vnpu-" in str(one.noted(name)), "the names")  # noqa: B023  # at once
        answers = {name: one.answers[name].edits for name in ("kept", "gone")}
        made = {part.ids["vnpu"]: part for part in vnpus(one)}
        assert {part.profile for part in made.values()} == {"vir05_1c_16g"}
        numbers = {name: [n for n in made if f"/dev/davinci{n}" in str(edits)] for name, edits in answers.items()}
        assert sorted(n for mine in numbers.values() for n in mine) == sorted(made)

        await one.stage.stop_daemon(kill=True)
        one.end("gone")
        await one.stage.start_daemon()
        await one.stage.until(lambda: len(vnpus(one)) == 1, "the end of the virtual NPU")
        (left,) = vnpus(one)
        assert numbers["kept"] == [left.ids["vnpu"]]


@pytest.mark.full
@pytest.mark.parametrize("call", ["create die-before", "create die-after", "destroy die-after"])
async def test_a_daemon_that_dies_while_an_npu_is_cut_leaves_nothing(call: str) -> None:
    async with live("ascend-910b3-8", vendors=NPU_SETTINGS) as one:
        one.stage.hardware.simulator.inject("order", value=call)
        pod = await one.created(part_of_an_npu("a"))
        await one.bound(pod)
        with suppress(RefusedError):
            await one.served(pod)
        one.end("a")
        assert one.stage.daemon
        await one.stage.daemon.wait()
        await one.stage.start_daemon()

        await one.stage.until(lambda: vnpus(one) == (), "the end of what was left")
        await one.stage.until(lambda: one.stage.kubelet.allocatable(NPU) == 32, "the offer")
        await one.run(part_of_an_npu("b"))
        (made,) = vnpus(one)
        assert f"/dev/davinci{made.ids['vnpu']}" in str(one.answers["b"].edits)
