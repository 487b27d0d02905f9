"""The files around the library: sysfs, /proc and /dev as a driver reads them."""

import os
import stat
from pathlib import Path

import pytest


def test_settings_name_the_library_the_roots_and_the_hook(simulated, tmp_path):
    settings = simulated("t4-4-pcie").settings()
    folder = tmp_path / "machine"

    assert settings == {
        "nvmlLibrary": str(folder / "libnvidia-ml.so.1"),
        "sysfsRoot": str(folder / "sys"),
        "procRoot": str(folder / "proc"),
        "devRoot": str(folder / "dev"),
        "nvidiaDriverRoot": str(folder / "driver-root"),
        "containerDriverRoot": str(folder / "driver-root"),
        "nvidiaCdiHookPath": str(folder / "driver-root/usr/bin/nvidia-cdi-hook"),
    }


def test_the_sysfs_tree_tells_vendor_device_class_and_cpus(simulated):
    folder = Path(simulated("dgx-h100").settings()["sysfsRoot"]) / "bus/pci/devices/0000:9d:00.0"

    facts = {entry.name: entry.read_text().strip() for entry in folder.iterdir() if entry.is_file()}

    assert facts == {
        "vendor": "0x10de",
        "device": "0x2330",
        "class": "0x030200",
        "numa_node": "1",
        "local_cpulist": "56-111,168-223",
    }


def test_a_card_draws_through_nodes_of_its_own(simulated):
    folder = Path(simulated("dgx-h100").settings()["sysfsRoot"]) / "bus/pci/devices/0000:9d:00.0/drm"

    assert sorted(entry.name for entry in folder.iterdir()) == ["card4", "renderD132"]


def test_switches_are_bridges_on_the_bus(simulated):
    devices = Path(simulated("dgx-h100").settings()["sysfsRoot"]) / "bus/pci/devices"

    bridges = [entry.name for entry in devices.iterdir() if (entry / "class").read_text() == "0x068000\n"]

    assert sorted(bridges) == ["0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"]


def test_a_machine_that_knows_no_numa_node_says_minus_one(simulated, machine):
    devices = Path(simulated("t4-4-pcie").settings()["sysfsRoot"]) / "bus/pci/devices"

    assert {(devices / d.pci / "numa_node").read_text() for d in machine("t4-4-pcie").devices} == {"-1\n"}


def test_proc_names_the_driver_and_each_gpu(simulated, machine):
    first = machine("dgx-1v").devices[0]
    folder = Path(simulated("dgx-1v").settings()["procRoot"]) / "driver/nvidia"

    lines = (folder / "gpus" / first.pci / "information").read_text().splitlines()
    facts = {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}

    assert facts["GPU UUID"] == first.uuid
    assert facts["Device Minor"] == "0"
    assert facts["Model"] == "Tesla V100-SXM2-32GB"
    assert (folder / "version").read_text().startswith("NVRM version: NVIDIA UNIX")


def test_mig_capabilities_have_minors_on_capable_machines_only(simulated):
    minors = Path(simulated("dgx-a100-40gb").settings()["procRoot"]) / "driver/nvidia-caps/mig-minors"

    lines = dict(line.split() for line in minors.read_text().splitlines())

    assert (lines["config"], lines["gpu0/gi0/access"], lines["gpu0/gi0/ci0/access"]) == ("1", "3", "4")
    assert lines["gpu1/gi0/access"] == "138"
    assert len(set(lines.values())) == len(lines)


def test_device_nodes_are_plain_files(simulated):
    folder = Path(simulated("t4-4-pcie").settings()["devRoot"])

    nodes = {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir()}

    assert nodes.keys() == {
        *("nvidia0", "nvidia1", "nvidia2", "nvidia3"),
        *("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"),
        *(f"dri/{name}" for minor in range(4) for name in (f"card{minor}", f"renderD{128 + minor}")),
    }
    assert all(stat.S_ISREG(path.stat().st_mode) for path in nodes.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_device_nodes_are_real_on_demand_and_stay_so(simulated):
    simulator = simulated("a100-pcie-2-mig")
    folder = Path(simulator.settings()["devRoot"])

    simulator.make_nodes_real()
    simulator.inject("lost", 1)

    nodes = [path for path in folder.rglob("*") if not path.is_dir()]
    assert all(path.is_char_device() for path in nodes)
    assert {os.major(path.stat().st_rdev) for path in nodes} == {1}
    assert (folder / "nvidia0").stat().st_rdev != (folder / "nvidia1").stat().st_rdev
