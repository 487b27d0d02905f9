"""However an amount is written, each vendor's resources mean what Kubernetes reads in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_plugin.model.views import ContainerView
from hami_plugin.scheduler.engine.devices import Demand, Invalid
from hami_plugin.sdk import Family, load_vendor, vendor_names

UNITS = {"metax-tech.com/vmemory"}
"""A suffix has a meaning of its own: without one it is GiB."""

NUMBERS = (0, 1, 2, 4, 16, 50, 100, 1000, 1024, 24576, 98304, 2**31 - 1, 2**31)


def resources() -> Iterator[tuple[Family, str]]:
    for vendor in map(load_vendor, vendor_names()):
        for family in vendor.families(vendor.settings()):
            names = family.resources
            for name in {names.count, names.memory, names.memory_percent, names.cores} - {""}:
                if family.rules.policy:
                    yield family, name


CASES = sorted(resources(), key=lambda case: (case[0].resources.device_type, case[1]))


def forms(number: int) -> Iterator[str]:
    yield from (f"+{number}", f"{number}.0", f"{number}e0", f"{number}000m", f"{number}000e-3", f"0{number}")
    if number and number % 1000 == 0:
        yield from (f"{number // 1000}k", f"{number // 1000}e3", f"{number // 1000}E3")
    if number and number % 1024 == 0:
        yield from (f"{number // 1024}Ki", f"{number / 1024**2}Mi")


def asked(family: Family, name: str, text: str) -> Demand | str | None:
    """What a container asks for that asks for so much of the resource, and if need be for one device; else why not."""
    assert family.rules.policy
    request = family.rules.policy.request
    alone = isinstance(request(ContainerView(name="c", limits={name: "1"})), Demand)
    limits = {name: text} if alone else {family.resources.count: "1", name: text}
    found = request(ContainerView(name="c", limits=limits))
    return found.why if isinstance(found, Invalid) else found


@pytest.mark.parametrize(
    ("family", "name"), CASES, ids=[f"{family.resources.device_type}-{name}" for family, name in CASES]
)
def test_an_amount_may_be_written_in_any_form(family: Family, name: str) -> None:
    for number in NUMBERS if name not in UNITS else (1000, 2000):
        plain = asked(family, name, str(number))
        for text in forms(number) if name not in UNITS else (f"{number // 1000}k", f"{number // 1000}e3"):
            assert asked(family, name, text) == plain, (text, plain)


@pytest.mark.parametrize(
    ("family", "name"), CASES, ids=[f"{family.resources.device_type}-{name}" for family, name in CASES]
)
def test_more_than_32_bits_is_refused_and_the_bounds_are_said(family: Family, name: str) -> None:
    for text in ("4294967297", "1e30", "-1e30", "8Ei"):
        found = asked(family, name, text)
        assert found is None or isinstance(found, str) or percent(family, name, found), (text, found)


def percent(family: Family, name: str, found: Demand) -> bool:
    """A percentage is never more than 100, and less than 1 says nothing."""
    return name == family.resources.memory_percent and (found.percent or 100) == 100
