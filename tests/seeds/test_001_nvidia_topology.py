"""What the article on NVIDIA's topology (HAMi 2.7) shows, with its own pod and scores, through the real processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.demo.node import NODE
from hami_plugin.model.machine import Machine
from hami_plugin.protocol.nodes import decode_scores
from hami_plugin.protocol.pods import decode_devices
from hami_plugin.simulation.machines import load_machine
from tests.support.live import Live, live
from tests.support.scale import spread

HERE = Path(__file__).parent
MACHINES = ("dgx-1v", "a100-pcie-8-nvbridge")
SCORES, GIVEN = "hami.io/node-nvidia-score", "hami.io/vgpu-devices-allocated"
NVLINKS = {0: None, 1: "SingleNVLINKLink", 2: "TwoNVLINKLinks"}
PLACES = {"SYS": "P2PLinkCrossCPU", "INT": "P2PLinkSameBoard"}

pytestmark = pytest.mark.e2e


def pod(name: str = "", gpus: str = "") -> Mapping[str, Any]:
    """The article's pod as it stands; of another name or number where more than one is to run."""
    manifest: dict[str, Any] = yaml.safe_load((HERE / "001_pod.yaml").read_text(encoding="utf-8"))
    manifest["metadata"]["name"] = name or manifest["metadata"]["name"]
    if gpus:
        manifest["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = gpus
    return manifest


def scores(node: Live) -> Mapping[str, Mapping[str, int]]:
    return decode_scores(node.written(SCORES))


def total(told: Mapping[str, Mapping[str, int]], uuids: Iterable[str]) -> int:
    return sum(told[a][b] for a, b in combinations(uuids, 2))


def granted(node: Live, name: str) -> list[str]:
    annotations = node.api.pod("default", name)["metadata"]["annotations"]
    return [grant.uuid for piece in decode_devices(annotations[GIVEN]) for grant in piece]


@pytest.mark.parametrize("profile", spread(MACHINES, part=2))
async def test_several_gpus_are_the_combination_that_is_linked_best(profile: str) -> None:
    """使用 computeBestCombination 遍历各组合，基于“通信分表”计算每组内所有设备对之间的分数总和。返回总分最高的组合，确保任务运行在通信效率最佳的 GPU 子集上。"""
    async with live(profile) as node:
        ended = await node.tried(pod())

        assert (ended.node, ended.why) == (NODE, "")
        told, chosen = scores(node), granted(node, "gpu-topology-aware-job")
        assert len(set(chosen)) == 4
        assert total(told, chosen) == max(total(told, four) for four in combinations(told, 4))
        seen = ended.answers["cuda-container"].edits.env["NVIDIA_VISIBLE_DEVICES"]
        assert sorted(seen.split(",")) == sorted(chosen)


@pytest.mark.full
@pytest.mark.parametrize("profile", MACHINES)
async def test_one_gpu_is_the_one_whose_links_the_others_miss_least(profile: str) -> None:
    """遍历所有可用 GPU，计算每张卡与其他可用卡的通信分数总和。选择总分最低的 GPU，通常这类卡处于拓扑边缘位置，对其分配不会影响未来多卡任务的调度质量。"""
    async with live(profile) as node:
        told, free = scores(node), set(scores(node))
        for number in range(4):
            ended = await node.tried(pod(f"single-{number}", "1"))

            assert (ended.node, ended.why) == (NODE, "")
            (chosen,) = granted(node, f"single-{number}")
            missed = {uuid: sum(told[uuid][peer] for peer in free - {uuid}) for uuid in free}
            assert missed[chosen] == min(missed.values())
            free.remove(chosen)


@pytest.mark.full
@pytest.mark.parametrize("profile", MACHINES)
async def test_a_pair_is_worth_the_sum_of_its_links_by_the_articles_scores(profile: str) -> None:
    """分数映射规则：依据预设评分标准（如 SingleNVLINKLink 计 100 分，P2PLinkCrossCPU 计 10 分），算法遍历该图谱，为任意两块 GPU 之间生成一个综合通信能力得分。"""
    table: Mapping[str, int] = json.loads((HERE / "001_scores.json").read_text(encoding="utf-8"))
    machine = load_machine(profile)
    async with live(profile) as node:
        told = scores(node)

    known = {
        (a, b): sum(table[name] for name in names if name)
        for a, b in combinations(range(len(machine.devices)), 2)
        if (names := links(machine, a, b)) is not None
    }
    assert known
    uuids = [one.uuid for one in machine.devices]
    assert {(a, b): told[uuids[a]][uuids[b]] for a, b in known} == known


def links(machine: Machine, a: int, b: int) -> tuple[str | None, str | None] | None:
    """The article's names for the links of a pair; None where it names none."""
    place, lanes = machine.levels[a][b], machine.lanes[a][b]
    return (PLACES[place], NVLINKS[lanes]) if place in PLACES and lanes in NVLINKS else None


@pytest.mark.full
async def test_the_node_says_its_scores_by_uuid() -> None:
    """最终形成一张“设备通信分表”，其中包含每个 GPU 的 UUID 及其与其他 GPU 的通信分数，并通过 Kubernetes 节点 Annotation 上报至控制面。"""
    async with live("dgx-1v") as node:
        told = scores(node)

    uuids = {one.uuid for one in load_machine("dgx-1v").devices}
    assert set(told) == uuids
    assert all(set(peers) - {uuid} == uuids - {uuid} for uuid, peers in told.items())
