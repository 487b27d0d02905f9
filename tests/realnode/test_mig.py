"""Case u: cards are cut into MIG instances for pods, and the daemon is killed wherever it may be.

The numbers are those of the crash points; where they tell of other vendors, MIG's own such state stands for theirs.
"""

import os
import signal
import time

import pytest

from tests.realnode import versions
from tests.realnode.asked import container, manifest
from tests.realnode.kubelet import configured
from tests.realnode.late import late
from tests.realnode.mig import Cards
from tests.realnode.pods import Pods
from tests.realnode.servers import until
from tests.runtimes.inside import OPENED
from vendors.nvidia.rules import ALLOCATIONS, decode_mig

pytestmark = [
    pytest.mark.case(
        "u", "MIG instances for pods: made, seen inside, taken over, and no crash of the daemon leaves any"
    ),
    pytest.mark.since(versions.INIT_AMOUNTS),
]
PINNED = "nvidia.com/use-gpuuuid"
CARD = 5
SMALL, WHOLE = 9000, 80000
MAKING = {
    1: "before intent-create",
    2: "after intent-create",
    3: "before step gi",
    4: "before step ci gi",
    5: "after ready",
    6: "after assigned",
    7: "after publish",
}
UNMAKING = {9: "after intent-destroy", 10: "before step gi", 11: "before destroyed"}


@pytest.fixture(scope="module")
def cards(installed, node):
    """The daemon cuts cards while this module runs; a kubelet that starts it again at once."""
    installed.await_ready()
    made = Cards(daemon=installed)
    made.prepare()
    with configured(node, installed, **node.kubernetes.quick_restarts):
        made.serve()
        yield made
        installed.machine().inject("mig", value=0)
        installed.configure()
    until(lambda: node.allocatable("nvidia.com/gpu") == 80, "all shares", 60)


@pytest.fixture
def pods(cards, node, scheduler):
    made = Pods(node=node, place=scheduler.place)
    yield made
    made.clear()
    cards.await_there()


def asked(cards, name, memory=SMALL, card=CARD):
    return manifest(name, container(count=1, memory=memory), annotations={PINNED: cards.uuid(card)})


def placed(pods, name):
    """Where the scheduler has put the pod's one instance; None before it has."""
    found = decode_mig(pods.annotation(name, ALLOCATIONS))
    return (int(found[0].uuid.removeprefix("GPU-")[:8]), found[0].profile, found[0].start) if found else None


def told(pods, name):
    """The driver's names in the pod's annotation, once they are there."""
    until(lambda: "migUUID" in pods.annotation(name, ALLOCATIONS), "the instance's names", 20)
    (found,) = decode_mig(pods.annotation(name, ALLOCATIONS))
    return found.instance


def has_its_own(cards, pods, name):
    """The container has the pod's instance, its nodes, and nothing of another; return where it is."""
    place, instance, seen = placed(pods, name), told(pods, name), pods.granted(name)
    assert cards.there()[place] == instance.uuid
    assert cards.numbers(place) == (instance.gpu_instance, instance.compute_instance)
    assert seen.env["NVIDIA_VISIBLE_DEVICES"] == ("void" if cards.specs() else instance.uuid)
    assert not [key for key in seen.env if key.startswith("CUDA_DEVICE")]
    own = {path for path in seen.devices if "nvidia-cap" in path or path.removeprefix("/dev/nvidia").isdigit()}
    assert own == cards.nodes(place)
    assert {seen.devices[path].reading for path in own} == {OPENED}
    return place


def states(cards):
    return sorted((one["state"], one["owner"]) for one in cards.listed())


def nothing_is_left(cards, pods, *other):
    """No instance, no spec, no place that nobody can have: the whole of the card goes to the next pod."""
    cards.await_there(*other)
    until(lambda: cards.specs() == set(), "the end of the specs", 30)
    until(lambda: "7g.80gb" in cards.offered().get(CARD, ()), "all places in the register", 60)
    name = pods.run(asked(cards, "whole", WHOLE), within_s=90)
    assert has_its_own(cards, pods, name) == (CARD, "7g.80gb", 0)
    pods.delete(name)
    cards.await_there(*other)


