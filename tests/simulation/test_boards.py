"""Simulated machines in files: what a board says comes and goes with its devices, and its tool knows of the faults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hami_plugin.host.paths import HostPaths
from hami_plugin.model.machine import Machine
from hami_plugin.sdk.hardware import Hardware
from hami_plugin.sdk.tools import ToolError, output
from hami_plugin.simulation.boards import FileSimulator, listed
from hami_plugin.simulation.machines import load_machine
from hami_plugin.simulation.tools import SILENT, Tool, ToolState

CARDS = Hardware(title="Acme card", vendors=("1234",), module="acme", node="acme")


def says(state: ToolState) -> Mapping[str, str]:
    return {
        "": "".join(f"{one.index} {'?' if state.noted(SILENT, one) else one.memory}\n" for one in state.listed),
        "topo -m": "X\n",
    }


@pytest.fixture
def machine() -> Machine:
    return load_machine("iluvatar-biv100-4")


@pytest.fixture
def simulator(machine: Machine, tmp_path: Path) -> FileSimulator:
    tool = Tool(path="bin/acme-smi", setting="acmeSmi", says=says)
    return listed(CARDS, "0001", tool, control=("acmectl",)).simulate(machine, tmp_path)


def numbers(tmp_path: Path) -> list[str]:
    return [line.split()[0] for line in output(tmp_path / "bin/acme-smi").splitlines()]


def nodes(tmp_path: Path) -> list[str]:
    return sorted(one.name for one in (tmp_path / "dev").iterdir())


def test_a_device_comes_and_goes_with_its_files_its_place_and_its_line(
    simulator: FileSimulator, tmp_path: Path
) -> None:
    host = HostPaths(sysfs=tmp_path / "sys")
    assert nodes(tmp_path) == ["acme0", "acme1", "acme2", "acme3", "acmectl"]

    simulator.inject("lost", 1)
    assert (numbers(tmp_path), len(CARDS.plugged(host))) == (["0", "2", "3"], 3)
    assert nodes(tmp_path) == ["acme0", "acme2", "acme3", "acmectl"]

    simulator.inject("back", 1)
    assert (numbers(tmp_path), len(CARDS.plugged(host))) == (["0", "1", "2", "3"], 4)


def test_without_a_driver_the_devices_are_on_the_bus_and_nowhere_else(simulator: FileSimulator, tmp_path: Path) -> None:
    host = HostPaths(sysfs=tmp_path / "sys")

    simulator.inject("driver-gone")

    assert (nodes(tmp_path), numbers(tmp_path), CARDS.version(host)) == ([], [], "")
    assert [one.driver for one in CARDS.plugged(host)] == [""] * 4

    simulator.inject("driver-back")

    assert (len(nodes(tmp_path)), len(numbers(tmp_path)), CARDS.version(host)) == (5, 4, "1.0.0")


def test_faults_of_a_device_outlive_those_of_the_tool(simulator: FileSimulator, tmp_path: Path) -> None:
    simulator.inject(SILENT, 2)
    simulator.inject("tool-garbled")
    assert "oops" in output(tmp_path / "bin/acme-smi", "topo", "-m")

    simulator.inject("tool-back")

    assert "2 ?" in output(tmp_path / "bin/acme-smi").splitlines()


@pytest.mark.parametrize(
    ("fault", "words"),
    [("tool-gone", "cannot be run"), ("tool-fails", "not been initialised"), ("tool-hangs", "within 0.2 s")],
)
def test_a_tool_can_fail_in_ways_of_its_own(fault: str, words: str, simulator: FileSimulator, tmp_path: Path) -> None:
    simulator.inject(fault)

    with pytest.raises(ToolError, match=words):
        output(tmp_path / "bin/acme-smi", deadline=0.2 if fault == "tool-hangs" else 20.0)


def test_what_a_killed_process_left_half_written_is_no_note(simulator: FileSimulator, tmp_path: Path) -> None:
    simulator.inject("unlisted", 1)
    (tmp_path / "bin/acme-smi.notes/.unlisted.2.part").write_text("", encoding="utf-8")

    simulator.inject("unlisted", 3)

    assert numbers(tmp_path) == ["0", "2"]
