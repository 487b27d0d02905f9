"""The daemon is killed at each write and call of a partition that a claim has: none is made twice, and none is left."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from hami_plugin.demo.node import GUARD_S
from hami_plugin.simulation.dra import PrepareError
from tests.e2e import dying_claims as dying
from tests.e2e.claiming import DRIVER, spec_directories, staged
from tests.e2e.test_claims_killed import Killed
from tests.e2e.test_claims_partitions import asking, cut, driver, nothing_left, there
from tests.support.scale import spread


class KilledCutter(Killed):
    """A stage of cards that are cut for claims."""

    async def dies_at(self, name, spot):
        """As ``dies``, wherever it dies: what is destroyed is destroyed after the answer."""
        pod = self.stage.place(name, request=asking("1g.5gb"))
        if spot in dying.MADE:
            self.file.write_text(spot)
            with pytest.raises(PrepareError, match="UNAVAILABLE"):
                await self.kubelet.prepare(pod)
        else:
            await self.kubelet.prepare(pod)
            self.file.write_text(spot)
            with suppress(PrepareError):
                await self.kubelet.unprepare(pod)
        await self.dead()
        return pod

    async def boot(self):
        """As of a host: a boot unmakes all instances."""
        await super().boot()
        for one in there(self.stage):
            driver(self.stage.node).destroy(one, lambda _ids: None)

    async def has_one(self, pod):
        """The claim has its one instance, and no second was made; again and again."""
        (made,) = there(self.stage)
        first = self.answer(pod)
        assert len([node for node in first[2].device_nodes if "nvidia-caps" in node.path]) == 2
        await self.kubelet.restart()
        await self.node.until(lambda: self.kubelet.registered(DRIVER), "the kubelet's return", GUARD_S)
        await self.kubelet.prepare(pod)
        assert self.answer(pod) == first
        assert there(self.stage) == (made,)


async def asks_again(one, pod, spot):
    await one.start()
    if spot in dying.MADE:
        await one.kubelet.prepare(pod)
        await one.has_one(pod)
    await one.kubelet.unprepare(pod)
    one.stage.end(pod)


async def booted(one, pod, spot):
    await one.boot()
    await asks_again(one, pod, spot)


async def pod_gone(one, pod, _spot):
    one.stage.end(pod)
    await one.start()
    await one.kubelet.unprepare(pod)


async def forgotten(one, pod, _spot):
    one.stage.end(pod)
    one.kubelet._claims.clear()
    one.file.with_suffix(".lost").touch()
    await one.start()


COMPANY = {
    "the kubelet asks again": asks_again,
    "the host was booted anew": booted,
    "the pod was deleted by force": pod_gone,
    "the kubelet has lost its state": forgotten,
}
POINTS = [*dying.MADE, *dying.DESTROYED]


@pytest.fixture
async def killed(set_up, tmp_path):
    async with staged(set_up, spec_directories(tmp_path), operatingMode="mig") as stage:
        cut(stage)
        one = KilledCutter(stage)
        await one.start()
        yield one


@pytest.mark.full
@pytest.mark.scenario("A5")
@pytest.mark.parametrize("company", spread(COMPANY, part=4))
async def test_a_daemon_that_dies_at_any_point_of_a_claims_partition_leaves_none_when(company, killed):
    at = list(COMPANY).index(company)
    points = POINTS if len(spread(POINTS)) == len(POINTS) else POINTS[at::8]
    for number, spot in enumerate(points):
        pod = await killed.dies_at(f"p{number}", spot)
        try:
            await COMPANY[company](killed, pod, spot)
            async with asyncio.timeout(GUARD_S):
                await nothing_left(killed.stage)
        except Exception as error:
            raise AssertionError(f"killed when {spot}: {error!r}") from error


@pytest.mark.full
async def test_after_a_boot_the_instance_is_made_anew_for_the_same_claim(killed):
    pod = killed.stage.place("small", request=asking("1g.5gb"))
    await killed.kubelet.prepare(pod)
    (before,) = there(killed.stage)
    names = killed.kubelet.cdi_devices(pod, "main")
    await killed.node.stop_daemon(kill=True)
    await killed.boot()
    assert there(killed.stage) == ()
    await killed.start()

    await killed.kubelet.prepare(pod)

    (after,) = there(killed.stage)
    assert (after.card, after.placement) == (before.card, before.placement)
    assert killed.kubelet.cdi_devices(pod, "main") == names
    await killed.has_one(pod)
    await killed.kubelet.unprepare(pod)
    killed.stage.end(pod)
    await nothing_left(killed.stage)