def test_an_instance_is_made_seen_inside_taken_over_by_the_next_pod_and_destroyed(cards, pods, record_property):
    start = time.monotonic()
    first = pods.run(asked(cards, "first"))
    took = time.monotonic() - start
    place, uuid = has_its_own(cards, pods, first), told(pods, first).uuid

    assert cards.there() == {place: uuid}
    assert cards.specs() == {uuid}
    (one,) = cards.listed()
    assert (one["state"], one["owner"], one["uuid"]) == ("assigned", "default/first/main[0]", uuid)
    assert one["age"] > 0

    os.kill(cards.daemon.pid(), signal.SIGSTOP)  # the next pod comes before it hears of the end
    try:
        pods.delete(first)
        second = pods.submit(asked(cards, "second"))
        until(lambda: placed(pods, second) and pods.get(second)["spec"].get("nodeName"), "the second pod's place", 20)
    finally:
        os.kill(cards.daemon.pid(), signal.SIGCONT)
    pods.await_running(second)
    assert has_its_own(cards, pods, second) == place
    assert cards.there() == {place: uuid}
    assert states(cards) == [("assigned", "default/second/main[0]")]

    pods.delete(second)
    gone = cards.await_there()
    record_property(
        "figures", f"a pod with an instance of its own runs after {took:.1f} s; it is gone {gone:.1f} s after"
    )
    nothing_is_left(cards, pods)


@pytest.mark.parametrize(
    ("allowed", "memories"),
    [
        ((), {80000: 2, 39000: 2, 19000: 2, 9000: 4}),
        (("1g.10gb", "2g.20gb", "4g.40gb"), {39000: 3, 19000: 3, 9000: 4}),
    ],
    ids=["the smallest that do, by CDI", "those of a list, by name and nodes"],
)
def test_ten_pods_at_once_have_each_an_instance_of_its_own(cards, pods, allowed, memories, record_property):
    if allowed:
        listed = [{"models": ["H100"], "profiles": list(allowed)}]
        cards.serve(migProfileAllowlist=listed, deviceListStrategy=["envvar"], passDeviceSpecs=True)
    try:
        sizes = [memory for memory, count in memories.items() for _ in range(count)]
        names = [f"burst-{number}" for number in range(len(sizes))]
        start = time.monotonic()
        for name, memory in zip(names, sizes, strict=True):
            pods.submit(manifest(name, container(count=1, memory=memory)))
        pods.await_running(*names, within_s=180)
        took = time.monotonic() - start
        places = [has_its_own(cards, pods, name) for name in names]

        assert sorted(cards.there()) == sorted(places)
        assert len(set(places)) == len(names)
        record_property("figures", f"{len(names)} pods with MIG instances run after {took:.1f} s")
        assert {profile for _card, profile, _start in places} == (
            set(allowed) or {"1g.10gb", "1g.20gb", "3g.40gb", "7g.80gb"}
        )
        pods.delete(*names)
        cards.await_there()
    finally:
        if allowed:
            cards.serve()


@pytest.mark.full
@pytest.mark.parametrize("point", MAKING)
def test_killed_while_it_makes_an_instance_it_leaves_none(cards, pods, point):
    cards.lay_trap(MAKING[point])
    name = pods.submit(asked(cards, "made"))
    cards.await_trapped()
    cards.kill()

    until(lambda: pods.phase(name) == "Failed", "the kubelet's refusal", 60)
    nothing_is_left(cards, pods)


@pytest.mark.full
def test_8_killed_after_its_answer_it_knows_whose_the_instance_is(cards, pods):
    name = pods.run(asked(cards, "answered"))
    has_its_own(cards, pods, name)
    before = cards.there(), pods.containers(name)

    cards.kill()

    until(lambda: states(cards) == [("assigned", "default/answered/main[0]")], "its owner", 60)
    assert (cards.there(), pods.containers(name)) == before
    os.kill(pods.pid(name), signal.SIGKILL)
    until(lambda: pods.phase(name) == "Failed", "its end", 60)
    pods.delete(name)
    nothing_is_left(cards, pods)


