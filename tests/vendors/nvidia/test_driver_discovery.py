from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hami_plugin.model.device import Sighting
from hami_plugin.sdk.polling import QueriedDevice
from vendors.nvidia.driver import CardDiscoverer
from vendors.nvidia.host import HostTrees
from vendors.nvidia.nvml import Handle, Nvml

MIB = 1024 * 1024


class Liar(Nvml):
    """The simulated library, but some cards answer some questions wrongly. Keys are questions and indices."""

    def __init__(self, places: list[str], lies: dict[tuple[str, int], Any]) -> None:
        super().__init__(places)
        self.lies = lies

    def _answer(self, question: str, handle: Handle, truth: Callable[[Handle], Any]) -> Any:
        index = next((i for i in range(self.count()) if self.address(self.handle(i)) == self.address(handle)), -1)
        return self.lies.get((question, index), None) if (question, index) in self.lies else truth(handle)

    def uuid(self, handle: Handle) -> str:
        return str(self._answer("uuid", handle, super().uuid))

    def memory(self, handle: Handle) -> int:
        return int(self._answer("memory", handle, super().memory))

    def compute_mode(self, handle: Handle) -> int:
        return int(self._answer("compute_mode", handle, super().compute_mode))

    def mig_enabled(self, handle: Handle) -> bool:
        return bool(self._answer("mig", handle, super().mig_enabled))

    def remapped_rows(self, handle: Handle) -> tuple[bool, bool]:
        pending, failed = self._answer("rows", handle, super().remapped_rows)
        return pending, failed

    def retired_pages_pending(self, handle: Handle) -> bool:
        return bool(self._answer("pages", handle, super().retired_pages_pending))

    def recovery_action(self, handle: Handle) -> int:
        return int(self._answer("recovery", handle, super().recovery_action))


@pytest.fixture
def lying(rig: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    libraries = []

    def build(lies: dict[tuple[str, int], Any], **settings: Any) -> CardDiscoverer:
        machine = rig(**settings)
        nvml = Liar([str(machine.settings.nvml_library)], lies)
        nvml.open()
        libraries.append(nvml)
        host = HostTrees(sysfs=machine.settings.sysfs_root, proc=machine.settings.proc_root)
        return CardDiscoverer(nvml, host, machine.settings, QueriedDevice())

    yield build
    for library in libraries:
        library.close()


def reasons(sightings: tuple[Sighting, ...]) -> dict[int, str]:
    return {s.device.index: s.fault.reason for s in sightings if s.fault}


@pytest.mark.scenario("D15")
@pytest.mark.parametrize("memory", [0, MIB - 1, 2**64 - 1, 5 * 1024 * 1024 * MIB])
def test_nonsense_memory_keeps_the_card_back(memory: int, lying: Callable[..., Any]) -> None:
    look = lying({("memory", 2): memory}).look()

    assert reasons(look.sightings) == {2: "MemoryImplausible"}
    assert look.sightings[2].device.memory == 0


@pytest.mark.scenario("D15")
def test_nonsense_memory_does_not_overwrite_what_was_known(lying: Callable[..., Any]) -> None:
    discoverer = lying({})
    before = discoverer.look().sightings[2].device

    discoverer._nvml.lies["memory", 2] = 0
    after = discoverer.look()

    assert reasons(after.sightings) == {2: "MemoryImplausible"}
    assert after.sightings[2].device == before


@pytest.mark.scenario("D15")
@pytest.mark.parametrize("uuid", ["", "GPU-", "GPU-12345678-1234-1234-1234-123456789abc,NVIDIA", "../../etc"])
def test_a_card_with_a_nonsense_name_is_known_by_the_kernels_list(uuid: str, lying: Callable[..., Any]) -> None:
    discoverer = lying({("uuid", 5): uuid})

    look = discoverer.look()

    assert reasons(look.sightings) == {5: "GarbledUuid"}
    assert look.sightings[5].device.uuid.startswith("GPU-00000005-")
    assert len(look.sightings) == 8


@pytest.mark.scenario("D15")
def test_two_cards_with_one_name_are_both_kept_back(lying: Callable[..., Any]) -> None:
    name = "GPU-00000001-5150-4ccd-8a11-f2a0380b0001"

    look = lying({("uuid", 6): name}).look()

    assert reasons(look.sightings) == {1: "DuplicateUuid"}
    assert len(look.sightings) == 7
    assert len({sighting.device.uuid for sighting in look.sightings}) == 7


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        ("compute_mode", 2, "ProhibitedComputeMode"),
        ("compute_mode", 3, "ExclusiveComputeMode"),
        ("compute_mode", 1, "ExclusiveComputeMode"),
        ("mig", True, "MigEnabled"),
        ("rows", (True, False), "RowRemapPending"),
        ("rows", (True, True), "RowRemapFailed"),
        ("pages", True, "PageRetirementPending"),
        ("recovery", 7, "RecoveryAction"),
        ("recovery", 99, "RecoveryAction"),
    ],
)
def test_a_card_in_a_state_that_cannot_be_shared_is_kept_back(
    question: str, answer: Any, reason: str, lying: Callable[..., Any]
) -> None:
    look = lying({(question, 4): answer}).look()

    assert reasons(look.sightings) == {4: reason}
    assert look.sightings[4].fault
    assert look.sightings[4].fault.message
    assert look.sightings[4].device.memory == 81559


def test_a_card_for_one_process_is_offered_when_it_is_not_shared(lying: Callable[..., Any]) -> None:
    look = lying({("compute_mode", 4): 3}, deviceSplitCount=1).look()

    assert reasons(look.sightings) == {}
