"""One card at a time: what an Allocate gets, what is undone, and what is in whose way."""

from dataclasses import replace

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.partitions.life import State
from hami_plugin.partitions.manager import Cutter
from hami_plugin.partitions.reconciliation import Known
from hami_plugin.sdk import NOWHERE, NoRoomError
from tests.support.partition_agent import Agent, reservation
from tests.support.partitions import SIXTHS, Cards, FakePartitionDriver


def test_the_same_question_gets_the_same_partition(agent, cards):
    one = agent.live(reservation("a"))

    assert agent.allocate(one) == agent.allocate(one)
    assert len(cards.all()) == 1


def test_a_partition_that_is_not_there_any_more_is_not_handed_out_again(agent, cards):
    one = agent.live(reservation("a"))
    agent.allocate(one)
    cards.reset("GPU-0")

    assert "gone" in agent.refused(one)
    assert [change.event_reason for change in agent.cutter.pop_changes()] == ["PartitionLost"]


@pytest.mark.parametrize("call", ["create", "create compute"])
def test_a_creation_that_fails_leaves_nothing(agent, cards, call):
    cards.order(call, NoRoomError("insufficient resources"))

    assert "insufficient" in agent.refused(agent.live(reservation("a")))
    assert (agent.states(), cards.all()) == ([], ())
    agent.allocate(agent.reserved[0])


def test_what_a_creation_could_not_undo_is_cleaned_later(agent, cards):
    cards.order("create compute", HamiError("it fails"))
    cards.order("destroy", HamiError("this too"))

    agent.refused(agent.live(reservation("a")))
    assert (agent.states(), len(cards.all())) == ([State.FAILED], 1)
    agent.settle()
    assert (agent.states(), cards.all()) == ([], ())


def test_what_a_creation_has_left_while_nobody_can_look_is_judged_later(agent, cards):
    cards.order("partitions")
    cards.order("create compute", HamiError("it fails"))
    cards.order("destroy", HamiError("this too"))
    cards.order("partitions", HamiError("nobody answers"))

    agent.refused(agent.live(reservation("a")))
    assert agent.states() == [State.CREATING]
    agent.settle()
    assert (agent.states(), cards.all()) == ([], ())


