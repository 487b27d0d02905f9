"""AMD's driver on simulated machines: what sysfs shows, and what HAMi's scheduler makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.usage import DeviceLoad
from tests.support.rigs import absent_and_back, kept_back_and_healed, rig
from vendors.amd.driver import KfdNode, energy, gpu, joules, load, nodes

PROFILE = "mi300x-8"


def units(device: Device) -> int:
    return gpu(device).units


def test_a_card_knows_its_compute_units_and_its_nodes(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)

    snapshot = machine.snapshot()

    described = machine.machine.devices
    assert [units(device) for device in snapshot.devices] == [one.extra["compute_units"] for one in described]
    assert [gpu(device).dev for device in snapshot.devices] == [
        (f"dri/card{one.extra['drm_card']}", f"dri/renderD{one.extra['drm_render']}") for one in described
    ]


@pytest.mark.parametrize(("fault", "reason"), [("ras", "RasUncorrectable"), ("no-node", "DeviceNodeMissing")])
def test_a_faulty_card_is_kept_back_and_heals(fault: str, reason: str, tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)
    kept_back_and_healed(machine, fault, reason, 3)


def test_a_card_that_falls_off_the_bus_leaves_the_others_their_names(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)
    names = [device.uuid for device in machine.snapshot().devices]

    machine.simulator.inject("lost", 2)

    assert [event.uuid for event in machine.driver.poll(2.0)] == [names[2]]
    assert [device.uuid for device in machine.snapshot().devices] == [*names[:2], *names[3:]]


def test_a_compute_node_that_tells_nothing_is_a_problem_in_words(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)

    machine.simulator.inject("garbled", 2)

    discovery = machine.driver.discover()
    assert len(discovery.sightings) == 7
    assert "compute node 4 tells nothing" in discovery.problems[0]


def test_each_part_of_a_partitioned_card_is_a_device(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)

    machine.simulator.inject("partition", 7, 8)

    snapshot = machine.snapshot()
    parts = [device for device in snapshot.devices if device.pci == machine.machine.devices[7].pci]
    assert len(snapshot.devices) == 15
    assert [device.uuid for device in parts] == [f"GPU-1a2b3c4d00000007-{part}" for part in range(8)]
    assert {(units(device), device.memory) for device in parts} == {(38, 196592 // 8)}
    assert len({gpu(device).dev for device in parts}) == 8
    assert {gpu(device).visible for device in parts} == {""}
    link = snapshot.links.between(parts[0].uuid, parts[5].uuid)
    assert link
    assert link.level == "INT"
    machine.simulator.inject("back", 7)
    assert len(machine.snapshot().devices) == 8


def test_the_number_of_a_partition_is_no_part_of_its_cards_address(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)
    machine.simulator.inject("partition", 2, 4)

    found = [one for one in nodes(tmp_path / "sys") if isinstance(one, KfdNode)]

    assert {one.address for one in found} == {device.pci for device in machine.machine.devices}


@pytest.mark.parametrize(
    ("fault", "reason"), [("driver-gone", DriverReason.NO_DRIVER), ("no-devices", DriverReason.NO_DEVICES)]
)
def test_an_absent_driver_has_a_reason_and_comes_back(fault: str, reason: DriverReason, tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)
    before = machine.snapshot()

    absent_and_back(machine, fault, reason)

    assert machine.snapshot() == before


def test_a_driver_without_a_compute_topology_is_told_from_no_driver(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)
    for file in (tmp_path / "sys/devices/virtual/kfd").rglob("properties"):
        file.unlink()

    with pytest.raises(DriverUnavailableError, match="compute topology has none"):
        machine.driver.discover()


@pytest.mark.parametrize(("revision", "at", "size"), [((1, 3), 24, 120), ((1, 4), 24, 264), ((1, 5), 88, 336)])
def test_a_card_tells_the_joules_that_it_has_drawn_by_the_kernels_table(
    revision: tuple[int, int], at: int, size: int, tmp_path: Path
) -> None:
    machine = rig(PROFILE, tmp_path)
    first, second, *_others = machine.snapshot().devices
    folder = Path(machine.simulator.settings()["sysfsRoot"]) / "bus/pci/devices"
    table = bytearray(size)
    table[:4] = size.to_bytes(2, "little") + bytes(revision)
    table[at : at + 8] = (1234 << 16).to_bytes(8, "little")
    (folder / first.pci / "gpu_metrics").write_bytes(table)
    (folder / second.pci / "gpu_metrics").write_bytes(table[:at])

    assert energy(HostPaths(sysfs=folder.parents[2]), [first, second]) == {first.uuid: 1234.0}
    assert energy(HostPaths(sysfs=folder.parents[2]), [first, replace(first, uuid="part")])["part"] == 617.0


def test_a_table_of_an_unknown_format_tells_no_energy(tmp_path: Path) -> None:
    (tmp_path / "gpu_metrics").write_bytes(b"\x78\x00\x02\x03" + bytes(200))

    assert joules(tmp_path / "gpu_metrics") is None


def test_what_is_in_use_of_a_card_is_what_the_kernel_counts(tmp_path: Path) -> None:
    told, silent, odd = (tmp_path / "bus/pci/devices" / name for name in ("told", "silent", "odd"))
    for folder in (told, silent, odd):
        folder.mkdir(parents=True)
    (told / "mem_info_vram_used").write_text("17179869184\n")
    (told / "gpu_busy_percent").write_text("37\n")
    (odd / "mem_info_vram_used").write_text("-1\n")
    (odd / "gpu_busy_percent").write_text("busy\n")
    cards = [
        Device(uuid=name, family="AMDGPU", index=0, model="toy", memory=1, pci=name)
        for name in ("told", "silent", "odd")
    ]

    found = load(HostPaths(sysfs=tmp_path), cards)

    assert found["told"] == DeviceLoad(memory_used=16 << 30, utilization=37)
    assert found["silent"] == found["odd"] == DeviceLoad()


def test_partitions_of_one_card_have_no_count_of_their_own(tmp_path: Path) -> None:
    parts = [
        Device(uuid=name, family="AMDGPU", index=0, model="toy", memory=1, pci="0000:01:00.0") for name in ("a", "b")
    ]
    assert load(HostPaths(sysfs=tmp_path), parts) == {}
