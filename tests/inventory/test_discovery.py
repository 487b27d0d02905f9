"""Does the inventory stay true whatever the driver does?"""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

import hami_plugin.inventory.discovery
from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.inventory import discovery
from hami_plugin.inventory.discovery import DiscoveryLoop, DiscoveryTiming
from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.model.device import Action, Discovery, Fault, Link, Links, Sighting
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.concurrency import Backoff, cancel
from hami_plugin.sdk import HealthEvent
from tests.support.builders import NODE, uuid
from tests.support.cluster import FakeCluster
from tests.support.hardware import ScriptedDriver
from tests.support.node import Counting, until
from tests.support.sleeping import Sleeping

FAST = DiscoveryTiming(poll=0.002, rescan=0.01, probe=0.004, links=3600.0, timeout=0.1, hang=0.3, close_timeout=0.05)


class Clock:
    """Time that passes with each look at it, and when a test says so, not while a process is slow or stopped."""

    STEP_S = 0.001

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += self.STEP_S
        return self.now


class Rig:
    def __init__(self, driver, timing=FAST):
        self.driver = driver
        self.inventory = Inventory(HealthLimits(hold=0.01, clean_looks=2), forget=0.2)
        self.observer, self.remembered = Counting(), []
        self.events = EventRecorder(FakeCluster(), NODE)
        self.watch = DiscoveryLoop(
            "toy",
            driver,
            self.inventory,
            timing=timing,
            observer=self.observer,
            events=self.events,
            remember=lambda: self.remembered.append(dict(self.inventory.conditions)),
            backoff=Backoff(first=0.002, cap=0.004),
        )
        self.task = asyncio.create_task(self.watch.run())

    @property
    def shown(self):
        return self.inventory.found

    def health(self) -> dict[int, str]:
        return {d.index: d.health.value for d in self.shown.devices}

    def told(self) -> set[str]:
        return {event.reason for event in self.events._queue._queue}

    async def noticed(self, clock):
        """Until the watch has looked at what the driver is busy with now."""
        seen = clock.now
        await until(lambda: self.watch.beat > seen)


XID = Fault(reason="Xid79", message="fell off the bus", action=Action.REBOOT)
GONE = DriverUnavailableError(DriverReason.NO_DRIVER, "not loaded")


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(hami_plugin.inventory.discovery, "time", clock)
    return clock


@pytest.fixture
async def start(clock):
    rigs = []

    def run(driver, **changes) -> Rig:
        rigs.append(Rig(driver, **changes))
        return rigs[-1]

    yield run
    for rig in rigs:
        rig.driver.release()
        rig.driver.trouble = None
        await cancel(rig.task)
        await rig.watch.close()


async def test_devices_are_shown_and_the_driver_lives_on_one_thread_of_its_own(start):
    rig = start(ScriptedDriver(0, 1))
    await until(lambda: rig.shown.ready and rig.driver.calls.count("discover") > 2)

    assert rig.health() == {0: "healthy", 1: "healthy"}
    assert rig.shown.facts == {"driver": "1.0"}
    assert len(rig.driver.threads) == 1
    assert threading.get_ident() not in rig.driver.threads
    assert rig.observer.snapshots[-1] == rig.shown
    assert rig.told() == set()


@pytest.mark.scenario("D1")
async def test_a_driver_that_comes_late_is_picked_up(start):
    driver = ScriptedDriver(0)
    driver.trouble = GONE
    rig = start(driver)
    await until(lambda: rig.shown.reason == "NoDriver")
    assert "not loaded" in rig.shown.message
    assert not rig.shown.ready

    driver.trouble = None
    await until(lambda: rig.shown.ready)

    assert rig.health() == {0: "healthy"}


@pytest.mark.scenario("D2")
async def test_a_driver_that_goes_and_comes_back_withdraws_all_devices_for_a_while(start):
    rig = start(ScriptedDriver(0, 1))
    await until(lambda: rig.shown.ready)

    rig.driver.trouble = GONE
    await until(lambda: not rig.shown.ready)
    assert rig.health() == {0: "unhealthy", 1: "unhealthy"}
    assert rig.told() == {"NoDriver"}

    rig.driver.trouble = None
    await until(lambda: rig.health() == {0: "healthy", 1: "healthy"})
    assert "DeviceHealthy" in rig.told()


