"""Does anything of the daemon grow with the number of pods that ever were?"""

import asyncio

import pytest

from hami_plugin.errors import HamiError
from tests.support.beside import beside
from tests.support.builders import COUNT, container, grant, ids, pod
from tests.support.node import until
from tests.support.scale import sized
from tests.support.sizes import sizes

FEW, MANY = 1_000, sized(2_400, 10_000)
SLACK = 300
"""What is bounded may be less than full after the few. What grows with any kind of life has 350 more, or 2,250."""


def foreign(one):
    return type(one).__module__.startswith(
        ("tests.", "hami_plugin.simulation", "prometheus_client.", "grpc", "_cython")
    )


class Lives:
    """Pods that come and go. Each kind ends in another way."""

    def __init__(self, daemon, api):
        self.daemon, self.api, self.number = daemon, api, 0
        (self.plugin,) = [one.plugin for one in daemon.node.serving.resources if one.plugin.resource == COUNT]

    async def pass_by(self, count):
        while self.number < count:
            await asyncio.gather(self.on(card=0), self.on(card=1))
        await until(lambda: self.daemon.node.settlement.idle and self.daemon.node.events._queue.empty())

    async def on(self, card):
        """One of each kind, each on an id of its own."""
        for share, kind in enumerate((self.served, self.refused, self.deleted, self.failed)):
            self.number += 1
            await kind(f"p{self.number}", card, ids((card, share)))

    async def served(self, name, card, ids):
        one = self.api.add(pod(name, pieces=[[grant(card, 1000 + self.number)]]))
        await self.plugin.allocate(ids)
        await until(lambda: one.uid not in self.daemon.node.settlement._tasks)
        self.api.change(one, phase="Running")
        self.api.change(one, phase="Succeeded")
        self.api.remove(one)

    async def refused(self, name, card, ids):
        """More than it asks for."""
        one = self.api.add(pod(name, [container(count=1, memory=1)], [[grant(card, 1000 + self.number)]]))
        with pytest.raises(HamiError):
            await self.plugin.allocate(ids)
        self.api.change(one, phase="Failed")
        self.api.remove(one)

    async def deleted(self, name, card, ids):
        """In the middle of its admission, and its start."""
        one = self.api.add(pod(name, pieces=[[grant(card, 1000 + self.number)]]))
        await self.plugin.allocate(ids)
        self.api.remove(one)
        self.daemon.node.settlement.fail(one)
        with pytest.raises(HamiError):
            await self.plugin.pre_start(ids)

    async def failed(self, name, card, ids):
        one = self.api.add(pod(name, pieces=[[grant(card, 1000 + self.number)]]))
        await self.plugin.allocate(ids)
        self.daemon.node.settlement.fail(one)
        await asyncio.sleep(0)
        self.api.change(one, phase="Failed")
        self.api.remove(one)


async def test_nothing_grows_with_the_number_of_pods_that_ever_were(monkeypatch):
    monkeypatch.setattr("hami_plugin.node_status.cost.MAX_ENDED", 16)  # as above: full long before
    monkeypatch.setattr("hami_plugin.node_status.cost.MAX_UNPAID", 16)
    async with beside() as stage:
        await stage.kubelet.until(lambda: stage.kubelet.allocatable(COUNT) == 8)
        stage.daemon.node.settlement._together = 0.0
        stage.daemon.node.events.MAX_REPORTED = 64  # full long before the few have passed
        lives = Lives(stage.daemon, stage.api)
        await lives.pass_by(FEW)
        stage.daemon.node.state.journal.flush(
            60.0
        )  # while the journal is rewritten, it keeps what is appended meanwhile
        before = sizes(stage.daemon, foreign)
        await lives.pass_by(MANY)
        stage.daemon.node.state.journal.flush(60.0)
        after = sizes(stage.daemon, foreign)

        grown = {place: (before[place], size) for place, size in after.items() if size > before[place] + SLACK}
        assert grown == {}
        reached = {"HeldShares._by_key", "Settlement.failed", "PodReader._known", "PodTable._pods", "PodTable.ranks"}
        assert reached <= before.keys()  # else nothing was looked at
        assert stage.daemon.node._ledger.held == {}
