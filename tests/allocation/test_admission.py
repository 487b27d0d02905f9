"""Pods of every shape, admitted by a kubelet: does each container get exactly its own limits, or none?

The law behind all of this: what a container may start with is what the scheduler granted to that very container.
"""

import asyncio
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_plugin.errors import RefusedError
from hami_plugin.model.views import PodView
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_SUCCESS
from tests.support.builders import ALLOCATED, COUNT, SPLIT, TO_ALLOCATE, container, grant, pod, received
from tests.support.kubelet import Kubelet
from tests.support.node import Node
from tests.support.scale import examples

CARDS = 4
kinds = st.sampled_from(["init", "sidecar", "app", "plain app", "plain init"])


@dataclass
class Turn:
    """One pod's admission, and what goes wrong around it."""

    pod: PodView
    lagging: bool = False
    down: bool = False
    late: bool = False


@st.composite
def plans(draw):
    """Pods as a scheduler places them: distinct cards for a container, no more than a card has shares."""
    free = Counter(dict.fromkeys(range(CARDS), SPLIT))
    turns, serial = [], 1
    for number in range(draw(st.integers(1, 4))):
        chosen = sorted(draw(st.lists(kinds, min_size=1, max_size=4)), key=lambda kind: kind.endswith("app"))
        containers, pieces = [], []
        for place, kind in enumerate(chosen):
            wanted = 0 if "plain" in kind else draw(st.integers(1, 2))
            cards = draw(st.permutations([card for card in range(CARDS) if free[card]]))[:wanted]
            free -= Counter(cards)
            # Every grant is unique, so that no two can be taken for each other.
            pieces.append([grant(card, 1000 + serial + i) for i, card in enumerate(cards)])
            serial += len(cards)
            containers.append(container(f"c{place}", len(cards), init="init" in kind, sidecar=kind == "sidecar"))
        if draw(st.booleans()):  # schedulers pad differently
            pieces = [piece for piece in pieces if piece]
        flags = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
        turns.append(Turn(pod(f"p{number}", containers, pieces), *flags))
    return turns


def own(owner: PodView) -> dict[str, dict[str, str]]:
    """The limits of each container by device, as the scheduler wrote them."""
    pieces = [piece for piece in owner.annotations[ALLOCATED].split(";") if "," in piece]
    asking = [item for item in owner.containers if item.amount(COUNT)]
    answer = {}
    for item, piece in zip(asking, pieces, strict=True):
        fields = [part.split(",") for part in piece.split(":") if part]
        answer[item.name] = {card: f"{memory}m,{cores}" for card, _word, memory, cores in fields}
    return answer


def with_node(play) -> None:
    async def run():
        with tempfile.TemporaryDirectory() as root:
            node = Node(root=Path(root), devices=CARDS, wait=0.0)
            try:
                await play(node)
            finally:
                await node.settlement.close()
                node.journal.close()

    asyncio.run(run())


calm = settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@calm
@given(plans(), st.integers(0, 99))
def test_pods_that_come_one_by_one_each_get_exactly_their_own(turns, seed):
    async def play(node):
        kubelet = node.kubelet(choose=random.Random(seed))
        for turn in turns:
            node.cluster.add(turn.pod)

            edits = await kubelet.admit(turn.pod)
            await kubelet.start(turn.pod)
            await node.settled()

            expected = own(turn.pod)
            assert {name: received(e) for name, e in edits.items()} == {
                name: (turn.pod.uid, name, limits) for name, limits in expected.items()
            }
            told = node.cluster.pod(turn.pod).annotations
            assert told[ALLOCATED] == turn.pod.annotations[ALLOCATED]
            assert "," not in told[TO_ALLOCATE]
            assert (told[BIND_PHASE] == PHASE_SUCCESS) == bool(expected)

    with_node(play)


@calm
@given(plans(), st.integers(0, 99), st.booleans(), st.booleans())
@pytest.mark.scenario("A8", "A10")
def test_whatever_the_kubelet_chooses_and_however_late_news_are_nobody_starts_with_anothers_limits(
    turns, seed, obedient, restarted
):
    """Pods wait side by side; news of some are late, the API server is away at times, and every start is tried twice.

    The kubelet's account leaves plain init containers out. Theirs is proven only as long as the kubelet takes the ids
    that it is advised to take, for pods in their order of arrival: two of them that are swapped look like two that are
    not.
    """
    orderly = obedient and not any(turn.late or turn.lagging for turn in turns)

    async def play(node):
        kubelet = node.kubelet(choose=random.Random(seed), obedient=obedient)
        for turn in turns:
            if not turn.late:
                node.cluster.add(turn.pod)
        admitted = await admit_all(node, kubelet, turns)
        node.cluster.catch_up()
        if restarted:
            node = await node.restart()
            kubelet.plugin = node.allocator

        for _ in range(2):
            for owner, edits in admitted:
                for name in edits:
                    if await starts(kubelet, owner, name) and (orderly or provable(owner, name)):
                        assert received(edits[name]) == (owner.uid, name, own(owner)[name])
        await node.settlement.close()
        node.journal.close()

    with_node(play)


