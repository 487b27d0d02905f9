"""What watches deliver, and waiting for it."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

from hami_plugin.model.ports import PodFeed
from hami_plugin.process.concurrency import Watched

WATCH_PODS = r"GET /api/v1/pods\?.*watch"
LIST_PODS = r"GET /api/v1/pods\?(?!.*watch)"


class Pods:
    """What a pod feed delivered, in order, and what that leaves."""

    def __init__(self):
        self.log = []
        self.held = {}
        self._changed = Watched(0)
        self.feed = PodFeed(replace=self._replace, update=self._update, delete=self._delete)

    @property
    def names(self) -> set[str]:
        return {pod.name for pod in self.held.values()}

    @property
    def replaced(self) -> int:
        return sum(1 for kind, _ in self.log if kind == "replace")

    async def until(self, condition: Callable[["Pods"], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition(self):
                await self._changed.changed(self._changed.version)

    def _replace(self, pods):
        self.held = {pod.key: pod for pod in pods}
        self._note("replace", len(pods))

    def _update(self, pod):
        self.held = {**self.held, pod.key: pod}
        self._note("update", pod.name)

    def _delete(self, pod):
        self.held = {key: held for key, held in self.held.items() if key != pod.key}
        self._note("delete", pod.name)

    def _note(self, *entry):
        self.log.append(entry)
        self._changed.touch()


class Nodes:
    """What a node watch delivered."""

    def __init__(self):
        self.seen = []
        self._changed = Watched(0)

    def __call__(self, node):
        self.seen.append(node)
        self._changed.touch()

    async def until(self, condition) -> None:
        async with asyncio.timeout(60):
            while not (self.seen and condition(self.seen[-1])):
                await self._changed.changed(self._changed.version)


@asynccontextmanager
async def running(endless):
    """Run an endless call beside the test; that it ended by itself fails the test."""
    task = asyncio.create_task(endless)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def requested(server, match: str, count: int = 1) -> None:
    """Until the server has seen ``count`` requests."""
    async with asyncio.timeout(60):
        while server.count(match) < count:  # noqa: ASYNC110  # the log has no way to wait
            await asyncio.sleep(0.01)


async def reachable(cluster, condition: Callable[[str], bool]) -> str:
    problem = cluster.reachable
    async with asyncio.timeout(60):
        while not condition(problem.value):
            await problem.changed(problem.version)
    return problem.value


def timers_towards(port: int) -> set[str]:
    """The kernel's timers of established connections to ``port`` on this machine."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[5][:2] for row in rows if int(row[2].rpartition(":")[2], 16) == port and row[3] == "01"}


def manifest(name: str, node: str = "n1", **annotations: str) -> dict:
    meta = {"name": name, "namespace": "team", "annotations": annotations}
    spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    return {"metadata": meta, "spec": {**spec, **({"nodeName": node} if node else {})}}
