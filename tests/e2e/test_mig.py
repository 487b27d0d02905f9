"""MIG instances that exist, through the daemon process: counted, lent, faulty, unmade and made anew."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from cdi.names import annotated
from cdi.store import load
from hami_plugin.model.views import pod_view
from hami_plugin.simulation.kubelet import AdmissionError
from tests.e2e.manifests import asking, manifest
from tests.e2e.steps import WITHIN_S, logged, probed, start
from tests.support.mig import MigAdministrator

QUICK = {"probeSeconds": 0.1, "cleanLooks": 2}
CUT = "a100-pcie-2-mig"
UNCUT = "hgx-a100-4gpu"
SMALL, MIDDLE, LARGE = (f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.40gb"))


async def started(set_up, profile, strategy, *, hold=0.5, **nvidia):
    stage = await set_up(
        profile,
        rescanSeconds=0.3,
        health={**QUICK, "holdSeconds": hold},
        decisionWaitSeconds=1.0,
        vendors={"nvidia": {"migStrategy": strategy, **nvidia}},
    )
    await start_all(stage) if profile == CUT else await start(stage)
    return stage


async def start_all(stage):
    await stage.start_daemon()
    await counts(stage, {SMALL: 2, MIDDLE: 1, LARGE: 1, "nvidia.com/gpu": 10})


async def counts(stage, wanted):
    """Wait until the kubelet has so many healthy devices of each resource, and of no other."""

    def counted():
        resources = stage.kubelet.ledger.resources
        return {name: n for name in resources if (n := stage.kubelet.allocatable(name))} == wanted

    await stage.until(counted, f"the count {wanted}", WITHIN_S)


def administrator(stage):
    return MigAdministrator(stage.hardware.settings["nvmlLibrary"])


async def driver_says(stage, part):
    """Wait until the readiness probe says this of the driver; all that it says."""
    async with asyncio.timeout(WITHIN_S):
        while part not in (said := (await stage.readiness())["components"]["driver nvidia"]):
            pass
    return said


def pod_of(stage, name, limits):
    """A pod that kube-scheduler has put on the node: nobody else has decided anything about it."""
    asked = {"name": "main", "resources": {"limits": {key: str(n) for key, n in limits.items()}}}
    made = manifest(name, [asked], scheduler="default-scheduler")
    made["spec"]["nodeName"] = stage.node
    made["metadata"]["uid"] = f"uid-{name}"
    return pod_view({**made, "status": {"phase": "Pending"}})


async def lent(stage, name, limits):
    """What the kubelet starts the pod's container with, and the ids that it has of each resource."""
    pod = pod_of(stage, name, limits)
    given = await stage.kubelet.admit(pod)
    return await stage.kubelet.start_container(pod.uid, "main"), given["main"]


def nodes(stage, card, instance):
    """What opens an instance: the control nodes, the card's, and two capabilities of the kernel's list."""
    gi, ci = instance
    text = (Path(stage.hardware.settings["procRoot"]) / "driver/nvidia-caps/mig-minors").read_text()
    minors = dict(line.split() for line in text.splitlines())
    caps = [minors[f"gpu{card}/gi{gi}/access"], minors[f"gpu{card}/gi{gi}/ci{ci}/access"]]
    control = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
    return [f"/dev/{name}" for name in (*control, f"nvidia{card}", *(f"nvidia-caps/nvidia-cap{n}" for n in caps))]


def lists(stage):
    """Each list that the kubelet is sent from now on: what it has heard of may be over when a test next looks."""
    seen, listed = [], stage.kubelet.ledger.listed

    def noted(resource, offers):
        listed(resource, offers)
        seen.append((resource, stage.kubelet.ledger.healthy(resource)))

    stage.kubelet.ledger.listed = noted
    return seen