@pytest.mark.full
@pytest.mark.parametrize("point", UNMAKING)
def test_killed_while_it_destroys_an_instance_it_goes_on(cards, pods, point):
    name = pods.run(asked(cards, "ends"))
    told(pods, name)
    cards.lay_trap(UNMAKING[point])

    pods.delete(name)
    cards.await_trapped()
    cards.kill()

    nothing_is_left(cards, pods)


@pytest.mark.full
def test_12_killed_while_a_card_is_away_it_finds_what_the_card_had(cards, pods):
    name = pods.run(asked(cards, "away"))
    has_its_own(cards, pods, name)
    before = cards.there(), pods.containers(name)

    with cards.killed(away=CARD):
        assert cards.there() == before[0]

    until(lambda: states(cards) == [("assigned", "default/away/main[0]")], "its owner", 60)
    assert (cards.there(), pods.containers(name)) == before
    pods.delete(name)
    nothing_is_left(cards, pods)


@pytest.mark.full
def test_13_of_what_came_while_it_was_dead_it_takes_nothing_that_others_made(cards, pods):
    others = {(CARD, "1g.10gb", 0), (CARD, "1g.10gb", 1)}
    cards.lay_trap(MAKING[2])
    name = pods.submit(asked(cards, "intended"))
    cards.await_trapped()
    with cards.killed():
        for _card, profile, start in sorted(others):
            cards.machine.inject("instance", CARD, f"{profile}:{start}")
    made = {place: uuid for place, uuid in cards.there().items() if place in others}

    until(lambda: states(cards).count(("foreign", "")) == 2, "the two of others", 60)
    pods.delete(name)
    cards.await_there(*others)
    assert cards.there() == made
    assert "7g.80gb" not in cards.offered()[CARD]
    cards.machine.inject("reset", CARD)
    nothing_is_left(cards, pods)


@pytest.mark.full
def test_14_an_instance_whose_container_never_started_goes_with_the_pod_that_ended_meanwhile(cards, pods):
    waiting = late(pods, "never", container(count=1, memory=SMALL))
    assert len(cards.there()) == 1

    with cards.killed():
        pods.delete(waiting.name)

    nothing_is_left(cards, pods)


@pytest.mark.full
def test_15_without_its_journal_it_knows_an_instance_by_the_pods_annotation(cards, pods):
    name = pods.run(asked(cards, "named"))
    place, uuid = has_its_own(cards, pods, name), told(pods, name).uuid

    with cards.killed():
        cards.forget_journal()

    until(lambda: states(cards) == [("assigned", "default/named/main[0]")], "its owner", 60)
    assert cards.there() == {place: uuid}
    pods.delete(name)
    nothing_is_left(cards, pods)


@pytest.mark.full
def test_16_half_an_instance_of_a_pod_that_is_gone_is_destroyed(cards, pods):
    cards.lay_trap(MAKING[3])
    name = pods.submit(asked(cards, "half"))
    cards.await_trapped()
    assert list(cards.there().values()) == [""]

    with cards.killed():
        pods.delete(name)

    nothing_is_left(cards, pods)


@pytest.mark.full
@pytest.mark.parametrize("how", ["17 the power was off", "18 the card was reset"])
def test_an_instance_that_is_gone_when_it_comes_back_is_lost_to_its_pod_and_free_for_the_next(cards, pods, how):
    name = pods.run(asked(cards, "loser"))
    told(pods, name)

    with cards.killed():
        if how.startswith("17"):
            cards.age_journal()
            cards.machine.inject("reboot")
            cards.machine.inject("mig", value=1)
        else:
            cards.machine.inject("reset", CARD)

    until(lambda: any("PartitionLost" in line for line in pods.told(name)), "the Event", 60)
    assert states(cards) == [("lost", "default/loser/main[0]")]
    pods.delete(name)
    nothing_is_left(cards, pods)
