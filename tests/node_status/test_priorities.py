"""Who waits for whom, and that nobody waits for a daemon that decides no more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.errors import HamiError
from hami_plugin.model.usage import ContainerUsage, Pace, UsageState
from hami_plugin.node_status.priorities import Priorities, Runner, paces, priority_of
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.process.concurrency import Watched
from tests.support.builders import COUNT, FAMILY, container, grant, held_by, pod, snapshot

PRIORITY = "toy.io/priority"
PACED = replace(
    FAMILY,
    resources=replace(FAMILY.resources, priority=PRIORITY),
    node=replace(FAMILY.node, pace=lambda *_asked: None),
)


def runner(name, priority, active=True, devices=("d0",)):
    return Runner(key=(name, "main", COUNT), devices=devices, priority=priority, active=active)


def decided(*runners):
    return {key[0]: pace for key, pace in paces(runners).items()}


def test_a_higher_priority_that_works_holds_the_lower_one_back_and_is_free_itself():
    assert decided(runner("p0", 0), runner("p1", 1)) == {"p0": Pace.FREE, "p1": Pace.HELD_BACK}


def test_two_of_one_priority_are_limited_and_neither_waits():
    assert decided(runner("a", 1), runner("b", 1)) == {"a": Pace.LIMITED, "b": Pace.LIMITED}


def test_a_higher_priority_that_rests_holds_nobody_back():
    assert decided(runner("p0", 0, active=False), runner("p1", 1))["p1"] is Pace.FREE


def test_each_of_a_containers_devices_counts_not_only_the_first_that_is_used():
    waiting = runner("p2", 2, devices=("d0", "d1"))
    assert decided(runner("same", 2), waiting, runner("p1", 1, devices=("d1",)))["p2"] is Pace.HELD_BACK


def test_other_devices_do_not_matter():
    assert decided(runner("p0", 0, devices=("d1",)), runner("p1", 1))["p1"] is Pace.FREE


@given(st.lists(st.tuples(st.integers(0, 15), st.booleans(), st.sets(st.sampled_from("abc"), min_size=1)), max_size=12))
def test_on_each_device_whoever_has_the_highest_priority_that_works_is_never_held_back(drawn):
    runners = [runner(str(n), priority, active, tuple(devices)) for n, (priority, active, devices) in enumerate(drawn)]
    found = paces(runners)

    for one in runners:
        higher = [o for o in runners if o.active and o.priority < one.priority and set(o.devices) & set(one.devices)]
        assert (found[one.key] is Pace.HELD_BACK) == bool(higher)


@pytest.mark.parametrize(
    ("limits", "priority"), [({}, 1), ({PRIORITY: "0"}, 0), ({PRIORITY: "3"}, 3), ({PRIORITY: "4000000000"}, 15)]
)
def test_the_priority_is_what_the_pod_asks_for_within_0_and_15(limits, priority):
    view = pod("a", [replace(container(count=1), limits=limits)])
    assert priority_of(view, "main", PRIORITY) == priority


def test_a_container_of_an_unknown_pod_has_none():
    assert priority_of(None, "main", PRIORITY) is None
    assert priority_of(pod("a"), "main", PRIORITY) is None


class Node:
    """Two pods on one card, of priorities 0 and 1."""

    def __init__(self, marker, *, wanted=True):
        self.marker, self.paces, self.fails = marker, {}, False
        self.source = FamilySource(family=PACED, snapshot=Watched(snapshot()))
        self.pods = {}
        self.held = []
        for priority in (0, 1):
            asks = replace(container(count=1), limits={COUNT: "1", PRIORITY: str(priority)})
            made = pod(f"p{priority}", [asks], [[grant(0)]])
            self.pods[made.uid] = made
            self.held.append(held_by(made, grants=[grant(0)]))
        self.priorities = Priorities(self.pods.get, self.write, marker, on_disk=self.call, wanted=wanted)

    @staticmethod
    async def call(function):
        return function()

    async def write(self, _source, held, pace):
        if self.fails:
            raise HamiError("the disk hangs")
        self.paces[held.pod] = pace

    async def turn(self, *, active=(True, True), connected=True, state=UsageState.OK):
        readings = [
            (self.source, held, ContainerUsage(state=state, active=works))
            for held, works in zip(self.held, active, strict=True)
        ]
        await self.priorities.turn(readings, connected=connected)
        return self.paces


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "held-back")


async def test_the_lower_one_waits_while_the_higher_one_works_and_goes_on_after_it(node):
    assert await node.turn() == {"p0": Pace.FREE, "p1": Pace.HELD_BACK}
    assert [held.pod for held in node.priorities.held_back.values()] == ["p1"]
    assert node.marker.exists()

    assert (await node.turn(active=(False, True)))["p1"] is Pace.FREE
    assert not node.priorities.held_back


async def test_everybody_goes_on_when_the_api_server_is_lost(node):
    await node.turn()

    assert await node.turn(connected=False) == {"p0": Pace.RELEASED, "p1": Pace.RELEASED}
    assert not node.marker.exists()
    assert not node.priorities.held_back


async def test_everybody_goes_on_when_the_daemon_ends(node):
    await node.turn()
    await node.priorities.release()

    assert set(node.paces.values()) == {Pace.RELEASED}
    assert not node.marker.exists()


async def test_what_cannot_be_let_go_is_left_to_the_next_daemon(node):
    await node.turn()
    node.fails = True
    await node.priorities.release()

    assert node.marker.exists()


async def test_a_daemon_that_does_not_decide_lets_those_go_that_a_killed_one_held_back(node):
    await node.turn()
    later = Node(node.marker, wanted=False)

    assert set((await later.turn()).values()) == {Pace.RELEASED}
    assert not node.marker.exists()


async def test_whom_nobody_can_read_yet_is_let_go_later(node):
    await node.turn()
    later = Node(node.marker, wanted=False)
    await later.turn(state=UsageState.UNREADABLE)

    assert set((await later.turn()).values()) == {Pace.RELEASED}


async def test_without_the_loop_and_without_a_mark_nothing_is_written(tmp_path):
    node = Node(tmp_path / "held-back", wanted=False)

    assert await node.turn() == {}
    await node.priorities.release()
    assert node.paces == {}


@pytest.mark.parametrize("state", [one for one in UsageState if one is not UsageState.OK])
async def test_what_cannot_be_read_is_not_written_to(node, state):
    assert await node.turn(state=state) == {}
    assert not node.marker.exists()


async def test_a_pod_that_is_unknown_holds_nobody_back(node):
    node.pods.clear()

    assert await node.turn() == {}
