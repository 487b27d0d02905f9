"""What does one snapshot show of all that a driver has shown so far?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.inventory.health import Condition, HealthLimits
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.model.device import Action, Discovery, Fault, Health, Link, Links, Sighting
from hami_plugin.sdk import HealthEvent
from tests.support.builders import device, uuid

LOST = Fault(reason="Lost", message="it does not answer")
PATIENCE = HealthLimits(hold=10.0)


def looked(inventory, now, *numbers, faults=()):
    faults = dict(faults)
    sightings = tuple(Sighting(device=device(n), fault=faults.get(n)) for n in numbers)
    return inventory.discovered(Discovery(sightings=sightings), now)


def healths(inventory) -> dict[int, str]:
    return {d.index: d.health.value for d in inventory.found.devices}


@pytest.fixture
def inventory():
    return Inventory(PATIENCE, forget=300.0)


def test_nothing_is_ready_before_the_first_look(inventory):
    assert not inventory.found.ready
    assert inventory.found.reason == "NotLookedYet"


def test_no_devices_are_a_valid_snapshot(inventory):
    looked(inventory, 0.0)

    assert inventory.found.ready
    assert inventory.found.devices == ()


def test_devices_are_ordered_by_index_and_new_ones_are_told(inventory):
    changes = looked(inventory, 0.0, 2, 0, 1)

    assert [d.index for d in inventory.found.devices] == [0, 1, 2]
    assert {(c.device.index, c.before) for c in changes} == {(0, None), (1, None), (2, None)}


def test_a_look_that_shows_the_same_publishes_nothing(inventory):
    looked(inventory, 0.0, 0, 1)
    snapshot = inventory.view()
    version = snapshot.version

    assert looked(inventory, 30.0, 0, 1) == []
    assert snapshot.version == version


def test_a_device_that_fails_hides_none_of_the_others(inventory):
    looked(inventory, 0.0, 0, 1, 2)
    for now in (1.0, 2.0):
        looked(inventory, now, 0, 1, 2, faults={1: LOST}.items())

    assert healths(inventory) == {0: "healthy", 1: "unhealthy", 2: "healthy"}
    assert inventory.found.device(uuid(1)).reason == "Lost"
    assert inventory.unwell


def test_a_device_that_is_gone_stays_unhealthy_for_a_while_and_is_then_forgotten(inventory):
    looked(inventory, 0.0, 0, 1)

    changes = looked(inventory, 1.0, 0)
    assert [(c.device.uuid, c.before) for c in changes] == [(uuid(1), Health.HEALTHY)]
    assert inventory.found.device(uuid(1)).reason == "DeviceGone"

    looked(inventory, 300.0, 0)
    assert healths(inventory) == {0: "healthy", 1: "unhealthy"}
    looked(inventory, 301.0, 0)
    assert healths(inventory) == {0: "healthy"}
    assert not inventory.unwell


def test_a_device_that_is_gone_and_back_recovers_even_from_a_fault_that_asks_for_a_reboot(inventory):
    looked(inventory, 0.0, 0)
    inventory.event(HealthEvent(uuid=uuid(0), fault=Fault(reason="Off", action=Action.REBOOT)), 1.0)
    for now in (20.0, 30.0, 40.0, 50.0):
        looked(inventory, now, 0)
    assert healths(inventory) == {0: "unhealthy"}

    looked(inventory, 60.0)
    for now in (70.0, 80.0, 90.0):
        looked(inventory, now, 0)

    assert healths(inventory) == {0: "healthy"}


def test_a_driver_that_is_away_withdraws_all_forgets_none_and_says_why(inventory):
    looked(inventory, 0.0, 0, 1)

    changes = inventory.unavailable("NoDriver", "it was unloaded", 5.0)
    inventory.unavailable("NoDriver", "it was unloaded", 5_000.0)

    shown = inventory.found
    assert (shown.ready, shown.reason, shown.message) == (False, "NoDriver", "it was unloaded")
    assert len(changes) == 2
    assert healths(inventory) == {0: "unhealthy", 1: "unhealthy"}


def test_after_the_driver_is_back_all_recover(inventory):
    looked(inventory, 0.0, 0, 1)
    inventory.unavailable("NoDriver", "", 5.0)
    inventory.reloaded()

    for now in (20.0, 21.0, 22.0):
        looked(inventory, now, 0, 1)

    assert inventory.found.ready
    assert healths(inventory) == {0: "healthy", 1: "healthy"}


def test_a_card_that_did_not_answer_after_its_report_recovers_from_a_fault_that_asks_for_a_reboot(inventory):
    looked(inventory, 0.0, 0, 1)
    inventory.event(HealthEvent(uuid=uuid(0), fault=Fault(reason="Off", action=Action.REBOOT)), 1.0)
    inventory.event(HealthEvent(uuid=uuid(0), fault=LOST, confirmed=True), 1.0)

    for now in (20.0, 21.0, 22.0):
        looked(inventory, now, 0, 1)

    assert healths(inventory) == {0: "healthy", 1: "healthy"}


def test_an_event_without_a_device_is_about_all(inventory):
    looked(inventory, 0.0, 0, 1)

    assert len(inventory.event(HealthEvent(uuid=None, fault=LOST), 1.0)) == 2


def test_an_event_about_a_device_that_nobody_knows_changes_nothing(inventory):
    looked(inventory, 0.0, 0)

    assert inventory.event(HealthEvent(uuid=uuid(9), fault=LOST), 1.0) == []
    assert inventory.doubted(uuid(9), LOST, 1.0) == []


def test_what_is_remembered_holds_until_the_device_shows_itself(inventory):
    bad = Condition(health=Health.UNHEALTHY, fault=Fault(reason="Xid", action=Action.REBOOT), since=0.0)
    inventory = Inventory(PATIENCE, forget=300.0, remembered={uuid(1): bad, uuid(2): bad})

    for now in (100.0, 101.0, 102.0, 103.0):
        looked(inventory, now, 0, 1)

    assert healths(inventory) == {0: "healthy", 1: "unhealthy"}
    assert set(inventory.conditions) == {uuid(1), uuid(2)}


def test_links_of_a_silent_device_are_kept_and_those_of_a_forgotten_one_are_not(inventory):
    near, far = Link(score=10, label="NEAR"), Link(score=1, label="FAR")
    pair, other = (uuid(0), uuid(1)), (uuid(0), uuid(2))
    looked(inventory, 0.0, 0, 1, 2)
    inventory.linked(Links(pairs={pair: near, other: near}), {uuid(0), uuid(1), uuid(2)})

    inventory.linked(Links(pairs={pair: far}), {uuid(0), uuid(1)})
    assert inventory.found.links.pairs == {pair: far, other: near}

    looked(inventory, 1.0, 0, 1)
    looked(inventory, 302.0, 0, 1)
    inventory.linked(Links(pairs={pair: far}), {uuid(0), uuid(1)})
    assert inventory.found.links.pairs == {pair: far}


@given(st.lists(st.tuples(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)), st.booleans()), max_size=12))
def test_every_known_device_is_shown_once_and_changes_tell_every_difference(looks):
    inventory = Inventory(PATIENCE, forget=25.0)
    now, seen = 0.0, {}
    for present, faulty, away in looks:
        now += 10.0
        before = healths(inventory)
        changes = (
            inventory.unavailable("NoDriver", "", now)
            if away
            else looked(inventory, now, *present, faults=[(n, LOST) for n in faulty])
        )
        if not away:
            seen |= dict.fromkeys(present, now)

        after = healths(inventory)
        assert len(inventory.found.devices) == len(after)
        assert {c.device.index for c in changes} == {n for n in after if before.get(n) != after[n]}
        assert set(after) <= set(seen)
        assert present <= set(after) or away
        assert all(after[n] != "healthy" for n in set(after) - present) or away


def test_a_device_whose_first_look_fails_is_not_offered_before_a_good_one(inventory):
    looked(inventory, 0.0, 0, 1, faults={0: LOST})
    assert healths(inventory) == {0: "unhealthy", 1: "healthy"}

    looked(inventory, 5.0, 0, 1, faults={1: LOST})
    assert healths(inventory) == {0: "unhealthy", 1: "suspect"}


def test_a_device_that_comes_later_and_fails_at_once_is_not_offered_either(inventory):
    looked(inventory, 0.0, 0)
    looked(inventory, 5.0, 0, 1, faults={1: LOST})

    assert healths(inventory) == {0: "healthy", 1: "unhealthy"}


def placed(inventory, now, **places):
    """A look that shows devices by name, each at a place on the bus."""
    sightings = tuple(
        Sighting(device=device(number, uuid=name, pci=place)) for number, (name, place) in enumerate(places.items())
    )
    inventory.discovered(Discovery(sightings=sightings), now)
    return {d.uuid: (d.health.value, d.reason) for d in inventory.found.devices}


WELL = ("healthy", "")


def test_a_device_at_the_place_of_a_missing_one_waits_until_that_is_forgotten(inventory):
    placed(inventory, 0.0, a="01", b="02")

    assert placed(inventory, 5.0, c="01", b="02") == {
        "a": ("unhealthy", "DeviceGone"),
        "b": WELL,
        "c": ("unhealthy", "Renamed"),
    }
    assert placed(inventory, 299.0, c="01", b="02")["c"] == ("unhealthy", "Renamed")
    for now in (301.0, 320.0, 325.0, 330.0, 335.0):
        shown = placed(inventory, now, c="01", b="02")
    assert shown == {"b": WELL, "c": WELL}


def test_a_device_that_comes_back_under_its_former_name_is_itself_again(inventory):
    placed(inventory, 0.0, a="01")
    placed(inventory, 5.0, c="01")

    for now in (20.0, 25.0, 30.0, 35.0):
        shown = placed(inventory, now, a="01")

    assert shown["a"] == WELL


def test_devices_that_share_a_place_are_no_new_names_of_each_other(inventory):
    placed(inventory, 0.0, a="01", b="01")

    assert placed(inventory, 5.0, a="01")["a"] == WELL
    assert placed(inventory, 10.0, a="01", b="01")["a"] == WELL


def test_without_a_place_nobody_is_anybodys_new_name(inventory):
    placed(inventory, 0.0, a="")

    assert placed(inventory, 5.0, b="")["b"] == WELL
