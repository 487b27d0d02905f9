"""Cambricon's driver on simulated machines: what its kernel module and cnmon show."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason
from hami_plugin.model.usage import DeviceLoad
from tests.support.rigs import Rig, absent_and_back, kept_back_and_healed, lost_alone, rig
from vendors.cambricon.driver import Cnmon, Mlu, cards, linked_pairs


def test_the_drivers_version_is_told(machine: Rig) -> None:
    assert machine.snapshot().facts == {"driver": "v5.10.22"}


def test_the_two_chips_of_a_board_are_two_devices_of_one_serial_number(tmp_path: Path) -> None:
    devices = rig("cambricon-mlu370x8-16", tmp_path).snapshot().devices

    serials = [device.traits.serial for device in devices if isinstance(device.traits, Mlu)]

    assert serials[0::2] == serials[1::2]
    assert len(set(serials)) == 8


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("garbled", "DriverFailed"), ("no-node", "DeviceNodeMissing")],
)
def test_a_faulty_mlu_is_kept_back_and_heals(fault: str, reason: str, machine: Rig) -> None:
    kept_back_and_healed(machine, fault, reason)


def test_an_mlu_that_falls_off_the_bus_leaves_the_others(machine: Rig) -> None:
    lost_alone(machine, 5)


@pytest.mark.parametrize(
    ("fault", "reason"), [("driver-gone", DriverReason.NO_DRIVER), ("no-devices", DriverReason.NO_DEVICES)]
)
def test_an_absent_driver_has_a_reason_and_comes_back(fault: str, reason: DriverReason, machine: Rig) -> None:
    before = machine.snapshot()

    absent_and_back(machine, fault, reason)

    assert machine.snapshot() == before


@pytest.mark.parametrize(("fault", "words"), [("tool-gone", "cannot be run"), ("tool-garbled", "does not list")])
def test_memory_that_nobody_tells_is_not_guessed(fault: str, words: str, machine: Rig) -> None:
    machine.simulator.inject(fault)

    sightings = machine.driver.discover().sightings

    assert {sighting.fault.reason for sighting in sightings if sighting.fault} == {"MemoryUnknown"}
    assert all(sighting.fault and words in sighting.fault.message for sighting in sightings)


def test_a_card_that_did_not_start_is_kept_back(machine: Rig) -> None:
    machine.simulator.inject("not-started", 3)

    assert machine.faults() == {3: "NotInitialised"}


def test_without_the_tools_matrix_the_bus_still_counts(machine: Rig) -> None:
    machine.snapshot()
    machine.simulator.inject("tool-gone")

    links = machine.driver.links()

    link = links.between("n1-cambricon-mlu-0", "n1-cambricon-mlu-1")
    assert link
    assert (link.level, link.lanes) == ("PIX", 0)
    assert "MLU-Links are not known" in links.problems[0]


def test_the_tool_is_asked_now_and_then_and_what_it_said_is_kept(machine: Rig) -> None:
    now = [0.0]
    tool = Cnmon(machine.settings.cnmon, clock=lambda: now[0])
    known = tool.cards()
    machine.simulator.inject("tool-gone")

    assert (tool.cards(), tool.problem) == (known, "")
    now[0] = 31.0
    assert tool.cards() == known
    assert "cannot be run" in tool.problem


def test_the_table_is_read_in_the_words_of_older_and_newer_tools() -> None:
    older = (
        "| 0     /   MLU370-X4    v1.1.6 | On          v4.20.11 | 0%          N/A       |\n"
        "|  0%   32C         30 W/ 150 W |     0 MiB/ 23308 MiB | 10240 MiB/1048576 MiB |\n"
    )
    newer = (
        "| 1     /   MLU370-X8    v1.1.4 |         0000:4F:00.0 | 7%                  0 |\n"
        "|  0%   35C         32 W/ 150 W |    12 MiB/ 42396 MiB | FULL          Default |\n"
    )

    found = cards(older + newer + "| Processes: |\n")

    assert {number: (one.memory, one.working) for number, one in found.items()} == {0: (23308, True), 1: (42396, True)}
    assert found[0].load == DeviceLoad(memory_used=0, utilization=0)
    assert found[1].load == DeviceLoad(memory_used=12 << 20, utilization=7)


def test_the_matrix_is_read_with_lines_between_its_cells() -> None:
    matrix = "| | MLU0 | MLU1 | MLU2 | CPU Affinity |\n| MLU0 | X | MLK | CPU | 0-7 |\n| MLU1 | MLK | X | CPU | 0-7 |\n"

    assert linked_pairs(matrix) == {(0, 1), (1, 0)}


def test_a_tool_that_hangs_is_left_after_its_deadline(machine: Rig) -> None:
    machine.simulator.inject("tool-hangs")
    tool = Cnmon(machine.settings.cnmon, deadline=0.2)

    assert not tool.cards()
    assert "has not answered within 0.2 s" in tool.problem
