"""Biren's node side: what is discovered, what HAMi's scheduler makes of it, and what a container receives."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError
from hami_plugin.host.paths import HostPaths
from tests.support.rigs import Rig, absent_and_back, golden, lost_alone, rig
from vendors.biren import VENDOR, BirenDiscoverer

PROFILE = "biren-br106-8"
GOLDEN = Path(__file__).parent / "golden" / "biren"


@pytest.fixture
def machine(tmp_path: Path) -> Rig:
    return rig(PROFILE, tmp_path)


def asked_anew(machine: Rig) -> Rig:
    """A driver that has no answer of the tool yet."""
    return rig(PROFILE, machine.root)


def test_the_drivers_version_is_told(machine: Rig) -> None:
    assert machine.snapshot().facts == {"driver": "1.12.0"}


def test_its_scheduler_side_waits_for_a_report(machine: Rig) -> None:
    assert machine.family.node.reports
    assert machine.family.annotations.handshake == "hami.io/node-handshake-biren"


def test_a_pod_receives_three_gpus(machine: Rig) -> None:
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"birentech.com/gpu": 3})

    answer = machine.answer(pod, snapshot.devices)

    golden(GOLDEN / "three.json", answer)


def test_without_driver_libraries_on_the_host_there_is_nothing_to_mount(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path, driverRoot=str(tmp_path / "nowhere"))
    snapshot = machine.snapshot()

    answer = machine.answer(machine.decided(machine.node(snapshot), {"birentech.com/gpu": 1}), snapshot.devices)

    assert "mounts" not in answer["edits"]


@pytest.mark.parametrize(
    ("fault", "reason"), [("silent", "DeviceSilent"), ("garbled", "DeviceSilent"), ("no-node", "DeviceNodeMissing")]
)
def test_a_faulty_gpu_is_kept_back_alone_and_heals(fault: str, reason: str, machine: Rig) -> None:
    machine.simulator.inject(fault, 3)
    assert asked_anew(machine).faults() == {3: reason}

    machine.simulator.inject("back", 3)
    assert asked_anew(machine).faults() == {}


def test_a_gpu_that_turns_silent_keeps_its_name(machine: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vendors.biren.ASK_EVERY_S", 0.0)
    driver = rig(PROFILE, machine.root)
    names = [device.uuid for device in driver.snapshot().devices]

    driver.simulator.inject("silent", 3)

    assert [(event.uuid, event.fault.reason) for event in driver.driver.poll(2.0)] == [(names[3], "DeviceSilent")]
    assert [device.uuid for device in driver.snapshot().devices] == names


def test_a_gpu_that_falls_off_the_bus_leaves_the_others_as_they_are(machine: Rig) -> None:
    lost_alone(machine, 2)


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("driver-gone", DriverReason.NO_DRIVER, "kernel module is not loaded"),
        ("no-devices", DriverReason.NO_DEVICES, "is loaded, and shows no GPU"),
        ("tool-gone", DriverReason.NO_LIBRARY, "there is no .*/bin/brsmi"),
        ("tool-fails", DriverReason.FAILED, "ERROR_UNINITIALIZED"),
    ],
)
def test_a_driver_that_is_not_there_says_what_is_missing(
    fault: str, reason: DriverReason, words: str, machine: Rig
) -> None:
    absent_and_back(machine, fault, reason, words)

    assert len(machine.snapshot().devices) == 8


def test_a_tool_that_hangs_is_ended(machine: Rig) -> None:
    machine.simulator.inject("tool-hangs")
    paths = HostPaths().elsewhere(sysfs=machine.settings.sysfs_root, dev=machine.settings.dev_root)

    with pytest.raises(DriverUnavailableError, match=r"has not answered within 0\.2 s"):
        BirenDiscoverer(paths, machine.settings.brsmi, deadline=0.2)(lambda _uuid: None)


def test_a_gpu_without_a_node_cannot_be_handed_over(machine: Rig) -> None:
    snapshot = machine.snapshot()
    machine.simulator.inject("no-node", 0)

    with pytest.raises(HamiError, match=f"{snapshot.devices[0].uuid} has no node"):
        machine.answer(machine.decided(machine.node(snapshot), {"birentech.com/gpu": 8}), snapshot.devices)


def test_its_hardware_is_seen_where_its_module_is(machine: Rig) -> None:
    assert VENDOR.present(machine.settings, HostPaths())
    machine.simulator.inject("driver-gone")
    assert not VENDOR.present(machine.settings, HostPaths())
