"""What the demonstration asks for as a part of a device: what comes nearest, by each family's own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.demo.node import install_core
from hami_plugin.demo.steps import part
from tests.support.rigs import rig

PARTS = {
    "mi300x-8": {"amd.com/gpu": "1", "amd.com/gpumem": "3000", "amd.com/gpucores": "30"},
    "cambricon-mlu590-8": {
        "cambricon.com/vmlu": "1",
        "cambricon.com/mlu.smlu.vmemory": "12",
        "cambricon.com/mlu.smlu.vcore": "30",
    },
    "mthreads-s4000-8": {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "8"},
    "aws-inf2-24xlarge": {"aws.amazon.com/neuroncore": "1"},
}
TRUSTED = {name: {"unlimitedShares": True} for name in ("cambricon-mlu590-8", "mthreads-s4000-8")}
"""Where nothing limits a part, a node offers parts to containers that can be trusted."""


@pytest.mark.parametrize("profile", PARTS)
def test_a_part_is_asked_for_in_the_familys_own_units(tmp_path: Path, profile: str) -> None:
    install_core(tmp_path / "hook" / "vgpu")
    machine = rig(profile, tmp_path, **TRUSTED.get(profile, {}))

    asked = part(machine.family, machine.node(machine.snapshot()), "main", memory=3000, cores=30)

    assert asked
    assert asked["resources"]["limits"] == PARTS[profile]


@pytest.mark.parametrize("profile", ["kunlun-p800-8", *TRUSTED])
def test_of_devices_that_come_whole_there_is_no_part(tmp_path: Path, profile: str) -> None:
    machine = rig(profile, tmp_path)

    assert part(machine.family, machine.node(machine.snapshot()), "main", memory=3000, cores=30) is None
