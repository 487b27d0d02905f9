from pathlib import Path

import pytest

from hami_plugin.sdk.pci import PciDevice, level, scan
from hami_plugin.simulation.machines import load_machine, machine_names
from hami_plugin.simulation.trees import Tree, unplug, write_pci

VENDOR = "1d0f"


@pytest.mark.parametrize("profile", machine_names())
def test_a_simulated_bus_says_what_the_profile_says(profile: str, tmp_path: Path) -> None:
    machine, tree = load_machine(profile), Tree(root=tmp_path)
    write_pci(tree, machine, vendor="0x1d0f", device="0x7264", driver="neuron")

    found = {one.address: one for one in scan(tree.sysfs, VENDOR)}

    devices = [found[one.pci] for one in machine.devices]
    assert [one.numa for one in devices] == [one.numa if one.numa >= 0 else None for one in machine.devices]
    assert {one.driver for one in devices} == {"neuron"}
    for i, a in enumerate(devices):
        assert [level(a, b) for b in devices if a is not b] == [one for one in machine.levels[i] if one != "X"]


def test_a_machine_without_a_bus_has_no_devices(tmp_path: Path) -> None:
    assert scan(tmp_path, VENDOR) == ()


def test_only_the_asked_ids_are_found(tmp_path: Path) -> None:
    machine, tree = load_machine("aws-inf2-xlarge"), Tree(root=tmp_path)
    write_pci(tree, machine, vendor="0x1d0f", device="0x7264", driver="")

    assert [one.driver for one in scan(tree.sysfs, VENDOR, ["7264"])] == [""]
    assert scan(tree.sysfs, VENDOR, ["8061"]) == ()
    assert scan(tree.sysfs, "10de") == ()


def test_an_unplugged_device_leaves_the_others_on_the_bus(tmp_path: Path) -> None:
    machine, tree = load_machine("aws-inf1-6xlarge"), Tree(root=tmp_path)
    write_pci(tree, machine, vendor="0x1d0f", device="0x7064", driver="neuron")

    unplug(tree, machine.devices[1], "neuron")

    assert [one.address for one in scan(tree.sysfs, VENDOR)] == [one.pci for one in machine.devices if one.index != 1]


def test_devices_without_a_known_numa_node_are_not_on_the_same_one() -> None:
    a, b = (PciDevice(address=name, vendor=VENDOR, device="7264", path=(f"pci{name}",)) for name in ("1", "2"))

    assert level(a, b) == "SYS"
