"""Vendors whose tool lists the cards: what is found is the profile, and each fault ends in a reason of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cdi.documents import read
from hami_plugin.cli.main import main
from hami_plugin.config.vendors import ToolSettings
from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine, machine_names
from tests.support.rigs import absent_and_back, known, rig
from tests.support.scale import spread

PROFILES = [name for name in machine_names() if issubclass(vendor_of(known(name)).settings, ToolSettings)]


@pytest.fixture(params=spread(PROFILES, part=2))
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_its_devices_can_be_described_to_a_runtime(profile: str) -> None:
    printed = CliRunner().invoke(main, ["cdi", "generate", "--simulate", profile])

    assert printed.exit_code == 0, printed.output
    assert len(read(printed.stdout, "printed.json").devices) == 2 * len(load_machine(profile).devices) + 1


@pytest.mark.parametrize(
    ("fault", "reason"), [("silent", "DeviceSilent"), ("unlisted", "NotListed"), ("no-node", "DeviceNodeMissing")]
)
def test_a_faulty_card_is_kept_back_and_heals(fault: str, reason: str, profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)
    before = machine.driver.discover()

    machine.simulator.inject(fault, 2)

    after = machine.driver.discover()
    assert {one.device.index: one.fault.reason for one in after.sightings if one.fault} == {2: reason}
    assert [one.device for one in after.sightings] == [one.device for one in before.sightings]
    machine.simulator.inject("back", 2)
    assert machine.driver.discover() == before


def test_a_card_that_falls_off_the_bus_leaves_the_others(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)
    before = machine.snapshot()

    machine.simulator.inject("lost", 1)

    after = machine.snapshot()
    assert list(after.devices) == [device for device in before.devices if device.index != 1]
    assert after.links.problems == ()


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("no-devices", DriverReason.NO_DEVICES, "on the PCI bus"),
        ("driver-gone", DriverReason.NO_DRIVER, "no driver is bound to them"),
        ("tool-gone", DriverReason.NO_LIBRARY, "cannot be run"),
        ("tool-hangs", DriverReason.HUNG, "has not answered within 4 s"),
    ],
)
def test_what_is_absent_has_a_reason_and_comes_back(
    fault: str, reason: DriverReason, words: str, profile: str, tmp_path: Path
) -> None:
    seconds = 4.0 if fault == "tool-hangs" else 20.0  # a tool that answers does so on a loaded machine too
    machine = rig(profile, tmp_path, toolSeconds=seconds)
    before = machine.snapshot()

    absent_and_back(machine, fault, reason, words)

    assert machine.snapshot() == before


def test_garbage_of_a_tool_is_no_device(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)
    machine.simulator.inject("tool-garbled")

    with pytest.raises(DriverUnavailableError) as caught:
        machine.driver.discover()

    assert caught.value.reason in (DriverReason.NO_DEVICES, DriverReason.FAILED)
    assert "oops" in str(caught.value)


def test_cards_that_become_garbage_are_kept_back_with_their_names(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)
    names = [device.uuid for device in machine.snapshot().devices]
    for one in machine.machine.devices[1:]:
        machine.simulator.inject("unlisted", one.index)

    after = machine.driver.discover()

    assert [one.device.uuid for one in after.sightings] == names
    assert [one.fault is None for one in after.sightings] == [True] + [False] * (len(names) - 1)


def test_a_vendor_is_present_where_its_cards_are_plugged_in(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)
    vendor = vendor_of(machine.machine)

    machine.simulator.inject("driver-gone")
    assert vendor.present(machine.settings, HostPaths())
    machine.simulator.inject("no-devices")
    assert not vendor.present(machine.settings, HostPaths())
