"""A fault names the pod that had the device, leaves the others alone, and says when the device heals."""

import asyncio
import json
import re

import pytest
from click.testing import CliRunner

from hami_plugin.cli.main import main
from tests.e2e.manifests import small
from tests.e2e.steps import WITHIN_S, bring_up, offered, reported
from tests.e2e.truth import journal

FAULT = re.compile(r"^hami_plugin_device_fault_container\{(.*)\} 1\.0$", re.MULTILINE)


async def shared(stage):
    """Two pods on different devices: the first, the second, and the number of the first one's device."""
    first = await bring_up(stage, small("suffers", stage.family.resources, memory=60000, cores=60))
    second = await bring_up(stage, small("spared", stage.family.resources, memory=60000, cores=60))
    held = {one.pod: one.grants[0].uuid for one in journal(stage)}
    assert held["suffers"] != held["spared"]
    uuids = [device.uuid for device in stage.hardware.machine.devices]
    return first, second, uuids.index(held["suffers"])


def about(stage, pod, reason):
    told = [event for event in stage.api.events() if event["reason"] == reason]
    return [event["message"] for event in told if event["involvedObject"]["name"] == pod.name]


async def holders(stage):
    _status, text = await stage.get("/metrics")
    return FAULT.findall(text)


def explain(stage, *arguments):
    result = CliRunner().invoke(main, ["explain", "--url", f"http://{stage.options['--http']}", *map(str, arguments)])
    return result.exit_code, result.output


async def test_an_xid_names_the_pod_that_ran_those_it_spared_and_when_the_card_heals(running):
    stage = await running()
    first, second, number = await shared(stage)

    stage.hardware.simulator.inject("xid", number, 48)
    message = await reported(stage, "DeviceFault")

    assert about(stage, first, "DeviceFault") == [message]
    assert about(stage, second, "DeviceFault") == []
    for words in ("Xid48", "had by demo/suffers (main)", "1 other pods of the node", "clean looks in a row"):
        assert words in message
    series = await holders(stage)
    assert len(series) == 1
    assert 'reason="Xid48"' in series[0]
    assert 'pod="suffers"' in series[0]

    status, text = await beside(stage, number)
    assert status == 0, text
    for words in ("unhealthy, Xid48", "it hit:  demo/suffers (main)", "spared:  demo/spared", "heals:", "nothing more"):
        assert words in text
    _status, page = await stage.get("/status.json")
    assert "heals" in next(one["message"] for one in json.loads(page)["devices"] if one["number"] == str(number))


async def beside(stage, *arguments):
    """Ask as a person does, from a thread of its own."""
    return await asyncio.to_thread(explain, stage, *arguments)


@pytest.mark.full
async def test_an_applications_own_fault_is_told_to_its_pod_and_the_card_stays(running):
    stage = await running()
    first, second, number = await shared(stage)

    stage.hardware.simulator.inject("xid", number, 31)
    message = await reported(stage, "ApplicationFault")

    assert about(stage, first, "ApplicationFault") == [message]
    assert about(stage, second, "ApplicationFault") == []
    assert "memory page fault" in message
    assert "stays in service" in message
    await offered(stage)
    assert await holders(stage) == []
    _status, text = await stage.get("/metrics")
    assert re.search(r'hami_plugin_device_faults_total\{.*reason="Xid31".*\} 1\.0', text)
    status, text = await beside(stage, number)
    assert status == 0
    assert "healthy" in text
    assert "an application's own fault" in text


@pytest.mark.full
async def test_the_metric_ends_when_the_card_has_healed_and_explain_still_knows_the_fault(running):
    stage = await running(health={"probeSeconds": 0.2, "cleanLooks": 2, "holdSeconds": 0.3, "holdCapSeconds": 0.5})
    _first, _second, number = await shared(stage)
    stage.hardware.simulator.inject("xid", number, 48)
    await reported(stage, "DeviceFault")

    ends = asyncio.get_running_loop().time() + WITHIN_S
    while await holders(stage):
        assert asyncio.get_running_loop().time() < ends, "the card does not heal"
    await offered(stage)
    status, text = await beside(stage, number)
    assert status == 0
    assert "fault:   Xid48" in text
    assert "heals:" not in text
