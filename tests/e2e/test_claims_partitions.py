"""Partitions by claims through the whole daemon: over counters, made at Prepare, and destroyed after Unprepare."""

from __future__ import annotations

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.simulation.dra import UnschedulableError
from tests.e2e.claiming import DRIVER, spec_directories, staged
from vendors.nvidia.partitions import MigPartitions
from vendors.nvidia.settings import NvidiaSettings

PARTITIONS = f"partitions.{DRIVER}"


def driver(node):
    settings = NvidiaSettings.model_validate(node.hardware.settings)
    return MigPartitions(settings, HostFiles(paths=HostPaths().rooted(settings)))


def asking(profile):
    expression = f'device.attributes["{DRIVER}"].profile == "{profile}"'
    return {"deviceClassName": PARTITIONS, "selectors": [{"cel": {"expression": expression}}]}


def cut(stage):
    """All cards are in MIG mode, and whole."""
    for card in stage.node.hardware.machine.devices:
        driver(stage.node).switch(card.uuid, on=True)


@pytest.fixture
async def stage(set_up, tmp_path):
    async with staged(set_up, spec_directories(tmp_path), operatingMode="mig") as one:
        cut(one)
        yield one


def there(stage):
    return driver(stage.node).partitions()


async def nothing_left(stage):
    await stage.node.until(lambda: there(stage) == (), "the end of all instances", GUARD_S)
    assert stage.leaks() == []


async def test_an_instance_is_made_for_a_claim_is_in_its_container_alone_and_goes_with_it(stage):
    await stage.start()
    cards = stage.node.hardware.machine.devices
    assert {one["attributes"]["type"]["string"] for one in stage.published()} == {"partition"}
    assert there(stage) == ()
    pod = stage.place("small", request=asking("1g.5gb"))

    await stage.kubelet.prepare(pod)

    (made,) = there(stage)
    assert (made.profile, made.card) == ("1g.5gb", cards[0].uuid)
    edits = stage.edits(pod)
    nodes = {node.path for node in edits.device_nodes}
    caps = {path for path in nodes if "nvidia-caps" in path}
    assert f"/dev/nvidia{cards[0].minor}" in nodes
    assert len(caps) == 2
    assert not any(f"/dev/nvidia{card.minor}" in nodes for card in cards[1:])
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in edits.env
    assert any("libcuda" in mount.container_path for mount in edits.mounts)
    other = stage.place("other", request=asking("1g.5gb"))
    await stage.kubelet.prepare(other)
    assert len({one.uuid for one in there(stage)}) == 2
    assert not caps & {node.path for node in stage.edits(other).device_nodes}

    # The same after a kill, and without a specs' directory; nothing is made twice.
    before = there(stage)
    await stage.node.stop_daemon(kill=True)
    for path in stage.directories[-1].iterdir():
        path.unlink()
    await stage.kubelet.restart()
    await stage.start()
    assert stage.edits(pod) == edits
    await stage.kubelet.prepare(pod)
    assert stage.edits(pod) == edits
    assert there(stage) == before

    for one in (pod, other):
        await stage.kubelet.unprepare(one)
        stage.end(one)
    await nothing_left(stage)


async def test_what_a_card_cannot_have_together_the_scheduler_does_not_give_out_together(stage):
    await stage.start()
    pods = [stage.place(f"big-{number}", request=asking("3g.20gb")) for number in range(8)]
    for pod in pods:
        await stage.kubelet.prepare(pod)
    assert len(there(stage)) == 8
    with pytest.raises(UnschedulableError):
        stage.place("one-more", request=asking("2g.10gb"))

    # A placement is free for another profile at once, while the instance that it had is destroyed.
    await stage.kubelet.unprepare(pods[0])
    stage.end(pods[0])
    small = stage.place("small", request=asking("2g.10gb"))
    await stage.kubelet.prepare(small)
    assert sorted(one.profile for one in there(stage)) == ["2g.10gb", *["3g.20gb"] * 7]


@pytest.mark.full
async def test_an_instance_of_others_is_no_device_and_one_that_is_gone_is_refused(stage):
    card = stage.node.hardware.machine.devices[0].uuid
    tool = driver(stage.node)
    place = next(one for one in tool.profiles(card) if one.name == "3g.20gb").placements[0]
    foreign = tool.create(card, "3g.20gb", place, lambda _ids: None)
    await stage.start()
    await stage.node.until(
        lambda: (
            sum(
                one["attributes"]["profile"]["string"] == "3g.20gb"
                and one["attributes"]["parentUUID"]["string"] == card
                for one in stage.published()
            )
            == 1
        ),
        "the one place that is left",
        GUARD_S,
    )
    pod = stage.place("small", request=asking("3g.20gb"))
    await stage.kubelet.prepare(pod)
    (own,) = [one for one in there(stage) if one != foreign]
    assert not own.placement.overlaps(foreign.placement)
    await stage.kubelet.unprepare(pod)
    stage.end(pod)
    await stage.node.until(lambda: there(stage) == (foreign,), "the end of the pod's instance", GUARD_S)


@pytest.mark.full
async def test_a_server_that_keeps_no_counters_has_no_partition_and_the_daemon_is_not_ready(stage):
    stage.api.store.counters = False
    await stage.node.start_daemon()
    await stage.node.until(lambda: bool(stage.api.slices()), "the slices", GUARD_S)
    await stage.node.until(
        lambda: any("DRAPartitionableDevices" in one["message"] for one in stage.api.events()), "the Event", GUARD_S
    )
    assert stage.published() == []


@pytest.mark.full
async def test_a_server_that_wants_counters_beside_their_devices_has_partitions_too(stage):
    """As Kubernetes 1.34 does, with its gate on."""
    stage.api.store.apart = False
    await stage.start()

    pod = stage.place("small", request=asking("1g.5gb"))
    await stage.kubelet.prepare(pod)
    assert len(there(stage)) == 1
    assert all(one["spec"]["sharedCounters"] and one["spec"]["devices"] for one in stage.api.slices())
    await stage.kubelet.unprepare(pod)
    stage.end(pod)
    await nothing_left(stage)