async def admit_all(node, kubelet, turns):
    admitted = []
    for turn in turns:
        node.cluster.lagging, node.cluster.down = turn.lagging, turn.down
        if turn.late:
            node.cluster.add(turn.pod)
        try:
            admitted.append((turn.pod, await kubelet.admit(turn.pod)))
        except RefusedError:
            node.cluster.change(turn.pod, phase="Failed")
        if not turn.down:
            await node.settled()
        if not turn.lagging:
            node.cluster.catch_up()
    node.cluster.down = False
    return admitted


def provable(owner: PodView, name: str) -> bool:
    item = owner.container(name)
    return not item.init or item.restartable


async def starts(kubelet: Kubelet, owner: PodView, name: str) -> bool:
    try:
        await kubelet.plugin.pre_start(kubelet.given[owner.uid, name])
    except RefusedError:
        return False
    return True


@calm
@given(plans(), st.integers(0, 99), st.integers(0, 12))
@pytest.mark.scenario("A5")
def test_a_daemon_killed_at_any_moment_ends_with_every_container_served_or_refused(turns, seed, kill):
    """The daemon is killed before a call, or between the journal and the reply, and the kubelet carries on."""

    async def play(node):
        kubelet = node.kubelet(choose=random.Random(seed))
        kubelet.plugin = Mortal(node, kill)
        for turn in turns:
            node.cluster.add(turn.pod)
            try:
                edits = await kubelet.admit(turn.pod)
            except (RefusedError, ConnectionError):
                kubelet.forget(turn.pod)
                node.cluster.change(turn.pod, phase="Failed")
                continue
            assert {name: received(e) for name, e in edits.items()} == {
                name: (turn.pod.uid, name, limits) for name, limits in own(turn.pod).items()
            }
            await kubelet.start(turn.pod)
        assert kubelet.plugin.refused <= 1
        await kubelet.plugin.node.settlement.close()
        kubelet.plugin.node.journal.close()

    with_node(play)


class Mortal:
    """A plugin whose daemon dies at the n-th step: before an Allocate (even), or after its journal (odd)."""

    def __init__(self, node, kill):
        self.node, self.left, self.refused = node, kill, 0

    @property
    def offers(self):
        return self.node.allocator.offers

    async def prefer(self, *question):
        return await self.node.allocator.prefer(*question)

    async def pre_start(self, replicas):
        await self.node.allocator.pre_start(replicas)

    async def allocate(self, replicas):
        await self._step()
        answer = await self.node.allocator.allocate(replicas)
        await self._step()
        return answer

    async def _step(self):
        self.left -= 1
        if self.left == -1:
            self.node = await self.node.restart()
            self.refused += 1
            raise ConnectionError


def crowd_pod(name: str, dice: random.Random) -> tuple[PodView, list[list[int]]]:
    """A pod, and the cards that each of its containers was decided."""
    chosen = dice.choices(["init", "init", "sidecar", "app", "app", "app"], k=dice.randint(1, 5))
    asks, cards = [], []
    for place, kind in enumerate(sorted(chosen, key=lambda kind: kind == "app")):
        cards.append(dice.sample(range(CARDS), k=dice.choice((1, 1, 2, 3))))
        asks.append(container(f"c{place}", len(cards[-1]), init=kind == "init", sidecar=kind == "sidecar"))
    return pod(name, asks, [[grant(card) for card in piece] for piece in cards]), cards


def taken(owner: PodView, cards: list[list[int]], *, over: bool = False) -> Counter[int]:
    """The most that it has of each card at a time; ``over``: its init containers are."""
    running, most = Counter(), Counter()
    for item, piece in zip(owner.containers, cards, strict=True):
        if item.alone:
            most |= running + Counter(piece)
        else:
            running += Counter(piece)
    return running if over else running | most


def most_ids(owner: PodView, cards: list[list[int]]) -> int:
    """How many ids the kubelet keeps for it until it is gone."""
    return taken(owner, [[0] * len(piece) for piece in cards])[0]


@settings(calm, max_examples=30)
@given(st.integers(0, 2**32))
@pytest.mark.scenario("A10")
def test_whatever_init_containers_leave_each_pod_for_which_there_is_room_is_served(seed):
    async def play(node):
        dice, living = random.Random(seed), {}
        kubelet = node.kubelet(choose=dice)
        for number in range(15):
            one, cards = crowd_pod(f"p{number}", dice)
            beside = sum((taken(*other, over=over) for *other, over in living.values()), Counter())
            if max((beside + taken(one, cards)).values()) > SPLIT:
                continue  # no scheduler decides so
            if len(kubelet.used) + most_ids(one, cards) > CARDS * SPLIT:
                continue  # nor so
            node.cluster.add(one)

            edits = await kubelet.admit(one)
            await kubelet.start(one)
            await node.settled()

            assert {name: received(edit) for name, edit in edits.items()} == {
                name: (one.uid, name, limits) for name, limits in own(one).items()
            }
            living[one.name] = (one, cards, dice.random() < 0.5)
            if living[one.name][2]:
                node.cluster.change(one, phase="Running")
            if dice.random() < 0.3:
                gone, *_ = living.pop(dice.choice(sorted(living)))
                kubelet.forget(gone)
                node.cluster.remove(gone)
                node._gone(gone)

    with_node(play)
