"""``hami-plugin doctor --cluster``: webhook, policies, nodes, daemons and pods, as the API server lists them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from hami_plugin.cli.doctor.asking import ADMISSION, cluster_facts
from hami_plugin.cli.doctor.cluster import cluster_findings
from hami_plugin.protocol.keys import NODE_LOCK
from tests.cli.doctor.sick import patient
from tests.e2e.manifests import asking, manifest
from tests.support.scale import spread

WEBHOOKS = f"{ADMISSION}/mutatingwebhookconfigurations"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
ENDPOINTS = "/api/v1/namespaces/hami-system/endpoints/hami-scheduler"


def webhook(name="hami-scheduler", **changes):
    service = {"namespace": "hami-system", "name": "hami-scheduler"}
    one = {"name": "vgpu.hami.io", "clientConfig": {"service": service, "caBundle": "Y2E="}, "failurePolicy": "Fail"}
    return {"metadata": {"name": name}, "webhooks": [{**one, **changes}]}


def daemon(node, *, ready=True):
    container = {"name": "hami-plugin", "image": "registry/hami-plugin:1", "args": ["run", "--config=/c"]}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": "daemon", "namespace": "hami-system"},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "conditions": conditions},
    }


def installed(one):
    documents = one.stage.api.documents
    documents[WEBHOOKS] = {"items": [webhook()]}
    documents[BINDINGS] = {"items": [{"metadata": {"name": "hami-plugin-reserved-pods"}}]}
    documents[ENDPOINTS] = {"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]}
    one.stage.api.create_pod(daemon(one.stage.node))


def no_webhook(one):
    one.stage.api.documents[WEBHOOKS] = {"items": []}


def two_webhooks(one):
    one.stage.api.documents[WEBHOOKS] = {"items": [webhook(), webhook("hami-of-others")]}


def webhook_without_authority(one):
    service = {"namespace": "hami-system", "name": "hami-scheduler"}
    one.stage.api.documents[WEBHOOKS] = {"items": [webhook(clientConfig={"service": service})]}


def scheduler_down(one):
    one.stage.api.documents[ENDPOINTS] = {"subsets": [{"notReadyAddresses": [{"ip": "10.0.0.1"}]}]}


def lock_left(one):
    since = datetime.now(UTC) - timedelta(minutes=20)
    one.annotate(**{NODE_LOCK: f"{since.isoformat(timespec='seconds')},ns,dead"})


def kubelet_silent(one):
    one.status(conditions=[{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting"}])


def register_damaged(one):
    one.annotate(**{one.stage.family.rules.annotations.register: "[{"})


def nothing_counted(one):
    one.status(allocatable={one.stage.resource: "0"})


def daemon_not_ready(one):
    one.stage.api.delete_pod("hami-system", "daemon")
    one.stage.api.create_pod(daemon(one.stage.node, ready=False))


def no_node_has_devices(one):
    one.annotate(**{one.stage.family.rules.annotations.register: None})
    one.status(capacity={one.stage.resource: "0"}, allocatable={one.stage.resource: "0"})


NODE = "node demo-node"
PLANTED = {
    no_webhook: ("webhook", "there is no webhook"),
    two_webhooks: ("webhook", "hami-scheduler, hami-of-others"),
    webhook_without_authority: ("webhook", "caBundle"),
    scheduler_down: ("scheduler", "hami-system/hami-scheduler has no pod that is ready"),
    lock_left: (f"{NODE}: node lock", "ns/dead is 20 min old"),
    kubelet_silent: (f"{NODE}: kubelet", "stopped posting"),
    register_damaged: (f"{NODE}: register", "register annotation"),
    nothing_counted: (f"{NODE}: count", "counts 0 nvidia.com/gpu"),
    daemon_not_ready: (f"{NODE}: daemon", "is not ready"),
    no_node_has_devices: ("nodes", "no node has devices"),
}


async def examined(one):
    return cluster_findings(await cluster_facts(one.options, {}))


@pytest.mark.parametrize("plant", spread(PLANTED, part=3), ids=lambda plant: plant.__name__)
async def test_what_is_wrong_with_a_cluster_is_named_first(plant):
    check, text = PLANTED[plant]
    async with patient() as one:
        installed(one)
        plant(one)
        found = await examined(one)

    first = next(line for line in found if line.mark.failed)
    assert (first.check, first.remedy != "") == (check, True), [(line.check, line.text) for line in found]
    assert text in first.text


async def test_nothing_fails_in_a_cluster_that_lacks_nothing():
    async with patient() as one:
        installed(one)
        found = await examined(one)

    assert [(line.check, line.text) for line in found if line.mark != "ok"] == []


async def test_pods_that_wait_or_were_refused_are_named():
    async with patient() as one:
        installed(one)
        resources = one.stage.family.resources
        one.stage.api.create_pod(manifest("waits", [asking("main", resources)]))
        refused = manifest("refused", [asking("main", resources)])
        refused["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
        one.stage.api.create_pod(refused)
        found = await examined(one)

    said = [line.text for line in found if line.check == "pods" and line.mark == "warning"]
    assert said == ["1 wait for devices: demo/waits", "1 were refused by a node: demo/refused"]


async def test_what_may_not_be_listed_is_a_warning():
    async with patient() as one:
        one.stage.api.error(403, count=None, match="GET /apis", message="no")
        found = await examined(one)

    assert [line.check for line in found if "not checked" in line.text] == ["webhook", "admission policies"]
    assert json.dumps([line.text for line in found]).count("403") == 2
