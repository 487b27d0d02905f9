"""The scheduler's metrics under the names of HAMi's, as its dashboards and bills read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from bench.fragmentation import profiles_of
from hami_plugin.model.views import NodeView, PodView, QuotaView, node_view, pod_view
from hami_plugin.protocol.keys import ASSIGNED_NODE
from hami_plugin.protocol.nodes import DeviceInfo, encode_json
from hami_plugin.scheduler.extender.cache import Preferences, SchedulerCache
from hami_plugin.scheduler.extender.extender import local_time
from hami_plugin.scheduler.extender.metrics import METRICS, HamiSchedulerMetrics
from hami_plugin.sdk import Family
from hami_plugin.simulation.apiserver import SimulatedApiServer
from tests.scheduler.extender.test_reload import placed, reached, written
from tests.support.pods import of_vendor
from tests.support.promql import exported, series
from tests.support.scheduler_process import Running, started
from tests.support.scheduling import CORES, FAMILIES, KEYS, MEMORY, add_node, daemons
from vendors.nvidia.rules import ALLOCATIONS

MIB = 1 << 20
PROFILES = tuple(one for one in profiles_of("a100-40gb") if one.name == "1g.5gb")


async def scraped(running: Running, **headers: str) -> str:
    async with running.session.get(f"http://127.0.0.1:{running.plain}/metrics", headers=headers) as answer:
        assert answer.status == 200
        return await answer.text()


def by(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """A metric's values by some of its labels."""
    return {tuple(dict(key)[label] for label in labels): value for key, value in series(text, name).items()}


async def test_devices_pods_and_quotas_have_hamis_names_once_they_are_wanted(tmp_path: Path) -> None:
    async with SimulatedApiServer() as server, daemons(server):
        add_node(server, "n1", 2, counted=20)
        server.create_quota("team", "own", {f"limits.{MEMORY}": "8000", f"limits.{CORES}": "150"})
        async with started(server, tmp_path, reloadSeconds=0.1) as running:
            await running.ready()
            await placed(server, running, "a", memory=3000, cores=30)
            assert not [name for name in exported(await scraped(running)) if name in METRICS]

            written(tmp_path, hamiMetrics=True)
            await reached(running, generation=2)
            text = await scraped(running)

            limit = by(text, "hami_gpu_memory_limit_bytes", "node", "device_uuid", "device_index", "device_type")
            assert limit == {("n1", f"n1-g{n}", str(n), "NVIDIA-Toy"): 10_000.0 * MIB for n in range(2)}
            ((card, memory),) = (
                (uuid, value) for (uuid,), value in by(text, "hami_gpu_memory_allocated_bytes", "device_uuid").items()
                if value
            )  # fmt: skip
            assert memory == 3000 * MIB
            assert by(text, "hami_gpu_shared_count", "device_uuid")[card,] == 1
            assert by(text, "hami_gpu_core_limit_ratio", "device_uuid")[card,] == 100
            assert by(text, "hami_gpu_core_allocated_ratio", "device_uuid")[card,] == 30
            assert by(text, "hami_node_gpu_memory_allocated_ratio", "device_uuid", "device_type") == {
                (f"n1-g{n}", "NVIDIA-Toy"): 0.3 * (card == f"n1-g{n}") for n in range(2)
            }
            overview = by(text, "hami_node_gpu_overview", "device_uuid", "device_cores", "device_memory_limit")
            assert overview[card, "100", "10000"] == 3000 * MIB
            container = ("namespace", "node", "pod", "container_index", "device_uuid")
            assert by(text, "hami_vgpu_memory_allocated_bytes", *container) == {
                ("team", "n1", "a", "0", card): 3000 * MIB
            }
            assert by(text, "hami_vgpu_core_allocated_ratio", *container) == {("team", "n1", "a", "0", card): 30}
            assert by(text, "hami_resource_quota_limit", "namespace", "quota_name") == {
                ("team", MEMORY): 8000,
                ("team", CORES): 150,
            }
            assert by(text, "hami_resource_quota_used", "quota_name", "limit") == {
                (MEMORY, "8000"): 3000,
                (CORES, "150"): 30,
            }

            server.delete_pod("team", "a")
            async with asyncio.timeout(60):
                while sum(series(text, "hami_gpu_shared_count").values()):
                    text = await scraped(running)
            assert series(text, "hami_vgpu_memory_allocated_bytes") == {}
            opened = await scraped(running, Accept="application/openmetrics-text; version=1.0.0")
            assert (opened.count("# EOF"), opened.endswith("# EOF\n")) == (1, True)
            assert "hami_gpu_memory_limit_bytes{" in opened


