"""Killed at every moment, and started again: no partition is lost, has two owners, or goes under a living pod."""

import tempfile
from itertools import product
from pathlib import Path

import pytest

from hami_plugin.partitions.life import State
from tests.support.partition_agent import Agent, reservation
from tests.support.partitions import A100, Cards, Killed
from tests.support.scale import spread


def life(agent):
    """A pod with two partitions comes, a second pod comes, the first one ends, and a third takes one of its over."""
    first, second = (agent.live(reservation("a", card, device=at)) for at, card in enumerate(("GPU-0", "GPU-1")))
    agent.allocate(first)
    agent.allocate(second)
    agent.allocate(agent.live(reservation("b", start=4, name="2g.10gb")))
    agent.end("a")
    agent.allocate(agent.live(reservation("c")))
    agent.settle()


def moments():
    """How many there are in such a life."""
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(cards=Cards(tables={"GPU-0": A100, "GPU-1": A100}), path=Path(folder) / "j")
        life(agent)
        agent.at_rest()
        return len(agent.moments)


CASES = product(("live on", "end", "are unknown"), range(1, moments() + 1))


@pytest.mark.parametrize(("pods", "moment"), spread(CASES, lambda case: case[0], part=6))
def test_a_kill_at_any_moment_leaves_nothing_that_the_next_life_cannot_explain(agent, cards, moment, pods):
    agent.kill_at = moment
    with pytest.raises(Killed):
        life(agent)
    alive = set(agent.living)

    agent.restart()
    if pods == "are unknown":
        there = cards.all()
        agent.living = None
        agent.settle()
        assert {one.placement for one in cards.all()} == {one.placement for one in there}
        agent.living = alive
    if pods == "end":
        for pod in alive:
            agent.end(pod)
    agent.settle()

    agent.at_rest()
    if pods == "end":
        assert cards.all() == ()
    for one in list(agent.reserved):  # the kubelet asks again
        again = agent.allocate(one)
        assert agent.allocate(one) == again
    agent.check()


def test_1_before_the_intent_nothing_is_left(agent, cards):
    killed(agent, "before intent-create", reservation("a"))

    assert (agent.states(), cards.all()) == ([], ())


def test_2_an_intent_without_an_act_is_dropped(agent, cards):
    killed(agent, "after intent-create", reservation("a"))

    assert (agent.states(), cards.all()) == ([], ())


@pytest.mark.parametrize("lives", [True, False])
def test_3_and_16_half_a_partition_is_found_and_destroyed(agent, cards, lives):
    killed(agent, "create compute", reservation("a"), lives=lives)

    assert (agent.states(), cards.all()) == ([], ())


@pytest.mark.parametrize(("lives", "left"), [(True, [State.READY]), (False, [])])
def test_4_and_15_one_that_was_made_and_not_written_down_is_its_owners_if_it_lives(agent, lives, left):
    killed(agent, "before ready", reservation("a"), lives=lives)

    assert agent.states() == left


@pytest.mark.parametrize(("lives", "left"), [(True, [State.READY]), (False, [])])
def test_5_one_that_is_ready_waits_for_its_owner_or_goes(agent, lives, left):
    killed(agent, "after ready", reservation("a"), lives=lives)

    assert agent.states() == left


def test_6_and_7_an_allocate_that_is_repeated_gets_the_same_answer(agent, cards):
    killed(agent, "before assigned", reservation("a"))
    (there,) = cards.all()

    assert agent.allocate(agent.reserved[0]) == there
    assert agent.states() == [State.ASSIGNED]


