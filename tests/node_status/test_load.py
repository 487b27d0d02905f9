"""What the hardware says of devices, and of the containers that have them alone."""

import pytest

from hami_plugin.model.usage import DeviceLoad, UsageState
from hami_plugin.node_status.occupancy import device_occupancy
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.node_status.usage import Loads, by_device
from hami_plugin.process.concurrency import Watched
from tests.support.builders import FAMILY, grant, held_by, ids, pod, snapshot, uuid

MIB = 1 << 20
BUSY = DeviceLoad(memory_used=300 * MIB, utilization=40, memory_utilization=7)


@pytest.fixture
def loads():
    loads = Loads(kept=10.0, clock=lambda: 0.0)
    loads.note("acme", {uuid(0): BUSY, uuid(1): BUSY})
    return loads


def readings(loads, held, known=frozenset()):
    source = FamilySource(vendor="acme", family=FAMILY, snapshot=Watched(snapshot()))
    return list(by_device(device_occupancy([source], held), loads, known))


def share(name, *cards, memory=1000, cores=10):
    replicas = [one for card in cards for one in ids((card, 0))]
    return held_by(pod(name), replicas=replicas, grants=[grant(card, memory, cores) for card in cards])


def test_who_has_a_device_alone_uses_what_is_in_use_of_it(loads):
    (one,) = readings(loads, [share("alone", 0, 1)])

    assert one.held.pod == "alone"
    assert one.usage.state is UsageState.OK
    assert [(each.uuid, each.memory_used, each.utilization) for each in one.usage.devices] == [
        (uuid(0), 300 * MIB, 40),
        (uuid(1), 300 * MIB, 40),
    ]
    assert one.usage.devices[0].memory_limit == 1000 * MIB


def test_of_a_device_that_is_shared_nobody_knows_who_uses_it(loads):
    assert readings(loads, [share("one", 0), share("two", 0)]) == []


def test_what_is_read_from_the_container_itself_counts_more(loads):
    held = share("alone", 0)
    assert readings(loads, [held], {held.key}) == []


def test_a_device_that_does_not_tell_says_nothing_of_its_container(loads):
    loads.note("acme", {uuid(0): DeviceLoad(memory_used=None, utilization=40)})
    assert readings(loads, [share("alone", 0), share("silent", 2)]) == []


def test_a_device_that_tells_its_memory_alone_says_that_of_its_container(loads):
    loads.note("acme", {uuid(0): DeviceLoad(memory_used=300 * MIB)})

    (one,) = readings(loads, [share("alone", 0)])

    assert [(each.memory_used, each.utilization) for each in one.usage.devices] == [(300 * MIB, None)]


def test_what_was_said_long_ago_is_not_shown():
    now = 0.0
    loads = Loads(kept=10.0, clock=lambda: now)
    loads.note("acme", {uuid(0): BUSY})
    assert loads.of("acme", uuid(0)) == BUSY
    assert loads.of("other", uuid(0)) is None

    now = 10.0

    assert loads.of("acme", uuid(0)) is None
