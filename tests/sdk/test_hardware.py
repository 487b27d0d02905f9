"""A vendor's devices on the bus: which count, why none can be served, and how far apart they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.sdk.hardware import Hardware, distances
from hami_plugin.sdk.pci import PciDevice
from hami_plugin.simulation.trees import Tree, attributes

CARDS = Hardware(title="Acme card", vendors=("1234", "abcd"), kinds=("03", "12"), module="acme")


def plugged(tmp_path: Path, *found: tuple[str, str], driver: bool = False) -> HostPaths:
    """A bus with functions of such vendors and classes."""
    tree = Tree(root=tmp_path)
    for number, (vendor, kind) in enumerate(found):
        folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
        tree.put(attributes(folder, {"vendor": f"0x{vendor}", "device": "0x0001", "class": f"0x{kind}"}))
        if driver:
            tree.write("sys/bus/pci/drivers/acme/uevent", "")
            tree.link(f"{folder}/driver", "sys/bus/pci/drivers/acme")
    return HostPaths(sysfs=tree.sysfs)


def test_other_vendors_and_other_kinds_of_the_same_vendor_do_not_count(tmp_path: Path) -> None:
    host = plugged(tmp_path, ("1234", "120000"), ("1234", "020000"), ("8086", "030000"), ("abcd", "030000"))

    assert [one.address for one in CARDS.plugged(host)] == ["0000:00:00.0", "0000:03:00.0"]


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        ([], DriverReason.NO_DEVICES, "there is no Acme card on the PCI bus"),
        ([("1234", "120000")], DriverReason.NO_DRIVER, "1 Acme cards are on the PCI bus, .* modprobe acme"),
    ],
)
def test_why_none_can_be_served_is_told(
    found: list[tuple[str, str]], reason: DriverReason, words: str, tmp_path: Path
) -> None:
    with pytest.raises(DriverUnavailableError, match=words) as caught:
        CARDS.driven(plugged(tmp_path, *found))

    assert caught.value.reason is reason


def test_those_that_a_driver_has_are_served(tmp_path: Path) -> None:
    assert len(CARDS.driven(plugged(tmp_path, ("1234", "120000"), driver=True))) == 1


def test_a_pair_has_its_distance_and_its_lanes_and_parts_of_one_card_are_on_one_board() -> None:
    places = [PciDevice(address=one, vendor="", device="", path=("pci0000:00", one)) for one in ("a", "b")]
    devices = [
        Device(uuid=f"{number}", family="x", index=number, model="", memory=1, pci=address)
        for number, address in enumerate(("a", "a", "b", "gone"))
    ]

    links = distances(devices, places, lanes=lambda a, b: int({a.index, b.index} == {0, 2}), fabric="L")

    assert {pair: link.label for pair, link in links.pairs.items()} == {
        ("0", "1"): "INT",
        ("0", "2"): "L1",
        ("0", "3"): "",
        ("1", "2"): "PHB",
        ("1", "3"): "",
        ("2", "3"): "",
    }
