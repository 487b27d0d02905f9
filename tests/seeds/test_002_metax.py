"""The MetaX article's own pods on a MetaX machine, by the processes that a cluster runs."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.demo.stage import NODE
from hami_plugin.wire.pods import decode_devices
from tests.seeds.live import Live, examples, living
from tests.support.scheduling import reasons, until

BINPACK, SPREAD, AWARE, SHARE = examples("002_metax.yaml")
QOS = "metax-tech.com/sgpu-qos-policy"
REGISTER = "metax-tech.com/node-gpu-devices"
ALLOCATED = "hami.io/metax-sgpu-devices-allocated"
CARDS = 8
AGENTS_SHARES = 16


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[tuple[Live, AsyncExitStack]]:
    async with living("metax-c500-8", tmp_path) as (node, stack):
        yield node, stack


def cards(live: Live, name: str, key: str = ALLOCATED) -> list[str]:
    return [grant.uuid for piece in decode_devices(live.noted(name)[key]) for grant in piece]


async def test_the_second_class_on_a_full_node_hears_which_class_is_there(
    live: tuple[Live, AsyncExitStack], tmp_path: Path
) -> None:
    """一张物理 GPU 卡,从第一个任务入驻开始,就只能接受和它“同类”的后续任务。"""
    node, stack = live
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
        await node.restart_scheduler(stack, tmp_path)
    await until(lambda: "CardQosPolicyMismatch(fixed-share)" in reasons(node.stage.api, "second")["FilteringFailed"])

    node.end("fixed-0")
    await node.chosen(third)
    assert cards(node, "third") == held[:1]


async def test_three_classes_never_share_a_card(live: tuple[Live, AsyncExitStack], tmp_path: Path) -> None:
    """确保不同 QoS 类型的任务从一开始就不会被混合部署在同一张物理卡上。

    With the register that our daemon has written, but for the number of shares, which MetaX's own agent sets to 16.
    """
    node, stack = live
    await raise_shares(node, 2)
    await node.restart_scheduler(stack, tmp_path)

    first = await outcome(node, "a", "fixed-share")
    second = await outcome(node, "b", "best-effort")
    third = await outcome(node, "c", "burst-share")
    await node.restart_scheduler(stack, tmp_path)
    after, alike = await outcome(node, "d", "burst-share"), await outcome(node, "e", "fixed-share")

    assert first != second
    assert third == after == "1/2 CardQosPolicyMismatch(best-effort), 1/2 CardQosPolicyMismatch(fixed-share)"
    assert alike == "1/2 CardInsufficientCore, 1/2 CardQosPolicyMismatch(best-effort)"


async def test_a_card_with_room_for_all_three_takes_one_class(
    live: tuple[Live, AsyncExitStack], tmp_path: Path
) -> None:
    """如果 GPU 已被占用,则新任务的 QoS 注解必须严格等于卡上现有任务的 QoS 模式,否则调度将被拒绝。

    A fifth of the cores each, in place of the 60 %, of which one card has room for one.
    """
    node, stack = live
    await raise_shares(node, 1)
    await node.restart_scheduler(stack, tmp_path)

    first = await outcome(node, "a", "best-effort", cores=20)
    refused = [await outcome(node, name, f"{name}-share", cores=20) for name in ("fixed", "burst")]
    await node.restart_scheduler(stack, tmp_path)
    refused += [await outcome(node, f"{name}-again", f"{name}-share", cores=20) for name in ("fixed", "burst")]
    alike = await outcome(node, "b", "best-effort", cores=20)

    assert alike == first
    assert refused == ["1/1 CardQosPolicyMismatch(best-effort)"] * 4


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
    (card,) = cards(node, name)
    return card
