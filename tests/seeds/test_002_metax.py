"""The MetaX article's own pods on a MetaX machine, by the processes that a cluster runs."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami_plugin.demo.node import NODE
from hami_plugin.protocol.pods import decode_devices
from tests.seeds.examples import examples
from tests.support.live import Live, live
from tests.support.scheduling import reasons, until
from vendors.metax.settings import UNCUT

BINPACK, SPREAD, AWARE, SHARE = examples("002_metax.yaml")
QOS = "metax-tech.com/sgpu-qos-policy"
REGISTER = "metax-tech.com/node-gpu-devices"
ALLOCATED = "hami.io/metax-sgpu-devices-allocated"
CARDS = 8
TRUSTED = {"vendors": {"metax": {"unlimitedShares": True}}}
"""What a node needs to take the article's parts, as long as it has no sGPUs: each has a whole GPU alone."""
AGENTS_SHARES = 16


@pytest.fixture
async def node() -> AsyncIterator[Live]:
    async with live("metax-c500-8", **TRUSTED) as one:
        yield one


def cards(node: Live, name: str, key: str = ALLOCATED) -> list[str]:
    return [grant.uuid for piece in decode_devices(node.noted(name)[key]) for grant in piece]


async def test_a_part_is_refused_at_scheduling_where_no_container_can_be_given_an_sgpu() -> None:
    """通过精确限制每个任务的显存(如 4G)与计算核心比例(vcore, 如 60%)来实现资源隔离。"""
    async with live("metax-c500-8") as node:
        answer = await node.filtered(await node.created(SHARE))
        await node.run(AWARE)

    assert answer["NodeNames"] == []
    assert answer["FailedNodes"][NODE].startswith("8/8 CardServedWholeOnly")
    assert "only an sGPU of MetaX's own agent limits containers to shares" in answer["FailedNodes"][NODE]
    assert len(cards(node, AWARE["metadata"]["name"])) == 4


@pytest.mark.full
@pytest.mark.difference("D-126")
async def test_the_second_class_on_a_full_node_hears_which_class_is_there(node: Live) -> None:
    """一张物理 GPU 卡,从第一个任务入驻开始,就只能接受和它“同类”的后续任务。"""
    for number in range(CARDS):
        await node.run(SHARE, f"fixed-{number}")
    held = [uuid for number in range(CARDS) for uuid in cards(node, f"fixed-{number}")]
    assert len(set(held)) == CARDS
    second = await node.created(SHARE, "second", **{QOS: "best-effort"})
    third = await node.created(SHARE, "third", **{QOS: "burst-share"})

    for _before_and_after_a_restart in range(2):
        for pod in (second, third):
            answer = await node.filtered(pod)
            assert answer["NodeNames"] == []
            assert answer["FailedNodes"] == {NODE: "8/8 CardQosPolicyMismatch(fixed-share)"}
        # A process that ends takes the Events with it that it has not written yet.
        await until(lambda: "FilteringFailed" in reasons(node.stage.api, "second"))
        await node.restart_scheduler()
    assert "CardQosPolicyMismatch(fixed-share)" in reasons(node.stage.api, "second")["FilteringFailed"]

    node.end("fixed-0")
    await node.chosen(third)
    assert cards(node, "third") == held[:1]


@pytest.mark.difference("D-125")
async def test_three_classes_never_share_a_card(node: Live) -> None:
    """确保不同 QoS 类型的任务从一开始就不会被混合部署在同一张物理卡上。

    With the register that our daemon has written, but for the number of shares, which MetaX's own agent sets to 16.
    """
    await raise_shares(node, 2)
    await node.restart_scheduler()

    first = await outcome(node, "a", "fixed-share")
    second = await outcome(node, "b", "best-effort")
    third = await outcome(node, "c", "burst-share")
    await node.restart_scheduler()
    after, alike = await outcome(node, "d", "burst-share"), await outcome(node, "e", "fixed-share")

    assert first != second
    assert third == after == "1/2 CardQosPolicyMismatch(best-effort), 1/2 CardQosPolicyMismatch(fixed-share)"
    assert alike == "1/2 CardInsufficientCore, 1/2 CardQosPolicyMismatch(best-effort)"


@pytest.mark.full
async def test_a_card_with_room_for_all_three_takes_one_class(node: Live) -> None:
    """如果 GPU 已被占用,则新任务的 QoS 注解必须严格等于卡上现有任务的 QoS 模式,否则调度将被拒绝。

    A fifth of the cores each, in place of the 60 %, of which one card has room for one.
    """
    await raise_shares(node, 1)
    await node.restart_scheduler()

    first = await outcome(node, "a", "best-effort", cores=20)
    refused = [await outcome(node, name, f"{name}-share", cores=20) for name in ("fixed", "burst")]
    await node.restart_scheduler()
    refused += [await outcome(node, f"{name}-again", f"{name}-share", cores=20) for name in ("fixed", "burst")]
    alike = await outcome(node, "b", "best-effort", cores=20)

    assert alike == first
    assert refused == ["1/1 CardQosPolicyMismatch(best-effort)"] * 4


