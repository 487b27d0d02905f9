"""An NPU that fails is a fault of its own: told at once, gone when it is well, and never in the others' way."""

from __future__ import annotations

import ctypes
import threading

import pytest

from hami_plugin.errors import DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action
from vendors.ascend.driver import AscendDriver


def events(rig):
    """What polling tells: the number of the NPU and the reason."""
    numbers = {device.uuid: device.index for device in rig.devices()}
    return lambda: [(numbers[event.uuid], event.fault.reason) for event in rig.driver.poll(1.0)]


def test_a_lost_npu_never_hides_the_others(rig):
    built = rig("ascend-910b3-8")
    assert built.faults() == {}

    built.simulator.inject("lost", 3)

    assert built.faults() == {3: "NpuSilent"}
    assert len(built.devices()) == 8


def test_an_npu_that_was_never_seen_well_is_a_problem_in_words(rig):
    built = rig("ascend-910c-16")
    built.simulator.inject("lost", 5)

    discovery = built.driver.discover()

    assert len(discovery.sightings) == 15
    assert discovery.problems == ("NPU 2/1: dcmi_get_device_chip_info_v2 answered DeviceDoesNotExist (-8008)",)


def test_an_alarm_is_told_once_with_the_drivers_codes(rig):
    built = rig("ascend-910b3-8")
    poll = events(built)

    built.simulator.inject("unhealthy", 2)

    assert poll() == [(2, "NpuCriticalAlarm")]
    assert poll() == []
    (fault,) = [sighting.fault for sighting in built.driver.discover().sightings if sighting.fault]
    assert fault.action is Action.DRAIN
    assert "0x80e01801" in fault.message


@pytest.mark.parametrize(
    ("grade", "reason"),
    [(1, "NpuMinorAlarm"), (2, "NpuMajorAlarm"), (3, "NpuCriticalAlarm"), (2**32 - 1, "NpuNotStarted")],
)
def test_each_grade_has_a_name(rig, grade, reason):
    built = rig("ascend-310p-8")
    built.simulator.inject("unhealthy", 0, grade)

    assert built.faults() == {0: reason}


def test_an_npu_that_containers_cannot_share_is_ill_where_they_are_to(rig):
    built = rig("ascend-910c-16", hamiVnpuCore=True)
    built.simulator.inject("unshared", 3)

    (fault,) = [sighting.fault for sighting in built.driver.discover().sightings if sighting.fault]

    assert fault.reason == "NpuNotShareable"
    assert "npu-smi set -t device-share -i 1 -c 1 -d 1" in fault.message


def test_an_npu_for_one_container_is_well_where_it_is_cut(rig):
    built = rig("ascend-910c-16")

    built.simulator.inject("unshared")

    assert built.faults() == {}


def test_what_comes_back_is_well_and_may_fail_again(rig):
    built = rig("ascend-910b3-8")
    poll = events(built)
    built.simulator.inject("lost", 1)
    assert poll() == [(1, "NpuSilent")]

    built.simulator.inject("back", 1)

    assert (poll(), built.faults()) == ([], {})
    built.simulator.inject("unhealthy", 1, 2)
    assert poll() == [(1, "NpuMajorAlarm")]


def test_an_unplugged_npu_is_seen_no_more_until_it_is_plugged_in(rig):
    built = rig("ascend-910b3-8")
    built.simulator.inject("unplug", 7)
    assert [device.index for device in built.devices()] == [0, 1, 2, 3, 4, 5, 6]

    built.simulator.inject("plug", 7)

    assert len(built.devices()) == 8


def test_polling_a_driver_that_went_away_says_so(rig):
    built = rig("ascend-910b3-8")
    built.devices()
    built.simulator.inject("driver-gone")

    with pytest.raises(DriverUnavailableError, match="davinci_manager is missing"):
        built.driver.poll(1.0)

    built.simulator.inject("driver-back")
    assert len(built.devices()) == 8


class Deaf:
    """The simulated library, whose NPUs tell nothing of their health; with ``mended`` only until it is opened again."""

    def __init__(self, path, *, mended=False):
        self._library = ctypes.CDLL(path)
        self._mended = mended
        self.opened = 0
        self.deaf = False

    def __getattr__(self, name):
        return getattr(self._library, name)

    def dcmi_init(self):
        self.opened += 1
        self.deaf &= not self._mended
        return self._library.dcmi_init()

    def dcmi_get_device_health(self, *asked):
        return -8006 if self.deaf else self._library.dcmi_get_device_health(*asked)


def deaf(built, **kind):
    """The driver of a machine before such a library, and the library."""
    library = Deaf(str(built.settings.dcmi_library), **kind)
    built.driver = AscendDriver(built.settings, HostPaths(), sleep=lambda _seconds: None, load=lambda _path: library)
    return library


def test_all_npus_that_fall_silent_at_once_are_told_of_though_the_driver_still_knows_them(rig):
    built = rig("ascend-910b3-8")
    library = deaf(built)
    poll = events(built)

    library.deaf = True

    assert poll() == [(number, "NpuSilent") for number in range(8)]
    assert library.opened == 2
    assert poll() == []


def test_npus_that_answer_again_once_the_driver_is_opened_anew_are_not_called_silent(rig):
    built = rig("ascend-910b3-8")
    library = deaf(built, mended=True)
    poll = events(built)

    library.deaf = True

    assert poll() == []
    assert library.opened == 2


def test_a_call_that_hangs_names_the_npu_that_it_is_about(rig):
    built = rig("ascend-910b3-8")
    victim = built.devices()[4]
    built.simulator.inject("hang", 4)
    thread = threading.Thread(target=built.driver.discover, daemon=True)

    thread.start()

    while built.driver.busy_with != victim.uuid:
        thread.join(0.001)
    built.simulator.inject("back", 4)
    thread.join(60)
    assert not thread.is_alive()


def test_two_npus_of_one_name_are_a_fault(rig):
    built = rig("ascend-310p-8")
    state = built.simulator.directory / "npus"
    lines = state.read_text().splitlines()
    die = lines[1].split()[7:12]
    fields = lines[2].split()
    lines[2] = " ".join([*fields[:7], *die, *fields[12:]])
    state.write_text("\n".join(lines) + "\n")

    assert built.faults() == {0: "DuplicateUuid"}


def test_a_pair_that_is_not_measured_leaves_the_others(rig):
    built = rig("ascend-910b3-8")
    built.devices()
    built.simulator.inject("lost", 0)

    links = built.driver.links()

    assert len(links.pairs) == 7 * 6 // 2
    assert len(links.problems) == 14


def test_unknown_faults_and_npus_are_named(rig):
    built = rig("ascend-310p-8")

    with pytest.raises(ValueError, match="choose from: lost, back"):
        built.simulator.inject("xid")
    with pytest.raises(ValueError, match="there is no NPU 8"):
        built.simulator.inject("lost", 8)
