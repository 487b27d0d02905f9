"""Gaudi accelerators as hl-smi and the kernel number them, and what a container receives of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import HamiError
from hami_plugin.host.paths import HostPaths
from tests.support.rigs import Rig, rig
from vendors.gaudi import HARDWARE, card, kernel_numbers

ROW = {"uuid": "01P0-X", "name": "HL-225", "bus_id": "0000:19:00.0", "module_id": "2", "memory.total": "98304 MiB"}


@pytest.fixture
def machine(tmp_path: Path) -> Rig:
    return rig("gaudi3-8", tmp_path)


def test_a_container_is_told_of_nodes_in_the_kernels_numbers_and_of_modules_in_the_boards(machine: Rig) -> None:
    snapshot = machine.snapshot()
    pod = machine.decided(machine.node(snapshot), {"habana.ai/gaudi": 2})

    edits = machine.answer(pod, snapshot.devices)["edits"]

    assert "HABANA_VISIBLE_DEVICES=6,7" in edits["env"]
    assert "HABANA_VISIBLE_MODULES=5,4" in edits["env"]
    assert [node["path"] for node in edits["deviceNodes"]] == [
        f"/dev/accel/{name}{number}" for number in (6, 7) for name in ("accel", "accel_controlD")
    ]


def test_nodes_follow_the_kernel_where_the_tool_lists_in_another_order(machine: Rig) -> None:
    table = next((machine.root / "bin/hl-smi.says").iterdir())
    header, *rows = table.read_text().splitlines()
    before = machine.snapshot()

    table.write_text("\n".join([header, *reversed(rows), ""]))

    assert machine.snapshot().devices == before.devices


def test_another_vendors_accelerator_has_a_number_too_and_is_none_of_ours(tmp_path: Path) -> None:
    for number, place in (("0", "0000:00:0b.0"), ("1", "0000:19:00.0")):
        (tmp_path / "devices" / place).mkdir(parents=True)
        (tmp_path / f"class/accel/accel{number}").mkdir(parents=True)
        (tmp_path / f"class/accel/accel{number}/device").symlink_to(tmp_path / "devices" / place)

    numbers = kernel_numbers(HostPaths(sysfs=tmp_path))

    found = card(ROW, numbers)
    assert not isinstance(found, str)
    assert (found.index, found.traits, found.memory) == (1, 2, 98304)


@pytest.mark.parametrize("changed", [{"uuid": "N/A"}, {"bus_id": "?"}, {"bus_id": "0000:1a:00.0"}])
def test_a_row_that_names_no_accelerator_of_the_kernels_is_a_problem_in_words(changed: dict[str, str]) -> None:
    assert isinstance(card({**ROW, **changed}, {"0000:19:00.0": 0}), str)


@pytest.mark.parametrize("changed", [{"module_id": "N/A"}, {"memory.total": "N/A"}])
def test_an_accelerator_of_which_half_is_told_is_known_and_not_offered(changed: dict[str, str]) -> None:
    found = card({**ROW, **changed}, {"0000:19:00.0": 0})

    assert not isinstance(found, str)
    assert "'N/A'" in found.trouble


def test_an_accelerator_needs_both_of_its_nodes(machine: Rig) -> None:
    snapshot = machine.snapshot()
    (machine.root / "dev/accel/accel_controlD7").unlink()

    with pytest.raises(HamiError, match=r"has no node .*accel_controlD7"):
        machine.answer(machine.decided(machine.node(snapshot), {"habana.ai/gaudi": 1}), snapshot.devices)


def test_both_generations_are_seen_on_the_bus(machine: Rig, tmp_path: Path) -> None:
    older = rig("gaudi2-8", tmp_path / "older")

    ids = [{one.device for one in HARDWARE.plugged(HostPaths().rooted(it.settings))} for it in (older, machine)]

    assert ids == [{"1020"}, {"1060"}]
