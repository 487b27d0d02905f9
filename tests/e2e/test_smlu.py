"""MLUs that are cut into sMLU instances as pods come: our scheduler, the daemon's process, and Cambricon's library."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_plugin.demo.node import NODE, SimulatedNode
from hami_plugin.sdk import Partition
from tests.support.live import Live, RefusedError, live
from vendors.cambricon.cndev import Cndev
from vendors.cambricon.injection import MADE, NAMES
from vendors.cambricon.rules import PROFILE
from vendors.cambricon.settings import CambriconSettings
from vendors.cambricon.smlu import SmluPartitions

MACHINE = "cambricon-mlu590-8"
VENDORS = {"cambricon": {"mode": "dynamic-smlu"}}
MLU, MEMORY, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
UNITS = 384
"""Of memory that each MLU of the machine has, 256 MiB each."""


def ready(stage: SimulatedNode) -> None:
    """All MLUs are in sMLU mode."""
    stage.hardware.simulator.inject("smlu-mode")


def there(one: Live) -> tuple[Partition, ...]:
    settings = CambriconSettings.model_validate(one.stage.hardware.settings)
    return SmluPartitions(Cndev(settings.cndev), NODE).partitions()


def manifest(name: str, memory: int, cores: int, count: int = 1) -> dict[str, Any]:
    limits = {MLU: str(count), MEMORY: str(memory * count), CORES: str(cores * count)}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "schedulerName": "hami-scheduler"}}


async def told(one: Live, name: str) -> list[dict[str, Any]]:
    """What the pod is told of its instances."""
    await one.stage.until(lambda: NAMES in one.noted(name), "the names")
    return list(json.loads(one.noted(name)[NAMES]))


@pytest.mark.full
async def test_a_pods_instance_limits_it_and_is_destroyed_with_it_and_outlives_the_daemon() -> None:
    async with live(MACHINE, prepare=ready, vendors=VENDORS) as one:
        await one.run(manifest("a", 12, 30))
        (made,) = there(one)
        (entry,) = await told(one, "a")
        card = int(made.card.rpartition("-")[2])
        edits = one.answers["a"].edits
        nodes = [node.path for node in edits.device_nodes]

        assert made.profile == "30%.3072mib"
        assert entry == {"container": "main", "number": 0, "uuid": made.uuid, **made.ids}
        assert one.noted("a")[MADE] == f"0_{256 + card}_{card}_1"
        assert edits.env == {PROFILE: f"{card}_30_12"}
        assert {f"/dev/cambricon_dev{card}", f"/dev/cambricon-caps/cap_dev{card}_mi1"} < set(nodes)
        assert one.noted("a")["CAMBRICON_DSMLU_ASSIGNED"] == "true"

        await one.run(manifest("b", UNITS, 100))
        (whole,) = [each for each in there(one) if each.profile == "100%.98304mib"]
        await told(one, "b")
        await one.stage.stop_daemon(kill=True)
        one.end("b")
        await one.stage.start_daemon()
        await one.stage.until(lambda: there(one) == (made,), "the end of the instance that the daemon has missed")
        assert whole.card != made.card

        one.end("a")
        await one.stage.until(lambda: there(one) == (), "the end of the instance")


@pytest.mark.full
async def test_what_is_left_of_an_mlu_goes_to_others_and_more_is_refused_at_scheduling() -> None:
    async with live(MACHINE, prepare=ready, vendors=VENDORS) as one:
        for number in range(8):
            await one.run(manifest(f"big-{number}", UNITS - 12, 70))
        await one.run(manifest("small", 12, 30))
        with pytest.raises(RefusedError, match=r"filter: .*CardInsufficient"):
            await one.run(manifest("more", 13, 30))

        assert sorted(each.profile for each in there(one)) == ["30%.3072mib", *["70%.95232mib"] * 8]


@pytest.mark.full
async def test_a_container_of_two_mlus_has_an_instance_of_each() -> None:
    async with live(MACHINE, prepare=ready, vendors=VENDORS) as one:
        limits = {MLU: "2"}
        container = {"name": "main", "image": "i", "resources": {"limits": limits}}
        spec = {"containers": [container], "schedulerName": "hami-scheduler"}
        await one.run({"metadata": {"name": "two"}, "spec": spec})

        made = there(one)
        nodes = {node.path for node in one.answers["two"].edits.device_nodes}
        assert [each.profile for each in made] == ["100%.98304mib"] * 2
        assert {f"/dev/cambricon-caps/cap_dev{each.card.rpartition('-')[2]}_mi1" for each in made} < nodes
        assert sorted(each["uuid"] for each in await told(one, "two")) == sorted(each.uuid for each in made)


@pytest.mark.full
@pytest.mark.parametrize("call", ["cndevCreateSMluProfileInfo", "cndevCreateSMluInstanceByProfileId"])
async def test_a_daemon_that_dies_while_it_makes_an_instance_leaves_none(call: str) -> None:
    async with live(MACHINE, prepare=ready, vendors=VENDORS) as one:
        one.stage.hardware.simulator.inject("smlu-call", 0, f"{call} die")
        pod = await one.created(manifest("a", 12, 30))
        await one.bound(pod)
        with pytest.raises(RefusedError, match="kubelet"):
            await one.served(pod)
        assert one.stage.daemon
        await one.stage.daemon.wait()
        await one.stage.start_daemon()

        await one.stage.until(lambda: there(one) == (), "the end of what was left")


@pytest.mark.full
async def test_an_mlu_that_leaves_smlu_mode_is_taken_back_and_none_is_scheduled_on_it() -> None:
    async with live(MACHINE, prepare=ready, vendors=VENDORS) as one:
        await one.stage.stop_daemon()
        for card in range(7):
            one.stage.hardware.simulator.inject("smlu-mode", card, "off")
        await one.stage.start_daemon()
        await one.stage.until(lambda: one.stage.kubelet.allocatable(MLU) == 100, "the one that is left")

        one.count()
        await one.run(manifest("a", 12, 30))
        (made,) = there(one)
        assert made.card.endswith("-7")
