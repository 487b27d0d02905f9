"""Iluvatar's node side: each GPU of its chip's family, as HAMi's scheduler reads it, and what pods receive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.sdk import Card
from tests.support.rigs import Rig, golden, rig
from vendors.iluvatar import VENDOR, card, chip_of

GOLDEN = Path(__file__).parent / "golden" / "iluvatar"
CHIPS = {"iluvatar-biv100-4": "BI-V100", "iluvatar-biv150-8": "BI-V150"}


def machine_of(profile: str, root: Path, **settings: Any) -> Rig:
    machine = rig(profile, root, **settings)
    family = next(one for one in VENDOR.families(machine.settings) if one.device_type == CHIPS[profile])
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


def test_a_model_is_its_chip_by_whole_words() -> None:
    words = ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]

    assert chip_of("Iluvatar BI-V150", words) == "BI-V150"
    assert chip_of("Iluvatar BI-V150S", words) == ""


@pytest.mark.parametrize("row", [{"index": ""}, {"index": "x"}, {"index": "-1"}, {"uuid": "N/A"}, {"uuid": ""}])
def test_a_row_without_a_name_is_a_problem_in_words(row: dict[str, str]) -> None:
    whole = {"index": "0", "uuid": "GPU-1", "name": "Iluvatar BI-V150", "memory.total": "32768 MiB"}

    assert isinstance(card({"pci.bus_id": "00000000:4B:00.0", **whole}), Card)
    assert isinstance(card({"pci.bus_id": "00000000:4B:00.0", **whole, **row}), str)
