"""What is different in Moore Threads: amounts for all cards together, slices, and all of a pod's shares on one card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import Admitted, Context, Demand, Denied, DeviceState, Piece, idle_state
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from vendors.mthreads import MthreadsSettings, families

(GPU,) = families(MthreadsSettings(), clock=lambda: 1_000_000_007)
POD = PodView(uid="u", namespace="n", name="p", annotations={"hami.io/vgpu-node": "n1"})
NODE = NodeView(name="n1", capacity={"mthreads.com/sgpu-core": "128", "mthreads.com/sgpu-memory": "768"})
WHOLE = Demand(device_type="Mthreads", count=1, memory=49152, cores=16)
SHARE = Demand(device_type="Mthreads", count=1, memory=16384, cores=8)


def container(**limits: str) -> ContainerView:
    names = {"count": "mthreads.com/vgpu", "memory": "mthreads.com/sgpu-memory", "cores": "mthreads.com/sgpu-core"}
    return ContainerView(name="c", limits={names[key]: text for key, text in limits.items()})


def cards(*given: Grant) -> list[DeviceState]:
    """The node's cards with what the pod's other containers have of them."""
    states = {state.uuid: state for state in map(idle_state, GPU.rules.node_devices(NODE))}
    for grant in given:
        state = states[grant.uuid]
        states[grant.uuid] = replace(
            state, slots=state.slots + 1, memory=state.memory + grant.memory, cores=state.cores + grant.cores
        )
    return list(states.values())


def offered(demand: Demand, *pieces: Piece) -> Granted | Refused:
    assert GPU.rules.policy
    given = [grant for piece in pieces for grant in piece]
    return fit(GPU.rules.policy, cards(*given), Context(demand=demand, pod=POD, given={"Mthreads": pieces}))


def granted(demand: Demand, *pieces: Piece) -> Piece:
    outcome = offered(demand, *pieces)
    assert isinstance(outcome, Granted), str(outcome)
    return outcome.grants


def test_the_nodes_capacity_is_divided_among_its_cards() -> None:
    infos = GPU.rules.node_devices(NODE)

    assert [info.id for info in infos] == [f"n1-mthreads-{n}" for n in range(8)]
    assert {(info.devmem, info.devcore, info.count, info.health) for info in infos} == {(49152, 16, 100, True)}
    assert GPU.rules.node_devices(NodeView(name="n2")) == ()


def test_amounts_are_for_all_cards_together() -> None:
    assert GPU.rules.policy

    assert GPU.rules.policy.request(container(count="2", memory="192", cores="32")) == replace(WHOLE, count=2)
    assert GPU.rules.policy.request(container(count="1", memory="32", cores="8")) == SHARE


def test_several_cards_are_whole_and_one_without_memory_too() -> None:
    several = GPU.rules.admit(container(count="2", memory="8"), POD)
    one = GPU.rules.admit(container(count="1", cores="1"), POD)

    assert several == Admitted(
        found=True,
        limits={"mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"},
        pod_annotations={"mthreads.com/request-gpu-num": "2"},
    )
    assert one == Admitted(found=True, limits={"mthreads.com/sgpu-core": "16", "mthreads.com/sgpu-memory": "96"})


@pytest.mark.parametrize("memory", ["0", "3", "1k", "1500m"])
def test_a_share_has_a_slice_of_memory_of_one_of_seven_sizes(memory: str) -> None:
    denied = GPU.rules.admit(container(count="1", memory=memory), POD)

    assert isinstance(denied, Denied)
    assert denied.why == f"container 'c': mthreads.com/sgpu-memory={memory} is none of 2, 4, 8, 16, 32, 64, 96"
    assert GPU.rules.admit(container(count="1", memory="32"), POD) == Admitted(found=True)


@pytest.mark.parametrize("count", ["0", "-1"])
def test_a_count_that_is_no_number_of_cards_is_denied(count: str) -> None:
    denied = GPU.rules.admit(ContainerView(name="c", requests={"mthreads.com/vgpu": count}), POD)

    assert denied == Denied(why="container 'c': mthreads.com/vgpu must be greater than 0")


def test_all_shares_of_a_pod_are_on_one_card() -> None:
    first = granted(SHARE)
    second = granted(SHARE, first)

    assert [grant.uuid for grant in (*first, *second)] == ["n1-mthreads-7", "n1-mthreads-7"]
    assert str(offered(replace(SHARE, memory=49152), first)) == (
        "1/8 CardInsufficientMemory, 7/8 CardNotFoundCustomFilterRule"
    )


def test_two_containers_with_a_whole_card_each_have_two_cards() -> None:
    first = granted(WHOLE)
    second = granted(WHOLE, first)

    assert [grant.uuid for grant in (*first, *second)] == ["n1-mthreads-7", "n1-mthreads-6"]
    assert GPU.rules.patch(GPU, POD, {"Mthreads": (first, second)}) == {
        "hami.io/mthreads-vgpu-devices-allocated": "n1-mthreads-7,Mthreads,49152,16:;n1-mthreads-6,Mthreads,49152,16:;",
        "mthreads.com/gpu-index": "7,6",
        "mthreads.com/predicate-time": "1000000007",
        "mthreads.com/predicate-node": "n1",
    }


def test_a_whole_card_beside_shares_leaves_the_shares_together() -> None:
    share = granted(SHARE)
    whole = granted(WHOLE, share)
    another = granted(SHARE, share, whole)

    assert [grant.uuid for grant in whole] == ["n1-mthreads-6"]
    assert [grant.uuid for grant in another] == ["n1-mthreads-7"]


def test_the_node_is_not_locked() -> None:
    assert GPU.rules.lock is None
