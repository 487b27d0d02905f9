"""Devices by CDI through the whole daemon: what it answers resolves, and faults of the directories end in reasons."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cdi.names import annotated
from cdi.store import load
from hami_plugin.inventory.cdi_specs import file_name
from tests.e2e.disks import small_disk
from tests.e2e.manifests import asking, manifest, small
from tests.e2e.steps import WITHIN_S, logged, offered, start
from tests.support.scale import spread

KIND = "k8s.device-plugin.nvidia.com/gpu"
PROFILE = "hgx-a100-4gpu"


@pytest.fixture
def directories(tmp_path):
    found = [tmp_path / name for name in ("etc", "run")]
    for directory in found:
        directory.mkdir()
    return found


@pytest.fixture
async def stage(set_up, directories):
    """Not started yet."""
    return await by_cdi(set_up, directories)


async def by_cdi(set_up, directories, ways="cdi-annotations,cdi-cri", **own):
    return await set_up(
        PROFILE,
        cdiDirs=[str(directory) for directory in directories],
        vendors={"nvidia": {"deviceListStrategy": ways}},
        **own,
    )


def view(directories):
    return load(directories, yaml=yaml.safe_load)


def spec_of(directories) -> Path:
    return directories[-1] / file_name(KIND)


async def answer(stage, pod_manifest):
    pod = stage.scheduler.place(pod_manifest)
    await stage.kubelet.admit(pod)
    return pod, await stage.kubelet.start_container(pod.uid, "main")


def healthy(stage):
    return {info.id for info in stage.registered() if info.health}


async def test_a_container_is_given_names_that_resolve_to_its_devices_and_no_other(stage, directories):
    await start(stage)
    wanted = manifest("two", [asking("main", stage.family.resources, count=2, memory=3000, cores=30)])

    pod, given = await answer(stage, wanted)

    names = annotated(given.annotations)
    assert tuple(map(str, names)) == given.cdi_devices
    granted = {device.uuid: device.minor for device in stage.hardware.machine.devices}
    chosen = {name.device for name in names}
    told = pod.annotations[stage.family.rules.annotations.allocated]
    assert len(chosen) == 2
    assert all(uuid in told for uuid in chosen)
    edits = view(directories).resolve(names)
    nodes = {node.path for node in edits.device_nodes if node.path.removeprefix("/dev/nvidia").isdecimal()}
    assert nodes == {f"/dev/nvidia{granted[uuid]}" for uuid in chosen}
    assert given.edits.env["NVIDIA_VISIBLE_DEVICES"] == edits.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert given.edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert any(mount.container_path == "/etc/ld.so.preload" for mount in given.edits.mounts)


@pytest.mark.full
async def test_the_same_answer_without_cdi_names_nothing(set_up, directories):
    stage = await by_cdi(set_up, directories, "envvar")
    await start(stage)

    _pod, given = await answer(stage, small("plain", stage.family.resources))

    assert annotated(given.annotations) == ()
    assert given.cdi_devices == ()
    assert given.edits.env["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
    assert list(directories[-1].iterdir()) == []


def runtime_config(folder: Path, *, cdi: bool, directories=()) -> str:
    """A containerd 1.7's configuration that has CDI on or off."""
    file = folder / "config.toml"
    listed = ", ".join(f'"{directory}"' for directory in directories)
    section = '[plugins."io.containerd.grpc.v1.cri"]'
    file.write_text(f"version = 2\n{section}\nenable_cdi = {str(cdi).lower()}\ncdi_spec_dirs = [{listed}]\n")
    return str(file)


async def test_auto_hands_over_by_cdi_where_the_runtime_reads_our_directory(set_up, directories, tmp_path):
    config = runtime_config(tmp_path, cdi=True, directories=directories)
    stage = await by_cdi(set_up, directories, "auto", runtimeConfig=config)
    await start(stage)

    _pod, given = await answer(stage, small("chosen", stage.family.resources))

    (name,) = annotated(given.annotations)
    assert view(directories).resolve([name]).device_nodes


@pytest.mark.full
async def test_cdi_that_the_runtime_has_switched_off_is_told_at_the_node_and_served(set_up, directories, tmp_path):
    config = runtime_config(tmp_path, cdi=False, directories=directories)
    stage = await by_cdi(set_up, directories, runtimeConfig=config)
    await start(stage)

    await stage.until(lambda: any(e["reason"] == "CDISwitchedOff" for e in stage.api.events()), "the Event")
    (event,) = [e for e in stage.api.events() if e["reason"] == "CDISwitchedOff"]
    assert f'set enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"] in {config}' in event["message"]
    _pod, given = await answer(stage, small("served", stage.family.resources))
    assert annotated(given.annotations)


@pytest.mark.full
@pytest.mark.scenario("H2")
async def test_a_half_written_file_of_a_killed_daemon_is_cleaned_and_the_spec_is_whole(stage, directories):
    await start(stage)
    await stage.stop_daemon(kill=True)
    leftover = directories[-1] / f".{file_name(KIND)}.writing"
    leftover.write_text('{"cdiVersion": "0.')

    await start(stage)

    assert not leftover.exists()
    assert view(directories).problems == ()


@pytest.mark.parametrize("harm", spread(["delete", "edit"], part=2))
@pytest.mark.scenario("H3")
async def test_a_spec_that_somebody_spoils_is_back_soon(stage, directories, harm):
    await start(stage)
    good = spec_of(directories).read_text()
    if harm == "delete":
        spec_of(directories).unlink()
    else:
        spec_of(directories).write_text(good.replace("/dev/nvidia0", "/dev/sda"))

    await stage.until(
        lambda: spec_of(directories).exists() and spec_of(directories).read_text() == good,
        "the spec's return",
        WITHIN_S,
    )
    await offered(stage)


