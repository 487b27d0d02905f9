"""The life of MIG instances as drivers have it: who may do what, what holds an instance, what outlives what, files."""

import ctypes
import signal
import subprocess
import sys
import threading

import pytest

CONFIG_CALLS = [
    ("nvmlDeviceSetMigMode", 1),
    ("nvmlDeviceCreateGpuInstance", 19),
    ("nvmlDeviceGetGpuInstanceRemainingCapacity", 19),
    ("nvmlDeviceGetGpuInstanceById", 13),
]


@pytest.fixture
def start(nvml):
    """A machine whose first GPU is in MIG mode: the simulator, the binding and the GPU's handle."""

    def begin(profile="dgx-a100-40gb"):
        simulator, binding = nvml(profile)
        handle = binding.nvmlDeviceGetHandleByIndex(0)
        assert binding.nvmlDeviceSetMigMode(handle, 1) == 0
        return simulator, binding, handle

    return begin


def make(binding, handle, profile=19, start=6, compute=0):
    placement = binding.c_nvmlGpuInstancePlacement_t()
    size = {19: 1, 14: 2, 9: 4}[profile]
    placement.start, placement.size = start, size
    gi = binding.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, ctypes.byref(placement))
    return gi, binding.nvmlGpuInstanceCreateComputeInstance(gi, compute)


def listed(binding, handle, profile=19):
    count, array = ctypes.c_uint(0), (binding.c_nvmlGpuInstance_t * 7)()
    binding.nvmlDeviceGetGpuInstances(handle, profile, array, ctypes.byref(count))
    return count.value


def existing(simulator):
    """Capabilities of instances below ``/proc``, and the nodes."""
    folder = simulator.directory / "proc/driver/nvidia/capabilities"
    files = {str(path.relative_to(folder)) for path in folder.rglob("access")}
    return files, {path.name for path in (simulator.directory / "dev/nvidia-caps").glob("*")}


@pytest.mark.parametrize(
    ("profile", "place", "number"), [(19, 0, 7), (19, 6, 13), (14, 0, 3), (14, 4, 5), (9, 0, 1), (9, 4, 2)]
)
def test_an_instances_number_is_its_place_in_the_tree_and_is_given_again(start, profile, place, number):
    _, binding, handle = start()
    for _ in range(2):
        gi, ci = make(binding, handle, profile, place, compute={19: 0, 14: 1, 9: 2}[profile])
        assert binding.nvmlGpuInstanceGetInfo(gi).id == number
        binding.nvmlComputeInstanceDestroy(ci)
        binding.nvmlGpuInstanceDestroy(gi)


def test_a_compute_instances_description_leads_to_the_mig_device(start):
    simulator, binding, handle = start()
    _, ci = make(binding, handle)
    device = binding.nvmlComputeInstanceGetInfo(ci).device

    assert binding.nvmlDeviceGetUUID(device).startswith("MIG-")
    simulator.inject("parent-in-info", value=1)
    assert binding.nvmlDeviceGetUUID(binding.nvmlComputeInstanceGetInfo(ci).device).startswith("GPU-")


def test_an_open_handle_that_no_process_list_shows_holds_an_instance(start, code):
    simulator, binding, handle = start()
    gi, ci = make(binding, handle)
    simulator.inject("held", 0, "13:0:1")

    assert code(binding.nvmlComputeInstanceDestroy, ci) == 19
    assert binding.nvmlDeviceGetComputeRunningProcesses(handle) == []
    simulator.inject("held", 0, "13:0:0")
    simulator.inject("held", 0, "13:1")
    assert code(binding.nvmlComputeInstanceDestroy, ci) == 0
    assert code(binding.nvmlGpuInstanceDestroy, gi) == 19
    simulator.inject("held", 0, "13:0")
    assert code(binding.nvmlGpuInstanceDestroy, gi) == 0


def test_a_process_holds_the_gpu_instance_that_it_runs_in(start, code):
    simulator, binding, handle = start()
    gi, ci = make(binding, handle)
    binding.nvmlComputeInstanceDestroy(ci)
    simulator.inject("process", 0, "4242:10:13:0")

    assert code(binding.nvmlGpuInstanceDestroy, gi) == 19


def test_who_may_only_monitor_reads_and_changes_nothing(start, code):
    simulator, binding, handle = start()
    gi, ci = make(binding, handle)
    simulator.inject("rights", value="monitor")

    assert [code(getattr(binding, name), handle, value) for name, value in CONFIG_CALLS] == [4, 4, 4, 4]
    assert code(listed, binding, handle) == 4
    assert code(binding.nvmlComputeInstanceDestroy, ci) == 4
    assert code(binding.nvmlGpuInstanceDestroy, gi) == 4
    device = binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    assert binding.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0).id == 19
    assert code(binding.nvmlDeviceGetMemoryInfo, device) == 0
    simulator.inject("rights", value="none")
    assert code(binding.nvmlDeviceGetMemoryInfo, device) == 4
    simulator.inject("rights", value="all")
    assert code(binding.nvmlComputeInstanceDestroy, ci) == 0


def test_capabilities_come_and_go_with_instances(start):
    simulator, binding, handle = start()
    assert existing(simulator) == (set(), set())
    gi, ci = make(binding, handle)

    assert existing(simulator) == (
        {"gpu0/mig/gi13/access", "gpu0/mig/gi13/ci0/access"},
        {"nvidia-cap120", "nvidia-cap121"},
    )
    text = (simulator.directory / "proc/driver/nvidia/capabilities/gpu0/mig/gi13/ci0/access").read_text()
    assert text == "DeviceFileMinor: 121\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    simulator.inject("temperature", 0, 50)
    assert existing(simulator)[1] == {"nvidia-cap120", "nvidia-cap121"}
    binding.nvmlComputeInstanceDestroy(ci)
    assert existing(simulator) == ({"gpu0/mig/gi13/access"}, {"nvidia-cap120"})
    binding.nvmlGpuInstanceDestroy(gi)
    assert existing(simulator) == (set(), set())


