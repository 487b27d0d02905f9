"""The API server goes away in the middle, or fails now and then: in the end every pod runs, and no lock is left."""

import asyncio

import pytest

from hami_plugin.model.views import node_view, pod_view
from hami_plugin.protocol.keys import NODE_LOCK
from hami_plugin.scheduler.engine.node_info import read_node
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scheduling import FAMILIES, add_node, annotations, ask, binding, daemons, manifest, serving, until


@pytest.fixture
async def server():
    async with SimulatedApiServer(bookmark_seconds=0.1) as server:
        for name in ("n1", "n2"):
            add_node(server, name, count=2, counted=20)
        yield server


async def persistently(server, service, name: str) -> None:
    """As kube-scheduler: the pod is scheduled again after each error, until it is bound."""
    while not (pod := server.pod("team", name))["spec"].get("nodeName"):
        answer = await service.filter(ask(server, pod))
        if not answer["Error"] and answer["NodeNames"]:
            await service.bind(binding(pod, answer["NodeNames"][0]))
        await asyncio.sleep(0.02)


async def scheduled(server, service, count: int, trouble) -> None:
    names = [f"p{n:02}" for n in range(count)]
    for name in names:
        server.create_pod(manifest(name, memory=1000, cores=10))
    async with daemons(server):
        disturbing = asyncio.create_task(trouble())
        async with asyncio.timeout(600):
            await asyncio.gather(*(persistently(server, service, name) for name in names))
            await disturbing
            await until(
                lambda: not any(NODE_LOCK in annotations(server.node(name)) for name in ("n1", "n2")), within=60
            )


def oversold(server) -> list:
    pods = [pod_view(pod) for pod in server.pods()]
    node_infos = [read_node(node_view(server.node(name)), FAMILIES, pods).node_info for name in ("n1", "n2")]
    return [
        state
        for node_info in node_infos
        for state in node_info.states
        if state.memory > state.info.devmem or state.cores > state.info.devcore or state.slots > state.info.count
    ]


@pytest.mark.full
async def test_the_api_server_restarts_while_pods_are_decided_and_bound(server, tmp_path):
    async def restarts() -> None:
        for _ in range(3):
            await asyncio.sleep(0.1)
            await server.refuse()
            await asyncio.sleep(0.1)
            server.compact()
            await server.accept()

    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == 2)
        await scheduled(server, service, 30, restarts)

    assert oversold(server) == []


@pytest.mark.parametrize(
    "call", ["PATCH .*/nodes/", "PATCH .*/pods/", "POST .*/binding", "GET .*/pods/", "GET .*/nodes/"]
)
async def test_calls_of_one_kind_fail_now_and_then(server, tmp_path, call):
    async def failures() -> None:
        for status in (500, 409, 503, 500, 429, 409):
            server.error(status, match=call, count=2)
            server.truncate_next(call)
            await asyncio.sleep(0.05)

    async with serving(server, tmp_path) as service:
        await until(lambda: len(service.cache.nodes.node_infos) == 2)
        await scheduled(server, service, 12, failures)

    assert oversold(server) == []