async def test_the_wait_for_the_driver_starts_small_again_after_it_worked(start):
    delays = []
    rig = start(ScriptedDriver(0))
    real = rig.watch._backoff.delays

    class Noting:
        def delays(self):
            for delay in real():
                delays.append(delay)
                yield delay

    rig.watch._backoff = Noting()
    for _ in range(2):
        await until(lambda: rig.shown.ready)
        rig.driver.trouble = GONE
        count = len(delays)
        await until(lambda count=count: len(delays) > count + 3)
        rig.driver.trouble = None

    assert sum(delay < 0.0025 for delay in delays) >= 2


async def test_an_event_is_believed_at_once_and_remembered(start):
    rig = start(ScriptedDriver(0, 1))
    await until(lambda: rig.shown.ready)

    rig.driver.send(HealthEvent(uuid=uuid(1), fault=XID))
    await until(lambda: rig.health() == {0: "healthy", 1: "unhealthy"})

    assert rig.shown.device(uuid(1)).reason == "Xid79"
    assert rig.remembered[-1][uuid(1)].fault == XID
    assert "Xid79" in rig.told()


async def test_what_gets_worse_is_remembered_too(start):
    rig = start(ScriptedDriver(0))
    await until(lambda: rig.shown.ready)
    rig.driver.faults = {0: Fault(reason="Slow")}
    await until(lambda: rig.health() == {0: "unhealthy"})

    rig.driver.send(HealthEvent(uuid=None, fault=XID))

    await until(lambda: rig.remembered[-1][uuid(0)].fault == XID)


@pytest.mark.scenario("D8")
async def test_a_storm_of_one_event_costs_no_looks(start):
    rig = start(ScriptedDriver(0, 1), timing=DiscoveryTiming(poll=0.002, rescan=3600.0, probe=3600.0))
    await until(lambda: "poll" in rig.driver.calls)

    for _ in range(20):
        rig.driver.send(*[HealthEvent(uuid=uuid(1), fault=XID)] * 500)
        seen = len(rig.driver.calls)
        await until(lambda seen=seen: len(rig.driver.calls) > seen + 1)

    assert rig.driver.calls.count("discover") == 2
    assert rig.health() == {0: "healthy", 1: "unhealthy"}


async def test_a_look_that_finds_a_fault_twice_withdraws_that_device_only_until_it_is_well(start):
    rig = start(ScriptedDriver(0, 1, 2))
    await until(lambda: rig.shown.ready)

    rig.driver.faults = {1: Fault(reason="GpuIsLost")}
    await until(lambda: rig.health() == {0: "healthy", 1: "unhealthy", 2: "healthy"})
    rig.driver.faults = {}

    await until(lambda: rig.health() == {0: "healthy", 1: "healthy", 2: "healthy"})


@pytest.mark.scenario("D9")
async def test_a_call_that_does_not_come_back_doubts_its_own_device_only(start, clock):
    rig = start(ScriptedDriver(0, 1, 2))
    await until(lambda: rig.shown.ready)
    rig.driver.hang(1)
    await until(lambda: rig.driver.held)
    await rig.noticed(clock)

    clock.now += FAST.timeout
    await until(lambda: rig.health()[1] == "suspect")
    beat = rig.watch.beat
    clock.now += FAST.hang
    await until(lambda: rig.health()[1] == "unhealthy")
    assert rig.health() == {0: "healthy", 1: "unhealthy", 2: "healthy"}
    assert rig.shown.ready
    assert rig.watch.beat > beat

    rig.driver.release()
    await until(lambda: rig.health()[1] == "healthy")


async def test_a_call_about_a_card_that_does_not_come_back_doubts_its_partitions(start, clock):
    driver = ScriptedDriver(0, 1)
    found = driver.discover

    def divided():
        sightings = found().sightings
        parts = [
            Sighting(device=replace(one.device, uuid=f"part-{one.device.index}", place=f"{one.device.uuid}/0+1"))
            for one in sightings
        ]
        return Discovery(sightings=tuple(parts))

    driver.discover = divided
    rig = start(driver)
    await until(lambda: rig.shown.ready)
    rig.driver.hang(1)
    await until(lambda: rig.driver.held)
    await rig.noticed(clock)

    clock.now += FAST.timeout
    await until(lambda: rig.health() == {0: "healthy", 1: "suspect"})

    rig.driver.release()
    await until(lambda: rig.health() == {0: "healthy", 1: "healthy"})


