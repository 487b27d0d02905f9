"""The cases of HAMi's own tests about NVLinks and PCI addresses, asked of our measuring on a card that answers so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from hami_plugin.sdk.polling import QueriedDevice
from tests.support.hami import Json, asks
from vendors.nvidia import driver
from vendors.nvidia.driver import NvLink, lanes, link
from vendors.nvidia.host import pci_address
from vendors.nvidia.nvml import Nvml, NvmlError

SKIPPED = ("NOT_SUPPORTED", "INVALID_ARGUMENT")
"""Answers that a link is not there, which HAMi passes over too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """NVML's answers about one card, as a case tells them: the first so many links are up, and lead to a switch."""

    told: Json

    def nvlink_up(self, _handle: object, number: int) -> bool:
        if self._error("link_state_error", number):
            return False
        return bool(number < self.told.get("enabled_links", 0))

    def nvlink_peer(self, _handle: object, _number: int) -> str:
        return str(self.told.get("remote_pci_bus_id", ""))

    def nvlink_to_switch(self, _handle: object, number: int) -> bool:
        self._error("remote_type_error", number)
        return bool(
            number < self.told.get("switch_links", 0) and self.told.get("remote_type_error", {}).get("link") != number
        )

    def _error(self, kind: str, number: int) -> bool:
        error = self.told.get(kind) or {}
        if error.get("link") != number:
            return False
        if error["code"] not in SKIPPED:
            raise NvmlError(kind, 999, error["code"])
        return True


def ports(told: Json) -> tuple[list[NvLink], list[str]]:
    """The card's links, and what could not be read."""
    problems: list[str] = []
    found = driver._nvlinks(cast("Nvml", Card(told=told)), "GPU-a", 1, QueriedDevice(), problems)
    return found, problems


def unreadable(told: Json, kind: str) -> bool:
    return (told.get(kind) or {"code": SKIPPED[0]})["code"] not in SKIPPED


@asks("nvidia_pair_scores", "countNvSwitchLinks")
def test_links_to_switches_are_counted_and_one_that_cannot_be_read_is_none(case: Json) -> None:
    """HAMi gives up at an error (D-022)."""
    told, expected = case["input"]["dev"], case["expected"]

    found, problems = ports(told)

    assert sum(port.switch for port in found) == expected.get("count", told["switch_links"] - 1)
    assert bool(problems) is unreadable(told, "link_state_error")


@asks("nvidia_pair_scores", "GetNVLink")
def test_a_pair_behind_switches_has_the_links_of_the_card_that_has_fewer(case: Json) -> None:
    """HAMi gives up at an error (D-022), and drops what it has no name for (D-021)."""
    a, b = case["input"]["dev1"], case["input"]["dev2"]
    (mine, trouble), (theirs, more_trouble) = ports(a), ports(b)

    count = lanes(mine, pci_address(b["pci_bus_id"]), theirs)

    if case["expected"].get("error"):
        odd = [one for one in (a, b) for kind in ("link_state_error", "remote_type_error") if unreadable(one, kind)]
        assert len(odd) == 1
        assert len(trouble + more_trouble) == sum(unreadable(one, "link_state_error") for one in (a, b))
        assert count == min(sum(port.switch for port in one) for one in (mine, theirs))
    elif case["expected"]["link_type"] == "Unknown" and count:
        assert count > 18
        assert link("", count).score == 1800
    else:
        name = case["expected"]["link_type"]
        assert count == (0 if name == "Unknown" else int(name.removeprefix("NVLink")))


ADDRESSES = {"BusID-002": "0000:01:00.0", "BusID-003": "", "BusID-004": "10000:01:00.0"}
"""A short domain, no address at all, and a domain above ffff: HAMi cuts off four zeros, whatever follows (D-300)."""


@asks("nvidia_pair_scores", "PciInfo.BusID")
def test_a_bus_id_is_written_as_sysfs_writes_it(case: Json) -> None:
    text = bytes((case["input"].get("backend") or {}).get("bus_id", ())).rstrip(b"\0").decode()

    assert pci_address(text) == ADDRESSES.get(case["id"], case["expected"]["result"])
