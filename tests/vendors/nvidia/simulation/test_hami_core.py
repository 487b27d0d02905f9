"""What HAMi-core asks of NVML, of the built library itself: each of its functions, in the forms that it knows.

It looks its functions up by name and calls what it found, so one that is missing is a call of address 0.
"""

import ctypes
import time

import pynvml
import pytest

UUID, SIZE = ctypes.create_string_buffer(96), ctypes.c_uint(96)
MIB = 1 << 20


class ProcessV1(ctypes.Structure):
    """The unversioned call's: it ends before the instances."""

    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]


class ProcessV2(ctypes.Structure):
    """The second version's, which the third has too."""

    _fields_ = [*ProcessV1._fields_, ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


FORMS = pytest.mark.parametrize(("version", "form"), [("", ProcessV1), ("_v2", ProcessV2), ("_v3", ProcessV2)])
KINDS = pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])


@pytest.fixture
def core(simulated):
    """The library as HAMi-core has it: initialised, with the first card. Nothing of the binding is between."""
    simulator = simulated("dgx-h100")
    library = ctypes.CDLL(simulator.settings()["nvmlLibrary"])
    device = ctypes.c_void_p()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    yield simulator, library, device
    library.nvmlShutdown()


def calls(library, device):
    """Every function that HAMi-core calls by itself, or hands on with changes, and how."""
    here, found, number = ctypes.byref, ctypes.c_void_p(), ctypes.c_uint()
    memory, pci, memory2 = pynvml.c_nvmlMemory_t(), pynvml.nvmlPciInfo_t(), pynvml.c_nvmlMemory_v2_t()
    memory2.version = pynvml.nvmlMemory_v2
    samples = (pynvml.c_nvmlProcessUtilizationSample_t * 8)()
    several = pynvml.c_nvmlProcessesUtilizationInfo_v1_t(version=pynvml.ProcessesUtilizationInfo_v1)
    library.nvmlDeviceGetUUID(device, UUID, SIZE)
    pci_of = pynvml.nvmlPciInfo_t()
    library.nvmlDeviceGetPciInfo_v3(device, here(pci_of))
    bus = pci_of.busId.encode()
    return {
        "nvmlInit": (),
        "nvmlInit_v2": (),
        "nvmlInitWithFlags": (0,),
        "nvmlDeviceGetCount": (here(number),),
        "nvmlDeviceGetCount_v2": (here(number),),
        "nvmlDeviceGetHandleByIndex": (0, here(found)),
        "nvmlDeviceGetHandleByIndex_v2": (0, here(found)),
        "nvmlDeviceGetHandleByUUID": (UUID, here(found)),
        "nvmlDeviceGetHandleByPciBusId": (bus, here(found)),
        "nvmlDeviceGetHandleByPciBusId_v2": (bus, here(found)),
        "nvmlDeviceGetHandleBySerial": (b"none", here(found)),
        "nvmlDeviceGetUUID": (device, UUID, SIZE),
        "nvmlDeviceGetIndex": (device, here(number)),
        "nvmlDeviceGetMemoryInfo": (device, here(memory)),
        "nvmlDeviceGetMemoryInfo_v2": (device, here(memory2)),
        "nvmlDeviceGetPciInfo": (device, here(pci)),
        "nvmlDeviceGetPciInfo_v2": (device, here(pci)),
        "nvmlDeviceGetPciInfo_v3": (device, here(pci)),
        "nvmlDeviceGetNvLinkRemotePciInfo": (device, 0, here(pci)),
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": (device, 0, here(pci)),
        **{
            f"nvmlDeviceGet{kind}RunningProcesses{version}": (device, here(ctypes.c_uint(8)), (form * 8)())
            for kind in ("Compute", "Graphics")
            for version, form in (("", ProcessV1), ("_v2", ProcessV2), ("_v3", ProcessV2))
        },
        "nvmlDeviceGetProcessUtilization": (device, samples, here(ctypes.c_uint(8)), ctypes.c_ulonglong(0)),
        "nvmlDeviceGetProcessesUtilizationInfo": (device, here(several)),
        "nvmlErrorString": (0,),
        "nvmlShutdown": (),
    }


