"""Regions that the real HAMi-core wrote, in five layouts, and what hostile containers make of them."""

import json
import lzma
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_plugin.model.usage import UsageState
from tests.support import scale
from vendors.nvidia.region import LAYOUTS, Allotted, ReadAt, Region, RegionLayout, Unread, read, usage

REGIONS = Path(__file__).parents[2] / "vectors/regions"
EXPECTED: Mapping[str, Any] = json.loads(lzma.decompress((REGIONS / "expected.json.xz").read_bytes()))
NAMES = sorted(EXPECTED["vectors"])
GIB = 1 << 30
CARD_BYTES = 80 * GIB
NOW_S = 1_800_000_000.0


@cache
def recorded(name: str) -> bytes:
    return lzma.decompress((REGIONS / f"{name}.bin.xz").read_bytes())


def reader(data: bytes | bytearray) -> ReadAt:
    return lambda offset, length: bytes(data[offset : offset + length])


def read_all(data: bytes | bytearray, devices: int = 2) -> Region | Unread:
    return read(len(data), reader(data), devices=devices)


def allotted(vector: Mapping[str, Any]) -> list[Allotted]:
    given = vector["allotted"]["env"]
    cores = given.get("CUDA_DEVICE_SM_LIMIT", 0)
    return [
        Allotted(
            uuid=uuid,
            memory_limit=int(given.get(f"CUDA_DEVICE_MEMORY_LIMIT_{index}", "0m").removesuffix("m")) << 20,
            core_limit=int(given.get(f"CUDA_DEVICE_SM_LIMIT_{index}", cores)),
            memory=CARD_BYTES,
        )
        for index, uuid in enumerate(vector["allotted"]["uuids"])
    ]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_each_offset_is_the_one_that_the_librarys_compiler_gave(layout: RegionLayout) -> None:
    names = {one["layout"]: library for library, one in EXPECTED["libraries"].items()}
    library = names.get(layout.name, layout.name)
    found = EXPECTED["layouts"].get(layout.name) or EXPECTED["layouts"][library]
    region, slot = found["region"], found["slot"]

    assert layout.size == found["region_size"]
    assert layout.device_count == region.get("device_num", region.get("num"))
    assert (layout.uuids, layout.memory_limits) == (region["uuids"], region["limit"])
    assert (layout.core_limits, layout.processes) == (region["sm_limit"], region["procs"])
    assert layout.process_count == region["proc_num"]
    assert layout.has_last_kernel == ("last_kernel_time" in region)
    assert (layout.slot.size, layout.slot.used) == (found["slot_size"], slot["used"])
    assert (layout.slot.monitor_used, layout.slot.status) == (slot["monitorused"], slot["status"])
    assert layout.slot.utilization == slot.get("device_util")
    assert layout.slot.seqlock == slot.get("seqlock")


@pytest.mark.parametrize("name", scale.spread(NAMES, kind=lambda name: name.partition("-")[0]))
def test_a_recorded_region_is_read_as_it_stands(name: str) -> None:
    vector = EXPECTED["vectors"][name]
    expected = vector["region"]

    cards = len(vector["allotted"]["uuids"])
    region = read_all(recorded(name), cards)

    assert isinstance(region, Region)
    assert region.layout.name == vector["layout"]
    assert region.device_count == expected["device_num"]
    assert [one.decode() for one in region.uuids if one] == expected["uuids"][:cards]
    assert list(region.memory_limits) == expected["limit"][: len(region.uuids)]
    assert list(region.core_limits) == expected["sm_limit"][: len(region.uuids)]
    assert region.priority == expected["priority"]
    assert (region.utilization_switch, region.recent_kernel) == (
        expected["utilization_switch"],
        expected["recent_kernel"],
    )
    assert region.last_kernel_s == expected.get("last_kernel_time")
    for process, slot in zip(region.processes, expected["slots"], strict=True):
        assert (process.pid, process.host_pid, process.status) == (slot["pid"], slot["hostpid"], slot["status"])
        assert [one.total for one in process.memory] == [one["total"] for one in slot["used"][:cards]]
        assert list(process.monitor_used) == slot["monitorused"][:cards]


