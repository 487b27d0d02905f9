"""Who asks for these ids?"""

from dataclasses import replace

import pytest

from hami_plugin.allocation.identity import Found, HeldShares, PodReader, Repeated, Unannotated, Unknown, identify
from hami_plugin.errors import RefusalReason
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_FAILED, PHASE_SUCCESS
from tests.support.builders import (
    ALLOCATED,
    NODE,
    QUESTION,
    TO_ALLOCATE,
    container,
    grant,
    held_by,
    ids,
    pod,
    uuid,
)


def asked(replicas, *pods, held=(), ranks=None):
    shares = HeldShares(held)
    return identify(replicas, PodReader(QUESTION, NODE).pending(pods, shares, ranks), shares, QUESTION)


def found(identity) -> tuple[str, str]:
    assert isinstance(identity, Found), identity
    return identity.claim.pod.name, identity.claim.container.name


def reason(identity) -> RefusalReason:
    assert isinstance(identity, Unknown), identity
    return identity.reason


def test_the_pod_whose_devices_and_count_agree_is_found():
    a, b = pod("a", pieces=[[grant(0)]]), pod("b", pieces=[[grant(1)]])

    assert found(asked(ids((1, 3)), a, b)) == ("b", "main")


@pytest.mark.parametrize(
    "changes",
    [{"node": "n2"}, {"phase": "Running"}, {"phase": "Failed"}, {"phase": "Succeeded"}, {"deleted": True}],
    ids=str,
)
def test_a_pod_that_is_not_starting_here_is_nobody(changes):
    assert reason(asked(ids((0, 0)), pod("a", pieces=[[grant(0)]], **changes))) is RefusalReason.NO_PENDING_POD


def test_a_decision_for_another_node_is_not_used_and_its_pod_named():
    a = pod("a", pieces=[[grant(0)]], annotations={ASSIGNED_NODE: "n2"})

    identity = asked(ids((0, 0)), a)

    assert reason(identity) is RefusalReason.BAD_ANNOTATION
    assert identity.pods == (a,)


def test_a_pod_whose_decision_has_failed_is_not_tried_again():
    a = pod("a", pieces=[[grant(0)]], annotations={BIND_PHASE: PHASE_FAILED})

    assert reason(asked(ids((0, 0)), a)) is RefusalReason.NO_PENDING_POD


def test_a_forged_success_changes_nothing_as_long_as_shares_are_left():
    a = pod("a", pieces=[[grant(0)]], annotations={BIND_PHASE: PHASE_SUCCESS})

    assert found(asked(ids((0, 0)), a)) == ("a", "main")


def test_nothing_left_in_the_annotation_is_nobody():
    a = pod("a", [container(count=1)], [[grant(0)]], annotations={TO_ALLOCATE: ";;"})

    assert reason(asked(ids((0, 0)), a)) is RefusalReason.NO_PENDING_POD


def test_another_count_is_told_with_what_each_pod_waits_for():
    identity = asked(ids((0, 0), (1, 0)), pod("a", pieces=[[grant(0)]]))

    assert reason(identity) is RefusalReason.COUNT_MISMATCH
    assert "offers 2 devices" in identity.message
    assert "default/a waits for 1" in identity.message


def test_other_devices_are_told_with_what_each_pod_waits_for():
    identity = asked(ids((1, 0)), pod("a", pieces=[[grant(0)]]))

    assert reason(identity) is RefusalReason.DEVICE_MISMATCH
    assert uuid(1) in identity.message
    assert f"default/a waits for {uuid(0)}" in identity.message


def test_two_shares_of_one_device_are_not_one_share_of_each_of_two():
    a = pod("a", pieces=[[grant(0), grant(1)]])

    assert reason(asked(ids((0, 0), (0, 1)), a)) is RefusalReason.DEVICE_MISMATCH


