"""What containers with a share of an NPU use, by the file of HAMi's core for NPUs, and what hostile ones make of it."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.device import Device
from hami_plugin.model.placement import Grant, Share
from hami_plugin.model.usage import ContainerUsage, UsageState
from tests.support.scale import sized
from vendors.ascend.injection import (
    FILE,
    MAX_PROCESSES,
    PROCESS_BYTES,
    PROCESSES_AT,
    container_usage,
    folders,
    node_side,
)
from vendors.ascend.rules import families
from vendors.ascend.settings import AscendSettings

UID = "0a1b2c3d-0000-4000-8000-000000000001"
GIB, MEMORY_MIB = 1 << 30, 64 * 1024


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    return HostFiles(paths=HostPaths(hook=tmp_path, hook_view=tmp_path))


@pytest.fixture
def file(host: HostFiles) -> Path:
    folder = folders(host.paths) / f"{UID}_main"
    folder.mkdir(parents=True)
    return folder / FILE


def shares(count: int = 2) -> list[Share]:
    npus = [Device(uuid=f"npu-{n}", family="Ascend910B3", index=n, model="toy", memory=MEMORY_MIB) for n in range(2)]
    return [
        Share(grant=Grant(uuid=one.uuid, device_type=one.family, memory=8192, cores=50), device=one)
        for one in npus[:count]
    ]


def content(*processes: tuple[int, int, int, bool], limit: int = 8 * GIB) -> bytes:
    """Each with its pid, what it has of the first and the second NPU, and whether it is there."""
    data = bytearray(PROCESSES_AT + PROCESS_BYTES * MAX_PROCESSES)
    struct.pack_into("<Q", data, 0, limit)
    for slot, (pid, first, second, there) in enumerate(processes):
        place = PROCESSES_AT + slot * PROCESS_BYTES
        struct.pack_into("<i4x2Q", data, place, pid, first, second)
        struct.pack_into("<I", data, place + 72, there)
    return bytes(data)


def read(host: HostFiles, count: int = 2) -> ContainerUsage:
    return container_usage(UID, "main", shares(count), host)


def test_what_a_container_uses_of_each_npu_is_what_its_living_processes_have(file: Path, host: HostFiles) -> None:
    file.write_bytes(content((7, 3 * GIB, GIB, True), (8, GIB, 0, True), (9, 5 * GIB, 5 * GIB, False)))

    found = read(host)

    assert (found.state, found.processes, found.corrupt_slots) == (UsageState.OK, 2, 0)
    assert [(one.uuid, one.memory_used, one.memory_limit) for one in found.devices] == [
        ("npu-0", 4 * GIB, 8 * GIB),
        ("npu-1", GIB, 8 * GIB),
    ]
    assert {one.utilization for one in found.devices} == {None}


def test_a_container_that_has_not_begun_has_no_usage_yet(file: Path, host: HostFiles) -> None:
    assert read(host).state is UsageState.ABSENT


def test_memory_that_no_npu_has_is_left_out_and_counted(file: Path, host: HostFiles) -> None:
    file.write_bytes(content((7, (1 << 64) - 1, GIB, True), (8, 2 * GIB, 0, True), limit=(1 << 64) - 1))

    found = read(host)

    assert found.corrupt_slots == 1
    assert [one.memory_used for one in found.devices] == [2 * GIB, GIB]
    assert {one.memory_limit for one in found.devices} == {MEMORY_MIB << 20}


@pytest.mark.parametrize("size", [0, 8, PROCESSES_AT + PROCESS_BYTES - 1])
def test_a_file_that_is_too_short_is_corrupt(file: Path, host: HostFiles, size: int) -> None:
    file.write_bytes(content()[:size])

    assert read(host).state is UsageState.CORRUPT


def test_a_file_of_fewer_processes_is_read_as_far_as_it_goes(file: Path, host: HostFiles) -> None:
    file.write_bytes(content((7, GIB, 0, True), (8, GIB, 0, True))[: PROCESSES_AT + PROCESS_BYTES + 40])

    assert [one.memory_used for one in read(host, 1).devices] == [GIB]


@pytest.mark.parametrize("kind", ["link", "pipe", "two names", "folder"])
def test_what_is_no_file_of_its_own_is_not_read(file: Path, host: HostFiles, kind: str) -> None:
    match kind:
        case "link":
            file.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "two names":
            file.write_bytes(content())
            os.link(file, file.with_name("other"))

    with pytest.raises(OSError, match=r".*"):
        read(host)


def test_no_content_breaks_the_reader_or_shows_more_than_the_npus_have(file: Path, host: HostFiles) -> None:
    chance = random.Random(16)
    for _ in range(sized(200, 20_000)):
        file.write_bytes(chance.randbytes(chance.choice([0, 100, 1160, 3000, 6200, 9000])))
        found = read(host)
        assert all(0 <= one.memory_used <= MEMORY_MIB << 20 for one in found.devices)


def test_only_a_node_whose_npus_are_shared_by_hamis_core_reads_it_and_removes_the_folders() -> None:
    for soft in (True, False):
        settings = AscendSettings.model_validate({"hamiVnpuCore": soft})
        side = node_side(settings, families(settings)[0])
        assert (side.usage is not None, side.folders is not None) == (soft, soft)
