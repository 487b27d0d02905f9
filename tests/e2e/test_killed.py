"""The daemon is killed between any two steps of an Allocate, and started again."""

import asyncio
import signal
from pathlib import Path

import pytest

from hami_plugin.protocol import keys
from hami_plugin.simulation.kubelet import AdmissionError, Allotment
from tests.e2e import dying
from tests.e2e.manifests import small
from tests.e2e.steps import bring_up, confirm, fail, sound, start, take_down
from tests.e2e.truth import annotation, journal
from tests.support.scale import spread

LAUNCHER = str(Path(dying.__file__))


async def killed(set_up, step):
    """A stage whose daemon has killed itself at ``step`` of a pod's Allocate; and the pod."""
    stage = await set_up()
    reply = stage.directory / "answered"
    await start(stage, LAUNCHER, step, str(reply))
    pod = stage.scheduler.place(small("victim", stage.family.resources))
    answered = True
    try:
        await stage.kubelet.admit(pod)
    except AdmissionError:
        answered = False
    reply.touch()
    async with asyncio.timeout(30):
        assert await stage.daemon.wait() == -signal.SIGKILL
    assert answered is (step in dying.AFTER_THE_REPLY)
    stage.daemon = None
    return stage, pod


async def repeat(stage, pod):
    """The kubelet asks once more: for the ids of its first call, where that is known to have come far enough."""
    first = [held for held in journal(stage) if held.uid == pod.uid]
    if not first:
        await stage.kubelet.admit(pod)
        return
    ids = tuple(first[0].ids)
    response = await stage.kubelet.plugin(stage.resource).allocate(ids)
    stage.kubelet.give(pod, "main", stage.resource, Allotment(ids=ids, answer=response))


async def other_pods_are_served(stage):
    """Two at once, as large as the killed one: nothing is booked twice, and nothing was lost."""
    await stage.until(
        lambda: not annotation(stage, keys.NODE_LOCK),
        "the lock's release",
    )
    for name in ("next", "last"):
        take_down(stage, await bring_up(stage, small(name, stage.family.resources)))


@pytest.mark.parametrize("conduct", spread(["repeats the call", "fails the pod"], part=2))
@pytest.mark.scenario("A5")
async def test_sigkill_before_the_reply_leaks_nothing_whether_the_kubelet(conduct, set_up):
    async def scenario(step):
        stage, pod = await killed(set_up, step)
        await start(stage)
        if conduct == "repeats the call":
            await repeat(stage, pod)
            await confirm(stage, pod)
        else:
            fail(stage, pod)
        await other_pods_are_served(stage)
        await sound(stage)
        take_down(stage, pod)
        await sound(stage)
        assert journal(stage) == []

    await asyncio.gather(*(scenario(step) for step in spread(dying.BEFORE_THE_REPLY, part=4)))


@pytest.mark.full
@pytest.mark.scenario("A5")
async def test_sigkill_after_the_reply_is_made_good_by_the_next_life(set_up):
    async def scenario(step):
        stage, pod = await killed(set_up, step)
        await start(stage)
        await confirm(stage, pod)
        await other_pods_are_served(stage)
        await sound(stage)
        assert [held.uid for held in journal(stage)] == [pod.uid]
        take_down(stage, pod)
        await sound(stage)
        assert journal(stage) == []

    await asyncio.gather(*(scenario(step) for step in spread(dying.AFTER_THE_REPLY, part=4)))


@pytest.mark.full
@pytest.mark.scenario("A5")
async def test_a_kubelet_that_chooses_anew_after_both_were_killed_never_gets_another_ones_limits(set_up, tell):
    stage, pod = await killed(set_up, "written")
    await start(stage)
    await stage.kubelet.restart()
    await stage.until(lambda: stage.kubelet.allocatable(stage.resource) > 0, "the list after the restart")

    try:
        await stage.kubelet.admit(pod)
        await confirm(stage, pod)
    except AdmissionError as error:
        tell(f"refused: {error}")
        fail(stage, pod)

    await other_pods_are_served(stage)
    await sound(stage)
