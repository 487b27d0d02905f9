from __future__ import annotations

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Device, Discovery, Fault, Links, Sighting
from hami_plugin.sdk import HealthEvent
from hami_plugin.sdk.polling import GONE, PollingDriver

HOT = Fault(reason="TooHot")


class Hardware:
    """Devices by name with what is wrong with each, and a clock that moves when somebody sleeps."""

    def __init__(self, **devices: Fault | None) -> None:
        self.devices = devices
        self.now = 0.0
        self.looks = 0
        self.asked: list[str] = []
        self.driver = PollingDriver(self.look, clock=lambda: self.now, sleep=self.sleep, every=1.0)

    def look(self, ask: object) -> Discovery:
        self.looks += 1
        sightings = []
        for index, (name, fault) in enumerate(self.devices.items()):
            ask(name)  # type: ignore[operator]  # the protocol is tested by calling it
            self.asked.append(self.driver.busy_with or "nobody")
            sightings.append(
                Sighting(device=Device(uuid=name, family="F", index=index, model="", memory=0), fault=fault)
            )
        return Discovery(sightings=tuple(sightings))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def events(self, timeout: float = 1.0) -> dict[str | None, Fault]:
        return {event.uuid: event.fault for event in self.driver.poll(timeout)}


def test_a_new_fault_is_told_once() -> None:
    hardware = Hardware(a=None, b=None)
    hardware.driver.discover()

    hardware.devices["b"] = HOT

    assert hardware.driver.poll(1.0) == (HealthEvent(uuid="b", fault=HOT, confirmed=True),)
    assert hardware.events() == {}


def test_a_device_that_is_listed_no_more_is_told() -> None:
    hardware = Hardware(a=None, b=None)
    hardware.driver.discover()

    del hardware.devices["a"]

    assert hardware.events() == {"a": GONE}


def test_a_recovery_is_left_to_the_next_discovery() -> None:
    hardware = Hardware(a=HOT)
    hardware.driver.discover()

    hardware.devices["a"] = None

    assert hardware.events() == {}
    assert hardware.driver.discover().sightings[0].fault is None


def test_looks_are_not_taken_more_often_than_agreed() -> None:
    hardware = Hardware(a=None)
    hardware.driver.discover()

    for _ in range(10):
        hardware.events(timeout=0.25)

    assert hardware.now == pytest.approx(2.5, abs=0.01)
    assert hardware.looks == 3


def test_it_says_which_device_is_being_asked_and_nobody_afterwards() -> None:
    hardware = Hardware(a=None, b=None)

    hardware.driver.discover()

    assert hardware.asked == ["a", "b"]
    assert hardware.driver.busy_with is None


def test_a_look_that_fails_as_a_whole_is_no_look_at_nothing() -> None:
    hardware = Hardware(a=None)
    hardware.driver.discover()

    def away(_ask: object) -> Discovery:
        raise DriverUnavailableError(DriverReason.NO_DRIVER, "gone")

    hardware.driver._look = away

    with pytest.raises(DriverUnavailableError):
        hardware.events()
    assert hardware.driver.busy_with is None


def test_links_are_measured_between_the_devices_of_the_last_look() -> None:
    hardware = Hardware(a=None, b=None)
    measured: list[list[str]] = []

    def links(devices: object) -> Links:
        measured.append([device.uuid for device in devices])  # type: ignore[attr-defined]
        return Links()

    driver = PollingDriver(hardware.look, links)
    driver.discover()
    driver.links()
    driver.close()
    driver.links()

    assert measured == [["a", "b"], []]
