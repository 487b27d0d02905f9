from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from vendors.nvidia.driver_files import CachedLibrary, loader_entries
from vendors.nvidia.simulation.files import loader_cache

REAL = Path("/etc/ld.so.cache")
LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin")
LIBRARIES = {"libcuda.so.1": "/usr/lib64/libcuda.so.1", "libnvidia-ml.so.1": "/usr/lib64/libnvidia-ml.so.1"}


def test_what_was_written_is_read() -> None:
    entries = list(loader_entries(loader_cache(LIBRARIES)))

    assert sorted(entries, key=lambda entry: entry.name) == [
        CachedLibrary(name=n, path=p) for n, p in LIBRARIES.items()
    ]


@pytest.mark.skipif(LDCONFIG is None or not REAL.is_file(), reason="no dynamic loader's cache here")
def test_this_machines_own_cache_reads_as_its_ldconfig_reads_it() -> None:
    printed = subprocess.run([str(LDCONFIG), "-p"], capture_output=True, text=True, timeout=30, check=True).stdout
    lines = [line.strip().split(" => ") for line in printed.splitlines() if " => " in line and "libc6," in line]
    theirs = {(left.split(" (")[0], path) for left, path in lines if "64" in left.split(" (")[1]}

    ours = {(entry.name, entry.path) for entry in loader_entries(REAL.read_bytes())}

    assert ours == theirs
    assert len(ours) > 5


@pytest.mark.skipif(LDCONFIG is None, reason="no ldconfig here")
def test_glibcs_own_tool_reads_the_simulated_cache(tmp_path: Path) -> None:
    file = tmp_path / "ld.so.cache"
    file.write_bytes(loader_cache(LIBRARIES))

    done = subprocess.run(
        [str(LDCONFIG), "-p", "-C", str(file)], capture_output=True, text=True, timeout=30, check=True
    )

    assert "libcuda.so.1 (libc6,x86-64) => /usr/lib64/libcuda.so.1" in done.stdout
    assert "2 libs found" in done.stdout


def test_a_list_behind_one_of_the_old_format_is_read_from_its_own_start() -> None:
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + struct.pack("<iII", 3, 0, 0) + b"\0\0\0\0"

    assert {entry.path for entry in loader_entries(old + loader_cache(LIBRARIES))} == set(LIBRARIES.values())


def test_32_bit_libraries_are_passed_over() -> None:
    content = bytearray(loader_cache({"libcuda.so.1": "/usr/lib32/libcuda.so.1"}))
    content[48:52] = struct.pack("<i", 0x0003)

    assert list(loader_entries(bytes(content))) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no list in glibc's format"),
        (b"ld.so-1.7.0\0", "no list in glibc's format"),
        (loader_cache(LIBRARIES)[:40], "header is cut off"),
        (loader_cache(LIBRARIES)[:90], "90 bytes do not hold its 2 entries"),
        (loader_cache(LIBRARIES)[:-10], "where none ends"),
    ],
)
def test_a_damaged_file_is_told(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(loader_entries(content))
