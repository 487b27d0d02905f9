"""What a container of Biren receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import HamiError
from tests.support.rigs import Rig, golden, rig

PROFILE = "biren-br106-8"
GOLDEN = Path(__file__).parent / "golden"


def test_a_pod_receives_three_gpus(machine: Rig) -> None:
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"birentech.com/gpu": 3})

    answer = machine.answer(pod, snapshot.devices)

    golden(GOLDEN / "three.json", answer)


def test_without_driver_libraries_on_the_host_there_is_nothing_to_mount(tmp_path: Path) -> None:
    machine = rig(PROFILE, tmp_path, driverRoot=str(tmp_path / "nowhere"))
    snapshot = machine.snapshot()

    answer = machine.answer(machine.decided(machine.node(snapshot), {"birentech.com/gpu": 1}), snapshot.devices)

    assert "mounts" not in answer["edits"]


def test_a_gpu_without_a_node_cannot_be_handed_over(machine: Rig) -> None:
    snapshot = machine.snapshot()
    machine.simulator.inject("no-node", 0)

    with pytest.raises(HamiError, match=f"{snapshot.devices[0].uuid} has no node"):
        machine.answer(machine.decided(machine.node(snapshot), {"birentech.com/gpu": 8}), snapshot.devices)
