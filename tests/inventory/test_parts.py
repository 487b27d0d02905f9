"""One driver may serve several families; each is told of its own devices alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hami_plugin.aio import Watched
from hami_plugin.inventory.inventory import FamilyPart, part, whole
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.model.links import Link, Links
from hami_plugin.node_status.annotations import Style, wanted_annotations
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


async def test_a_part_follows_its_driver_and_wakes_nobody_for_the_others():
    found = Watched(MIXED)
    red = FamilyPart(RED, found)
    task = asyncio.create_task(red.run())

    blue_ill = tuple(replace(d, health=Health.UNHEALTHY) if d.family == BLUE else d for d in MIXED.devices)
    found.set(replace(MIXED, devices=blue_ill))
    for _ in range(5):  # enough turns of the loop for the change to arrive
        await asyncio.sleep(0)
    unmoved = red.snapshot.version
    found.set(replace(MIXED, devices=MIXED.devices[:2]))
    await red.snapshot.changed(unmoved, timeout=30)
    found.close()
    await asyncio.wait_for(task, 30)

    assert (unmoved, indices(red.snapshot.value), red.snapshot.closed) == (0, [0], True)
