"""Admission over a running service: defaults, quotas, and what no node can ever give."""

import base64
import json
from dataclasses import replace

import pytest

from hami_plugin.errors import WireError
from hami_plugin.scheduler.engine.admission import Scheduling
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.scheduling import (
    CARD_MIB,
    HURRY,
    MEMORY,
    add_node,
    manifest,
    schedule,
    serving,
    until,
)

OPTIONS = replace(HURRY, scheduling=Scheduling(name="toy-scheduler"))


@pytest.fixture
async def server():
    async with SimulatedApiServer() as server:
        yield server


@pytest.fixture
async def service(server, tmp_path):
    async with serving(server, tmp_path, OPTIONS) as service:
        yield service


def asked(pod, **changes):
    """What the API server sends: a pod that is being created has no UID yet."""
    request = {"uid": "request-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE"}
    request |= {"namespace": "team", "object": pod, **changes}
    return {"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": request}


async def reviewed(service, pod, **changes):
    answer = await service.review(asked(pod, **changes))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1beta1", "AdmissionReview")
    assert answer["response"]["uid"] == "request-1"
    return answer["response"]


def refused(response) -> str:
    assert response["allowed"] is False
    return response["status"]["message"]


async def test_a_pod_with_devices_goes_to_our_scheduler(service):
    pod = manifest("a")
    del pod["metadata"]["namespace"]

    response = await reviewed(service, pod)

    assert response["allowed"] is True
    patch = json.loads(base64.b64decode(response["patch"]))
    assert {"op": "add", "path": "/spec/schedulerName", "value": "toy-scheduler"} in patch
    assert not any("namespace" in one["path"] for one in patch)


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "UPDATE"},
        {"kind": {"group": "", "version": "v1", "kind": "Binding"}},
        {"object": None, "operation": "DELETE"},
    ],
)
async def test_what_is_no_new_pod_is_let_through(service, changes):
    assert await reviewed(service, manifest("a"), **changes) == {"uid": "request-1", "allowed": True}


async def test_a_pod_that_exceeds_its_namespaces_quota_is_refused(server, service):
    add_node(server)
    server.create_quota("team", "memory", {f"limits.{MEMORY}": "5000"})
    await until(lambda: service.cache.nodes.node_infos and service.cache.quotas._known)
    await schedule(server, service, server.create_pod(manifest("a", memory=3000)))
    pod = manifest("b", memory=3000)
    del pod["metadata"]["namespace"]

    assert "exceeding resource quota" in refused(await reviewed(service, pod))
    assert (await reviewed(service, pod, namespace="other"))["allowed"] is True

    server.delete_pod("team", "a")
    await until(lambda: not service.cache.pods.index.entries)
    assert (await reviewed(service, pod))["allowed"] is True


@pytest.mark.difference("D-390")
async def test_what_no_node_can_ever_give_is_refused_with_the_reason(server, service):
    too_much = manifest("a", memory=CARD_MIB + 1)
    assert (await reviewed(service, too_much))["allowed"] is True  # no device is known yet

    add_node(server, counted=0)  # its daemon is away, and will be back
    await until(lambda: service.cache.nodes.node_infos)

    assert "the largest: 10000 MiB, on node n1" in refused(await reviewed(service, too_much))
    assert (await reviewed(service, manifest("b", memory=CARD_MIB)))["allowed"] is True


async def test_a_cluster_that_grows_when_pods_wait_can_turn_that_off(server, tmp_path):
    add_node(server)
    async with serving(server, tmp_path, replace(OPTIONS, refuse_impossible=False)) as service:
        assert (await reviewed(service, manifest("a", gpus=5)))["allowed"] is True


async def test_a_pod_of_another_scheduler_is_left_alone_whatever_it_asks(server, service):
    add_node(server)
    await until(lambda: service.cache.nodes.node_infos)
    pod = manifest("a", gpus=5)
    pod["spec"]["schedulerName"] = "somebody-else"

    response = await reviewed(service, pod)

    assert response["allowed"] is True
    assert "patch" not in response


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"request": "x"},
        asked({"metadata": {}}),
        asked({"metadata": ["x"], "spec": {"containers": []}}),
        asked({"spec": {"containers": ["x"]}}),
        asked({"spec": {"initContainers": 1, "containers": []}}),
        asked({"spec": {"containers": [{"env": ["x"]}]}}),
        asked({"spec": {"containers": [{"resources": ["x"]}]}}),
        {"request": {**asked({"spec": {}})["request"], "kind": "Pod"}},
    ],
)
async def test_a_review_that_cannot_be_read_is_an_error_with_a_remedy(service, request_):
    with pytest.raises(WireError) as error:
        await service.review(request_)

    assert error.value.hint
