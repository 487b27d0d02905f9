"""A plugin that behaves, a kubelet on real sockets, and an endpoint between them."""

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cdi.spec import ContainerEdits
from hami_plugin.kubelet.endpoint import Endpoint, EndpointTiming
from hami_plugin.kubelet.listener import Listener
from hami_plugin.kubelet.servicer import DevicePluginServicer
from hami_plugin.model.delivery import Answer
from hami_plugin.model.ports import NullObserver, Offer
from hami_plugin.process.concurrency import Backoff, Watched, cancel
from hami_plugin.simulation.kubelet import FakeKubelet

RESOURCE = "example.com/gpu"


class Plugin:
    """Offers ``ids``; answers Allocate with the ids it was asked for; keeps what it was asked."""

    def __init__(self, ids=("a", "b", "c", "d"), *, resource=RESOURCE, pre_start=True):
        self.resource = resource
        self.pre_start_required = pre_start
        self.offers = Watched(tuple(Offer(id=i, healthy=True, numa=0) for i in ids))
        self.allocated = []
        self.started = []
        self.preference = lambda available, must, size: sorted(available)[-size:]
        self.failure = None
        self.delay = 0.0

    async def allocate(self, ids):
        await asyncio.sleep(self.delay)
        if self.failure:
            raise self.failure
        self.allocated.append(tuple(ids))
        return Answer(edits=ContainerEdits(env={"IDS": ",".join(sorted(ids))}))

    async def prefer(self, available, must_include, size):
        await asyncio.sleep(self.delay)
        return self.preference(available, must_include, size)

    async def pre_start(self, ids):
        if self.failure:
            raise self.failure
        self.started.append(tuple(ids))

    def health(self, **healthy):
        self.offers.set(
            tuple(Offer(id=o.id, healthy=healthy.get(o.id, o.healthy), numa=o.numa) for o in self.offers.value)
        )


class Counting(NullObserver):
    def __init__(self):
        self.outcomes = []
        self.states = []

    def allocation(self, resource, outcome, seconds):
        self.outcomes.append(outcome)

    def endpoint(self, state):
        self.states.append(state)


QUICK = EndpointTiming(
    tick=0.2,
    dial_back=30.0,
    settle=0.2,
    pace=0.01,
    refused=Backoff(first=0.1, cap=0.3, jitter=0),
    pause=Backoff(first=60, cap=60, jitter=0),
)


class Site:
    """One node's directory, with whatever the test puts there."""

    def __init__(self, root, stack):
        self.directory = root / "device-plugins"
        self.pod_resources = root / "pod-resources" / "kubelet.sock"
        self.directory.mkdir(mode=0o750)
        self.stirred = Watched(None)
        """Wakes when a listener's streams change."""
        self._stack = stack

    async def kubelet(self, **options):
        kubelet = FakeKubelet(self.directory, self.pod_resources, **options)
        await kubelet.start()
        self._stack.push_async_callback(kubelet.stop)
        return kubelet

    async def endpoint(self, plugin, *, observer=None, timing=QUICK, **options):
        """An endpoint that runs until the test ends."""
        endpoint = Endpoint(plugin, self.directory, observer or Counting(), timing=timing, **options)
        task = asyncio.create_task(endpoint.run())
        self._stack.push_async_callback(cancel, task)
        self._stack.push_async_callback(endpoint.close)
        return endpoint

    async def listener(self, plugin, *, observer=None, **options):
        """A served plugin that is not registered anywhere."""
        servicer = DevicePluginServicer(
            plugin, observer or Counting(), changed=self.stirred.touch, pace=0.01, **options
        )
        listener = await Listener.open(self.directory / "own.sock", servicer)
        self._stack.push_async_callback(listener.close)
        return listener


async def reach(watched, condition, within=30.0):
    """Wait until the watched value fulfils ``condition``."""
    async with asyncio.timeout(within):
        while not condition(watched.value):
            await watched.changed(watched.version)
    return watched.value


@pytest.fixture
async def site():
    # Not pytest's tmp_path: a Unix socket's path has room for 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="kl"))
    async with AsyncExitStack() as stack:
        yield Site(root, stack)
    shutil.rmtree(root)


@pytest.fixture
def make_plugin():
    return Plugin


@pytest.fixture
def observer():
    return Counting()


@pytest.fixture
def until():
    return reach


@pytest.fixture
def quick():
    return QUICK