def test_two_pods_with_different_limits_on_the_same_device_are_ambiguous():
    a, b = pod("a", pieces=[[grant(0, 1000)]]), pod("b", pieces=[[grant(0, 2000)]])

    identity = asked(ids((0, 0)), a, b)

    assert reason(identity) is RefusalReason.AMBIGUOUS
    assert identity.pods == (a, b)


def test_two_pods_with_equal_shares_are_served_in_order_of_arrival():
    a, b = pod("a", pieces=[[grant(0)]]), pod("b", pieces=[[grant(0)]])

    assert found(asked(ids((0, 0)), a, b)) == ("a", "main")
    assert found(asked(ids((0, 1)), a, b, held=[held_by(a, "main", ids((0, 0)))])) == ("b", "main")


@pytest.mark.parametrize("second", [[grant(0)], [grant(1)]], ids=["same device", "another device"])
def test_pods_whose_order_nobody_knows_are_not_told_apart_by_the_ids_we_advised(second):
    a, b = pod("a", pieces=[[grant(0)]]), pod("b", pieces=[second])

    identity = asked(ids((0, 0)), a, b, ranks={a.uid: 1, b.uid: 1})

    assert reason(identity) is RefusalReason.AMBIGUOUS
    assert {item.name for item in identity.pods} == {"a", "b"}
    assert found(asked(ids((0, 0)), a, b, ranks={a.uid: 1, b.uid: 2})) == ("a", "main")


def test_a_pod_of_unknown_order_that_asks_for_another_count_is_no_rival():
    a, b = pod("a", pieces=[[grant(0)]]), pod("b", pieces=[[grant(1), grant(2)]])

    assert found(asked(ids((0, 0)), a, b, ranks={a.uid: 1, b.uid: 1})) == ("a", "main")


def test_a_pod_in_the_middle_of_its_admission_has_no_rivals():
    a = pod("a", [container("x", 1), container("y", 1)], pieces=[[grant(0)], [grant(1)]])
    b = pod("b", pieces=[[grant(1)]])
    first = held_by(a, "x", ids((0, 0)))

    assert found(asked(ids((1, 0)), a, b, held=[first], ranks={a.uid: 1, b.uid: 1})) == ("a", "y")


def test_equal_devices_in_another_order_are_equal_shares():
    a, b = pod("a", pieces=[[grant(0), grant(1)]]), pod("b", pieces=[[grant(1), grant(0)]])

    assert found(asked(ids((1, 0), (0, 0)), a, b)) == ("a", "main")


def test_containers_come_one_after_the_other():
    containers = [container("one", 1), container("two", 1)]
    a = pod("a", containers, [[grant(0, 1000)], [grant(0, 2000)]])

    assert found(asked(ids((0, 0)), a)) == ("a", "one")
    assert found(asked(ids((0, 1)), a, held=[held_by(a, "one", ids((0, 0)))])) == ("a", "two")


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("padding", [True, False], ids=["padded", "unpadded"])
def test_a_container_without_devices_in_any_place_shifts_nobody(place, padding):
    containers = [container("init", 1, init=True), container("one", 1), container("two", 1)]
    pieces = [[grant(0, 1)], [grant(1, 2)], [grant(2, 3)]]
    containers.insert(place, container("istio", init=place < 2))
    if padding:
        pieces.insert(place, [])
    a = pod("a", containers, pieces)
    held = []

    for card, name in enumerate(["init", "one", "two"]):
        assert found(asked(ids((card, 0)), a, held=held)) == ("a", name)
        held.append(held_by(a, name, ids((card, 0)), init=False))


def test_pieces_that_too_many_semicolons_follow_are_the_same_pieces():
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]])
    erased = replace(a, annotations={**a.annotations, TO_ALLOCATE: f";{uuid(1)},TOY,1000,10:;;;;"})

    assert found(asked(ids((1, 0)), erased)) == ("a", "two")