@pytest.mark.full
@pytest.mark.scenario("H4")
async def test_a_second_spec_of_a_device_takes_that_device_away_and_names_both_files(stage, directories):
    await start(stage)
    first = stage.hardware.machine.devices[0].uuid
    foreign = directories[0] / "foreign.json"
    foreign.write_text(
        json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": KIND,
                "devices": [{"name": first, "containerEdits": {"env": ["FOREIGN=yes"]}}],
            }
        )
    )

    everybody = {device.uuid for device in stage.hardware.machine.devices}
    await stage.until(lambda: healthy(stage) == everybody - {first}, "the conflict in the register")
    await stage.until(lambda: any(e["reason"] == "CDIConflict" for e in stage.api.events()), "the Event")
    (event,) = [e for e in stage.api.events() if e["reason"] == "CDIConflict"]
    assert str(foreign) in event["message"]
    assert str(spec_of(directories)) in event["message"]
    assert first in (await stage.get("/readyz"))[1]

    foreign.unlink()
    await offered(stage)


def remount(directory: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(directory)], check=True)


@pytest.mark.parametrize("fault", spread(["full", "read-only"], part=2))
@pytest.mark.scenario("H1")
async def test_a_disk_that_takes_nothing_makes_devices_wait_with_the_reason_and_heals(set_up, directories, fault):
    with small_disk(directories[-1]):
        filler = directories[-1] / "filler"
        if fault == "full":
            with pytest.raises(OSError, match="space"):
                filler.write_bytes(bytes(128 * 1024))
        else:
            remount(directories[-1], "ro")
        stage = await by_cdi(set_up, directories)
        await stage.start_daemon()

        await stage.until(lambda: len(stage.registered()) == len(stage.hardware.machine.devices), "the register")
        assert healthy(stage) == set()
        reasons = (await stage.get("/readyz"))[1]
        assert ("free space" if fault == "full" else "mount it for writing") in reasons

        if fault == "full":
            filler.unlink()
        else:
            remount(directories[-1], "rw")
        await offered(stage)


@pytest.mark.full
@pytest.mark.parametrize("mask", [0o077, 0o000])
@pytest.mark.scenario("H5")
async def test_the_umask_of_the_daemon_does_not_matter(stage, directories, mask):
    directories[-1].rmdir()
    before = os.umask(mask)
    try:
        await start(stage)
    finally:
        os.umask(before)

    assert stat.S_IMODE(spec_of(directories).stat().st_mode) == 0o644
    assert stat.S_IMODE(directories[-1].stat().st_mode) == 0o755


@pytest.mark.full
async def test_a_file_of_others_that_would_end_the_parser_is_that_files_problem_and_every_pod_is_served(
    stage, directories
):
    bomb = directories[0] / "other.yaml"
    bomb.write_text("[" * 65_536)
    await start(stage)

    _pod, given = await answer(stage, small("one", stage.family.resources))

    assert view(directories).resolve(annotated(given.annotations)).device_nodes
    await logged(stage, str(bomb), "nested more than 50 levels deep")
    assert len([line for line in stage.log_lines() if str(bomb) in line]) == 1


CUTTING = """
import ctypes, sys
import pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
if sys.argv[2] == "destroy":
    instance = pynvml.nvmlDeviceGetGpuInstanceById(card, 10)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    pynvml.nvmlGpuInstanceDestroy(instance)
else:
    profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
    instance = pynvml.nvmlDeviceCreateGpuInstance(card, profile.id)
    whole = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 0
    )
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
"""
"""What an administrator does beside the daemon, to the last instance of the first card."""


def cut(stage, what):
    library = stage.hardware.simulator.settings()["nvmlLibrary"]
    subprocess.run([sys.executable, "-c", CUTTING, library, what], check=True, timeout=120)


@pytest.mark.full
@pytest.mark.scenario("D12")
async def test_instances_that_are_cut_anew_beside_a_running_pod_are_described_anew_without_a_restart(
    set_up, directories
):
    stage = await set_up(
        "a100-pcie-2-mig",
        cdiDirs=[str(directory) for directory in directories],
        vendors={"nvidia": {"deviceListStrategy": "cdi-annotations"}},
        rescanSeconds=0.2,
    )
    count = stage.family.resources.count
    await stage.start_daemon()
    # The card that is cut is kept back; its instances have names in the spec.
    await stage.until(lambda: stage.kubelet.allocatable(count) > 0, "the offer of the whole card", 60)
    await stage.until(lambda: any(one.health for one in stage.registered()), "its registration", 60)
    _pod, given = await answer(stage, small("running", stage.family.resources))
    before = {name.device for name in view(directories).names}
    daemon, shares = stage.daemon.pid, stage.kubelet.allocatable(count)

    cut(stage, "destroy")
    await stage.until(
        lambda: "0:3" not in {name.device for name in view(directories).names}, "the smaller spec", WITHIN_S
    )

    after = {name.device for name in view(directories).names}
    gone = before - after
    assert {name.partition("-")[0] for name in gone} == {"0:3", "MIG"}
    assert after < before
    assert view(directories).resolve(annotated(given.annotations)).device_nodes
    assert stage.kubelet.allocatable(count) == shares

    cut(stage, "create")
    await stage.until(lambda: "0:3" in {name.device for name in view(directories).names}, "the new instance", WITHIN_S)

    again = {name.device for name in view(directories).names}
    assert after < again
    assert len(again) == len(before)
    assert stage.daemon.pid == daemon
    _pod, second = await answer(stage, small("second", stage.family.resources))
    assert view(directories).resolve(annotated(second.annotations)).device_nodes
