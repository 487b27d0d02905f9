"""Whatever one vendor's driver answers, the daemon lives, the other vendor is served, and somebody is told why."""

import asyncio
import math
from dataclasses import replace

import pytest

from hami_plugin.daemon import app
from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Discovery, Fault, Links, Sighting
from hami_plugin.process.concurrency import wait_event
from hami_plugin.sdk import HealthEvent
from tests.support.beside import ODD, OddDriver, beside, odd
from tests.support.breaking import Gate, broken, leaves
from tests.support.builders import COUNT, SPLIT, grant, pod


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def one(change):
    """Sightings of which the first is changed."""
    return lambda seen: (replace(seen[0], **change), *seen[1:])


def of(**fields):
    return one({"device": odd(0, **fields)})


@pytest.mark.scenario("D15")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of(memory=-5), "the driver reports memory -5"),
        (of(memory=math.nan), "the driver reports memory nan"),
        (of(memory=10**30), "the driver reports memory 1000000000"),
        (of(index=-1), "the driver reports index -1"),
        (of(numa="0"), "the driver reports numa '0'"),
        (of(numa=10**20), "the driver reports numa"),
        (of(model="a\nb"), r"the driver reports model 'a\nb'"),
        (of(family=None), "the driver reports family None"),
        (one({"fault": math.nan}), "the driver reports nan where a fault is expected"),
        (one({"fault": Fault(reason="a\nb", message="x\ny")}), "x y"),
        (lambda seen: (*seen, seen[0]), "the driver reports odd-0 twice"),
    ],
)
async def test_a_device_that_none_can_be_is_unhealthy_and_says_why(change, words):
    async with beside(driver=OddDriver(0, 1, change=change)) as node:
        await node.odd_offered(SPLIT)
        await node.the_other_is_served()
        first = node.odd_device("odd-0")
        assert first.health == "unhealthy"
        assert words in first.message
        assert first.reason in ("Implausible", "DuplicateUuid")
        assert node.odd_device("odd-1").health == "healthy"
        assert node.problem("node annotations") == ""


@pytest.mark.parametrize("name", ["a;b", "a,b", "a:b", "a\nb", "a b", "", "x" * 321, None, 7, "a\ud800"])
async def test_a_name_that_would_break_the_wire_is_left_out_with_the_reason(name, capsys):
    async with beside(driver=OddDriver(0, 1, change=of(uuid=name))) as node:
        await node.odd_offered(SPLIT)
        await node.the_other_is_served()
        assert node.problem("node annotations") == ""
        assert "without a usable name" in capsys.readouterr().out


async def test_a_driver_whose_devices_all_lack_names_is_not_ready():
    async with beside(driver=OddDriver(0, change=of(uuid="a;b"))) as node:
        await node.the_other_is_served()
        await node.says("driver odd", "DriverFailed: the driver reports a device without a usable name: 'a;b'")


def then_raises(seen):
    yield from seen
    raise ZeroDivisionError("by nought")


def without_end(seen):
    while True:
        yield seen[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (then_raises, "ZeroDivisionError: by nought"),
        (without_end, "the driver reports more than 1024 at once"),
        (lambda _seen: next(iter(())), "StopIteration"),
        (leaves, "SystemExit: 3"),
        (lambda _seen: None, "TypeError"),
        (lambda _seen: (7,), "7 where a Sighting is expected"),
        (lambda _seen: (Sighting(device=7),), "7 where a Device is expected"),
    ],
    ids=["generator", "endless", "spent", "exit", "none", "no sighting", "no device"],
)
async def test_an_answer_that_is_none_is_a_driver_that_failed(change, words):
    async with beside(driver=OddDriver(0, 1, change=change)) as node:
        await node.the_other_is_served()
        await node.says("driver odd", "DriverFailed: ")
        await node.says("driver odd", words)
        assert 'hami_plugin_vendor_mistakes_total{step="driver",vendor="odd"}' in node.metrics()


class Strange(OddDriver):
    """One call of it answers something else; ``told`` may be a function."""

    def __init__(self, call, told):
        super().__init__(0, 1)
        self.call, self.told = call, told

    def _told(self, call, usual):
        if call != self.call:
            return usual()
        return self.told() if callable(self.told) else self.told

    def discover(self):
        return self._told("discover", super().discover)

    def links(self):
        return self._told("links", super().links)

    def poll(self, timeout):
        return self._told("poll", lambda: super(Strange, self).poll(timeout))

    @property
    def busy_with(self):
        return self._told("busy_with", lambda: None)

    def close(self):
        return self._told("close", super().close)


@pytest.mark.parametrize(
    ("call", "told", "words"),
    [
        ("discover", None, "None where a Discovery is expected"),
        ("links", None, "None where a Links is expected"),
        ("links", Links(pairs={7: None}), "7 where a tuple is expected"),
        ("poll", None, "TypeError"),
        ("poll", [7], "7 where a HealthEvent is expected"),
        ("poll", lambda: then_raises(()), "by nought"),
        ("poll", lambda: [HealthEvent(uuid=[], fault=Fault(reason="x"))], "[] where a str is expected"),
    ],
)
async def test_other_answers_that_are_none_are_a_driver_that_failed_too(call, told, words):
    async with beside(driver=Strange(call, told)) as node:
        await node.the_other_is_served()
        await node.says("driver odd", words)