def test_8_one_that_was_answered_is_adopted(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    agent.restart()
    agent.settle()

    assert agent.of("a").state is State.ASSIGNED
    assert cards.all() == (made,)


def test_9_a_destruction_that_was_intended_goes_on(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    killed_while(agent, "after intent-destroy", agent.settle)

    assert (agent.states(), cards.all()) == ([], ())


def test_10_what_is_left_without_its_compute_instance_is_destroyed(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    agent.kill_at = ("destroy", 1)
    with pytest.raises(Killed):
        agent.settle()
    assert [one.uuid for one in cards.all()] == [""]
    agent.restart()
    agent.settle()

    assert (agent.states(), cards.all()) == ([], ())


def test_11_one_that_is_gone_and_not_written_off_is_written_off(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    killed_while(agent, "before destroyed", agent.settle)

    assert (agent.states(), cards.all()) == ([], ())


def test_12_a_card_that_is_away_for_a_while_comes_back_with_what_it_had(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    away, cards.instances["GPU-0"] = cards.instances["GPU-0"], []
    agent.restart()
    agent.settle()
    assert agent.of("a").state is State.LOST
    cards.instances["GPU-0"] = away
    agent.settle()

    assert (agent.of("a").state, agent.of("a").partition) == (State.ASSIGNED, made)


def test_13_of_two_that_may_be_ours_both_are_left_alone(agent, cards):
    """A vendor whose tool does not say what it made, on a card without places."""
    agent.kill_at = ("after intent-create", 1)
    with pytest.raises(Killed):
        agent.allocate(agent.live(reservation("a")))
    (entry,) = agent.journal.entries.values()
    cards.instances["GPU-0"] = [
        {"profile": "1g.5gb", "start": 6, "size": 1, "gi": number, "ci": 0, "uuid": f"DRS-{number}"}
        for number in (1, 2)
    ]
    agent.foreign = {"DRS-1", "DRS-2"}
    agent.living = set()
    agent.reserved = []
    agent.restart()
    agent.settle()

    assert agent.states() == [State.FOREIGN, State.FOREIGN]
    assert entry.number not in agent.journal.entries


def test_14_what_nobody_knows_is_destroyed_after_ten_minutes_where_all_is_ours(agent, cards):
    agent.all_ours = True
    cards.cut("GPU-0", "1g.5gb", 3)
    agent.settle()
    assert agent.states() == [State.LEAKED]
    agent.now += 599
    agent.settle()
    assert agent.states() == [State.LEAKED]
    agent.now += 1
    agent.settle()

    assert (agent.states(), cards.all()) == ([], ())


def test_17_after_another_boot_nothing_of_the_journal_is_true(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.allocate(agent.live(reservation("b", start=5)))
    agent.end("b")
    cards.instances["GPU-0"] = []
    calls = len(cards.calls)
    agent.restart(boot="boot-2")
    agent.settle()

    assert {call for call, _card in cards.calls[calls:]} == {"partitions"}
    assert agent.states() == [State.LOST]
    assert "gone" in agent.refused(agent.reserved[0])
    agent.end("a")
    agent.settle()
    assert agent.states() == []


def test_17_what_another_tool_made_after_the_boot_is_its(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    cards.instances["GPU-0"] = []
    agent.foreign = {cards.cut("GPU-0", "1g.5gb", 6).uuid}
    agent.restart(boot="boot-2")
    agent.end("a")
    agent.settle()

    assert agent.states() == [State.FOREIGN]


def test_18_after_a_reset_the_owner_has_lost_it_and_the_card_is_free(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    cards.reset("GPU-0")
    agent.settle()
    assert [change.event_reason for change in agent.cutter.pop_changes()] == ["PartitionLost"]
    assert agent.of("a").state is State.LOST

    agent.end("a")
    agent.settle()
    agent.allocate(agent.live(reservation("c")))
    assert agent.states() == [State.ASSIGNED]


def killed(agent, moment, one, *, lives=True):
    agent.live(one)
    agent.kill_at = (moment, 1)
    with pytest.raises(Killed):
        agent.allocate(one)
    agent.restart()
    if not lives:
        agent.end(one.owner.uid)
    agent.settle()
    agent.at_rest()


def killed_while(agent, moment, act):
    agent.kill_at = (moment, 1)
    with pytest.raises(Killed):
        act()
    agent.restart()
    agent.settle()
    agent.at_rest()
