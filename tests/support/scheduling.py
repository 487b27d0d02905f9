"""A scheduler's service over a simulated API server: nodes with cards, pods that ask for them, the daemon's part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from hami_plugin.cluster.client import connect_wide
from hami_plugin.cluster.informer import WatchTiming
from hami_plugin.process.concurrency import Backoff
from hami_plugin.protocol.keys import BIND_PHASE, NODE_LOCK, PHASE_SUCCESS
from hami_plugin.protocol.nodes import DeviceInfo, encode_json
from hami_plugin.scheduler.extender.extender import Extender, Options
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.objects import RESOURCES, Filter
from tests.support.pods import nvidia

FAMILIES = nvidia()
FAMILY = FAMILIES[0]
KEYS = FAMILY.rules.annotations
COUNT, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
CARD_MIB = 10_000

HURRY = Options(
    resync_period=0.2,
    lock_timeout=120.0,
    watch_timeout=30.0,
    bind_within=0.02,
    sync_timeout=30.0,
    pace=Backoff(first=0.01, cap=0.1),
    stop_timeout=20.0,
)
"""Often, and with time enough for any machine: a test of a limit sets it."""
RHYTHM = WatchTiming(
    deadline=30.0, watch=(30.0, 60.0), settled=0.05, list_every=0.05, backoff=Backoff(first=0.01, cap=0.05)
)


def cards(node: str, count: int, *, slots: int = 10, memory: int = CARD_MIB, **changes: Any) -> str:
    """The register annotation of a node with so many cards."""
    first = DeviceInfo(id="", count=slots, devmem=memory, devcore=100, type="NVIDIA-Toy", mode="hami-core", health=True)
    return encode_json([replace(first, id=f"{node}-g{n}", index=n, **changes) for n in range(count)])


def add_node(server: SimulatedApiServer, name: str = "n1", count: int = 1, *, counted: int | None = 10, **card: Any):
    status = {} if counted is None else {"allocatable": {COUNT: str(counted)}, "capacity": {COUNT: str(counted)}}
    server.create_node(name, **status)
    return server.annotate_node(name, {KEYS.register: cards(name, count, **card)})


def manifest(name: str, *, gpus: int = 1, memory: int = 0, cores: int = 0, **annotations: str) -> dict[str, Any]:
    asked = {COUNT: gpus, MEMORY: memory, CORES: cores}
    limits = {resource: str(amount) for resource, amount in asked.items() if amount}
    meta = {"name": name, "namespace": "team", "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def ask(server: SimulatedApiServer, pod: Mapping[str, Any]) -> dict[str, Any]:
    """A filter request for all nodes, as kube-scheduler makes it."""
    names = sorted(key[1] for key, _ in server.store.select(Filter(resource=RESOURCES["nodes"])))
    return {"Pod": pod, "Nodes": None, "NodeNames": names}


async def filtered(service: Extender, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a filter request, once what it decided stands at the pod."""
    answer = await service.filter(request)
    await written(service, request["Pod"])
    return dict(answer)


async def written(service: Extender, pod: Mapping[str, Any]) -> None:
    """Wait until the pod's decision is written to it, or is known not to be; so does a bind."""
    async with service.cache.pods.binding.turn(pod["metadata"]["uid"]):
        pass


def binding(pod: Mapping[str, Any], node: str) -> dict[str, Any]:
    meta = pod["metadata"]
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}


async def schedule(server: SimulatedApiServer, service: Extender, pod: Mapping[str, Any]) -> str:
    """Filter and bind, as kube-scheduler does; the node, or empty when none is left."""
    meta = pod["metadata"]
    answer = await service.filter(ask(server, server.pod(meta["namespace"], meta["name"])))
    assert not answer["Error"], answer
    if not answer["NodeNames"]:
        return ""
    (node,) = answer["NodeNames"]
    bound = await service.bind(binding(pod, node))
    assert bound == {"Error": ""}
    return str(node)


@asynccontextmanager
async def serving(
    server: SimulatedApiServer,
    tmp_path,
    options: Options = HURRY,
    *,
    families=FAMILIES,
    ready: bool = True,
    **more: Any,
):
    """A running service, ready unless it is not to be waited for."""
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with connect_wide("toy-scheduler", kubeconfig=kubeconfig, timing=RHYTHM, environ={}) as cluster:
        service, stop = Extender(cluster, families, options, **more), asyncio.Event()
        running = asyncio.create_task(service.run(stop))
        try:
            await until(lambda: not (ready and service.problems()))
            yield service
        finally:
            stop.set()
            await running


@asynccontextmanager
async def daemons(server: SimulatedApiServer, *, after: float = 0.0):
    """The node's part of every pod that is bound: the phase is written and the lock released, ``after`` seconds."""

    async def serve() -> None:
        done: set[str] = set()
        while True:
            seen = server.store.version.version
            for pod in server.pods():
                meta = pod["metadata"]
                node = pod["spec"].get("nodeName")
                if node and meta["uid"] not in done:
                    await asyncio.sleep(after)
                    done.add(meta["uid"])
                    server.annotate_pod(meta["namespace"], meta["name"], {BIND_PHASE: PHASE_SUCCESS})
                    lock = server.node(node)["metadata"].get("annotations", {}).get(NODE_LOCK, "")
                    if lock.endswith(f",{meta['namespace']},{meta['name']}"):
                        server.annotate_node(node, {NODE_LOCK: None})
            await server.store.version.changed(seen)

    task = asyncio.create_task(serve())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], Any], *, within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.005)


def annotations(item: Mapping[str, Any]) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def reasons(server: SimulatedApiServer, name: str) -> dict[str, str]:
    """The Events about a pod: messages by reason."""
    return {one["reason"]: one["message"] for one in server.events() if one["involvedObject"]["name"] == name}