async def test_an_event_with_a_fault_that_is_none_drains_its_device():
    event = HealthEvent(uuid="odd-0", fault=math.nan)
    # Held for long: each event is followed by a discovery, whose clean look would heal the device until the next one.
    async with beside(driver=Strange("poll", [event]), holdSeconds=600) as node:
        await node.odd_offered(SPLIT)
        assert node.odd_device("odd-0").reason == "Implausible"
        await node.the_other_is_served()


@pytest.mark.parametrize("call", ["busy_with", "close"])
async def test_what_fails_in_passing_stops_nothing(call):
    async with beside(driver=Strange(call, broken)) as node:
        await node.odd_offered(2 * SPLIT)
        await node.the_other_is_served()


async def test_facts_by_any_name_are_no_trouble():
    class Facts(OddDriver):
        def discover(self):
            facts = {"event": "x", "vendor": "y", "self": "z", "devices": "w", 7: None}
            return Discovery(sightings=super().discover().sightings, facts=facts)

    async with beside(driver=Facts(0, 1)) as node:
        await node.odd_offered(2 * SPLIT)
        await node.the_other_is_served()


async def test_a_driver_that_cannot_be_opened_is_tried_again():
    openings = [ZeroDivisionError("not now")]

    def opening():
        if openings:
            raise openings.pop()
        return OddDriver(0, 1)

    async with beside(opening=opening) as node:
        await node.says("driver odd", "DriverFailed: ZeroDivisionError: not now")
        await node.the_other_is_served()
        await node.odd_offered(2 * SPLIT)


async def test_a_call_of_a_driver_that_never_comes_back_is_its_own(gate):
    async with beside(driver=Strange("discover", gate)) as node:
        await node.the_other_is_served()
        assert node.problem("driver odd") == "NotLookedYet"


async def test_a_driver_that_comes_late_does_not_change_the_order_of_pods_that_wait():
    driver = OddDriver(0, 1)
    driver.trouble = DriverUnavailableError(DriverReason.NO_DRIVER, "not loaded yet")
    async with beside(driver=driver) as node:
        await node.kubelet.until(lambda: node.kubelet.allocatable(COUNT) == 2 * SPLIT)
        for name in ("first", "second"):
            waiting = replace(pod(name, pieces=[[grant(0)]]), created="2026-01-01T00:00:00Z")
            node.api._table.feed.update(waiting)

        driver.trouble = None
        await node.odd_offered(2 * SPLIT)

        assert node.daemon.node.pods.ranks == {"first-uid": 1, "second-uid": 2}


@pytest.mark.scenario("D11")
async def test_a_device_under_a_new_name_is_not_given_out_twice():
    names = ["odd-0"]

    def change(seen):
        return (replace(seen[0], device=odd(0, uuid=names[0], pci="0000:01:00.0")), *seen[1:])

    async with beside(driver=OddDriver(0, 1, change=change)) as node:
        await node.odd_offered(2 * SPLIT)
        names[0] = "odd-new"
        await node.odd_offered(SPLIT)
        assert (node.odd_device("odd-new").reason, node.odd_device("odd-0").reason) == ("Renamed", "DeviceGone")
        await node.the_other_is_served()
        node.forget_odd_devices()
        await node.odd_offered(2 * SPLIT)
        assert node.odd_device("odd-0") is None


async def test_a_driver_whose_names_change_at_each_look_offers_nothing_twice():
    looks = iter(range(10**9))

    def change(seen):
        return tuple(
            replace(one, device=odd(one.device.index, uuid=f"odd-{next(looks)}", pci=f"0000:0{one.device.index}:00.0"))
            for one in seen
        )

    async with beside(driver=OddDriver(0, 1, change=change), forgetSeconds=1.0) as node:
        await node.the_other_is_served()
        await asyncio.sleep(1.0)
        assert node.kubelet.allocatable(ODD) <= 2 * SPLIT
        await node.the_other_is_served("p2")


class Touchy:
    def __eq__(self, other):
        raise ZeroDivisionError("compared")

    __hash__ = None


async def test_traits_that_cannot_be_compared_are_a_driver_that_failed():
    def change(seen):
        return tuple(replace(one, device=replace(one.device, traits=Touchy())) for one in seen)

    async with beside(driver=OddDriver(0, 1, change=change)) as node:
        await node.the_other_is_served()
        await node.says("driver odd", "DriverFailed: ZeroDivisionError: compared")
        await node.odd_offered(0)


class Former:
    """A daemon that has released the node, whose lists the kubelet has until it ends."""

    working = frozenset({"odd", "toy"})

    def __init__(self):
        self.ended = asyncio.Event()

    async def end(self):
        self.ended.set()


def away():
    driver = OddDriver(0, 1)
    driver.trouble = DriverUnavailableError(DriverReason.FAILED, "not now")
    return driver


async def test_a_driver_that_fails_while_the_node_is_taken_over_is_waited_for_before_the_former_list_goes():
    former, driver = Former(), away()
    async with beside(driver=driver, predecessor=former) as node:
        await node.says("driver odd", "not now")
        await node.the_other_is_served()
        assert not await wait_event(former.ended, within=0.2)

        driver.trouble = None
        await node.odd_offered(2 * SPLIT)
        assert await wait_event(former.ended, within=60)


async def test_a_driver_that_stays_away_keeps_the_former_list_for_a_while_only(monkeypatch):
    monkeypatch.setattr(app, "REGISTER_S", 0.3)
    former = Former()
    async with beside(driver=away(), predecessor=former) as node:
        assert await wait_event(former.ended, within=60)
        await node.the_other_is_served()
