"""The chapter about the device plugin: its values, its DaemonSet and its tables, by Helm, daemon and scheduler."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.demo.node import CONFIGURATION, environment, simulated_node
from hami_plugin.sdk import vendor_names
from tests.charts.helm import HelmError, rendered
from tests.charts.library import library
from tests.seeds.examples import HERE, examples
from tests.support.live import live
from tools.debian.commands import LackingError

(VALUES,) = examples("003_values.yaml")
(DAEMON_SET,) = examples("003_daemonset.yaml")
(INJECTED,) = examples("003_injected.yaml")
SECTIONS: Mapping[str, Any] = {
    name: section for name, section in VALUES["devicePlugin"].items() if name in vendor_names()
}
WITHIN_S = 60


@pytest.fixture(scope="module")
def helm() -> None:
    """Where Helm cannot be had, what needs it is skipped."""
    try:
        library()
    except LackingError as error:
        pytest.skip(f"no Helm here: {error}")


def without(*paths: str) -> dict[str, Any]:
    """The chapter's values, but for these."""
    values = copy.deepcopy(VALUES)
    for path in paths:
        *way, last = path.split(".")
        at = values
        for part in way:
            at = at[part]
        del at[last]
    return values


@pytest.mark.usefixtures("helm")
def test_the_values_that_would_give_a_dead_daemon_are_named_when_the_chart_is_rendered() -> None:
    """以下是通过 Helm values.yaml 配置设备插件的完整示例:"""
    with pytest.raises(HelmError) as refused:
        rendered(VALUES)

    said = str(refused.value)
    assert "devicePlugin.image.repository: projecthami/hami is an image of HAMi's" in said
    assert "devicePlugin.livenessProbe.exec: nothing here makes a socket hami-gpu.sock" in said
    assert said.count("devicePlugin.") == 2


@pytest.mark.usefixtures("helm")
async def test_what_the_chart_makes_of_the_other_values_is_a_daemon_that_lives() -> None:
    """以下是通过 Helm values.yaml 配置设备插件的完整示例: all of it but the image and the probe for a socket."""
    release = rendered(without("devicePlugin.image.repository", "devicePlugin.livenessProbe"))
    (container,) = release.one("DaemonSet")["spec"]["template"]["spec"]["containers"]
    (config,) = (one["data"] for one in release.kind("ConfigMap") if "config.json" in one["data"])

    assert container["image"] == "hami-plugin:v2.5.0"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    async with simulated_node(
        "dgx-h100", configuration={**yaml.safe_load(config["config.yaml"]), **CONFIGURATION}
    ) as stage:
        for name in ("device-config.yaml", "config.json"):
            (stage.directory / name).write_text(config[name], encoding="utf-8")
        files = {
            "device_config": stage.directory / "device-config.yaml",
            "node_config": stage.directory / "config.json",
        }
        await alive(stage.twin("rendered", **files))


async def test_the_sections_of_all_vendors_are_taken_as_they_stand() -> None:
    """每张 GPU 的切分份数: 10 for NVIDIA, and for three vendors that are disabled numbers of their own."""
    assert {name: section["splitCount"] for name, section in SECTIONS.items()} == {
        "nvidia": 10, "ascend": 4, "cambricon": 8, "hygon": 4,
    }  # fmt: skip
    async with simulated_node("dgx-h100", configuration={**CONFIGURATION, "vendors": SECTIONS}) as stage:
        await alive(stage)


async def alive(stage: Any) -> None:
    """The daemon offers each card in as many shares as the chapter says, and finds itself well."""
    await stage.start_daemon()
    try:
        expected = 8 * SECTIONS["nvidia"]["splitCount"]
        await stage.until(lambda: stage.kubelet.allocatable(stage.resource) == expected, "the offer", WITHIN_S)
        assert (await stage.get("/healthz"))[0] == 200
    finally:
        await stage.stop_daemon()


@pytest.mark.full
@pytest.mark.parametrize(
    ("vendor", "key", "served"),
    [
        ("ascend", "splitCount", "an NPU goes to as many containers as it has of its smallest template: "),
        (
            "cambricon",
            "splitCount",
            "a whole MLU goes to one container, or in 100 shares with mode: dynamic-smlu or unlimitedShares: true",
        ),
    ],
)
async def test_a_number_that_an_enabled_vendor_cannot_take_is_refused_with_what_it_serves(
    vendor: str, key: str, served: str, tmp_path: Path
) -> None:
    """splitCount: 4 of Ascend, 8 of Cambricon, once they are enabled."""
    section = {**SECTIONS[vendor], "enabled": True}

    status, said = await run({"nodeName": "n1", "vendors": {vendor: section}}, tmp_path)

    assert status == 2
    assert f"vendors.{vendor}.{key}: {section[key]}: cannot be set for this vendor, where {served}" in said
    assert said.count("vendors.") == 1


