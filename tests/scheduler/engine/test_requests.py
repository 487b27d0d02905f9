from __future__ import annotations

import pytest

from hami_plugin.model.views import ContainerView
from hami_plugin.scheduler.engine.requests import Demand, Invalid, amount, counted, percentage

REQUEST = counted(
    "W",
    count=amount("x/n", least=1),
    memory=amount("x/m", factor=256),
    percent=percentage("x/p"),
    cores=amount("x/c", fraction="round up", most=100),
    default_cores=7,
)


def asked(**limits: str) -> Demand | Invalid | None:
    return REQUEST(ContainerView(name="c", limits={f"x/{name}": text for name, text in limits.items()}))


def test_a_container_that_does_not_count_devices_asks_for_none() -> None:
    assert asked(m="5") is None


def test_without_a_word_on_memory_it_is_all_of_it() -> None:
    assert asked(n="2") == Demand(device_type="W", count=2, percent=100, cores=7)


def test_units_are_turned_into_mib_and_memory_outranks_a_percentage() -> None:
    assert asked(n="1k", m="4", p="150", c="1500m") == Demand(
        device_type="W", count=1000, memory=1024, percent=100, cores=2
    )


def test_requests_count_where_limits_are_silent() -> None:
    container = ContainerView(name="c", limits={"x/n": "1"}, requests={"x/n": "3", "x/m": "2"})

    assert REQUEST(container) == Demand(device_type="W", count=1, memory=512, cores=7)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"n": "0"}, "x/n=0 is not within 1 to 2147483647"),
        ({"n": "4294967297"}, "x/n=4294967297 is not within 1 to 2147483647"),
        ({"n": "1", "m": "8388608"}, "x/m=8388608 is not within 0 to 8388607"),
        ({"n": "1", "m": "1.5"}, "x/m=1.5 is not a whole number"),
        ({"n": "1", "c": "-1"}, "x/c=-1 is not within 0 to 100"),
        ({"n": "1", "m": "much"}, "x/m=much is not a quantity"),
    ],
)
def test_an_amount_that_means_nothing_is_named(limits: dict[str, str], words: str) -> None:
    assert str(asked(**limits)) == words
