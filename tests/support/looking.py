"""A watch over a scripted driver, with paces of milliseconds, and the time that it goes by."""

import asyncio

from hami_plugin.inventory.discovery import DiscoveryLoop, DiscoveryTiming
from hami_plugin.inventory.health import HealthLimits
from hami_plugin.inventory.inventory import Inventory
from hami_plugin.node_status.events import EventRecorder
from hami_plugin.process.aio import Backoff
from tests.support.builders import NODE
from tests.support.cluster import FakeCluster
from tests.support.node import Counting, until

FAST = DiscoveryTiming(poll=0.002, rescan=0.01, probe=0.004, links=3600.0, timeout=0.1, hang=0.3, close_timeout=0.05)


class Clock:
    """Time that passes with each look at it, and when a test says so, not while a process is slow or stopped."""

    STEP_S = 0.001

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += self.STEP_S
        return self.now


class Rig:
    def __init__(self, driver, timing=FAST):
        self.driver = driver
        self.inventory = Inventory(HealthLimits(hold=0.01, clean_looks=2), forget=0.2)
        self.observer, self.remembered = Counting(), []
        self.events = EventRecorder(FakeCluster(), NODE)
        self.watch = DiscoveryLoop(
            "toy",
            driver,
            self.inventory,
            timing=timing,
            observer=self.observer,
            events=self.events,
            remember=lambda: self.remembered.append(dict(self.inventory.conditions)),
            backoff=Backoff(first=0.002, cap=0.004),
        )
        self.task = asyncio.create_task(self.watch.run())

    @property
    def shown(self):
        return self.inventory.found

    def health(self) -> dict[int, str]:
        return {d.index: d.health.value for d in self.shown.devices}

    def told(self) -> set[str]:
        return {event.reason for event in self.events._queue._queue}

    async def noticed(self, clock):
        """Until the watch has looked at what the driver is busy with now."""
        seen = clock.now
        await until(lambda: self.watch.beat > seen)