NOTHING_RUNS = {"nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"}
NO_SUCH_CARD = {"nvmlDeviceGetHandleBySerial"}


def test_every_function_that_hami_core_needs_is_there_and_answers(core):
    _, library, device = core
    answers = {}
    for name, arguments in calls(library, device).items():
        function = getattr(library, name)
        function.restype = ctypes.c_char_p if name == "nvmlErrorString" else ctypes.c_int
        answers[name] = function(*arguments)

    assert answers.pop("nvmlErrorString") == b"Success"
    assert {name for name, code in answers.items() if code == 6} == NOTHING_RUNS | NO_SUCH_CARD
    assert {name: code for name, code in answers.items() if code not in (0, 6)} == {}


@FORMS
def test_processes_come_in_the_form_of_the_version_that_is_asked_for(core, elsewhere, version, form):
    simulator, library, device = core
    for pid, used in ((4242, 425), (4243, 1024)):
        elsewhere(simulator, "process", 0, f"{pid}:{used}")
    room = (form * 4)()
    room[2].pid, room[2].used = 7, 7  # behind what there is nothing may be written
    count = ctypes.c_uint(4)

    assert getattr(library, f"nvmlDeviceGetComputeRunningProcesses{version}")(device, ctypes.byref(count), room) == 0

    assert [(one.pid, one.used) for one in room[: count.value]] == [(4242, 425 * MIB), (4243, 1024 * MIB)]
    assert (room[2].pid, room[2].used) == (7, 7)


@KINDS
@FORMS
def test_too_little_room_is_told_with_the_number_and_nothing_behind_it_is_written(core, elsewhere, kind, version, form):
    simulator, library, device = core
    if kind == "Compute":
        for pid in (1, 2, 3):
            elsewhere(simulator, "process", 0, f"{pid}:1")
    room = (form * 2)()
    count = ctypes.c_uint(1)

    code = getattr(library, f"nvmlDeviceGet{kind}RunningProcesses{version}")(device, ctypes.byref(count), room)

    assert (code, count.value) == ((7, 3) if kind == "Compute" else (0, 0))
    assert (room[1].pid, room[1].used) == (0, 0)


def test_samples_have_the_time_of_day_in_microseconds_and_are_told_once(core, elsewhere):
    """HAMi-core asks for those of the last second, by the clock on the wall."""
    simulator, library, device = core
    elsewhere(simulator, "utilization", 0, 17)
    elsewhere(simulator, "process", 0, "4242:425")
    samples, count = (pynvml.c_nvmlProcessUtilizationSample_t * 8)(), ctypes.c_uint(8)
    before = time.time_ns() // 1000

    code = library.nvmlDeviceGetProcessUtilization(
        device, samples, ctypes.byref(count), ctypes.c_ulonglong(before - 1_000_000)
    )

    assert (code, count.value, samples[0].pid, samples[0].smUtil) == (0, 1, 4242, 17)
    assert before <= samples[0].timeStamp <= time.time_ns() // 1000
    later = ctypes.c_ulonglong(time.time_ns() // 1000 + 60_000_000)
    assert library.nvmlDeviceGetProcessUtilization(device, samples, ctypes.byref(count), later) == 6


def test_the_newer_call_for_samples_tells_their_number_first_and_then_the_same(core, elsewhere):
    simulator, library, device = core
    elsewhere(simulator, "utilization", 0, 17)
    elsewhere(simulator, "process", 0, "4242:425")
    asked = pynvml.c_nvmlProcessesUtilizationInfo_v1_t(version=pynvml.ProcessesUtilizationInfo_v1)

    assert library.nvmlDeviceGetProcessesUtilizationInfo(device, ctypes.byref(asked)) == 7
    room = (pynvml.c_nvmlProcessUtilizationInfo_v1_t * asked.processSamplesCount)()
    asked.procUtilArray = room
    assert library.nvmlDeviceGetProcessesUtilizationInfo(device, ctypes.byref(asked)) == 0

    assert [(one.pid, one.smUtil) for one in room] == [(4242, 17)]
    assert abs(room[0].timeStamp - time.time_ns() // 1000) < 60_000_000
    asked.version = 1
    assert library.nvmlDeviceGetProcessesUtilizationInfo(device, ctypes.byref(asked)) == 25
