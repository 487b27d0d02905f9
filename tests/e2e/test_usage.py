"""What containers use: from the file that HAMi-core writes in a container to metrics and ``hami-plugin top``."""

from __future__ import annotations

import asyncio
import json
import lzma
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.demo.node import SimulatedNode
from tests.e2e.manifests import asking, manifest
from tests.e2e.steps import WITHIN_S, bring_up, start
from tests.e2e.test_restarted_containers import begin
from tests.support.promql import series

REGION = Path(__file__).parents[1] / "vectors/regions/v1.2-two-cards.bin.xz"
GIB = 1 << 30
CONTEXT = 445_644_800


async def ran(stage: SimulatedNode, *arguments: str, command: str = "top") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "hami_plugin", command, "--url", f"http://{stage.options['--http']}", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WITHIN_S):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def until_read(stage: SimulatedNode, state: str) -> dict[str, Any]:
    """The one container of ``/debug/usage``, once it is in this state."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            status, text = await stage.get("/debug/usage")
            assert status == 200
            found = [container for device in json.loads(text)["devices"] for container in device["containers"]]
            if found and all(container["state"] == state for container in found):
                return dict(found[0])
            await asyncio.sleep(0.05)


async def test_what_a_container_uses_is_told_by_metrics_and_top_as_hami_core_counts_it(running: Any) -> None:
    stage = await running(usageSeconds=0.05, hamiMetrics=True)
    resources = stage.family.resources
    pod = await bring_up(stage, manifest("busy", [asking("main", resources, count=2, memory=4096, cores=30)]))
    region = await begin(stage, pod, "main")
    absent = await until_read(stage, "absent")
    assert absent["memoryUsed"] is None

    region.write_bytes(lzma.decompress(REGION.read_bytes()))
    await until_read(stage, "ok")

    _status, text = await stage.get("/metrics")
    used = {
        dict(labels)["uuid"]: value for labels, value in series(text, "hami_plugin_container_memory_used_bytes").items()
    }
    assert sorted(used.values()) == [GIB + CONTEXT, 2 * GIB + CONTEXT]
    hami = series(text, "hami_vgpu_memory_used_bytes")
    assert {(dict(labels)["vdevice_index"], dict(labels)["device_uuid"]): value for labels, value in hami.items()} == {
        (str(index), uuid): used[uuid] for index, uuid in enumerate(used)
    }
    assert {dict(labels)["zone"] for labels in hami} == {"vGPU"}

    status, out, _err = await ran(stage, "--json")
    assert status == 0
    told = {device["uuid"]: device["containers"] for device in json.loads(out)["devices"]}
    assert {uuid: told[uuid][0]["memoryUsed"] for uuid in used} == used
    status, out, _err = await ran(stage, "--once")
    lines = [line for line in out.splitlines() if "/busy " in line]
    amounts = [[cell.strip() for cell in line.split("  ") if "MiB" in cell] for line in lines]
    assert sorted(amounts) == [["1449 MiB", "4096 MiB"], ["2473 MiB", "4096 MiB"]]


async def test_what_the_hardware_says_of_each_card_is_told_under_our_names_and_hamis(running: Any) -> None:
    stage = await running(usageSeconds=0.05, hamiMetrics=True)
    stage.hardware.simulator.inject("utilization", None, "40:20")
    cards = {device.uuid for device in stage.hardware.machine.devices}

    async def told(name: str) -> dict[Any, float]:
        return series((await stage.get("/metrics"))[1], name)

    async with asyncio.timeout(WITHIN_S):
        while set((found := await told("hami_host_gpu_utilization_ratio")).values()) != {40.0}:
            pass

    assert {dict(labels)["device_uuid"] for labels in found} == cards
    assert {frozenset(dict(labels)) for labels in found} == {
        frozenset({"node", "device_index", "device_uuid", "device_type", "zone"})
    }
    assert all(dict(labels)["device_type"].startswith("NVIDIA-NVIDIA") for labels in found)
    assert set((await told("hami_host_gpu_memory_controller_utilization_ratio")).values()) == {20.0}
    assert set((await told("hami_plugin_device_utilization_ratio")).values()) == {0.4}
    assert len(await told("hami_host_gpu_memory_used_bytes")) == len(cards)
    _status, text = await stage.get("/debug/usage")
    assert all(
        device["utilization"] == 0.4 and device["memoryUsed"] is not None for device in json.loads(text)["devices"]
    )
    _status, out, _err = await ran(stage, "--once")
    assert sum("40%" in line for line in out.splitlines()) == len(cards)


async def test_processes_on_a_card_are_told_by_container_and_those_of_nobody_who_has_it_are_counted(
    running: Any,
) -> None:
    stage = await running(usageSeconds=0.05, vendors={"nvidia": {"processUsage": True}})
    pod = await bring_up(stage, manifest("busy", [asking("main", stage.family.resources, memory=4096, cores=30)]))
    card = await card_of(stage, "busy")
    ours = f"0::/kubepods.slice/kubepods-pod{pod.uid.replace('-', '_')}.slice/cri-containerd-{'4f' * 32}.scope\n"
    for pid, cgroup in ((4711, ours), (4712, "0::/system.slice/nvidia-cuda-mps.service\n")):
        folder = stage.hardware.simulator.directory / "proc" / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup)
    for process in ("4711:6000", "4712:300", "4713:20"):
        stage.hardware.simulator.inject("process", card["number"], process)

    async def told(name: str, *labels: str) -> dict[tuple[str, ...], float]:
        found = series((await stage.get("/metrics"))[1], name)
        return {tuple(dict(key)[label] for label in labels): value for key, value in found.items()}

    async with asyncio.timeout(WITHIN_S):
        wanted = {(card["uuid"], "busy"): 1}
        while await told("hami_plugin_container_processes", "uuid", "pod") != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await told("hami_plugin_container_processes_memory_bytes", "pod", "container") == {
        ("busy", "main"): 6000 << 20
    }
    outside = await told("hami_plugin_device_outsiders_memory_bytes", "uuid", "who")
    assert {who: value for (uuid, who), value in outside.items() if uuid == card["uuid"]} == {
        "no pod": 300 << 20,
        "another pod": 0,
        "unknown": 20 << 20,
    }
    assert sum((await told("hami_plugin_device_outsiders", "uuid", "who")).values()) == 2

    status, out, _err = await ran(stage)
    assert status == 0
    (line,) = (line for line in out.splitlines() if "/busy " in line)
    assert "6000 MiB in 1 process by the driver" in line
    assert any("(no pod)" in line and "300 MiB" in line for line in out.splitlines())
    page = await stage.get("/", accept="text/html")
    assert "(5.9 GiB by the driver)" in page[1]
    assert "no pod: 1 on it, 300 MiB" in page[1]


async def card_of(stage: SimulatedNode, pod: str) -> dict[str, Any]:
    """The device that the pod has."""
    _status, text = await stage.get("/debug/usage")
    (card,) = (one for one in json.loads(text)["devices"] if pod in {each["pod"] for each in one["containers"]})
    return {**card, "number": int(card["number"])}


async def test_who_has_a_device_of_another_vendor_alone_uses_what_the_vendors_tool_says(set_up: Any) -> None:
    stage = await set_up("gaudi2-8", usageSeconds=0.05)
    stage.hardware.simulator.inject("load", None, "37:1024")
    await start(stage)
    await stage.kubelet.admit(stage.scheduler.place(manifest("busy", [asking("main", stage.family.resources)])))

    async with asyncio.timeout(WITHIN_S):
        while (told := (await top(stage))["memoryUsed"]) is None:
            pass

    assert told == GIB
    assert (await top(stage))["utilization"] == 0.37
    text = (await stage.get("/metrics"))[1]
    assert set(series(text, "hami_plugin_container_memory_used_bytes").values()) == {GIB}
    assert len(series(text, "hami_plugin_device_memory_used_bytes")) == 8
    status, out, _err = await ran(stage, "--once")
    assert status == 0
    assert [line.count("1024 MiB") for line in out.splitlines() if "/busy " in line] == [1]


async def test_who_shares_an_npu_uses_what_hamis_core_for_npus_counts(set_up: Any) -> None:
    stage = await set_up("ascend-910b3-8", usageSeconds=0.05, vendors={"ascend": {"hamiVnpuCore": True}})
    core = stage.directory / "hook/hami-vnpu-core"
    core.mkdir(parents=True)
    for name in ("libvnpu.so", "ld.so.preload"):
        (core / name).touch()
    await start(stage)
    asks = [asking("main", stage.family.resources, memory=8192, cores=50)]
    pod = stage.scheduler.place(manifest("busy", asks, annotations={"huawei.com/vnpu-mode": "hami-core"}))
    await stage.kubelet.admit(pod)
    assert (await top(stage))["memoryUsed"] is None

    counted = bytearray(6200)
    struct.pack_into("<Q", counted, 0, 8 * GIB)
    struct.pack_into("<i4xQ56xI", counted, 1080, 7, GIB, 1)
    (core / f"containers/{pod.uid}_main/vnpu_local_shmem").write_bytes(counted)

    async with asyncio.timeout(WITHIN_S):
        while (told := (await top(stage))["memoryUsed"]) is None:
            pass
    assert told == GIB


async def top(stage: SimulatedNode) -> dict[str, Any]:
    """The one container of ``hami-plugin top``."""
    _status, out, _err = await ran(stage, "--json")
    (found,) = (one for device in json.loads(out)["devices"] for one in device["containers"])
    return dict(found)


@pytest.mark.full
async def test_nobody_lists_processes_unasked(running: Any) -> None:
    stage = await running(usageSeconds=0.05)
    stage.hardware.simulator.inject("process", 0, "4711:6000")
    await bring_up(stage, manifest("busy", [asking("main", stage.family.resources, memory=4096, cores=30)]))

    async with asyncio.timeout(WITHIN_S):
        while not series((await stage.get("/metrics"))[1], "hami_plugin_device_memory_used_bytes"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    assert series((await stage.get("/metrics"))[1], "hami_plugin_device_outsiders") == {}
    assert json.loads((await stage.get("/debug/usage"))[1])["devices"][0]["outsiders"] is None


@pytest.mark.full
async def test_what_a_container_puts_in_place_of_its_usage_file_harms_no_other(running: Any) -> None:
    stage = await running(usageSeconds=0.05)
    resources = stage.family.resources
    hostile = await bring_up(stage, manifest("hostile", [asking("main", resources, memory=4096, cores=30)]))
    region = await begin(stage, hostile, "main")
    region.symlink_to("/etc/passwd")

    found = await until_read(stage, "unreadable")

    assert found["memoryUsed"] is None
    _status, text = await stage.get("/metrics")
    states = series(text, "hami_plugin_container_usage_info")
    assert [dict(labels)["state"] for labels in states] == ["unreadable"]
    status, out, _err = await ran(stage)
    assert status == 0
    assert "unreadable: " in out


async def test_top_says_where_it_looked_for_a_daemon_that_is_not_there(set_up: Any) -> None:
    stage = await set_up()
    address = stage.options["--http"]

    status, _out, err = await ran(stage)

    assert status == 1
    assert f"no daemon answers at http://{address}" in err
