"""Vastai's driver on simulated machines: dies and cards of an invented machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from tests.support.rigs import Rig, lost_alone
from vendors.vastai import VENDOR, Dies, dies, list_dies

PROFILE = str(Path(__file__).parents[1] / "machines/vastai-two-cards.yaml")


@pytest.fixture
def cards(build: Any) -> Rig:
    machine: Rig = build()
    return machine


def test_a_card_is_one_device_with_all_its_dies(cards: Rig) -> None:
    snapshot = cards.snapshot()

    assert [(d.uuid, d.index, d.memory, d.pci, d.numa) for d in snapshot.devices] == [
        ("SN-A", 0, 131072, "0000:10:00.0", 0),
        ("SN-B", 1, 131072, "0000:50:00.0", 1),
    ]
    assert [dies(d) for d in snapshot.devices] == [
        Dies(numbers=(0, 1, 2, 3), card="SN-A"),
        Dies(numbers=(4, 5, 6, 7), card="SN-B"),
    ]
    link = snapshot.links.between("SN-A", "SN-B")
    assert link is not None
    assert link.level == "SYS"


def test_a_die_is_one_device_that_knows_its_card(single: Rig) -> None:
    snapshot = single.snapshot()

    described = single.machine.devices
    assert [(d.index, d.memory, d.pci, d.numa) for d in snapshot.devices] == [
        (d.index, d.memory, d.pci, d.numa) for d in described
    ]
    assert [d.uuid for d in snapshot.devices] == [f"{d.extra['card']}-{d.pci.replace(':', '.')}" for d in described]
    for i, a in enumerate(snapshot.devices):
        links = [snapshot.links.between(a.uuid, b.uuid) for b in snapshot.devices[:i]]
        assert [link.level for link in links if link] == list(single.machine.levels[i][:i])


@pytest.mark.parametrize(("fault", "reason"), [("silent", "DeviceSilent"), ("garbled", "DeviceSilent")])
def test_what_the_tool_does_not_tell_of_a_die_is_that_dies_fault(build: Any, fault: str, reason: str) -> None:
    build().simulator.inject(fault, 3)

    assert build(deviceStrategy="die").faults() == {3: reason}


def test_a_card_suffers_what_one_of_its_dies_does(cards: Rig) -> None:
    cards.snapshot()

    cards.simulator.inject("no-node", 5)

    assert [(event.uuid, event.fault.reason) for event in cards.driver.poll(2.0)] == [("SN-B", "DeviceNodeMissing")]
    cards.simulator.inject("back", 5)
    assert cards.faults() == {}


def test_a_die_that_falls_off_the_bus_takes_no_other_dies_number(single: Rig) -> None:
    lost_alone(single, 2)


def test_dies_that_nobody_can_number_are_not_offered(single: Rig) -> None:
    single.simulator.inject("no-node", 2)

    found = single.driver.discover()

    assert found.sightings == ()
    assert "nothing tells which nodes are those of the dies 0000:10:00.0, 0000:11:00.0" in found.problems[0]


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("driver-gone", DriverReason.NO_DRIVER, "8 Vastai dies are on the PCI bus, but no driver is bound to them"),
        ("no-devices", DriverReason.NO_DEVICES, "no Vastai die on the PCI bus"),
        ("tool-gone", DriverReason.NO_LIBRARY, "there is no .*/bin/vasmi"),
    ],
)
def test_a_driver_that_is_not_there_says_what_is_missing(
    fault: str, reason: DriverReason, words: str, cards: Rig
) -> None:
    cards.simulator.inject(fault)

    with pytest.raises(DriverUnavailableError, match=words) as caught:
        cards.driver.discover()

    assert caught.value.reason is reason
    assert VENDOR.present(cards.settings, HostPaths()) is (fault != "no-devices")
    cards.simulator.inject("tool-back" if fault.startswith("tool") else "driver-back")
    assert len(cards.driver.discover().sightings) == 2


def test_a_tool_that_hangs_is_ended(cards: Rig) -> None:
    cards.simulator.inject("tool-hangs")

    with pytest.raises(DriverUnavailableError, match=r"has not answered within 0\.2 s"):
        list_dies(cards.settings.vasmi, deadline=0.2)
