"""A simulated API server over real HTTP, and a client in a hurry."""

import dataclasses

import pytest

from hami_plugin.cluster.client import connect
from hami_plugin.cluster.informer import WatchTiming
from hami_plugin.model.ports import NullObserver
from hami_plugin.process.concurrency import Backoff
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.watching import Pods, running


class Counting(NullObserver):
    """Keeps the reported calls."""

    def __init__(self):
        self.calls, self.unreadable_objects = [], []

    def api_call(self, verb, kind, outcome, seconds):
        assert seconds >= 0
        self.calls.append((verb, kind, outcome))

    def unreadable(self, kind):
        self.unreadable_objects.append(kind)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def server():
    async with SimulatedApiServer(bookmark_seconds=0.1) as server:
        server.create_node("n1")
        yield server


@pytest.fixture
def timing():
    """Of a client in a hurry, whose calls have time all the same: a test of a deadline sets it."""
    return WatchTiming(
        deadline=30.0,
        watch=(30.0, 60.0),
        settled=0.05,
        list_every=0.4,
        backoff=Backoff(first=0.02, cap=0.1),
    )


@pytest.fixture
def observer():
    return Counting()


@pytest.fixture
async def cluster(server, timing, observer, tmp_path):
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with connect("n1", kubeconfig=kubeconfig, timing=timing, observer=observer, environ={}) as cluster:
        yield cluster


@pytest.fixture
def brief(server, timing, observer, tmp_path):
    """Connect a client whose calls end after half a second."""
    kubeconfig, short = server.write_kubeconfig(tmp_path / "kubeconfig"), dataclasses.replace(timing, deadline=0.5)
    return lambda: connect("n1", kubeconfig=kubeconfig, timing=short, observer=observer, environ={})


@pytest.fixture
async def pods(cluster):
    """A feed that is being filled, past its first list."""
    pods = Pods()
    async with running(cluster.follow_pods(pods.feed)):
        await pods.until(lambda pods: pods.replaced)
        yield pods