def test_a_piece_that_lost_its_place_by_hamis_old_codec_still_finds_its_container():
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0)], [grant(1)]])
    legacy = replace(a, annotations={**a.annotations, TO_ALLOCATE: f"{uuid(1)},TOY,1000,10:;"})

    assert found(asked(ids((1, 0)), legacy)) == ("a", "two")


def test_the_same_ids_once_more_are_a_repeat():
    a = pod("a", pieces=[[grant(0)]])
    share = held_by(a, "main", ids((0, 0)), [grant(0)])

    assert asked(ids((0, 0)), a, held=[share]) == Repeated(held=share)


def test_a_repeat_is_no_question_of_the_next_container_although_its_share_would_fit():
    a = pod("a", [container("one", 1), container("two", 1)], [[grant(0, 1000)], [grant(0, 2000)]])
    one = held_by(a, "one", ids((0, 0)))

    assert asked(ids((0, 0)), a, held=[one]) == Repeated(held=one)
    assert found(asked(ids((0, 1)), a, held=[one])) == ("a", "two")


def test_a_part_of_what_a_container_keeps_is_nobodys_question():
    a = pod("a", [container("one", 2), container("two", 1)], [[grant(0), grant(1)], [grant(0)]])
    one = held_by(a, "one", ids((0, 0), (1, 0)))

    identity = asked(ids((0, 0)), a, held=[one])

    assert reason(identity) is RefusalReason.DEVICE_MISMATCH
    assert "container one of pod default/a" in identity.message


def test_ids_that_somebody_else_had_before_say_nothing_about_who_asks():
    former = pod("former", pieces=[[grant(0), grant(1)]])
    had = held_by(former, "main", ids((0, 0), (1, 0)))

    assert reason(asked(ids((0, 0)), former, held=[had])) is RefusalReason.NO_PENDING_POD


def test_a_repeat_of_passed_on_ids_is_one_of_the_latest_call():
    containers = [container("init", 1, init=True), container("one", 1), container("two", 1)]
    a = pod("a", containers, [[grant(0)], [grant(1)], [grant(0, 3000)]])
    init, one = held_by(a, "init", ids((0, 0)), init=True), held_by(a, "one", ids((0, 0)))

    assert asked(ids((0, 0)), a, held=[init, one]) == Repeated(held=one)


def test_the_same_ids_under_another_resource_are_no_repeat():
    a = pod("a", pieces=[[grant(0)]])
    share = held_by(a, "main", ids((0, 0)), resource="toy.io/other")

    assert found(asked(ids((0, 0)), a, held=[share])) == ("a", "main")


def test_a_pod_that_fits_comes_before_a_repeat_because_the_kubelet_may_have_freed_the_ids():
    dead, b = pod("dead", pieces=[[grant(0)]]), pod("b", pieces=[[grant(0)]])

    assert found(asked(ids((0, 0)), dead, b, held=[held_by(dead, "main", ids((0, 0)))])) == ("b", "main")


def test_an_init_containers_ids_mean_the_next_container_of_its_pod_whatever_devices_they_are_of():
    containers = [container("init", 1, init=True), container("one", 1)]
    a = pod("a", containers, [[grant(0)], [grant(1)]])
    b = pod("b", pieces=[[grant(0)]])
    held = [held_by(a, "init", ids((0, 0)), [grant(0)], init=True)]

    identity = asked(ids((0, 0)), b, a, held=held)

    assert found(identity) == ("a", "one")
    assert identity.claim.grants == (grant(1),)


def test_an_init_containers_ids_of_another_resource_mean_nothing():
    containers = [container("init", init=True), container("one", 1)]
    a, b = pod("a", containers, [[], [grant(1)]]), pod("b", pieces=[[grant(0)]])
    other = held_by(a, "init", ids((0, 0)), init=True, resource="toy.io/other")

    assert found(asked(ids((0, 0)), a, b, held=[other])) == ("b", "main")


