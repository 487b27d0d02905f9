"""MIG through the real binding: the tables, the rules of placement, and devices that come and go."""

import ctypes
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from vendors.nvidia.simulation import simulate

MODELS = [
    ("dgx-a100-40gb", "a100-40gb"),
    ("dgx-a100-80gb", "a100-80gb"),
    ("dgx-h100", "h100-80gb"),
    ("dgx-h200", "h200-141gb"),
    ("hgx-b200", "b200-180gb"),
    ("t4-4-pcie", "a30-24gb"),
    ("dgx-h100", "h100-94gb"),
    ("t4-4-pcie", "rtx-pro-6000-96gb"),
]


@pytest.fixture
def with_table(machine, load, tmp_path):
    """The binding and a GPU's handle, on a machine whose GPUs all follow a MIG table."""

    def start(name, table_name):
        whole = machine(name)
        devices = tuple(replace(d, extra={**d.extra, "mig_table": table_name}) for d in whole.devices)
        binding = load(simulate(replace(whole, devices=devices), tmp_path / "machine"))
        binding.nvmlInit()
        return binding, binding.nvmlDeviceGetHandleByIndex(0)

    return start


@pytest.fixture
def a100(nvml):
    """The binding, a handle of a GPU in MIG mode, and the simulator."""
    simulator, binding = nvml("dgx-a100-40gb")
    handle = binding.nvmlDeviceGetHandleByIndex(0)
    assert binding.nvmlDeviceSetMigMode(handle, 1) == 0
    return binding, handle, simulator


def _placements(binding, handle, profile):
    count = ctypes.c_uint(0)
    binding.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, ctypes.byref(count))
    array = (binding.c_nvmlGpuInstancePlacement_t * count.value)()
    binding.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, array, ctypes.byref(count))
    return [(item.start, item.size) for item in array]


def _place(binding, start, size):
    placement = binding.c_nvmlGpuInstancePlacement_t()
    placement.start, placement.size = start, size
    return ctypes.byref(placement)


def _mig_device(binding, handle, profile, compute=0):
    """A GPU instance with one compute instance, and the new MIG device's UUID."""
    before = {uuid for _, uuid in _mig_devices(binding, handle)}
    instance = binding.nvmlDeviceCreateGpuInstance(handle, profile)
    inner = binding.nvmlGpuInstanceCreateComputeInstance(instance, compute)
    (new,) = {uuid for _, uuid in _mig_devices(binding, handle)} - before
    return instance, inner, new


def _mig_devices(binding, handle):
    found = []
    for slot in range(binding.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except binding.NVMLError_NotFound:
            continue
        found.append((slot, binding.nvmlDeviceGetUUID(device)))
    return found


@pytest.mark.parametrize(("name", "table_name"), MODELS)
def test_profiles_and_placements_are_the_tables(name, table_name, with_table, table, code):
    rows = {row["number"]: row for row in table(table_name)["profiles"]}
    binding, handle = with_table(name, table_name)

    for number in range(binding.NVML_GPU_INSTANCE_PROFILE_COUNT):
        row = rows.get(number)
        if row is None:
            assert code(binding.nvmlDeviceGetGpuInstanceProfileInfo, handle, number) == 3
            continue
        for version in (1, 2):
            info = binding.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)
            assert (info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.memorySizeMB) == (
                *(row["id"], row["compute_slices"], row["max_instances"]),
                *(row["multiprocessors"], row["memory_mib"]),
            )
            assert (info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount) == (
                *(row["copy_engines"], row["decoders"], row["encoders"], row["jpegs"], row["ofas"]),
            )
        assert info.name == f"MIG {row['name']}"
        assert _placements(binding, handle, row["id"]) == [(start, row["size"]) for start in row["starts"]]
    assert code(binding.nvmlDeviceGetGpuInstanceProfileInfo, handle, 0x12) == 2
    assert binding.nvmlDeviceGetMaxMigDeviceCount(handle) == table(table_name)["compute_slices"]


