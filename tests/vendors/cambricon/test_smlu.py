"""sMLU instances over CNDev: made, listed and destroyed, whichever of its calls fails, and under the life cycle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError, HamiError
from hami_plugin.partitions.journal import PartitionJournal
from hami_plugin.partitions.life import ENDING, Owner, State
from hami_plugin.partitions.manager import Cutter
from hami_plugin.partitions.reconciliation import Known, PodReservation
from hami_plugin.sdk import NOWHERE, InUseError, Mode, NoRoomError, Partition, Reservation, UnlistedCardsError
from tests.support.partitions import Killed
from tests.support.rigs import Rig, rig
from vendors.cambricon.cndev import Cndev
from vendors.cambricon.rules import name
from vendors.cambricon.smlu import SmluModes, SmluPartitions, amounts

SMALL, HALF = amounts(30, 3072), amounts(50, 49152)
NODE = "n1"
MLU, OTHER = name(NODE, 0), name(NODE, 1)
LISTING = ("cndevGetSMLUMode", "cndevGetSMluProfileIdInfo", "cndevGetAllSMluInstanceInfo")
CREATING = (
    "cndevGetDeviceHandleByIndex",
    *LISTING,
    "cndevCreateSMluProfileInfo",
    "cndevCreateSMluInstanceByProfileId",
)
DESTROYING = (*LISTING, "cndevDestroySMluInstanceByHandle", "cndevDestroySMluProfileInfo")
UNKNOWN = 7
"""CNDev's code of an error that it cannot name."""


@pytest.fixture
def machine(tmp_path: Path) -> Rig:
    made = rig("cambricon-mlu590-8", tmp_path, mode="dynamic-smlu")
    made.simulator.inject("smlu-mode")
    return made


@pytest.fixture
def driver(machine: Rig) -> SmluPartitions:
    return SmluPartitions(Cndev(machine.settings.cndev), NODE)


def made(driver: SmluPartitions, profile: str = SMALL, card: str = MLU) -> Partition:
    return driver.create(card, profile, NOWHERE, lambda _ids: None)


def destroyed(driver: SmluPartitions, one: Partition) -> None:
    driver.destroy(one, lambda _ids: None)


def order(machine: Rig, call: str, what: str) -> None:
    machine.simulator.inject("smlu-call", 0, f"{call} {what}")


def test_what_is_made_is_listed_as_it_was_answered_until_it_is_destroyed(driver: SmluPartitions) -> None:
    one, other = made(driver), made(driver, HALF, OTHER)

    assert (one.card, one.profile, other.card, other.profile) == (MLU, SMALL, OTHER, HALF)
    assert driver.partitions() == (one, other)
    assert driver.partitions(OTHER) == (other,)
    destroyed(driver, one)
    destroyed(driver, one)  # of one that is gone there is nothing to do
    assert driver.partitions() == (other,)


def test_equal_amounts_are_cut_by_one_profile_that_goes_with_the_last_of_them(driver: SmluPartitions) -> None:
    one, other = made(driver), made(driver)

    assert one.ids["profile"] == other.ids["profile"]
    assert one.uuid != other.uuid
    destroyed(driver, one)
    assert driver.partitions() == (other,)
    destroyed(driver, other)
    assert driver.partitions() == ()


def test_a_profile_that_others_need_is_not_even_tried_to_be_destroyed(machine: Rig, driver: SmluPartitions) -> None:
    one, other = made(driver), made(driver)
    order(machine, "cndevDestroySMluProfileInfo", f"fail {UNKNOWN}")

    destroyed(driver, one)
    assert driver.partitions() == (other,)


def test_each_call_that_changes_the_card_is_told_with_what_exists_after_it(driver: SmluPartitions) -> None:
    steps: list[dict[str, int]] = []
    one = driver.create(MLU, SMALL, NOWHERE, lambda ids: steps.append(dict(ids)))
    driver.destroy(one, lambda ids: steps.append(dict(ids)))

    profile, instance = one.ids["profile"], one.ids["instance"]
    both = {"profile": profile, "instance": instance}
    assert steps == [{"profile": profile}, both, {"profile": profile}, {}]


@pytest.mark.parametrize("profile", [amounts(80, 3072), amounts(10, 65536)])
def test_more_than_is_left_of_cores_or_memory_is_no_room(profile: str, driver: SmluPartitions) -> None:
    one = made(driver, HALF)

    with pytest.raises(NoRoomError, match="no room for"):
        made(driver, profile)
    assert driver.partitions() == (one,)


def test_an_equal_part_that_has_no_room_is_no_room_either(driver: SmluPartitions) -> None:
    both = (made(driver, HALF), made(driver, HALF))

    with pytest.raises(NoRoomError):
        made(driver, HALF)
    assert driver.partitions() == both