def test_nodes_that_nobody_makes_are_missing_until_somebody_does(start):
    simulator, binding, handle = start()
    simulator.inject("no-nodes", value=1)
    make(binding, handle)

    assert len(existing(simulator)[0]) == 2
    assert existing(simulator)[1] == set()
    simulator.inject("no-nodes", value=0)
    assert existing(simulator)[1] == {"nvidia-cap120", "nvidia-cap121"}


def test_a_reset_leaves_no_instance_and_lets_a_pending_mode_take_effect(start):
    simulator, binding, handle = start()
    make(binding, handle)
    simulator.inject("process", 0, "4242:10:13:0")
    simulator.inject("reset", 0)

    assert binding.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert listed(binding, handle) == 0
    assert existing(simulator) == (set(), set())
    simulator.inject("passed-through", 0, 1)
    assert binding.nvmlDeviceSetMigMode(handle, 0) == 16
    assert binding.nvmlDeviceGetMigMode(handle) == [1, 0]
    simulator.inject("reset", 0)
    assert binding.nvmlDeviceGetMigMode(handle) == [0, 0]


@pytest.mark.parametrize("faults", [["reboot"], ["driver-gone", "driver-back"]])
@pytest.mark.parametrize(("profile", "mode"), [("dgx-a100-40gb", [1, 1]), ("dgx-h100", [0, 0]), ("hgx-b200", [0, 0])])
def test_after_a_reboot_no_instance_is_left_and_the_mode_only_on_ampere(start, profile, mode, faults):
    simulator, binding, handle = start(profile)
    make(binding, handle)
    for fault in faults:
        simulator.inject(fault)
    with pytest.raises(binding.NVMLError_DriverNotLoaded):
        binding.nvmlDeviceGetMigMode(handle)
    binding.nvmlShutdown()
    binding.nvmlInit()

    handle = binding.nvmlDeviceGetHandleByIndex(0)
    assert binding.nvmlDeviceGetMigMode(handle) == mode
    binding.nvmlDeviceSetMigMode(handle, 1)
    assert listed(binding, handle) == 0


def test_an_event_names_its_instances_or_the_whole_card(start):
    simulator, binding, handle = start()
    events = binding.nvmlEventSetCreate()
    binding.nvmlDeviceRegisterEvents(handle, 8, events)
    seen = []
    for value in ("94:7:0", "94:7", "79"):
        simulator.inject("xid", 0, value)
        event = binding.nvmlEventSetWait_v2(events, 1000)
        seen.append((event.eventData, event.gpuInstanceId, event.computeInstanceId))

    assert seen == [(94, 7, 0), (94, 7, 0xFFFFFFFF), (79, 0xFFFFFFFF, 0xFFFFFFFF)]


def test_one_call_is_slow_and_others_pass_it(start):
    simulator, binding, handle = start()
    simulator.inject("latency", 0, "nvmlDeviceGetGpuInstanceRemainingCapacity:1500")
    ended, asking = [], threading.Event()

    def ask():
        asking.set()
        ended.append(binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19))

    slow = threading.Thread(target=ask)
    slow.start()
    assert asking.wait(10)
    make(binding, handle)
    ended.append("made")
    slow.join(30)

    assert ended == ["made", 6]


@pytest.mark.parametrize(
    ("value", "codes"), [("2:15", [0, 0, 15, 0, 0]), ("1:9:2", [0, 9, 9, 0, 0]), ("3:4:0", [0, 0, 0, 4, 4])]
)
def test_a_call_to_come_fails_whichever_it_is(start, code, value, codes):
    simulator, binding, handle = start()
    simulator.inject("fail-later", value=value)

    assert [code(binding.nvmlDeviceGetMinorNumber, handle) for _ in codes] == codes


_CREATE = """
import ctypes, sys
import pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
instance = pynvml.nvmlDeviceCreateGpuInstance(handle, 19)
print("alive", flush=True)
pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
"""


def test_a_process_that_dies_after_a_call_leaves_what_the_call_made(start):
    simulator, binding, handle = start()
    simulator.inject("die", value="nvmlDeviceCreateGpuInstance")
    command = [sys.executable, "-c", _CREATE, simulator.settings()["nvmlLibrary"]]

    ended = [subprocess.run(command, capture_output=True, text=True, timeout=30, check=False) for _ in range(2)]

    assert [(one.returncode, one.stdout) for one in ended] == [(-signal.SIGKILL, ""), (0, "alive\n")]
    assert listed(binding, handle) == 2
    assert len(existing(simulator)[0]) == 3


def test_an_administrator_switches_the_mode_and_another_tool_makes_instances(nvml):
    simulator, binding = nvml("dgx-a100-40gb")
    handle = binding.nvmlDeviceGetHandleByIndex(0)
    simulator.inject("mig", 0, 1)
    simulator.inject("instance", 0, "1g.5gb:3")
    simulator.inject("instance", 0, "1g.5gb:4")

    assert binding.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert listed(binding, handle) == 2
    names = {binding.nvmlDeviceGetUUID(binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, n)) for n in (0, 1)}
    assert len(names) == 2
    assert existing(simulator)[0] >= {"gpu0/mig/gi10/access", "gpu0/mig/gi11/ci0/access"}
