"""AWS Neuron's node side: what sysfs shows, what HAMi's scheduler makes of it, and what a container receives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hami_plugin.allocation.allocator import question_of
from hami_plugin.errors import DriverReason, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Action
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.protocol.decisions import claims
from hami_plugin.simulation.machines import load_machine, machine_names
from tests.support.rigs import Rig, absent_and_back, golden, kept_back_and_healed, lost_alone, rig
from vendors.awsneuron.driver import BusAddresses
from vendors.awsneuron.rules import chip

PROFILES = [name for name in machine_names() if load_machine(name).vendor == "aws-neuron"]
GOLDEN = Path(__file__).parent / "golden" / "awsneuron"
KIND = "node.kubernetes.io/instance-type"


def kind(rig: Rig) -> dict[str, str]:
    return {KIND: rig.machine.extra["instance_type"]}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_device_knows_its_cores_and_its_instance_type(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)

    snapshot = machine.snapshot()

    described = machine.machine.devices
    assert [chip(device).cores for device in snapshot.devices] == [one.extra["nc_count"] for one in described]
    assert snapshot.facts["instance type"] == machine.machine.extra["instance_type"]


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


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("ecc", "MemoryEccUncorrected"),
        ("sram-ecc", "SramEccUncorrected"),
        ("garbled", "DriverFailed"),
        ("no-node", "DeviceNodeMissing"),
    ],
)
def test_a_faulty_device_is_kept_back_and_heals(fault: str, reason: str, tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path)
    kept_back_and_healed(machine, fault, reason)


def test_memory_errors_ask_for_a_reset(tmp_path: Path) -> None:
    machine = rig("aws-inf2-xlarge", tmp_path)

    machine.simulator.inject("ecc", 0, 17)

    (sighting,) = machine.driver.discover().sightings
    assert sighting.fault
    assert (sighting.fault.action, sighting.fault.message) == (Action.RESET, "mem_ecc_uncorrected is 17")


def test_a_device_that_falls_off_the_bus_leaves_the_others(tmp_path: Path) -> None:
    machine = rig("aws-trn2-48xlarge", tmp_path)
    lost_alone(machine, 5)


@pytest.mark.parametrize(
    ("fault", "reason"), [("driver-gone", DriverReason.NO_DRIVER), ("no-devices", DriverReason.NO_DEVICES)]
)
def test_an_absent_driver_has_a_reason_and_comes_back(fault: str, reason: DriverReason, tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path)
    before = machine.snapshot()

    absent_and_back(machine, fault, reason)

    assert machine.snapshot() == before


@pytest.mark.parametrize("fault", ["tool-gone", "tool-garbled"])
def test_without_the_tool_a_trainiums_place_on_the_bus_is_not_guessed(fault: str, tmp_path: Path) -> None:
    machine = rig("aws-trn1-32xlarge", tmp_path)
    machine.simulator.inject(fault)

    discovery = machine.driver.discover()

    assert [(s.device.pci, s.device.numa, s.fault) for s in discovery.sightings] == [("", None, None)] * 16
    assert "neuron-ls does not tell" in discovery.problems[0]
    assert {link.label for link in machine.driver.links().pairs.values()} == {"NL1", ""}


def test_a_tool_that_hangs_is_given_up(tmp_path: Path) -> None:
    machine = rig("aws-trn1-32xlarge", tmp_path)
    machine.simulator.inject("tool-hangs")
    places = BusAddresses(HostPaths().rooted(machine.settings), machine.settings.neuron_ls, deadline=0.2)

    assert places.of(tuple(range(16))) == {}
    assert "has not answered within 0.2 s" in places.problems[0]


def test_a_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    machine = rig("aws-trn1-32xlarge", tmp_path)
    pipe, tool = tmp_path / "alive", tmp_path / "neuron-ls"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    tool.write_text(f"#!/bin/sh\nsleep 60 > {pipe} &\nwait\n", encoding="utf-8")
    tool.chmod(0o755)

    BusAddresses(HostPaths().rooted(machine.settings), tool, deadline=1.0).of(tuple(range(16)))

    assert os.read(reader, 1) == b"", "nobody has the other end any more"
    os.close(reader)


def test_faults_outlive_the_process_that_caused_them(tmp_path: Path) -> None:
    rig("aws-inf2-24xlarge", tmp_path).simulator.inject("ecc", 1)

    assert rig("aws-inf2-24xlarge", tmp_path).faults() == {1: "MemoryEccUncorrected"}


def test_unknown_faults_and_devices_are_named(tmp_path: Path) -> None:
    simulator = rig("aws-inf2-24xlarge", tmp_path).simulator

    with pytest.raises(ValueError, match="no fault is named 'melt'; choose from: lost, back"):
        simulator.inject("melt", 0)
    with pytest.raises(ValueError, match="there is no device 6; aws-inf2-24xlarge has 6"):
        simulator.inject("lost", 6)


def test_a_claim_counts_the_cores_that_the_kubelet_must_offer(tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot, **kind(machine)), {"aws.amazon.com/neuroncore": 4})

    (claim,) = claims(pod, question_of(machine.family, machine.family.resources.units[0]))

    assert claim.devices == ("n1-AWSNeuron-0", "n1-AWSNeuron-0", "n1-AWSNeuron-1", "n1-AWSNeuron-1")
