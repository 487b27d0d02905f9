"""What is different in whole MetaX GPUs: the node itself says what so many cards are worth, by the node policy."""

from __future__ import annotations

import pytest

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import Context, Demand, Given, Invalid, idle_state
from hami_plugin.scheduler.engine.fit import Granted, fit
from hami_plugin.scheduler.engine.policy import Decision
from vendors.metax.rules import families
from vendors.metax.settings import MetaxSettings

GPU, _ = families(MetaxSettings())
POD = PodView(uid="u", namespace="n", name="p")
TWO = tuple(Grant(uuid=f"n-metax-{number}", device_type="Metax-GPU", memory=65536, cores=100) for number in (7, 6))


def node(**annotations: str) -> NodeView:
    named = {f"metax-tech.com/gpu.topology.{name}": text for name, text in annotations.items()}
    return NodeView(name="n", annotations=named, capacity={"metax-tech.com/gpu": "8"})


def worth(order: str, **annotations: str) -> object:
    assert GPU.rules.policy
    return GPU.rules.policy.score(Decision(node=node(**annotations), pod=POD, pieces=[TWO], before=(), order=order))


def granted(count: int, given: Given, used: int = 0) -> Granted:
    """From the first eight cards, the last ``used`` of which are taken."""
    assert GPU.rules.policy
    states = [idle_state(info) for info in GPU.rules.node_devices(node())][: 8 - used]
    demand = Demand(device_type="Metax-GPU", count=count, percent=100, cores=100)
    outcome = fit(GPU.rules.policy, states, Context(demand=demand, pod=POD, given=given))
    assert isinstance(outcome, Granted)
    return outcome


def test_the_last_cards_of_the_nodes_capacity_are_granted_whole() -> None:
    grants = granted(2, {}).grants

    assert [(grant.uuid, grant.memory, grant.cores) for grant in grants] == [
        ("n-metax-7", 65536, 100),
        ("n-metax-6", 65536, 100),
    ]
    text = "n-metax-7,Metax-GPU,65536,100:n-metax-6,Metax-GPU,65536,100:;"
    assert GPU.rules.patch(GPU, POD, {"Metax-GPU": (grants,)}) == {
        "hami.io/metax-gpu-devices-to-allocate": text,
        "hami.io/metax-gpu-devices-allocated": text,
    }
    assert GPU.rules.lock is None


def test_two_containers_may_have_two_cards() -> None:
    first = granted(1, {}).grants

    second = granted(1, {"Metax-GPU": (first,)}, used=1).grants

    assert [grant.uuid for grant in (*first, *second)] == ["n-metax-7", "n-metax-6"]


def test_binpack_prefers_the_smaller_loss() -> None:
    assert worth("binpack", losses='{"1": 10, "2": 30}') == 1970
    assert worth("binpack", losses='{"2": 20}', scores='{"2": 999}') == 1980


def test_spread_prefers_the_higher_score_since_it_takes_the_lowest_node() -> None:
    assert worth("spread", scores='{"2": 400}') == 1600
    assert worth("spread", scores='{"2": 100}', losses='{"2": 999}') == 1900


@pytest.mark.parametrize("text", ["", "bad", "[]", '{"1": 5}', '{"2": "5"}', '{"2": true}'])
def test_a_node_that_says_nothing_comes_last_under_both_policies(text: str) -> None:
    assert worth("binpack", losses=text) == 0
    assert worth("spread", scores=text) == 2000


def test_other_node_policies_do_not_look_at_the_links() -> None:
    assert worth("", losses='{"2": 30}', scores='{"2": 30}') == 0


def test_a_number_beyond_32_bits_is_no_request() -> None:
    assert GPU.rules.policy
    container = ContainerView(name="c", limits={"metax-tech.com/gpu": "4294967297"})

    assert isinstance(GPU.rules.policy.request(container), Invalid)
