from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.host.paths import HostPaths
from hami_plugin.model.device import Action, Links
from hami_plugin.model.usage import DeviceProcess, ProcessOwner
from vendors.nvidia.driver import NvmlDriver, library_places
from vendors.nvidia.settings import NvidiaSettings

LOST, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN = 15, 4, 13, 999
LINK_SYMBOLS = {
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
}


def unavailable(driver: NvmlDriver) -> DriverUnavailableError:
    with pytest.raises(DriverUnavailableError) as caught:
        driver.discover()
    assert caught.value.hint
    return caught.value


def called_symbols(rig: Any) -> set[str]:
    """Every NVML function that a look, a measurement and a wait resolve."""
    rig.driver.discover()
    rig.driver.links()
    rig.driver.poll(0)
    return set(pynvml._nvmlGetFunctionPointer_cache)


def about_one_card(symbols: set[str]) -> list[str]:
    everywhere = {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"}
    return [*sorted({s for s in symbols if s.startswith("nvmlDevice")} - everywhere), "nvmlDeviceGetHandleByIndex_v2"]


def test_a_driver_that_opens_while_another_one_is_open_asks_its_own_library(rig: Callable[..., Any]) -> None:
    former, new = rig("dgx-h100"), rig("a100-pcie-2-mig")
    uuids = {device.uuid for device in new.machine.devices}
    former.driver.discover()

    assert {one.device.uuid for one in new.driver.discover().sightings} >= uuids
    former.driver.close()
    assert {one.device.uuid for one in new.driver.discover().sightings} >= uuids


@pytest.mark.scenario("D4")
def test_a_card_that_is_lost_in_any_call_leaves_the_seven_others(rig: Callable[..., Any]) -> None:
    machine = rig()
    baseline = machine.driver.discover()
    links = machine.driver.links()
    third = machine.uuid(3)
    symbols = set(about_one_card(called_symbols(machine))) - {"nvmlDeviceGetCudaComputeCapability"}  # of the first card
    assert len(symbols) >= 16

    for symbol in symbols:
        machine.driver.close()
        machine.driver.discover()
        machine.driver.close()  # so that registrations are made anew, too
        machine.simulator.inject("fail-call", 3, f"{symbol}:{LOST}")

        look, found = machine.driver.discover(), machine.driver.links()

        others = [sighting for sighting in baseline.sightings if sighting.device.uuid != third]
        assert [s for s in look.sightings if s.device.uuid != third] == others, symbol
        mine = next(s for s in look.sightings if s.device.uuid == third)
        assert mine.device == baseline.sightings[3].device, symbol
        if symbol in LINK_SYMBOLS:
            assert found.problems, symbol
        else:
            assert mine.fault, symbol
            assert (mine.fault.reason, mine.fault.action) == ("GpuIsLost", Action.DRAIN)
        assert without(found, third) == without(links, third), symbol
        machine.simulator.inject("fail-call", 3, f"{symbol}:0")

    assert machine.faults() == {}


def without(links: Links, uuid: str) -> dict[tuple[str, str], object]:
    return {pair: link for pair, link in links.pairs.items() if uuid not in pair}


def test_a_card_that_comes_back_is_well_again(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()

    machine.simulator.inject("lost", 3)
    lost = machine.faults()
    machine.simulator.inject("back", 3)

    assert lost == {3: "GpuIsLost"}
    assert machine.faults() == {}


def test_a_driver_that_is_opened_again_and_again_holds_no_more_files(rig: Callable[..., Any]) -> None:
    """It is, about once a minute, for as long as a card does not answer."""
    machine = rig()

    def held() -> int:
        machine.driver.close()
        machine.driver.discover()
        machine.driver.poll(0)
        return len(list(Path("/proc/self/fd").iterdir()))

    first = held()

    assert [held() for _ in range(5)] == [first] * 5


def test_a_card_that_never_answered_is_named_by_the_kernel(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.simulator.inject("lost", 3)

    sighting = machine.driver.discover().sightings[3]

    assert sighting.device.uuid == machine.uuid(3)
    assert sighting.device.model == machine.machine.devices[3].model
    assert (sighting.device.minor, sighting.device.pci, sighting.device.numa) == (3, "0000:61:00.0", 0)
    assert sighting.fault
    assert sighting.fault.reason == "GpuIsLost"


def test_two_cards_that_never_answered_are_named_beside_a_filtered_one(rig: Callable[..., Any]) -> None:
    machine = rig(filterDevices={"index": [2]})
    for index in (1, 6):
        machine.simulator.inject("lost", index)

    look = machine.driver.discover()

    assert [s.device.uuid for s in look.sightings] == [machine.uuid(i) for i in (0, 1, 3, 4, 5, 6, 7)]
    assert [s.device.index for s in look.sightings if s.fault] == [1, 6]
    assert not look.problems


def test_a_filtered_card_that_is_lost_stays_out(rig: Callable[..., Any]) -> None:
    plain = rig()
    machine = rig(filterDevices={"uuid": [plain.uuid(3)]})
    machine.simulator.inject("lost", 3)

    look = machine.driver.discover()

    assert len(look.sightings) == 7
    assert not any(sighting.fault for sighting in look.sightings)
    assert not look.problems


def test_a_card_that_was_seen_before_is_known_by_its_index_without_the_kernels_list(
    rig: Callable[..., Any], tmp_path: Path
) -> None:
    machine = rig(procRoot=str(tmp_path / "nothing"))
    before = machine.driver.discover()
    for index in (2, 5):
        machine.simulator.inject("lost", index)

    after = machine.driver.discover()

    assert [s.device for s in after.sightings] == [s.device for s in before.sightings]
    assert [s.device.index for s in after.sightings if s.fault] == [2, 5]


def test_a_card_that_nothing_can_name_is_a_problem(rig: Callable[..., Any], tmp_path: Path) -> None:
    machine = rig(procRoot=str(tmp_path / "nothing"))
    machine.simulator.inject("lost", 3)

    look = machine.driver.discover()

    assert len(look.sightings) == 7
    assert len(look.problems) == 1
    assert "card 3" in look.problems[0]
    assert "GpuIsLost" in look.problems[0]


def test_no_library_says_what_was_tried_and_what_is_plugged_in(rig: Callable[..., Any]) -> None:
    machine = rig(nvmlLibrary="/nowhere/libnvidia-ml.so.1")

    error = unavailable(machine.driver)

    assert error.reason is DriverReason.NO_LIBRARY
    assert "/nowhere/libnvidia-ml.so.1" in error.message
    assert "8 NVIDIA card(s) are plugged in" in error.message


def test_a_node_without_cards_is_told_that_this_is_expected(tmp_path: Path) -> None:
    settings = NvidiaSettings(
        nvml_library=tmp_path / "libnvidia-ml.so.1", sysfs_root=tmp_path / "sys", proc_root=tmp_path / "proc"
    )

    error = unavailable(NvmlDriver(settings, HostPaths()))

    assert error.reason is DriverReason.NO_LIBRARY
    assert "no NVIDIA card is plugged in" in error.message
    assert "expected" in error.hint


def test_a_library_that_is_no_library_says_so(rig: Callable[..., Any], tmp_path: Path) -> None:
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_text("not an ELF file, but long enough to look at its header" * 10)

    error = unavailable(rig(nvmlLibrary=str(broken)).driver)

    assert error.reason is DriverReason.NO_LIBRARY
    assert str(broken) in error.message


def test_without_a_configured_file_the_loader_comes_first_and_the_driver_root_after() -> None:
    places = library_places(NvidiaSettings(container_driver_root=Path("/driver-root")))

    assert places[0] == "libnvidia-ml.so.1"
    assert all(place.startswith("/driver-root/") for place in places[1:])


def test_the_driver_root_is_searched(rig: Callable[..., Any], tmp_path: Path) -> None:
    machine = rig("t4-4-pcie")
    folder = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(machine.simulator.directory)
    paths = library_places(NvidiaSettings(container_driver_root=tmp_path / "root"))[1:]

    settings = machine.settings.model_copy(update={"nvml_library": Path(paths[1])})
    driver = NvmlDriver(settings, HostPaths())

    assert len(driver.discover().sightings) == 4
    driver.close()


@pytest.mark.scenario("D3")
@pytest.mark.parametrize(
    ("fault", "value", "reason", "words"),
    [
        ("driver-gone", 0, DriverReason.NO_DRIVER, "no kernel module is loaded"),
        ("mismatch", 0, DriverReason.VERSION_MISMATCH, "kernel module is version 570.124.06, the library"),
        ("no-devices", 0, DriverReason.NO_DEVICES, "lists no card"),
        ("fail-call", f"nvmlInitWithFlags:{NO_PERMISSION}", DriverReason.NO_PERMISSION, "may not be opened"),
        ("fail-call", f"nvmlInitWithFlags:{UNKNOWN}", DriverReason.FAILED, "Unknown"),
        ("fail-call", f"nvmlDeviceGetCount_v2:{UNKNOWN}", DriverReason.FAILED, "nvmlDeviceGetCount"),
        ("fail-call", f"nvmlDeviceGetHandleByIndex_v2:{NO_PERMISSION}", DriverReason.NO_PERMISSION, "all 8 cards"),
    ],
)
@pytest.mark.parametrize("worked_before", [False, True])
def test_a_driver_that_fails_as_a_whole_says_why_and_is_picked_up_again(
    fault: str, value: int | str, reason: DriverReason, words: str, worked_before: bool, rig: Callable[..., Any]
) -> None:
    machine = rig()
    if worked_before:
        machine.driver.discover()

    machine.simulator.inject(fault, None, value)
    if fault == "mismatch" or str(value).startswith("nvmlInit"):
        machine.driver.close()  # only a driver that is opened notices
    error = unavailable(machine.driver)
    machine.simulator.inject("driver-back")
    machine.simulator.inject("back")

    assert error.reason is reason
    assert words in error.message
    assert len(machine.driver.discover().sightings) == 8


@pytest.mark.scenario("D2")
def test_a_driver_that_was_replaced_is_opened_anew_with_the_same_cards(rig: Callable[..., Any]) -> None:
    machine = rig()
    before = machine.driver.discover()

    machine.simulator.inject("driver-gone")
    machine.simulator.inject("driver-back", None, "580.65.06")
    after = machine.driver.discover()

    assert after.facts["driver"] == "580.65.06"
    assert before.facts["driver"] != "580.65.06"
    assert after.sightings == before.sightings
    machine.simulator.inject("xid", 1, 79)
    assert [event.uuid for event in machine.driver.poll(0.05)] == [machine.uuid(1)]


@pytest.mark.scenario("D11")
def test_a_card_that_is_pulled_out_shifts_indices_and_not_names(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()

    machine.simulator.inject("unplug", 2)
    seven = machine.driver.discover()
    machine.simulator.inject("lost", 5)  # now at index 4
    lost = machine.faults()
    machine.simulator.inject("back", 5)
    machine.simulator.inject("plug", 2)

    uuids = [sighting.device.uuid for sighting in seven.sightings]
    assert uuids == [machine.uuid(i) for i in (0, 1, 3, 4, 5, 6, 7)]
    assert not any(sighting.fault for sighting in seven.sightings)
    assert lost == {4: "GpuIsLost"}
    assert len(machine.driver.discover().sightings) == 8


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def openings(driver: NvmlDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one each time that the driver opens its library."""
    count: list[int] = []
    really = driver._nvml.open

    def counted() -> None:
        count.append(1)
        really()

    monkeypatch.setattr(driver._nvml, "open", counted)
    return count


def test_a_card_that_stays_silent_has_the_driver_opened_anew_once_a_minute(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, clock = rig("t4-4-pcie"), Clock()
    driver = NvmlDriver(machine.settings, HostPaths(), clock=clock)
    opened = openings(driver, monkeypatch)
    driver.discover()
    machine.simulator.inject("lost", 2)

    for _ in range(25):
        clock.now += 5
        look = driver.discover()
        assert [s.fault is not None for s in look.sightings] == [False, False, True, False]
        assert look.sightings[2].device.uuid == machine.uuid(2)

    assert 2 <= len(opened) <= 3
    driver.close()


def test_while_all_is_well_the_driver_stays_open(rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    machine, clock = rig("t4-4-pcie"), Clock()
    driver = NvmlDriver(machine.settings, HostPaths(), clock=clock)
    opened = openings(driver, monkeypatch)

    for _ in range(10):
        clock.now += 1000
        driver.discover()

    assert len(opened) == 1
    driver.close()


@pytest.mark.scenario("D2")
def test_another_kernel_module_has_the_driver_opened_anew_though_nothing_failed(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = rig("t4-4-pcie")
    opened = openings(machine.driver, monkeypatch)
    machine.driver.discover()
    machine.driver.discover()
    version = machine.simulator.directory / "proc/driver/nvidia/version"

    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:15:15 UTC 2025\n")
    machine.driver.discover()

    assert len(opened) == 2


def test_a_closed_driver_leaves_no_library_loaded_so_that_a_new_one_can_be(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    library = str(machine.settings.nvml_library)
    machine.driver.discover()
    loaded = library in Path("/proc/self/maps").read_text()

    machine.driver.close()

    assert loaded
    assert library not in Path("/proc/self/maps").read_text()


def test_an_event_that_came_before_the_driver_was_opened_anew_is_not_forgotten(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.driver.discover()
    machine.simulator.inject("xid", 4, 48)
    machine.simulator.inject("unplug", 7)

    machine.driver.discover()

    assert [event.uuid for event in machine.driver.poll(1)] == [machine.uuid(4)]


def test_a_closed_driver_opens_again_at_the_next_look(rig: Callable[..., Any]) -> None:
    machine = rig()
    before = machine.driver.discover()

    machine.driver.close()
    machine.driver.close()

    assert machine.driver.links().pairs == {}
    assert machine.driver.poll(0.01) == ()
    assert machine.driver.discover().sightings == before.sightings


def test_the_processes_of_a_card_are_listed_on_request_and_a_card_that_lists_none_tells_the_rest(
    rig: Callable[..., Any],
) -> None:
    machine = rig("t4-4-pcie", processUsage=True)
    cgroup = machine.simulator.directory / "proc/4711/cgroup"
    cgroup.parent.mkdir()
    cgroup.write_text(f"0::/kubepods/pod{'ab' * 16}/{'4f' * 32}\n")
    machine.simulator.inject("process", 0, "4711:500")
    machine.simulator.inject("fail-call", 1, "nvmlDeviceGetComputeRunningProcesses_v3:999")
    machine.driver.discover()

    loads = machine.driver.load()

    ours = ProcessOwner(pod="ab" * 16, container="4f" * 32)
    assert loads[machine.uuid(0)].processes == (DeviceProcess(pid=4711, memory_used=500 << 20, owner=ours),)
    assert (loads[machine.uuid(1)].processes, loads[machine.uuid(1)].utilization) == (None, 0)
    assert loads[machine.uuid(2)].processes == ()


@pytest.mark.parametrize(("settings", "warned"), [({"processUsage": True}, 1), ({}, 0)])
def test_a_daemon_that_cannot_see_other_processes_says_so_where_it_is_to_list_them(
    rig: Callable[..., Any], settings: dict[str, bool], warned: int
) -> None:
    machine = rig("t4-4-pcie", **settings)
    own = machine.simulator.directory / "proc/self/ns"
    own.mkdir(parents=True)
    (own / "pid").symlink_to("pid:[4026532999]")

    with capture_logs() as logs:
        machine.driver.discover()

    assert len([entry for entry in logs if "hostPID" in entry["event"]]) == warned


def test_naming_the_vendor_loads_no_binding_and_no_library() -> None:
    code = (
        "import sys; from hami_plugin.sdk import load_vendor; v = load_vendor('nvidia'); "
        "v.families(v.settings()); print('pynvml' in sys.modules, '_ctypes' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["False", "False"]
