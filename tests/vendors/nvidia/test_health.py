from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hami_plugin.model.device import Action
from hami_plugin.sdk.polling import QueriedDevice
from vendors.nvidia.health import EventWatch
from vendors.nvidia.nvml import EventSet, Handle, Nvml, NvmlError, NvmlEvent
from vendors.nvidia.xid import XidPolicy

TIMEOUT, UNKNOWN, UNINITIALISED, LOST = 10, 999, 1, 15


class FailingWait(Nvml):
    """The simulated library, but every wait answers an error at once."""

    def __init__(self, places: list[str], code: int) -> None:
        super().__init__(places)
        self._code = code
        self.waits = 0

    def wait(self, events: EventSet, milliseconds: int) -> NvmlEvent:
        self.waits += 1
        raise NvmlError("nvmlEventSetWait_v2", self._code, "Broken")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def opened(rig: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    libraries = []

    def build(code: int) -> tuple[FailingWait, EventWatch, Clock]:
        machine = rig("t4-4-pcie")
        nvml, clock = FailingWait([str(machine.settings.nvml_library)], code), Clock()
        nvml.open()
        libraries.append(nvml)
        watch = EventWatch(nvml, XidPolicy(), QueriedDevice(), sleep=clock.sleep, clock=clock)
        handles = {nvml.uuid(handle): handle for handle in map(nvml.handle, range(4))}
        assert watch.watch(handles, handles) == {}
        return nvml, watch, clock

    yield build
    for library in libraries:
        library.close()


@pytest.mark.parametrize("code", [UNKNOWN, LOST, UNINITIALISED, TIMEOUT])
def test_a_wait_that_fails_at_once_does_not_spin(code: int, opened: Callable[..., Any]) -> None:
    nvml, watch, clock = opened(code)

    found = [watch.poll(1.0) for _ in range(5)]

    assert not any(found)
    assert clock.now == pytest.approx(5.0)
    assert nvml.waits <= 5


@pytest.mark.scenario("D6")
def test_each_xid_is_reported_once_and_an_applications_asks_for_nothing(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()
    for number in (13, 79, 48, 31):
        machine.simulator.inject("xid", 5, number)

    events = machine.driver.poll(1)

    assert {event.uuid for event in events} == {machine.uuid(5)}
    assert [(event.fault.reason, event.fault.action) for event in events] == [
        ("Xid13", Action.IGNORE),
        ("Xid79", Action.REBOOT),
        ("Xid48", Action.RESET),
        ("Xid31", Action.IGNORE),
    ]
    assert machine.driver.poll(0.01) == ()


def test_an_event_wakes_the_wait(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(machine.driver.poll(30)))

    thread.start()
    machine.simulator.inject("xid", 1, 48)
    thread.join(60)

    assert [event.uuid for event in found[0]] == [machine.uuid(1)]


def test_a_lost_card_fails_the_wait_and_only_it_is_reported(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()

    machine.simulator.inject("lost", 3)
    lost = machine.driver.poll(1)
    machine.simulator.inject("xid", 4, 79)
    after = machine.driver.poll(1)

    assert [(event.uuid, event.fault.reason, event.confirmed) for event in lost] == [
        (machine.uuid(3), "GpuIsLost", True)
    ]
    assert [event.uuid for event in after] == [machine.uuid(4)]


def test_a_card_that_keeps_failing_the_wait_does_not_deafen_the_others(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()
    machine.simulator.inject("fail-call", 3, f"nvmlEventSetWait_v2:{LOST}")
    machine.simulator.inject("fail-call", 3, f"nvmlDeviceGetMemoryInfo:{LOST}")

    lost = machine.driver.poll(1)
    machine.simulator.inject("xid", 4, 79)
    after = machine.driver.poll(1)

    assert [event.uuid for event in lost] == [machine.uuid(3)]
    assert [(event.uuid, event.confirmed) for event in after] == [(machine.uuid(4), False)]


def test_a_card_that_came_back_is_watched_again(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()
    machine.simulator.inject("lost", 3)
    machine.driver.poll(1)
    machine.driver.discover()
    machine.simulator.inject("back", 3)
    machine.driver.discover()

    machine.simulator.inject("xid", 3, 48)

    assert [event.uuid for event in machine.driver.poll(1)] == [machine.uuid(3)]


def test_an_event_that_came_before_a_card_was_lost_is_not_forgotten(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()

    machine.simulator.inject("xid", 4, 48)
    machine.simulator.inject("lost", 3, "quiet")
    machine.driver.discover()  # the registrations start over here

    assert [event.uuid for event in machine.driver.poll(1)] == [machine.uuid(4)]


@pytest.mark.scenario("D8")
def test_a_storm_is_delivered_without_repeats(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()
    for _ in range(50):
        machine.simulator.inject("xid", 0, 74)

    events = machine.driver.poll(1)

    assert len(events) == 1


def test_disabling_every_xid_watches_nothing(rig: Callable[..., Any]) -> None:
    machine = rig(healthchecks={"disable": "all"})
    machine.driver.discover()
    machine.simulator.inject("xid", 0, 79)

    assert machine.driver.poll(0.01) == ()


def test_enabling_one_xid_outranks_disabling_all(rig: Callable[..., Any]) -> None:
    machine = rig(healthchecks={"disable": "all", "enable": [48]})
    machine.driver.discover()
    machine.simulator.inject("xid", 0, 79)
    machine.simulator.inject("xid", 0, 48)

    assert [event.fault.reason for event in machine.driver.poll(0.05)] == ["Xid48"]


def test_an_event_of_a_card_that_is_not_watched_condemns_nobody(opened: Callable[..., Any]) -> None:
    nvml, watch, _clock = opened(TIMEOUT)

    found = watch._judge(NvmlEvent(handle=Handle(None), address=0x5EED, xid=79))

    assert found == ()
    assert nvml.is_open
