"""What the article on Enflame GCUs (HAMi 2.7) shows, with its own pod, through the real processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hami_plugin.cli import main
from hami_plugin.sdk import Partition
from tests.support.live import Live, live
from vendors.enflame.on_demand import DrsPartitions
from vendors.enflame.settings import EnflameSettings

HERE = Path(__file__).parent
POD = HERE / "004_pod.yaml"
NODE = "node1"
CUT, WHOLE = "enflame-s60-8-drs", "enflame-s60-8"
FIRST = {"enflame.com/use-gpuuuid": "node1-enflame-0"}

pytestmark = pytest.mark.e2e


def pod(name: str = "", **annotations: str) -> Mapping[str, Any]:
    """The article's pod as it stands; of another name where several are to run."""
    manifest: dict[str, Any] = yaml.safe_load(POD.read_text(encoding="utf-8"))
    if name:
        manifest["metadata"] = {"name": name, "annotations": annotations}
    return manifest


def there(one: Live) -> Sequence[Partition]:
    """What the cards are cut into."""
    settings = EnflameSettings.model_validate(one.stage.hardware.settings)
    return DrsPartitions(settings, f"{NODE}-enflame").partitions()


async def test_the_pod_runs_on_the_card_that_it_names_and_has_a_partition_of_it() -> None:
    """用户可以通过以下 YAML 配置来使用燧原 vGCU … 指定使用 UUID 为 node1-enflame-0 的 GCU 设备"""
    async with live(CUT, node=NODE) as node:
        ended = await node.tried(pod())

        assert (ended.node, ended.why) == (NODE, "")
        edits = ended.answers["my-shared-gcu-app"].edits
        (made,) = there(node)
        assert (made.card, made.profile) == ("node1-enflame-0", "2g.16gb"), "two of six slices are a quarter and more"
        assert edits.env == {"ENFLAME_VISIBLE_DEVICES": "0", "TOPS_VISIBLE_DEVICES": f"DRS-{made.uuid}"}
        assert [one.path for one in edits.device_nodes] == ["/dev/gcuctl", "/dev/gcu0"]
        name = "gcu-shared-pod-with-uuid"
        stored = node.api.pod("default", name)["metadata"]["annotations"]
        assert stored["hami.io/enflame-vgpu-devices-allocated"] == "node1-enflame-0,Enflame,25,0:;"
        await node.stage.until(lambda: made.uuid in node.noted(name).get("assigned-containers", ""), "the names")

        kept = await node.tried(pod("kept", **FIRST))
        await node.stage.stop_daemon(kill=True)
        node.end(name)
        await node.stage.start_daemon()
        await node.stage.until(lambda: made not in there(node), "the end of the partition")
        (left,) = there(node)
        assert kept.answers["my-shared-gcu-app"].edits.env["TOPS_VISIBLE_DEVICES"] == f"DRS-{left.uuid}"


@pytest.mark.full
async def test_the_percentage_is_the_share_of_a_card_in_a_hundred_units() -> None:
    """由于 vGCU 将一张卡抽象为 100 个百分比单元，这里的转换是一个简单的映射关系。"""
    async with live(CUT, node=NODE) as node:
        ended = [await node.tried(pod(name, **FIRST)) for name in ("a", "b", "c")]
        refused = await node.tried(pod("d", **FIRST))
        cut = [(one.card, one.profile) for one in there(node)]

    # A quarter is served by two of a card's six slices: three quarters take them all.
    assert [one.node for one in ended] == [NODE, NODE, NODE]
    assert cut == [("node1-enflame-0", "2g.16gb")] * 3
    assert refused.refused_at == "filter"
    assert refused.why.startswith(
        "1/8 CardWithoutFreePartition, 7/8 CardUuidMismatch (no partition that is large enough"
    )


@pytest.mark.full
async def test_the_first_card_that_has_it_left_is_taken() -> None:
    """遍历检查：循环遍历候选设备，检查其剩余的 `Mem`（即百分比单元）是否满足请求。
    快速返回：找到第一个满足条件的设备后，立即返回成功。"""
    async with live(CUT, node=NODE) as node:
        ended = [await node.tried(pod(f"p{number}")) for number in range(7)]

    cards = [one.answers["my-shared-gcu-app"].edits.env["ENFLAME_VISIBLE_DEVICES"] for one in ended]
    assert all(cards.count(card) <= 3 for card in cards), "a card has six slices, and a quarter takes two"


@pytest.mark.full
async def test_a_card_that_is_not_named_is_not_taken() -> None:
    """过滤设备：根据 `use-gpuuuid`/`nouse-gpuuuid` 注解，筛选出候选物理设备。"""
    avoided = ",".join(f"node1-enflame-{number}" for number in range(8) if number != 3)
    async with live(CUT, node=NODE) as node:
        ended = await node.tried(pod("p", **{"enflame.com/nouse-gpuuuid": avoided}))

    assert ended.answers["my-shared-gcu-app"].edits.env["ENFLAME_VISIBLE_DEVICES"] == "3"


@pytest.mark.full
async def test_where_no_card_is_cut_the_pod_is_refused_when_it_is_scheduled_with_the_reason() -> None:
    """燧原 GCU 的集成案例 … 将一款新的异构硬件快速、可靠地接入到云原生调度体系中。"""
    async with live(WHOLE, node=NODE) as node:
        ended = await node.tried(pod())

    assert ended.refused_at == "filter"
    assert ended.why.startswith("NodeInsufficientDevice (the node serves none of these: its cards are not cut")
    assert "efsmi" in ended.why


@pytest.mark.parametrize(("profile", "status"), [(CUT, 0), (WHOLE, 1)])
def test_fit_says_the_same_and_prints_percent_as_percent(
    profile: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """将用户 YAML 中的 `enflame.com/vgcu-percentage` 转换为内部的 `Memreq`（显存请求）字段。"""
    monkeypatch.setenv("NODE_NAME", NODE)
    outcomes = [CliRunner().invoke(main, ["fit", str(POD), option, profile]) for option in ("--profile", "--simulate")]

    assert {one.exit_code for one in outcomes} == {status}
    assert outcomes[0].output == outcomes[1].output
    assert "1 x enflame.com/vgcu, 25 % of the memory" in outcomes[0].output
    assert "MiB" not in outcomes[0].output
    if status == 0:
        assert "25 %" in outcomes[0].output.splitlines()[-1]


@pytest.mark.full
async def test_scores_are_neutral() -> None:
    """`ScoreNode` 的实现非常简单，只需返回一个中性的默认分值（`0`）即可，不影响调度器的 `binpack` 或 `spread` 决策。"""
    told = CliRunner().invoke(main, ["fit", str(POD), "--profile", CUT, "--json"], env={"NODE_NAME": NODE})

    assert [node["score"] for node in json.loads(told.output)["nodes"]] == [0.0]
