"""kube-scheduler asks about a pod again while it is being bound, since our own annotations have changed it."""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.protocol.keys import ASSIGNED_NODE, NODE_LOCK
from hami_plugin.protocol.lock import parse_lock
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.scheduler.extender.test_bind import lock, locked
from tests.support.scheduling import HURRY, add_node, annotations, ask, binding, manifest, serving, until

COUNT = "nvidia.com/gpu"


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        add_node(server, count=8, counted=80)
        add_node(server, "n2", count=8, counted=80)
        yield server


@pytest.fixture
async def service(server, tmp_path):
    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == 2)
        yield service


async def decided(server, service):
    """A pod for which the first node was chosen; it could go to the other as well."""
    pod = server.create_pod(manifest("a"))
    assert (await service.filter({**ask(server, pod), "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
    return server.pod("team", "a")


async def being_bound(server, service):
    """A pod whose bind waits for its node, which another pod has."""
    server.create_pod(manifest("other"))
    pod = await decided(server, service)
    locked(server, "other")
    bind = asyncio.create_task(service.bind(binding(pod, "n1")))
    await until(lambda: service.cache.pods.binding.node_of(pod["metadata"]["uid"]))
    return server.pod("team", "a"), bind


def entry(service, pod):
    return service.cache.pods.index.entries[pod["metadata"]["uid"]]


async def again(server, service, pod, *, nodes=("n1", "n2")):
    """The same pod is asked about, with its best device taken meanwhile by nobody: a new choice would be free."""
    return await service.filter({**ask(server, pod), "NodeNames": list(nodes)})


async def test_a_pod_that_is_being_bound_keeps_its_decision(server, service):
    pod, bind = await being_bound(server, service)

    answer = await again(server, service, pod)

    assert answer["NodeNames"] == ["n1"]
    assert answer["FailedNodes"] == {"n2": "the pod is bound, or being bound, to node n1"}
    assert annotations(server.pod("team", "a")) == annotations(pod)
    server.annotate_node("n1", {NODE_LOCK: None})
    assert await bind == {"Error": ""}
    assert annotations(server.pod("team", "a")).items() >= annotations(pod).items()


@pytest.mark.parametrize("told", [False, True], ids=["not told by the watch", "told"])
async def test_a_bound_pod_keeps_its_decision(server, service, told):
    pod = await decided(server, service)
    assert await service.bind(binding(pod, "n1")) == {"Error": ""}
    if told:
        await until(lambda: entry(service, pod).pod.node)
    before = annotations(server.pod("team", "a"))

    assert (await again(server, service, pod))["NodeNames"] == ["n1"]
    assert (await again(server, service, pod, nodes=["n2"]))["NodeNames"] == []

    assert annotations(server.pod("team", "a")) == before


async def test_a_pod_that_was_not_bound_is_decided_on_anew(server, service):
    pod = await decided(server, service)
    server.error(422, match="POST .*/binding")
    assert (await service.bind(binding(pod, "n1")))["Error"]

    assert (await again(server, service, pod, nodes=["n2"]))["NodeNames"] == ["n2"]


@pytest.mark.parametrize("bound", [False, True], ids=["it was not", "it was"])
async def test_a_pod_of_which_nobody_knew_whether_it_was_bound_is_looked_at_when_its_node_is_offered_no_more(
    server, service, bound
):
    pod = await decided(server, service)
    server.truncate_next("POST .*/binding") if bound else server.error(500, match="POST .*/binding")
    server.error(500, match="GET .*/pods/a", count=None)
    assert "not known" in (await service.bind(binding(pod, "n1")))["Error"]
    assert (await again(server, service, pod, nodes=["n1", "n2"]))["NodeNames"] == ["n1"]
    server.heal()

    answer = await again(server, service, pod, nodes=["n2"])

    assert answer["NodeNames"] == ([] if bound else ["n2"])
    assert annotations(server.pod("team", "a"))[ASSIGNED_NODE] == ("n1" if bound else "n2")


async def test_a_bind_waits_for_a_decision_that_is_being_written(server, service):
    """Two nodes: the second decision names another one, and the bind of the first comes while it is written."""
    pod = await decided(server, service)
    server.hang("PATCH .*/pods/a", count=1)
    writing = asyncio.create_task(again(server, service, pod, nodes=["n2"]))
    await until(lambda: entry(service, pod).pod.annotations[ASSIGNED_NODE] == "n2")
    bind = asyncio.create_task(service.bind(binding(pod, "n1")))
    await asyncio.sleep(0.05)
    assert not bind.done()
    server.heal()
    answer = await bind

    assert (await writing)["NodeNames"] == ["n2"]
    assert "was given devices on node n2, and is to be bound to n1" in answer["Error"]
    assert "nodeName" not in server.pod("team", "a")["spec"]


async def test_a_pod_is_not_bound_to_a_node_whose_daemon_went_while_it_waited(server, service):
    _pod, bind = await being_bound(server, service)
    server.store.patch(("nodes", "", "n1"), {"status": {"allocatable": {COUNT: "0"}}}, part="status")
    await until(lambda: not service.cache.nodes.node_infos["n1"].pools)
    server.annotate_node("n1", {NODE_LOCK: None})

    assert "node n1 no longer offers NVIDIA devices" in (await bind)["Error"]

    assert "nodeName" not in server.pod("team", "a")["spec"]
    assert not lock(server) or parse_lock(lock(server)).pod != "a"


async def test_a_bind_that_is_asked_for_once_more_is_the_same_bind(server, tmp_path):
    """A kube-scheduler that gave up waiting asks again: the second bind must not outlive the decision it was for."""
    async with serving(server, tmp_path, replace(HURRY, lock_timeout=3.0)) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == 2)
        pod, first = await being_bound(server, service)
        await asyncio.sleep(0.3)
        second = asyncio.create_task(service.bind(binding(pod, "n1")))
        assert "locked for team/other" in (await first)["Error"]

        assert (await again(server, service, pod, nodes=["n2"]))["NodeNames"] == ["n2"]
        server.annotate_node("n1", {NODE_LOCK: None})

        assert await second == await first
    assert "nodeName" not in server.pod("team", "a")["spec"]