@pytest.mark.parametrize(("name", "table_name"), MODELS)
def test_an_empty_gpu_takes_as_many_of_a_profile_as_the_table_says(name, table_name, with_table, table, code):
    binding, handle = with_table(name, table_name)
    binding.nvmlDeviceSetMigMode(handle, 1)
    for row in table(table_name)["profiles"]:
        profile, instances = row["id"], []
        for expected in range(row["max_instances"], 0, -1):
            assert binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile) == expected
            instances.append(binding.nvmlDeviceCreateGpuInstance(handle, profile))
        assert binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile) == 0
        assert code(binding.nvmlDeviceCreateGpuInstance, handle, profile) == 23
        for instance in instances:
            binding.nvmlGpuInstanceDestroy(instance)


@pytest.mark.parametrize(("name", "table_name"), MODELS[:-3])
def test_a_profile_names_the_table_of_its_model(name, table_name, machine, table):
    for device in machine(name).devices:
        assert device.extra["mig_table"] == table_name
        assert device.model in table(table_name)["models"]


def test_a_gpu_without_mig_does_not_support_it(nvml, code):
    _, binding = nvml("t4-4-pcie")
    handle = binding.nvmlDeviceGetHandleByIndex(0)

    assert code(binding.nvmlDeviceGetMigMode, handle) == 3
    assert code(binding.nvmlDeviceGetGpuInstanceProfileInfo, handle, 0) == 3
    assert binding.nvmlDeviceGetMaxMigDeviceCount(handle) == 0


def test_with_the_mode_off_there_are_no_mig_devices(nvml, code):
    _, binding = nvml("dgx-a100-40gb")
    handle = binding.nvmlDeviceGetHandleByIndex(0)

    assert binding.nvmlDeviceGetMigMode(handle) == [0, 0]
    assert code(binding.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0) == 2
    assert code(binding.nvmlDeviceCreateGpuInstance, handle, 19) == 3


def test_processes_leave_a_new_mode_pending_until_a_reset(nvml):
    simulator, binding = nvml("dgx-a100-40gb")
    handle = binding.nvmlDeviceGetHandleByIndex(0)
    simulator.inject("process", 0, "4242:100")

    assert binding.nvmlDeviceSetMigMode(handle, 1) == 19
    assert binding.nvmlDeviceGetMigMode(handle) == [0, 1]
    simulator.inject("back", 0)
    assert binding.nvmlDeviceGetMigMode(handle) == [1, 1]


def test_instances_forbid_turning_the_mode_off(a100):
    binding, handle, _ = a100
    instance = binding.nvmlDeviceCreateGpuInstance(handle, 19)

    assert binding.nvmlDeviceSetMigMode(handle, 0) == 19
    assert binding.nvmlDeviceGetMigMode(handle) == [1, 1]
    binding.nvmlGpuInstanceDestroy(instance)
    assert binding.nvmlDeviceSetMigMode(handle, 0) == 0
    assert binding.nvmlDeviceGetMigMode(handle) == [0, 0]


def test_a_gpu_instance_alone_is_no_mig_device(a100):
    binding, handle, _ = a100
    instance = binding.nvmlDeviceCreateGpuInstance(handle, 9)
    assert _mig_devices(binding, handle) == []

    binding.nvmlGpuInstanceCreateComputeInstance(instance, 2)

    ((slot, uuid),) = _mig_devices(binding, handle)
    device = binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
    attributes = binding.nvmlDeviceGetAttributes_v2(device)
    assert slot == 0
    assert uuid.startswith("MIG-")
    assert binding.nvmlDeviceIsMigDeviceHandle(device).value == 1
    assert binding.nvmlDeviceIsMigDeviceHandle(handle).value == 0
    assert binding.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert binding.nvmlDeviceGetMemoryInfo(device).total == 19968 << 20
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (42, 19968)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    assert binding.nvmlDeviceGetUUID(binding.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)).startswith("GPU-")
    assert binding.nvmlDeviceGetUUID(binding.nvmlDeviceGetHandleByUUID(uuid.encode())) == uuid


