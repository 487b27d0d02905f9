"""Hygon's driver on simulated machines: what sysfs and hy-smi show."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action
from hami_plugin.simulation.machines import machine_names
from tests.support.rigs import absent_and_back, kept_back_and_healed, known, lost_alone, rig
from vendors.hygon.driver import Dcu, NumaNodes
from vendors.hygon.settings import DCUS

PROFILES = [name for name in machine_names() if known(name).vendor == "hygon"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_card_knows_its_nodes_and_its_compute_units(profile: str, tmp_path: Path) -> None:
    machine = rig(profile, tmp_path)

    snapshot = machine.snapshot()

    described = machine.machine.devices
    assert [device.traits for device in snapshot.devices] == [
        Dcu(card=one.extra["drm_card"], render=one.extra["drm_render"], compute_units=one.extra["compute_units"])
        for one in described
    ]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("ecc", "MemoryEccUncorrected"), ("garbled", "DriverFailed"), ("no-node", "DeviceNodeMissing")],
)
def test_a_faulty_device_is_kept_back_and_heals(fault: str, reason: str, tmp_path: Path) -> None:
    machine = rig("hygon-k100ai-8", tmp_path)
    kept_back_and_healed(machine, fault, reason)


def test_memory_errors_ask_for_a_reset(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    machine.simulator.inject("ecc", 0, 17)

    fault = machine.driver.discover().sightings[0].fault

    assert fault
    assert (fault.action, fault.message) == (Action.RESET, "17 uncorrectable memory errors")


def test_a_card_that_falls_off_the_bus_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    machine = rig("hygon-k100ai-8", tmp_path)
    lost_alone(machine, 0)


def test_a_card_that_never_told_its_name_is_a_problem_in_words(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    machine.simulator.inject("garbled", 1)

    discovery = machine.driver.discover()

    assert [sighting.device.index for sighting in discovery.sightings] == [0, 2, 3]
    assert discovery.problems[0].startswith("DCU 0000:26:00.0: invalid literal")


@pytest.mark.parametrize(
    ("fault", "reason"), [("driver-gone", DriverReason.NO_DRIVER), ("no-devices", DriverReason.NO_DEVICES)]
)
def test_an_absent_driver_has_a_reason_and_comes_back(fault: str, reason: DriverReason, tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    before = machine.snapshot()

    absent_and_back(machine, fault, reason)

    assert machine.snapshot() == before


@pytest.mark.parametrize(("fault", "why"), [("tool-gone", "cannot be run"), ("tool-garbled", "printed no JSON")])
def test_without_the_tool_sysfs_is_believed_and_the_doubt_is_told(fault: str, why: str, tmp_path: Path) -> None:
    machine = rig("hygon-k100ai-8", tmp_path)
    machine.simulator.inject(fault)

    discovery = machine.driver.discover()

    assert {sighting.device.numa for sighting in discovery.sightings} == {0}
    assert why in discovery.problems[0]


def test_a_tool_that_hangs_is_given_up(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    machine.simulator.inject("tool-hangs")
    places = NumaNodes(machine.settings.hy_smi, deadline=0.2)

    assert places.numa(()) == {}
    assert places.problems == ()
    assert set(places.numa(DCUS.plugged(HostPaths().rooted(machine.settings))).values()) == {0}
    assert "not answered within 0.2 s" in places.problems[0]


def test_a_processors_own_functions_are_no_cards(tmp_path: Path) -> None:
    machine = rig("hygon-z100-4", tmp_path)
    bridge = tmp_path / "sys/bus/pci/devices/0000:00:01.0"
    bridge.mkdir()
    for name, text in {"vendor": "0x1d94", "device": "0x1450", "class": "0x060000"}.items():
        (bridge / name).write_text(f"{text}\n")

    assert len(machine.snapshot().devices) == 4
