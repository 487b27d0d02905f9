"""Devices by ResourceClaims through the whole daemon: published, prepared, released, and offered in one way only."""

from __future__ import annotations

import asyncio
import json

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.dra.slices import device_name
from hami_plugin.model.views import pod_view
from hami_plugin.simulation.dra import PrepareError, UnschedulableError
from tests.e2e.claiming import DRIVER, NAMESPACE, spec_directories, staged
from tests.e2e.steps import probed


@pytest.fixture
def directories(tmp_path):
    return spec_directories(tmp_path)


@pytest.fixture
async def stage(set_up, directories):
    async with staged(set_up, directories) as one:
        yield one


async def test_a_claims_life_from_the_slice_to_the_container_across_restarts_of_both_sides(stage):
    await stage.start()
    cards = stage.node.hardware.machine.devices
    assert [device["name"] for device in stage.published()] == [device_name(card.uuid) for card in cards]
    pod = stage.place("small", memory="3000Mi", cores="30")

    await stage.kubelet.prepare(pod)

    given = stage.edits(pod)
    assert given.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert given.env["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert given.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert f"/dev/nvidia{cards[0].minor}" in {node.path for node in given.device_nodes}
    assert any(mount.container_path == "/etc/ld.so.preload" for mount in given.mounts)
    answer = stage.kubelet.devices("small-gpu")
    (result,) = stage.api.claim(NAMESPACE, "small-gpu")["status"]["allocation"]["devices"]["results"]
    assert [(one.device_name, one.share_id, list(one.request_names)) for one in answer] == [
        (device_name(cards[0].uuid), result["shareID"], ["gpu"])
    ]

    # The daemon is killed, the directory of specs is in memory, and the kubelet starts anew: as after a reboot.
    await stage.node.stop_daemon(kill=True)
    for path in stage.directories[-1].iterdir():
        path.unlink()
    await stage.kubelet.restart()
    assert stage.published() == []
    await stage.start()
    assert len(stage.published()) == len(cards)
    assert stage.edits(pod) == given
    calls = stage.api.count(r"GET .*/resourceclaims/")
    await stage.kubelet.prepare(pod)
    assert stage.edits(pod) == given
    assert stage.kubelet.devices("small-gpu") == answer
    assert stage.api.count(r"GET .*/resourceclaims/") == calls

    # Nothing is written while nothing changes, and what somebody deletes is back.
    written = stage.api.count(r"(POST|PUT|DELETE) /apis/resource.k8s.io/")
    stage.kubelet.wipe()
    await stage.node.until(lambda: len(stage.published()) == len(cards), "the slices", GUARD_S)
    assert stage.api.count(r"(POST|PUT|DELETE) /apis/resource.k8s.io/") == written + len(stage.api.slices())

    await stage.kubelet.unprepare(pod)
    stage.end(pod)
    assert stage.claim_files() == []
    assert stage.api.count("PATCH .*/resourceclaims") == 0
    await stage.node.stop_daemon()
    assert len(stage.published()) == len(cards)
    assert not list((stage.node.directory / "plugins_registry").iterdir())
    state = (stage.node.directory / "state" / "claims").read_text()
    left = {entry["uid"]: entry["op"] for entry in map(json.loads, state.splitlines())}
    assert set(left.values()) == {"drop"}


async def test_a_claims_parameters_reach_its_container_and_a_slip_is_refused_at_its_pod(stage):
    def entry(**fields):
        parameters = {"apiVersion": "nvidia.hami.io/v1", "kind": "DeviceParameters", **fields}
        return {"opaque": {"driver": DRIVER, "parameters": parameters}}

    await stage.start()
    pod = stage.place("told", config=[entry(priority=1, corePolicy="force", logLevel=4)], memory="1000Mi")
    slip = stage.place("slip", config=[entry(prioritty=1)], memory="1000Mi")

    await stage.kubelet.prepare(pod)

    env = stage.edits(pod).env
    assert (
        env.items()
        >= {
            "CUDA_TASK_PRIORITY": "1",
            "GPU_CORE_UTILIZATION_POLICY": "force",
            "LIBCUDA_LOG_LEVEL": "4",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "1000m",
        }.items()
    )
    with pytest.raises(
        PrepareError, match="parameters have prioritty, which is unknown; there are corePolicy, priority"
    ):
        await stage.kubelet.prepare(slip)


@pytest.mark.full
async def test_without_the_gate_for_shares_cards_go_whole_and_the_daemon_says_so(stage):
    stage.api.store.shares = False
    await stage.start()
    pod = stage.place("whole")

    await stage.kubelet.prepare(pod)

    given = stage.edits(pod)
    assert given.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{stage.node.hardware.machine.devices[0].memory}m"
    assert given.env["CUDA_DEVICE_SM_LIMIT"] == "0"
    await stage.node.until(
        lambda: "ResourceSliceFieldsDropped" in {one["reason"] for one in stage.api.events()}, "the Event", GUARD_S
    )
    await probed(stage.node, 200)  # or a rolling update would never go on
    assert "DRAConsumableCapacity" in (await stage.node.get("/debug/claims"))[1]
    for number in range(1, len(stage.published())):
        stage.place(f"other-{number}")
    with pytest.raises(UnschedulableError):
        stage.place("too-many")


@pytest.mark.full
async def test_the_kubelet_counts_no_card_that_goes_by_claims_and_waits_for_claims_that_are_left(set_up, directories):
    async with staged(set_up, directories) as stage:
        await stage.start()
        pod = stage.place("kept", slots="10")
        await stage.kubelet.prepare(pod)
        assert stage.node.kubelet.ledger.resources == ()
        assert stage.node.registered() == ()
        for number in range(len(stage.published()) - 1):
            stage.place(f"whole-{number}", slots="10")
        with pytest.raises(UnschedulableError):
            stage.place("too-many", slots="10")
        await stage.node.stop_daemon()

        config = json.loads((stage.node.directory / "config.yaml").read_text())
        config["vendors"]["nvidia"] = {"frontEnd": "device-plugin"}
        (stage.node.directory / "config.yaml").write_text(json.dumps(config))
        await stage.node.start_daemon()
        await stage.node.until(lambda: stage.kubelet.registered(DRIVER), "the driver", GUARD_S)
        assert stage.node.kubelet.ledger.resources == ()
        with pytest.raises(PrepareError, match="by the device plugin"):
            await stage.kubelet.prepare(pod_view(stage.api.pod(NAMESPACE, "whole-0")))

        await stage.kubelet.unprepare(pod)
        await stage.node.until(
            lambda: stage.node.kubelet.allocatable(stage.node.resource) == 4 * 10, "the device plugin", GUARD_S
        )


async def test_a_kubelet_that_had_a_device_plugin_asks_it_no_more_before_a_container_starts(set_up, directories):
    """A pod that asks for the former resource has a claim by the scheduler, and no device of the plugin's."""
    async with staged(set_up, directories, front_end="device-plugin") as stage:
        node, resource = stage.node, stage.node.resource
        await node.start_daemon()
        await node.until(lambda: node.kubelet.allocatable(resource) == 4 * 10, "the device plugin", GUARD_S)
        assert node.kubelet.plugin(resource).pre_start_required
        await node.stop_daemon()
        config = json.loads((node.directory / "config.yaml").read_text())
        config["vendors"]["nvidia"] = {"frontEnd": "dra"}
        (node.directory / "config.yaml").write_text(json.dumps(config))

        await stage.start()
        assert node.kubelet.plugin(resource).pre_start_required, "somebody's plugin, as far as the node tells"
        stage.api.store.patch(("nodes", "", node.node), {"status": {"allocatable": {resource: "0"}}}, part="status")

        await node.until(lambda: not node.kubelet.plugin(resource).pre_start_required, "the end of it", GUARD_S)
        await node.until(lambda: node.kubelet.plugin(resource).ended, "the end of its successor", GUARD_S)
        assert node.kubelet.allocatable(resource) == 0


def served(api):
    """The API server as one of Kubernetes 1.37 tells what it has."""
    names = ("resourceslices", "resourceclaims")
    api.documents["/version"] = {"major": "1", "minor": "37"}
    api.documents["/apis/resource.k8s.io/v1"] = {"resources": [{"name": name} for name in names]}


@pytest.mark.full
async def test_left_open_cards_go_by_claims_until_the_nodes_label_says_otherwise(set_up, directories):
    async with staged(set_up, directories, front_end="auto") as stage:
        served(stage.api)
        await stage.start()
        assert stage.node.kubelet.ledger.resources == ()
        pod = stage.place("kept", slots="10")
        await stage.kubelet.prepare(pod)

        labels = {"metadata": {"labels": {"hami-plugin.io/nvidia-front-end": "device-plugin"}}}
        stage.api.store.patch(("nodes", "", stage.node.node), labels)
        async with asyncio.timeout(GUARD_S):
            assert await stage.node.daemon.wait() == 0
        await stage.node.start_daemon()
        await stage.node.until(lambda: stage.kubelet.registered(DRIVER), "the driver", GUARD_S)
        assert stage.node.kubelet.ledger.resources == ()

        await stage.kubelet.unprepare(pod)
        await stage.node.until(
            lambda: stage.node.kubelet.allocatable(stage.node.resource) == 4 * 10, "the device plugin", GUARD_S
        )


@pytest.mark.full
async def test_left_open_cards_go_by_the_device_plugin_where_the_cluster_knows_no_claims(set_up, directories):
    async with staged(set_up, directories, front_end="auto") as stage:
        await stage.node.start_daemon()
        await stage.node.until(
            lambda: stage.node.kubelet.allocatable(stage.node.resource) == 4 * 10, "the device plugin", GUARD_S
        )
        assert stage.api.slices() == []


@pytest.mark.parametrize(("setting", "effect"), [("no-schedule", "NoSchedule"), ("no-execute", "NoExecute")])
async def test_a_card_that_fails_is_tainted_and_given_to_nobody_until_it_heals(set_up, directories, setting, effect):
    async with staged(set_up, directories, faultTaints=setting) as stage:
        await stage.start()
        first = stage.node.hardware.machine.devices[0]
        machine = stage.node.hardware.simulator

        def taints():
            return [taint for device in stage.published() for taint in device.get("taints") or ()]

        machine.inject("xid", first.index, 79)
        machine.inject("lost", first.index)
        await stage.node.until(lambda: [taint["effect"] for taint in taints()] == [effect], "the taint", GUARD_S)
        assert taints()[0]["key"] == f"{DRIVER}/fault"
        assert len(stage.published()) == 4
        pod = stage.place("small", memory="3000Mi")
        await stage.kubelet.prepare(pod)
        assert [one.device_name for one in stage.kubelet.devices("small-gpu")] != [device_name(first.uuid)]

        machine.inject("back", first.index)
        await stage.node.until(lambda: not taints(), "the taint's end", GUARD_S)


@pytest.mark.full
async def test_without_taints_a_card_that_fails_leaves_the_slices(set_up, directories):
    async with staged(set_up, directories, faultTaints="off") as stage:
        await stage.start()
        stage.node.hardware.simulator.inject("lost", stage.node.hardware.machine.devices[0].index)
        await stage.node.until(lambda: len(stage.published()) == 3, "the card's leave", GUARD_S)
