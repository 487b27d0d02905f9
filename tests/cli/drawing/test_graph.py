"""The graph of links: what is drawn between which devices, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from hami_plugin.cli.pictures import link_graph_svg
from hami_plugin.model.device import Device, Health, Snapshot

Profile = Callable[[str], Snapshot]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(snapshot: Snapshot, noun: str = "GPU") -> ET.Element:
    return ET.fromstring(link_graph_svg(snapshot, "a machine", noun))


def words(picture: ET.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def lines(picture: ET.Element) -> dict[str, ET.Element]:
    """The lines of pairs, by what they say when pointed at."""
    found = picture.iter(f"{SVG}line")
    return {title.text or "": line for line in found if (title := line.find(f"{SVG}title")) is not None}


def test_a_cube_mesh_has_a_line_for_each_direct_link_and_none_through_the_host(snapshot: Profile):
    machine = snapshot("dgx-1v")
    direct = sum(bool(link.lanes) for link in machine.links.pairs.values())

    found = lines(drawn(machine))

    assert len(found) == direct == 16
    assert "GPU3 and GPU2: NV2, score 250" in found
    assert not [hint for hint in found if "SYS" in hint]


def test_a_better_link_is_a_thicker_line(snapshot: Profile):
    thickness = {
        hint.split(": ")[1].split(",")[0]: float(line.attrib["stroke-width"])
        for hint, line in lines(drawn(snapshot("dgx-1v"))).items()
    }

    assert thickness["NV2"] > thickness["NV1"] >= 1


def test_numa_nodes_are_named_and_devices_stand_beside_their_own(snapshot: Profile):
    picture = drawn(snapshot("dgx-1v"))
    across = {text.text: float(text.attrib["x"]) for text in picture.iter(f"{SVG}text")}
    middle = float(picture.attrib["width"]) / 2

    assert across["NUMA 0"] > middle > across["NUMA 1"]
    assert all(across[f"GPU{index}"] > middle for index in range(4))
    assert all(across[f"GPU{index}"] < middle for index in range(4, 8))


def test_the_legend_says_what_each_line_means_and_what_no_line_means(snapshot: Profile):
    said = words(drawn(snapshot("dgx-1v")))

    assert said[-6:] == [
        "NV2",
        "2 fabric links",
        "NV1",
        "1 fabric link",
        "no line",
        "connected through the host, or not measured",
    ]


@pytest.mark.parametrize("name", ["dgx-2", "dgx-h100", "rtx2080ti-10-pcie", "l40s-4-pcie"])
def test_all_stays_inside(snapshot: Profile, name: str):
    picture = drawn(snapshot(name))
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])

    for shape in picture.iter():
        for key, limit in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height), ("y2", height)):
            assert 0 <= float(shape.get(key, "0")) <= limit


def test_a_lost_device_is_marked_and_an_odd_pair_dashed(snapshot: Profile):
    machine = snapshot("dgx-1v")
    lost = replace(machine.devices[7], health=Health.UNHEALTHY)
    a, b = machine.devices[0].uuid, machine.devices[3].uuid
    odd = replace(machine.links, asymmetric=((a, b),))

    picture = drawn(replace(machine, devices=(*machine.devices[:7], lost), links=odd))

    dashed = [hint for hint, line in lines(picture).items() if "stroke-dasharray" in line.attrib]
    assert dashed == ["GPU3 and GPU0: NV2, score 230"]
    assert {"GPU7 ✕", "not offered at present", "dashed"} <= set(words(picture))


@pytest.mark.parametrize("devices", [0, 1, 2])
def test_a_machine_with_little_to_draw_is_drawn(devices: int):
    few = tuple(Device(uuid=f"d{i}", family="f", index=i, model="", memory=1) for i in range(devices))

    said = words(drawn(Snapshot(devices=few, ready=True), noun="NPU"))

    assert [device_type for device_type in said if device_type.startswith("NPU")] == [
        f"NPU{index}" for index in range(devices)
    ]
    assert ("no NUMA node" in said) == bool(devices)
