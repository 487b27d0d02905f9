"""The API server is away, slow, refuses or forgets. Pods whose decision is known start without asking it."""

import asyncio
import time

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.protocol import keys
from tests.e2e.manifests import small
from tests.e2e.steps import WITHIN_S, bring_up, fail, refusal, sound, take_down
from tests.e2e.truth import annotation, difference, recorded
from tests.support.scale import spread

WRITES = "^(PATCH|POST|PUT|DELETE) "
PODS = 5
GUARD_S = 30.0
"""Against waiting for ever."""


async def known(stage, names):
    """Pods that are bound, and whose decisions have reached the daemon: it advises the first one's device."""
    pods = [stage.scheduler.place(small(name, stage.family.resources)) for name in names]
    free = sorted(stage.kubelet.ledger.free(stage.resource, 1))
    advice = await stage.kubelet.plugin(stage.resource).preferred(free, (), 1)
    assert len(advice) == 1
    # Events of a watch come in order. A last one that shows an effect outside has all others before it.
    wanted = annotation(stage, stage.family.rules.annotations.register)
    stage.api.annotate_node(NODE, {stage.family.rules.annotations.register: "disturbed"})
    await stage.until(
        lambda: annotation(stage, stage.family.rules.annotations.register) == wanted, "the repair of the node"
    )
    return pods


async def admitted(stage, pod):
    """The kubelet has the pod's devices, with the pod's own limits: the writes about the pod that had ended by then."""
    async with asyncio.timeout(GUARD_S):
        await stage.kubelet.admit(pod)
    ended = [str(request) for request in stage.api.requests if request.writes and request.path.endswith(f"/{pod.name}")]
    response = await stage.kubelet.start_container(pod.uid, "main")
    assert not difference(stage, pod, pod.containers[0], response.edits)
    stage.api.set_phase(pod.namespace, pod.name, "Running")
    return ended


async def refuse(stage):
    await stage.api.refuse()


async def hang(stage):
    stage.api.hang()


async def slow(stage):
    stage.api.faults.latency = 4.0


async def broken(stage):
    stage.api.error(500, count=None)


async def throttled(stage):
    stage.api.error(429, count=None, match="^(PATCH|POST)", retry_after=1)


async def in_conflict(stage):
    stage.api.error(409, count=5, match="^PATCH")


NEVER_ANSWERED = (refuse, hang, slow)
"""With these faults no write has ended while a pod is admitted: admission that waited for one would show it."""


async def heal(stage):
    stage.api.heal()
    stage.api.drop_watches()
    if stage.api._runner is None:
        await stage.api.accept()


@pytest.mark.scenario("P1", "P2", "P3", "P4", "P5", "P6")
@pytest.mark.parametrize(
    "fault", spread([refuse, hang, slow, broken, throttled, in_conflict], part=6), ids=lambda fault: fault.__name__
)
async def test_pods_that_are_known_start_without_the_api_server_while_it_is(fault, running):
    stage = await running()
    for pod in await known(stage, [f"before-{n}" for n in range(PODS)]):
        await admitted(stage, pod)
    await sound(stage)
    pods = await known(stage, [f"during-{n}" for n in range(PODS)])

    await fault(stage)
    ended = [await admitted(stage, pod) for pod in pods]
    await heal(stage)

    if fault in NEVER_ANSWERED:
        assert ended == [[]] * PODS
    await stage.until(lambda: all(recorded(stage, pod) for pod in pods), "the record of all pods", WITHIN_S)
    await sound(stage)


@pytest.mark.full
async def test_a_pod_that_is_not_known_is_refused_in_time_with_the_reason(running):
    stage = await running(decisionWaitSeconds=0.4)
    await stage.api.refuse()
    pod = stage.scheduler.place(small("unknown", stage.family.resources))

    async with asyncio.timeout(30):
        words = await refusal(stage, pod)
    await stage.api.accept()

    assert "no pod on this node waits for devices" in words
    await bring_up(stage, small("later", stage.family.resources))
    await stage.until(lambda: any(e["reason"] == "NoPendingPod" for e in stage.api.events()), "the Event", WITHIN_S)


@pytest.mark.full
@pytest.mark.scenario("P5")
async def test_writers_wait_as_long_as_retry_after_says(running):
    stage = await running()
    (pod,) = await known(stage, ["throttled"])
    stage.api.error(429, count=1, match="^PATCH", retry_after=1.5)

    await admitted(stage, pod)
    await stage.until(lambda: recorded(stage, pod), "the record")

    refused = next(request for request in stage.api.requests if request.status == 429)
    later = [r for r in stage.api.requests if r.writes and r.agent == "hami-plugin" and r.at > refused.at]
    assert later
    assert later[0].at - refused.at >= 1.4


@pytest.mark.scenario("P7")
@pytest.mark.parametrize("loss", spread(["drop_watches", "expire_watches", "compact"], part=3))
async def test_a_lost_watch_is_taken_up_again_and_misses_nothing(loss, running):
    stage = await running()
    gone = await bring_up(stage, small("gone", stage.family.resources))

    getattr(stage.api, loss)()
    if loss == "compact":
        stage.api.drop_watches()
    take_down(stage, gone)

    await sound(stage)
    await bring_up(stage, small("later", stage.family.resources))
    await sound(stage)


@pytest.mark.scenario("P9", "P10")
async def test_annotations_that_somebody_removes_or_that_were_lost_come_back(running):
    stage = await running()
    key = stage.family.rules.annotations.register
    wanted = annotation(stage, key)

    stage.api.annotate_node(NODE, {key: None})
    await stage.until(lambda: annotation(stage, key) == wanted, "the annotation")
    stage.api.delete_node(NODE)
    stage.api.create_node(NODE)
    await stage.until(lambda: annotation(stage, key) == wanted, "the annotation at the new node")


@pytest.mark.full
async def test_nothing_is_written_while_nothing_changes(running):
    stage = await running(rescanSeconds=0.3)
    await bring_up(stage, small("quiet", stage.family.resources))
    await sound(stage)
    await stage.until(lambda: not stage.api.count(WRITES, since=time.monotonic() - 1), "silence")

    began = time.monotonic()
    await stage.until(lambda: time.monotonic() - began > 5, "five seconds")

    assert [str(request) for request in stage.api.requests if request.writes and request.at > began] == []


@pytest.mark.full
async def test_a_lock_whose_owner_is_gone_is_released(running):
    stage = await running()
    (pod,) = await known(stage, ["owner"])
    fail(stage, pod)
    take_down(stage, pod)

    assert annotation(stage, keys.NODE_LOCK)
    await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the lock's release", WITHIN_S)
