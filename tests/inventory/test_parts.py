"""One driver may serve several families; each is told of its own devices alone."""

from __future__ import annotations

from dataclasses import replace

from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.inventory import Inventory, part, whole
from hami_plugin.model.device import Discovery, Fault, Health, Link, Links, Sighting, Snapshot
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.process.concurrency import Watched
from hami_plugin.sdk import HealthEvent
from tests.support.builders import FAMILY, REGISTER, changed, device, uuid

RED, BLUE = "RED", "BLUE"
PAIRS = {(uuid(a), uuid(b)): Link(score=10 * a + b, label="L") for a in range(4) for b in range(a + 1, 4)}
MIXED = Snapshot(
    devices=tuple(replace(device(number), family=(RED, BLUE)[number % 2]) for number in range(4)),
    links=Links(pairs=PAIRS, asymmetric=((uuid(0), uuid(1)), (uuid(0), uuid(2)))),
    ready=True,
    reason="",
)


def indices(snapshot):
    return [device.index for device in snapshot.devices]


def test_a_family_sees_its_own_devices_and_the_links_among_them():
    red, blue = part(MIXED, RED), part(MIXED, BLUE)

    assert (indices(red), indices(blue)) == ([0, 2], [1, 3])
    assert list(red.links.pairs) == [(uuid(0), uuid(2))]
    assert red.links.asymmetric == ((uuid(0), uuid(2)),)
    assert list(blue.links.pairs) == [(uuid(1), uuid(3))]


def test_a_family_without_devices_still_knows_that_the_driver_works():
    green = part(MIXED, "GREEN")

    assert (green.devices, green.ready) == ((), True)


def test_all_parts_together_show_every_device_as_its_family_does():
    red = part(MIXED, RED)
    ill = replace(red, devices=tuple(replace(device, health=Health.UNHEALTHY) for device in red.devices))

    shown = whole(MIXED, [ill, part(MIXED, BLUE)])

    assert indices(shown) == [0, 1, 2, 3]
    assert [device.health.offered for device in shown.devices] == [False, True, False, True]


def test_a_family_that_a_node_has_nothing_of_takes_its_former_entry_away():
    assert wanted_annotations(FAMILY, part(MIXED, "GREEN"), Style())[REGISTER] is None
    assert wanted_annotations(FAMILY, Snapshot(), Style()) == {}


def test_a_node_says_what_else_a_family_notes_only_with_devices():
    noting = changed(FAMILY, notes={"toy.io/mode": "soft"})

    assert wanted_annotations(noting, MIXED, Style())["toy.io/mode"] == "soft"
    assert "toy.io/mode" not in wanted_annotations(noting, part(MIXED, "GREEN"), Style())


def test_a_familys_snapshot_changes_with_its_own_devices_only():
    inventory = Inventory(HealthLimits(suspect_looks=1), forget=60.0)
    red, blue = inventory.view(RED), inventory.view(BLUE)

    def discover(*ill):
        faults = {uuid(number): Fault(reason="Lost") for number in ill}
        sightings = tuple(Sighting(device=one, fault=faults.get(one.uuid)) for one in MIXED.devices)
        inventory.discovered(Discovery(sightings=sightings), 1.0)

    discover()
    before = red.version, blue.version
    discover(1)

    assert (red.version - before[0], blue.version - before[1]) == (0, 1)
    assert (indices(red.value), indices(blue.value)) == ([0, 2], [1, 3])
    assert [one.health.offered for one in blue.value.devices] == [False, True]


async def test_no_task_stands_between_a_fault_and_the_readers_of_its_family():
    inventory = Inventory(HealthLimits(), forget=60.0)
    views = [inventory.view(), inventory.view(RED)]
    inventory.discovered(Discovery(sightings=tuple(Sighting(device=one) for one in MIXED.devices)), 1.0)

    inventory.event(HealthEvent(uuid=uuid(0), fault=Fault(reason="Xid79")), 2.0)

    assert [view.value.device(uuid(0)).reason for view in views] == ["Xid79", "Xid79"]


def test_a_stage_decides_what_the_readers_and_the_metrics_see():
    class Held:
        def __init__(self):
            self.snapshot, self.taken = Watched(Snapshot()), []

        def take(self, found):
            self.taken.append(found)

        def close(self):
            self.snapshot.close()

    stage, inventory = Held(), Inventory(HealthLimits(), forget=60.0)
    view = inventory.view(RED, stage)

    inventory.discovered(Discovery(sightings=tuple(Sighting(device=one) for one in MIXED.devices)), 1.0)

    assert view.value.devices == ()
    assert indices(stage.taken[-1]) == [0, 2]
    held = replace(stage.taken[-1].devices[0], health=Health.UNHEALTHY, reason="CDISpecMissing")
    view.set(replace(stage.taken[-1], devices=(held,)))
    assert [one.reason for one in inventory.shown.devices] == ["CDISpecMissing", "", "", ""]
    inventory.close()
    assert view.closed
