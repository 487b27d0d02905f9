"""What is different in Biren: a device is a slot. Memory and cores are nobody's business but the agent's."""

from __future__ import annotations

from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo, encode_json
from hami_plugin.scheduler.engine.devices import Context, Demand, DeviceState, idle_state
from hami_plugin.scheduler.engine.fit import Granted, fit
from vendors.biren import BirenSettings, families

(BIREN,) = families(BirenSettings())
POD = PodView(uid="u", namespace="n", name="p")


def cards(count: int) -> list[DeviceState]:
    infos = [
        DeviceInfo(id=f"{n}-0", index=n, count=1, devmem=65024, devcore=7, type="Biren", health=True, custom={"svi": n})
        for n in range(count)
    ]
    node = NodeView(name="n", annotations={BIREN.rules.annotations.register: encode_json(infos)})
    return [idle_state(info) for info in BIREN.rules.node_devices(node)]


def test_two_of_three_idle_cards_are_the_last_two_and_are_billed_nothing() -> None:
    assert BIREN.rules.policy
    container = ContainerView(name="c", requests={"birentech.com/gpu": "2"})

    demand = BIREN.rules.policy.request(container)
    assert isinstance(demand, Demand)
    outcome = fit(BIREN.rules.policy, cards(3), Context(demand=demand, pod=POD))

    assert isinstance(outcome, Granted)
    assert BIREN.rules.patch(BIREN, POD, {"Biren": (outcome.grants,)}) == {
        "hami.io/Biren-devices-to-allocate": "2-0,Biren,0,0:1-0,Biren,0,0:;",
        "hami.io/Biren-devices-allocated": "2-0,Biren,0,0:1-0,Biren,0,0:;",
    }
    assert [grant.notes for grant in outcome.grants] == [{"svi": 2}, {"svi": 1}]


def test_a_card_has_all_its_cores_whatever_the_agent_writes() -> None:
    assert [state.info.devcore for state in cards(2)] == [100, 100]


def test_only_the_registered_count_limits_sharing() -> None:
    assert BIREN.rules.policy
    states = cards(8)
    held = [DeviceState(info=state.info, slots=1) if state.index > 5 else state for state in states]

    refused = fit(BIREN.rules.policy, held, Context(demand=Demand(device_type="Biren", count=7), pod=POD))

    assert str(refused) == "2/8 CardTimeSlicingExhausted, 6/8 AllocatedCardsInsufficientRequest"
