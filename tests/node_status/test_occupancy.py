"""What is given of a device, in one measure for all families."""

from dataclasses import replace

import pytest

from hami_plugin.allocation.allocator import question_of
from hami_plugin.node_status.occupancy import device_occupancy
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.process.concurrency import Watched
from hami_plugin.protocol.pods import decided_shares
from hami_plugin.sdk import Resources, Units
from hami_plugin.simulation.hardware import vendor_of
from tests.support.builders import CARD_MIB, COUNT, FAMILY, SPLIT, changed, device, grant, held_by, ids, pod, snapshot
from tests.support.rigs import rig

ONE, OTHER = pod("one"), pod("other")


def source(family=FAMILY, count=1):
    return FamilySource(vendor="toy", family=family, snapshot=Watched(snapshot(count)))


def taken(held, family=FAMILY, count=1):
    """Shares handed out, MiB and cores taken, of each device."""
    return [(one.handed, one.memory_taken, one.cores_taken) for one in device_occupancy([source(family, count)], held)]


def counting(**changes):
    """The family with other units: ``devmem`` and ``devcore`` are what it registers."""
    devmem, devcore = changes.pop("devmem", CARD_MIB), changes.pop("devcore", 100)
    return changed(
        FAMILY,
        register=lambda item, legacy: replace(FAMILY.node.register(item, legacy), devmem=devmem, devcore=devcore),
        **changes,
    )


def test_what_nobody_has_is_all_there_to_be_given():
    (one,) = device_occupancy([source()], [])

    assert (one.memory, one.cores, one.shares) == (CARD_MIB, 100, SPLIT)
    assert (one.handed, one.memory_taken, one.cores_taken, one.portions) == (0, 0, 0, ())


def test_the_shares_of_pods_add_up_on_each_device():
    held = [
        held_by(ONE, replicas=ids((0, 0), (1, 0)), grants=[grant(0, 1000, 10), grant(1, 2000, 20)]),
        held_by(OTHER, replicas=ids((1, 1)), grants=[grant(1, 3000, 30)]),
    ]

    assert taken(held, count=3) == [(1, 1000, 0.1), (2, 5000, 0.5), (0, 0, 0)]


def test_an_init_containers_devices_are_not_counted_again_for_those_after_it():
    held = [
        held_by(ONE, "first", ids((0, 0)), [grant(0, 9000, 10)], init=True),
        held_by(ONE, "second", ids((0, 1)), [grant(0, 7000, 50)], init=True),
        held_by(ONE, "main", ids((0, 0)), [grant(0, 2000, 20)]),
        held_by(ONE, "side", ids((0, 1)), [grant(0, 3000, 20)]),
    ]

    assert taken(held) == [(2, 9000, 0.5)]
    assert taken(held[2:]) == [(2, 5000, 0.4)]


def test_a_container_that_is_counted_by_several_resources_has_its_share_once():
    units = Units(resource="toy.io/core", of_device=lambda _d: 16, of_grant=lambda g: g.cores)
    family = counting(units=(units,), every_core=lambda _device: 16, devcore=16)
    share = held_by(ONE, replicas=ids((0, 0)), grants=[grant(0, 4000, 4)])
    by_cores = replace(share, resource="toy.io/core", ids=frozenset(ids((0, 4), (0, 5), (0, 6), (0, 7))))

    assert taken([share, by_cores], family) == [(1, 4000, 0.25)]
    assert taken([by_cores], family) == [(0, 4000, 0.25)]


def test_cores_that_are_bits_take_their_part_of_a_memory_that_is_not_counted():
    family = counting(devmem=0, devcore=0b1111, every_core=lambda _device: 0b1111, cores_are_bits=True)
    held = [
        held_by(ONE, replicas=ids((0, 0)), grants=[grant(0, 0, 0b1000)]),
        held_by(OTHER, replicas=ids((0, 1)), grants=[grant(0, 0, 0b0110)]),
    ]

    (one,) = device_occupancy([source(family)], held)

    assert one.cores == 4
    assert (one.memory, one.memory_taken, one.cores_taken) == (CARD_MIB, CARD_MIB * 0.75, 0.75)


def test_memory_in_percent_of_the_card_is_told_in_mib():
    family = counting(devmem=100, resources=Resources(device_type="TOY", count=COUNT, memory_percent="toy.io/percent"))

    assert taken([held_by(ONE, replicas=ids((0, 0)), grants=[grant(0, 25, 0)])], family) == [(1, CARD_MIB / 4, 0)]


def test_a_scaled_memory_is_advertised_and_given_as_such():
    family = counting(devmem=2 * CARD_MIB)
    held = [held_by(ONE, replicas=ids((0, 0)), grants=[grant(0, CARD_MIB, 0)])]

    (one,) = device_occupancy([source(family)], held)

    assert (one.device.memory, one.memory, one.memory_taken) == (CARD_MIB, 2 * CARD_MIB, CARD_MIB)


@pytest.mark.parametrize(("memory", "cores", "wanted"), [(0, 0, (CARD_MIB, 1.0)), (0, 30, (CARD_MIB, 0.3))])
def test_a_grant_without_a_limit_is_all_that_there_is(memory, cores, wanted):
    held = [held_by(ONE, replicas=ids((0, 0)), grants=[grant(0, memory, cores)])]

    assert taken(held) == [(1, *wanted)]


def test_what_others_have_of_a_device_of_the_same_name_is_not_counted():
    foreign = replace(held_by(ONE, grants=[grant(0)]), resource="other.io/card")

    assert taken([foreign]) == [(0, 0, 0)]


def test_a_device_that_is_listed_twice_is_told_once():
    twice = replace(snapshot(1), devices=(device(0), device(0, model="other")))

    assert len(list(device_occupancy([FamilySource(family=FAMILY, snapshot=Watched(twice))], []))) == 1


@pytest.mark.parametrize(
    ("profile", "labels"),
    [
        ("dgx-h100", {}),
        ("mi300x-8", {}),
        ("ascend-910b3-8", {}),
        ("aws-inf2-24xlarge", {"node.kubernetes.io/instance-type": "inf2.24xlarge"}),
        ("cambricon-mlu590-8", {}),
        ("biren-br106-8", {}),
        ("kunlun-p800-8", {}),
        ("iluvatar-biv150-8", {}),
        ("mthreads-s4000-8", {}),
        ("enflame-s60-8", {}),
    ],
)
def test_whoever_has_a_device_of_any_vendor_to_himself_has_all_of_its_memory(profile, labels, tmp_path):
    machine = rig(profile, tmp_path, deviceListStrategy="cdi-annotations")
    shown = machine.snapshot()
    families = vendor_of(machine.machine).families(machine.settings)
    family = next(one for one in families if one.resources.device_type == shown.devices[0].family)
    machine = replace(machine, family=family)
    asked = machine.decided(machine.node(shown, **labels), {family.resources.count: 1})
    (claim,) = decided_shares(asked, question_of(family))
    held = replace(held_by(asked, grants=claim.grants), resource=family.resources.count)

    shares = {
        one.device.uuid: one.memory_taken / one.memory
        for one in device_occupancy([FamilySource(vendor="v", family=family, snapshot=Watched(shown))], [held])
    }

    assert shares == {one.uuid: float(one.uuid == claim.grants[0].uuid) for one in shown.devices}
