"""`hami-plugin scheduler` as a process: the real decisions behind the real port, over a simulated API server."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.protocol.keys import ASSIGNED_NODE, BIND_PHASE, PHASE_ALLOCATING
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.support.certificates import Authority
from tests.support.scheduler_process import ROOT, started
from tests.support.scheduling import KEYS, add_node, annotations, ask, binding, daemons, manifest, reasons, until


@pytest.fixture
async def server() -> AsyncIterator[SimulatedApiServer]:
    async with SimulatedApiServer() as server:
        add_node(server, "n1", 8, counted=80)
        add_node(server, "n2", 8, counted=80, memory=1000)
        yield server


def review(pod: dict[str, Any]) -> dict[str, Any]:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "r-1", "kind": kind, "operation": "CREATE", "namespace": "team", "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def lent(name: str) -> dict[str, Any]:
    """A pod with MIG instances, which kube-scheduler counts by itself."""
    pod = manifest(name, gpus=0)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    return pod


async def test_a_pod_is_admitted_placed_and_bound_over_tls(server: SimulatedApiServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "made")
    pair = authority.pair("here")
    trust = ssl.create_default_context(cafile=str(authority.certificate))
    flags = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    async with started(server, tmp_path, *flags, trust=trust, executed=True) as running:
        await running.ready()

        admitted = (await running.post("/webhook?timeout=10s", review(manifest("a", memory=3000))))["response"]
        changes = json.loads(base64.b64decode(admitted["patch"]))
        assert (admitted["uid"], admitted["allowed"]) == ("r-1", True)
        assert {"op": "add", "path": "/spec/schedulerName", "value": "toy-scheduler"} in changes

        pod = server.create_pod(manifest("a", memory=3000))
        chosen = await running.post("/filter", ask(server, pod))
        assert (chosen["NodeNames"], chosen["Error"]) == (["n1"], "")
        assert chosen["FailedNodes"] == {"n2": "8/8 CardInsufficientMemory"}
        assert await running.post("/bind", binding(pod, "n1")) == {"Error": ""}

        stored = server.pod("team", "a")
        assert stored["spec"]["nodeName"] == "n1"
        assert ",3000," in annotations(stored)[KEYS.to_allocate]
        assert annotations(stored)[BIND_PHASE] == PHASE_ALLOCATING
        await until(lambda: {"FilteringSucceed", "BindingSucceed"} <= set(reasons(server, "a")))

        instance = lent("by-count")
        admitted = (await running.post("/webhook?timeout=10s", review(instance)))["response"]
        assert (admitted["allowed"], admitted.get("patch")) == (True, None)
        pod = server.create_pod(instance)
        assert (await running.post("/filter", ask(server, pod)))["NodeNames"] == ["n1", "n2"]
        assert server.pod("team", "by-count") == pod

        scrape = (await running.get("/metrics"))[1]
        assert 'hami_plugin_scheduler_requests_total{outcome="answered",path="/bind"} 1.0' in scrape
        assert 'hami_plugin_scheduler_nodes_refused_total{reason="CardInsufficientMemory"} 1.0' in scrape
        assert 'hami_plugin_api_calls_total{kind="pods"' in scrape
        assert await running.ended() == 0


@pytest.mark.full
async def test_a_successor_knows_what_its_predecessor_decided(server: SimulatedApiServer, tmp_path: Path) -> None:
    """Killed, not stopped: what it knew is in the annotations or nowhere."""
    async with started(server, tmp_path, executed=True) as running:
        await running.ready()
        for name in ("a", "b"):
            pod = server.create_pod(manifest(name, gpus=4, cores=100))
            assert (await running.post("/filter", ask(server, pod)))["NodeNames"] != []
        await until(lambda: all(ASSIGNED_NODE in annotations(pod) for pod in server.pods()))
        running.process.kill()
        await running.process.wait()

    async with started(server, tmp_path, executed=True) as running:
        await running.ready()
        for name, nodes in (("c", 1), ("d", 1), ("e", 0)):
            pod = server.create_pod(manifest(name, gpus=4, cores=100))
            assert len((await running.post("/filter", ask(server, pod)))["NodeNames"]) == nodes, name
        assert await running.ended() == 0


@pytest.mark.full
async def test_without_the_api_server_it_is_alive_not_ready_and_says_why(
    server: SimulatedApiServer, tmp_path: Path
) -> None:
    pod = server.create_pod(manifest("a"))
    request = ask(server, pod)
    await server.refuse()
    async with started(server, tmp_path, executed=True) as running:
        status, text = await running.get("/readyz")
        assert (await running.get("/healthz"))[0] == 200
        assert status == 503
        assert "not listed yet" in text
        assert "does not know the cluster yet" in (await running.post("/filter", request))["Error"]

        await server.accept()
        await running.ready()
        assert (await running.post("/filter", request))["NodeNames"] != []


async def test_a_bad_configuration_is_said_on_one_screen(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_plugin", "scheduler", "--tls-cert", "/nowhere/tls.crt", "--listen", "here:many",
        cwd=ROOT, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await asyncio.wait_for(process.communicate(), 120)

    assert process.returncode == 2
    assert b"scheduler.listenHost" in said
    assert b"scheduler.listenPort" in said
    assert b"Traceback" not in said


async def test_a_burst_on_one_node_gets_through_without_a_lock_that_expires(
    server: SimulatedApiServer, tmp_path: Path
) -> None:
    """Filtered one after the other, bound all at once, as kube-scheduler does."""
    async with started(server, tmp_path, executed=True) as running, daemons(server):
        await running.ready()
        server.delete_node("n2")
        pods = [server.create_pod(manifest(f"p{k}", memory=1000)) for k in range(30)]
        for pod in pods:
            assert (await running.post("/filter", ask(server, pod)))["NodeNames"] == ["n1"]

        bound = await asyncio.gather(*(running.post("/bind", binding(pod, "n1")) for pod in pods))

        assert bound == [{"Error": ""}] * len(pods)
        assert {pod["spec"]["nodeName"] for pod in server.pods()} == {"n1"}
        assert 'outcome="deadline"' not in (await running.get("/metrics"))[1]
