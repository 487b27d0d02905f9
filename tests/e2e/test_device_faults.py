"""Devices and the driver fail under the running daemon."""

import re
from pathlib import Path

import pytest

import vendors.nvidia
from hami_plugin.model.device import physical_id
from tests.e2e.manifests import asking, manifest, small
from tests.e2e.steps import WITHIN_S, bring_up, logged, offered, probed, sound, take_down
from vendors.nvidia.simulation.faults import ALIASES, SYMBOLS

RARELY_S = 600
"""Between two looks at devices that are well: what is noticed earlier is noticed by an event."""
FAST = {"probeSeconds": 0.05, "cleanLooks": 1, "holdSeconds": 0.05, "suspectLooks": 1, "holdCapSeconds": 0.05}
VICTIM = 3
PASSER_BY = 5
GPU_IS_LOST = 15
OF_LINKS = {
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetTopologyCommonAncestor",
}
OF_INSTANCES = {
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetMigDeviceHandleByIndex",
}
BY_REQUEST = {"nvmlDeviceSetComputeMode"}
OF_FIGURES = {
    *("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"),
    "nvmlDeviceGetComputeRunningProcesses_v3",
}
HARMLESS = OF_LINKS | OF_INSTANCES | OF_FIGURES | BY_REQUEST
"""A failed query of a figure costs that figure, and one of a link that link; instances are asked for only on a card in
MIG mode, and a compute mode is set only where it is configured.
"""


def calls_of_the_driver():
    """The NVML calls that name a device, as the vendor's sources spell them. Those of ``partitions`` make instances."""
    files = [path for path in Path(vendors.nvidia.__path__[0]).glob("*.py") if path.name != "partitions.py"]
    text = "".join(path.read_text() for path in files)
    names = {ALIASES.get(name, name) for name in re.findall(r"nvml(?:Device|EventSet)\w+", text)}
    return sorted(name for name in names & SYMBOLS if name.startswith("nvmlDevice") and "Count" not in name)


def healthy(stage):
    """UUIDs that the node's annotation and the kubelet's list agree upon."""
    registered = {info.id for info in stage.registered() if info.health}
    listed = {physical_id(replica) for replica in stage.kubelet.ledger.healthy(stage.resource)}
    return registered if registered == listed else set()


@pytest.mark.full
@pytest.mark.scenario("D4")
async def test_a_gpu_that_is_lost_in_any_nvml_call_leaves_the_seven_others_in_service(running, tell):
    stage = await running(rescanSeconds=0.1, health=FAST)
    uuids = [device.uuid for device in stage.hardware.machine.devices]
    others = {uuid for uuid in uuids if uuid != uuids[VICTIM]}
    passer_by = uuids[PASSER_BY]
    calls = calls_of_the_driver()
    assert len(calls) > 15
    noticed = []

    for call in calls:
        stage.hardware.simulator.inject("fail-call", VICTIM, f"{call}:{GPU_IS_LOST}")
        # A second one that goes and comes back: two looks have been taken, and the links measured anew.
        stage.hardware.simulator.inject("lost", PASSER_BY)
        await stage.until(
            lambda: passer_by not in healthy(stage) and healthy(stage), f"a look while {call} fails", WITHIN_S
        )
        stage.hardware.simulator.inject("back", PASSER_BY)
        await stage.until(lambda: others <= healthy(stage), f"the others' health while {call} fails", WITHIN_S)
        if healthy(stage) == others:
            noticed.append(call)
        seven = asking("main", stage.family.resources, count=len(healthy(stage)), memory=1000, cores=5)
        take_down(stage, await bring_up(stage, manifest(f"all-{call.lower()}", [seven])))
        stage.hardware.simulator.inject("back", VICTIM)
        await offered(stage)

    tell(f"{len(calls)} NVML calls failed in turn; {len(noticed)} of them took the GPU out of service")
    assert set(calls) - set(noticed) == HARMLESS


@pytest.mark.scenario("D5", "D16")
async def test_an_xid_reaches_the_kubelet_and_the_annotation_before_the_next_look_at_the_devices(running):
    stage = await running(health=FAST, rescanSeconds=RARELY_S)
    victim = stage.hardware.machine.devices[VICTIM].uuid
    replicas = next(info.count for info in stage.registered() if info.id == victim)
    before = stage.kubelet.allocatable(stage.resource)

    stage.hardware.simulator.inject("xid", VICTIM, 79)
    stage.hardware.simulator.inject("lost", VICTIM)

    await stage.until(
        lambda: stage.kubelet.allocatable(stage.resource) == before - replicas, "the loss at the kubelet", WITHIN_S
    )
    await stage.until(lambda: victim not in healthy(stage) and healthy(stage), "the loss in the annotation", WITHIN_S)
    await stage.until(lambda: any("79" in event["message"] for event in stage.api.events()), "the Event", WITHIN_S)


@pytest.mark.scenario("D2")
async def test_a_driver_that_goes_and_comes_back_is_opened_again_without_a_restart(running):
    stage = await running()
    kept = await bring_up(stage, small("kept", stage.family.resources))

    stage.hardware.simulator.inject("driver-gone")
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == 0, "the withdrawal", WITHIN_S)
    driver = (await stage.readiness())["components"]["driver nvidia"]
    stage.hardware.simulator.inject("driver-back", value="575.57.08")
    await offered(stage)

    assert "NoDriver" in driver
    assert (await stage.get("/healthz"))[0] == 200
    await logged(stage, '"driver opened"', "575.57.08")
    take_down(stage, kept)
    await bring_up(stage, small("later", stage.family.resources))
    await sound(stage)


@pytest.mark.full
@pytest.mark.scenario("D1")
async def test_a_daemon_without_a_driver_idles_and_starts_to_serve_when_one_arrives(set_up):
    stage = await set_up()
    stage.hardware.simulator.inject("driver-gone")
    await stage.start_daemon()
    await logged(stage, "driver unavailable")

    assert (await stage.get("/healthz"))[0] == 200
    assert (await stage.get("/readyz"))[0] == 503
    assert stage.kubelet.registrations == []
    stage.hardware.simulator.inject("driver-back")

    await offered(stage)
    await probed(stage, 200)


@pytest.mark.full
@pytest.mark.scenario("D13")
async def test_cards_that_cannot_tell_their_memory_are_used_with_what_the_operator_says_of_it(set_up):
    stage = await set_up("hgx-a100-4gpu", vendors={"nvidia": {"preConfiguredDeviceMemory": 40_000}})
    stage.hardware.simulator.inject("not-supported", None, "memory")
    await stage.start_daemon()
    await offered(stage)

    assert {info.devmem for info in stage.registered()} == {40_000}
    whole = asking("main", stage.family.resources, memory=40_000, cores=100)
    pod = await bring_up(stage, manifest("whole", [whole]))
    answer = await stage.kubelet.start_container(pod.uid, "main")
    assert answer.edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "40000m"


@pytest.mark.full
@pytest.mark.scenario("D13")
async def test_a_card_whose_memory_nobody_knows_is_kept_back_with_the_remedy_and_hides_no_other(set_up):
    stage = await set_up("hgx-a100-4gpu")
    silent, *others = [device.uuid for device in stage.hardware.machine.devices]
    stage.hardware.simulator.inject("not-supported", 0, "memory")
    await stage.start_daemon()
    await stage.until(lambda: healthy(stage) == set(others), "the offer of the others")

    await bring_up(stage, small("beside", stage.family.resources))

    await logged(stage, silent, "MemoryUnknown", "preConfiguredDeviceMemory")
    assert (await stage.get("/healthz"))[0] == 200