def test_an_overlapping_placement_is_refused(a100, code):
    binding, handle, _ = a100
    instance = binding.nvmlDeviceCreateGpuInstanceWithPlacement(handle, 9, _place(binding, 4, 4))
    info = binding.nvmlGpuInstanceGetInfo(instance)

    assert (info.profileId, info.placement.start, info.placement.size, info.id) == (9, 4, 4, 2)
    create = binding.nvmlDeviceCreateGpuInstanceWithPlacement
    assert code(create, handle, 19, _place(binding, 5, 1)) == 23
    assert code(create, handle, 9, _place(binding, 2, 4)) == 2
    assert code(create, handle, 9, _place(binding, 0, 2)) == 2
    assert code(create, handle, 9, _place(binding, 0, 4)) == 0


def test_fragments_are_no_room_for_a_larger_instance(a100, code):
    binding, handle, _ = a100
    for start in (0, 4):
        binding.nvmlDeviceCreateGpuInstanceWithPlacement(handle, 19, _place(binding, start, 1))

    assert binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 9) == 0
    assert binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 14) == 1
    assert code(binding.nvmlDeviceCreateGpuInstance, handle, 9) == 23


def test_compute_slices_run_out_before_memory_does(a100, code):
    binding, handle, _ = a100
    binding.nvmlDeviceCreateGpuInstanceWithPlacement(handle, 5, _place(binding, 0, 4))
    binding.nvmlDeviceCreateGpuInstanceWithPlacement(handle, 9, _place(binding, 4, 4))

    assert binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19) == 0
    assert code(binding.nvmlDeviceCreateGpuInstance, handle, 19) == 23


def test_only_one_instance_has_the_media_engines(a100, code):
    binding, handle, _ = a100
    binding.nvmlDeviceCreateGpuInstance(handle, 20)

    assert binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 20) == 0
    assert code(binding.nvmlDeviceCreateGpuInstance, handle, 20) == 23
    assert binding.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19) == 6


def test_the_enumeration_is_not_the_id(a100, code):
    binding, handle, _ = a100

    assert binding.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0).id == 19
    assert code(binding.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, 1) == 2
    assert code(binding.nvmlDeviceCreateGpuInstance, handle, 4) == 2


def test_an_instance_in_use_cannot_be_destroyed(a100, code):
    binding, handle, simulator = a100
    instance, inner, _ = _mig_device(binding, handle, 19)
    ids = binding.nvmlGpuInstanceGetInfo(instance).id, binding.nvmlComputeInstanceGetInfo(inner).id

    assert code(binding.nvmlGpuInstanceDestroy, instance) == 19
    simulator.inject("process", 0, "4242:100:{}:{}".format(*ids))
    assert code(binding.nvmlComputeInstanceDestroy, inner) == 19
    simulator.inject("process", 0, "4242:0")
    assert code(binding.nvmlComputeInstanceDestroy, inner) == 0
    assert code(binding.nvmlGpuInstanceDestroy, instance) == 0


def test_a_device_made_again_has_another_uuid_and_the_old_handle_is_that_of_the_new_one(a100, code):
    binding, handle, _ = a100
    instance, inner, first = _mig_device(binding, handle, 19)
    stale = binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    binding.nvmlComputeInstanceDestroy(inner)
    binding.nvmlGpuInstanceDestroy(instance)

    assert code(binding.nvmlDeviceGetUUID, stale) == 2
    _, _, second = _mig_device(binding, handle, 19)

    assert first != second
    assert binding.nvmlDeviceGetUUID(stale) == second
    assert code(binding.nvmlGpuInstanceGetInfo, instance) == 2
    assert code(binding.nvmlDeviceGetHandleByUUID, first.encode()) == 6


def test_slots_keep_their_number_when_others_go(a100):
    binding, handle, _ = a100
    made = [_mig_device(binding, handle, 19) for _ in range(3)]
    instance, inner, _ = made[1]
    binding.nvmlComputeInstanceDestroy(inner)
    binding.nvmlGpuInstanceDestroy(instance)

    assert [slot for slot, _ in _mig_devices(binding, handle)] == [0, 2]


