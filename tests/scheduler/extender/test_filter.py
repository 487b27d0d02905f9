"""The filter over a real API client: one node is left, and the pod says which devices are kept for it."""

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.errors import WireError
from hami_plugin.protocol.keys import ASSIGNED_NODE, ASSIGNED_TIME, BIND_PHASE
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scheduling import (
    CARD_MIB,
    COUNT,
    HURRY,
    KEYS,
    MEMORY,
    add_node,
    annotations,
    ask,
    binding,
    cards,
    filtered,
    manifest,
    reasons,
    serving,
    until,
)


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        yield server


@pytest.fixture
async def service(server, tmp_path):
    async with serving(server, tmp_path) as service:
        yield service


async def test_one_node_is_left_and_the_pod_says_which_devices_it_has(server, service):
    add_node(server)
    pod = server.create_pod(manifest("a", memory=3000, cores=30))
    await until(lambda: service.cache.nodes.node_infos)

    answer = await filtered(service, ask(server, pod))

    assert answer == {"NodeNames": ["n1"], "FailedNodes": {}, "Error": ""}
    after = server.pod("team", "a")
    assert annotations(after)[KEYS.allocated] == "n1-g0,NVIDIA,3000,30:;" == annotations(after)[KEYS.to_allocate]
    assert annotations(after)[ASSIGNED_NODE] == "n1" == after["metadata"]["labels"][ASSIGNED_NODE]
    assert annotations(after)[ASSIGNED_TIME].isdecimal()
    assert BIND_PHASE not in annotations(after)
    await until(lambda: "FilteringSucceed" in reasons(server, "a"))


async def test_a_pod_that_asks_for_nothing_may_go_anywhere_and_is_not_touched(server, service):
    add_node(server)
    add_node(server, "n2")
    pod = server.create_pod(manifest("a", gpus=0))

    answer = await service.filter(ask(server, pod))

    assert answer["NodeNames"] == ["n1", "n2"]
    assert server.pod("team", "a") == pod


@pytest.mark.difference("D-391")
async def test_a_pod_that_waits_says_in_one_event_which_rule_holds_it_on_how_many_nodes(server, service):
    add_node(server)
    add_node(server, "n2", health=False)
    add_node(server, "n3")
    pod = server.create_pod(manifest("a", memory=CARD_MIB + 1))
    await until(lambda: len(service.cache.nodes.node_infos) == 3)

    for _ in range(3):
        answer = await service.filter(ask(server, pod))

    assert answer["NodeNames"] == []
    assert set(answer["FailedNodes"]) == {"n1", "n2", "n3"}
    assert server.pod("team", "a") == pod
    await until(server.events)
    (event,) = server.events()
    assert event["reason"] == "FilteringFailed"
    assert event["message"] == "no node fits: CardInsufficientMemory on 2 of 3 nodes, CardNotHealth on 1 of 3 nodes"
    assert (event["count"], event["type"], event["source"]["component"]) == (1, "Warning", "toy-scheduler")


async def test_two_filters_at_once_never_get_the_same_share(server, service):
    add_node(server, count=2)
    await until(lambda: service.cache.nodes.node_infos)
    pods = [server.create_pod(manifest(f"p{n}", cores=100)) for n in range(5)]
    server.faults.latency = 0.05

    answers = await asyncio.gather(*(filtered(service, ask(server, pod)) for pod in pods))

    given = [annotations(pod)[KEYS.allocated] for pod in server.pods() if KEYS.allocated in annotations(pod)]
    assert sorted(given) == ["n1-g0,NVIDIA,10000,100:;", "n1-g1,NVIDIA,10000,100:;"]
    assert sorted(len(answer["NodeNames"]) for answer in answers) == [0, 0, 0, 1, 1]


async def test_a_decision_that_the_api_server_refuses_holds_nothing(server, service):
    add_node(server)
    await until(lambda: service.cache.nodes.node_infos)
    first, second = (server.create_pod(manifest(name, cores=100)) for name in ("a", "b"))
    server.error(422, match="PATCH .*/pods/a", message="simulated refusal")

    assert (await filtered(service, ask(server, first)))["NodeNames"] == ["n1"]

    assert (await service.filter(ask(server, second)))["NodeNames"] == ["n1"]
    await until(lambda: "simulated refusal" in reasons(server, "a").get("FilteringFailed", ""))


async def test_a_decision_is_not_written_to_a_pod_of_the_same_name_that_came_later(server, service):
    add_node(server)
    await until(lambda: service.cache.nodes.node_infos)
    pod = server.create_pod(manifest("a"))
    server.delete_pod("team", "a")
    later = server.create_pod(manifest("a"))

    assert (await filtered(service, ask(server, pod)))["NodeNames"] == ["n1"]

    assert "pod team/a is gone" in (await service.bind(binding(pod, "n1")))["Error"]
    assert server.pod("team", "a") == later
    assert not service.cache.pods.index.entries


