"""Kunlun's driver on simulated machines: what xpu-smi lists, and how the XPUs are linked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rigs import rig
from vendors.kunlun.driver import card, list_links

P800 = "kunlun-p800-8"
LINE = (
    "00000000:03:00.0 0 0 02K15K624CV00304 36 0 0 0 86 1450 1450 1450 1450 1450 1450 2 96 90440 98304 0 "
    '1.0:2.6:1.39.1.7 "P800 OAM" 0 0 0 0 0 0 0 0 0 0'
)


def test_a_captured_line_of_the_tool_is_an_xpu() -> None:
    found = card(LINE, {"0": "GPU-ed733bb8-c4a8-5bb5-9431-14512597fc12"})

    assert not isinstance(found, str)
    assert (found.index, found.address, found.memory, found.model) == (0, "0000:03:00.0", 98304, "P800 OAM")
    assert found.uuid == "GPU-ed733bb8-c4a8-5bb5-9431-14512597fc12"


@pytest.mark.parametrize("line", ["", "oops", '0000:03:00.0 0 "unfinished', "0000:03:00.0 1 1 x"])
def test_a_line_without_a_name_is_a_problem_in_words(line: str) -> None:
    assert isinstance(card(line, {"0": "GPU-0"}), str)


def test_links_are_those_of_this_board(tmp_path: Path) -> None:
    machine = rig(P800, tmp_path)
    tool = machine.root / "bin/xpu-smi.says/topo_-m"
    # A board whose wings are linked card by card: 0 with 4, and so on.
    tool.write_text(tool.read_text().replace("XPU0  X XL XL XL SYS", "XPU0  X XL XL XL XL"))

    assert list_links(machine.settings)[0, 4] == 1
    assert (0, 5) not in list_links(machine.settings)


def test_without_the_tools_table_distances_on_the_bus_remain(tmp_path: Path) -> None:
    machine = rig(P800, tmp_path)
    (machine.root / "bin/xpu-smi.says/topo_-m").unlink()

    links = machine.snapshot().links

    assert {link.label for link in links.pairs.values()} == {"NODE", "SYS"}
    assert "fabric links are unknown" in links.problems[0]
