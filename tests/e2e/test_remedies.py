"""Conditions of the node for its devices, and what is done about a device that needs a reset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.protocol.keys import RESET_WANTED
from tests.e2e.manifests import small
from tests.e2e.steps import WITHIN_S, bring_up, reported, start, take_down
from tests.e2e.test_reload import configuration, mounted
from tests.e2e.truth import journal
from tests.support.promql import series

CORDON = "hami.io/device-cordon"
QUICK = {"probeSeconds": 0.2, "cleanLooks": 2, "holdSeconds": 0.3, "holdCapSeconds": 600}


def conditions(stage: Any) -> dict[str, dict[str, str]]:
    found = stage.api.node(NODE)["status"].get("conditions", [])
    return {one["type"]: one for one in found}


def annotation(stage: Any, key: str) -> str:
    return str(stage.api.node(NODE)["metadata"].get("annotations", {}).get(key, ""))


async def test_a_condition_of_the_node_says_which_devices_are_out_of_service_until_they_are_back(set_up: Any) -> None:
    stage = await set_up()
    config = await mounted(stage, configuration(nodeCondition=True, health=QUICK))
    kubelets = {"type": "Ready", "status": "True"}
    stage.api.store.patch(("nodes", "", NODE), {"status": {"conditions": [kubelets]}}, part="status")
    await start(stage)
    await stage.until(lambda: "GPUDegraded" in conditions(stage), "the condition", WITHIN_S)
    well = conditions(stage)["GPUDegraded"]
    assert (well["status"], well["reason"]) == ("False", "AllDevicesInService")
    assert well["message"] == "all 8 GPUs are in service"

    stage.hardware.simulator.inject("lost", 3)
    await stage.until(lambda: conditions(stage)["GPUDegraded"]["status"] == "True", "the fault", WITHIN_S)
    unwell = conditions(stage)["GPUDegraded"]
    assert unwell["message"].startswith("1 of 8 GPUs are out of service: GPU3 (")
    assert "GpuIsLost" in unwell["message"]
    assert unwell["lastTransitionTime"] >= well["lastTransitionTime"]
    assert conditions(stage)["Ready"] == kubelets

    stage.hardware.simulator.inject("back", 3)
    await stage.until(lambda: conditions(stage)["GPUDegraded"]["status"] == "False", "the recovery", WITHIN_S)

    config.put(configuration(nodeCondition=False, health=QUICK))
    await stage.until(lambda: set(conditions(stage)) == {"Ready"}, "the end of the condition", WITHIN_S)


@pytest.mark.full
async def test_a_device_that_needs_a_reset_is_cordoned_and_its_reset_asked_for_once_it_is_free(
    running: Any,
) -> None:
    stage = await running(remediation="on", health=QUICK)
    pod = await bring_up(stage, small("has", stage.family.resources))
    uuid = journal(stage)[0].grants[0].uuid
    number = [device.uuid for device in stage.hardware.machine.devices].index(uuid)
    stage.api.store.patch(("nodes", "", NODE), {"metadata": {"annotations": {CORDON: "GPU-of-an-operator"}}})

    stage.hardware.simulator.inject("xid", number, 48)
    await stage.until(lambda: uuid in annotation(stage, CORDON), "the cordon", WITHIN_S)

    assert annotation(stage, CORDON).split(",") == ["GPU-of-an-operator", uuid]
    assert "schedulers place nothing on it" in await reported(stage, "DeviceCordoned")
    assert annotation(stage, RESET_WANTED) == ""
    take_down(stage, pod)
    await stage.until(lambda: annotation(stage, RESET_WANTED) == uuid, "the wish for a reset", WITHIN_S)
    assert "nobody has it" in await reported(stage, "DeviceResetWanted")

    async with asyncio.timeout(WITHIN_S):
        while not all(one.health for one in stage.registered()):  # until a look has seen it lost
            stage.hardware.simulator.inject("lost", number)
            await asyncio.sleep(1.0)
            stage.hardware.simulator.inject("back", number)
            await asyncio.sleep(3.0)
    await stage.until(lambda: not annotation(stage, RESET_WANTED), "the end of the wish", WITHIN_S)
    assert uuid in annotation(stage, CORDON)


@pytest.mark.full
async def test_a_dry_run_says_what_would_be_done_and_does_nothing(running: Any) -> None:
    stage = await running(remediation="dry-run")

    stage.hardware.simulator.inject("xid", 2, 48)

    assert "would cordon it" in await reported(stage, "DeviceWouldBeCordoned")
    assert "would ask for a reset" in await reported(stage, "DeviceResetWouldBeWanted")
    assert annotation(stage, CORDON) == annotation(stage, RESET_WANTED) == ""
    counted = series((await stage.get("/metrics"))[1], "hami_plugin_remediations_total")
    assert {tuple(sorted(dict(labels).values())): count for labels, count in counted.items()} == {
        ("cordon", "dry-run"): 1,
        ("dry-run", "reset"): 1,
    }