async def test_a_patch_that_fails_for_a_moment_is_tried_again(server, service):
    add_node(server)
    await until(lambda: service.cache.nodes.node_infos)
    pod = server.create_pod(manifest("a"))
    server.error(500, count=2, match="PATCH .*/pods/a")

    assert (await filtered(service, ask(server, pod)))["NodeNames"] == ["n1"]
    assert ASSIGNED_NODE in annotations(server.pod("team", "a"))


async def test_nodes_that_are_given_as_objects_are_judged_and_nothing_is_written(server, service):
    pod = server.create_pod(manifest("a"))
    node = {"metadata": {"name": "idea", "annotations": {KEYS.register: cards("idea", 1)}}}

    answer = await service.filter({"Pod": pod, "Nodes": {"items": [node]}, "NodeNames": None})

    assert answer["Nodes"] == {"items": [node]}
    assert server.pod("team", "a") == pod
    assert not service.cache.pods.index.entries


async def test_a_namespace_never_gets_more_than_its_quota(server, service):
    add_node(server)
    server.create_quota("team", "memory", {f"limits.{MEMORY}": "5000", "limits.cpu": "4"})
    await until(lambda: service.cache.nodes.node_infos and service.cache.quotas._known)
    first, second = (server.create_pod(manifest(name, memory=3000)) for name in ("a", "b"))

    assert (await service.filter(ask(server, first)))["NodeNames"] == ["n1"]
    answer = await service.filter(ask(server, second))

    assert answer["NodeNames"] == []
    assert "ResourceQuotaNotFit" in answer["FailedNodes"]["n1"]


async def test_a_decision_that_nothing_follows_from_is_given_up_when_the_pod_fits_nowhere_else(server, service):
    """The pod waits with a decision on a node that kube-scheduler does not offer it any more."""
    add_node(server)
    await until(lambda: service.cache.nodes.node_infos)
    first, second = (server.create_pod(manifest(name, cores=100)) for name in ("a", "b"))
    await service.filter(ask(server, first))
    await until(lambda: not service.cache.pods.assumed)

    await service.filter({"Pod": server.pod("team", "a"), "Nodes": None, "NodeNames": []})
    server.set_phase("team", "a", "Pending")
    server.store.patch(("pods", "team", "a"), {"status": {"message": "unschedulable"}}, part="status")
    await asyncio.sleep(0.1)

    assert (await service.filter(ask(server, second)))["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"Pod": {}},
        {"Pod": None, "NodeNames": []},
        {"Pod": {}, "NodeNames": []},
        {"Pod": {"metadata": ["x"]}, "NodeNames": []},
        {"Pod": {"metadata": {"uid": "u"}, "spec": {"containers": ["x"]}}, "NodeNames": []},
        {"Pod": {}, "Nodes": {"items": ["x"]}},
        {"Pod": {}, "Nodes": {"items": 1}},
    ],
)
async def test_a_request_that_cannot_be_read_is_an_error_with_a_remedy(service, request_):
    with pytest.raises(WireError) as error:
        await service.filter(request_)

    assert error.value.hint


async def test_until_the_cluster_is_known_the_answer_says_what_is_missing(server, tmp_path):
    pod = server.create_pod(manifest("a"))
    server.error(403, match="GET /api/v1/nodes", count=None, message="no nodes for you")
    impatient = replace(HURRY, sync_timeout=0.3)

    async with serving(server, tmp_path, impatient, ready=False) as service:
        await until(lambda: "no nodes for you" in str(service.problems()))
        answer = await service.filter({"Pod": pod, "Nodes": None, "NodeNames": ["n1"]})

        assert "not listed yet: nodes" in answer["Error"]
        assert "no nodes for you" in answer["Error"]

        add_node(server)
        server.heal()
        await until(lambda: not service.problems())
        assert (await service.filter(ask(server, pod)))["NodeNames"] == ["n1"]


@pytest.mark.difference("D-380")
async def test_what_the_kubelet_cannot_count_is_not_offered(server, service):
    """The daemon has gone: the register stays, and the kubelet would refuse the pod."""
    add_node(server, counted=0)
    pod = server.create_pod(manifest("a"))
    await until(lambda: "n1" in service.cache.nodes.node_infos)

    assert (await service.filter(ask(server, pod)))["FailedNodes"] == {"n1": "node unregistered"}

    server.store.patch(("nodes", "", "n1"), {"status": {"allocatable": {COUNT: "10"}}}, part="status")
    await until(lambda: service.cache.nodes.node_infos["n1"].states)
    assert (await service.filter(ask(server, pod)))["NodeNames"] == ["n1"]