def test_what_drains_in_the_way_is_destroyed_once_before(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    agent.cutter.release(agent.of("a").number, "its pod has ended")

    made = agent.allocate(agent.live(reservation("b", name="1g.10gb")))
    assert cards.all() == (made,)


def test_what_a_pod_has_left_in_the_way_is_destroyed_though_nobody_has_noticed_its_end_yet(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.end("a")

    made = agent.allocate(agent.live(reservation("b", name="1g.10gb")))
    assert cards.all() == (made,)


def test_what_a_pod_has_left_is_the_next_ones_if_it_is_just_what_it_wants(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    calls = len(cards.calls)

    assert agent.allocate(agent.live(reservation("b"))) == made
    assert {call for call, _card in cards.calls[calls:]} <= {"partitions", "users"}
    agent.settle()
    assert (agent.of("b").state, cards.all()) == (State.ASSIGNED, (made,))
    agent.restart()
    agent.end("b")
    agent.settle()
    assert (agent.states(), cards.all()) == ([], ())


def test_what_could_not_be_destroyed_once_is_nobody_elses_though_nobody_is_known_to_use_it_now(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    cards.uses(made.uuid, 4711)
    agent.end("a")
    agent.settle()
    cards.uses(made.uuid)

    again = agent.allocate(agent.live(reservation("b")))
    assert again.uuid != made.uuid
    assert cards.all() == (again,)


def test_half_of_one_that_was_left_is_destroyed_and_made_anew(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    agent.cutter.release(agent.of("a").number, "its pod has ended")
    for one in cards.instances["GPU-0"]:
        del one["uuid"], one["ci"]

    again = agent.allocate(agent.live(reservation("b")))
    assert again.uuid not in ("", made.uuid)
    assert cards.all() == (again,)


def test_what_is_used_in_the_way_is_the_reason_of_the_refusal(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    cards.uses(made.uuid, 4711)
    agent.end("a")
    agent.settle()

    assert "in use" in agent.refused(agent.live(reservation("b")))
    assert cards.all() == (made,)
    agent.allocate(agent.live(reservation("c", start=5)))
    agent.allocate(agent.live(reservation("d", "GPU-1")))


def test_nothing_is_destroyed_for_an_allocate_while_nobody_knows_who_lives(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    agent.cutter.release(agent.of("a").number, "its pod has ended")
    agent.living = None

    assert "nothing is destroyed now" in agent.refused(reservation("b"))
    assert cards.all() == (made,)


def test_what_others_have_made_is_in_the_way_and_stays(agent, cards):
    there = cards.cut("GPU-0", "3g.20gb", 4)
    agent.foreign = {there.uuid}

    assert "foreign" in agent.refused(agent.live(reservation("a")))
    agent.allocate(agent.live(reservation("b", start=3)))
    agent.settle()
    assert there in cards.all()


def test_a_container_that_was_decided_anew_lets_go_of_what_it_had(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.reserved = []
    made = agent.allocate(agent.live(reservation("a", start=2)))
    agent.settle()

    assert cards.all() == (made,)


def test_attempts_are_counted_and_their_reason_kept(agent, cards):
    made = agent.allocate(agent.live(reservation("a")))
    cards.uses(made.uuid, 4711)
    agent.end("a")
    agent.settle(rounds=3)

    entry = agent.of("a")
    assert (entry.state, entry.attempts, entry.reason) == (State.DRAINING, 3, "in use by another client")
    assert agent.cutter.users(entry.number) == [4711]
    cards.uses(made.uuid)
    agent.settle()
    assert (agent.states(), cards.all()) == ([], ())


def test_a_destruction_that_fails_for_another_reason_is_tried_again(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    cards.order("destroy", HamiError("unknown error"))
    agent.settle()

    assert (agent.states(), cards.all()) == ([], ())


def test_a_driver_that_makes_something_else_is_not_believed(agent, cards, monkeypatch):
    monkeypatch.setattr(cards, "complete", lambda _found: None)

    assert "says that it has made" in agent.refused(agent.live(reservation("a")))
    agent.settle()
    assert (agent.states(), cards.all()) == ([], ())


def test_a_listing_from_before_a_change_is_not_believed(agent, cards):
    version = agent.journal.changed("GPU-0")
    agent.allocate(agent.live(reservation("a")))
    known = Known(boot="boot-1", now=1.0, living=frozenset())

    assert not agent.cutter.resync("GPU-0", (), version, known)
    assert agent.of("a").state is State.ASSIGNED


def test_what_was_destroyed_by_half_is_known_by_what_is_left_of_it(agent, cards):
    agent.allocate(agent.live(reservation("a")))
    agent.end("a")
    number = agent.of("a").number
    agent.cutter.release(number, "its pod has ended")
    cards.order("destroy", HamiError("unknown error"))

    assert agent.cutter.destroy(number) == "unknown error"
    assert [one.uuid for one in cards.all()] == [""]
    assert agent.cutter.destroy(number) == ""
    assert (agent.states(), cards.all()) == ([], ())


@pytest.fixture
def sums(tmp_path):
    """An agent with a card of six sixths, whose partitions have no places."""
    return Agent(cards=Cards(tables={"GPU-0": SIXTHS}), path=tmp_path / "sums")


def sixths(pod, count):
    one = reservation(pod, name="1g.5gb")
    return replace(one, wanted=replace(one.wanted, profile=f"{count}g.{8 * count}gb", placement=NOWHERE))


def test_where_only_sums_count_what_has_ended_makes_room_for_the_next(sums):
    kept = sums.allocate(sums.live(sixths("kept", 2)))
    for pod in ("a", "b"):
        sums.allocate(sums.live(sixths(pod, 2)))
        sums.end(pod)

    made = sums.allocate(sums.live(sixths("c", 3)))
    assert sorted(sums.cards.all(), key=lambda one: one.profile) == [kept, made]


def test_where_only_sums_count_what_lives_or_is_others_stays_and_is_the_reason_of_the_refusal(sums):
    foreign = sums.cards.cut("GPU-0", "3g.24gb", 0)
    sums.foreign.add(foreign.uuid)
    kept = sums.allocate(sums.live(sixths("kept", 2)))

    assert "insufficient" in sums.refused(sums.live(sixths("a", 2)))
    assert sums.cards.all() == (foreign, kept)


def test_where_only_sums_count_nothing_is_destroyed_for_room_while_nobody_knows_who_lives(sums):
    sums.allocate(sums.live(sixths("a", 6)))
    sums.living = None

    assert "insufficient" in sums.refused(sixths("b", 1))
    assert len(sums.cards.all()) == 1


@pytest.mark.parametrize("lasting", [True, False])
def test_after_a_boot_an_allocate_finds_what_outlives_it(sums, lasting):
    one = sums.live(sixths("a", 2))
    made = sums.allocate(one)
    sums.restart(boot="boot-2")
    sums.cutter = Cutter(FakePartitionDriver(sums.cards), sums.journal, lasting=lasting)

    if lasting:
        assert sums.allocate(one) == made
    else:
        assert "gone" in sums.refused(one)
