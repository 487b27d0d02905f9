"""Pods with containers without end: refused by their number, and what nodes have is not added up for each of them."""

import pytest

from hami_plugin.model.views import MAX_CONTAINERS
from hami_plugin.scheduler.extender import cache
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scheduling import add_node, ask, manifest, reasons, schedule, serving, until


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        for number in range(3):
            add_node(server, f"n{number}")
        yield server


@pytest.fixture
async def service(server, tmp_path):
    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == 3)
        yield service


def crowd(count, *, inits=0, **more):
    pod = manifest("a", memory=1)
    pod["spec"]["initContainers"] = pod["spec"]["containers"] * inits
    pod["spec"]["containers"] = pod["spec"]["containers"] * (count - inits)
    pod["spec"] |= more
    return pod


async def reviewed(service, pod):
    request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": pod}
    return (await service.review({"request": request}))["response"]


@pytest.mark.difference("D-330")
@pytest.mark.parametrize("inits", [0, 9000])
async def test_a_pod_with_thousands_of_containers_is_denied_with_the_number_and_the_limit(service, inits):
    answer = await reviewed(service, crowd(10_000, inits=inits))

    assert not answer["allowed"]
    assert answer["status"]["message"] == (
        "pod has 10000 containers, and at most 512 are looked at; split it into several pods"
    )


async def test_as_many_containers_as_are_looked_at_are_looked_at(service):
    assert (await reviewed(service, crowd(MAX_CONTAINERS)))["allowed"]
    assert not (await reviewed(service, crowd(MAX_CONTAINERS + 1)))["allowed"]


@pytest.mark.parametrize("left_alone", [{"schedulerName": "other"}, {"labels": {"hami.io/webhook": "ignore"}}])
async def test_a_pod_that_is_none_of_ours_may_have_as_many_containers_as_it_likes(service, left_alone):
    pod = crowd(1000, **{key: value for key, value in left_alone.items() if key != "labels"})
    pod["metadata"]["labels"] = left_alone.get("labels", {})

    assert (await reviewed(service, pod))["allowed"]


async def test_a_filter_refuses_what_admission_did_not_see_and_goes_on(server, service):
    answer = await service.filter(ask(server, server.create_pod(crowd(10_000))))

    assert "10000 containers" in answer["Error"]
    assert await schedule(server, service, server.create_pod(manifest("b")))
    assert reasons(server, "b") is not None


async def test_what_nodes_have_is_added_up_once_for_each_change_of_the_nodes(server, service, monkeypatch):
    added = []
    real = cache.largest
    monkeypatch.setattr(cache, "largest", lambda known: added.append(1) or real(known))

    for count in (1, 100, 500):
        assert (await reviewed(service, crowd(count)))["allowed"]
    assert len(added) == 1

    add_node(server, "n9", memory=50_000)
    await until(lambda: "n9" in service.cache.nodes.node_infos)
    assert (await reviewed(service, manifest("b", memory=50_000)))["allowed"]
    assert len(added) == 2
    server.annotate_node("n9", {"other": "words"})
    server.delete_node("n9")
    await until(lambda: "n9" not in service.cache.nodes.node_infos)
    answer = await reviewed(service, manifest("b", memory=50_000))
    assert "more than any device of this cluster has (the largest: 10000 MiB" in answer["status"]["message"]
    assert len(added) == 3
