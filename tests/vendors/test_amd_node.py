"""AMD's node side: what sysfs shows, what HAMi's scheduler makes of it, and what a container receives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError, RefusedError
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.register import all_served, refused
from tests.support.rigs import Rig, absent_and_back, golden, kept_back_and_healed, rig
from vendors.amd.driver import Gpu, KfdNode, gpu, nodes
from vendors.amd.injection import place

PROFILE = "mi300x-8"
GOLDEN = Path(__file__).parent / "golden" / "amd"


def with_limiter(root: Path, **settings: Any) -> Rig:
    (root / "hook/vgpu").mkdir(parents=True)
    (root / "hook/vgpu/libamvgpu.so").touch()
    return rig(PROFILE, root, **settings)


def units(device: Device) -> int:
    return gpu(device).units


def part(cores: int, taken: tuple[int, ...] | None = None) -> Grant:
    return Grant(uuid="GPU-1", device_type="AMD", cores=cores, notes={"units": list(taken)} if taken else None)


def card(count: int) -> Device:
    return Device(uuid="GPU-1", family="AMD", index=0, model="", memory=1, traits=Gpu(units=count, node=2, dev=()))


def test_a_card_knows_its_compute_units_and_its_nodes(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path)

    snapshot = machine.snapshot()

    described = machine.machine.devices
    assert [units(device) for device in snapshot.devices] == [one.extra["compute_units"] for one in described]
    assert [gpu(device).dev for device in snapshot.devices] == [
        (f"dri/card{one.extra['drm_card']}", f"dri/renderD{one.extra['drm_render']}") for one in described
    ]


def test_a_pod_receives_parts_of_two_cards(tmp_path: Path) -> None:
    machine = with_limiter(tmp_path)
    snapshot = machine.snapshot()
    limits = {"amd.com/gpu": 2, "amd.com/gpumem": 16384, "amd.com/gpucores": 33}

    answer = machine.answer(machine.decided(machine.node(snapshot), limits), snapshot.devices)

    golden(GOLDEN / "two-parts.json", answer)


def test_two_shares_of_one_card_have_different_compute_units(tmp_path: Path) -> None:
    machine = with_limiter(tmp_path)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"amd.com/gpu": 1, "amd.com/gpumem": 16384, "amd.com/gpucores": 25})
    ids = machine.answer(pod, snapshot.devices)["ids"]
    before = Grant(uuid=ids[0], device_type="AMD", cores=76, notes={"units": list(range(76))})

    answer = machine.answer(pod, snapshot.devices, [before])

    assert "HSA_CU_MASK=0:76-151" in answer["edits"]["env"]


def test_compute_units_are_shared_only_when_none_are_left() -> None:
    assert place(part(3), card(8), []).notes == {"units": [0, 1, 2]}
    assert place(part(3), card(8), [part(3, (0, 1, 2)), part(2, (4, 5))]).notes == {"units": [3, 6, 7]}
    assert place(part(3), card(4), [part(3, (0, 1, 2))]).notes == {"units": [0, 1, 3]}


def test_a_whole_card_has_no_mask() -> None:
    assert place(part(8), card(8), [part(3, (0, 1, 2))]).notes is None


@pytest.mark.parametrize("limits", [{"amd.com/gpumem": 16384, "amd.com/gpucores": 25}, {"amd.com/gpucores": 25}])
def test_a_limit_that_nothing_would_enforce_is_refused_by_the_scheduler_and_the_node(
    limits: dict[str, int], tmp_path: Path
) -> None:
    machine = rig(PROFILE, tmp_path)
    snapshot, asked = machine.snapshot(), {"amd.com/gpu": 1, **limits}
    node = machine.node(snapshot)
    unread = replace(node, annotations=all_served(node.annotations))  # as a scheduler that does not read it

    assert "there is no" in str(refused(node.annotations, "AMD"))
    assert machine.refused(node, asked) == "8/8 CardServedWholeOnly"
    assert machine.refused(node, {"amd.com/gpu": 1}) == ""
    with pytest.raises(RefusedError, match=r"no .*/vgpu/libamvgpu\.so on the host"):
        machine.answer(machine.decided(unread, asked), snapshot.devices)

    (tmp_path / "hook/vgpu").mkdir(parents=True)
    (tmp_path / "hook/vgpu/libamvgpu.so").touch()
    assert machine.refused(machine.node(machine.snapshot()), asked) == ""


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