@pytest.mark.parametrize("name", scale.spread(NAMES, kind=lambda name: name.partition("-")[0]))
def test_usage_counts_the_living_and_says_when_a_limit_is_not_ours(name: str) -> None:
    vector = EXPECTED["vectors"][name]
    cards = allotted(vector)
    region = read_all(recorded(name), len(vector["allotted"]["uuids"]))
    assert isinstance(region, Region)

    used = usage(region, cards, now_s=NOW_S)

    reading = vector["reading"]
    assert [one.memory_used for one in used.devices] == reading["used_bytes"]
    assert [one.context for one in used.devices] == reading["context_bytes"]
    assert [one.buffer for one in used.devices] == reading["buffer_bytes"]
    slots = vector["region"]["slots"] if vector["layout"] != "v0a" else []
    possible = [
        sum(share for slot in slots if slot["status"] and (share := slot["sm_util"][index]) <= 100)
        for index in range(len(cards))
    ]
    assert [one.utilization for one in used.devices] == possible
    assert used.foreign_uuids == used.corrupt_slots == used.unsettled_slots == 0
    if vector["state"].startswith("the container was started again"):
        assert used.changed_limits == tuple(card.uuid for card in cards)


def test_a_file_that_no_process_has_initialised_has_no_usage_yet() -> None:
    assert read_all(bytes(2_008_953)) == Unread(state=UsageState.UNINITIALISED, detail="no process has initialised it")


@pytest.mark.parametrize(
    ("size", "version", "state"),
    [
        (2_008_953, (1, 3), UsageState.UNSUPPORTED),
        (2_008_953, (0, 0), UsageState.UNSUPPORTED),
        (2_008_985, (1, 2), UsageState.UNSUPPORTED),
        (3_000_000, (2, 0), UsageState.UNSUPPORTED),
        (2_008_952, (1, 2), UsageState.CORRUPT),
        (12, (1, 2), UsageState.CORRUPT),
        (11, (1, 2), UsageState.CORRUPT),
    ],
)
def test_a_layout_is_never_guessed(size: int, version: tuple[int, int], state: UsageState) -> None:
    data = struct.pack("<iII", 19920718, *version).ljust(size, b"\0")[:size]

    found = read_all(data)

    assert isinstance(found, Unread)
    assert found.state is state


@pytest.mark.parametrize("name", sorted(EXPECTED["mixed"]))
def test_a_file_of_two_libraries_is_read_as_its_size_and_version_say_and_its_limits_are_told(name: str) -> None:
    expected = EXPECTED["mixed"][name]

    found = read_all(recorded(name))

    if expected["size_and_version_say"] == "unsupported":
        assert isinstance(found, Unread)
        return
    assert isinstance(found, Region)
    assert found.layout.name == expected["size_and_version_say"]
    assert list(found.memory_limits) == expected["limit"][:2]
    cards = [Allotted(uuid=f"GPU-{index}", memory_limit=1, core_limit=1, memory=GIB) for index in range(2)]
    used = usage(found, cards, now_s=NOW_S)
    assert used.changed_limits == ("GPU-0", "GPU-1")
    assert all(0 <= device.memory_used <= GIB for device in used.devices)


def changed(name: str, *edits: tuple[int, str, int]) -> bytes:
    data = bytearray(recorded(name))
    for place, form, value in edits:
        struct.pack_into(f"<{form}", data, place, value)
    return bytes(data)


@pytest.mark.parametrize(("claimed", "counted"), [(-1, 0), (5000, 1024)])
def test_the_count_of_processes_is_held_to_what_a_region_has_room_for(claimed: int, counted: int) -> None:
    region = read_all(changed("v1.2-several", (2_008_896, "i", claimed)))

    assert isinstance(region, Region)
    assert len(region.processes) == counted


def test_a_slot_with_more_memory_than_its_card_has_is_left_out_and_counted() -> None:
    vector = EXPECTED["vectors"]["v1.2-several"]
    total = 1856 + 8 + 32
    region = read_all(changed("v1.2-several", (total, "Q", (1 << 64) - 1)))
    assert isinstance(region, Region)

    used = usage(region, allotted(vector), now_s=NOW_S)

    assert used.corrupt_slots == 1
    assert used.devices[0].memory_used == vector["region"]["slots"][2]["used"][0]["total"]