async def test_a_driver_that_waits_for_events_is_not_looked_at_meanwhile(start, monkeypatch):
    class Waits(Sleeping):
        async def wait(self, answers, timeout):  # noqa: ASYNC109  # as asyncio's own
            looks.append(timeout)
            return await asyncio.wait(answers)  # the call is over at the next look, however slow the machine is

    driver, looks, polls = ScriptedDriver(0), [], []
    driver.poll = lambda timeout: polls.append(timeout) or ()
    monkeypatch.setattr(discovery, "asyncio", Waits(asyncio.sleep))
    start(driver, timing=DiscoveryTiming(poll=0.4, timeout=0.2))

    await until(lambda: len(polls) >= 2)

    assert polls[:2] == [0.4, 0.4]
    assert looks[:4] == [0.2, 0.2, 0.5, 0.5]  # at the devices, the links, and twice for longer than the driver waits


async def test_many_slow_devices_are_not_one_hanging_one(start, clock):
    class Slow(ScriptedDriver):
        """Takes somewhat less than the patience for each device, and is looked at meanwhile."""

        def _wait(self, number):
            if number is not None:
                clock.now += 0.6 * FAST.timeout
                seen, end = clock.now, time.monotonic() + 20
                while rig.watch.beat <= seen and time.monotonic() < end:
                    time.sleep(0.001)

    driver = Slow(*range(4))
    rig = start(driver)

    await until(lambda: driver.calls.count("discover") > 2)

    assert {d.health.value for shown in rig.observer.snapshots for d in shown.devices} == {"healthy"}


async def test_a_call_about_no_device_that_does_not_come_back_withdraws_the_driver(start, clock):
    rig = start(ScriptedDriver(0))
    await until(lambda: rig.shown.ready)
    rig.driver.hang(None)
    await until(lambda: rig.driver.held)
    await rig.noticed(clock)

    clock.now += FAST.hang
    await until(lambda: rig.shown.reason == "DriverHung")
    rig.driver.release()

    await until(lambda: rig.shown.ready)


async def test_a_first_look_that_does_not_come_back_says_so_and_names_the_device(start, clock):
    driver = ScriptedDriver(0, 1)
    driver.hang(1)
    rig = start(driver)
    await until(lambda: driver.held)
    await rig.noticed(clock)

    clock.now += FAST.hang
    await until(lambda: rig.shown.reason == "DriverHung")
    assert uuid(1) in rig.shown.message
    driver.release()

    await until(lambda: rig.health() == {0: "healthy", 1: "healthy"})


async def test_links_are_measured_only_when_the_answering_devices_change(start):
    rig = start(ScriptedDriver(0, 1))
    await until(lambda: rig.driver.calls.count("discover") > 3)
    assert rig.driver.calls.count("links") == 1

    rig.driver.numbers = [0, 1, 2]
    await until(lambda: 2 in rig.health())
    looks = rig.driver.calls.count("discover")
    await until(lambda: rig.driver.calls.count("discover") > looks + 3)

    assert rig.driver.calls.count("links") == 2


@pytest.mark.scenario("D14")
async def test_what_is_odd_about_links_is_told(start):
    driver = ScriptedDriver(0, 1)
    pair = (uuid(0), uuid(1))
    driver.measured = Links(pairs={pair: Link(score=1, label="SYS")}, asymmetric=(pair,), problems=("one",))

    rig = start(driver)

    await until(lambda: rig.shown.ready)
    assert rig.shown.links.pairs == driver.measured.pairs
    assert rig.told() == {"AsymmetricP2PLink"}


@pytest.mark.scenario("D11")
async def test_a_device_that_is_unplugged_is_withdrawn_then_forgotten_and_a_new_one_appears(start):
    rig = start(ScriptedDriver(0, 1))
    await until(lambda: rig.shown.ready)

    rig.driver.numbers = [0, 5]
    await until(lambda: rig.health() == {0: "healthy", 1: "unhealthy", 5: "healthy"})

    await until(lambda: rig.health() == {0: "healthy", 5: "healthy"})


async def test_a_mistake_in_a_driver_is_its_own_and_is_shown(start):
    mistaken = ScriptedDriver(0)
    mistaken.trouble = ZeroDivisionError("a mistake")
    rig, other = start(mistaken), start(ScriptedDriver(1))

    await until(lambda: rig.shown.reason == "DriverFailed")
    looks = other.driver.calls.count("discover")
    await until(lambda: other.driver.calls.count("discover") > looks + 3)

    assert rig.shown.message == "ZeroDivisionError: a mistake"
    assert other.health() == {1: "healthy"}
    mistaken.trouble = None
    await until(lambda: rig.health() == {0: "healthy"})