@pytest.mark.full
async def test_a_pod_without_a_class_is_best_effort_and_a_whole_card_has_none(node: Live) -> None:
    """BestEffort (尽力而为): 默认策略。独占任务例外: 请求 100% 算力的任务,因不涉及共享,不受此规则限制。"""
    await raise_shares(node, 2)
    await node.restart_scheduler()
    plain = copy.deepcopy(SHARE)
    del plain["metadata"]["annotations"]
    whole = copy.deepcopy(AWARE)
    whole["spec"]["containers"][0]["resources"]["limits"]["metax-tech.com/sgpu"] = 1

    await node.chosen(await node.created(plain))
    await node.chosen(await node.created(whole))

    assert node.noted("gpu-pod")[QOS] == "best-effort"
    assert {*cards(node, "gpu-pod")}.isdisjoint(cards(node, "gpu-pod1"))
    refused = await outcome(node, "other", "burst-share")
    assert sorted(refused.split(", ")) == ["1/2 CardInsufficientMemory", "1/2 CardQosPolicyMismatch(best-effort)"]


@pytest.mark.full
async def test_a_container_has_all_of_its_gpu_and_the_daemon_says_so(node: Live) -> None:
    """允许多个容器任务共享同一张物理 GPU 卡: until GPUs are cut, each container has one alone."""
    await node.run(SHARE)

    register: list[dict[str, Any]] = json.loads(node.written(REGISTER))
    assert {card["totalDevCount"] for card in register} == {1}
    assert node.answers["gpu-pod"].edits.env == {}
    await node.stage.until(
        lambda: any("parts are not limited" in line and UNCUT in line for line in node.stage.log_lines()), "the line"
    )


@pytest.mark.full
@pytest.mark.parametrize("count", [4, 5])
async def test_whole_gpus_come_from_one_zone_where_one_has_enough(count: int, node: Live) -> None:
    """第一优先级 (最优解:域内满足), 第二优先级 (次优解:跨域组合)。"""
    pod = copy.deepcopy(AWARE)
    pod["spec"]["containers"][0]["resources"]["limits"]["metax-tech.com/sgpu"] = count
    await node.run(pod)

    zone = {card["uuid"]: card["linkZone"] for card in json.loads(node.written(REGISTER))}
    zones = [zone[uuid] for uuid in cards(node, "gpu-pod1")]
    assert len(zones) == count
    assert len(set(zones)) == (
        1 if count == AWARE["spec"]["containers"][0]["resources"]["limits"]["metax-tech.com/sgpu"] else 2
    )


@pytest.mark.full
async def test_of_two_nodes_the_one_whose_gpus_are_linked_better_is_taken(node: Live) -> None:
    """Final Score = (10 * allocatedScore) - lossScore: 得分最高的节点胜出。"""
    register: list[dict[str, Any]] = json.loads(node.written(REGISTER))
    apart = [{**card, "uuid": f"other-{n}", "linkZone": 1 + n // 2} for n, card in enumerate(register[:4])]
    node.stage.api.create_node("other", allocatable={"metax-tech.com/sgpu": "4"}, capacity={"metax-tech.com/sgpu": "4"})
    node.stage.api.annotate_node("other", {REGISTER: json.dumps(apart)})
    await node.restart_scheduler()
    blind = copy.deepcopy(AWARE)
    blind["metadata"]["annotations"]["metax-tech.com/sgpu-topology-aware"] = "false"

    unaware = await node.filtered(await node.created(blind, "unaware"))
    node.stage.api.delete_pod("default", "unaware")
    await node.restart_scheduler()  # for which both nodes are idle again
    aware = await node.filtered(await node.created(AWARE))

    assert (aware["NodeNames"], unaware["NodeNames"]) == ([NODE], ["other"])


@pytest.mark.full
@pytest.mark.parametrize("pod", [BINPACK, SPREAD], ids=["binpack", "spread"])
async def test_whole_gpus_are_scored_by_what_the_node_says_of_them(pod: dict[str, Any]) -> None:
    """当用户申请传统的 metax-tech.com/gpu资源时, 调度器在决策时会读取这些分数,而不会进行任何实时的拓扑计算。"""
    pod = {**pod, "spec": pod["spec"] or BINPACK["spec"]}
    async with live("metax-c500-8", vendors={"metax": {"mode": "native"}}) as node:
        losses = json.loads(node.written("metax-tech.com/gpu.topology.losses"))
        scores = json.loads(node.written("metax-tech.com/gpu.topology.scores"))
        await node.run(pod)
        name = pod["metadata"]["name"]

        assert losses["2"] > 0 < scores["2"]
        assert len(cards(node, name, "hami.io/metax-gpu-devices-allocated")) == 2
        assert len(node.answers[name].edits.device_nodes) > 2


async def raise_shares(node: Live, count: int) -> None:
    """The daemon goes, and so many of its cards have as many shares as with MetaX's own agent."""
    await node.stage.stop_daemon()
    register: list[dict[str, Any]] = json.loads(node.written(REGISTER))
    raised = json.dumps([{**card, "totalDevCount": AGENTS_SHARES} for card in register[:count]])
    node.stage.api.annotate_node(NODE, {REGISTER: raised})


async def outcome(node: Live, name: str, qos: str, cores: int = 0) -> str:
    """The card that is kept for the article's pod in this class, or why there is none."""
    manifest = copy.deepcopy(SHARE)
    if cores:
        manifest["spec"]["containers"][0]["resources"]["limits"]["metax-tech.com/vcore"] = cores
    answer = await node.filtered(await node.created(manifest, name, **{QOS: qos}))
    if not answer["NodeNames"]:
        return str(answer["FailedNodes"][NODE])
    await until(lambda: ALLOCATED in node.noted(name))  # nobody binds it, so it is written a moment later
    (card,) = cards(node, name)
    return card
