"""The files around the library: sysfs, /proc and /dev as a driver reads them."""

import stat
from pathlib import Path


def test_settings_name_the_library_and_the_three_roots(simulated, tmp_path):
    settings = simulated("t4-4-pcie").settings()
    folder = tmp_path / "machine"

    assert settings == {
        "nvmlLibrary": str(folder / "libnvidia-ml.so.1"),
        "sysfsRoot": str(folder / "sys"),
        "procRoot": str(folder / "proc"),
        "devRoot": str(folder / "dev"),
    }


def test_the_sysfs_tree_tells_vendor_device_class_and_cpus(simulated):
    folder = Path(simulated("dgx-h100").settings()["sysfsRoot"]) / "bus/pci/devices/0000:9d:00.0"

    facts = {entry.name: entry.read_text().strip() for entry in folder.iterdir()}

    assert facts == {
        "vendor": "0x10de",
        "device": "0x2330",
        "class": "0x030200",
        "numa_node": "1",
        "local_cpulist": "56-111,168-223",
    }


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

    names = {entry.name for entry in folder.iterdir()}

    assert names == {
        *("nvidia0", "nvidia1", "nvidia2", "nvidia3"),
        *("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"),
    }
    assert all(stat.S_ISREG(entry.stat().st_mode) for entry in folder.iterdir())
