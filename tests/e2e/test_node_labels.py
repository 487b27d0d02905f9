"""Labels of the node, from the drivers to the API server and away again."""

from __future__ import annotations

from typing import Any

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.protocol.keys import LABELS
from tests.e2e.steps import WITHIN_S, reported, start
from tests.e2e.test_node_clean import clean
from tests.e2e.test_reload import configuration, mounted


def labels(stage: Any) -> dict[str, str]:
    return dict(stage.api.node(NODE)["metadata"].get("labels", {}))


async def test_a_node_is_labelled_as_feature_discovery_does_until_it_is_cleaned(running: Any) -> None:
    stage = await running(nodeLabels=True)
    stage.api.store.patch(("nodes", "", NODE), {"metadata": {"labels": {"example.com/owner": "ml"}}})
    await stage.until(lambda: "nvidia.com/gpu.product" in labels(stage), "the labels", WITHIN_S)

    found = labels(stage)
    machine = stage.hardware.machine.devices
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert found["nvidia.com/gpu.count"] == str(len(machine))
    assert int(found["nvidia.com/gpu.memory"]) > 80_000
    assert (found["nvidia.com/gpu.compute.major"], found["nvidia.com/gpu.family"]) == ("9", "hopper")
    assert found["nvidia.com/cuda.driver-version.full"].startswith(found["nvidia.com/cuda.driver-version.major"])
    assert found["nvidia.com/mig.capable"] == "true"
    assert found["hami-plugin.io/NVIDIA.count"] == str(len(machine))

    await stage.stop_daemon()
    status, said = await clean(stage, NODE, "--force")

    assert status == 0, said
    assert "label nvidia.com/gpu.product" in said
    assert labels(stage) == {"example.com/owner": "ml"}


@pytest.mark.full
async def test_labels_of_others_stay_and_are_told_of_and_off_removes_only_ours(set_up: Any) -> None:
    stage = await set_up()
    config = await mounted(stage, configuration(nodeLabels=True))
    stage.api.store.patch(("nodes", "", NODE), {"metadata": {"labels": {"nvidia.com/gpu.count": "77"}}})
    await start(stage)
    await stage.until(lambda: "nvidia.com/gpu.product" in labels(stage), "the labels", WITHIN_S)
    assert labels(stage)["nvidia.com/gpu.count"] == "77"
    assert "nvidia.com/gpu.count" in await reported(stage, "LabelsOfOthers")

    config.put(configuration(nodeLabels=False))

    await stage.until(lambda: set(labels(stage)) == {"nvidia.com/gpu.count"}, "the labels' end", WITHIN_S)
    assert LABELS not in stage.api.node(NODE)["metadata"]["annotations"]


@pytest.mark.full
async def test_instances_of_mixed_strategy_are_counted_by_profile(set_up: Any) -> None:
    vendors = {"nvidia": {"migStrategy": "mixed"}}
    stage = await set_up(nodeLabels=True, rescanSeconds=0.5, vendors=vendors)
    simulator = stage.hardware.simulator
    simulator.inject("mig", 0, 1)
    simulator.inject("instance", 0, "1g.10gb:0")
    simulator.inject("instance", 0, "1g.10gb:1")
    await stage.start_daemon()

    await stage.until(lambda: labels(stage).get("nvidia.com/mig-1g.10gb.count") == "2", "the labels", WITHIN_S)

    found = labels(stage)
    assert found["nvidia.com/gpu.count"] == str(len(stage.hardware.machine.devices) - 1)
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert found["nvidia.com/mig-1g.10gb.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
