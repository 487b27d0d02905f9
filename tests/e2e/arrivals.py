"""Pods that arrive while something happens to the daemon, and what becomes of them and of the devices."""

import asyncio
import time
from collections import deque
from dataclasses import replace

from hami_plugin.protocol import keys
from hami_plugin.simulation.kubelet import AdmissionError
from tests.e2e.manifests import small
from tests.e2e.steps import fail, take_down
from tests.e2e.truth import annotation

WITHIN_S = 180.0
"""Two daemons and a node that is busy all the time, on a machine that may be."""
EVERY_S = 0.1
ALIVE = 12


class Arrivals:
    """Ten pods a second, and how often, and for how long, some of the devices were not allocatable meanwhile."""

    def __init__(self, stage):
        self.arrived = self.failed = self.fell = 0
        self.waited = self.gap = 0.0
        self.pods = deque()
        self.why = set()
        self._stage = replace(stage, daemon=None)  # it outlives daemons
        self._full = stage.kubelet.allocatable(stage.resource)
        self._lacking = None

    async def __aenter__(self):
        self._ending = asyncio.Event()
        self._tasks = [asyncio.create_task(self._arrive()), asyncio.create_task(self._observe())]
        return self

    async def __aexit__(self, *_error):
        self._ending.set()
        await self._tasks[0]
        self._tasks[1].cancel()

    async def more(self, count):
        """Wait until so many more have arrived."""
        wanted = self.arrived + count
        await self._stage.until(lambda: self.arrived >= wanted, "more pods", WITHIN_S)

    def __str__(self):
        return (
            f"{self.arrived} pods arrived, {self.failed} failed, the slowest was admitted in {self.waited:.2f} s; "
            f"devices were missing for {self.gap * 1000:.0f} ms at most {self.why or ''}"
        )

    async def _arrive(self):
        stage, due = self._stage, time.monotonic()
        while not self._ending.is_set():
            due += EVERY_S
            await stage.until(lambda: not annotation(stage, keys.NODE_LOCK), "the node lock's release", WITHIN_S)
            pod = stage.scheduler.place(small(f"arrives-{self.arrived}", stage.family.resources, memory=1000, cores=5))
            self.arrived += 1
            began = time.monotonic()
            try:
                await stage.kubelet.admit(pod)
            except AdmissionError as error:
                self.failed += 1
                self.why.add(str(error)[:300])
                fail(stage, pod)
                stage.api.delete_pod(pod.namespace, pod.name)
                stage.api.annotate_node(stage.node, {keys.NODE_LOCK: None})
            else:
                self.pods.append(pod)
            self.waited = max(self.waited, time.monotonic() - began)
            if len(self.pods) > ALIVE:
                take_down(stage, self.pods.popleft())
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _observe(self):
        kubelet, since = self._stage.kubelet, None
        while True:
            seen = kubelet.changes.version
            lacks = kubelet.allocatable(self._stage.resource) < self._full
            now = time.monotonic()
            if since is not None:
                self.gap = max(self.gap, now - since)
            self.fell += lacks and since is None
            since = (since or now) if lacks else None
            await kubelet.changes.changed(seen, EVERY_S / 10)