def test_one_that_is_open_is_in_use_until_it_is_not(machine: Rig, driver: SmluPartitions) -> None:
    one = made(driver)
    machine.simulator.inject("smlu-used", 0, one.ids["instance"])

    with pytest.raises(InUseError, match="in use"):
        destroyed(driver, one)
    assert driver.partitions() == (one,)


def test_another_one_that_has_its_number_is_not_destroyed_for_it(driver: SmluPartitions) -> None:
    old = made(driver)
    destroyed(driver, old)
    new = made(driver)

    assert (new.ids, new.uuid != old.uuid) == (old.ids, True)
    with pytest.raises(HamiError, match="somebody has made it"):
        destroyed(driver, old)
    assert driver.partitions() == (new,)


def test_an_mlu_that_is_not_in_smlu_mode_has_no_parts_and_is_kept_back(tmp_path: Path) -> None:
    machine = rig("cambricon-mlu590-8", tmp_path, mode="dynamic-smlu")
    machine.simulator.inject("smlu-mode", 1)
    driver = SmluPartitions(Cndev(machine.settings.cndev), NODE)

    with pytest.raises(HamiError, match="not in sMLU mode"):
        made(driver)
    faults = [sighting.fault for sighting in machine.driver.discover().sightings]
    assert [fault.reason if fault else "" for fault in faults[:2]] == ["NotDivisible", ""]
    assert faults[0]
    assert "cnmon set -c 0 -smlu on" in faults[0].message


@pytest.mark.parametrize("call", CREATING)
@pytest.mark.parametrize("when", ["fail", "then"])
def test_whichever_call_of_a_creation_fails_nothing_is_left(
    call: str, when: str, machine: Rig, driver: SmluPartitions
) -> None:
    """Whether it has done its work or not. What an answer was lost of is found by the life cycle, below."""
    order(machine, call, f"{when} {UNKNOWN}")
    with pytest.raises(HamiError, match=call):
        made(driver)

    lost = when == "then" and call.startswith("cndevCreate")
    assert [one.uuid for one in driver.partitions() if not lost] == []
    assert made(driver) in driver.partitions()


@pytest.mark.parametrize("call", DESTROYING)
@pytest.mark.parametrize("when", ["fail", "then"])
def test_whichever_call_of_a_destruction_fails_another_try_ends_it(
    call: str, when: str, machine: Rig, driver: SmluPartitions
) -> None:
    one = made(driver)
    order(machine, call, f"{when} {UNKNOWN}")
    with pytest.raises(HamiError, match=call):
        destroyed(driver, one)

    for left in driver.partitions():
        destroyed(driver, left)
    assert driver.partitions() == ()


@pytest.mark.parametrize("call", LISTING)
def test_a_card_that_does_not_tell_its_parts_leaves_the_others(call: str, machine: Rig, driver: SmluPartitions) -> None:
    one, other = made(driver), made(driver, HALF, OTHER)
    order(machine, call, f"fail {UNKNOWN}")
    with pytest.raises(UnlistedCardsError, match=call) as told:
        driver.partitions()

    assert (told.value.cards, told.value.partitions) == ((MLU,), (other,))
    assert driver.partitions() == (one, other)


def test_without_the_library_or_its_driver_nothing_can_be_asked(machine: Rig, tmp_path: Path) -> None:
    with pytest.raises(DriverUnavailableError) as missing:
        Cndev(tmp_path / "libcndev-is-not-here.so").cards()
    order(machine, "cndevInit", "fail 1")
    library = Cndev(machine.settings.cndev)
    with pytest.raises(DriverUnavailableError, match="NO_DRIVER"):
        library.cards()

    assert missing.value.reason is DriverReason.NO_LIBRARY
    assert library.cards() == 8


class Node:
    """The life cycle of one MLU's parts: its journal, and who lives."""

    def __init__(self, driver: SmluPartitions, path: Path) -> None:
        self.driver, self.path = driver, path
        self.living: set[str] = set()
        self.start()

    def start(self) -> None:
        self.journal = PartitionJournal(self.path, "boot")
        self.journal.load()
        self.cutter = Cutter(self.driver, self.journal)

    def allocate(self, pod: str, profile: str = SMALL) -> Partition:
        self.living.add(pod)
        wanted = Reservation(container="main", device=0, card=MLU, profile=profile, placement=NOWHERE)
        reservation = PodReservation(owner=Owner(uid=pod, container="main", device=0), wanted=wanted)
        ensured = self.cutter.ensure(reservation, "boot", self.living, may_destroy=True)
        self.cutter.hand_out(ensured.entry.number)
        return ensured.entry.partition

    def settle(self) -> None:
        for _ in range(4):
            known = Known(boot="boot", now=1000.0, living=frozenset(self.living))
            assert self.cutter.resync(MLU, self.driver.partitions(MLU), self.journal.changed(MLU), known)
            for entry in list(self.journal.entries.values()):
                if entry.owner and entry.owner.uid not in self.living:
                    self.cutter.release(entry.number, "its pod has ended")
                if self.journal.entries[entry.number].state in ENDING:
                    self.cutter.destroy(entry.number)

    def states(self) -> Sequence[State]:
        return sorted(entry.state for entry in self.journal.entries.values())


