"""The library as a file: symbols, layouts, building, and that nothing a caller passes can crash it."""

import ast
import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest

from hami_plugin.simulation.c_compiler import BuildError
from vendors.nvidia.simulation import LIBRARY, SOURCES, build
from vendors.nvidia.simulation.faults import EXPORTED, SYMBOLS
from vendors.nvidia.simulation.layout import C_HEADER

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


def _run(script, *arguments, env=None):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env=env)


def test_exactly_the_listed_symbols_are_exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout

    assert {line.split()[-1] for line in lines.splitlines()} == EXPORTED
    assert len(SYMBOLS) == 95


def test_the_soname_lets_a_later_load_by_bare_name_find_it(library):
    script = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); import pynvml; pynvml._LoadNvmlLibrary(); print(pynvml.nvmlLib)"
    )

    done = _run(script, library)

    assert done.returncode == 0, done.stderr
    assert LIBRARY in done.stdout


def test_a_symbol_that_is_absent_reads_as_an_old_driver(nvml, code):
    _, binding = nvml("t4-4-pcie")

    assert code(binding.nvmlDeviceGetFanSpeed, binding.nvmlDeviceGetHandleByIndex(0)) == 13


def test_the_c_header_is_the_one_that_the_layout_gives():
    assert (SOURCES / "state.h").read_text(encoding="ascii") == C_HEADER


@pytest.mark.parametrize(
    ("structure", "size"),
    [
        ("nvmlPciInfo_t", 68),
        ("c_nvmlMemory_t", 24),
        ("c_nvmlMemory_v2_t", 40),
        ("c_nvmlEventData_t", 32),
        ("c_nvmlGpuInstanceProfileInfo_t", 48),
        ("c_nvmlGpuInstanceProfileInfo_v2_t", 152),
        ("c_nvmlGpuInstancePlacement_t", 8),
        ("c_nvmlGpuInstanceInfo_t", 24),
        ("c_nvmlComputeInstanceProfileInfo_v2_t", 136),
        ("c_nvmlComputeInstanceInfo_t", 32),
        ("c_nvmlDeviceAttributes", 40),
        ("c_nvmlUtilization_t", 8),
        ("c_nvmlFieldValue_t", 40),
        ("c_nvmlGpuFabricInfoV_t", 36),
        ("c_nvmlProcessInfo_v3_t", 24),
        ("c_nvmlProcessUtilizationSample_t", 32),
        ("c_nvmlProcessUtilizationInfo_v1_t", 40),
        ("c_nvmlProcessesUtilizationInfo_v1_t", 24),
    ],
)
def test_the_binding_has_the_structure_sizes_that_the_library_asserts(structure, size):
    assert ctypes.sizeof(getattr(pynvml, structure)) == size


@pytest.mark.full
def test_several_builds_at_once_all_end_with_a_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    targets = [tmp_path / f"to{number}" / LIBRARY for number in range(3)]

    with ThreadPoolExecutor(3) as pool:
        built = list(pool.map(build, targets))

    assert built == targets
    assert len({path.read_bytes() for path in built}) == 1
    assert [path.name for path in (tmp_path / "cache/hami-plugin").iterdir()] == [
        path.name for path in (tmp_path / "cache/hami-plugin").glob("libnvidia-ml-*")
    ]


@pytest.mark.full
def test_a_second_build_compiles_nothing(tmp_path, monkeypatch):
    log = tmp_path / "log"
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho called >> {log}\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(compiler))

    build(tmp_path / "one" / LIBRARY)
    build(tmp_path / "two" / LIBRARY)

    assert log.read_text() == "called\n"


