"""Event sets: waits that really wait, wake early, and tell each event once."""

import resource
import threading

import pytest

XID = 8


def sleeps():
    """How often this thread has gone to sleep so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def untold(binding):
    """An event set that is told of no change: the process may open no file while the set is made."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        return binding.nvmlEventSetCreate()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))


def woken(binding, events, disturb):
    """The event that ends a wait of an hour. ``disturb`` is called once the wait is under way."""
    told = []
    wait = threading.Thread(target=lambda: told.append(binding.nvmlEventSetWait_v2(events, 3_600_000)), daemon=True)
    wait.start()
    wait.join(0.1)
    assert wait.is_alive(), "it did not wait"
    disturb()
    wait.join(60)
    return told[0]


@pytest.fixture
def watching(nvml):
    """A simulator, the binding, and an event set with every device of an eight-GPU machine registered for XIDs."""
    simulator, binding = nvml("dgx-1v")
    events = binding.nvmlEventSetCreate()
    for index in range(8):
        binding.nvmlDeviceRegisterEvents(binding.nvmlDeviceGetHandleByIndex(index), XID, events)
    return simulator, binding, events


def test_a_wait_without_events_sleeps_until_its_time_is_out(watching, code):
    """That it lasts as long as it was to last, ``make gpu-check`` compares on the simulation too."""
    _, binding, events = watching
    before = sleeps()

    assert code(binding.nvmlEventSetWait_v2, events, 600) == 10
    assert 0 < sleeps() - before < 10


def test_a_wait_that_nothing_wakes_looks_again_and_again(watching, code):
    simulator, binding, _ = watching
    events = untold(binding)
    binding.nvmlDeviceRegisterEvents(binding.nvmlDeviceGetHandleByIndex(5), XID, events)
    before = sleeps()

    assert code(binding.nvmlEventSetWait_v2, events, 2000) == 10
    assert sleeps() - before >= 10
    waiter = threading.Timer(0.1, simulator.inject, ("xid", 5, 79))
    waiter.start()
    assert binding.nvmlEventSetWait_v2(events, 20_000).eventData == 79
    waiter.join()


def test_an_xid_from_another_process_wakes_the_wait(watching, elsewhere):
    simulator, binding, events = watching
    elsewhere(simulator, "temperature", 0, 40)

    event = woken(binding, events, lambda: elsewhere(simulator, "xid", 5, 79))

    assert (event.eventType, event.eventData) == (XID, 79)
    assert event.gpuInstanceId == event.computeInstanceId == 0xFFFFFFFF
    assert binding.nvmlDeviceGetIndex(event.device) == 5


def test_each_event_is_told_once_and_in_order(watching, code):
    simulator, binding, events = watching
    for number in (13, 31, 79):
        simulator.inject("xid", 2, number)

    assert [binding.nvmlEventSetWait_v2(events, 0).eventData for _ in range(3)] == [13, 31, 79]
    assert code(binding.nvmlEventSetWait_v2, events, 0) == 10


def test_two_sets_both_hear_of_an_event(watching):
    simulator, binding, events = watching
    other = binding.nvmlEventSetCreate()
    binding.nvmlDeviceRegisterEvents(binding.nvmlDeviceGetHandleByIndex(0), XID, other)

    simulator.inject("xid", 0, 48)

    assert binding.nvmlEventSetWait_v2(events, 0).eventData == 48
    assert binding.nvmlEventSetWait_v2(other, 0).eventData == 48


def test_events_from_before_the_registration_stay_untold(nvml, code):
    simulator, binding = nvml("dgx-1v")
    simulator.inject("xid", 0, 79)
    events = binding.nvmlEventSetCreate()

    binding.nvmlDeviceRegisterEvents(binding.nvmlDeviceGetHandleByIndex(0), XID, events)

    assert code(binding.nvmlEventSetWait_v2, events, 0) == 10


def test_devices_that_are_not_registered_stay_silent(nvml, code):
    simulator, binding = nvml("dgx-1v")
    events = binding.nvmlEventSetCreate()
    binding.nvmlDeviceRegisterEvents(binding.nvmlDeviceGetHandleByIndex(0), XID, events)

    simulator.inject("xid", 1, 79)

    assert code(binding.nvmlEventSetWait_v2, events, 0) == 10


def test_a_registered_gpu_that_is_lost_fails_the_wait_once(watching, code):
    simulator, binding, events = watching
    simulator.inject("lost", 4)

    assert [code(binding.nvmlEventSetWait_v2, events, 0) for _ in range(3)] == [15, 10, 10]
    simulator.inject("back", 4)
    assert code(binding.nvmlEventSetWait_v2, events, 0) == 10
    simulator.inject("lost", 4)
    assert code(binding.nvmlEventSetWait_v2, events, 0) == 15


def test_a_quiet_loss_leaves_the_wait_alone(watching, code):
    simulator, binding, events = watching

    simulator.inject("lost", 4, "quiet")

    assert code(binding.nvmlEventSetWait_v2, events, 0) == 10
    assert code(binding.nvmlDeviceGetHandleByIndex, 4) == 15


def test_more_events_than_the_ring_holds_lose_the_oldest(watching):
    simulator, binding, events = watching
    for number in range(1, 71):
        simulator.inject("xid", 0, number)

    assert [binding.nvmlEventSetWait_v2(events, 0).eventData for _ in range(64)] == list(range(7, 71))


def test_types_that_a_device_lacks_are_not_supported(nvml, code):
    _, binding = nvml("rtx2080ti-10-pcie")
    handle = binding.nvmlDeviceGetHandleByIndex(0)
    events = binding.nvmlEventSetCreate()
    supported = binding.nvmlDeviceGetSupportedEventTypes(handle)

    assert supported & XID
    assert not supported & binding.nvmlEventTypeDoubleBitEccError
    assert code(binding.nvmlDeviceRegisterEvents, handle, binding.nvmlEventTypeDoubleBitEccError, events) == 3
    assert code(binding.nvmlDeviceRegisterEvents, handle, supported, events) == 0


def test_a_freed_set_is_an_invalid_argument(watching, code):
    _, binding, events = watching
    binding.nvmlEventSetFree(events)

    assert code(binding.nvmlEventSetWait_v2, events, 0) == 2
    assert code(binding.nvmlEventSetFree, events) == 2


def test_a_wait_ends_when_the_driver_goes_away(watching, code):
    simulator, binding, events = watching
    timer = threading.Timer(0.05, simulator.inject, ("driver-gone",))
    timer.start()

    assert code(binding.nvmlEventSetWait_v2, events, 20_000) == 9
    timer.join()


def test_a_wait_leaves_other_threads_their_calls(watching, code):
    simulator, binding, events = watching
    codes = []
    waiter = threading.Thread(target=lambda: codes.append(code(binding.nvmlEventSetWait_v2, events, 3_600_000)))
    waiter.start()
    for _ in range(10):
        assert binding.nvmlDeviceGetCount() == 8
        waiter.join(0.01)
    assert waiter.is_alive()

    simulator.inject("xid", 5, 79)
    waiter.join(60)
    assert codes == [0]
