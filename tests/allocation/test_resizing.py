"""A share that is resized while its container runs: ledger, container, pod and journal have all of it, or nothing."""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.allocation.resizing import Resizer, ResizeRequest, parse_resize_request
from hami_plugin.errors import ClusterError, HamiError
from hami_plugin.model.device import Health
from hami_plugin.node_status.registration import FamilySource
from hami_plugin.protocol.pods import decode_devices
from tests.support.builders import ALLOCATED, CARD_MIB, FAMILY, QUESTION, container, grant, ids, pod, snapshot, uuid

LIMITED = replace(FAMILY, node=replace(FAMILY.node, limit=lambda *_asked: None))
OLD, NEW = 1000, 3000


class Killed(BaseException):
    """The daemon is gone."""


class Running:
    """A node with a pod that runs, and what its container is held to."""

    def __init__(self, node, limits=None):
        self.node = node
        self.limits = {"main": (OLD, 10)} if limits is None else limits
        self.fails = []
        source = FamilySource(family=LIMITED, snapshot=node.snapshot)
        self.resizer = Resizer(node._state(), [source], node.cluster, self.write)
        self.resizer.questions = [QUESTION]
        node.settlement.recorders = [self.resizer.annotations]

    async def write(self, held, grants):
        if self.fails and (error := self.fails.pop(0)):
            raise error
        (one,) = grants
        self.limits[held.container] = (one.memory, one.cores)

    async def starts(self, name="a", memory=OLD, cores=10, share=0, **changes):
        asks = [container(count=1, memory=memory, cores=cores)]
        made = self.node.cluster.add(pod(name, asks, [[grant(0, memory, cores)]]))
        await self.node.allocator.allocate(ids((0, share)))
        await self.node.settled()
        self.node.cluster.change(made, **{"phase": "Running", **changes})
        return made

    async def resize(self, memory=NEW, cores=None, name="a", **more):
        return await self.resizer.resize(
            ResizeRequest(namespace="default", pod=name, memory=memory, cores=cores, **more)
        )

    async def refused(self, *words, **wish):
        with pytest.raises(HamiError) as caught:
            await self.resize(**wish)
        for word in words:
            assert word in str(caught.value)

    def said(self, name="a"):
        """Memory and cores by the pod's annotation."""
        ((one,), *_) = decode_devices(self.node.cluster.pod(pod(name)).annotations[ALLOCATED])
        return (one.memory, one.cores)

    def held(self, name="a"):
        (held,) = self.node.ledger.held.of_pod(f"{name}-uid")
        assert held.resize is None
        return (held.grants[0].memory, held.grants[0].cores)

    async def agreed(self):
        """What ledger, container and pod have, once they say the same."""
        await self.node.settled()
        assert self.held() == self.said() == self.limits["main"]
        return self.held()


@pytest.fixture
def running(node):
    return Running(node)


async def test_a_resize_changes_ledger_container_pod_and_journal(node, running):
    await running.starts()

    answer = await running.resize(memory=NEW, cores=40)

    assert await running.agreed() == (NEW, 40)
    assert answer["devices"] == [
        {"uuid": uuid(0), "memory": {"before": OLD, "after": NEW}, "cores": {"before": 10, "after": 40}}
    ]
    assert ("a", "Resized") in {event[:2] for event in await node.told()}
    again = await node.restart()
    (held,) = again.ledger.held.values()
    assert (held.grants[0].memory, held.resized, held.resize) == (NEW, True, None)
    again.journal.close()


async def test_memory_alone_leaves_the_cores_as_they_are(running):
    await running.starts()
    await running.resize(memory=NEW)

    assert await running.agreed() == (NEW, 10)


async def test_what_the_kubelet_asks_next_is_counted_beside_the_new_amount(node, running):
    await running.starts()
    await running.resize(memory=CARD_MIB - 500)
    node.cluster.add(pod("late", [container(count=1, memory=1000)], [[grant(0, 1000, 0)]]))

    with pytest.raises(HamiError, match=f"default/a holds {CARD_MIB - 500}"):
        await node.allocator.allocate(ids((0, 1)))


@pytest.mark.parametrize("step", ["journal", "container", "pod"])
async def test_a_step_that_fails_leaves_everything_as_it_was(node, running, step, monkeypatch):
    await running.starts()
    match step:
        case "journal":
            refusals = iter([OSError("no space left")])
            written = node.ledger.written

            async def failing():
                if error := next(refusals, None):
                    raise error
                await written()

            monkeypatch.setattr(node.ledger, "written", failing)
        case "container":
            running.fails = [HamiError("it uses 4000 MiB")]
        case "pod":
            node.cluster.fail("patch pods", ClusterError("webhook says no", status=500))

    await running.refused()

    assert await running.agreed() == (OLD, 10)
    assert running.resizer.counts == {"done": 0, "refused": 0, "undone": 1}


async def test_a_journal_that_fails_at_the_last_step_undoes_the_pod_as_well(node, running, monkeypatch):
    await running.starts()
    written, outcomes = node.ledger.written, iter([None, OSError("no space left")])

    async def failing():
        if error := next(outcomes, None):
            raise error
        await written()

    monkeypatch.setattr(node.ledger, "written", failing)

    await running.refused("no space left")

    assert await running.agreed() == (OLD, 10)


