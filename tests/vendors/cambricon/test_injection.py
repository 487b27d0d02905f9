"""What a container of Cambricon receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.allocation.allocator import question_of
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Assignment, Share
from hami_plugin.model.views import PodView
from hami_plugin.protocol.pods import decided_shares
from hami_plugin.sdk import Partition, PartitionSide
from tests.support.rigs import NODE, Rig, golden, rig
from vendors.cambricon.cndev import Cndev
from vendors.cambricon.rules import PROFILE
from vendors.cambricon.smlu import SmluPartitions

GOLDEN = Path(__file__).parent / "golden"
MLU, MEMORY, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
SHARE = {MLU: 1, MEMORY: 20, CORES: 10}


def test_a_pod_receives_two_mlus(machine: Rig) -> None:
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {MLU: 2})

    golden(GOLDEN / "two-whole.json", machine.answer(pod, snapshot.devices))


def test_a_runtime_that_reads_cdi_is_told_the_names(tmp_path: Path) -> None:
    machine = rig("cambricon-mlu590-8", tmp_path, deviceListStrategy="cdi-annotations,cdi-cri", unlimitedShares=True)

    golden(GOLDEN / "share-cdi.json", machine.received(SHARE))


def test_a_share_is_counted_by_the_kubelet_in_all_three_resources(tmp_path: Path) -> None:
    machine = rig("cambricon-mlu590-8", tmp_path, unlimitedShares=True)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), SHARE)
    questions = [
        question_of(machine.family),
        *(question_of(machine.family, one) for one in machine.family.resources.units),
    ]

    counted = {question.resource: len(decided_shares(pod, question)[0].devices) for question in questions}

    assert counted == SHARE
    assert {question.lock for question in questions} == {"cambricon.com/dsmlu.lock"}


def test_all_of_the_memory_with_a_part_of_the_cores_is_a_share_too(machine: Rig) -> None:
    node = machine.node(machine.snapshot())

    assert machine.refused(node, {MLU: 1, CORES: 10}) == "8/8 CardServedWholeOnly"
    assert machine.refused(node, {MLU: 1, CORES: 100}) == ""


def cut(root: Path, **settings: object) -> Rig:
    """A machine whose MLUs are cut for containers."""
    machine = rig("cambricon-mlu590-8", root, mode="dynamic-smlu", **settings)
    machine.simulator.inject("smlu-mode")
    return machine


def instance(machine: Rig, pod: PodView, devices: Sequence[Device]) -> tuple[Assignment, Partition]:
    """What is made for the pod's one container."""
    (claim,) = decided_shares(pod, question_of(machine.family))
    by_uuid = {device.uuid: device for device in devices}
    shares = tuple(Share(grant=grant, device=by_uuid[grant.uuid]) for grant in claim.grants)
    assignment = Assignment(pod=pod, container=claim.container, shares=shares)
    (one,) = side(machine).wanted(assignment)
    driver = SmluPartitions(Cndev(machine.settings.cndev), NODE)
    return assignment, driver.create(one.card, one.profile, one.placement, lambda _ids: None)


def side(machine: Rig) -> PartitionSide:
    assert machine.family.node.partitions
    return machine.family.node.partitions


@pytest.mark.parametrize(
    ("strategy", "nodes"),
    [
        ("device-specs", ["cambricon_ctl", "cambricon_gdr", "cambricon_dev7", "cambricon_ipcm7"]),
        ("cdi-cri", []),
    ],
)
def test_a_container_has_the_nodes_of_its_instance_and_of_no_more(
    strategy: str, nodes: list[str], tmp_path: Path
) -> None:
    machine = cut(tmp_path, deviceListStrategy=strategy)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), SHARE)
    assignment, made = instance(machine, pod, snapshot.devices)
    host = HostFiles(paths=HostPaths())

    edits = side(machine).inject(assignment, [made], host).edits
    described = side(machine).edits(assignment.shares[0].device, made, host)

    own = "/dev/cambricon-caps/cap_dev7_mi1"
    assert edits.env == {PROFILE: "7_10_20"}
    assert [node.path for node in edits.device_nodes] == [
        *(f"/dev/{name}" for name in nodes),
        *([own] if nodes else []),
    ]
    assert [node.path for node in described.device_nodes] == ["/dev/cambricon_dev7", "/dev/cambricon_ipcm7", own]


def test_an_instance_that_cndev_does_not_list_is_given_to_nobody(tmp_path: Path) -> None:
    machine = cut(tmp_path)
    snapshot = machine.snapshot()
    assignment, made = instance(machine, machine.decided(machine.node(snapshot), SHARE), snapshot.devices)
    other = replace(made, uuid="MLU-0000ffff-5a1a-4000-8000-000000000007")

    with pytest.raises(HamiError, match="tells no node of"):
        side(machine).inject(assignment, [other], HostFiles(paths=HostPaths()))


def test_the_names_of_instances_are_read_as_they_are_written(tmp_path: Path) -> None:
    machine = cut(tmp_path)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), SHARE)
    _, made = instance(machine, pod, snapshot.devices)
    (before,) = side(machine).reserved(pod)

    told = side(machine).names(pod, [(before, made)])
    (after,) = side(machine).reserved(replace(pod, annotations={**pod.annotations, **told}))

    assert told["CAMBRICON_DSMLU_PROFILE_INSTANCE"] == "0_263_7_1"
    assert (before.uuid, before.card, before.profile) == ("", made.card, made.profile)
    assert after == replace(before, uuid=made.uuid, ids=dict(made.ids))
    assert side(machine).reserved(replace(pod, annotations={})) == []


def test_a_node_whose_mlus_are_cut_serves_parts_and_cannot_be_trusted_beside(tmp_path: Path) -> None:
    machine = cut(tmp_path)
    node = machine.node(machine.snapshot())

    assert machine.refused(node, {MLU: 1, CORES: 10}) == ""
    assert machine.family.node.replicas(machine.snapshot().devices[0]) == 100
    with pytest.raises(ValueError, match="exclude each other"):
        rig("cambricon-mlu590-8", tmp_path, mode="dynamic-smlu", unlimitedShares=True)
