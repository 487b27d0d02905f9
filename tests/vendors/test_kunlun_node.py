"""Kunlun's node side: whole XPUs and parts of them, as HAMi's scheduler learns of them, and what containers receive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.rigs import Rig, golden, rig
from vendors.kunlun import VENDOR
from vendors.kunlun.driver import card, linked

P800 = "kunlun-p800-8"
GOLDEN = Path(__file__).parent / "golden" / "kunlun"
LINE = (
    "00000000:03:00.0 0 0 02K15K624CV00304 36 0 0 0 86 1450 1450 1450 1450 1450 1450 2 96 90440 98304 0 "
    '1.0:2.6:1.39.1.7 "P800 OAM" 0 0 0 0 0 0 0 0 0 0'
)


def parts(root: Path, **settings: Any) -> Rig:
    machine = rig(P800, root, serve="parts", **settings)
    return replace(machine, family=VENDOR.families(machine.settings)[1])


def test_a_captured_line_of_the_tool_is_an_xpu() -> None:
    found = card(LINE, {"0": "GPU-ed733bb8-c4a8-5bb5-9431-14512597fc12"})

    assert not isinstance(found, str)
    assert (found.index, found.address, found.memory, found.model) == (0, "0000:03:00.0", 98304, "P800 OAM")
    assert found.uuid == "GPU-ed733bb8-c4a8-5bb5-9431-14512597fc12"


@pytest.mark.parametrize("line", ["", "oops", '0000:03:00.0 0 "unfinished', "0000:03:00.0 1 1 x"])
def test_a_line_without_a_name_is_a_problem_in_words(line: str) -> None:
    assert isinstance(card(line, {"0": "GPU-0"}), str)


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


def test_links_are_those_of_this_board(tmp_path: Path) -> None:
    machine = rig(P800, tmp_path)
    tool = machine.root / "bin/xpu-smi.says/topo_-m"
    # A board whose wings are linked card by card: 0 with 4, and so on.
    tool.write_text(tool.read_text().replace("XPU0  X XL XL XL SYS", "XPU0  X XL XL XL XL"))

    assert linked(machine.settings)[0, 4] == 1
    assert (0, 5) not in linked(machine.settings)


def test_without_the_tools_table_distances_on_the_bus_remain(tmp_path: Path) -> None:
    machine = rig(P800, tmp_path)
    (machine.root / "bin/xpu-smi.says/topo_-m").unlink()

    links = machine.snapshot().links

    assert {link.label for link in links.pairs.values()} == {"NODE", "SYS"}
    assert "links of the fabric are not known" in links.problems[0]