@pytest.mark.full
async def test_each_profile_is_a_resource_beside_the_cards_that_are_not_cut(set_up):
    stage = await started(set_up, CUT, "mixed", passDeviceSpecs=True)
    existing = administrator(stage).instances(0)
    dev = stage.hardware.settings["devRoot"]

    answer, ids = await lent(stage, "two", {SMALL: 2})

    assert set(ids[SMALL]) <= existing.keys()
    assert answer.edits.env == {"NVIDIA_VISIBLE_DEVICES": ",".join(sorted(ids[SMALL]))}
    assert answer.edits.mounts == ()
    first, second = sorted(ids[SMALL])
    expected = dict.fromkeys((*nodes(stage, 0, existing[first]), *nodes(stage, 0, existing[second])))
    assert [node.path for node in answer.edits.device_nodes] == list(expected)
    assert [node.source for node in answer.edits.device_nodes] == [path.replace("/dev", dev, 1) for path in expected]
    assert (answer.annotations, answer.cdi_devices) == ({}, ())
    whole = {stage.hardware.machine.devices[1].uuid}
    await stage.until(lambda: {info.id for info in stage.registered()} == whole, "the register", WITHIN_S)


@pytest.mark.full
async def test_instances_are_told_to_the_kubelet_under_their_own_names_with_the_cards_numa_node(set_up):
    stage = await started(set_up, CUT, "mixed")

    shown = {offer.id: offer.numa for name in (SMALL, MIDDLE, LARGE) for offer in stage.kubelet.ledger.offers(name)}

    assert shown == dict.fromkeys(administrator(stage).instances(0), 0)


@pytest.mark.full
async def test_a_shared_card_is_shared_as_ever_beside_instances(set_up):
    stage = await started(set_up, CUT, "mixed")
    await stage.until(lambda: bool(stage.registered()), "the register", WITHIN_S)

    pod = stage.scheduler.place(manifest("share", [asking("main", stage.family.resources, memory=3000, cores=30)]))
    await stage.kubelet.admit(pod)
    answer = await stage.kubelet.start_container(pod.uid, "main")

    assert answer.edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert answer.edits.env["NVIDIA_VISIBLE_DEVICES"] == stage.hardware.machine.devices[1].uuid


@pytest.mark.full
async def test_a_fault_of_one_instance_leaves_its_neighbours_in_service(set_up):
    stage = await started(set_up, CUT, "mixed")
    existing = administrator(stage).instances(0)
    victim, other = sorted(offer.id for offer in stage.kubelet.ledger.offers(SMALL))
    gi, ci = existing[victim]

    seen = lists(stage)

    stage.hardware.simulator.inject("xid", 0, f"94:{gi}:{ci}")

    await stage.until(lambda: (SMALL, {other}) in seen, "the fault", WITHIN_S)
    await counts(stage, {SMALL: 2, MIDDLE: 1, LARGE: 1, "nvidia.com/gpu": 10})
    assert {resource for resource, _ in seen} == {SMALL}


@pytest.mark.full
@pytest.mark.parametrize("xid", ["79", "48:1:0"])
async def test_a_fault_of_the_card_takes_all_its_instances_and_no_other_card(xid, set_up):
    stage = await started(set_up, CUT, "mixed")

    stage.hardware.simulator.inject("xid", 0, xid)

    await counts(stage, {"nvidia.com/gpu": 10})
    with pytest.raises(AdmissionError):
        await stage.kubelet.admit(pod_of(stage, "late", {SMALL: 1}))