@pytest.mark.scenario("D10")
async def test_a_driver_that_crashes_soon_after_each_start_is_started_less_and_less_often(start):
    delays = []
    rig = start(ScriptedDriver(0))
    real = rig.watch._backoff

    class Noting:
        cap = 3600.0

        def delays(self):
            for delay in real.delays():
                delays.append(delay)
                yield delay

    rig.watch._backoff = Noting()
    await until(lambda: rig.shown.ready)
    rig.driver.trouble = GONE  # what came before is over
    await until(lambda: not rig.shown.ready)
    count = len(delays)
    for _ in range(3):
        rig.driver.trouble = None
        await until(lambda: rig.shown.ready)
        rig.driver.trouble = DriverUnavailableError(DriverReason.CRASHED, "was ended by SIGSEGV")
        await until(lambda: rig.shown.reason == "DriverCrashed")

    assert len(delays) > count + 2
    assert min(delays[count + 1 :]) > 0.0025


async def test_closing_waits_for_no_driver_that_hangs(start):
    rig = start(ScriptedDriver(0))
    await until(lambda: rig.shown.ready)
    rig.driver.hang(0)
    await until(lambda: rig.driver.held)

    await cancel(rig.task)
    await asyncio.wait_for(rig.watch.close(), 30)

    assert "close" not in rig.driver.calls


async def test_a_driver_that_does_not_wait_for_events_is_not_asked_without_end(start, monkeypatch):
    order = []

    class Hasty(ScriptedDriver):
        def poll(self, timeout):
            order.append("asked")
            return ()

    async def sleep(seconds):
        order.append("waits" if seconds > 0 else "waits not")
        await asyncio.sleep(0)

    monkeypatch.setattr(discovery, "asyncio", Sleeping(sleep))
    start(Hasty(0), timing=replace(FAST, poll=600.0, min_poll_interval=600.0, rescan=6000.0))
    await until(lambda: len(order) > 10)

    assert order[:10] == ["asked", "waits"] * 5


async def test_a_driver_that_takes_its_time_to_close_is_asked_nothing_more(start):
    """The loop goes on meanwhile, and for as long as other drivers take. What it saw then would be remembered."""

    class Slow(ScriptedDriver):
        def close(self):
            self._enter("close")
            self._pause.wait(0.05)
            self.trouble = GONE

    rig = start(Slow(0))
    await until(lambda: rig.driver.calls.count("poll") > 3)

    await rig.watch.close()
    await until(lambda: "close" in rig.driver.calls)
    await asyncio.sleep(0.05)

    assert rig.driver.calls[-1] == "close"
    assert rig.remembered[-1] == {}


async def test_work_aside_runs_on_the_drivers_thread_between_its_close_and_the_next_look(start):
    rig = start(ScriptedDriver(0))
    await until(lambda: rig.shown.ready)
    calls = rig.driver.calls

    def work():
        calls.append("work")
        return threading.get_ident()

    assert await rig.watch.aside(work) in rig.driver.threads
    await until(lambda: list(calls)[list(calls).index("work") :][1:])
    at = list(calls).index("work")
    assert (calls[at - 1], calls[at + 1]) == ("close", "discover")
    assert rig.health() == {0: "healthy"}


async def test_what_work_aside_raises_is_its_callers_and_no_fault_of_the_driver(start):
    rig = start(ScriptedDriver(0))
    await until(lambda: rig.shown.ready)

    def fail():
        raise GONE

    with pytest.raises(DriverUnavailableError):
        await rig.watch.aside(fail)
    looks = rig.driver.calls.count("discover")
    await until(lambda: rig.driver.calls.count("discover") > looks)
    assert (rig.shown.ready, rig.told()) == (True, set())


async def test_work_aside_that_nobody_waits_for_any_more_is_not_done(start):
    rig = start(ScriptedDriver(0))
    rig.driver.trouble = GONE
    await until(lambda: rig.driver.calls)
    done = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await rig.watch.aside(lambda: done.append("late"))
    rig.driver.trouble = None
    await rig.watch.aside(lambda: done.append("next"))

    assert done == ["next"]
