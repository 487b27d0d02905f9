"""The scheduler's decisions and the production daemon on one node: the API server alone is between them."""

import asyncio
import time

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.model.views import pod_view
from hami_plugin.protocol import keys
from hami_plugin.protocol.nodes import parse_lock
from hami_plugin.simulation.objects import RESOURCES, Filter
from tests.e2e.manifests import asking, manifest
from tests.e2e.steps import WITHIN_S
from tests.e2e.truth import annotation
from tests.support.scheduling import annotations, reasons, schedule, serving, until


async def counted(stage) -> None:
    """The kubelet tells the API server how many devices it counts."""
    count = {stage.resource: str(stage.kubelet.capacity(stage.resource))}
    stage.api.store.patch(("nodes", "", NODE), {"status": {"allocatable": count, "capacity": count}}, part="status")


async def kubelet(stage, received: dict) -> None:
    """Admit and start every pod that is bound here, in the order in which the API server tells of them."""
    served = set()
    while True:
        seen = stage.api.store.version.version
        for _key, item in stage.api.store.select(Filter.parse(RESOURCES["pods"], "", f"spec.nodeName={NODE}")):
            pod = pod_view(item)
            if pod.uid in served:
                continue
            served.add(pod.uid)
            await stage.kubelet.admit(pod)
            for container in pod.containers:
                started = await stage.kubelet.start_container(pod.uid, container.name)
                received[pod.name, container.name] = dict(started.edits.env)
            stage.api.set_phase(pod.namespace, pod.name, "Running")
        await stage.api.store.version.changed(seen)


async def test_a_burst_of_fifty_pods_is_served_and_each_container_has_its_own_limits(running, tmp_path, tell):
    stage = await running()
    await counted(stage)
    received, locks = {}, set()

    def note() -> None:
        if text := annotation(stage, keys.NODE_LOCK):
            locks.add(text)

    async with serving(stage.api, tmp_path, families=[stage.family]) as service:
        await until(lambda: service.cache.nodes.node_infos)
        works = [asyncio.create_task(kubelet(stage, received)), asyncio.create_task(every_change(stage.api, note))]
        began = time.monotonic()
        pods = [stage.api.create_pod(pod(n, stage.family.resources)) for n in range(50)]
        nodes = await asyncio.gather(*(schedule(stage.api, service, one) for one in pods))
        await until(lambda: len(received) == 50, within=WITHIN_S)
        tell(f"50 pods are decided, bound and started after {time.monotonic() - began:.2f} s")
        await until(lambda: all(phase(one) == keys.PHASE_SUCCESS for one in stage.api.pods()), within=WITHIN_S)
        await until(lambda: not annotation(stage, keys.NODE_LOCK))
        for work in works:
            assert not work.done(), work
            work.cancel()

    assert nodes == [NODE] * 50
    assert {name: env["CUDA_DEVICE_MEMORY_LIMIT_0"] for (name, _), env in received.items()} == {
        f"p{n:02}": f"{1000 + n}m" for n in range(50)
    }
    for one in stage.api.pods():
        uuid = annotations(one)[stage.family.rules.annotations.allocated].partition(",")[0]
        assert received[one["metadata"]["name"], "main"]["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert len({parse_lock(text).pod for text in locks}) == 50


def pod(number, names):
    return manifest(f"p{number:02}", [asking("main", names, memory=1000 + number, cores=10)])


def phase(item) -> str:
    return annotations(item).get(keys.BIND_PHASE, "")


async def every_change(api, note) -> None:
    while True:
        seen = api.store.version.version
        note()
        await api.store.version.changed(seen)


@pytest.mark.full
async def test_a_pod_that_waits_is_decided_on_once_a_card_heals(running, tmp_path):
    """The register is the daemon's; the scheduler follows it without being told of anything."""
    stage = await running("dgx-1v")
    await counted(stage)
    names = stage.family.resources
    everything = len(stage.devices)
    async with serving(stage.api, tmp_path, families=[stage.family]) as service:
        await until(lambda: service.cache.nodes.node_infos)

        def ailing():
            return not all(one.info.health for one in service.cache.nodes.node_infos[NODE].states)

        stage.hardware.simulator.inject("lost", 0)
        await until(ailing, within=WITHIN_S)
        waits = stage.api.create_pod(manifest("waits", [asking("main", names, count=everything)]))
        assert await schedule(stage.api, service, waits) == ""
        await until(lambda: "FilteringFailed" in reasons(stage.api, "waits"))

        stage.hardware.simulator.inject("back", 0)
        await until(lambda: not ailing(), within=WITHIN_S)
        assert await schedule(stage.api, service, waits) == NODE
