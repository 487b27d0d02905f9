"""Costs add up: what pods and idle cards came to is what the cards came to, whatever lives pods have."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from hami_plugin.model.device import Snapshot
from hami_plugin.node_status import cost
from hami_plugin.node_status.cost import CardShares, CostAccount, CostMeter, Holdings, Payer, card_shares
from hami_plugin.node_status.occupancy import device_occupancy
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.process.concurrency import Watched, cancel
from tests.support.builders import CARD_MIB, FAMILY, device, grant, held_by, ids, pod, uuid
from tests.support.scale import sized

CARD = ("toy", uuid(0))


def payer(name: str = "one", **changes: object) -> Payer:
    fields = {"vendor": "toy", "model": "Toy", "namespace": "default", "pod": name, "labels": ()}
    return Payer(**{**fields, **changes})  # type: ignore[arg-type]  # the fields are those of a payer


def held(*given, devices=None):
    devices = devices or (device(0),)
    source = FamilySource(vendor="toy", family=FAMILY, snapshot=Watched(Snapshot(devices=devices, ready=True)))
    return card_shares(device_occupancy([source], given), lambda _uid: ())


class Node:
    """Cards whose counters run, pods that come and go, and what each pod should have come to."""

    def __init__(self, chance: random.Random, cards: int = 4) -> None:
        self.chance = chance
        self.now = 1000.0
        self.cards = [("toy", uuid(number)) for number in range(cards)]
        self.counters = {uuid: chance.uniform(0, 1e6) for _vendor, uuid in self.cards}
        self.first = dict(self.counters)
        self.watts = dict.fromkeys(self.counters, 100.0)
        self.pods: dict[Payer, dict[tuple[str, str], float]] = {}
        self.had: dict[Payer, float] = {}
        self.account = CostAccount(("team",))
        self.births = 0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name, watts in self.watts.items():
            self.counters[name] += watts * seconds
        for owner, shares in self.pods.items():
            self.had[owner] = self.had.get(owner, 0.0) + seconds * sum(shares.values())

    def free(self, card: tuple[str, str]) -> float:
        return 1.0 - sum(shares.get(card, 0.0) for shares in self.pods.values())

    def step(self) -> None:
        match self.chance.choice(("born", "born", "ended", "power", "read", "time")):
            case "born":
                self.births += 1
                some = self.chance.sample(self.cards, self.chance.choice((1, 1, 2)))
                space = f"ns{self.chance.randrange(3)}"
                one = payer(f"p{self.births}", namespace=space, labels=(self.chance.choice(("", "a", "b")),))
                self.pods[one] = {card: self.free(card) * self.chance.uniform(0.1, 1.0) for card in some}
            case "ended" if self.pods:
                del self.pods[self.chance.choice(list(self.pods))]
            case "power":
                self.watts[self.chance.choice(list(self.watts))] = self.chance.uniform(50, 700)
            case "read":
                self.account.metered("toy", self.counters, self.now)
        self.hold()
        self.pass_time(self.chance.choice((0.0, 0.01, 1.0, 30.0, 400.0)))

    def hold(self) -> None:
        cards = {
            card: CardShares(model="Toy", shares={p: held[card] for p, held in self.pods.items() if held.get(card)})
            for card in self.cards
        }
        self.account.hold(cards, self.now)


@pytest.mark.parametrize("seed", range(sized(5, 50)))
def test_the_sums_of_pods_namespaces_and_labels_with_idle_are_the_cards_within_a_percent(seed: int) -> None:
    node = Node(random.Random(seed))
    node.hold()
    node.account.metered("toy", node.counters, node.now)
    begun = node.now
    for _ in range(300):
        node.step()
    node.account.metered("toy", node.counters, node.now)

    account = node.account
    energy = sum(node.counters.values()) - sum(node.first.values())
    time = (node.now - begun) * len(node.cards)
    assert sum(card.whole.joules for card in account.cards.values()) == pytest.approx(energy, rel=1e-6)
    assert sum(card.whole.seconds for card in account.cards.values()) == pytest.approx(time, rel=1e-6)
    idle_j = sum(card.idle.joules for card in account.cards.values())
    idle_s = sum(card.idle.seconds for card in account.cards.values())
    for sums in (account.namespaces, account.by_label):
        assert idle_j + sum(one.joules for one in sums.values()) == pytest.approx(energy, rel=0.01)
        assert idle_s + sum(one.seconds for one in sums.values()) == pytest.approx(time, rel=0.01)
    for owner, amount in account.pods.items():
        assert amount.seconds == pytest.approx(node.had.get(owner, 0.0), abs=1e-6)
    assert node.births > 20


def test_a_pod_pays_for_its_share_of_what_was_drawn_while_it_had_it_and_no_one_else_does() -> None:
    account = CostAccount()
    account.hold({CARD: CardShares(model="Toy", shares={payer(): 0.25})}, 0.0)
    account.metered("toy", {uuid(0): 5000.0}, 0.0)
    account.hold({CARD: CardShares(model="Toy", shares={payer("two"): 0.5})}, 10.0)
    account.metered("toy", {uuid(0): 7000.0}, 10.0)
    account.metered("toy", {uuid(0): 7400.0}, 20.0)

    assert (account.pods[payer()].seconds, account.pods[payer()].joules) == (2.5, 500.0)
    assert (account.pods[payer("two")].seconds, account.pods[payer("two")].joules) == (5.0, 200.0)
    card = account.cards[CARD]
    assert (card.whole.joules, card.idle.joules, card.idle.seconds) == (2400.0, 1700.0, 12.5)


def test_a_counter_that_begins_anew_counts_on_and_one_that_leaps_is_not_believed() -> None:
    account = CostAccount()
    account.hold({CARD: CardShares(model="Toy", shares={})}, 0.0)
    for now, reading in ((0.0, 900.0), (10.0, 1000.0), (20.0, 50.0), (30.0, 1e12), (40.0, 1e12 + 7)):
        account.metered("toy", {uuid(0): reading}, now)

    assert account.cards[CARD].whole.joules == 100.0 + 50.0 + 7.0


def test_more_shares_than_a_card_has_are_a_part_of_it_each_and_nothing_is_idle() -> None:
    account = CostAccount()
    account.hold({CARD: CardShares(model="Toy", shares={payer(): 1.0, payer("two"): 1.0})}, 0.0)
    account.advance(10.0)

    assert account.pods[payer()].seconds == account.pods[payer("two")].seconds == 5.0
    assert account.cards[CARD].idle.seconds == 0.0


def test_ended_pods_are_shown_for_a_while_and_then_forgotten_but_not_their_namespace() -> None:
    account, now = CostAccount(), 0.0
    for number in range(3 * cost.MAX_ENDED):
        account.hold({CARD: CardShares(model="Toy", shares={payer(f"p{number}"): 1.0})}, now)
        now += 0.25
    account.hold({CARD: CardShares(model="Toy", shares={})}, now)
    assert len(account.pods) == cost.MAX_ENDED
    assert payer(f"p{number}") in account.pods

    account.hold({CARD: CardShares(model="Toy", shares={})}, now + cost.KEPT_S)

    assert not account.pods
    assert account.namespaces["toy", "Toy", "default"].seconds == pytest.approx(now)


def test_a_thousand_namespaces_are_counted_and_the_further_ones_together() -> None:
    account = CostAccount(("team",))
    for number in range(3 * cost.MAX_NAMES):
        one = payer("p", namespace=f"ns{number}", labels=(f"team{number}",))
        account.hold({CARD: CardShares(model="Toy", shares={one: 1.0})}, float(number))
    account.advance(float(number + 1))

    for sums in (account.namespaces, account.by_label):
        assert len(sums) == cost.MAX_NAMES + 1
        assert sum(one.seconds for one in sums.values()) == pytest.approx(number + 1)


@pytest.mark.parametrize("told", [False, True])
def test_pods_that_come_and_go_while_no_energy_is_told_take_no_more_room(told: bool, monkeypatch) -> None:
    monkeypatch.setattr(cost, "MAX_UNPAID", 16)
    account = CostAccount(("team",))
    account.hold({CARD: CardShares(model="Toy")}, 0.0)
    if told:
        account.metered("toy", {CARD[1]: 0.0}, 0.0)
    for number in range(100):
        one = payer(f"p{number}", namespace=f"n{number}", labels=("red",))
        account.hold({CARD: CardShares(model="Toy", shares={one: 1.0})}, float(number))
    account.hold({CARD: CardShares(model="Toy")}, 100.0)
    assert len(account.cards[CARD].unpaid) == (17 if told else 0)

    account.metered("toy", {CARD[1]: 1000.0}, 100.0)
    drawn = 1000.0 if told else 0.0
    assert account.cards[CARD].whole.joules == pytest.approx(drawn)
    assert account.cards[CARD].idle.joules == 0.0
    assert sum(amount.joules for amount in account.namespaces.values()) == pytest.approx(drawn)
    assert sum(amount.joules for amount in account.by_label.values()) == pytest.approx(drawn)


def test_a_share_is_the_greater_of_memory_and_cores() -> None:
    memory = held_by(pod("one"), replicas=ids((0, 0)), grants=[grant(0, CARD_MIB // 2, 10)])
    cores = held_by(pod("two"), replicas=ids((0, 1)), grants=[grant(0, CARD_MIB // 10, 40)])

    card = held(memory, cores)[CARD]

    assert {one.pod: share for one, share in card.shares.items()} == {"one": 0.5, "two": 0.4}


def test_a_partition_is_a_part_of_its_card_and_what_is_not_cut_is_idle() -> None:
    parts = tuple(
        device(number, uuid=uuid(number + 5), place=f"{uuid(0)}/{number}", part=number, cores=25) for number in range(2)
    )
    whole = grant(0, CARD_MIB, 100)
    one = held_by(pod("one"), replicas=[uuid(5)], grants=[replace(whole, uuid=uuid(5))])

    cards = held(one, devices=parts)

    assert list(cards) == [CARD]
    assert list(cards[CARD].shares.values()) == [0.25]


def test_labels_are_those_that_the_pod_had_when_it_was_seen_first() -> None:
    now, version = 0.0, 0
    owner = pod("one", labels={"team": "red"})
    pods = {owner.uid: owner}
    source = FamilySource(vendor="toy", family=FAMILY, snapshot=Watched(Snapshot(devices=(device(0),), ready=True)))
    share = held_by(owner, replicas=ids((0, 0)), grants=[grant(0, CARD_MIB, 100)])
    meter = CostMeter(
        Holdings(
            occupied=lambda: device_occupancy([source], [share]),
            version=lambda: version,
            changes=tuple,
            pod=pods.get,
        ),
        ["team"],
        clock=lambda: now,
    )
    meter.look()
    pods[owner.uid] = replace(owner, labels={"team": "blue"})
    now, version = 10.0, 1
    meter.look()
    now = 20.0
    meter.look()

    assert {names[-1]: one.seconds for names, one in meter.account.by_label.items()} == {"red": 20.0}


def test_an_account_goes_on_from_the_one_before_a_change_of_the_configuration() -> None:
    former, heir = CostAccount(("team",)), CostAccount(("owner",))
    former.hold({CARD: CardShares(model="Toy", shares={payer(labels=("a",)): 1.0})}, 0.0)
    former.metered("toy", {uuid(0): 0.0}, 0.0)

    heir.inherit(former)
    heir.metered("toy", {uuid(0): 100.0}, 10.0)

    assert heir.cards[CARD].whole.joules == heir.pods[payer(labels=("a",))].joules == 100.0


async def test_a_change_of_what_is_held_is_counted_when_it_comes(monkeypatch):
    monkeypatch.setattr(cost, "EVERY_S", 0.0)
    monkeypatch.setattr(cost, "RESYNC_S", 3600.0)
    ledger: Watched[int] = Watched(0)
    seen: asyncio.Queue[int] = asyncio.Queue()

    def occupied():
        seen.put_nowait(ledger.version)
        return ()

    holdings = Holdings(occupied=occupied, version=lambda: ledger.version, changes=lambda: (ledger,), pod={}.get)
    meter = asyncio.create_task(CostMeter(holdings, ()).run())
    async with asyncio.timeout(10):
        assert await seen.get() == 0
        for version in (1, 2):
            ledger.touch()
            assert await seen.get() == version
    await cancel(meter)
