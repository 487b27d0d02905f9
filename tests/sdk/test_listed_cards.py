"""Cards that a tool lists, held against the bus: whatever the two disagree about is told, and guessed by nobody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Discovery
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.sdk.listed_cards import Card, ListedCards

HARDWARE = Hardware(title="Acme card", vendors=("1234",), module="acme", node="acme")


def host(root: Path, *addresses: str, kind: str = "0x120000") -> HostPaths:
    driver = root / "sys/bus/pci/drivers/acme"
    driver.mkdir(parents=True)
    (root / "dev").mkdir()
    for number, address in enumerate(addresses):
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in {"vendor": "0x1234", "device": "0x0001", "class": kind, "numa_node": "-1"}.items():
            (folder / name).write_text(f"{text}\n")
        (folder / "driver").symlink_to(driver)
        (root / f"dev/acme{number}").touch()
    return HostPaths(sysfs=root / "sys", dev=root / "dev")


def card(index: int, *, uuid: str = "", memory: int = 1024) -> Card:
    return Card(index=index, uuid=uuid or f"A-{index}", model="Acme", address=f"0000:0{index}:00.0", memory=memory)


def look(paths: HostPaths, *cards: Card | str) -> Discovery:
    listing: Iterable[Card | str] = cards
    return ListedCards(HARDWARE, paths, lambda: listing, lambda one: ("Acme", one.uuid)).look(lambda _uuid: None)


def faults(discovery: Discovery) -> list[str]:
    return [one.fault.reason if one.fault else "" for one in discovery.sightings]


def test_cards_stand_in_the_order_of_their_numbers_and_a_numa_node_of_minus_one_is_none(tmp_path: Path) -> None:
    found = look(host(tmp_path, "0000:00:00.0", "0000:01:00.0"), card(1), card(0))

    assert [(one.device.index, one.device.uuid, one.device.numa) for one in found.sightings] == [
        (0, "A-0", None),
        (1, "A-1", None),
    ]
    assert faults(found) == ["", ""]


def test_what_a_vendor_notes_of_a_card_is_the_devices(tmp_path: Path) -> None:
    found = look(host(tmp_path, "0000:00:00.0"), replace(card(0), traits="slot 3"))

    assert [one.device.traits for one in found.sightings] == ["slot 3"]


def test_two_cards_of_one_name_are_one_that_is_not_offered(tmp_path: Path) -> None:
    found = look(host(tmp_path, "0000:00:00.0", "0000:01:00.0"), card(0, uuid="A"), card(1, uuid="A"))

    assert faults(found) == ["DuplicateUuid"]


def test_a_card_that_is_listed_where_the_bus_is_empty_is_not_offered(tmp_path: Path) -> None:
    assert faults(look(host(tmp_path, "0000:00:00.0"), card(0), card(1))) == ["", "NotOnBus"]


def test_a_card_that_was_never_listed_is_a_problem_in_words(tmp_path: Path) -> None:
    found = look(host(tmp_path, "0000:00:00.0", "0000:01:00.0"), card(0), "line 2 is odd")

    assert found.problems == ("line 2 is odd", "the vendor's tool does not list the card at 0000:01:00.0")


def test_a_card_that_only_plays_sound_is_none(tmp_path: Path) -> None:
    with pytest.raises(DriverUnavailableError) as caught:
        look(host(tmp_path, "0000:00:00.0", kind="0x040300"), card(0))

    assert caught.value.reason is DriverReason.NO_DEVICES


def test_a_card_of_no_family_hides_no_other(tmp_path: Path) -> None:
    cards = ListedCards(
        HARDWARE,
        host(tmp_path, "0000:00:00.0", "0000:01:00.0"),
        lambda: (card(0), card(1)),
        lambda one: ("Acme", one.uuid) if one.index else None,
    )

    found = cards.look(lambda _uuid: None)

    assert [one.device.index for one in found.sightings] == [1]
    assert "card 0, a Acme, belongs to no configured family" in found.problems


def test_cards_keep_their_numbers_when_the_tool_counts_anew(tmp_path: Path) -> None:
    """Else the third card would take over the second one's name, its device node, and its links."""
    paths = host(tmp_path, "0000:00:00.0", "0000:01:00.0", "0000:02:00.0")
    listing = [card(0), card(1), card(2)]
    lanes = {(0, 2): 4, (2, 0): 4}
    cards = ListedCards(
        HARDWARE, paths, lambda: listing, lambda one: ("Acme", f"n1-{one.index}"), fabric="AL", lanes=lambda: lanes
    )
    before = cards.look(lambda _uuid: None)

    listing[:] = [card(0), replace(card(2), index=1)]
    lanes = {(0, 1): 4, (1, 0): 4}
    after = cards.look(lambda _uuid: None)

    assert [one.device for one in after.sightings] == [one.device for one in before.sightings]
    assert faults(after) == ["", "NotListed", ""]
    links = cards.links([one.device for one in after.sightings])
    assert {pair: link.lanes for pair, link in links.pairs.items() if link.lanes} == {("n1-0", "n1-2"): 4}
