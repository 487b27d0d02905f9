"""Partitions are made and unmade by software: that is no fault, and their health is that of their place."""

from __future__ import annotations

import pytest

from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.model.device import Action, Device, Discovery, Fault, Health, Sighting
from hami_plugin.sdk import HealthEvent
from tests.support.builders import device, uuid

BROKEN = Fault(reason="Broken", message="contained", action=Action.DRAIN)
LIMITS = HealthLimits(hold=10.0, clean_looks=2)
PCI = "0000:01:00.0"


def piece(name: str, place: str, *, card: int = 0) -> Device:
    return device(card, uuid=name, place=f"{uuid(card)}/{place}", pci=PCI, part=int(place[0]))


def looked(
    inventory: Inventory, now: float, *devices: Device, divided: frozenset[str] = frozenset()
) -> dict[str, Health]:
    inventory.discovered(Discovery(sightings=tuple(Sighting(device=one) for one in devices), divided=divided), now)
    return {one.uuid: one.health for one in inventory.found.devices}


@pytest.fixture
def inventory() -> Inventory:
    return Inventory(LIMITS, forget=300.0)


def test_a_partition_that_is_unmade_goes_at_once_and_another_at_its_place_is_well(inventory: Inventory) -> None:
    looked(inventory, 0.0, piece("a", "0+2"), piece("b", "2+2"))

    assert looked(inventory, 1.0, piece("b", "2+2")) == {"b": Health.HEALTHY}
    assert looked(inventory, 2.0, piece("c", "0+2"), piece("b", "2+2")) == {"c": Health.HEALTHY, "b": Health.HEALTHY}


def test_a_card_that_is_divided_goes_at_once_and_comes_back_whole(inventory: Inventory) -> None:
    whole = device(0, pci=PCI)
    looked(inventory, 0.0, whole)

    cut = looked(inventory, 1.0, piece("a", "0+2"), divided=frozenset({whole.uuid}))
    again = looked(inventory, 2.0, whole)

    assert cut == {"a": Health.HEALTHY}
    assert again == {whole.uuid: Health.HEALTHY}


def test_what_is_made_at_the_place_of_a_fault_has_it_until_it_was_seen_well(inventory: Inventory) -> None:
    looked(inventory, 0.0, piece("a", "0+2"), piece("b", "2+2"))
    inventory.event(HealthEvent(uuid="a", fault=BROKEN), 1.0)

    assert looked(inventory, 2.0, piece("b", "2+2")) == {"b": Health.HEALTHY}
    remade = looked(inventory, 3.0, piece("c", "0+2"), piece("b", "2+2"), piece("d", "4+2"))
    assert remade == {"c": Health.UNHEALTHY, "b": Health.HEALTHY, "d": Health.HEALTHY}
    assert inventory.found.device("c") is not None
    looked(inventory, 12.0, piece("c", "0+2"))
    assert looked(inventory, 17.0, piece("c", "0+2")) == {"c": Health.HEALTHY}
    assert inventory.conditions == {}


@pytest.mark.parametrize("action", [Action.RESET, Action.REBOOT])
def test_partitions_that_were_made_anew_after_a_reset_recover_like_a_card_that_was_gone(
    action: Action, inventory: Inventory
) -> None:
    looked(inventory, 0.0, piece("a", "0+2"))
    inventory.event(HealthEvent(uuid="a", fault=Fault(reason="Xid95", action=action)), 1.0)
    looked(inventory, 20.0, piece("a", "0+2"))
    assert looked(inventory, 25.0, piece("a", "0+2")) == {"a": Health.UNHEALTHY}

    looked(inventory, 30.0)
    looked(inventory, 35.0, piece("b", "0+2"))
    assert looked(inventory, 40.0, piece("b", "0+2")) == {"b": Health.HEALTHY}


def test_a_restart_remembers_the_place_and_not_the_name(inventory: Inventory) -> None:
    looked(inventory, 0.0, piece("a", "0+2"))
    inventory.event(HealthEvent(uuid="a", fault=BROKEN), 1.0)
    looked(inventory, 2.0)
    noted = inventory.conditions

    later = Inventory(LIMITS, forget=300.0, remembered=noted)

    assert noted.keys() == {f"{uuid(0)}/0+2"}
    assert looked(later, 3.0, piece("b", "0+2"), piece("c", "2+2")) == {"b": Health.UNHEALTHY, "c": Health.HEALTHY}


def test_many_partitions_that_come_and_go_leave_nothing(inventory: Inventory) -> None:
    for number in range(500):
        looked(inventory, float(number), piece(f"p{number}", f"{number % 7}+1"))
        inventory.event(HealthEvent(uuid=f"p{number}", fault=BROKEN), float(number))

    looked(inventory, 500.0)
    assert len(inventory.conditions) == 7
    assert inventory.found.devices == ()


def test_the_kubelet_knows_a_partition_by_its_name_alone() -> None:
    one = piece("MIG-443a0e4b-2332-50a4-aa1b-85847d5f7a1c", "0+2")

    assert one.ids(1) == (one.uuid,)
    assert one.has_id(one.uuid, 1)
    assert not one.has_id(f"{one.uuid}-0", 1)
    assert (one.card, one.number) == (uuid(0), "0:0")
    assert (device(3).card, device(3).number, device(3).ids(2)) == (uuid(3), "3", (f"{uuid(3)}-0", f"{uuid(3)}-1"))