@pytest.fixture
def node(driver: SmluPartitions, tmp_path: Path) -> Node:
    return Node(driver, tmp_path / "partitions")


@pytest.mark.parametrize("call", CREATING)
@pytest.mark.parametrize("when", ["fail", "then"])
def test_what_a_failed_creation_leaves_is_cleaned_and_the_next_one_succeeds(
    call: str, when: str, machine: Rig, node: Node
) -> None:
    order(machine, call, f"{when} {UNKNOWN}")
    with pytest.raises(HamiError):
        node.allocate("a")
    node.living.clear()
    node.settle()
    assert (node.states(), node.driver.partitions()) == ([], ())

    assert node.allocate("b") in node.driver.partitions()


@pytest.mark.parametrize("call", DESTROYING)
@pytest.mark.parametrize("when", ["fail", "then"])
def test_what_a_failed_destruction_leaves_is_destroyed_later(call: str, when: str, machine: Rig, node: Node) -> None:
    kept = node.allocate("kept", HALF)
    node.allocate("a")
    node.living.discard("a")
    entry = next(one for one in node.journal.entries.values() if one.owner and one.owner.uid == "a")
    node.cutter.release(entry.number, "its pod has ended")
    order(machine, call, f"{when} {UNKNOWN}")
    assert call in node.cutter.destroy(entry.number)

    node.settle()
    assert (node.states(), node.driver.partitions()) == ([State.ASSIGNED], (kept,))


@pytest.mark.parametrize("living", [set(), {"a"}])
def test_a_profile_whose_maker_was_killed_before_the_instance_is_destroyed(
    living: set[str], machine: Rig, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_asked: object) -> int:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Cndev, "create_instance", killed)
        with pytest.raises(Killed):
            node.allocate("a")
    library = Cndev(machine.settings.cndev)
    assert [one.cores for one in library.profiles(0)] == [30]
    node.start()
    node.living = set(living)
    node.settle()

    assert (node.states(), library.profiles(0)) == ([], [])


def test_what_has_ended_makes_room_for_the_next(node: Node) -> None:
    node.allocate("a", amounts(100, 98304))
    node.living.clear()

    made_room = node.allocate("b")
    assert node.driver.partitions() == (made_room,)


def test_an_equal_part_that_an_ended_pod_has_left_is_the_next_ones(node: Node) -> None:
    left = node.allocate("a")
    node.living.clear()

    assert node.allocate("b") == left
    node.settle()
    assert (node.states(), node.driver.partitions()) == ([State.ASSIGNED], (left,))


def test_what_others_have_made_is_never_touched(node: Node) -> None:
    foreign = made(node.driver)
    node.settle()
    node.allocate("a")
    node.living.clear()
    node.settle()

    assert (node.states(), node.driver.partitions()) == ([State.FOREIGN], (foreign,))


@pytest.fixture
def modes(machine: Rig) -> SmluModes:
    now = [0.0]
    return SmluModes(
        Cndev(machine.settings.cndev),
        NODE,
        machine.settings.cnmon,
        clock=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )


def test_an_mlu_is_switched_out_of_smlu_mode_once_nothing_is_cut_and_back(
    driver: SmluPartitions, modes: SmluModes
) -> None:
    one = made(driver)
    with pytest.raises(HamiError, match=r"not switched: the MLU has 1 sMLU instance\(s\)"):
        modes.switch(MLU, on=False)
    destroyed(driver, one)
    modes.switch(MLU, on=False)
    assert modes.mode(MLU) == Mode(capable=True, current=False, pending=False)
    assert modes.mode(OTHER).current

    modes.switch(MLU, on=True)
    assert modes.mode(MLU).current
    assert made(driver).profile == SMALL


@pytest.mark.parametrize(("fault", "why"), [("smlu-busy", "the device is busy"), ("smlu-leave", "does not say so")])
def test_a_switch_that_fails_is_told(fault: str, why: str, machine: Rig, modes: SmluModes) -> None:
    machine.simulator.inject(fault, 0)

    with pytest.raises(HamiError, match=why):
        modes.switch(MLU, on=False)
    assert modes.mode(MLU).current


def test_an_mlu_without_such_a_mode_says_so(machine: Rig, modes: SmluModes) -> None:
    order(machine, "cndevGetSMLUMode", "fail 10")

    assert modes.mode(MLU) == Mode(capable=False)


def test_an_mlu_that_is_to_leave_smlu_mode_is_kept_back_until_it_has(tmp_path: Path) -> None:
    machine = rig("cambricon-mlu590-8", tmp_path, smluMode="disabled")
    machine.simulator.inject("smlu-mode", 0)

    faults = [sighting.fault for sighting in machine.driver.discover().sightings]
    assert [fault.reason if fault else "" for fault in faults[:2]] == ["Divisible", ""]
