"""Linked cards as one device through the whole daemon: published best first, and all cards in the container."""

from __future__ import annotations

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.simulation.dra import UnschedulableError
from tests.e2e.claiming import DRIVER, spec_directories, staged

SETS = f"sets.{DRIVER}"


@pytest.fixture
async def stage(set_up, tmp_path):
    async with staged(set_up, spec_directories(tmp_path), linkedDevices="sets") as one:
        yield one


def asking(size):
    return {
        "deviceClassName": SETS,
        "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].size == {size}'}}],
    }


def size(device):
    return device["attributes"].get("size", {}).get("int", 1)


def given(stage, pod):
    """The minors of the cards that its container has."""
    nodes = {node.path for node in stage.edits(pod).device_nodes}
    return {card.minor for card in stage.node.hardware.machine.devices if f"/dev/nvidia{card.minor}" in nodes}


def names(stage):
    return [device["name"] for device in stage.published()]


async def test_a_claims_set_is_the_best_linked_one_and_all_its_cards_are_in_the_container(stage):
    await stage.start()
    cards = stage.node.hardware.machine.devices
    assert [len(one["spec"].get("sharedCounters", ())) for one in stage.api.slices()] == [1, 0]
    assert len(stage.published()) == 4 + 6 + 1
    pod = stage.place("pair", request=asking(2))

    await stage.kubelet.prepare(pod)

    best = max(one["attributes"]["score"]["int"] for one in stage.published() if size(one) == 2)
    (answer,) = stage.kubelet.devices("pair-gpu")
    (mine,) = [one for one in stage.published() if one["name"] == answer.device_name]
    assert mine["attributes"]["score"]["int"] == best
    assert given(stage, pod) == {
        cards[int(number)].minor for number in mine["attributes"]["members"]["string"].split(",")
    }
    edits = stage.edits(pod)
    limits = [edits.env[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] for number in range(2)]
    assert limits == [f"{cards[0].memory}m"] * 2
    assert answer.device_name.startswith("set-")
    assert len(answer.cdi_device_ids) == 3
    single = stage.place("single", memory="3000Mi")
    await stage.kubelet.prepare(single)
    assert not given(stage, single) & given(stage, pod)
    with pytest.raises(UnschedulableError):
        stage.place("two-more", request=asking(4))

    # The same after a kill and a wiped directory, and nothing is left in the end.
    await stage.node.stop_daemon(kill=True)
    for path in stage.directories[-1].iterdir():
        path.unlink()
    await stage.kubelet.restart()
    await stage.start()
    assert stage.edits(pod) == edits
    await stage.kubelet.prepare(pod)
    assert stage.edits(pod) == edits
    for one in (pod, single):
        await stage.kubelet.unprepare(one)
        stage.end(one)
    assert stage.leaks() == []


@pytest.mark.full
async def test_a_card_that_fails_takes_its_sets_with_it_but_for_the_one_that_a_claim_has(stage):
    await stage.start()
    cards = stage.node.hardware.machine.devices
    pod = stage.place("pair", request=asking(2))
    await stage.kubelet.prepare(pod)
    (mine,) = [one.device_name for one in stage.kubelet.devices("pair-gpu")]
    unwell = next(card for card in cards if card.minor in given(stage, pod))

    stage.node.hardware.simulator.inject("lost", unwell.index)

    await stage.node.until(lambda: len(stage.published()) == 4 + 3 + 1, "the end of its sets", GUARD_S)
    assert names(stage)[-1] == mine
    assert [taint["effect"] for taint in stage.published()[-1]["taints"]] == ["NoSchedule"]
    other = stage.place("other", request=asking(2))
    await stage.kubelet.prepare(other)
    assert not given(stage, other) & given(stage, pod)

    await stage.kubelet.unprepare(pod)
    stage.node.hardware.simulator.inject("back", unwell.index)
    await stage.node.until(lambda: len(stage.published()) == 4 + 6 + 1, "all sets", GUARD_S)


@pytest.mark.full
async def test_a_server_that_keeps_no_counters_has_cards_in_groups_and_is_told_of(stage):
    stage.api.store.counters = False
    await stage.start()

    await stage.node.until(lambda: len(stage.published()) == 4, "the cards alone", GUARD_S)
    assert all("linkGroup2" in one["attributes"] for one in stage.published())
    await stage.node.until(
        lambda: any(
            one["reason"] == "ResourceSliceFieldsDropped" and "DRAPartitionableDevices" in one["message"]
            for one in stage.api.events()
        ),
        "the Event",
        GUARD_S,
    )
    pod = stage.place("small", memory="3000Mi")
    await stage.kubelet.prepare(pod)
    assert len(given(stage, pod)) == 1


@pytest.mark.full
async def test_a_server_that_wants_counters_beside_their_devices_has_them_all_in_one_slice(stage):
    """As Kubernetes 1.34 does, with its gate on."""
    stage.api.store.apart = False
    await stage.start()

    await stage.node.until(lambda: len(stage.published()) == 4 + 6 + 1, "all sets", GUARD_S)
    (one,) = stage.api.slices()
    assert len(one["spec"]["sharedCounters"]) == 1
    pod = stage.place("pair", request=asking(2))
    await stage.kubelet.prepare(pod)
    assert len(given(stage, pod)) == 2
    assert not any(event["reason"] == "ResourceSliceFieldsDropped" for event in stage.api.events())
