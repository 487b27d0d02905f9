"""What is different in Vastai: dies of one card belong together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from hami_plugin.model.placement import Grant
from hami_plugin.model.views import NodeView, PodView
from hami_plugin.protocol.nodes import DeviceInfo
from hami_plugin.scheduler.engine.devices import Context, Demand, DeviceState, idle_state
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from hami_plugin.scheduler.engine.policy import Decision, Policy
from tests.hami import values
from tests.hami.catalog import Catalog
from tests.hami.run import Case, Outcome, asked
from vendors.vastai import VastaiSettings, families

(VASTAI,) = families(VastaiSettings())
POD = PodView(uid="u", namespace="n", name="p")
ALONE = replace(POD, annotations={"hami.io/gpu-scheduler-policy": "mutex"})


def policy() -> Policy:
    assert VASTAI.rules.policy
    return VASTAI.rules.policy


def dies(cards: str) -> list[DeviceState]:
    """One die for each letter, which is its card; ``-`` is a die whose card is not known."""
    return [
        idle_state(
            DeviceInfo(
                id=f"{card}{n}",
                index=n,
                count=1,
                type="Vastai",
                health=True,
                custom={"DeviceStrategy": "die"} | ({"AIC": card} if card != "-" else {}),
            )
        )
        for n, card in enumerate(cards)
    ]


def offered(states: list[DeviceState], count: int, pod: PodView = POD) -> Granted | Refused:
    return fit(policy(), states, Context(demand=Demand(device_type="Vastai", count=count), pod=pod))


def chosen(states: list[DeviceState], count: int, pod: PodView = POD) -> list[str]:
    outcome = offered(states, count, pod)
    assert isinstance(outcome, Granted), str(outcome)
    return [grant.uuid for grant in outcome.grants]


@pytest.mark.parametrize(
    ("cards", "count", "expected"),
    [
        ("AAABBC", 2, {"A": 2}),
        ("AAABBC", 3, {"A": 3}),
        ("AAABBC", 5, {"A": 3, "B": 2}),
        ("AABB", 2, {"B": 2}),
        ("AABB", 3, {"B": 2, "A": 1}),
    ],
)
def test_dies_come_from_the_card_with_the_most_free_ones(cards: str, count: int, expected: dict[str, int]) -> None:
    assert Counter(uuid[0] for uuid in chosen(dies(cards), count)) == expected


def test_one_die_is_the_first_in_device_order() -> None:
    assert chosen(dies("AAAB"), 1) == ["B3"]


def test_the_quality_never_depends_on_the_order() -> None:
    states = dies("AAABBBCCD-")

    for seed in range(50):
        shuffled = Random(seed).sample(states, len(states))  # no secret
        assert sorted(Counter(uuid[0] for uuid in chosen(shuffled, 5)).values()) == [2, 3]


def test_dies_of_unknown_cards_are_taken_last_and_never_forgotten() -> None:
    assert chosen(dies("A---"), 2) == ["A0", "-3"]


def test_whole_cards_are_taken_as_they_come() -> None:
    cards = [
        idle_state(replace(state.info, custom={"DeviceStrategy": "card", "AIC": state.info.id[0]}))
        for state in dies("AAAB")
    ]

    assert chosen(cards, 2) == ["B3", "A2"]


def test_under_mutex_a_card_with_a_busy_die_has_none_free() -> None:
    busy, *others = dies("AABB")
    states = [replace(busy, slots=1), *others]

    assert chosen(states, 2, ALONE) == ["B3", "B2"]
    assert str(offered(states, 3, ALONE)) == (
        "1/4 CardTimeSlicingExhausted, 1/4 ExclusiveDeviceAllocateConflict, 2/4 AllocatedCardsInsufficientRequest"
    )
    assert chosen(states, 3) == ["B3", "B2", "A1"]


def worth(*pieces: str, strategy: str = "die") -> object:
    grants = [
        tuple(
            Grant(uuid=f"{card}{n}", device_type="Vastai", notes={"DeviceStrategy": strategy, "AIC": card})
            for n, card in enumerate(piece)
        )
        for piece in pieces
    ]
    return policy().score(Decision(node=NodeView(name="n"), pod=POD, pieces=grants, before=()))


def test_a_node_is_worth_the_largest_part_on_one_card_for_each_container() -> None:
    assert worth("AAAA") == 1.0
    assert worth("AAAB") == 0.75
    assert worth("AA", "", "AB") == 1.5
    assert worth("AA", strategy="card") == 0.0


def test_keys_have_the_agents_name_on_nodes_and_the_word_on_pods() -> None:
    assert VASTAI.rules.annotations.register == "hami.io/node-va-register"
    assert VASTAI.rules.annotations.allocated == "hami.io/Vastai-devices-allocated"


def compared(cards: str, count: int, theirs: str) -> Outcome:
    """Our answer beside one that HAMi might give."""
    devices = [values.usage(state) | {"health": True, "count": 1, "totalcore": 100} for state in dies(cards)]
    by_uuid = {state.uuid: {"uuid": state.uuid, "custominfo": state.info.custom} for state in dies(cards)}
    request = {"nums": count, "type": "Vastai", "memreq": 0, "mempercentagereq": 100, "coresreq": 0}
    question = {"fn": "fit", "vendor": "Vastai", "devices": devices, "request": request, "pod": {}}
    answer = {"ok": True, "reason": "", "devices": {"Vastai": [by_uuid[uuid] for uuid in theirs.split()]}}
    case = Case(id="one", question=question, answers=(answer,))
    return asked([case], Catalog(), ("D-191", "D-192"))


def test_another_card_with_as_many_free_dies_is_an_equal_answer_and_a_split_is_not() -> None:
    assert compared("AABB", 2, "A1 A0").explained == {"D-192": 1}
    assert compared("AABB", 2, "A1 B2").unexplained
    assert compared("AAB", 2, "B2 A1").unexplained


def test_fewer_dies_than_asked_for_is_hamis_fault_only_where_a_card_is_unknown() -> None:
    assert compared("A---", 2, "A0").explained == {"D-191": 1}
    assert compared("AAA", 2, "A2").unexplained
