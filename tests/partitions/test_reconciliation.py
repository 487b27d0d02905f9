"""What the journal, a listing and the pods come to: each line of the table, and what they never come to."""

from dataclasses import replace

import pytest

from hami_plugin.partitions.life import Entry, Owner, State, identity
from hami_plugin.partitions.reconciliation import Known, reconcile
from hami_plugin.sdk import NOWHERE, Partition, Placement
from tests.support.partition_agent import reservation

OWNER = Owner(uid="a", container="main", device=0, namespace="ns", pod="a")
PLACE = Placement(start=6, size=1)
S = State


def entry(state, *, number=1, owner=OWNER, uuid="MIG-1", **changes):
    ids = {"gi": 7, "ci": 0} if uuid else {}
    fields = {"card": "GPU-0", "profile": "1g.5gb", "placement": PLACE, "boot": "b1", "ids": ids}
    return Entry(number=number, state=state, owner=owner, uuid=uuid, **{**fields, **changes})


def listed(uuid="MIG-1", place=PLACE, gi=7):
    ids = {"gi": gi, "ci": 0} if uuid else {"gi": gi}
    return Partition(card="GPU-0", profile="1g.5gb", placement=place, uuid=uuid, ids=ids)


def known(*living, reservations=(), **changes):
    pods = None if living == (None,) else frozenset(living)
    return Known(**{"boot": "b1", "now": 1000.0, "living": pods, "reservations": tuple(reservations), **changes})


def states(entries, there, about):
    """Numbers with their states after the judgement, and what is told."""
    left = {one.number: one.state for one in entries}
    told = []
    for change in reconcile("GPU-0", entries, there, about):
        if change.before:
            del left[change.before.number]
        if change.after:
            left[change.after.number] = change.after.state
        told += [change.event_reason] if change.event_reason else []
    return left, told


HELD = (S.READY, S.ASSIGNED)
TABLE = [
    *[(state, [listed()], ["a"], {1: state}, []) for state in HELD],
    *[(state, [listed()], [], {1: S.DRAINING}, []) for state in HELD],
    *[
        (state, [listed("MIG-2")], ["a"], {1: S.LOST, 0: S.FOREIGN}, ["PartitionLost", "PartitionForeign"])
        for state in HELD
    ],
    *[(state, [listed("MIG-2")], [], {0: S.FOREIGN}, ["PartitionForeign"]) for state in HELD],
    *[(state, [], ["a"], {1: S.LOST}, ["PartitionLost"]) for state in HELD],
    *[(state, [], [], {}, []) for state in HELD],
    (S.CREATING, [listed()], ["a"], {1: S.READY}, []),
    (S.CREATING, [listed("")], ["a"], {1: S.FAILED}, []),
    (S.CREATING, [listed()], [], {1: S.DRAINING}, []),
    (S.CREATING, [listed("")], [], {1: S.DRAINING}, []),
    (S.CREATING, [], ["a"], {}, []),
    (S.CREATING, [], [], {}, []),
    (S.DESTROYING, [listed()], [], {1: S.DRAINING}, []),
    (S.DESTROYING, [listed("")], [], {1: S.DRAINING}, []),
    (S.DESTROYING, [], [], {}, []),
    (S.DRAINING, [listed()], [], {1: S.DRAINING}, []),
    (S.DRAINING, [listed("MIG-2")], [], {0: S.FOREIGN}, ["PartitionForeign"]),
    (S.DRAINING, [], [], {}, []),
    (S.FAILED, [listed()], ["a"], {1: S.FAILED}, []),
    (S.FAILED, [], ["a"], {}, []),
    (S.LOST, [], ["a"], {1: S.LOST}, []),
    (S.LOST, [listed()], ["a"], {1: S.ASSIGNED}, []),
    (S.LOST, [], [], {}, []),
    (S.LOST, [listed("")], [], {1: S.DRAINING}, []),
]


@pytest.mark.parametrize(("state", "there", "living", "then", "told"), TABLE)
def test_what_is_in_the_journal(state, there, living, then, told):
    one = entry(state, uuid="" if state is S.CREATING else "MIG-1")

    assert states([one], there, known(*living)) == (then, told)


@pytest.mark.parametrize("state", [S.READY, S.ASSIGNED, S.CREATING, S.LOST])
@pytest.mark.parametrize("there", [[], [listed()], [listed("")], [listed("MIG-2")]])
def test_nothing_is_let_go_while_nobody_knows_who_lives(state, there):
    one = entry(state, uuid="" if state is S.CREATING else "MIG-1")
    left, _told = states([one], there, known(None))

    assert S.DRAINING not in left.values()


