"""What is different in Kunlun: two wings of four cards, whose wiring says which may be granted together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import (
    ORDER_KEY,
    Admitted,
    Context,
    Demand,
    Denied,
    DeviceState,
    Invalid,
    Reason,
    idle_state,
)
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.scheduler.engine.policy import Decision
from hami_plugin.sdk import SHARED_LOCK
from tests.hami import values
from tests.support.hami import answers
from vendors.kunlun.rules import CARD, choose_wired, families
from vendors.kunlun.settings import KunlunSettings

VECTORS = Path(__file__).parents[2] / "vectors/hami-tests"
WHOLE, PART = families(KunlunSettings())
NODE = NodeView(name="n", capacity={"kunlunxin.com/xpu": "8"})
POD = PodView(uid="u", namespace="n", name="p")
CARDS = tuple(idle_state(info) for info in WHOLE.rules.node_devices(NODE))
QUARTER = CARD // 4


def parts(count: int = 4, **used: int) -> list[DeviceState]:
    """Eight cards; ``used`` are quarters in use, by card: ``_3=2``."""
    taken = {int(name[1:]): number for name, number in used.items()}
    infos = [
        DeviceInfo(id=f"xpu-{i}", index=i, count=count, devmem=CARD, devcore=100, type="XPU", health=True)
        for i in range(8)
    ]
    return [
        DeviceState(info=info, slots=taken.get(i, 0), memory=QUARTER * taken.get(i, 0), cores=25 * taken.get(i, 0))
        for i, info in enumerate(infos)
    ]


def busy(*cards: int) -> list[DeviceState]:
    return [replace(state, slots=1) if state.index in cards else state for state in CARDS]


def whole(states: Sequence[DeviceState], count: int, **annotations: str) -> Granted | Refused:
    assert WHOLE.rules.policy
    demand, pod = Demand(device_type="kunlun", count=count, percent=100), replace(POD, annotations=annotations)
    return fit(WHOLE.rules.policy, states, Context(demand=demand, pod=pod))


def part(
    states: Sequence[DeviceState], count: int, memory: int, annotations: Mapping[str, str] | None = None
) -> Granted | Refused:
    assert PART.rules.policy
    demand = Demand(device_type="XPU", count=count, memory=memory, cores=memory * 100 // CARD)
    return fit(PART.rules.policy, states, Context(demand=demand, pod=replace(POD, annotations=annotations or {})))


def indices(outcome: Granted | Refused) -> list[int]:
    return [grant.index for grant in outcome.grants] if isinstance(outcome, Granted) else []


def test_a_wing_that_is_begun_is_used_up_first() -> None:
    assert indices(whole(busy(), 1)) == [0]
    assert indices(whole(busy(1, 2, 3), 1)) == [0]
    assert indices(whole(busy(2, 3, 7), 1)) == [4]
    assert indices(whole(busy(7), 2)) == [4, 5]
    assert indices(whole(busy(3), 4)) == [4, 5, 6, 7]


def test_across_the_wings_only_cards_that_are_linked_go_together() -> None:
    assert indices(whole(busy(1, 2, 3, 5, 6, 7), 2)) == [0, 4]
    assert indices(whole(busy(2, 3, 6, 7), 4)) == [0, 1, 4, 5]
    unlinked = whole(busy(1, 2, 3, 4, 6, 7), 2)

    assert isinstance(unlinked, Refused)
    assert str(unlinked) == "1/8 NumaNotFit"


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_numbers_that_no_wiring_has_are_refused(count: int) -> None:
    assert isinstance(whole(busy(), count), Refused)


def test_the_order_of_the_list_does_not_matter() -> None:
    for head in permutations(busy(5), 3):
        rest = [state for state in busy(5) if state not in head]
        assert indices(whole([*head, *rest], 4)) == [0, 1, 2, 3]


def test_both_pairs_of_selectors_count() -> None:
    names = {"hami.io/use-xpu-uuid": "n-kunlun-2,n-kunlun-3", "baidu.com/nouse-gpuuuid": "n-kunlun-2"}
    assert indices(whole(busy(), 1, **names)) == [3]
    refused = whole(busy(), 2, **names)

    assert isinstance(refused, Refused)
    assert str(refused) == "7/8 CardUuidMismatch"


def test_parts_of_a_card_are_of_one_size() -> None:
    states = parts(_0=1, _1=1, _2=1, _3=1, _4=4, _5=4, _6=4, _7=4)

    assert indices(part(states, 1, QUARTER)) == [0]
    assert str(part(states, 1, CARD // 2)) == "1/8 NumaNotFit"


def test_a_card_serves_as_many_as_the_node_says() -> None:
    states = parts(2, _0=2, _1=2, _2=2, _3=2, _4=4, _5=4, _6=4, _7=4)

    assert str(part(states, 1, QUARTER)) == "4/8 CardTimeSlicingExhausted"


def test_under_mutex_a_part_has_its_card_for_itself() -> None:
    states = parts(_0=1, _1=1, _2=1, _3=1, _4=1, _5=1, _6=1, _7=1)

    assert str(part(states, 1, QUARTER, {ORDER_KEY: "mutex"})) == "8/8 ExclusiveDeviceAllocateConflict"


def test_memory_becomes_a_quarter_a_half_or_all_of_a_card() -> None:
    assert PART.rules.policy
    for memory, size, cores in (("0", 1, 25), ("24577", 2, 50), ("98304", 4, 100)):
        asking = ContainerView(name="c", limits={"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": memory})
        demand = PART.rules.policy.request(asking)
        written = {"kunlunxin.com/vxpu-memory": str(size * QUARTER)}

        assert demand == Demand(device_type="XPU", count=1, memory=size * QUARTER, cores=cores)
        assert PART.rules.admit(asking, POD) == Admitted(found=True, limits=written, requests=written)
    assert PART.rules.admit(ContainerView(name="c", limits={"kunlunxin.com/vxpu": "1"}), POD) == Admitted(found=True)


@pytest.mark.parametrize("memory", ["98305", "4G", "-5", "1.5"])
def test_no_part_has_more_memory_than_a_card(memory: str) -> None:
    assert PART.rules.policy
    asking = ContainerView(name="c", limits={"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": memory})

    demand = PART.rules.policy.request(asking)

    assert isinstance(demand, Invalid)
    assert PART.rules.admit(asking, POD) == Denied(why=str(demand))


def test_what_is_decided_is_written() -> None:
    two = whole(busy(), 2)
    assert isinstance(two, Granted)

    assert WHOLE.rules.patch(WHOLE, POD, {"kunlun": (two.grants, ())}) == {
        "hami.io/kunlun-allocated": "n-kunlun-0,kunlun,98304,100:n-kunlun-1,kunlun,98304,100:;;",
        "BAIDU_COM_DEVICE_IDX": "0,1",
    }
    assert WHOLE.rules.patch(WHOLE, POD, {"kunlun": ((),)}) == {"hami.io/kunlun-allocated": ";"}
    assert WHOLE.rules.lock is None
    assert PART.rules.lock == SHARED_LOCK


def test_the_cards_of_a_node_are_halved_between_its_numa_nodes() -> None:
    assert [state.info.numa for state in CARDS] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {(state.info.count, state.info.devmem, state.info.devcore) for state in CARDS} == {(100, CARD, 100)}


def vectors(file: str, *functions: str) -> list[Mapping[str, Any]]:
    found = json.loads((VECTORS / f"{file}.json").read_text())["vectors"]
    return [vector for vector in found if vector["fn"].split(".", 1)[1] in functions]


@answers("kunlun_xpu_truth_table", "graghSelect(compact)")
def test_of_every_pattern_of_busy_cards_the_same_are_chosen() -> None:
    table = vectors("kunlun_xpu_truth_table", "graghSelect(compact)")
    assert len(table) > 1000
    for vector in table:
        free = [card for card in range(8) if card not in vector["input"]["used"]]
        assert list(choose_wired(free, vector["input"]["request"])) == vector["expected"]["result"]


@answers("kunlun_xpu_topology", "calcscore")
def test_a_choice_is_worth_the_same() -> None:
    assert WHOLE.rules.policy
    for vector in vectors("kunlun_xpu_topology", "calcscore"):
        chosen, before = vector["input"]["c"], vector["input"]["p"]
        piece = tuple(Grant(uuid=f"n-kunlun-{card}", device_type="kunlun", index=card) for card in chosen)
        worth = WHOLE.rules.policy.score(Decision(node=NODE, pod=POD, pieces=(piece,), before=busy(*before)))
        assert worth == vector["expected"]["result"]
    beside = [*busy(), DeviceState(info=DeviceInfo(id="other", type="XPU"))]
    assert WHOLE.rules.policy.score(Decision(node=NODE, pod=POD, pieces=(), before=beside)) == 0


@answers(("kunlun_xpu_topology", "kunlun_vxpu"), "Fit")
@pytest.mark.parametrize(
    ("file", "function", "device_type"),
    [("kunlun_xpu_topology", "KunlunDevices.Fit", "kunlun"), ("kunlun_vxpu", "KunlunVDevices.Fit", "XPU")],
)
def test_hamis_own_cases_are_decided_alike(file: str, function: str, device_type: str) -> None:
    policy = {"kunlun": WHOLE, "XPU": PART}[device_type].rules.policy
    assert policy
    for vector in vectors(file, function):
        put, expected = vector["input"], vector["expected"]
        states = [values.state({"id": "", "count": 10, **card}) for card in put["devices"]]
        request = put["request"]
        demand = Demand(device_type=device_type, count=request["nums"], memory=request.get("memreq"))
        outcome = fit(policy, states, Context(demand=demand, pod=values.pod(put["pod"])))
        theirs = [one["idx"] for devices in expected["devices"].values() for one in devices]
        assert indices(outcome) == theirs
        assert isinstance(outcome, Granted) or str(outcome) == expected["reason"]


@answers("kunlun_vxpu", "FitVXPU")
def test_a_card_has_room_for_the_same_parts() -> None:
    assert PART.rules.policy
    for vector in vectors("kunlun_vxpu", "FitVXPU"):
        state = values.state({"id": "xpu-0", "count": 10, **vector["input"]["device"]})
        demand = Demand(device_type="XPU", count=1, memory=vector["input"]["request"]["memreq"])
        outcome = fit(PART.rules.policy, [state], Context(demand=demand, pod=POD))
        assert isinstance(outcome, Granted) == vector["expected"]["result"]


@answers("kunlun_vxpu", "GetNodeDevices")
def test_the_nodes_annotation_is_read_alike() -> None:
    for vector in vectors("kunlun_vxpu", "KunlunVDevices.GetNodeDevices"):
        node = values.node(vector["input"]["node"])
        try:
            found = PART.rules.node_devices(node)
        except WireError:
            assert vector["expected"]["error"]
            continue
        assert [info.id for info in found] == [one["id"] for one in vector["expected"]["devices"]]


def test_a_whole_card_takes_its_slot_and_a_part_its_share() -> None:
    assert WHOLE.rules.policy
    assert PART.rules.policy
    grant = Grant(uuid="xpu-0", device_type="XPU", memory=QUARTER, cores=25)
    of_whole, of_part = (
        WHOLE.rules.policy.book(CARDS[0], grant, POD),
        PART.rules.policy.book(parts(_0=1)[0], grant, POD),
    )
    assert not isinstance(of_whole, Reason)
    assert not isinstance(of_part, Reason)

    assert (of_whole[0].slots, of_whole[0].memory) == (1, 0)
    assert (of_part[0].slots, of_part[0].memory, of_part[0].cores) == (2, 2 * QUARTER, 50)