def test_a_gpu_instance_is_split_into_compute_instances(a100, code):
    binding, handle, _ = a100
    instance = binding.nvmlDeviceCreateGpuInstance(handle, 0)
    quarter = binding.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 1, 0)

    assert (quarter.sliceCount, quarter.multiprocessorCount, quarter.name) == (2, 28, "MIG 2c.7g.40gb")
    for left in (3, 2, 1):
        assert binding.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 1) == left
        binding.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    assert code(binding.nvmlGpuInstanceCreateComputeInstance, instance, 1) == 23
    assert binding.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 1
    count = ctypes.c_uint(0)
    array = (binding.c_nvmlComputeInstance_t * 7)()
    binding.nvmlGpuInstanceGetComputeInstances(instance, 1, array, ctypes.byref(count))
    assert [binding.nvmlComputeInstanceGetInfo(item).placement.start for item in array[: count.value]] == [0, 2, 4]
    assert len(_mig_devices(binding, handle)) == 3


def test_instances_are_listed_by_profile_and_found_by_id(a100, code):
    binding, handle, _ = a100
    binding.nvmlDeviceCreateGpuInstance(handle, 19)
    binding.nvmlDeviceCreateGpuInstance(handle, 14)
    count = ctypes.c_uint(0)
    array = (binding.c_nvmlGpuInstance_t * 7)()

    binding.nvmlDeviceGetGpuInstances(handle, 19, array, ctypes.byref(count))

    info = binding.nvmlGpuInstanceGetInfo(array[0])
    again = binding.nvmlGpuInstanceGetInfo(binding.nvmlDeviceGetGpuInstanceById(handle, info.id))
    assert count.value == 1
    assert (again.id, again.profileId) == (info.id, 19)
    assert code(binding.nvmlDeviceGetGpuInstanceById, handle, 14) == 6


def test_a_mig_gpu_has_no_rates_and_its_devices_no_events(a100, code):
    binding, handle, _ = a100
    _mig_device(binding, handle, 19)
    device = binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)

    assert code(binding.nvmlDeviceGetUtilizationRates, handle) == 3
    assert code(binding.nvmlDeviceGetUtilizationRates, device) == 3
    assert code(binding.nvmlDeviceRegisterEvents, device, 8, binding.nvmlEventSetCreate()) == 3


def test_instances_outlive_the_session_and_the_simulator(a100, machine, tmp_path):
    binding, handle, _ = a100
    _, _, uuid = _mig_device(binding, handle, 9, compute=2)
    binding.nvmlShutdown()

    simulate(machine("dgx-a100-40gb"), tmp_path / "machine")
    binding.nvmlInit()

    assert _mig_devices(binding, binding.nvmlDeviceGetHandleByIndex(0)) == [(0, uuid)]


def test_a_lost_gpu_takes_its_mig_devices_along(a100, code):
    binding, handle, simulator = a100
    _mig_device(binding, handle, 19)
    device = binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)

    simulator.inject("lost", 0)

    assert code(binding.nvmlDeviceGetUUID, device) == 15


_TAKE_ALL = """
import ctypes, json, sys
import pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
sys.stdin.readline()
starts = []
try:
    while True:
        instance = pynvml.nvmlDeviceCreateGpuInstance(handle, 19)
        starts.append(pynvml.nvmlGpuInstanceGetInfo(instance).placement.start)
except pynvml.NVMLError_InsufficientResources:
    print(json.dumps(starts))
"""


def test_processes_that_create_at_the_same_time_never_overlap(a100):
    _, _, simulator = a100
    command = [sys.executable, "-c", _TAKE_ALL, simulator.settings()["nvmlLibrary"]]
    takers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for taker in takers:
        assert taker.stdout.readline() == "ready\n"
    for taker in takers:
        taker.stdin.write("go\n")
        taker.stdin.flush()

    starts = [start for taker in takers for start in json.loads(taker.communicate(timeout=30)[0])]

    assert sorted(starts) == [0, 1, 2, 3, 4, 5, 6]