def test_one_that_was_there_before_the_intent_is_not_what_it_made():
    others = listed("MIG-9")
    one = entry(S.CREATING, uuid="", before=(identity(others),))

    assert states([one], [others], known("a"))[0] == {0: S.FOREIGN}


def test_what_a_living_pods_annotation_names_is_adopted_as_handed_out():
    told = reservation("a", uuid="MIG-1", ids={"gi": 7, "ci": 0})

    (change,) = reconcile("GPU-0", [], [listed()], known("a", reservations=[told]))
    assert (change.after.state, change.after.owner) == (S.ASSIGNED, told.owner)


def test_what_lies_where_a_living_pod_waits_for_it_is_adopted():
    (change,) = reconcile("GPU-0", [], [listed()], known("a", reservations=[reservation("a")]))

    assert (change.after.state, change.after.owner.uid) == (S.READY, "a")


@pytest.mark.parametrize(("names", "state"), [({}, S.FOREIGN), ({"uuid": "MIG-1"}, S.ASSIGNED)])
def test_on_a_card_without_places_only_names_make_a_partition_a_pods(names, state):
    one = reservation("a")
    told = replace(one, wanted=replace(one.wanted, placement=NOWHERE, ids={"gi": 7, "ci": 0}, **names))

    assert states([], [listed(place=NOWHERE)], known("a", reservations=[told]))[0] == {0: state}


@pytest.mark.parametrize(
    "told",
    [
        reservation("a", uuid="MIG-2", ids={"gi": 7, "ci": 0}),
        reservation("a", uuid="MIG-1", ids={"gi": 8, "ci": 0}),
        reservation("a", start=5),
        reservation("a", name="1g.5gb+me"),
        reservation("a", card="GPU-1"),
    ],
)
def test_what_only_resembles_what_is_reserved_is_foreign(told):
    assert states([], [listed()], known("a", reservations=[told])) == ({0: S.FOREIGN}, ["PartitionForeign"])


def test_one_pods_wrong_annotation_keeps_no_other_from_its_partition():
    wrong = reservation("a", uuid="MIG-7", ids={"gi": 1, "ci": 0})
    right = reservation("b", start=5, uuid="MIG-5", ids={"gi": 5, "ci": 0})
    there = [listed(), listed("MIG-5", Placement(start=5, size=1), 5)]

    found = {
        change.after.uuid: change.after.state
        for change in reconcile("GPU-0", [], there, known("a", "b", reservations=[wrong, right]))
    }
    assert found == {"MIG-1": S.FOREIGN, "MIG-5": S.ASSIGNED}


def test_a_foreign_one_becomes_a_pods_once_the_pods_are_known():
    one = entry(S.FOREIGN, owner=None)

    (change,) = reconcile("GPU-0", [one], [listed()], known("a", reservations=[reservation("a")]))
    assert (change.after.state, change.after.number) == (S.READY, 1)


def test_a_foreign_one_stays_however_old_it_is():
    one = entry(S.FOREIGN, owner=None, since=0.0)

    assert reconcile("GPU-0", [one], [listed()], known(now=10.0**9)) == []


@pytest.mark.parametrize(("now", "state"), [(1599.0, None), (1600.0, S.DRAINING)])
def test_where_all_are_ours_one_of_nobodys_goes_after_ten_minutes(now, state):
    one = entry(S.LEAKED, owner=None, since=1000.0)
    changes = reconcile("GPU-0", [one], [listed()], known(now=now, all_ours=True))

    assert [change.after.state for change in changes] == ([state] if state else [])


@pytest.mark.parametrize("state", [S.READY, S.ASSIGNED, S.CREATING])
def test_after_another_boot_what_is_listed_is_not_what_was_written_down(state):
    one = entry(state, uuid="" if state is S.CREATING else "MIG-1", boot="b0")
    left, _told = states([one], [listed()], known("a"))

    assert left == ({0: S.FOREIGN} if state is S.CREATING else {1: S.LOST, 0: S.FOREIGN})


def test_what_outlives_a_boot_is_its_owners_after_it():
    assert states([entry(S.ASSIGNED, boot="b0")], [listed()], known("a", lasting=True)) == ({1: S.ASSIGNED}, [])


def test_a_boot_without_a_name_voids_nothing():
    assert states([entry(S.ASSIGNED)], [listed()], known("a", boot="")) == ({1: S.ASSIGNED}, [])


def test_another_cards_partitions_are_another_judgement():
    other = Partition(card="GPU-1", profile="1g.5gb", placement=PLACE, uuid="MIG-9", ids={"gi": 1, "ci": 0})

    assert reconcile("GPU-0", [entry(S.ASSIGNED, card="GPU-1")], [other], known()) == []
