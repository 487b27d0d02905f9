"""Many daemons at once, as after a power cut: what do they ask of the API server, and when?"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from hami_plugin.cluster.client import connect
from hami_plugin.cluster.informer import WatchTiming
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.node_status.registration import FamilySource, LiveNode, Registration, Style
from hami_plugin.process.concurrency import Backoff, Watched
from hami_plugin.scheduler.extender.extender import local_time
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.builders import FAMILY, snapshot
from tests.support.scale import sized
from tests.support.scheduling import until
from tests.support.watching import Pods, running

DAEMONS = sized(10, 40)
"""Each with connections of its own, in one process. They share nothing, so that 500 would ask for as much each."""


class One:
    """What a daemon asks for at its start: its pods, its node, and that the node says what it has."""

    def __init__(self, cluster, name):
        self.pods, self.node = Pods(), LiveNode()
        self._cluster = cluster
        self.registration = Registration(
            cluster,
            [FamilySource(family=FAMILY, snapshot=Watched(snapshot(2)))],
            node=self.node,
            events=EventRecorder(cluster, name),
            style=Style(),
            now=local_time,
        )

    async def run(self):
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.follow_pods(self.pods.feed))
            group.create_task(self._cluster.follow_node(self.node.deliver))
            group.create_task(self.registration.run())

    @property
    def settled(self):
        return self.pods.replaced and not self.registration.problem


async def started(server, folder, stack, number):
    name = f"n{number}"
    kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
    cluster = await stack.enter_async_context(connect(name, kubeconfig=kubeconfig, environ={}))
    one = One(cluster, name)
    await stack.enter_async_context(running(one.run()))
    return one


@pytest.mark.scenario("P14")
async def test_daemons_that_start_again_ask_for_three_things_each(tmp_path):
    async with SimulatedApiServer() as server:
        for number in range(DAEMONS):
            server.create_node(f"n{number}")
        for _ in range(2):  # at the first start nodes are told what they have; that stays
            server.requests.clear()
            async with AsyncExitStack() as stack:
                daemons = [await started(server, tmp_path, stack, number) for number in range(DAEMONS)]
                await until(lambda ones=daemons: all(one.settled for one in ones), within=60)
                await until(lambda: server.count("watch=1") >= 2 * DAEMONS, within=60)
                await asyncio.sleep(1.0)

    asked = Counter(next(iter(one.query.get("fieldSelector", "").split("=")[1:]), "") for one in server.requests)
    assert set(asked.values()) == {3}
    assert len(asked) == DAEMONS
    assert not [one for one in server.requests if one.writes]


@pytest.mark.scenario("P14")
def test_daemons_that_failed_together_do_not_try_again_together():
    """500 daemons whose first call was refused at the same moment: how many tries fall into the same tenth second?"""
    delays = [WatchTiming().backoff.delays() for _ in range(500)]
    at = [0.0] * 500
    tries: Counter[int] = Counter()
    for number, series in enumerate(delays):
        while at[number] < 10.0:
            at[number] += next(series)
            if at[number] < 10.0:
                tries[int(at[number] * 10)] += 1

    assert max(tries.values()) <= 150  # all of them, without a jitter
    assert sum(tries.values()) / 500 <= 7  # and not without a pause


@pytest.mark.scenario("P14")
def test_a_backoff_without_jitter_would_be_noticed():
    steady = Backoff(first=0.5, cap=20.0, jitter=0.0)
    tries = Counter(int(next(steady.delays()) * 10) for _ in range(500))

    assert max(tries.values()) == 500