@pytest.mark.parametrize(("compiler", "says"), [("false", "ends with 1"), ("no-such-compiler", "does not start")])
def test_a_failing_compiler_is_named_with_its_command_and_a_remedy(compiler, says, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(BuildError) as caught:
        build(tmp_path / LIBRARY)

    assert compiler in str(caught.value)
    assert says in str(caught.value)
    assert "install gcc, or use the Python simulation" in str(caught.value)
    assert not (tmp_path / LIBRARY).exists()


def test_a_machine_without_any_compiler_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(BuildError, match="no C compiler on PATH"):
        build(tmp_path / LIBRARY)


def test_a_library_without_a_state_file_finds_no_driver(library):
    done = _run("import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit_v2())", library)

    assert done.stdout == "9\n"


def test_a_state_file_of_another_layout_is_refused_not_misread(library, tmp_path):
    state = tmp_path / "state"
    state.write_bytes(b"HAMINVML" + bytes(1 << 20))

    environment = {**os.environ, "HAMI_SIM_NVML_STATE": str(state)}
    done = _run("import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit())", library, env=environment)

    assert done.stdout == "18\n"
    assert "create the simulation again" in done.stderr


def test_the_environment_names_another_state_file(simulated, library):
    environment = {**os.environ, "HAMI_SIM_NVML_STATE": str(simulated("dgx-1v").directory / "state")}
    script = """
import ctypes, sys
import pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetCount())
"""

    done = _run(script, library, env=environment)

    assert done.stdout == "8\n", done.stderr


_EVERY_CALL_WITH_NOTHING = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
nothing = [ctypes.c_void_p(0)] * 5
device = ctypes.c_void_p()

def call_all(firsts):
    codes = set()
    for symbol in sys.argv[2].split(","):
        for first in firsts:
            codes.add(getattr(library, symbol)(first, *nothing))
    return codes

assert call_all([ctypes.c_void_p(0)]) == {1}
assert library.nvmlInit_v2() == 0
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
wild = [ctypes.c_void_p(kind << 40 | 0xff << 32 | 0xffffffff) for kind in range(0x10, 0x18)]
codes = call_all([ctypes.c_void_p(0), device, ctypes.c_void_p(0xdeadbeefdeadbeef), *wild])
print(sorted(codes))
"""


def test_no_argument_crashes_the_library(simulated):
    """Every call that takes a handle: with nothing, with a device and nothing, with handles never handed out."""
    pointers_first = ("ByUUID", "ByPciBusId", "ByPciBusId_v2", "BySerial", "Count", "Count_v2", "Version", "Version_v2")
    no_handle = {"nvmlErrorString", "nvmlShutdown", "nvmlEventSetCreate"} | {s for s in EXPORTED if "nvmlInit" in s}
    symbols = sorted(s for s in EXPORTED - no_handle if not s.endswith(pointers_first) or "NvLink" in s)

    done = _run(_EVERY_CALL_WITH_NOTHING, simulated("dgx-a100-40gb").settings()["nvmlLibrary"], ",".join(symbols))

    assert done.returncode == 0, (done.returncode, done.stderr)
    assert set(ast.literal_eval(done.stdout)) <= {0, 2, 3}


def test_pointers_that_are_missing_are_invalid_arguments(nvml):
    _, binding = nvml("t4-4-pcie")
    library = binding.nvmlLib

    for symbol in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleBySerial"):
        assert getattr(library, symbol)(None, None) == 2
    assert library.nvmlDeviceGetCount_v2(None) == 2
    assert library.nvmlEventSetCreate(None) == 2
    assert library.nvmlSystemGetDriverVersion(None, 80) == 2


def test_sessions_are_counted(simulated, load, code):
    binding = load(simulated("t4-4-pcie"))

    assert code(binding.nvmlDeviceGetCount) == 1
    binding.nvmlInit()
    binding.nvmlInit()
    binding.nvmlShutdown()
    assert binding.nvmlDeviceGetCount() == 4
    binding.nvmlShutdown()
    assert code(binding.nvmlDeviceGetCount) == 1
    assert code(binding.nvmlShutdown) == 1


def test_error_texts_come_without_a_session(simulated, load):
    binding = load(simulated("t4-4-pcie"))

    assert binding.nvmlErrorString(15) == "GPU is lost"