async def test_limits_that_cannot_be_written_back_at_once_are_still_the_ledgers_to_give(node, running):
    await running.starts()
    running.fails = [None, HamiError("the disk hangs")]
    node.cluster.fail("patch pods", ClusterError("away"))

    await running.refused("away")

    assert running.limits["main"] == (NEW, 10)
    assert running.held() == (OLD, 10)
    assert node.ledger.held["a-uid", "main", QUESTION.resource].resized  # whoever reads its usage writes them


async def test_a_pod_that_was_told_though_nobody_heard_is_told_again_what_it_had(node, running):
    made = await running.starts()

    def taken_and_lost():
        text = node.cluster.pod(made).annotations[ALLOCATED].replace(f",{OLD},", f",{NEW},")
        node.cluster.change(made, annotations={**node.cluster.pod(made).annotations, ALLOCATED: text})
        node.cluster.fail("patch pods", ClusterError("connection reset"))

    node.cluster.before("patch pods", taken_and_lost)

    await running.refused("connection reset")

    assert await running.agreed() == (OLD, 10)


@pytest.mark.parametrize("moment", ["after the intent", "after the limits", "after the pod"])
async def test_a_daemon_that_is_killed_leaves_what_the_next_one_ends(node, running, moment):
    await running.starts()
    write, patch = running.write, node.cluster.patch_pod

    async def written(held, grants):
        if moment == "after the intent":
            raise Killed
        await write(held, grants)

    async def patched(*arguments):
        if moment == "after the pod":
            await patch(*arguments)
        raise Killed

    running.resizer._write = written
    node.cluster.patch_pod = patched
    with pytest.raises(Killed):
        await running.resize()
    node.cluster.patch_pod = patch

    again = await node.restart()
    (held,) = again.ledger.held.values()
    assert held.resize is not None
    assert held.grants[0].memory == NEW  # the larger counts
    later = Running(again, running.limits)
    later.resizer.recover()
    await again.settled()

    expected = (NEW, 10) if moment == "after the pod" else (OLD, 10)
    assert later.held() == later.said() == expected
    assert again.ledger.held["a-uid", "main", QUESTION.resource].resized
    await again.settlement.close()
    again.journal.close()


async def test_the_end_of_the_pod_in_the_middle_leaves_nothing(node, running):
    made = await running.starts()
    node.cluster.before("patch pods", lambda: node.cluster.remove(made))

    await running.refused("not found")

    await node.settled()
    assert len(node.ledger.held) == 0


async def test_more_than_the_device_has_left_is_refused_with_who_has_it(node, running):
    await running.starts()
    await running.starts("b", memory=CARD_MIB - 2000, share=1)

    await running.refused(f"default/b holds {CARD_MIB - 2000}", "is to have 3000", "ask for less")

    assert await running.agreed() == (OLD, 10)
    assert running.resizer.counts["refused"] == 1
    await running.resize(memory=2000)


async def test_what_a_scheduler_has_given_to_a_pod_that_starts_is_not_given_away(node, running):
    await running.starts()
    node.cluster.add(pod("soon", [container(count=1, memory=CARD_MIB - OLD)], [[grant(0, CARD_MIB - OLD, 0)]]))

    await running.refused("default/soon holds")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"name": "nobody"}, "no pod default/nobody is on this node"),
        ({"container": "other"}, "those that have some: main"),
        ({"memory": CARD_MIB + 1}, f"has {CARD_MIB} MiB"),
    ],
)
async def test_a_refusal_names_what_to_change(running, wish, words):
    await running.starts()

    await running.refused(words, **wish)


@pytest.mark.parametrize(("changes", "words"), [({"phase": "Pending"}, "is Pending"), ({"deleted": True}, "ends")])
async def test_only_a_pod_that_runs_is_resized(running, changes, words):
    await running.starts(**changes)

    await running.refused(words)


async def test_a_device_that_failed_gives_no_more_and_takes_back(node, running):
    await running.starts()
    node.snapshot.set(snapshot(4, d0=Health.UNHEALTHY))

    await running.refused("no more of it is handed out")
    await running.resize(memory=500)

    assert await running.agreed() == (500, 10)


async def test_a_family_whose_limits_are_fixed_says_so(node):
    running = Running(node)
    running.resizer._sources = {QUESTION.resource: FamilySource(family=FAMILY, snapshot=node.snapshot)}
    await running.starts()

    await running.refused("are fixed when a container starts", "make a new pod")


async def test_two_at_once_take_turns(node, running):
    await running.starts()
    await running.starts("b", share=1)
    running.limits["main"] = None
    half = CARD_MIB - OLD - 1

    outcomes = await asyncio.gather(
        running.resize(memory=half), running.resize(memory=half, name="b"), return_exceptions=True
    )

    assert [isinstance(one, HamiError) for one in outcomes] == [False, True]
    assert running.resizer.idle


async def test_nothing_begins_while_another_daemon_takes_over(running):
    await running.starts()
    running.resizer.closed = "another daemon takes this node over"

    await running.refused("takes this node over", "ask again")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"namespace": "n", "pod": "p"},
        {"namespace": "n", "pod": "", "memory": 1},
        {"namespace": "n", "pod": "p", "memory": 0},
        {"namespace": "n", "pod": "p", "memory": True},
        {"namespace": "n", "pod": "p", "memory": 1.5},
        {"namespace": "n", "pod": "p", "cores": 101},
        {"namespace": "n", "pod": 7, "cores": 10},
        {"namespace": "n", "pod": "p", "container": "c" * 300, "cores": 10},
        {"namespace": "n", "pod": "p", "cores": 10, "node": "x"},
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(document):
    with pytest.raises(HamiError):
        parse_resize_request(document)
