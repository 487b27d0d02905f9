"""A whole pod on one node: containers one after the other, init containers apart, families side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import (
    ORDER_KEY,
    DevicePool,
    NodeInfo,
    Quota,
    amount,
    count_request,
    idle_state,
    percentage,
)
from hami_plugin.scheduler.engine.fit import CycleOptions, PodFit, Unschedulable, fit_pod, pod_demands
from hami_plugin.scheduler.engine.policy import CHARGED, WEIGHTS_KEY, Policy, standard, within_quota


def policy(device_type: str, **fields) -> Policy:
    return Policy(
        request=count_request(
            device_type,
            count=amount(f"{device_type}/count"),
            memory=amount(f"{device_type}/memory"),
            percent=percentage(f"{device_type}/percent"),
            cores=amount(f"{device_type}/cores"),
        ),
        serves=standard(device_type),
        **fields,
    )


RULES = {"red": policy("red"), "blue": policy("blue")}


def card(name: str, index: int = 0, **fields) -> DeviceInfo:
    return DeviceInfo(id=name, index=index, count=4, devmem=1000, devcore=100, health=True, **fields)


def node_info(**cards: list[DeviceInfo]) -> NodeInfo:
    pools = {
        device_type: DevicePool(states=tuple(idle_state(info) for info in infos))
        for device_type, infos in cards.items()
    }
    return NodeInfo(node=NodeView(name="n"), pools=pools)


def container(name: str, device_type: str = "", *, init=False, sidecar=False, **amounts: int) -> ContainerView:
    limits = {f"{device_type}/{key}": str(value) for key, value in amounts.items()}
    return ContainerView(name=name, init=init or sidecar, restartable=sidecar, limits=limits)


def pod(*containers: ContainerView, **annotations: str) -> PodView:
    return PodView(uid="u", namespace="ns", name="p", containers=containers, annotations=annotations)


def devices(outcome: PodFit | Unschedulable, device_type: str = "red") -> list[list[str]]:
    assert isinstance(outcome, PodFit), outcome.why
    return [[grant.uuid for grant in piece] for piece in outcome.given[device_type]]


def taken(outcome: PodFit | Unschedulable, device_type: str = "red") -> dict[str, tuple[int, int, int]]:
    assert isinstance(outcome, PodFit), outcome.why
    return {state.uuid: (state.slots, state.memory, state.cores) for state in outcome.after[device_type]}


def test_containers_see_what_those_before_them_have():
    wanted = pod(container("a", "red", count=1, memory=700), container("b", "red", count=1, memory=700))

    outcome = fit_pod(wanted, RULES, node_info(red=[card("R0"), card("R1", 1)]))

    assert sorted(devices(outcome)) == [["R0"], ["R1"]]
    assert isinstance(fit_pod(wanted, RULES, node_info(red=[card("R0")])), Unschedulable)


def test_every_container_has_one_entry_also_those_without_a_device():
    wanted = pod(container("i", init=True), container("a"), container("b", "red", count=1, memory=1), container("c"))

    assert devices(fit_pod(wanted, RULES, node_info(red=[card("R0")]))) == [[], [], ["R0"], []]


def test_families_are_served_side_by_side_in_one_container():
    both = ContainerView(name="a", limits={"red/count": "1", "red/memory": "1", "blue/count": "2", "blue/memory": "2"})

    outcome = fit_pod(pod(both, container("b")), RULES, node_info(red=[card("R0")], blue=[card("B0"), card("B1", 1)]))

    assert devices(outcome, "red") == [["R0"], []]
    assert sorted(devices(outcome, "blue")[0]) == ["B0", "B1"]


def test_a_family_of_which_the_pod_has_nothing_is_not_in_the_decision():
    outcome = fit_pod(
        pod(container("a", "red", count=1, memory=1)), RULES, node_info(red=[card("R0")], blue=[card("B0")])
    )

    assert isinstance(outcome, PodFit)
    assert set(outcome.given) == {"red"}


def test_init_containers_run_one_by_one_and_take_the_most_that_one_of_them_has():
    wanted = pod(
        container("i", "red", init=True, count=1, memory=900, cores=10),
        container("j", "red", init=True, count=1, memory=800, cores=50),
        container("a", "red", count=1, memory=300, cores=20),
        container("b", "red", count=1, memory=300, cores=20),
    )

    outcome = fit_pod(wanted, RULES, node_info(red=[card("R0")]))

    assert devices(outcome) == [["R0"]] * 4
    assert taken(outcome) == {"R0": (2, 900, 50)}


@pytest.mark.difference("D-223")
def test_a_sidecar_counts_beside_what_comes_after_it():
    sidecar = container("s", "red", sidecar=True, count=1, memory=600)
    room = node_info(red=[card("R0")])

    alone = fit_pod(pod(sidecar, container("a", "red", count=1, memory=400)), RULES, room)
    too_much = fit_pod(pod(sidecar, container("a", "red", count=1, memory=500)), RULES, room)
    init_too_large = fit_pod(pod(sidecar, container("i", "red", init=True, count=1, memory=500)), RULES, room)
    init_before = fit_pod(pod(container("i", "red", init=True, count=1, memory=1000), sidecar), RULES, room)

    assert taken(alone) == {"R0": (2, 1000, 0)}
    assert isinstance(too_much, Unschedulable)
    assert isinstance(init_too_large, Unschedulable)
    assert taken(init_before) == {"R0": (1, 1000, 0)}


def test_the_first_container_that_does_not_fit_says_why():
    wanted = pod(container("a", "red", count=1, memory=1), container("b", "red", count=1, memory=2000))

    outcome = fit_pod(wanted, RULES, node_info(red=[card("R0")]))

    assert isinstance(outcome, Unschedulable)
    assert outcome.why == "1/1 CardInsufficientMemory"
    assert [step.container.name for step in outcome.steps] == ["a", "b"]


def test_too_few_devices_are_told_without_numbers_and_each_device_still_has_its_verdict():
    outcome = fit_pod(pod(container("a", "red", count=2, memory=2000)), RULES, node_info(red=[card("R0")]))

    assert isinstance(outcome, Unschedulable)
    assert outcome.why == "NodeInsufficientDevice"
    assert [str(verdict.reason) for verdict in outcome.steps[-1].outcome.verdicts] == ["CardInsufficientMemory"]


def test_one_container_may_have_several_shares_where_the_family_allows_it():
    rules = {"red": policy("red", again=lambda state: state.info.mode == "cut")}

    outcome = fit_pod(pod(container("a", "red", count=3, memory=10)), rules, node_info(red=[card("R0", mode="cut")]))

    assert devices(outcome) == [["R0"] * 3]


def test_a_pod_that_asks_for_nothing_fits_and_gets_nothing():
    outcome = fit_pod(pod(container("a")), RULES, node_info())

    assert isinstance(outcome, PodFit)
    assert outcome.given == {}


@pytest.mark.difference("D-222")
def test_an_amount_that_means_nothing_fits_nowhere():
    limits = {"red/count": "1", "red/memory": "lots"}

    outcome = fit_pod(pod(ContainerView(name="a", limits=limits)), RULES, node_info(red=[card("R0")]))

    assert isinstance(outcome, Unschedulable)
    assert "red/memory=lots" in outcome.why


def test_weights_that_mean_nothing_fit_nowhere():
    wanted = replace(pod(container("a", "red", count=1, memory=1)), annotations={WEIGHTS_KEY: "slot=1"})

    outcome = fit_pod(wanted, RULES, node_info(red=[card("R0")]))

    assert isinstance(outcome, Unschedulable)
    assert WEIGHTS_KEY in outcome.why


@pytest.mark.difference("D-328")
@pytest.mark.parametrize("digits", [10, 400, 5000])
def test_weights_too_large_to_reckon_with_fit_nowhere_and_are_told_in_short(digits: int):
    weighing = f"slot=1,core=1,memory={'9' * digits}"
    wanted = replace(pod(container("a", "red", count=1, memory=1)), annotations={WEIGHTS_KEY: weighing})

    outcome = fit_pod(wanted, RULES, node_info(red=[card("R0")]))

    assert isinstance(outcome, Unschedulable)
    assert outcome.why.startswith(f"{WEIGHTS_KEY}=slot=1,core=1,memory=9999")
    assert "from 0 to 999999999" in outcome.why
    assert len(outcome.why) < 300


@pytest.mark.parametrize(("order", "expected"), [("binpack", ["R1", "R1"]), ("spread", ["R1", "R0"])])
def test_the_pods_order_of_devices_decides_for_each_container_anew(order: str, expected: list[str]):
    two = [container(name, "red", count=1, memory=100) for name in "ab"]
    wanted = replace(pod(*two), annotations={ORDER_KEY: order})

    outcome = fit_pod(wanted, RULES, node_info(red=[card("R0"), card("R1", 1, numa=1)]))

    assert [piece[0] for piece in devices(outcome)] == expected


def test_quota_counts_all_that_runs_together_and_init_containers_apart():
    rules = {"red": policy("red", checks=(within_quota(memory="red/memory", cores="red/cores"), *CHARGED))}
    room, limited = node_info(red=[card("R0")]), CycleOptions(quota=Quota(limits={"red/memory": 1000}))
    init = container("i", "red", init=True, count=1, memory=900)
    a, b = (container(name, "red", count=1, memory=500) for name in "ab")

    assert isinstance(fit_pod(pod(init, a, b), rules, room, limited), PodFit)
    assert isinstance(
        fit_pod(pod(init, a, container("b", "red", count=1, memory=501)), rules, room, limited), Unschedulable
    )


amounts = st.integers(1, 1200)
containers = st.lists(
    st.tuples(st.sampled_from(["init", "sidecar", "app"]), st.integers(0, 3), amounts), min_size=1, max_size=5
)


@given(containers=containers, used=st.lists(st.integers(0, 1000), min_size=1, max_size=4))
def test_nothing_is_ever_taken_twice(containers, used):
    built = [
        container(str(n), "red", init=kind == "init", sidecar=kind == "sidecar", count=count, memory=memory)
        for n, (kind, count, memory) in enumerate(containers)
    ]
    states = [replace(idle_state(card(f"R{n}", n)), memory=memory) for n, memory in enumerate(used)]
    pool = NodeInfo(node=NodeView(name="n"), pools={"red": DevicePool(states=tuple(states))})
    wanted = pod(*built)

    outcome = fit_pod(wanted, RULES, pool)

    if isinstance(outcome, PodFit):
        asked = pod_demands(wanted, RULES)
        assert isinstance(asked, tuple)
        pieces = outcome.given.get("red", ((),) * len(built))
        assert [len(piece) for piece in pieces] == [one["red"].count if "red" in one else 0 for one in asked]
        assert all(state.memory <= 1000 and state.slots <= 4 for state in outcome.after["red"])
