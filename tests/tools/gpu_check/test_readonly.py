"""The check only reads, in three ways: by what it contains, by what the glass lets through, by what it calls."""

import re
from pathlib import Path

import pytest

from tools import gpu_check
from tools.gpu_check.library import READS, Timings, WriteRefusedError, loader
from vendors.nvidia.partitions import CHANGES

WRITES = re.compile(r"nvml(?!EventSet)\w*(Set|Create|Destroy|Reset|Clear|Modify|Remove|Discover|Freeze)[A-Z]?\w*")
SOURCES = sorted(Path(gpu_check.__file__).parent.glob("*.py"))


@pytest.fixture
def library(machine):
    timings = Timings()
    return loader(timings)(machine("dgx-h200").settings()["nvmlLibrary"]), timings


def test_no_call_that_changes_anything_is_in_the_source():
    assert len(SOURCES) > 10
    assert {source.name: WRITES.findall(source.read_text(encoding="utf-8")) for source in SOURCES} == {
        source.name: [] for source in SOURCES
    }


@pytest.mark.parametrize(
    "function",
    [
        *("nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstance", "nvmlDeviceCreateGpuInstanceWithPlacement"),
        *("nvmlGpuInstanceDestroy", "nvmlGpuInstanceCreateComputeInstance", "nvmlComputeInstanceDestroy"),
        *("nvmlDeviceSetComputeMode", "nvmlDeviceClearEccErrorCounts", "nvmlDeviceResetGpuLockedClocks"),
    ],
)
def test_the_glass_refuses_what_writes_before_it_is_called(library, function):
    behind_glass, timings = library

    with pytest.raises(WriteRefusedError, match=function):
        getattr(behind_glass, function)
    assert not READS.fullmatch(function)
    assert timings.called == frozenset()


def test_the_glass_times_what_reads(library):
    behind_glass, timings = library

    assert behind_glass.nvmlInit_v2() == 0
    assert behind_glass.nvmlShutdown() == 0

    assert timings.called == {"nvmlInit_v2", "nvmlShutdown"}
    assert timings.summary()["nvmlShutdown"]["calls"] == 1


def test_with_changes_asked_for_only_those_of_mig_pass(machine):
    behind_glass = loader(Timings(), CHANGES)(machine("dgx-h200").settings()["nvmlLibrary"])

    assert {name for name in CHANGES if not hasattr(behind_glass, name)} == set()
    assert all(WRITES.fullmatch(name) and not READS.fullmatch(name) for name in CHANGES)
    with pytest.raises(WriteRefusedError):
        getattr(behind_glass, "nvmlDeviceSetComputeMode")  # noqa: B009  # the name is the point


def test_a_function_that_the_library_lacks_is_missing_behind_the_glass_too(library):
    behind_glass, _ = library

    assert not hasattr(behind_glass, "nvmlDeviceGetSomethingNew")


def test_a_whole_run_calls_nothing_that_writes(machine, check):
    result = check(machine("t4-4-pcie"))

    called = set(result.report["times"]["calls"])
    assert len(called) > 40
    assert {function for function in called if WRITES.fullmatch(function) or not READS.fullmatch(function)} == set()
