from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from hami_plugin.cli.pictures import heat_map_svg
from hami_plugin.model.device import Device, Health, Link, Links, Snapshot

Profile = Callable[[str], Snapshot]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(snapshot: Snapshot, title: str = "a machine") -> ET.Element:
    return ET.fromstring(heat_map_svg(snapshot, title, "GPU"))


def words(picture: ET.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def cells(picture: ET.Element) -> list[tuple[str, ET.Element]]:
    """The cells of pairs, each with what it says when pointed at."""
    rects = picture.iter(f"{SVG}rect")
    return [(title.text or "", rect) for rect in rects if (title := rect.find(f"{SVG}title")) is not None]


@pytest.mark.parametrize("name", ["l40s-4-pcie", "dgx-1v", "rtx2080ti-10-pcie", "dgx-2"])
def test_every_pair_has_a_cell_in_each_direction_and_all_stays_inside(snapshot: Profile, name: str):
    machine = snapshot(name)
    size = len(machine.devices)
    picture = drawn(machine)
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])

    assert len(cells(picture)) == size * (size - 1)
    assert words(picture).count("X") == size
    for shape in picture.iter():
        assert 0 <= float(shape.get("x", "0")) + float(shape.get("width", "0")) <= width
        assert 0 <= float(shape.get("y", "0")) + float(shape.get("height", "0")) <= height


def test_a_better_score_is_drawn_darker(snapshot: Profile):
    shades = {}
    for hint, rect in cells(drawn(snapshot("dgx-1v"))):
        fill = rect.attrib["fill"]
        shades[int(hint.rsplit(" ", 1)[1])] = sum(int(fill[i : i + 2], 16) for i in (1, 3, 5))

    by_score = [shades[score] for score in sorted(shades)]
    assert len(by_score) == 7
    assert by_score == sorted(set(by_score), reverse=True)


def test_scores_that_are_close_to_each_other_have_colours_that_are():
    """110 beside 120, as on a machine of eight NPUs, is not white beside navy."""
    devices = tuple(Device(uuid=f"d{i}", family="f", index=i, model="", memory=1) for i in range(3))
    close = {("d0", "d1"): Link(score=120, label="A"), ("d0", "d2"): Link(score=110, label="B")}
    picture = drawn(
        Snapshot(devices=devices, links=Links(pairs={**close, ("d1", "d2"): close["d0", "d2"]}), ready=True)
    )

    fills = {hint.rsplit(" ", 1)[1]: rect.attrib["fill"] for hint, rect in cells(picture)}
    channels = [[int(fills[score][i : i + 2], 16) for i in (1, 3, 5)] for score in ("110", "120")]
    apart = max(abs(a - b) for a, b in zip(*channels, strict=True))

    assert 10 < apart < 0.25 * 224, "a quarter of the way from pale to deep"


def test_scores_far_apart_use_the_whole_scale(snapshot: Profile):
    fills = {rect.attrib["fill"] for _, rect in cells(drawn(snapshot("dgx-1v")))}

    assert {"#e8f0f9", "#08306b"} <= fills


def test_ink_stands_out_from_every_colour(snapshot: Profile):
    def light(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(rect: ET.Element, text: ET.Element) -> float:
        low, high = sorted((light(rect.attrib["fill"]), light(text.attrib["fill"])))
        return (high + 0.05) / (low + 0.05)

    seen = [
        contrast(rect, text)
        for name in ("dgx-1v", "dgx-2", "dgx-h100", "l40s-8-pcie")
        for rect, text in pairwise(drawn(snapshot(name)))
        if rect.find(f"{SVG}title") is not None
    ]
    assert len(seen) == 8 * 7 + 16 * 15 + 8 * 7 + 8 * 7
    assert min(seen) >= 4.5, "what WCAG asks of small text"


def test_the_legend_names_each_score_and_label(snapshot: Profile):
    said = words(drawn(snapshot("dgx-1v")))

    legend = said[said.index("Pair score") :]
    assert legend == [
        "Pair score",
        "10",
        "110",
        "130",
        "150",
        "210",
        "230",
        "250",
        "NV#",
        "# fabric links",
        "SYS",
        "the link between NUMA nodes",
    ]


def test_an_odd_pair_is_dashed_and_a_lost_device_marked(snapshot: Profile):
    machine = snapshot("dgx-1v")
    a, b = machine.devices[0].uuid, machine.devices[3].uuid
    lost = replace(machine.devices[7], health=Health.UNHEALTHY)
    picture = drawn(
        replace(machine, devices=(*machine.devices[:7], lost), links=replace(machine.links, asymmetric=((a, b),)))
    )

    dashed = [hint for hint, rect in cells(picture) if "stroke-dasharray" in rect.attrib]
    assert dashed == ["GPU0 and GPU3: NV2, score 230", "GPU3 and GPU0: NV2, score 230"]
    assert "GPU7 ✕" in words(picture)
    assert "8 devices · Tesla V100-SXM2-32GB · darker = better connected · 1 not offered" in words(picture)


@pytest.mark.parametrize("devices", [0, 1, 2])
def test_a_machine_with_little_to_draw_is_drawn(devices: int):
    few = tuple(Device(uuid=f"d{i}", family="f", index=i, model="", memory=1) for i in range(devices))

    picture = drawn(Snapshot(devices=few, links=Links(), ready=True))

    assert f"{devices} devices · darker = better connected" in words(picture)


def test_a_name_is_text_and_never_markup():
    evil = "<script>alert(1)</script>&\x00\u202e"
    device = Device(uuid="d0", family="f", index=0, model=evil, memory=1)

    picture = drawn(Snapshot(devices=(device,), ready=True), title=evil)

    assert not list(picture.iter(f"{SVG}script"))
    assert words(picture)[0] == "<script>alert(1)</script>&\ufffd\ufffd"