def test_processes_that_share_a_card_never_use_more_than_it_has() -> None:
    vector = EXPECTED["vectors"]["v1.2-several"]
    edits = [(1856 + 1960 * slot + 8 + 32, "Q", CARD_BYTES) for slot in range(3)]
    region = read_all(changed("v1.2-several", *edits))
    assert isinstance(region, Region)

    assert usage(region, allotted(vector), now_s=NOW_S).devices[0].memory_used == CARD_BYTES


def test_another_cards_uuid_in_a_region_is_counted_and_not_believed() -> None:
    vector = EXPECTED["vectors"]["v1.2-several"]
    region = read_all(changed("v1.2-several", (64, "Q", 0x3131313131313131)))
    assert isinstance(region, Region)

    used = usage(region, allotted(vector), now_s=NOW_S)

    assert used.foreign_uuids == 1
    assert [one.uuid for one in used.devices] == vector["allotted"]["uuids"]


@pytest.mark.parametrize("limit", [1600, 1728], ids=["memory", "cores"])
def test_a_limit_that_the_container_has_changed_is_told(limit: int) -> None:
    vector = EXPECTED["vectors"]["v1.2-several"]
    cards = allotted(vector)
    before, after = (read_all(changed("v1.2-several", *edits)) for edits in ((), ((limit + 8, "Q", 99 * GIB),)))
    assert isinstance(before, Region)
    assert isinstance(after, Region)

    assert usage(before, cards, now_s=NOW_S).changed_limits == ()
    assert usage(after, cards, now_s=NOW_S).changed_limits == (cards[1].uuid,)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, None),
        (1, None),
        (1 << 63, None),
        (int(NOW_S) + 61, None),
        (int(NOW_S) + 5, NOW_S),
        (int(NOW_S) - 5, NOW_S - 5),
    ],
)
def test_a_last_kernel_of_an_impossible_time_is_not_told(seconds: int, told: float | None) -> None:
    region = read_all(changed("v1.2-several", (2_008_912, "Q", seconds)))
    assert isinstance(region, Region)

    assert usage(region, [], now_s=NOW_S).last_kernel_s == told


def test_a_slot_whose_writer_died_is_read_three_times_and_said_to_be_unsettled() -> None:
    data = changed("v1.2-several", (1856 + 1936, "Q", 7))
    reads = []

    def read_at(offset: int, length: int) -> bytes:
        reads.append(offset)
        return data[offset : offset + length]

    region = read(len(data), read_at, devices=2)

    assert isinstance(region, Region)
    assert reads.count(1856) == 3
    assert [one.settled for one in region.processes] == [False, True, True]
    assert usage(region, [], now_s=NOW_S).unsettled_slots == 1


def test_a_file_that_is_truncated_while_it_is_read_is_corrupt() -> None:
    data = recorded("v1.2-several")
    for kept in (56, 1856, 1856 + 1960, 2_008_900):
        found = read(len(data), reader(data[:kept]), devices=2)

        assert isinstance(found, Unread)
        assert found.state is UsageState.CORRUPT


@given(st.data())
def test_whatever_a_container_writes_the_usage_stays_within_its_cards(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(LAYOUTS))
    region_bytes = bytearray(recorded(f"{layout.name}-several"))
    places = st.sampled_from([layout.device_count, layout.processes, layout.process_count, layout.memory_limits])
    for _ in range(data.draw(st.integers(1, 20))):
        place = data.draw(places) + data.draw(st.integers(0, 2000))
        noise = data.draw(st.binary(min_size=1, max_size=64))
        region_bytes[place : place + len(noise)] = noise
    kept = data.draw(st.one_of(st.just(len(region_bytes)), st.integers(0, len(region_bytes))))
    cards = [Allotted(uuid=f"GPU-{index}", memory_limit=GIB, core_limit=30, memory=CARD_BYTES) for index in range(2)]

    found = read(len(region_bytes), reader(region_bytes[:kept]), devices=2)

    if isinstance(found, Region):
        used = usage(found, cards, now_s=NOW_S)
        assert len(used.devices) == 2
        assert all(0 <= device.memory_used <= CARD_BYTES for device in used.devices)
        assert all(0 <= device.utilization <= 100 * used.processes for device in used.devices)
