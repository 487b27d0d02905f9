"""What a container of AMD receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import RefusedError
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.nodes import refusal_of, without_refusals
from tests.support.rigs import Rig, golden, rig
from vendors.amd.driver import Gpu
from vendors.amd.injection import place

PROFILE = "mi300x-8"
GOLDEN = Path(__file__).parent / "golden"


def with_limiter(root: Path, **settings: Any) -> Rig:
    (root / "hook/vgpu").mkdir(parents=True)
    (root / "hook/vgpu/libamvgpu.so").touch()
    return rig(PROFILE, root, **settings)


def part(cores: int, taken: tuple[int, ...] | None = None) -> Grant:
    return Grant(uuid="GPU-1", device_type="AMD", cores=cores, notes={"units": list(taken)} if taken else None)


def card(count: int) -> Device:
    return Device(uuid="GPU-1", family="AMD", index=0, model="", memory=1, traits=Gpu(units=count, node=2, dev=()))


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
    unread = replace(node, annotations=without_refusals(node.annotations))  # as a scheduler that does not read it

    assert "there is no" in str(refusal_of(node.annotations, "AMD"))
    assert machine.refused(node, asked) == "8/8 CardServedWholeOnly"
    assert machine.refused(node, {"amd.com/gpu": 1}) == ""
    with pytest.raises(RefusedError, match=r"no .*/vgpu/libamvgpu\.so on the host"):
        machine.answer(machine.decided(unread, asked), snapshot.devices)

    (tmp_path / "hook/vgpu").mkdir(parents=True)
    (tmp_path / "hook/vgpu/libamvgpu.so").touch()
    assert machine.refused(machine.node(machine.snapshot()), asked) == ""
