"""Limits written into regions that the real HAMi-core made, in five layouts, while their containers do as they like."""

import lzma
import os
import struct
from pathlib import Path

import pytest

from hami_plugin.errors import HamiError
from vendors.nvidia import region
from vendors.nvidia.region import LAYOUTS, Allotted, Region, RegionLayout, read, read_usage, write_limits

REGIONS = Path(__file__).parents[2] / "vectors/regions"
NAME = "one.cache"
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def placed(folder: Path, layout: RegionLayout, state: str = "several") -> Path:
    file = folder / NAME
    file.write_bytes(lzma.decompress((REGIONS / f"{layout.name}-{state}.bin.xz").read_bytes()))
    return file


def cards(memory: int, cores: int = 40) -> list[Allotted]:
    return [Allotted(uuid=f"GPU-{n}", memory_limit=memory, core_limit=cores, memory=80 * GIB) for n in range(2)]


def limits(file: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    data = file.read_bytes()
    found = read(len(data), lambda offset, length: data[offset : offset + length], devices=2)
    assert isinstance(found, Region)
    return found.memory_limits, found.core_limits


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_the_limits_and_no_other_byte_are_written_in_each_layout(layout, folder):
    file = placed(folder, layout)
    before = file.read_bytes()

    write_limits(folder, NAME, cards(70 * GIB))

    after = file.read_bytes()
    changed = {place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
    words = {place for start in (layout.memory_limits, layout.core_limits) for place in range(start, start + 16)}
    assert limits(file) == ((70 * GIB, 70 * GIB), (40, 40))
    assert changed
    assert changed <= words


def test_no_limit_on_cores_is_100_as_hami_core_has_it(folder):
    file = placed(folder, region.V1_2)
    write_limits(folder, NAME, cards(70 * GIB, 0))
    assert limits(file)[1] == (100, 100)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_less_than_the_processes_use_is_refused_with_the_least_that_works(layout, folder):
    file = placed(folder, layout)
    before = file.read_bytes()
    used = max(one.memory_used for one in read_usage(folder, NAME, cards(GIB), now_s=0).devices)
    least = -(-used // MIB)

    with pytest.raises(HamiError, match=f"ask for {least} MiB or more"):
        write_limits(folder, NAME, cards((least - 1) * MIB))

    assert file.read_bytes() == before
    write_limits(folder, NAME, cards(least * MIB))
    assert limits(file)[0] == (least * MIB, least * MIB)


def meanwhile(monkeypatch, action):
    """Do something when the limits have been written, before they are looked at again."""
    write, done = region._write_words, []

    def written(file, words):
        write(file, words)
        if not done:
            done.append(True)
            action()

    monkeypatch.setattr(region, "_write_words", written)


def test_a_process_that_allocates_just_then_has_the_old_limits_again(folder, monkeypatch):
    file = placed(folder, region.V1_2)
    before = limits(file)

    def allocates():
        with file.open("r+b") as opened:
            os.pwrite(opened.fileno(), struct.pack("<Q", 60 * GIB), 1856 + 8 + 32)

    meanwhile(monkeypatch, allocates)
    with pytest.raises(HamiError, match="it uses"):
        write_limits(folder, NAME, cards(50 * GIB))

    assert limits(file) == before


def test_a_container_that_starts_again_just_then_is_not_resized(folder, monkeypatch):
    file = placed(folder, region.V1_2)
    meanwhile(monkeypatch, file.unlink)

    with pytest.raises(HamiError, match="started again just now"):
        write_limits(folder, NAME, cards(70 * GIB))


def test_a_container_that_truncates_its_region_just_then_is_refused_and_the_file_stays_short(folder, monkeypatch):
    file = placed(folder, region.V1_2)
    meanwhile(monkeypatch, lambda: os.truncate(file, 100))

    with pytest.raises(HamiError):
        write_limits(folder, NAME, cards(70 * GIB))

    assert file.stat().st_size < 4096


def test_a_container_that_writes_its_limits_itself_is_told_apart(folder, monkeypatch):
    file = placed(folder, region.V1_2)

    def rewrites():
        with file.open("r+b") as opened:
            os.pwrite(opened.fileno(), struct.pack("<Q", 80 * GIB), region.V1_2.memory_limits)

    meanwhile(monkeypatch, rewrites)
    with pytest.raises(HamiError, match="changes its limits itself"):
        write_limits(folder, NAME, cards(70 * GIB))


@pytest.mark.parametrize("hostile", ["link", "fifo", "hard link", "folder"])
def test_nothing_that_is_not_the_containers_own_file_is_written_to(hostile, folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("host") / "secret"
    other.write_bytes(placed(folder, region.V1_2).read_bytes())
    (folder / NAME).unlink()
    match hostile:
        case "link":
            (folder / NAME).symlink_to(other)
        case "hard link":
            (folder / NAME).hardlink_to(other)
        case "fifo":
            os.mkfifo(folder / NAME)
        case "folder":
            (folder / NAME).mkdir()
    before = other.read_bytes()

    with pytest.raises((OSError, HamiError)):
        write_limits(folder, NAME, cards(70 * GIB))

    assert other.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"", bytes(2_008_953), struct.pack("<iII", 19920718, 1, 3).ljust(2_008_953, b"\0")]
)
def test_a_region_that_cannot_be_read_is_not_written(content, folder):
    file = folder / NAME
    file.write_bytes(content)

    with pytest.raises(HamiError, match="not where HAMi-core has them"):
        write_limits(folder, NAME, cards(70 * GIB))

    assert file.read_bytes() == content
