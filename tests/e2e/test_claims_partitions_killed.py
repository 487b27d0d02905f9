"""The daemon is killed at each write and call of a partition that a claim has: none is made twice, and none is left."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from hami_plugin.demo.node import GUARD_S
from tests.e2e import dying_claims as dying
from tests.e2e.claiming import spec_directories
from tests.e2e.cut_vendors import ASCEND, CAMBRICON, ENFLAME, NVIDIA
from tests.e2e.killed import COMPANY, Killed, dies_everywhere, prepared


class KilledCutter(Killed):
    """A stage of cards that are cut for claims. What is destroyed is destroyed after the answer."""

    made, released = dying.MADE, dying.DESTROYED
    answered = True

    def __init__(self, stage, vendor):
        super().__init__(stage, request=dict(vendor.asked))
        self.vendor = vendor
        if vendor is not NVIDIA:
            self.made, self.released = ([(one,) for one in deaths] for deaths in vendor.deaths)

    def arm(self, spot):
        if self.vendor is NVIDIA:
            super().arm(spot)
        else:
            self.vendor.order(self.stage, spot)

    def there(self):
        return self.vendor.there(self.stage)

    async def boot(self):
        """As of a host: of some vendors a boot unmakes all partitions."""
        await super().boot()
        for one in self.there() if self.vendor.boots else ():
            self.vendor.tool(self.stage).destroy(one, lambda _ids: None)

    async def holds(self, pod):
        """The claim has its one partition, and no second was made; again and again."""
        if self.boots and not self.vendor.boots:  # what an earlier boot has begun goes, and is not taken over
            await self.node.until(lambda: len(self.there()) == 1, "the end of what was begun", GUARD_S)
        (made,) = self.there()
        assert made.uuid
        first = self.answer(pod)
        if self.vendor is NVIDIA:
            assert len([node for node in first[2].device_nodes if "nvidia-caps" in node.path]) == 2
        assert await self.asked_again(pod) == first
        assert self.there() == (made,)

    async def clean(self):
        await self.vendor.nothing_left(self.stage)


@asynccontextmanager
async def cutter(vendor, set_up, tmp_path):
    async with vendor.staged(set_up, spec_directories(tmp_path)) as stage:
        vendor.prepare(stage)
        one = KilledCutter(stage, vendor)
        await one.start()
        yield one


@pytest.fixture
async def killed(set_up, tmp_path):
    async with cutter(NVIDIA, set_up, tmp_path) as one:
        yield one


@pytest.mark.full
@pytest.mark.scenario("A5")
@pytest.mark.parametrize("company", list(COMPANY)[:4])
async def test_a_daemon_that_dies_at_any_point_of_a_claims_partition_leaves_none_when(company, killed):
    await dies_everywhere(killed, company, part=5)


@pytest.mark.full
@pytest.mark.scenario("A5")
@pytest.mark.parametrize("company", list(COMPANY)[:2])
@pytest.mark.parametrize("vendor", [ENFLAME, CAMBRICON, ASCEND], ids=lambda one: one.name)
async def test_a_daemon_that_dies_beside_a_call_that_cuts_a_card_leaves_none_when(vendor, company, set_up, tmp_path):
    async with cutter(vendor, set_up, tmp_path) as one:
        await dies_everywhere(one, company, part=1)


@pytest.mark.full
async def test_after_a_boot_the_instance_is_made_anew_for_the_same_claim(killed):
    pod = killed.stage.place("small", **killed.asked)
    await killed.kubelet.prepare(pod)
    (before,) = killed.there()
    names = killed.kubelet.cdi_devices(pod, "main")
    await killed.node.stop_daemon(kill=True)
    await killed.boot()
    assert killed.there() == ()
    await killed.start()

    await prepared(killed.kubelet, pod)

    (after,) = killed.there()
    assert (after.card, after.placement) == (before.card, before.placement)
    assert killed.kubelet.cdi_devices(pod, "main") == names
    await killed.holds(pod)
    await killed.kubelet.unprepare(pod)
    killed.stage.end(pod)
    await killed.clean()
