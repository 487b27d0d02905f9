from __future__ import annotations

import pytest

from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.scheduler.engine.devices import Demand, Invalid, amount, count_request, percentage
from hami_plugin.scheduler.engine.node_info import requested_families, resource_names
from hami_plugin.sdk import vendor_names
from tests.support.pods import of_vendor

REQUEST = count_request(
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


EVERY = [family for name in vendor_names() for family in of_vendor(name, {}) if family.rules.policy]


@pytest.mark.parametrize("family", EVERY, ids=lambda family: family.resources.device_type)
@pytest.mark.parametrize("amount", ["1", "x"])
def test_a_family_is_asked_by_its_own_resources_alone(family, amount):
    """So a scheduler puts a container's question to the families that it names, and to no other."""
    names = {name for other in EVERY for name in resource_names(other)} - resource_names(family)
    wish = dict.fromkeys(names, amount)
    one = ContainerView(name="main", limits=wish, requests=wish)

    assert family.rules.policy.request(one) is None
    assert family not in requested_families(PodView(uid="u", namespace="team", name="a", containers=(one,)), EVERY)


@pytest.mark.parametrize("family", EVERY, ids=lambda family: family.resources.device_type)
def test_each_resource_of_a_family_names_it(family):
    for name in resource_names(family):
        for wish in ({"limits": {name: "1"}}, {"requests": {name: "1"}}):
            one = ContainerView(name="main", **wish)
            assert family in requested_families(PodView(uid="u", namespace="team", name="a", containers=(one,)), EVERY)
