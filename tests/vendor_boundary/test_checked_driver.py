"""Is whatever a driver reports either a device that the others can rely on, or a reason?"""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.errors import DriverUnavailableError
from hami_plugin.model.device import Action, Discovery, Fault, Link, Links, Sighting
from hami_plugin.model.usage import MAX_PROCESSES, DeviceLoad, DeviceProcess, ProcessOwner
from hami_plugin.protocol.nodes import DeviceInfo, decode_json, encode_json
from hami_plugin.protocol.pods import decode_devices, encode_devices
from hami_plugin.vendor_boundary.guard import (
    IMPLAUSIBLE,
    CheckedDriver,
    check_discovery,
    plausible_fault,
    plausible_links,
)
from tests.support.builders import device, grant, uuid
from tests.support.hardware import ScriptedDriver

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=2), st.just(())
)
FIELDS = ("uuid", "family", "index", "model", "memory", "cores", "minor", "pci", "numa", "mode")


def found(*devices, **changes):
    return Discovery(sightings=tuple(Sighting(device=one, **changes) for one in devices))


def test_what_is_sound_is_left_as_it_is():
    whole = Discovery(
        sightings=(Sighting(device=device(0)), Sighting(device=device(1), fault=Fault(reason="Xid79", message="lost"))),
        problems=("a card without a name",),
        facts={"driver": "1.0"},
    )

    assert check_discovery(whole) == whole


def test_a_device_may_have_the_name_of_the_node_with_the_longest_name_in_its_own():
    named = found(device(0, uuid=f"{'n' * 253}-AWSNeuron-0"))

    assert check_discovery(named) == named


@pytest.mark.scenario("D15")
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING), ANYTHING)
def test_whatever_a_driver_tells_can_be_written_down_or_is_a_reason(fields, fault):
    why = ""
    try:
        told = check_discovery(found(device(0, **fields), fault=fault))
    except DriverUnavailableError as error:
        why = str(error)
    if why:
        assert "without a usable name" in why
        return
    (sighting,) = told.sightings
    item = sighting.device
    (read,) = decode_json(encode_json([DeviceInfo.of(item, item.model)]))
    assert (read.id, read.devmem) == (item.uuid, item.memory)
    ((given_back,), *_rest) = decode_devices(encode_devices([(replace(grant(0), uuid=item.uuid),)]))
    assert given_back.uuid == item.uuid
    assert sighting.fault is None or sighting.fault.reason.isalnum()


@pytest.mark.scenario("D15")
def test_of_one_name_there_is_one_device_and_it_is_unhealthy():
    told = check_discovery(found(device(0), device(1), device(0, index=5)))

    assert [(s.device.index, s.fault and s.fault.reason) for s in told.sightings] == [(0, "DuplicateUuid"), (1, None)]


def test_everything_that_is_wrong_with_a_device_is_told_at_once():
    (sighting,) = check_discovery(found(device(0, memory=-1, numa="x"))).sightings

    assert sighting.fault == Fault(reason=IMPLAUSIBLE, message="the driver reports memory -1 and numa 'x'")
    assert (sighting.device.memory, sighting.device.numa, sighting.device.index) == (0, None, 0)


def test_a_driver_that_tells_of_nothing_at_all_is_believed():
    assert check_discovery(Discovery(sightings=(), problems=("empty",))).sightings == ()


@pytest.mark.parametrize(
    "fault", [math.nan, "bad", Fault(reason="two words"), Fault(reason="x" * 200), Fault(reason=7)]
)
def test_a_fault_that_cannot_be_told_is_one_that_can(fault):
    assert plausible_fault(fault).reason == IMPLAUSIBLE


def test_what_a_fault_asks_for_is_kept_if_it_is_known():
    assert plausible_fault(Fault(reason="A", action=Action.RESET)).action is Action.RESET
    assert plausible_fault(Fault(reason="A", action="explode")).action is Action.DRAIN


@pytest.mark.parametrize(
    "links",
    [
        None,
        Links(pairs={(uuid(0), uuid(1)): None}),
        Links(pairs={(uuid(0), 7): Link(score=1, label="")}),
        Links(pairs={(uuid(0),): Link(score=1, label="")}),
        Links(pairs={(uuid(0), uuid(1)): Link(score=math.inf, label="")}),
        Links(asymmetric=(7,)),
    ],
)
def test_links_that_are_none_are_refused(links):
    with pytest.raises((TypeError, ValueError)):
        plausible_links(links)


class Meter(ScriptedDriver):
    """Tells of energy whatever it is told to."""

    def __init__(self, told):
        super().__init__(0)
        self.told = told

    def energy(self):
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        ({"a": 1, "b": 2.5}, {"a": 1.0, "b": 2.5}),
        ({"a": math.nan, "b": -1, "c": "7", 4: 1.0, "d": math.inf, "e": 3}, {"e": 3.0}),
        (7, {}),
        ({str(number): 1 for number in range(5000)}, {}),
        (ZeroDivisionError("by nought"), {}),
    ],
)
def test_energy_that_makes_no_sense_is_left_out_and_no_device_suffers(told, believed):
    driver = CheckedDriver(lambda: Meter(told))
    assert len(driver.discover().sightings) == 1

    assert driver.energy() == believed
    assert len(driver.discover().sightings) == 1


def test_a_driver_without_a_meter_tells_of_no_energy():
    driver = CheckedDriver(lambda: ScriptedDriver(0))
    driver.discover()

    assert driver.energy() == {}


class Loaded(ScriptedDriver):
    """Tells of load whatever it is told to."""

    def __init__(self, told):
        super().__init__(0)
        self.told = told

    def load(self):
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def process(pid, memory):
    return DeviceProcess(pid=pid, memory_used=memory, owner=ProcessOwner(pod="p"))


@pytest.mark.parametrize(
    ("told", "believed"),
    [
        ({"a": DeviceLoad(memory_used=5, utilization=100)}, {"a": DeviceLoad(memory_used=5, utilization=100)}),
        ({"a": DeviceLoad(memory_used=-1, utilization=101, memory_utilization=True)}, {"a": DeviceLoad()}),
        ({"a": 5, 7: DeviceLoad()}, {}),
        (
            {"a": DeviceLoad(processes=(process(7, 5), process(0, 5), process("7", 5), process(8, -1)))},
            {"a": DeviceLoad(processes=(process(7, 5), process(8, None)))},
        ),
        (
            {"a": DeviceLoad(processes=tuple(process(7, 5) for _ in range(MAX_PROCESSES + 9)))},
            {"a": DeviceLoad(processes=tuple(process(7, 5) for _ in range(MAX_PROCESSES)))},
        ),
        (ZeroDivisionError("by nought"), {}),
    ],
)
def test_load_that_makes_no_sense_is_left_out_and_no_device_suffers(told, believed):
    driver = CheckedDriver(lambda: Loaded(told))
    assert len(driver.discover().sightings) == 1

    assert driver.load() == believed
    assert len(driver.discover().sightings) == 1


def test_a_driver_that_tells_of_no_load_has_none():
    driver = CheckedDriver(lambda: ScriptedDriver(0))
    driver.discover()

    assert driver.load() == {}
