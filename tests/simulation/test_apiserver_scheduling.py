"""What schedulers need of the simulated API server: binding by UID, and quotas."""

import aiohttp
import pytest

from hami_plugin.simulation.apiserver import SimulatedApiServer

PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        server.create_node("n1")
        yield server


@pytest.fixture
async def http(server):
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


def pod(name: str) -> dict:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"containers": [{"name": "main"}]}}


async def test_a_pod_is_bound_only_by_its_own_uid_and_while_it_is_not_being_deleted(server, http):
    made = server.create_pod(pod("p"))

    async def bind(uid: str) -> int:
        binding = {"metadata": {"name": "p", "uid": uid}, "target": {"kind": "Node", "name": "n1"}}
        async with http.post(f"{PODS}/p/binding", json=binding) as reply:
            return reply.status

    assert await bind("another") == 409
    server.delete_pod("team", "p", grace=30)
    assert await bind(made["metadata"]["uid"]) == 409
    assert "nodeName" not in server.pod("team", "p")["spec"]

    server.delete_pod("team", "p")
    assert await bind(server.create_pod(pod("p"))["metadata"]["uid"]) == 201


async def test_quotas_of_all_namespaces_are_listed(server, http):
    server.create_quota("team", "one", {"limits.toy.io/card": "4"})
    server.create_quota("other", "two", {"pods": "10"})

    async with http.get("/api/v1/resourcequotas") as reply:
        found = await reply.json()

    assert [(item["metadata"]["namespace"], item["spec"]["hard"]) for item in found["items"]] == [
        ("other", {"pods": "10"}),
        ("team", {"limits.toy.io/card": "4"}),
    ]
