"""The real driver over the simulated library and the driver in Python see the same machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hami_plugin.model.device import Action
from hami_plugin.simulation.machines import machine_names
from tests.support.rigs import known
from tests.support.simulated_driver import SimulatedDriver
from vendors.nvidia.driver import link
from vendors.nvidia.xid import XidPolicy

# The driver in Python knows no MIG, so a machine that is cut into instances has nothing to be compared with.
PROFILES = [
    machine.name
    for machine in (known(name) for name in machine_names())
    if machine.vendor == "nvidia" and not any(device.extra.get("mig") for device in machine.devices)
]


def test_there_are_twenty_machines_to_compare() -> None:
    assert len(PROFILES) == 20


@pytest.mark.parametrize("profile", PROFILES)
def test_both_drivers_see_the_same_devices_and_links(profile: str, rig: Callable[..., Any]) -> None:
    real = rig(profile)
    simulated = SimulatedDriver(real.machine, "NVIDIA", link)

    looks = [driver.discover() for driver in (real.driver, simulated)]
    links = [driver.links() for driver in (real.driver, simulated)]

    assert looks[0].sightings == looks[1].sightings
    assert links[0] == links[1]
    assert len(looks[0].sightings) == len(real.machine.devices)
    assert not any(sighting.fault for sighting in looks[0].sightings)
    assert not looks[0].problems
    assert not links[0].problems


@pytest.mark.parametrize("profile", PROFILES)
def test_both_drivers_see_what_the_profile_says(profile: str, rig: Callable[..., Any]) -> None:
    real = rig(profile)

    devices = [sighting.device for sighting in real.driver.discover().sightings]
    links = real.driver.links()

    for device, described in zip(devices, real.machine.devices, strict=True):
        assert (device.uuid, device.model, device.memory) == (described.uuid, described.model, described.memory)
        assert (device.index, device.minor, device.pci) == (described.index, described.minor, described.pci)
        assert device.numa == (described.numa if described.numa >= 0 else None)
    for i, a in enumerate(devices):
        for j, b in enumerate(devices[:i]):
            pair = links.between(a.uuid, b.uuid)
            assert pair is not None
            assert (pair.level, pair.lanes) == (real.machine.levels[i][j], real.machine.lanes[i][j])


@pytest.mark.parametrize("fault", ["lost", "unplug", "asymmetric"])
def test_both_drivers_suffer_the_same_from_a_fault(fault: str, rig: Callable[..., Any]) -> None:
    real = rig("dgx-1v")
    simulated = SimulatedDriver(real.machine, "NVIDIA", link)
    real.driver.discover()

    for player in (real.simulator, simulated):
        player.inject(fault, 3)
    looks = [driver.discover() for driver in (real.driver, simulated)]
    links = [driver.links() for driver in (real.driver, simulated)]

    sick = [{s.device.uuid: s.fault.reason for s in look.sightings if s.fault} for look in looks]
    assert sick[0] == sick[1]
    assert [s.device for s in looks[0].sightings] == [s.device for s in looks[1].sightings]
    assert links[0].pairs == links[1].pairs
    assert links[0].asymmetric == links[1].asymmetric


@pytest.mark.parametrize("number", [13, 31, 48, 79, 999])
def test_both_drivers_report_an_xid_alike(number: int, rig: Callable[..., Any]) -> None:
    real = rig("t4-4-pcie")
    policy = XidPolicy()
    simulated = SimulatedDriver(
        real.machine, "NVIDIA", link, event=lambda xid: policy.fault(xid) or policy.of_application(xid)
    )
    for player, driver in ((real.simulator, real.driver), (simulated, simulated)):
        driver.discover()
        player.inject("xid", 2, number)

    reports = [tuple(driver.poll(0.05)) for driver in (real.driver, simulated)]

    assert reports[0] == reports[1]
    assert [event.fault.action is Action.IGNORE for event in reports[0]] == [number in (13, 31)]
