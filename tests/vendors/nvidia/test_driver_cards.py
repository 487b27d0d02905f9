"""One card through the real binding: what it does not know, what it wishes, what it leaves out."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hami_plugin.model.device import Action

LOST, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN = 15, 4, 13, 999


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceRegisterEvents",
        "nvmlSystemGetCudaDriverVersion_v2",
    ],
)
def test_a_driver_too_old_for_a_question_is_no_fault(symbol: str, rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.simulator.inject("fail-call", None, f"{symbol}:{FUNCTION_NOT_FOUND}")

    assert machine.faults() == {}
    assert len(machine.driver.links().pairs) == 28


@pytest.mark.scenario("D13")
def test_memory_that_the_driver_cannot_tell_comes_from_the_configuration(rig: Callable[..., Any]) -> None:
    machine = rig(preConfiguredDeviceMemory=122_880)
    machine.simulator.inject("not-supported", 1, "memory")

    look = machine.driver.discover()

    assert look.sightings[1].device.memory == 122_880
    assert look.sightings[1].fault is None


def test_memory_that_nobody_knows_keeps_the_card_back_and_names_the_remedy(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.simulator.inject("not-supported", 1, "memory")

    fault = machine.driver.discover().sightings[1].fault

    assert fault.reason == "MemoryUnknown"
    assert "preConfiguredDeviceMemory" in fault.message


@pytest.mark.parametrize("group", ["mig", "health", "events", "nvlink"])
def test_what_a_card_does_not_know_is_no_fault(group: str, rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.simulator.inject("not-supported", None, group)

    assert machine.faults() == {}


@pytest.mark.parametrize(
    ("number", "action"), [(1, Action.RESET), (2, Action.REBOOT), (3, Action.DRAIN), (4, Action.RESET)]
)
def test_the_drivers_own_wish_for_recovery_is_a_fault(number: int, action: Action, rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.simulator.inject("recovery-action", 6, number)

    fault = machine.driver.discover().sightings[6].fault

    assert (fault.reason, fault.action) == ("RecoveryAction", action)


EXCLUSIVE = {"computeMode": "ExclusiveProcess", "deviceSplitCount": 1}


def modes(machine: Any) -> list[int]:
    """Each card's compute mode, as the driver has it."""
    nvml = machine.driver._nvml
    return [nvml.compute_mode(nvml.handle(index)) for index in range(nvml.count())]


def test_cards_are_switched_to_the_compute_mode_that_is_configured_and_back_again_by_nobody_but_the_operator(
    rig: Callable[..., Any],
) -> None:
    machine = rig("t4-4-pcie", **EXCLUSIVE)

    assert machine.faults() == {}
    assert modes(machine) == [3, 3, 3, 3]

    machine.simulator.inject("compute-mode", 1, 0)  # the driver was loaded anew, or somebody has changed it
    assert machine.faults() == {}
    assert modes(machine) == [3, 3, 3, 3]


def test_by_default_no_cards_compute_mode_is_touched(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    machine.simulator.inject("fail-call", None, f"nvmlDeviceSetComputeMode:{UNKNOWN}")
    machine.simulator.inject("compute-mode", 2, 3)

    assert machine.faults() == {2: "ExclusiveComputeMode"}
    assert modes(machine) == [0, 0, 3, 0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (NO_PERMISSION, r"NoPermission.*CAP_SYS_ADMIN.*nvidia-smi -c EXCLUSIVE_PROCESS"),
        (3, r"NotSupported.*leave computeMode at Default"),
    ],
)
def test_a_card_whose_compute_mode_cannot_be_set_is_kept_back_with_the_reason(
    code: int, words: str, rig: Callable[..., Any]
) -> None:
    machine = rig("t4-4-pcie", **EXCLUSIVE)
    machine.simulator.inject("fail-call", 2, f"nvmlDeviceSetComputeMode:{code}")

    fault = machine.driver.discover().sightings[2].fault

    assert fault.reason == "ComputeModeNotSet"
    assert re.search(words, fault.message)
    assert machine.faults() == {2: "ComputeModeNotSet"}
    machine.simulator.inject("compute-mode", 2, 3)  # the operator has set it
    assert machine.faults() == {}


def test_a_card_that_an_operator_has_closed_stays_closed(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie", **EXCLUSIVE)
    machine.simulator.inject("compute-mode", 0, 2)

    assert machine.faults() == {0: "ProhibitedComputeMode"}


def test_memory_rows_that_wait_for_a_reset_are_a_fault(rig: Callable[..., Any]) -> None:
    machine = rig()
    machine.simulator.inject("ecc", 4, 2)

    fault = machine.driver.discover().sightings[4].fault

    assert (fault.reason, fault.action) == ("RowRemapPending", Action.RESET)


def test_filtered_cards_are_left_out_of_everything(rig: Callable[..., Any]) -> None:
    plain = rig()
    machine = rig(filterDevices={"uuid": [plain.uuid(1)], "index": [0, 6]})

    look, links = machine.driver.discover(), machine.driver.links()

    kept = [machine.uuid(i) for i in (2, 3, 4, 5, 7)]
    assert [sighting.device.uuid for sighting in look.sightings] == kept
    assert {uuid for pair in links.pairs for uuid in pair} == set(kept)
    assert not links.problems
    machine.simulator.inject("xid", 1, 79)
    machine.simulator.inject("lost", 6)
    assert machine.driver.poll(0.01) == ()
    assert machine.faults() == {}


@pytest.mark.scenario("D14")
def test_a_crooked_link_counts_the_worse_way_and_is_named(rig: Callable[..., Any]) -> None:
    machine = rig("dgx-1v")
    machine.driver.discover()
    straight = machine.driver.links()

    machine.simulator.inject("asymmetric", 0)
    crooked = machine.driver.links()

    assert straight.asymmetric == ()
    assert crooked.asymmetric
    for a, b in crooked.asymmetric:
        assert machine.uuid(0) in (a, b)
        assert crooked.score(a, b) == straight.score(a, b) - 100


@pytest.mark.scenario("D9")
def test_a_card_that_hangs_is_named_while_it_does(rig: Callable[..., Any]) -> None:
    machine = rig("t4-4-pcie")
    machine.driver.discover()
    machine.simulator.inject("hang", 2)
    looks: list[Any] = []
    thread = threading.Thread(target=lambda: looks.append(machine.driver.discover()))

    thread.start()
    deadline = time.monotonic() + 60
    while machine.driver.busy_with != machine.uuid(2) and time.monotonic() < deadline:
        time.sleep(0.005)
    named = machine.driver.busy_with
    machine.simulator.inject("back", 2)
    thread.join(60)

    assert named == machine.uuid(2)
    assert len(looks[0].sightings) == 4
    assert machine.driver.busy_with is None