@pytest.mark.full
async def test_an_instance_that_is_unmade_goes_and_one_in_its_place_comes_with_its_own_name(set_up):
    stage = await started(set_up, CUT, "mixed")
    admin = administrator(stage)
    (gone,) = (offer.id for offer in stage.kubelet.ledger.offers(LARGE))
    capacity = stage.kubelet.capacity

    admin.destroy(0, gone)
    await stage.until(lambda: not stage.kubelet.registered(LARGE), f"the withdrawal of {LARGE}", WITHIN_S)
    assert capacity(LARGE) == 0
    async with asyncio.timeout(WITHIN_S):
        while f'endpoint_ready{{resource="{LARGE}"}}' in (await stage.get("/metrics"))[1]:
            pass
    made = admin.create(0, "1g.10gb", "4+1")
    await stage.until(lambda: made in stage.kubelet.ledger.healthy(SMALL), "the offer of another profile", WITHIN_S)
    admin.destroy(0, made)
    again = admin.create(0, "3g.40gb", "4+4")
    await counts(stage, {SMALL: 2, MIDDLE: 1, LARGE: 1, "nvidia.com/gpu": 10})

    assert again != gone
    answer, ids = await lent(stage, "again", {LARGE: 1})
    assert ids[LARGE] == (again,)
    assert answer.edits.env == {"NVIDIA_VISIBLE_DEVICES": again}


@pytest.mark.full
async def test_what_is_made_at_the_place_of_a_fault_is_unhealthy_until_it_was_seen_well(set_up):
    stage = await started(set_up, CUT, "mixed", hold=8)
    admin = administrator(stage)
    (gone,) = (offer.id for offer in stage.kubelet.ledger.offers(LARGE))
    gi, ci = admin.instances(0)[gone]

    stage.hardware.simulator.inject("xid", 0, f"94:{gi}:{ci}")
    await stage.until(lambda: gone not in stage.kubelet.ledger.healthy(LARGE), "the fault", WITHIN_S)
    admin.destroy(0, gone)
    made = admin.create(0, "3g.40gb", "4+4")
    await stage.until(lambda: made in stage.kubelet.ledger.healthy(LARGE), "the recovery of the place", WITHIN_S)

    await logged(stage, made, "device health")
    told = [json.loads(line) for line in stage.log_lines() if made in line and "device health" in line]
    assert told[0]["health"] in ("unhealthy", "probation")


@pytest.mark.full
async def test_containers_receive_instances_by_cdi_names_that_open_them_and_nothing_else(set_up, tmp_path):
    directory = tmp_path / "cdi"
    directory.mkdir()
    stage = await set_up(
        CUT,
        rescanSeconds=0.3,
        cdiDirs=[str(directory)],
        vendors={"nvidia": {"migStrategy": "mixed", "deviceListStrategy": "cdi-annotations,cdi-cri"}},
    )
    await start_all(stage)
    existing = administrator(stage).instances(0)

    answer, ids = await lent(stage, "by-cdi", {LARGE: 1})

    (uuid,) = ids[LARGE]
    names = annotated(answer.annotations)
    assert answer.cdi_devices == tuple(map(str, names)) == (f"k8s.device-plugin.nvidia.com/gpu={uuid}",)
    assert answer.edits.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    found = load([directory], yaml=yaml.safe_load).resolve(names)
    control = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
    assert {node.path for node in found.device_nodes} == control | set(nodes(stage, 0, existing[uuid]))


@pytest.mark.full
async def test_a_restarted_daemon_finds_the_same_instances_and_serves_them(set_up):
    stage = await started(set_up, CUT, "mixed")
    await stage.stop_daemon(kill=True)

    await start_all(stage)

    answer, ids = await lent(stage, "after", {MIDDLE: 1})
    assert answer.edits.env == {"NVIDIA_VISIBLE_DEVICES": ids[MIDDLE][0]}


@pytest.mark.full
async def test_a_new_daemon_takes_the_instances_over_and_the_kubelet_misses_none(set_up):
    stage = await started(set_up, CUT, "mixed")
    second = stage.twin("second")
    await second.start_daemon()
    fewest = 2

    def taken_over():
        nonlocal fewest
        fewest = min(fewest, stage.kubelet.allocatable(SMALL))
        return any("relieved" in line for line in stage.log_lines())

    await stage.until(taken_over, "the end of the first one's streams", WITHIN_S)
    await stage.stop_daemon()
    assert fewest == 2

    await counts(stage, {SMALL: 2, MIDDLE: 1, LARGE: 1, "nvidia.com/gpu": 10})
    answer, ids = await lent(stage, "after", {MIDDLE: 1})
    assert answer.edits.env == {"NVIDIA_VISIBLE_DEVICES": ids[MIDDLE][0]}
    await second.stop_daemon()