@pytest.mark.full
async def test_the_parts_of_an_npu_are_told_by_chip(tmp_path: Path) -> None:
    """splitCount: 4: as many containers as a 910B3 takes, and another number on other chips."""
    section = {**SECTIONS["ascend"], "enabled": True}

    _, said = await run({"nodeName": "n1", "vendors": {"ascend": section}}, tmp_path)

    assert re.findall(r"(\d+) on (\w+)", said)[:3] == [("15", "Ascend910A"), ("8", "Ascend910B2"), ("4", "Ascend910B3")]


async def run(configuration: Mapping[str, Any], folder: Path) -> tuple[int, str]:
    """The daemon's command with this file, which must end by itself: its status, and what it says."""
    file = folder / "config.yaml"
    file.write_text(json.dumps(configuration), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_plugin", "run", "--config", str(file),
        stderr=asyncio.subprocess.PIPE, env=environment(), cwd=HERE.parents[1],
    )  # fmt: skip
    _, said = await asyncio.wait_for(process.communicate(), WITHIN_S)
    return process.returncode or 0, said.decode()


@pytest.mark.usefixtures("helm")
def test_the_daemon_sets_image_command_and_host_paths_are_named_when_the_chart_is_rendered() -> None:
    """Device Plugin 以 DaemonSet 形式部署,每个 GPU 节点运行一个实例:"""
    pod = DAEMON_SET["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    repository, _, tag = container["image"].partition(":")
    paths = [{"path": volume["hostPath"]["path"]} for volume in pod["volumes"]]
    plugin = {
        "image": {"repository": repository, "tag": tag},
        "extraArgs": ["--resource-name=nvidia.com/gpu"],
        "hostPaths": paths,
        "nodeSelector": pod["nodeSelector"],
    }

    with pytest.raises(HelmError) as refused:
        rendered({"devicePlugin": plugin})
    with pytest.raises(HelmError, match="command"):
        rendered({"devicePlugin": {"command": container["command"]}})
    lives = rendered({"devicePlugin": {"hostPaths": paths[1:], "nodeSelector": pod["nodeSelector"]}})

    said = str(refused.value)
    assert f"devicePlugin.image.repository: {repository} is an image of HAMi's" in said
    assert "devicePlugin.extraArgs: --resource-name is no option of the daemon" in said
    assert "devicePlugin.hostPaths: /var/lib/kubelet/device-plugins is mounted by the chart itself" in said
    mounts = lives.one("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert [one["name"] for one in mounts if one["mountPath"] == "/dev"] == ["host-0"]


@pytest.mark.usefixtures("helm")
def test_a_pools_values_are_named_with_the_pool() -> None:
    """以下是通过 Helm values.yaml 配置设备插件的完整示例: as a pool of the chart."""
    probe = VALUES["devicePlugin"]["livenessProbe"]

    with pytest.raises(HelmError, match=r"devicePlugin.pools\[big\].livenessProbe.exec: nothing here makes"):
        rendered({"devicePlugin": {"pools": [{"name": "big", "livenessProbe": probe}]}})


@pytest.mark.full
async def test_a_container_is_told_what_the_chapter_says_by_the_names_that_hami_core_reads() -> None:
    """Allocate 返回的响应包含三类配置: 设备路径注入, 环境变量注入, 挂载点注入。"""
    wanted = dict(re.findall(r'"(\w+)":\s+"([^"]+)"', INJECTED["envs"]))
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30}
    container = {"name": "main", "image": "example", "resources": {"limits": limits}}
    async with live("dgx-h100") as node:
        await node.run({"metadata": {"name": "one"}, "spec": {"containers": [container]}})
        edits = node.answers["one"].edits

    card = edits.env["NVIDIA_VISIBLE_DEVICES"]
    assert card in {device.uuid for device in node.stage.devices}
    assert wanted.keys() & edits.env.keys() == {"NVIDIA_VISIBLE_DEVICES"}
    assert edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{wanted['CUDA_DEVICE_MEMORY_LIMIT']}m"
    assert edits.env["CUDA_DEVICE_SM_LIMIT"] == wanted["CUDA_DEVICE_CORE_LIMIT"]
    mounts = {mount.container_path for mount in edits.mounts}
    assert any(mount.endswith("/vgpu/libvgpu.so") for mount in mounts)
    assert mounts.isdisjoint(re.findall(r'ContainerPath: "([^"]+)"', INJECTED["mounts"]))
