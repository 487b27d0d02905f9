"""What a container of Kunlun receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.rigs import Rig, golden, rig
from vendors.kunlun import VENDOR

P800 = "kunlun-p800-8"
GOLDEN = Path(__file__).parent / "golden"


def parts(root: Path, **settings: Any) -> Rig:
    machine = rig(P800, root, serve="parts", **settings)
    return replace(machine, family=VENDOR.families(machine.settings)[1])


def test_a_pod_receives_a_wing(tmp_path: Path) -> None:
    machine = rig(P800, tmp_path)
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"kunlunxin.com/xpu": 4})

    golden(GOLDEN / "a-wing.json", machine.answer(pod, snapshot.devices))


def test_a_runtime_that_reads_cdi_is_told_of_a_part_by_its_kind(tmp_path: Path) -> None:
    machine = parts(tmp_path, unlimitedShares=True, deviceListStrategy="cdi-annotations")
    snapshot = machine.snapshot()
    limits = {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24576}
    pod = machine.decided(machine.node(snapshot), limits)

    golden(GOLDEN / "part-cdi-annotations.json", machine.answer(pod, snapshot.devices))