@pytest.mark.full
async def test_metrics_tell_each_instance_and_who_has_it(set_up):
    stage = await started(set_up, CUT, "mixed")
    _answer, ids = await lent(stage, "one", {LARGE: 1})

    _status, text = await stage.get("/metrics")

    (uuid,) = ids[LARGE]
    taken = [line for line in text.splitlines() if line.startswith("hami_plugin_device_shares_allocated{")]
    assert [line for line in taken if uuid in line and 'index="0:' in line and line.endswith(" 1.0")]
    holders = [line for line in text.splitlines() if line.startswith("hami_plugin_container_memory_bytes{")]
    assert [line for line in holders if uuid in line and 'pod="one"' in line and float(line.split()[-1]) == 40192 << 20]


async def test_a_node_is_cut_into_equal_instances_step_by_step_and_serves_them_as_cards(set_up):
    stage = await started(set_up, UNCUT, "single")
    admin = administrator(stage)

    admin.switch(0, on=True)
    said = await driver_says(stage, "card 0 is in MIG mode and cards 1,2,3 are not")
    assert said.startswith("MigMixture: ")
    assert "nvidia-smi -i 1,2,3 -mig 1" in said
    await counts(stage, {})
    for card in (1, 2, 3):
        admin.switch(card, on=True)
    made = {admin.create(card, "3g.20gb") for card in (0, 1, 2, 3) for _ in range(2)}
    await counts(stage, {"nvidia.com/gpu": 8})

    assert stage.kubelet.ledger.healthy("nvidia.com/gpu") == made

    def registered():
        return {info.id: (info.count, info.devmem, info.devcore) for info in stage.registered()}

    await stage.until(lambda: registered() == dict.fromkeys(made, (1, 19968, 100)), "the register", WITHIN_S)
    pod = stage.scheduler.place(manifest("one", [asking("main", stage.family.resources, memory=3000)]))
    await stage.kubelet.admit(pod)
    answer = await stage.kubelet.start_container(pod.uid, "main")
    assert answer.edits.env.keys() == {"NVIDIA_VISIBLE_DEVICES"}
    assert answer.edits.env["NVIDIA_VISIBLE_DEVICES"] in pod.annotations[stage.family.rules.annotations.allocated]
    assert answer.edits.mounts == ()


@pytest.mark.full
async def test_instances_that_differ_are_named_and_the_node_heals_without_a_restart(set_up):
    stage = await started(set_up, UNCUT, "single")
    admin = administrator(stage)
    for card in range(4):
        admin.switch(card, on=True)
    await driver_says(stage, "cards 0,1,2,3 are in MIG mode without any instance")
    for card in range(3):
        admin.create(card, "3g.20gb")
    odd = admin.create(3, "1g.5gb")

    await driver_says(stage, "the instances differ: 1g.5gb on card 3, 3g.20gb on cards 0,1,2")

    admin.destroy(3, odd)
    admin.create(3, "3g.20gb")
    await counts(stage, {"nvidia.com/gpu": 4})
    await probed(stage, 200)


async def test_without_a_strategy_a_card_in_mig_mode_is_unhealthy_and_says_what_to_do(set_up):
    stage = await set_up(CUT)

    await stage.start_daemon()

    await counts(stage, {"nvidia.com/gpu": 10})
    await stage.until(lambda: [info.health for info in stage.registered()] == [False, True], "the register", WITHIN_S)
    await logged(stage, "set migStrategy to mixed or single")