def cache_of(families: Sequence[Family], node: NodeView, pod: PodView) -> SchedulerCache:
    cache = SchedulerCache(families, local_time, Preferences())
    cache.nodes.feed.replace([node])
    cache.pods.feed.replace([pod])
    cache.quotas.feed.replace([QuotaView(namespace="team", name="odd", hard={"limits.cpu": "3"})])
    return cache


async def shown(cache: SchedulerCache) -> str:
    return (await HamiSchedulerMetrics(lambda: cache, lambda: True).text()).decode()


def node(family: Family, info: DeviceInfo) -> NodeView:
    counted = {family.resources.count: "10"}
    return node_view(
        {
            "metadata": {
                "name": "n1",
                "uid": "n",
                "annotations": {family.rules.annotations.register: encode_json([info])},
            },
            "status": {"capacity": counted, "allocatable": counted},
        }
    )


def pod(limits: dict[str, str], **annotations: str) -> PodView:
    meta = {"namespace": "team", "name": "a", "uid": "a", "annotations": {ASSIGNED_NODE: "n1", **annotations}}
    return pod_view({"metadata": meta, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}})


async def test_cores_in_a_cards_own_compute_units_are_shown_as_a_percentage_as_hami_does() -> None:
    (family,) = of_vendor("amd", {})
    info = DeviceInfo(id="g0", index=0, count=10, devmem=1000, devcore=304, type="AMD-Toy", health=True)
    asked = pod(
        {family.resources.count: "1", family.resources.memory: "500", family.resources.cores: "10"},
        **{family.rules.annotations.allocated: "g0,AMD-Toy,500,31:;"},
    )

    text = await shown(cache_of((family,), node(family, info), asked))

    assert list(series(text, "hami_gpu_core_limit_ratio").values()) == [100]
    assert list(series(text, "hami_gpu_core_allocated_ratio").values()) == [11]
    assert list(series(text, "hami_vgpu_core_allocated_ratio").values()) == [11]
    assert by(text, "hami_gpu_memory_allocated_bytes", "device_cores") == {("304",): 500 * MIB}


async def test_a_mig_instance_is_shown_once_it_exists() -> None:
    info = DeviceInfo(
        id="g0", index=0, count=7, devmem=40960, devcore=100, type="NVIDIA-Toy", mode="mig", health=True,
        mig_profiles=PROFILES,
    )  # fmt: skip
    place = {
        "containerIndex": 0, "deviceIndex": 0, "gpuUUID": "g0", "profile": "1g.5gb",
        "placement": {"start": 6, "size": 1},
    }  # fmt: skip
    exists = {**place, "migUUID": "MIG-1", "gpuInstanceID": 9, "computeInstanceID": 0}
    limits = {"nvidia.com/gpu": "1"}
    given = {KEYS.allocated: "g0,NVIDIA,4864,14:;"}

    pods = [pod(limits, **given, **{ALLOCATIONS: json.dumps([one])}) for one in (place, exists)]
    texts = [await shown(cache_of(FAMILIES, node(FAMILIES[0], info), asked)) for asked in pods]

    labels = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id", "placement_start", "placement_size")
    assert [by(text, "hami_node_gpu_mig_instance_info", *labels) for text in texts] == [
        {},
        {("MIG-1", "1g.5gb", "9", "0", "6", "1"): 1},
    ]


async def test_a_device_type_of_any_characters_ends_no_line_and_no_label() -> None:
    strange = 'A "quoted" \\ type'
    info = DeviceInfo(id="g0", index=0, count=10, devmem=1000, devcore=100, type=strange, health=True)

    text = await shown(cache_of(FAMILIES, node(FAMILIES[0], info), pod({})))

    assert by(text, "hami_gpu_shared_count", "device_type", "zone") == {(strange, "vGPU"): 0}


async def test_what_has_not_changed_is_not_made_anew() -> None:
    info = DeviceInfo(id="g0", index=0, count=10, devmem=1000, devcore=100, type="NVIDIA-Toy", health=True)
    asked = pod({"nvidia.com/gpu": "1"}, **{KEYS.allocated: "g0,NVIDIA,500,10:;"})
    cache = cache_of(FAMILIES, node(FAMILIES[0], info), asked)

    before = cache.occupied("n1")
    await shown(cache)

    assert before is cache.occupied("n1")
    cache.pods.remove("a")
    assert before is not cache.occupied("n1")
    assert cache.occupied("gone") is None
