"""What a container of AWS Neuron receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.allocation.allocator import question_of
from hami_plugin.errors import RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.protocol.pods import decided_shares
from tests.support.rigs import Rig, golden, rig
from vendors.awsneuron.rules import chip

GOLDEN = Path(__file__).parent / "golden"
KIND = "node.kubernetes.io/instance-type"


def kind(rig: Rig) -> dict[str, str]:
    return {KIND: rig.machine.extra["instance_type"]}


@pytest.mark.parametrize(
    ("name", "profile", "limits"),
    [
        ("four-devices", "aws-trn1-32xlarge", {"aws.amazon.com/neuron": 4}),
        ("four-cores", "aws-inf2-24xlarge", {"aws.amazon.com/neuroncore": 4}),
        ("logical-cores", "aws-trn2-48xlarge", {"aws.amazon.com/neuroncore": 16}),
    ],
)
def test_a_decided_pod_receives_its_devices(name: str, profile: str, limits: dict[str, int], tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)

    golden(GOLDEN / f"{name}.json", machine.received(limits, **kind(machine)))


def test_a_runtime_that_reads_cdi_is_told_the_names(tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path, deviceListStrategy="cdi-annotations,cdi-cri")

    golden(GOLDEN / "one-core-cdi.json", machine.received({"aws.amazon.com/neuroncore": 1}, **kind(machine)))


def test_the_second_core_of_a_shared_device_is_its_second_bit(tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path)
    devices = machine.snapshot().devices
    pod = machine.decided(machine.node(machine.snapshot(), **kind(machine)), {"aws.amazon.com/neuroncore": 1})
    share = Share(grant=Grant(uuid=devices[3].uuid, device_type="AWSNeuron", cores=2), device=devices[3])
    assignment = Assignment(pod=pod, container=pod.containers[0], shares=(share,))

    edits = machine.family.node.inject(assignment, HostFiles(paths=HostPaths())).edits

    assert edits.env == {"AWS_NEURON_VISIBLE_DEVICES": "3", "NEURON_RT_VISIBLE_CORES": "7"}


@pytest.mark.parametrize("cores", [0, 4, 7])
def test_cores_that_a_device_does_not_have_are_refused(cores: int, tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path)
    device = machine.snapshot().devices[0]
    pod = machine.decided(machine.node(machine.snapshot(), **kind(machine)), {"aws.amazon.com/neuroncore": 1})
    share = Share(grant=Grant(uuid=device.uuid, device_type="AWSNeuron", cores=cores), device=device)

    with pytest.raises(RefusedError, match="which has 2"):
        machine.family.node.inject(
            Assignment(pod=pod, container=pod.containers[0], shares=(share,)), HostFiles(paths=HostPaths())
        )


def test_the_scheduler_is_told_of_whole_devices_by_hamis_annotation_alone(tmp_path: Path) -> None:
    machine = rig("aws-trn1-32xlarge", tmp_path)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot, **kind(machine)), {"aws.amazon.com/neuron": 4})

    assert pod.annotations["AWS_NEURON_IDS"] == "0,1,2,3"
    assert "" not in pod.annotations


def test_physical_cores_can_be_counted_where_the_runtime_does(tmp_path: Path) -> None:
    machine = rig("aws-trn2-48xlarge", tmp_path, logicalCoreSize=1)

    assert {chip(device).cores for device in machine.snapshot().devices} == {8}


def test_a_claim_counts_the_cores_that_the_kubelet_must_offer(tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot, **kind(machine)), {"aws.amazon.com/neuroncore": 4})

    (claim,) = decided_shares(pod, question_of(machine.family, machine.family.resources.units[0]))

    assert claim.devices == ("n1-AWSNeuron-0", "n1-AWSNeuron-0", "n1-AWSNeuron-1", "n1-AWSNeuron-1")
