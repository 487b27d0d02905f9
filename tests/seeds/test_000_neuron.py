"""The Neuron article's own pods and rules on machines of AWS, by the processes that a cluster runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.protocol.pods import decode_devices
from tests.seeds.examples import examples
from tests.support.live import Live, live

DEVICES, CORE = examples("000_neuron.yaml")
(RULES,) = examples("000_cores.yaml")
COUNT, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
ALLOCATED = "hami.io/aws-neuron-devices-allocated"


def asking(**amounts: int) -> dict[str, Any]:
    """The article's pod of cores, asking for another number of cores, or of devices."""
    pod = copy.deepcopy(CORE)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    del limits[CORES]
    limits |= {{"devices": COUNT, "cores": CORES}[what]: amount for what, amount in amounts.items()}
    return pod


def devices(node: Live, name: str) -> list[int]:
    """The numbers of the devices that a pod has."""
    return [
        int(grant.uuid.rpartition("-")[2]) for piece in decode_devices(node.noted(name)[ALLOCATED]) for grant in piece
    ]


async def denied(node: Live, pod: dict[str, Any]) -> str:
    """What the webhook says against it."""
    ended = await node.tried(pod)
    assert ended.refused_at == "webhook", ended
    return ended.why


async def test_four_devices_of_a_trainium_are_an_aligned_block() -> None:
    """请求 4 个设备时, 会找到 [0,1,2,3], [4,5,6,7], [8,9,10,11] 或 [12,13,14,15] 这样的组合。"""
    async with live("aws-trn1-32xlarge") as node:
        for number, block in enumerate(([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15])):
            await node.run(DEVICES, f"demo-{number}")
            assert devices(node, f"demo-{number}") == block
            env = node.answers[f"demo-{number}"].edits.env
            assert env["AWS_NEURON_VISIBLE_DEVICES"] == ",".join(map(str, block))
        fifth = await node.filtered(await node.created(DEVICES, "fifth"))
        assert fifth["NodeNames"] == []


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 7])
async def test_a_trainium_gives_one_four_eight_or_sixteen_devices(count: int) -> None:
    """任何其他数量的请求(如 2 或 7 个设备)都会被直接拒绝,Pod 将无法被调度。"""
    async with live("aws-trn1-32xlarge") as node:
        answer = await node.filtered(await node.created(asking(devices=count), "odd"))

        assert answer["FailedNodes"] == {NODE: "1/16 NumaNotFit"}


@pytest.mark.full
async def test_devices_of_an_inferentia_are_neighbours_or_none() -> None:
    """如果节点有足够数量的空闲设备但它们不相邻,调度依然会失败。"""
    async with live("aws-inf2-24xlarge") as node:
        names = [f"one-{number}" for number in range(6)]
        for name in names:
            await node.run(asking(devices=1), name)
        holder = {devices(node, name)[0]: name for name in names}
        assert sorted(holder) == [*range(6)]
        for number in (1, 3, 5):
            node.end(holder[number])
        await node.restart_scheduler()  # which then knows that they are free
        pair = await node.created(asking(devices=2), "pair")
        assert (await node.filtered(pair))["FailedNodes"][NODE]

        node.end(holder[2])
        await node.chosen(pair)
        assert devices(node, "pair") in ([1, 2], [2, 3])


@pytest.mark.full
@pytest.mark.parametrize(("cores", "expected"), [(1, [0b01]), (2, [0b11]), (4, [0b11, 0b11])])
async def test_cores_are_of_as_few_devices_as_they_need(cores: int, expected: list[int]) -> None:
    """基于“2 核/设备”模型: 1 and 2 cores are of one device, N > 2 are all cores of N/2 devices."""
    assert [key for rule in RULES["rules"] for key in rule] == ["请求 1 个核心", "请求 2 个核心", "请求 N > 2 个核心"]
    async with live("aws-inf2-24xlarge") as node:
        await node.run(CORE if cores == 1 else asking(cores=cores), "cores")

        grants = [grant for piece in decode_devices(node.noted("cores")[ALLOCATED]) for grant in piece]
        assert [grant.cores for grant in grants] == expected
        first = 2 * min(devices(node, "cores"))
        env = node.answers["cores"].edits.env
        assert env["NEURON_RT_VISIBLE_CORES"] == ",".join(str(first + core) for core in range(cores))


@pytest.mark.full
@pytest.mark.parametrize(("cores", "next_"), [(3, 4), (5, 6)])
async def test_an_odd_number_of_cores_is_denied_with_the_next_that_works(cores: int, next_: int) -> None:
    """请求 3 个核心,最终会被转换为寻找 1 个能提供 2 个核心的设备: nobody gets less than was asked for here."""
    async with live("aws-trn1-2xlarge") as node:
        said = await denied(node, asking(cores=cores))

        assert f"{CORES}={cores}" in said or f"{CORES}: {cores}" in said
        assert f"is not 1 or a multiple of 2, the cores of a device; the next number that works is {next_}" in said
