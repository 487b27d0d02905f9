"""HAMi-core's two switches for priorities, in regions of five layouts: what is written, and that nothing else is."""

import lzma
import struct
from pathlib import Path

import pytest

from hami_plugin.model.usage import Pace
from vendors.nvidia.region import LAYOUTS, Allotted, Region, read, usage, write_pace

REGIONS = Path(__file__).parents[2] / "vectors/regions"
NAME = "one.cache"
NOW_S = 1_800_000_000.0


def placed(folder, layout, switch=1, recent=2, last=0):
    data = bytearray(lzma.decompress((REGIONS / f"{layout.name}-several.bin.xz").read_bytes()))
    struct.pack_into("<ii", data, layout.process_count + 4, switch, recent)
    if layout.has_last_kernel:
        struct.pack_into("<Q", data, layout.process_count + 16, last)
    (folder / NAME).write_bytes(data)
    return bytes(data)


def found(folder):
    data = (folder / NAME).read_bytes()
    region = read(len(data), lambda offset, length: data[offset : offset + length], devices=1)
    assert isinstance(region, Region)
    return region


def switches(folder):
    region = found(folder)
    return region.utilization_switch, region.recent_kernel


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_only_the_two_switches_are_written_in_each_layout(layout, tmp_path):
    before = placed(tmp_path, layout, switch=0, recent=2)

    write_pace(tmp_path, NAME, Pace.HELD_BACK, limited=True)

    after = (tmp_path / NAME).read_bytes()
    changed = {at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
    assert switches(tmp_path) == (1, -1)
    assert changed <= set(range(layout.process_count + 4, layout.process_count + 12))


@pytest.mark.parametrize(
    ("pace", "limited", "before", "after"),
    [
        (Pace.FREE, True, (1, 2), (0, 1)),
        (Pace.FREE, True, (1, 1), (0, 0)),
        (Pace.FREE, True, (1, -1), (0, 0)),
        (Pace.FREE, True, (0, 0), (0, 0)),
        (Pace.LIMITED, True, (0, 2), (1, 1)),
        (Pace.LIMITED, False, (0, -1), (1, 0)),
        (Pace.HELD_BACK, True, (0, 0), (1, -1)),
        (Pace.HELD_BACK, True, (1, -1), (1, -1)),
        (Pace.RELEASED, True, (0, -1), (1, 0)),
        (Pace.RELEASED, True, (0, 2), (1, 2)),
        (Pace.RELEASED, False, (0, -1), (0, 0)),
        (Pace.LIMITED, True, (7, 2**31 - 1), (1, 2**31 - 2)),
        (Pace.RELEASED, True, (1, -(2**31)), (1, 0)),
        (Pace.RELEASED, True, (1, 2**31 - 1), (1, 2)),
    ],
)
def test_the_switches_say_what_is_decided(pace, limited, before, after, tmp_path):
    placed(tmp_path, LAYOUTS[-1], *before)

    write_pace(tmp_path, NAME, pace, limited=limited)

    assert switches(tmp_path) == after


@pytest.mark.parametrize(
    ("recent", "last", "active"),
    [(2, 0, True), (1, 0, False), (0, 0, False), (-1, 0, False), (0, 9, True), (-1, 9, True), (0, 11, False)],
)
def test_a_container_is_active_by_its_mark_or_by_the_time_of_its_last_kernel(recent, last, active, tmp_path):
    placed(tmp_path, LAYOUTS[-1], 1, recent, int(NOW_S) - last if last else 0)
    card = Allotted(uuid="GPU-0", memory_limit=1, core_limit=30, memory=1 << 40)

    assert usage(found(tmp_path), [card], now_s=NOW_S).active is active


@pytest.mark.parametrize("content", [b"", bytes(2_008_953)])
def test_a_region_that_is_not_ready_is_left_alone(content, tmp_path):
    (tmp_path / NAME).write_bytes(content)

    write_pace(tmp_path, NAME, Pace.HELD_BACK, limited=True)

    assert (tmp_path / NAME).read_bytes() == content
