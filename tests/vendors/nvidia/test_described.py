"""What a card, its instances and its driver add to a container, on simulated machines, held against reviewed specs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from cdi.documents import read, to_json
from cdi.names import Kind
from cdi.spec import Spec, SpecDevice
from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.sdk import Family
from vendors.nvidia import VENDOR
from vendors.nvidia.host import DiscoveredInstance, instances, read_capabilities
from vendors.nvidia.settings import NvidiaSettings
from vendors.nvidia.simulation import NvmlSimulator
from vendors.nvidia.simulation.records import DRIVER_VERSION

GOLDEN = Path(__file__).parent / "golden"
HOST = HostFiles(paths=HostPaths())


def family(settings: NvidiaSettings) -> Family:
    (only,) = VENDOR.families(settings)
    return only


def seen(rig: Any) -> tuple[Device, ...]:
    return tuple(sighting.device for sighting in rig.driver.discover().sightings)


def spec_of(rig: Any) -> Spec:
    nvidia = family(rig.settings)
    named: dict[str, Any] = {}
    for device in seen(rig):
        named |= dict.fromkeys((device.uuid, device.number), nvidia.node.device_edits(device, HOST))
        named |= nvidia.node.slices(device, HOST)
    devices = tuple(SpecDevice(name=name, edits=edits) for name, edits in named.items())
    return Spec(kind=Kind.parse(nvidia.node.delivery.kind), devices=devices, edits=nvidia.node.shared_edits(HOST))


def nodes(edits: Any) -> list[str]:
    return [node.path for node in edits.device_nodes]


@pytest.mark.parametrize("profile", ["dgx-h100", "a100-pcie-2-mig"])
def test_a_machines_spec_is_the_reviewed_one(profile: str, rig: Callable[..., Any]) -> None:
    machine = rig(profile)
    golden = GOLDEN / f"{profile}.json"

    text = to_json(spec_of(machine)).replace(str(machine.simulator.directory), "/simulated")

    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert json.loads(text) == json.loads(golden.read_text(encoding="utf-8"))
    assert read(text, golden.name).names == spec_of(machine).names


def test_a_machines_instances_are_described_alike_by_themselves_and_by_their_card(rig: Callable[..., Any]) -> None:
    by_card = {device.name: device.edits for device in spec_of(rig("a100-pcie-2-mig")).devices}

    alone = {device.name: device.edits for device in spec_of(rig("a100-pcie-2-mig", migStrategy="mixed")).devices}

    cut = {"GPU-00000000-5150-4ccd-8a11-667bc5cd0000", "0"}
    assert alone == {name: edits for name, edits in by_card.items() if name not in cut}
    assert len([name for name in alone if name.startswith("MIG-")]) == 4


def test_an_instance_without_a_capability_in_the_kernels_list_cannot_be_described(rig: Callable[..., Any]) -> None:
    machine = rig("a100-pcie-2-mig", migStrategy="mixed")
    nvidia = family(machine.settings)
    first, *_ = seen(machine)
    (Path(machine.settings.proc_root) / "driver/nvidia-caps/mig-minors").write_text("config 1\n")

    with pytest.raises(HamiError, match="the kernel lists no capability of MIG-"):
        nvidia.node.device_edits(first, HOST)


def test_a_card_adds_its_own_nodes_and_nobody_elses(rig: Callable[..., Any]) -> None:
    machine = rig("dgx-h100")
    nvidia = family(machine.settings)

    for device in seen(machine):
        expected = [f"/dev/nvidia{device.minor}", f"/dev/dri/card{device.minor}"]
        assert nodes(nvidia.node.device_edits(device, HOST)) == [
            *expected,
            f"/dev/dri/renderD{128 + (device.minor or 0)}",
        ]
        assert nvidia.node.slices(device, HOST) == {}


def test_the_driver_adds_its_control_nodes_and_files_and_keeps_nvidias_runtime_away(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    (Path(machine.settings.dev_root) / "nvidia-modeset").unlink()

    edits = family(machine.settings).node.shared_edits(HOST)

    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert nodes(edits) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    inside = {mount.container_path for mount in edits.mounts}
    assert {f"/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER_VERSION}", "/usr/bin/nvidia-smi"} <= inside
    assert all(Path(mount.host_path).is_file() and mount.read_only for mount in edits.mounts)
    assert [hook.args[1] for hook in edits.hooks] == ["create-symlinks", "update-ldcache"]


def test_the_files_follow_the_driver(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    nvidia = family(machine.settings)

    machine.simulator.inject("driver-back", value="580.65.06")

    names = {Path(mount.host_path).name for mount in nvidia.node.shared_edits(HOST).mounts}
    assert "libcuda.so.580.65.06" in names
    assert not any(DRIVER_VERSION in name for name in names)
    assert "driver 580.65.06" in "\n".join(nvidia.node.explain(HOST))


def test_a_card_without_a_minor_number_or_a_node_says_so(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    nvidia = family(machine.settings)
    first, second, *_ = seen(machine)
    (Path(machine.settings.dev_root) / "nvidia1").unlink()

    with pytest.raises(HamiError, match="has no device node that the driver knows of"):
        nvidia.node.device_edits(replace(first, minor=None), HOST)
    with pytest.raises(HamiError, match=r"has no node .*nvidia1 on this host"):
        nvidia.node.device_edits(second, HOST)


def test_nodes_have_one_path_where_the_host_has_it_too(tmp_path: Path) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("nvidia3", "dri/renderD131"):
        (tmp_path / "dev" / name).touch()
    for name in ("card3", "renderD131", "card3-DP-1"):
        (tmp_path / "sys/bus/pci/devices/0000:4f:00.0/drm" / name).mkdir(parents=True)
    host = HostFiles(paths=HostPaths(dev=tmp_path / "dev", sysfs=tmp_path / "sys"))
    card = Device(uuid="GPU-a", family="NVIDIA", index=0, model="", memory=1, minor=3, pci="0000:4f:00.0")

    edits = family(NvidiaSettings()).node.device_edits(card, host)

    assert [(node.path, node.host_path) for node in edits.device_nodes] == [
        ("/dev/nvidia3", ""),
        ("/dev/dri/renderD131", ""),
    ]


def test_instances_are_discovered_with_their_numbers_and_profiles(rig: Callable[..., Any]) -> None:
    cut, whole = seen(rig("a100-pcie-2-mig"))

    assert [(one.index, one.gi, one.ci, one.profile) for one in instances(cut)] == [
        (0, 2, 0, "3g.40gb"),
        (1, 3, 0, "2g.20gb"),
        (2, 9, 0, "1g.10gb"),
        (3, 10, 0, "1g.10gb"),
    ]
    assert len({one.uuid for one in instances(cut)}) == 4
    assert whole.traits is None


def test_an_instance_opens_its_card_and_its_own_two_capabilities(rig: Callable[..., Any]) -> None:
    machine = rig("a100-pcie-2-mig")
    cut, _ = seen(machine)
    first = instances(cut)[0]

    named = family(machine.settings).node.slices(cut, HOST)

    assert named[first.uuid] == named["0:0"]
    listed = read_capabilities(machine.settings.proc_root).minors
    own = [listed["gpu0/gi2/access"], listed["gpu0/gi2/ci0/access"]]
    assert nodes(named["0:0"]) == ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in own)]
    assert len({tuple(nodes(edits)) for edits in named.values()}) == 4
    for node in named["0:0"].device_nodes:
        assert Path(node.source).exists()


def destroy_last() -> None:
    """Take the last instance apart through NVML, as an administrator does."""
    instance = pynvml.nvmlDeviceGetGpuInstanceById(pynvml.nvmlDeviceGetHandleByIndex(0), 10)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    pynvml.nvmlGpuInstanceDestroy(instance)


@pytest.mark.scenario("D12")
def test_another_cut_is_another_snapshot_and_other_names(rig: Callable[..., Any]) -> None:
    machine = rig("a100-pcie-2-mig")
    before, _ = seen(machine)
    nvidia = family(machine.settings)

    destroy_last()

    after, _ = seen(machine)
    assert after != before
    assert before.traits[:3] == after.traits
    assert nvidia.node.slices(before, HOST).keys() - nvidia.node.slices(after, HOST).keys() == {
        before.traits[3].uuid,
        "0:3",
    }


def test_instances_that_the_kernel_lists_no_capability_of_are_left_out(rig: Callable[..., Any]) -> None:
    machine = rig("a100-pcie-2-mig")
    cut, _ = seen(machine)
    (Path(machine.settings.proc_root) / "driver/nvidia-caps/mig-minors").unlink()

    assert family(machine.settings).node.slices(cut, HOST) == {}


def test_an_old_drivers_instance_is_named_by_its_place_alone(rig: Callable[..., Any]) -> None:
    machine = rig("a100-pcie-2-mig")
    cut, _ = seen(machine)
    old = DiscoveredInstance(uuid="MIG-GPU-a/1/0", index=0, gi=1, ci=0)

    assert set(family(machine.settings).node.slices(replace(cut, traits=(old,)), HOST)) == {"0:0"}


def test_the_search_is_explained_in_lines(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    root = machine.settings.nvidia_driver_root

    lines = family(machine.settings).node.explain(HOST)

    assert lines[0] == f"looked in {root} (usual folders): found"
    assert f"driver {DRIVER_VERSION} at {root} (usual folders)" in lines
    assert f"hook {root}/usr/bin/nvidia-cdi-hook" in lines


def test_the_search_is_logged_when_its_outcome_changes_and_not_each_time(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    nvidia = family(machine.settings)

    with capture_logs() as logs:
        for _ in range(3):
            nvidia.node.shared_edits(HOST)
        machine.simulator.inject("driver-back", value="580.65.06")
        nvidia.node.shared_edits(HOST)

    reports = [entry["report"] for entry in logs if entry["event"] == "driver files looked for"]
    assert [any("580.65.06" in line for line in report) for report in reports] == [False, True]


def test_a_host_without_the_drivers_files_still_has_its_nodes(rig: Callable[..., Any], tmp_path: Path) -> None:
    machine = rig("t4-4-pcie", nvidiaDriverRoot=str(tmp_path / "none"), containerDriverRoot=str(tmp_path / "none"))

    edits = family(machine.settings).node.shared_edits(HOST)

    assert edits.mounts == ()
    assert "/dev/nvidiactl" in nodes(edits)
    assert any("no driver files found" in line for line in family(machine.settings).node.explain(HOST))


def test_where_this_process_sees_the_drivers_root_is_not_what_containers_are_given(
    rig: Callable[..., Any], tmp_path: Path
) -> None:
    machine = rig("t4-4-pcie")
    view = machine.settings.container_driver_root
    moved = machine.settings.model_copy(update={"nvidia_driver_root": Path("/run/nvidia/driver")})

    edits = family(moved).node.shared_edits(HOST)

    assert edits.mounts[0].host_path.startswith("/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.")
    assert not any(str(view) in mount.host_path for mount in edits.mounts)
    assert {hook.path for hook in edits.hooks} == {str(machine.settings.nvidia_cdi_hook_path)}


def test_a_simulation_opened_again_keeps_its_instances(rig: Callable[..., Any]) -> None:
    machine = rig("a100-pcie-2-mig")
    before, _ = seen(machine)
    destroy_last()
    machine.driver.close()

    again = NvmlSimulator.attach(machine.simulator.directory)
    again.inject("lost", 1)

    caps = Path(machine.settings.dev_root) / "nvidia-caps"
    assert len(list(caps.iterdir())) == 6
    assert len(before.traits) == 4
