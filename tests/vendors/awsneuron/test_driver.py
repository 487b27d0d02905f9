"""AWS Neuron's driver on simulated machines: what sysfs and neuron-ls show."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action
from hami_plugin.simulation.machines import machine_names
from tests.support.rigs import absent_and_back, kept_back_and_healed, known, lost_alone, rig
from vendors.awsneuron.driver import BusAddresses
from vendors.awsneuron.rules import chip

PROFILES = [name for name in machine_names() if known(name).vendor == "aws-neuron"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_device_knows_its_cores_and_its_instance_type(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)

    snapshot = machine.snapshot()

    described = machine.machine.devices
    assert [chip(device).cores for device in snapshot.devices] == [one.extra["nc_count"] for one in described]
    assert snapshot.facts["instance type"] == machine.machine.extra["instance_type"]


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

    for _ in range(3000):  # the kernel takes a moment to end those that were killed
        with suppress(BlockingIOError):
            assert os.read(reader, 1) == b"", "nobody has the other end any more"
            break
        time.sleep(0.01)
    else:
        pytest.fail("somebody still has the other end")
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
