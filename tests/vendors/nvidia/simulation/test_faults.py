"""Every fault, caused by another process, as the real binding sees it."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from vendors.nvidia.simulation import NvmlSimulator, StateError
from vendors.nvidia.simulation.faults import FAULTS, GROUPS, SYMBOLS
from vendors.nvidia.simulation.state import opened

ROOT = Path(__file__).parents[4]


@pytest.fixture
def dgx(nvml):
    """A simulated DGX-1V: the simulator, the binding, and all eight handles."""
    simulator, binding = nvml("dgx-1v")
    return simulator, binding, [binding.nvmlDeviceGetHandleByIndex(index) for index in range(8)]


def test_a_lost_gpu_fails_every_getter_while_the_count_stays(dgx, elsewhere, code):
    simulator, binding, handles = dgx
    elsewhere(simulator, "lost", 2)

    getters = [getattr(binding, f"nvmlDeviceGet{n}") for n in ("UUID", "Name", "PciInfo", "MemoryInfo", "MinorNumber")]

    assert binding.nvmlDeviceGetCount() == 8
    assert code(binding.nvmlDeviceGetHandleByIndex, 2) == 15
    assert {code(getter, handles[2]) for getter in getters} == {15}
    assert code(binding.nvmlDeviceGetTopologyCommonAncestor, handles[0], handles[2]) == 15
    assert code(binding.nvmlDeviceGetUUID, handles[3]) == 0
    elsewhere(simulator, "back", 2)
    assert {code(getter, handles[2]) for getter in getters} == {0}


def test_ecc_errors_are_counted_remapped_and_told(nvml, elsewhere):
    simulator, binding = nvml("dgx-h100")
    handle = binding.nvmlDeviceGetHandleByIndex(1)
    events = binding.nvmlEventSetCreate()
    binding.nvmlDeviceRegisterEvents(handle, binding.nvmlEventTypeDoubleBitEccError, events)

    elsewhere(simulator, "ecc", 1, 3)

    assert binding.nvmlDeviceGetTotalEccErrors(handle, 1, 0) == 3
    assert binding.nvmlDeviceGetTotalEccErrors(handle, 0, 0) == 0
    assert binding.nvmlDeviceGetMemoryErrorCounter(handle, 1, 0, binding.NVML_MEMORY_LOCATION_DRAM) == 3
    assert binding.nvmlDeviceGetRemappedRows(handle) == (0, 3, 1, 0)
    assert binding.nvmlDeviceGetFieldValues(handle, [4])[0].value.ullVal == 3
    assert binding.nvmlEventSetWait_v2(events, 0).eventType == binding.nvmlEventTypeDoubleBitEccError


def test_an_older_gpu_retires_pages_and_remaps_no_rows(dgx, elsewhere, code):
    simulator, binding, handles = dgx
    elsewhere(simulator, "ecc", 0, 2)

    assert len(binding.nvmlDeviceGetRetiredPages(handles[0], 1)) == 2
    assert binding.nvmlDeviceGetRetiredPages(handles[0], 0) == []
    assert binding.nvmlDeviceGetRetiredPagesPendingStatus(handles[0]) == 1
    assert code(binding.nvmlDeviceGetRemappedRows, handles[0]) == 3


def test_a_geforce_card_has_no_ecc(nvml, code):
    _, binding = nvml("rtx4090-8-pcie")
    handle = binding.nvmlDeviceGetHandleByIndex(0)

    assert code(binding.nvmlDeviceGetEccMode, handle) == 3
    assert code(binding.nvmlDeviceGetTotalEccErrors, handle, 1, 0) == 3


def test_a_group_of_calls_may_be_unsupported(dgx, elsewhere, code):
    simulator, binding, handles = dgx
    elsewhere(simulator, "not-supported", 0, "memory")

    assert code(binding.nvmlDeviceGetMemoryInfo, handles[0]) == 3
    assert code(binding.nvmlDeviceGetMemoryInfo, handles[1]) == 0
    assert code(binding.nvmlDeviceGetName, handles[0]) == 0
    elsewhere(simulator, "not-supported", 1, "nvmlDeviceGetName")
    assert code(binding.nvmlDeviceGetName, handles[1]) == 3


@pytest.mark.parametrize("target", [3, None])
def test_a_slow_device_takes_its_time_and_a_slow_driver_everywhere(target, dgx, elsewhere):
    simulator, binding, handles = dgx
    names, minutes, begun = [], 600_000, threading.Event()
    elsewhere(simulator, "slow", target, minutes)

    def ask():
        begun.set()
        with suppress(binding.NVMLError):  # in ten minutes, when the library has been shut down
            names.append(binding.nvmlDeviceGetName(handles[3]))

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    begun.wait()
    caller.join(0.5)
    elsewhere(simulator, "slow", target, 0)

    assert binding.nvmlDeviceGetName(handles[4]) == "Tesla V100-SXM2-32GB"
    assert caller.is_alive(), "a call under way has ten minutes before it"
    assert names == []


def test_a_hanging_call_ends_with_back_and_holds_up_nobody_else(dgx, elsewhere):
    simulator, binding, handles = dgx
    elsewhere(simulator, "hang", 6)
    names = []
    caller = threading.Thread(target=lambda: names.append(binding.nvmlDeviceGetName(handles[6])))

    caller.start()
    caller.join(0.1)

    assert caller.is_alive()
    assert binding.nvmlDeviceGetName(handles[5])
    elsewhere(simulator, "back", 6)
    caller.join(60)
    assert names == ["Tesla V100-SXM2-32GB"]


def _links_up(binding, handle):
    return sum(binding.nvmlDeviceGetNvLinkState(handle, link) for link in range(6))


def test_an_asymmetric_device_reports_one_link_fewer_to_each_peer(dgx, elsewhere):
    simulator, binding, handles = dgx
    assert [_links_up(binding, handle) for handle in handles] == [6] * 8

    elsewhere(simulator, "asymmetric", 0)

    assert [_links_up(binding, handle) for handle in handles] == [2, 6, 6, 6, 6, 6, 6, 6]


def test_an_asymmetric_device_behind_switches_reports_one_port_fewer(nvml, elsewhere):
    simulator, binding = nvml("dgx-2")
    elsewhere(simulator, "asymmetric", 0)

    assert _links_up(binding, binding.nvmlDeviceGetHandleByIndex(0)) == 5


def test_without_a_driver_every_call_and_init_say_so_until_a_new_session(dgx, elsewhere, code):
    simulator, binding, handles = dgx
    version = Path(simulator.settings()["procRoot"]) / "driver/nvidia/version"
    elsewhere(simulator, "driver-gone")

    assert code(binding.nvmlDeviceGetCount) == 9
    assert code(binding.nvmlDeviceGetUUID, handles[0]) == 9
    assert code(binding.nvmlInit) == 9
    assert not version.exists()

    elsewhere(simulator, "driver-back", None, "580.1.2")
    assert code(binding.nvmlDeviceGetCount) == 9, "a session of the old driver stays dead"
    binding.nvmlShutdown()
    binding.nvmlInit()
    assert binding.nvmlDeviceGetCount() == 8
    assert binding.nvmlSystemGetDriverVersion() == "580.1.2"
    assert "580.1.2" in version.read_text()


def test_a_version_mismatch_fails_init(simulated, load, elsewhere, code):
    simulator = simulated("t4-4-pcie")
    binding = load(simulator)
    elsewhere(simulator, "mismatch")

    assert code(binding.nvmlInit) == 18
    elsewhere(simulator, "driver-back")
    assert code(binding.nvmlInit) == 0


def test_no_devices_is_a_count_of_nought(dgx, elsewhere, code):
    simulator, binding, _ = dgx
    elsewhere(simulator, "no-devices")

    assert binding.nvmlDeviceGetCount() == 0
    assert code(binding.nvmlDeviceGetHandleByIndex, 0) == 2
    elsewhere(simulator, "back")
    assert binding.nvmlDeviceGetCount() == 8


def test_an_unplugged_device_shifts_the_later_indices_and_loses_its_files(dgx, elsewhere, machine, code):
    simulator, binding, handles = dgx
    third = machine("dgx-1v").devices[3]
    roots = simulator.settings()
    places = [
        Path(roots["sysfsRoot"]) / "bus/pci/devices" / third.pci,
        Path(roots["procRoot"]) / "driver/nvidia/gpus" / third.pci,
        Path(roots["devRoot"]) / "nvidia3",
    ]
    elsewhere(simulator, "unplug", 3)

    assert binding.nvmlDeviceGetCount() == 7
    assert binding.nvmlDeviceGetUUID(binding.nvmlDeviceGetHandleByIndex(3)) == machine("dgx-1v").devices[4].uuid
    assert binding.nvmlDeviceGetIndex(handles[7]) == 6
    assert code(binding.nvmlDeviceGetUUID, handles[3]) == 15
    assert code(binding.nvmlDeviceGetHandleByUUID, third.uuid.encode()) == 6
    assert [place.exists() for place in places] == [False] * 3

    elsewhere(simulator, "plug", 3)
    assert binding.nvmlDeviceGetUUID(binding.nvmlDeviceGetHandleByIndex(3)) == third.uuid
    assert [place.exists() for place in places] == [True] * 3


def test_one_symbol_may_fail_for_one_device_or_for_all(dgx, elsewhere, code):
    simulator, binding, handles = dgx
    elsewhere(simulator, "fail-call", 1, "nvmlDeviceGetPciInfo_v3:15")
    elsewhere(simulator, "fail-call", None, "nvmlDeviceGetCount:999")

    assert code(binding.nvmlDeviceGetPciInfo, handles[1]) == 15
    assert code(binding.nvmlDeviceGetPciInfo, handles[0]) == 0
    assert code(binding.nvmlDeviceGetUUID, handles[1]) == 0
    assert code(binding.nvmlDeviceGetCount) == 999
    elsewhere(simulator, "fail-call", None, "nvmlDeviceGetCount_v2:0")
    assert code(binding.nvmlDeviceGetCount) == 0
    elsewhere(simulator, "back", 1)
    assert code(binding.nvmlDeviceGetPciInfo, handles[1]) == 0


def test_every_device_call_can_be_made_to_fail(dgx, code):
    simulator, binding, handles = dgx
    simulator.inject("fail-call", 0, "nvmlDeviceGetHandleByIndex_v2:15")
    assert code(binding.nvmlDeviceGetHandleByIndex, 0) == 15
    for symbol in (*GROUPS["identity"], *GROUPS["memory"], *GROUPS["usage"], *GROUPS["health"]):
        simulator.inject("fail-call", 0, f"{symbol}:15")
        assert getattr(binding.nvmlLib, symbol)(handles[0], None, None, None, None) == 15, symbol


def test_a_recovery_action_shows_as_a_field_value(dgx, elsewhere):
    simulator, binding, handles = dgx
    elsewhere(simulator, "recovery-action", 0, 2)

    values = binding.nvmlDeviceGetFieldValues(handles[0], [230, 91, 307])

    assert [(value.nvmlReturn, value.value.uiVal) for value in values] == [(0, 2), (0, 6), (3, 0)]


def test_usage_and_processes_are_what_was_injected(dgx, elsewhere, code):
    simulator, binding, handles = dgx
    assert binding.nvmlDeviceGetComputeRunningProcesses(handles[0]) == []
    assert code(binding.nvmlDeviceGetProcessUtilization, handles[0], 0) == 6
    idle = binding.nvmlDeviceGetPowerUsage(handles[0])

    elsewhere(simulator, "utilization", 0, "80:30")
    elsewhere(simulator, "process", 0, "4242:2048")
    elsewhere(simulator, "process", 0, "4243:1024")

    rates = binding.nvmlDeviceGetUtilizationRates(handles[0])
    processes = binding.nvmlDeviceGetComputeRunningProcesses(handles[0])
    assert (rates.gpu, rates.memory) == (80, 30)
    assert [(process.pid, process.usedGpuMemory >> 20) for process in processes] == [(4242, 2048), (4243, 1024)]
    assert binding.nvmlDeviceGetMemoryInfo(handles[0], version=binding.nvmlMemory_v2).used == 3072 << 20
    assert [sample.pid for sample in binding.nvmlDeviceGetProcessUtilization(handles[0], 0)] == [4242, 4243]
    assert idle < binding.nvmlDeviceGetPowerUsage(handles[0]) <= binding.nvmlDeviceGetEnforcedPowerLimit(handles[0])
    elsewhere(simulator, "process", 0, "4242:0")
    assert [process.pid for process in binding.nvmlDeviceGetComputeRunningProcesses(handles[0])] == [4243]


def test_energy_only_grows_whatever_a_device_draws(dgx, elsewhere):
    simulator, binding, handles = dgx

    def drawn():
        return binding.nvmlDeviceGetTotalEnergyConsumption(handles[0])

    before = drawn()
    elsewhere(simulator, "energy", 0, 5000)
    assert before + 5_000_000 <= drawn() < before + 6_000_000
    for percent in (100, 0, 50):
        before = drawn()
        elsewhere(simulator, "utilization", 0, percent)
        assert before <= drawn() < before + 1_000_000


@pytest.mark.parametrize(
    ("fault", "device", "value", "says"),
    [
        ("explode", None, 0, "lost, back, xid, ecc"),
        ("lost", 8, 0, "0 to 7"),
        ("lost", 0, "loudly", "quiet"),
        ("xid", 0, "many", "not a number"),
        ("recovery-action", 0, 5, "between 0 and 4"),
        ("fail-call", 0, "nvmlNonsense:15", "not a symbol"),
        ("fail-call", 0, "nvmlDeviceGetName", "a return code"),
        ("not-supported", 0, "everything", "groups"),
        ("process", 0, "12", "pid:MiB"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_what_would(fault, device, value, says, simulated):
    with pytest.raises(ValueError, match=says):
        simulated("dgx-1v").inject(fault, device, value)


def test_a_full_table_of_failing_calls_is_refused(simulated):
    simulator = simulated("dgx-2")

    for symbol in sorted(SYMBOLS)[:16]:
        for index in range(16):
            simulator.inject("fail-call", index, f"{symbol}:15")

    with pytest.raises(ValueError, match="256"):
        simulator.inject("fail-call", None, "nvmlInit:15")


def test_a_refused_fault_leaves_the_state_unlocked(dgx, elsewhere):
    simulator, binding, _ = dgx

    with pytest.raises(ValueError, match="not a number") as caught:
        simulator.inject("xid", 0, "many")

    elsewhere(simulator, "xid", 0, 79)
    assert binding.nvmlDeviceGetCount() == 8
    assert caught.tb is not None, "the traceback still holds the map"


def test_a_kept_map_does_not_keep_the_lock(dgx):
    simulator, binding, _ = dgx
    with opened(simulator.directory / "state") as kept:
        pass

    assert binding.nvmlDeviceGetCount() == 8
    assert len(kept.devices) == 8


def test_attaching_to_a_folder_without_a_simulation_is_refused(tmp_path):
    with pytest.raises(StateError, match="name the folder of a running simulation"):
        NvmlSimulator.attach(tmp_path)


def _command(*arguments):
    command = [sys.executable, "-m", "vendors.nvidia.simulation", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_line_causes_faults(dgx, code):
    simulator, binding, handles = dgx

    done = _command(simulator.directory, "lost", "--device", "2")

    assert done.returncode == 0, done.stderr
    assert code(binding.nvmlDeviceGetUUID, handles[2]) == 15


def test_the_command_line_says_what_is_wrong(simulated):
    done = _command(simulated("t4-4-pcie").directory, "explode")

    assert done.returncode == 1
    assert "no fault is named 'explode'" in done.stderr


def test_the_command_line_explains_every_fault():
    done = _command("--help")

    assert all(name in done.stdout for name in FAULTS)