def test_a_native_sidecars_ids_are_its_own():
    containers = [container("side", 1, sidecar=True), container("one", 1)]
    a = pod("a", containers, [[grant(0)], [grant(0, 2000)]])

    assert found(asked(ids((0, 1)), a, held=[held_by(a, "side", ids((0, 0)))])) == ("a", "one")


def test_a_pod_that_nobody_decided_about_is_a_stranger():
    stranger = pod("s", [container("main", 2)])

    assert asked(ids((0, 0), (1, 0)), stranger) == Unannotated(pod=stranger, container=stranger.containers[0])


def test_a_stranger_of_another_count_is_nobody():
    assert reason(asked(ids((0, 0)), pod("s", [container("main", 2)]))) is RefusalReason.NO_PENDING_POD


@pytest.mark.parametrize("card", [0, 1], ids=["fits the other", "fits nobody"])
def test_a_stranger_beside_a_decided_pod_of_the_same_count_is_ambiguous(card):
    a, stranger = pod("a", pieces=[[grant(0)]]), pod("s", [container("main", 1)])

    identity = asked(ids((card, 0)), a, stranger)

    assert reason(identity) is RefusalReason.AMBIGUOUS
    assert identity.pods == (a, stranger)


def test_a_stranger_of_another_count_does_not_disturb():
    a, stranger = pod("a", pieces=[[grant(0)]]), pod("s", [container("main", 2)])

    assert found(asked(ids((0, 0)), stranger, a)) == ("a", "main")


@pytest.mark.parametrize(
    "text",
    [
        ";" * 262_144,
        ":" * 262_144,
        "," * 262_144,
        "GPU,TOY,1e9,1:;",
        f"{uuid(0)},TOY,{'9' * 100_000},1:;",
        "\x00,a,1,1:;",
    ],
    ids=["semicolons", "colons", "commas", "float", "digits", "NUL"],
)
def test_an_annotation_that_nobody_can_read_harms_its_own_pod_only(text):
    forged = pod("forged", [container(count=1)], annotations={TO_ALLOCATE: text, ALLOCATED: text})
    honest = pod("honest", pieces=[[grant(0)]])

    assert found(asked(ids((0, 0)), forged, honest)) == ("honest", "main")
    assert reason(asked(ids((0, 0)), forged)) in (RefusalReason.BAD_ANNOTATION, RefusalReason.NO_PENDING_POD)


def test_a_decision_for_other_devices_cannot_be_served():
    forged = pod("forged", [container(count=1)], [[grant(77)]])

    assert reason(asked(ids((0, 0)), forged)) is RefusalReason.DEVICE_MISMATCH


def standing_in(replicas, *pods, held=()):
    """Who asks, where the second card's ids stand for the first's."""
    shares = HeldShares(held)
    waiting = PodReader(QUESTION, NODE).pending(pods, shares)
    instead = replace(waiting, instead=lambda claim: [uuid(1)] if claim.devices == (uuid(0),) else ())
    return identify(replicas, instead, shares, QUESTION)


def test_a_pod_is_found_by_the_ids_that_stand_for_its_devices():
    a = pod("a", pieces=[[grant(0)]])

    identity = standing_in(ids((1, 1)), a)

    assert found(identity) == ("a", "main")
    assert identity.claim.grants == (grant(0),)
    assert found(standing_in(ids((0, 1)), a)) == ("a", "main")


def test_ids_that_somebody_has_stand_for_nothing():
    a, b = pod("a", pieces=[[grant(0)]]), pod("b", pieces=[[grant(1)]])
    share = held_by(b, "main", ids((1, 0)), [grant(1)])

    assert standing_in(ids((1, 0)), a, b, held=[share]) == Repeated(held=share)


def test_ids_that_one_pods_decision_names_and_that_stand_for_anothers_are_ambiguous():
    a, b = pod("a", pieces=[[grant(0)]]), pod("b", pieces=[[grant(1)]])

    assert reason(standing_in(ids((1, 0)), a, b)) is RefusalReason.AMBIGUOUS
