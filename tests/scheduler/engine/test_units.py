"""Families whose decisions stand in one annotation only, and that the kubelet counts by devices and by their cores."""

from __future__ import annotations

from hami_plugin.allocation.capacity import beyond_request
from hami_plugin.allocation.identity import Found, HeldShare, HeldShares, PodReader, choose_preferred, identify, record
from hami_plugin.model.device import Snapshot, replica_ids
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.keys import BIND_PHASE, PHASE_SUCCESS
from hami_plugin.protocol.pods import Question, decided_shares, decode_devices, encode_devices

DECIDED = "toy.io/decided"


def bits(grant: Grant) -> int:
    return grant.cores.bit_count()


CARDS = Question(resource="toy.io/card", to_allocate="", allocated=DECIDED, also=("toy.io/core",))
CORES = Question(resource="toy.io/core", to_allocate="", allocated=DECIDED, also=("toy.io/card",), ids=bits)
FREE = tuple(replica for card in ("a", "b") for replica in replica_ids(card, 4))


def grant(uuid: str, cores: int) -> Grant:
    return Grant(uuid=uuid, device_type="TOY", cores=cores)


def container(name: str, **limits: int) -> ContainerView:
    return ContainerView(name=name, limits={f"toy.io/{key}": str(value) for key, value in limits.items()})


def mixed() -> PodView:
    """Four cores of two cards for the first container, and two whole cards for the second."""
    pieces = ((grant("a", 3), grant("b", 12)), (grant("c", 15), grant("d", 15)))
    return PodView(
        uid="u",
        namespace="n",
        name="p",
        node="here",
        containers=(container("cores", core=4), container("cards", card=2)),
        annotations={DECIDED: encode_devices(pieces)},
    )


def held(question: Question, name: str) -> HeldShare:
    return HeldShare(
        uid="u", namespace="n", pod="p", container=name, resource=question.resource, ids=frozenset(), grants=()
    )


def test_each_resource_finds_its_own_containers_share() -> None:
    (cores,), (cards,) = decided_shares(mixed(), CORES), decided_shares(mixed(), CARDS)

    assert (cores.container.name, cores.devices) == ("cores", ("a", "a", "b", "b"))
    assert (cards.container.name, cards.devices) == ("cards", ("c", "d"))


def test_the_kubelets_cores_are_known_by_the_cards_they_are_of() -> None:
    waiting = PodReader(CORES, "here").pending((mixed(),), HeldShares())

    found = identify(("a::0", "b::2", "a::1", "b::3"), waiting, HeldShares(), CORES)
    other = identify(("a::0", "b::2", "a::1", "a::3"), waiting, HeldShares(), CORES)

    assert isinstance(found, Found)
    assert found.claim.container.name == "cores"
    assert not isinstance(other, Found)


def test_as_many_cores_of_each_card_are_preferred_as_were_granted() -> None:
    chosen = choose_preferred(
        FREE,
        (),
        4,
        waiting=PodReader(CORES, "here").pending((mixed(),), HeldShares()),
        held=HeldShares(),
        resource="toy.io/core",
        snapshot=Snapshot(),
    )

    assert chosen == ("a::0", "a::1", "b::0", "b::1")


def test_what_was_handed_out_is_remembered_without_a_word_at_the_pod() -> None:
    given = HeldShares([held(CORES, "cores")])

    half = record(mixed(), (CARDS, CORES), given)

    assert half.changes == {}
    assert not half.finished
    assert PodReader(CORES, "here").pending((mixed(),), given).next == ()
    assert len(PodReader(CARDS, "here").pending((mixed(),), given).next) == 1


def test_a_pod_whose_containers_all_have_theirs_is_done() -> None:
    given = {one.key: one for one in (held(CORES, "cores"), held(CARDS, "cards"))}

    assert record(mixed(), (CARDS, CORES), given).changes == {BIND_PHASE: PHASE_SUCCESS}


def test_a_limit_in_percent_is_a_part_of_what_all_cores_are() -> None:
    question = Question(resource="toy.io/card", to_allocate="", allocated=DECIDED, cores="toy.io/percent")
    pod = PodView(
        uid="u",
        namespace="n",
        name="p",
        containers=(container("main", card=1, percent=25),),
        annotations={DECIDED: encode_devices(((grant("a", 76),),))},
    )
    (claim,) = decided_shares(pod, question)

    assert beyond_request(claim, question, {"a": 0}, {"a": 304}) == ""
    assert "76 cores of a where container main may have 75" in beyond_request(claim, question, {"a": 0}, {"a": 300})


PARTS = Question(resource="toy.io/card", to_allocate="toy.io/wanted", allocated=DECIDED, also=("toy.io/percent",))
PERCENT = Question(resource="toy.io/percent", to_allocate="toy.io/wanted", allocated=DECIDED, also=("toy.io/card",))


def counted_twice() -> PodView:
    """A whole card for the first container, and a part of one for the second, which asks for it by two resources."""
    text = encode_devices(((grant("a", 100),), (grant("b", 25),)))
    return PodView(
        uid="u",
        namespace="n",
        name="p",
        node="here",
        containers=(container("whole", card=1), container("part", card=1, percent=25)),
        annotations={DECIDED: text, "toy.io/wanted": text},
    )


def test_a_share_that_is_asked_for_by_two_resources_stays_until_both_have_it() -> None:
    given = {one.key: one for one in (held(PARTS, "whole"), held(PARTS, "part"))}

    half = record(counted_twice(), (PARTS, PERCENT), given)

    assert not half.finished
    left = decode_devices(half.changes["toy.io/wanted"])
    assert [[one.uuid for one in piece] for piece in left if piece] == [["b"]]


def test_what_both_resources_cross_out_is_crossed_out_together() -> None:
    given = {one.key: one for one in (held(PARTS, "whole"), held(PARTS, "part"), held(PERCENT, "part"))}

    done = record(counted_twice(), (PARTS, PERCENT), given)

    assert done.finished
    assert not any(decode_devices(done.changes["toy.io/wanted"]))
