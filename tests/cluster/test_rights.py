"""The list of rights against the calls that reach an API server, from the daemon's client and the scheduler's."""

import asyncio
import re

import pytest

from hami_plugin.cluster.client import connect, connect_wide
from hami_plugin.cluster.informer import WatchTiming
from hami_plugin.dra.slices import slice_view
from hami_plugin.model.ports import ClusterApi, NodeApi, Subject
from hami_plugin.model.views import Feed, PodPatch, pod_view
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.rights import CLAIMS, DAEMON, DRIVERS, SCHEDULER

KINDS = "nodes|pods|events|resourcequotas|resourceslices|resourceclaimtemplates|resourceclaims|deviceclasses"
PATH = re.compile(
    rf"/(?:api|apis/resource\.k8s\.io)/v1(?:/namespaces/[^/]+)?/(?P<kind>{KINDS})(?:/[^/]+(?P<sub>/.*)?)?$"
)
VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def used(server):
    """Verb and resource of each request, as an authoriser reads them from method, path and query."""
    found = set()
    for request in server.requests:
        match = PATH.match(request.path)
        assert match, f"{request.path} is no path that is known here"
        named = len(request.path.split(match["kind"])[1]) > 0
        verb = VERBS.get(request.verb) or (
            "watch" if request.query.get("watch") in ("1", "true") else "get" if named else "list"
        )
        found.add((match["kind"] + (match["sub"] or ""), verb))
    return found


def granted(rights):
    return {(right.resource, right.verb) for right in rights}


def a_pod(server, name):
    return pod_view(server.create_pod({"metadata": {"name": name, "namespace": "team"}, "spec": {}}))


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # requests at a real socket set no event
            await asyncio.sleep(0.02)


async def ended(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def watched(server, *kinds):
    return lambda: {(kind, "watch") for kind in kinds} <= used(server)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def feed():
    return Feed(replace=lambda _: None, update=lambda _: None, delete=lambda _: None)


async def test_the_daemons_rights_are_the_calls_that_it_makes(tmp_path):
    async with SimulatedApiServer() as server:
        server.create_node("n1")
        pod = a_pod(server, "p")
        config = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with connect("n1", kubeconfig=config, timing=WatchTiming(), environ={}) as cluster:
            tasks = [asyncio.create_task(cluster.follow_pods(feed())), asyncio.create_task(cluster.follow_node(print))]
            await cluster.get_node()
            await cluster.patch_node({"a": "1"})
            await cluster.patch_pod(pod, {"a": "1"})
            for _ in range(2):
                await cluster.create_event(Subject(kind="Node", name="n1"), reason="R", message="m", warning=True)
            await until(watched(server, "pods", "nodes"))
            server.expire_watches()  # a gap
            await until(lambda: ("nodes", "list") in used(server))
            await ended(tasks)
        assert used(server) == granted(DAEMON)


async def test_the_rights_of_drivers_are_the_calls_that_they_make(tmp_path):
    document = {"metadata": {"name": "s"}, "spec": {"nodeName": "n1", "driver": "d"}}
    async with SimulatedApiServer() as server:
        server.create_claim({"metadata": {"name": "c", "namespace": "team"}, "spec": {}})
        config = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with connect("n1", kubeconfig=config, timing=WatchTiming(), environ={}) as cluster:
            task = asyncio.create_task(cluster.follow_slices(feed(), slice_view))
            await cluster.get_claim("team", "c")
            made = slice_view(await cluster.create_slice(document))
            await cluster.update_slice({**document, "kind": "ResourceSlice"})
            await cluster.delete_slice("s", uid=made.uid)
            await until(watched(server, "resourceslices"))
            await ended([task])
        assert used(server) == granted(DRIVERS)
        assert server.slices() == []


async def test_the_rights_for_claims_templates_are_the_calls_that_are_made(tmp_path):
    document = {"metadata": {"name": "t", "namespace": "team"}, "spec": {"spec": {}}}
    async with SimulatedApiServer() as server:
        server.create_device_class("nvidia.hami.io")
        config = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with connect_wide("s", kubeconfig=config, timing=WatchTiming(), environ={}) as cluster:
            assert (await cluster.get_device_class("nvidia.hami.io"))["kind"] == "DeviceClass"
            assert await cluster.get_claim_template("team", "t") is None
            await cluster.create_claim_template(document)
            await cluster.patch_claim_template("team", "t", {"a": "1"})
            (there,) = await cluster.list_claim_templates("a=b", 10)
            await cluster.delete_claim_template("team", "t", resource_version=there["metadata"]["resourceVersion"])
        assert used(server) == granted(CLAIMS)
        assert server.claim_templates() == []


async def test_the_schedulers_rights_are_the_calls_that_it_makes(tmp_path):
    async with SimulatedApiServer() as server:
        server.create_node("n1")
        pod = a_pod(server, "p")
        config = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with connect_wide("s", kubeconfig=config, timing=WatchTiming(), environ={}) as cluster:
            follow = (cluster.follow_pods, cluster.follow_nodes, cluster.follow_quotas)
            tasks = [asyncio.create_task(each(feed())) for each in follow]
            await cluster.get_pod("team", "p")
            node = await cluster.get_node("n1")
            await cluster.patch_node("n1", {"a": "1"}, resource_version=node.resource_version)
            await cluster.patch_pod(pod, PodPatch(annotations={"a": "1"}))
            await cluster.bind(await cluster.get_pod("team", "p"), "n1")
            for _ in range(2):
                await cluster.create_event(Subject(kind="Node", name="n1"), reason="R", message="m", warning=True)
            await until(watched(server, "pods", "nodes", "resourcequotas"))
            await ended(tasks)
        assert used(server) == granted(SCHEDULER)


@pytest.mark.parametrize(
    ("port", "made_above"),
    [
        (NodeApi, {"get_node", "patch_node", "patch_pod", "create_event", "follow_pods", "follow_node"}),
        (
            ClusterApi,
            {
                *("get_pod", "get_node", "patch_pod", "patch_node", "bind", "create_event"),
                *("follow_pods", "follow_nodes", "follow_quotas"),
                *("get_device_class", "get_claim_template", "create_claim_template"),
                *("patch_claim_template", "list_claim_templates", "delete_claim_template"),
            },
        ),
    ],
)
def test_every_call_that_a_port_has_is_made_above(port, made_above):
    assert {name for name in vars(port) if not name.startswith("_")} - {"reachable"} == made_above


def test_each_right_has_its_reason_and_stands_once():
    for rights in (DAEMON, SCHEDULER):
        assert len(granted(rights)) == len(rights)
        assert all(right.why for right in rights)
