"""What a container of Iluvatar receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.rigs import Rig, golden, rig
from vendors.iluvatar import VENDOR

GOLDEN = Path(__file__).parent / "golden"
CHIPS = {"iluvatar-biv100-4": "BI-V100", "iluvatar-biv150-8": "BI-V150"}


def machine_of(profile: str, root: Path, **settings: Any) -> Rig:
    machine = rig(profile, root, **settings)
    family = next(one for one in VENDOR.families(machine.settings) if one.resources.device_type == CHIPS[profile])
    return replace(machine, family=family)


@pytest.mark.parametrize("way", ["device-specs", "cdi-annotations"])
def test_a_pod_receives_whole_gpus(way: str, tmp_path: Path) -> None:
    machine = machine_of("iluvatar-biv150-8", tmp_path, deviceListStrategy=way)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"iluvatar.ai/BI-V150-vgpu": 2, "iluvatar.ai/BI-V150.vCore": 200})

    golden(GOLDEN / f"two-gpus-{way}.json", machine.answer(pod, snapshot.devices))


def test_driver_files_that_exist_are_mounted(tmp_path: Path) -> None:
    there = tmp_path / "corex"
    there.mkdir()
    machine = machine_of("iluvatar-biv100-4", tmp_path / "m", driverFiles=[str(there), str(tmp_path / "absent")])
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"iluvatar.ai/BI-V100-vgpu": 1})

    (mount,) = machine.answer(pod, snapshot.devices)["edits"]["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == (str(there), str(there))
    assert "ro" in mount["options"]
