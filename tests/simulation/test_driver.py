from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Action, Fault, Link
from hami_plugin.simulation.machines import load_machine, machine_names
from tests.support.simulated_driver import FAULTS, SimulatedDriver


def plain_link(level: str, lanes: int) -> Link:
    return Link(score=lanes, label=level, level=level, lanes=lanes)


def driver(profile: str = "mi300x-8", **options: Any) -> SimulatedDriver:
    return SimulatedDriver(load_machine(profile), "ACME", plain_link, **options)


def reasons(player: SimulatedDriver) -> dict[int, str]:
    return {s.device.index: s.fault.reason for s in player.discover().sightings if s.fault}


@pytest.mark.parametrize("profile", machine_names())
def test_every_machine_of_every_vendor_can_be_played(profile: str) -> None:
    machine = load_machine(profile)
    player = SimulatedDriver(machine, "ACME", plain_link)

    look, links = player.discover(), player.links()

    assert [s.device.memory for s in look.sightings] == [device.memory for device in machine.devices]
    assert not any(s.fault for s in look.sightings)
    count = len(machine.devices)
    assert len({s.device.uuid for s in look.sightings}) == count
    assert len(links.pairs) == count * (count - 1) // 2
    assert links.asymmetric == ()


@pytest.mark.parametrize(
    ("fault", "value", "reason"),
    [
        ("lost", 0, "GpuIsLost"),
        ("ecc", 2, "RowRemapPending"),
        ("not-supported", "memory", "MemoryUnknown"),
        ("fail-call", "getName:15", "CallFailed"),
        ("recovery-action", 2, "RecoveryAction"),
    ],
)
def test_a_fault_of_one_device_is_its_own_and_goes_with_back(fault: str, value: int | str, reason: str) -> None:
    player = driver()
    player.inject(fault, 3, value)
    sick = reasons(player)

    player.inject("back", 3)

    assert sick == {3: reason}
    assert reasons(player) == {}


def test_a_recovery_action_of_0_takes_the_wish_back() -> None:
    player = driver()
    player.inject("recovery-action", 1, 2)
    fault = player.discover().sightings[1].fault
    player.inject("recovery-action", 1, 0)

    assert fault is not None
    assert fault.action is Action.REBOOT
    assert reasons(player) == {}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("driver-gone", DriverReason.NO_DRIVER),
        ("mismatch", DriverReason.VERSION_MISMATCH),
        ("no-devices", DriverReason.NO_DEVICES),
    ],
)
def test_a_driver_that_is_away_comes_back(fault: str, reason: DriverReason) -> None:
    player = driver()
    player.inject(fault)

    with pytest.raises(DriverUnavailableError) as caught:
        player.discover()
    player.inject("driver-back")

    assert caught.value.reason is reason
    assert len(player.discover().sightings) == 8


def test_a_device_can_be_pulled_out_and_put_back() -> None:
    player = driver()
    player.inject("unplug", 2)
    seven = player.discover()
    player.inject("plug", 2)

    assert [s.device.index for s in seven.sightings] == list(range(7))
    assert len({s.device.uuid for s in seven.sightings}) == 7
    assert len(player.discover().sightings) == 8


def test_an_event_wakes_a_poll_and_is_delivered_once() -> None:
    player = driver()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(player.poll(30)))

    thread.start()
    player.inject("xid", 4, 79)
    thread.join(60)

    assert [(event.uuid, event.fault.reason) for event in found[0]] == [
        (load_machine("mi300x-8").devices[4].uuid, "Event79")
    ]
    assert player.poll(0) == ()


def test_an_event_means_what_the_vendor_says() -> None:
    player = driver(event=lambda number: Fault(reason="Bad") if number > 50 else None)
    player.inject("xid", 0, 13)
    player.inject("xid", 1, 79)

    assert [event.fault.reason for event in player.poll(0)] == ["Bad"]


def test_a_hang_names_its_device_and_ends_with_back() -> None:
    player = driver()
    player.inject("hang", 5)
    looks: list[Any] = []
    thread = threading.Thread(target=lambda: looks.append(player.discover()))

    thread.start()
    uuid = load_machine("mi300x-8").devices[5].uuid
    deadline = time.monotonic() + 10
    while player.busy_with != uuid and time.monotonic() < deadline:
        time.sleep(0.005)
    named = player.busy_with
    player.inject("back", 5)
    thread.join(10)

    assert named == uuid
    assert len(looks[0].sightings) == 8


def test_a_lost_device_has_no_links_and_the_others_keep_theirs() -> None:
    player = driver()
    player.discover()
    whole = player.links()
    lost = load_machine("mi300x-8").devices[3].uuid

    player.inject("lost", 3)
    player.discover()
    rest = player.links()

    assert rest.pairs == {pair: link for pair, link in whole.pairs.items() if lost not in pair}
    assert rest.problems


def test_an_unknown_fault_or_device_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"choose from: lost, back") as caught:
        driver().inject("explode")
    with pytest.raises(ValueError, match="there is no device 8"):
        driver().inject("lost", 8)

    assert all(name in str(caught.value) for name in FAULTS)


def test_a_fault_without_a_device_hits_all() -> None:
    player = driver()
    player.inject("lost")

    assert set(reasons(player)) == set(range(8))
