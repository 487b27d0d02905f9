"""Biren's driver on simulated machines: what the kernel and brsmi show."""

from __future__ import annotations

import pytest

from hami_plugin.errors import DriverReason
from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk import ToolError
from tests.support.rigs import Rig, absent_and_back, rig
from vendors import biren
from vendors.biren import VENDOR, list_cards

PROFILE = "biren-br106-8"


def asked_anew(machine: Rig) -> Rig:
    """A driver that has no answer of the tool yet."""
    return rig(PROFILE, machine.root)


def test_the_drivers_version_is_told(machine: Rig) -> None:
    assert machine.snapshot().facts == {"driver": "1.12.0"}


def test_its_scheduler_side_waits_for_a_report(machine: Rig) -> None:
    assert machine.family.node.reports
    assert machine.family.rules.annotations.handshake == "hami.io/node-handshake-biren"


@pytest.mark.parametrize(
    ("fault", "reason"), [("silent", "DeviceSilent"), ("garbled", "DeviceSilent"), ("no-node", "DeviceNodeMissing")]
)
def test_a_faulty_gpu_is_kept_back_alone_and_heals(fault: str, reason: str, machine: Rig) -> None:
    machine.simulator.inject(fault, 3)
    assert asked_anew(machine).faults() == {3: reason}

    machine.simulator.inject("back", 3)
    assert asked_anew(machine).faults() == {}


def test_a_gpu_that_turns_silent_keeps_its_name(machine: Rig) -> None:
    before = machine.snapshot().devices

    machine.simulator.inject("silent", 3)

    assert machine.faults() == {3: "DeviceSilent"}
    assert [device.uuid for device in machine.snapshot().devices] == [device.uuid for device in before]


def test_a_gpu_that_falls_off_the_bus_leaves_the_others_as_they_are(machine: Rig) -> None:
    before = machine.snapshot().devices

    machine.simulator.inject("lost", 2)

    assert machine.snapshot().devices == (*before[:2], *before[3:])


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("driver-gone", DriverReason.NO_DRIVER, "kernel module biren is not loaded"),
        ("no-devices", DriverReason.NO_DEVICES, "is loaded, and shows no Biren GPU"),
        ("tool-gone", DriverReason.NO_LIBRARY, "bin/brsmi cannot be run"),
        ("tool-fails", DriverReason.FAILED, "ERROR_UNINITIALIZED"),
    ],
)
def test_a_driver_that_is_not_there_says_what_is_missing(
    fault: str, reason: DriverReason, words: str, machine: Rig
) -> None:
    absent_and_back(machine, fault, reason, words)

    assert len(machine.snapshot().devices) == 8


def test_a_tool_that_hangs_is_ended(machine: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.simulator.inject("tool-hangs")
    monkeypatch.setattr(biren, "DEADLINE_S", 0.2)

    with pytest.raises(ToolError, match=r"has not answered within 0\.2 s"):
        list(list_cards(machine.settings, HostPaths().rooted(machine.settings)))


def test_its_hardware_is_seen_where_its_module_is(machine: Rig) -> None:
    assert VENDOR.present(machine.settings, HostPaths())
    machine.simulator.inject("driver-gone")
    assert not VENDOR.present(machine.settings, HostPaths())
