"""kube-scheduler asks about a pod again while it is being bound, since our own annotations have changed it."""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.model.views import pod_view
from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING
from hami_plugin.protocol.nodes import parse_lock
from hami_plugin.scheduler.extender import extender
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.scheduler.extender.test_bind import lock, locked
from tests.support.scheduling import (
    HURRY,
    KEYS,
    add_node,
    annotations,
    ask,
    binding,
    filtered,
    manifest,
    serving,
    until,
    written,
)

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
    assert (await filtered(service, {**ask(server, pod), "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
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
    await written(service, pod)

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


@pytest.fixture
async def patient(server, tmp_path):
    """A service whose decisions wait for their binds, however late those come."""
    async with serving(server, tmp_path, replace(HURRY, bind_within=600.0)) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == 2)
        yield service


@pytest.mark.difference("D-404")
async def test_a_bind_that_follows_at_once_writes_the_decision_with_its_own_mark(server, patient):
    pod = server.create_pod(manifest("a"))
    (node,) = (await again(server, patient, pod))["NodeNames"]

    assert await patient.bind(binding(pod, node)) == {"Error": ""}

    first, *_ = (change.after for change in server.store.changes(0) if change.resource == "pods" and change.before)
    assert (annotations(first)[ASSIGNED_NODE], annotations(first)[BIND_PHASE]) == (node, PHASE_ALLOCATING)
    assert annotations(first)[KEYS.allocated] == annotations(first)[KEYS.to_allocate] != ""
    assert first["metadata"]["labels"][ASSIGNED_NODE] == node
    assert "nodeName" not in first["spec"]
    await until(lambda: patient.settled)


async def test_a_decision_that_the_bind_cannot_write_holds_nothing_and_the_bind_says_why(server, patient):
    server.error(422, match="PATCH .*/pods/a", message="simulated refusal")
    pod = server.create_pod(manifest("a"))
    (node,) = (await again(server, patient, pod))["NodeNames"]

    assert "simulated refusal" in (await patient.bind(binding(pod, node)))["Error"]

    assert not patient.cache.pods.index.entries
    assert NODE_LOCK not in annotations(server.node(node))
    pod = server.pod("team", "a")
    assert ASSIGNED_NODE not in annotations(pod)
    (node,) = (await again(server, patient, pod))["NodeNames"]
    assert await patient.bind(binding(pod, node)) == {"Error": ""}


async def test_a_decision_that_the_bind_has_written_stands_when_the_binding_is_refused(server, patient):
    server.error(422, match="POST .*/binding")
    pod = server.create_pod(manifest("a"))
    (node,) = (await again(server, patient, pod))["NodeNames"]

    assert (await patient.bind(binding(pod, node)))["Error"]

    assert annotations(server.pod("team", "a"))[ASSIGNED_NODE] == node
    assert entry(patient, pod).node == node


async def test_another_scheduler_that_has_decided_for_the_same_node_meanwhile_is_followed(server, patient):
    """Our own decision, which is not written yet, gives way."""
    pod = server.create_pod(manifest("a"))
    assert (await again(server, patient, pod, nodes=["n1"]))["NodeNames"] == ["n1"]
    ours = entry(patient, pod).pod.annotations[KEYS.allocated]
    theirs = "n1-g0,NVIDIA,10000,0:;"
    assert ours != theirs
    server.annotate_pod("team", "a", {ASSIGNED_NODE: "n1", KEYS.allocated: theirs, KEYS.to_allocate: theirs})

    assert await patient.bind(binding(pod, "n1")) == {"Error": ""}

    assert annotations(server.pod("team", "a"))[KEYS.allocated] == theirs
    await until(lambda: entry(patient, pod).pod.annotations[KEYS.allocated] == theirs)


async def test_a_decision_whose_bind_waits_for_the_node_is_written_before(server, service):
    """So that others know of it, however long that takes."""
    server.create_pod(manifest("other"))
    locked(server, "other")
    await until(lambda: NODE_LOCK in service.cache.nodes.live("n1").value.annotations)
    pod = server.create_pod(manifest("a"))
    assert (await again(server, service, pod, nodes=["n1"]))["NodeNames"] == ["n1"]

    bind = asyncio.create_task(service.bind(binding(pod, "n1")))
    await until(lambda: annotations(server.pod("team", "a")).get(ASSIGNED_NODE) == "n1")

    assert BIND_PHASE not in annotations(server.pod("team", "a"))
    assert not bind.done()
    server.annotate_node("n1", {NODE_LOCK: None})
    assert await bind == {"Error": ""}


@pytest.mark.parametrize("when", ["while the bind waits for the node", "before the bind"])
async def test_a_pod_whose_decision_cannot_be_written_is_not_bound_and_the_bind_says_why(server, service, when):
    server.create_pod(manifest("other"))
    server.error(422, match="PATCH .*/pods/a", message="simulated refusal")
    pod = server.create_pod(manifest("a"))
    if when == "while the bind waits for the node":
        locked(server, "other")
        await until(lambda: NODE_LOCK in service.cache.nodes.live("n1").value.annotations)
    assert (await again(server, service, pod, nodes=["n1"]))["NodeNames"] == ["n1"]
    if when == "before the bind":
        await written(service, pod)
    bind = asyncio.create_task(service.bind(binding(pod, "n1")))
    if when == "while the bind waits for the node":
        await written(service, pod)
        server.annotate_node("n1", {NODE_LOCK: None})

    assert "simulated refusal" in (await bind)["Error"]

    assert NODE_LOCK not in annotations(server.node("n1"))
    assert not service.cache.pods.index.entries
    assert "nodeName" not in server.pod("team", "a")["spec"]
    server.heal()
    (node,) = (await again(server, service, server.pod("team", "a")))["NodeNames"]
    assert await service.bind(binding(pod, node)) == {"Error": ""}


async def test_a_bug_while_a_decision_is_written_leaves_the_pod_unbound_and_its_devices_free(
    server, service, monkeypatch
):
    async def broken(*_anything, **_named):
        raise RuntimeError("a bug")

    monkeypatch.setattr(extender, "write", broken)
    pod = server.create_pod(manifest("a"))
    (node,) = (await again(server, service, pod))["NodeNames"]

    await written(service, pod)
    assert "RuntimeError: a bug" in (await service.bind(binding(pod, node)))["Error"]

    assert not service.cache.pods.index.entries
    assert "nodeName" not in server.pod("team", "a")["spec"]


async def test_a_decision_of_ours_that_the_api_server_has_not_taken_binds_nobody(server, service):
    """Whatever became of its write."""
    pod = server.create_pod(manifest("a"))
    given = {ASSIGNED_NODE: "n1", KEYS.allocated: "n1-g0,NVIDIA,1000,0:;"}
    service.cache.pods.assume(replace(pod_view(pod), annotations=given))

    assert "was given devices on node (none)" in (await service.bind(binding(pod, "n1")))["Error"]


async def test_why_a_decision_was_not_written_is_forgotten_with_its_pod(server, service):
    server.error(422, match="PATCH .*/pods/", count=2)
    for name in ("a", "b"):
        pod = server.create_pod(manifest(name))
        await again(server, service, pod)
        await written(service, pod)
    assert len(service.cache.pods.binding.unwritten) == 2

    server.delete_pod("team", "a")
    await until(lambda: len(service.cache.pods.binding.unwritten) == 1)
    await server.refuse()
    server.store.delete(("pods", "team", "b"))
    server.compact()
    await server.accept()
    await until(lambda: not service.cache.pods.binding.unwritten)


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
