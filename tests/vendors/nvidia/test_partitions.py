"""NVIDIA's partition driver against the simulated library: whatever fails, the hardware is as before or journalled."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hami_plugin.errors import DriverUnavailableError, HamiError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.sdk.partitions import InUseError, Mode, NoRoomError, Partition, Placement, UnlistedCardsError
from hami_plugin.simulation.machines import load_machine
from tests.support.scale import spread
from vendors.nvidia import partitions
from vendors.nvidia.driver import NvmlDriver
from vendors.nvidia.partitions import MigPartitions, profile_name
from vendors.nvidia.settings import NvidiaSettings
from vendors.nvidia.simulation import NvmlSimulator, records, simulate

TABLES = records.load_tables()
HALF = Placement(4, 4)


@dataclass(frozen=True)
class Rig:
    """A simulated machine whose first card is in MIG mode, and the driver on it. ``steps`` is what was journalled."""

    simulator: NvmlSimulator
    settings: NvidiaSettings
    driver: MigPartitions
    cards: tuple[str, ...]
    steps: list[Mapping[str, int]]

    def make(self, profile: str = "3g.20gb", placement: Placement = HALF) -> Partition:
        return self.driver.create(self.cards[0], profile, placement, self.steps.append)

    def destroy(self, partition: Partition) -> None:
        self.driver.destroy(partition, self.steps.append)

    def capabilities(self) -> int:
        """How many nodes of instances there are."""
        return len(list((self.simulator.directory / "dev/nvidia-caps").glob("*")))

    def fail(self, value: str) -> None:
        self.simulator.inject("fail-later", value=value)

    def new(self, **options: Any) -> MigPartitions:
        return driver_of(self.settings, **options)


def driver_of(settings: NvidiaSettings, **options: Any) -> MigPartitions:
    return MigPartitions(settings, HostFiles(paths=HostPaths().rooted(settings)), **options)


@pytest.fixture
def rig(tmp_path: Path) -> Callable[..., Rig]:
    def build(profile: str = "hgx-a100-4gpu", table: str = "", model: str = "") -> Rig:
        machine = load_machine(profile)
        if table:
            devices = tuple(
                replace(one, model=model or one.model, extra={**one.extra, "mig_table": table})
                for one in machine.devices
            )
            machine = replace(machine, devices=devices)
        simulator = simulate(machine, tmp_path / "machine")
        settings = NvidiaSettings.model_validate(simulator.settings())
        driver = driver_of(settings)
        cards = tuple(one.uuid for one in machine.devices)
        driver.switch(cards[0], on=True)
        return Rig(simulator=simulator, settings=settings, driver=driver, cards=cards, steps=[])

    return build


@pytest.mark.parametrize("table", TABLES)
def test_every_profile_is_made_at_every_place_and_listed_as_it_was_returned(
    table: str, rig: Callable[..., Rig]
) -> None:
    machine = rig("dgx-h100", table, TABLES[table]["models"][0])
    rows = {row["name"]: row for row in TABLES[table]["profiles"]}

    profiles = machine.driver.profiles(machine.cards[0])

    assert {one.name: (one.memory, one.compute, one.limit) for one in profiles} == {
        name: (row["memory_mib"], row["compute_slices"], row["max_instances"]) for name, row in rows.items()
    }
    for one in profiles:
        assert [(place.start, place.size) for place in one.placements] == [
            (start, rows[one.name]["size"]) for start in rows[one.name]["starts"]
        ]
        for place in one.placements:
            made = machine.make(one.name, place)
            assert machine.driver.partitions() == (made,)
            assert made.uuid.startswith("MIG-")
            assert machine.capabilities() == 2
            machine.destroy(made)
            assert machine.driver.partitions() == ()
            assert machine.capabilities() == 0


def test_each_call_that_changes_something_is_told(rig: Callable[..., Rig]) -> None:
    machine = rig()
    made = machine.make()
    machine.destroy(made)

    assert machine.steps == [{"gi": 2}, {"gi": 2, "ci": 0}, {"gi": 2}, {}]


def test_a_profiles_part_of_the_compute_is_that_of_its_multiprocessors(rig: Callable[..., Rig]) -> None:
    machine = rig()

    found = {one.name: one.cores for one in machine.driver.profiles(machine.cards[0])}

    assert found == {
        "1g.5gb": 15,
        "1g.5gb+me": 15,
        "1g.10gb": 15,
        "2g.10gb": 29,
        "3g.20gb": 43,
        "4g.20gb": 58,
        "7g.40gb": 100,
    }


def failures(attempt: Callable[[int], bool]) -> int:
    """How many calls an operation makes: it is run with a failure at each, until one comes too late."""
    number = 0
    while attempt(number):
        number += 1
        assert number < 1000
    return number


@pytest.mark.parametrize("code", spread([999, 4, 6, 15, 19, 23], part=3))
def test_a_creation_that_fails_at_any_call_leaves_nothing(code: int, rig: Callable[..., Rig]) -> None:
    machine = rig()
    other = machine.make("1g.5gb", Placement(0, 1))

    def attempt(number: int) -> bool:
        machine.steps.clear()
        machine.fail(f"{number}:{code}")
        try:
            machine.make()
        except HamiError:
            failed = True
        else:
            failed = False
        machine.fail("0:0")
        if failed:
            assert machine.driver.partitions() == (other,)
            assert machine.capabilities() == 2
            assert machine.steps[-1:] in ([], [{}])
        return failed

    assert failures(attempt) > 30


def test_what_a_creation_leaves_when_nothing_answers_any_more_is_in_the_last_step_or_where_it_was_meant(
    rig: Callable[..., Rig],
) -> None:
    machine = rig()
    seen = set()

    def attempt(number: int) -> bool:
        machine.steps.clear()
        machine.fail(f"{number}:15:0")
        try:
            machine.make()
        except HamiError:
            failed = True
        else:
            failed = False
        machine.fail("0:0")
        left = machine.driver.partitions()
        if failed and left:
            (one,) = left
            assert (one.profile, one.placement) == ("3g.20gb", HALF)
            assert not machine.steps or machine.steps[-1].items() <= one.ids.items()
            seen.add((len(machine.steps), bool(one.uuid)))
        for one in left:
            machine.destroy(one)
        return failed

    failures(attempt)
    assert seen == {(0, False), (1, False), (1, True), (2, True)}


@pytest.mark.parametrize("code", spread([999, 4, 15, 19, 23], part=3))
def test_a_destruction_that_fails_at_any_call_is_finished_by_the_next_one(code: int, rig: Callable[..., Rig]) -> None:
    machine = rig()
    halfway = 0

    def attempt(number: int) -> bool:
        nonlocal halfway
        made = machine.make()
        machine.steps.clear()
        machine.fail(f"{number}:{code}")
        try:
            machine.destroy(made)
        except HamiError:
            failed = True
        else:
            failed = False
        machine.fail("0:0")
        left = machine.driver.partitions()
        assert failed or not left
        if failed and left != (made,) and left:
            (one,) = left
            halfway += 1
            assert (one.uuid, one.ids) == ("", {"gi": 2})
            assert machine.steps == [{"gi": 2}]
        elif not left:
            assert machine.steps[-1] == {}
        for one in left:
            machine.destroy(one)
        assert machine.driver.partitions() == ()
        return failed

    assert failures(attempt) > 20
    assert halfway == 1


@pytest.mark.parametrize("code", [2, 6])
@pytest.mark.parametrize("call", ["nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"])
def test_one_that_is_said_to_be_gone_and_still_answers_is_there(code: int, call: str, rig: Callable[..., Rig]) -> None:
    machine = rig()
    made = machine.make()
    machine.simulator.inject("fail-call", 0, f"{call}:{code}")

    with pytest.raises(HamiError):
        machine.destroy(made)
    assert [one.placement for one in machine.driver.partitions()] == [HALF]
    assert {} not in machine.steps


@pytest.mark.parametrize("after", [1, 2])
def test_a_journal_that_cannot_be_written_makes_nothing(after: int, rig: Callable[..., Rig]) -> None:
    machine = rig()
    told = []

    def full(ids: Mapping[str, int]) -> None:
        told.append(ids)
        if len(told) >= after:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        machine.driver.create(machine.cards[0], "3g.20gb", HALF, full)

    assert machine.driver.partitions() == ()
    assert told[-1] == {}


_MAKE = """
import sys, json
from pathlib import Path
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.sdk.partitions import Placement
from vendors.nvidia.partitions import MigPartitions
from vendors.nvidia.settings import NvidiaSettings
from vendors.nvidia.simulation import NvmlSimulator
settings = NvidiaSettings.model_validate(NvmlSimulator.attach(Path(sys.argv[1])).settings())
driver = MigPartitions(settings, HostFiles(paths=HostPaths().rooted(settings)))
step = lambda ids: print(json.dumps(ids), flush=True)
if sys.argv[3] == "create":
    driver.create(sys.argv[2], "3g.20gb", Placement(4, 4), step)
else:
    (there,) = driver.partitions(sys.argv[2])
    driver.destroy(there, step)
"""


@pytest.mark.parametrize(
    ("what", "call", "left", "told"),
    [
        ("create", "nvmlDeviceCreateGpuInstanceWithPlacement", {"gi": 2}, ""),
        ("create", "nvmlGpuInstanceCreateComputeInstance", {"gi": 2, "ci": 0}, '{"gi": 2}\n'),
        ("destroy", "nvmlComputeInstanceDestroy", {"gi": 2}, ""),
        ("destroy", "nvmlGpuInstanceDestroy", None, '{"gi": 2}\n'),
    ],
)
def test_what_a_daemon_that_is_killed_leaves_is_listed_and_can_be_destroyed(
    what: str, call: str, left: dict[str, int] | None, told: str, rig: Callable[..., Rig]
) -> None:
    machine = rig()
    if what == "destroy":
        machine.make()
    machine.simulator.inject("die", value=call)
    command = [sys.executable, "-c", _MAKE, str(machine.simulator.directory), machine.cards[0], what]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout) == (-9, told)
    there = machine.driver.partitions()
    assert [one.ids for one in there] == ([left] if left else [])
    for one in there:
        assert (one.profile, one.placement, bool(one.uuid)) == ("3g.20gb", HALF, "ci" in one.ids)
        machine.destroy(one)
    assert machine.driver.partitions() == ()
    assert machine.capabilities() == 0


def test_no_room_and_no_such_place_are_told_apart(rig: Callable[..., Rig]) -> None:
    machine = rig()
    machine.make()

    for profile, placement in (("3g.20gb", HALF), ("1g.5gb", Placement(6, 1)), ("7g.40gb", Placement(0, 8))):
        with pytest.raises(NoRoomError, match="no room"):
            machine.make(profile, placement)
    with pytest.raises(HamiError, match="cannot be at 2") as caught:
        machine.make("3g.20gb", Placement(2, 4))
    assert not isinstance(caught.value, NoRoomError)
    with pytest.raises(HamiError, match="no MIG profile 5g"):
        machine.make("5g.20gb", HALF)
    assert len(machine.driver.partitions()) == 1


def test_a_profile_is_found_by_the_name_that_another_driver_gives_it(rig: Callable[..., Rig]) -> None:
    machine = rig("dgx-h100")

    assert machine.make("7g.79gb", Placement(0, 8)).profile == "7g.80gb"
    with pytest.raises(HamiError, match="no MIG profile"):
        machine.make("1g.10gb+gfx", Placement(0, 1))


def test_one_that_is_gone_is_no_error_and_one_made_anew_in_its_place_stays(rig: Callable[..., Rig]) -> None:
    machine = rig()
    old = machine.make()
    machine.destroy(old)
    machine.destroy(old)
    new = machine.make()

    with pytest.raises(HamiError, match="made it anew"):
        machine.destroy(old)
    with pytest.raises(HamiError, match="incomplete"):
        machine.destroy(replace(old, uuid="", ids={"gi": 2}))
    assert machine.driver.partitions() == (new,)
    machine.destroy(new)
    smaller = machine.make("1g.5gb", Placement(4, 1))
    machine.destroy(old)
    assert machine.driver.partitions() == (smaller,)


@pytest.mark.parametrize(("fault", "value", "off"), [("process", "42:10:2:0", "42:0"), ("held", "2:0:1", "2:0:0")])
def test_one_in_use_stays_whole_whether_its_user_is_known_or_not(
    fault: str, value: str, off: str, rig: Callable[..., Rig]
) -> None:
    machine = rig()
    made = machine.make()
    machine.steps.clear()
    machine.simulator.inject(fault, 0, value)

    with pytest.raises(InUseError, match="in use by 42" if fault == "process" else "no list of processes"):
        machine.destroy(made)
    assert machine.driver.users(made) == ([42] if fault == "process" else [])
    assert machine.steps == []
    assert machine.driver.partitions() == (made,)
    machine.simulator.inject(fault, 0, off)
    machine.destroy(made)
    assert machine.driver.users(made) == ()


def test_a_held_gpu_instance_whose_compute_instance_is_gone_is_finished_later(rig: Callable[..., Rig]) -> None:
    machine = rig()
    made = machine.make()
    machine.steps.clear()
    machine.simulator.inject("held", 0, "2:1")

    with pytest.raises(InUseError):
        machine.destroy(made)
    assert machine.steps == [{"gi": 2}]
    (rest,) = machine.driver.partitions()
    assert rest == replace(made, uuid="", ids={"gi": 2})
    machine.simulator.inject("held", 0, "2:0")
    machine.destroy(rest)
    assert machine.driver.partitions() == ()


def test_compute_instances_that_share_are_listed_each_and_protect_each_other(rig: Callable[..., Rig]) -> None:
    machine = rig()
    with machine.driver._session("test") as nvml:
        card = nvml.card(machine.cards[0])
        gi = nvml.create_gpu_instance(card, 9, 4, 4)
        for number in (0, 1):
            profile = nvml.ci_profile(gi, number)
            assert profile
            nvml.create_compute_instance(gi, profile.id)

    both = machine.driver.partitions()

    assert sorted(one.profile for one in both) == ["1c.3g.20gb", "2c.3g.20gb"]
    assert {one.placement for one in both} == {HALF}
    with pytest.raises(InUseError, match="another compute instance"):
        machine.destroy(both[0])
    assert machine.driver.partitions() == both


def test_nodes_are_waited_for_and_their_lack_undoes_the_instance(rig: Callable[..., Rig]) -> None:
    machine = rig()
    machine.simulator.inject("no-nodes", value=1)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    driver = machine.new(clock=lambda: now[0], sleep=sleep)
    with pytest.raises(HamiError, match=r"has no /dev/nvidia-caps/nvidia-cap21 and .*cap22 after 5 s"):
        driver.create(machine.cards[0], "3g.20gb", HALF, machine.steps.append)
    assert now[0] >= partitions.NODE_DEADLINE_S
    assert machine.driver.partitions() == ()
    assert machine.steps[-1] == {}

    late = machine.new(sleep=lambda _s: machine.simulator.inject("no-nodes", value=0))
    assert late.create(machine.cards[0], "3g.20gb", HALF, machine.steps.append).uuid
    assert machine.capabilities() == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_nodes_that_nobody_makes_are_made_by_the_kernels_numbers(rig: Callable[..., Rig]) -> None:
    machine = rig()
    machine.simulator.inject("no-nodes", value=1)
    devices = "Character devices:\n  1 mem\n239 nvidia-caps\n\nBlock devices:\n  8 sd\n"
    (machine.simulator.directory / "proc/devices").write_text(devices)

    machine.make()

    made = {path.name: path.stat() for path in (machine.simulator.directory / "dev/nvidia-caps").iterdir()}
    assert {
        name: (stat.S_ISCHR(one.st_mode), os.major(one.st_rdev), os.minor(one.st_rdev)) for name, one in made.items()
    } == {
        "nvidia-cap21": (True, 239, 21),
        "nvidia-cap22": (True, 239, 22),
    }


def test_a_driver_that_names_the_card_with_a_compute_instance_is_understood(rig: Callable[..., Rig]) -> None:
    machine = rig()
    machine.make("1g.5gb", Placement(0, 1))
    machine.simulator.inject("parent-in-info", value=1)

    made = machine.make()

    assert made.uuid.startswith("MIG-")
    assert made in machine.driver.partitions()
    machine.destroy(made)
    assert len(machine.driver.partitions()) == 1


def test_cards_that_do_not_answer_are_named_and_hide_no_others(rig: Callable[..., Rig]) -> None:
    machine = rig()
    made = machine.make()
    machine.simulator.inject("lost", 2)

    with pytest.raises(UnlistedCardsError, match="GpuIsLost") as caught:
        machine.driver.partitions()
    assert caught.value.cards == (machine.cards[2],)
    assert caught.value.partitions == (made,)
    assert machine.driver.partitions(machine.cards[0]) == (made,)
    machine.simulator.inject("lost", 0)
    with pytest.raises(HamiError, match="GpuIsLost"):
        machine.destroy(made)
    with pytest.raises(HamiError, match="GpuIsLost"):
        machine.driver.partitions(machine.cards[0])


def test_without_the_right_to_it_nothing_is_listed_as_nothing(rig: Callable[..., Rig]) -> None:
    machine = rig()
    made = machine.make()
    machine.simulator.inject("rights", value="monitor")

    with pytest.raises(UnlistedCardsError, match="NVIDIA_MIG_CONFIG_DEVICES"):
        machine.driver.partitions()
    with pytest.raises(HamiError, match=r"NoPermission.*NVIDIA_MIG_CONFIG_DEVICES"):
        machine.destroy(made)
    with pytest.raises(HamiError, match="NoPermission"):
        machine.make("1g.5gb", Placement(0, 1))


@pytest.mark.parametrize("fault", ["driver-gone", "mismatch"])
def test_a_driver_that_is_away_is_unavailable(fault: str, rig: Callable[..., Rig]) -> None:
    machine = rig()
    made = machine.make()
    machine.simulator.inject(fault)

    for call in (
        machine.driver.partitions,
        lambda: machine.destroy(made),
        machine.make,
        lambda: machine.driver.mode(machine.cards[0]),
        lambda: machine.driver.profiles(machine.cards[0]),
        lambda: machine.driver.users(made),
    ):
        with pytest.raises(DriverUnavailableError):
            call()


def test_after_a_reset_what_was_there_is_gone_and_can_be_made_again(rig: Callable[..., Rig]) -> None:
    machine = rig()
    old = machine.make()
    machine.simulator.inject("reset", 0)

    assert machine.driver.partitions() == ()
    machine.destroy(old)
    new = machine.make()
    assert new.uuid != old.uuid
    assert (new.ids, new.placement) == (old.ids, old.placement)


def test_a_card_without_its_mode_has_no_profiles_and_makes_nothing(rig: Callable[..., Rig]) -> None:
    machine = rig()

    assert machine.driver.profiles(machine.cards[1]) == ()
    with pytest.raises(HamiError, match="not in MIG mode"):
        machine.driver.create(machine.cards[1], "3g.20gb", HALF, machine.steps.append)
    assert not machine.driver.mode(machine.cards[1]).current


def test_a_mode_is_changed_on_an_idle_card_only(rig: Callable[..., Rig]) -> None:
    machine = rig()
    driver, (first, second, *_) = machine.driver, machine.cards
    made = machine.make()

    assert "1 GPU instance" in driver.mode(first).problem
    with pytest.raises(HamiError, match="is not changed"):
        driver.switch(first, on=False)
    machine.destroy(made)
    driver.switch(first, on=False)
    assert not driver.mode(first).current
    machine.simulator.inject("process", 1, "42:10")
    with pytest.raises(HamiError, match="processes use the card: 42"):
        driver.switch(second, on=True)
    assert driver.mode(second).pending is False


def test_a_change_that_waits_for_a_reset_is_seen_and_not_taken_back(rig: Callable[..., Rig]) -> None:
    machine = rig()
    driver, card = machine.driver, machine.cards[1]
    machine.simulator.inject("passed-through", 1, 1)

    with pytest.raises(HamiError, match="next reset"):
        driver.switch(card, on=True)
    mode = driver.mode(card)
    assert (mode.current, mode.pending, mode.problem) == (False, True, "a change waits for the card's reset")
    assert driver.profiles(card) == ()
    with pytest.raises(HamiError, match="waits for the card's reset"):
        driver.switch(card, on=False)
    machine.simulator.inject("reset", 1)
    assert driver.profiles(card)


@pytest.mark.parametrize(("profile", "resets"), [("hgx-a100-4gpu", True), ("dgx-h100", False), ("hgx-b200", False)])
def test_a_change_resets_older_cards_only(profile: str, resets: bool, rig: Callable[..., Rig]) -> None:
    machine = rig(profile)

    assert machine.driver.mode(machine.cards[1]).resets is resets


def test_a_card_without_mig_says_so(tmp_path: Path) -> None:
    machine = load_machine("t4-4-pcie")
    driver = driver_of(NvidiaSettings.model_validate(simulate(machine, tmp_path / "machine").settings()))

    assert driver.partitions() == ()
    assert driver.profiles(machine.devices[0].uuid) == ()
    assert driver.mode(machine.devices[0].uuid) == Mode(capable=False, problem="the card has no MIG")


def test_cards_are_cut_side_by_side_while_discovery_opens_the_driver_anew(rig: Callable[..., Rig]) -> None:
    machine = rig()
    for card in machine.cards[1:]:
        machine.driver.switch(card, on=True)
    discovery = NvmlDriver(machine.settings, HostPaths())
    errors: list[Exception] = []
    stop = threading.Event()

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # a thread's, for the assertion below
            errors.append(error)

    def cut(card: str) -> None:
        for _ in range(10):
            made = [machine.driver.create(card, "2g.10gb", Placement(n, 2), lambda _ids: None) for n in (0, 2, 4)]
            assert machine.driver.partitions(card) == tuple(made)
            for one in made:
                machine.driver.destroy(one, lambda _ids: None)

    def discover() -> None:
        while not stop.is_set():
            assert len(discovery.discover().sightings) == len(machine.cards)
            machine.driver.partitions()
            discovery.close()

    other = threading.Thread(target=guarded, args=(discover,))
    cutters = [threading.Thread(target=guarded, args=(lambda card=card: cut(card),)) for card in machine.cards]
    for thread in (other, *cutters):
        thread.start()
    for thread in cutters:
        thread.join(60)
    stop.set()
    other.join(60)
    assert errors == []
    assert machine.driver.partitions() == ()


@pytest.mark.parametrize("table", TABLES)
def test_names_are_put_together_as_newer_drivers_give_them(table: str) -> None:
    facts = TABLES[table]
    named = {
        row["name"]: profile_name(row["number"], row["compute_slices"], row["memory_mib"], facts["memory_mib"] << 20)
        for row in facts["profiles"]
    }

    assert {name: given for name, given in named.items() if name != given} == {}


def test_an_older_driver_without_names_is_served_too(rig: Callable[..., Rig]) -> None:
    machine = rig()

    class Older:
        """A library that lacks the newer call."""

        def __init__(self, library: Any) -> None:
            self._library = library
            self._handle = library._handle

        def __getattr__(self, name: str) -> Any:
            if name == "nvmlDeviceGetGpuInstanceProfileInfoV":
                raise AttributeError(name)
            return getattr(self._library, name)

    older = machine.new(load=lambda path: Older(ctypes.CDLL(path)))
    assert older.profiles(machine.cards[0]) == machine.driver.profiles(machine.cards[0])


def test_of_cards_that_are_not_cut_here_nothing_is_listed_and_their_instances_are_devices(
    rig: Callable[..., Rig],
) -> None:
    machine = rig()
    made = machine.make()
    other = machine.cards[2]
    machine.driver.switch(other, on=True)
    static = machine.driver.create(other, "2g.10gb", Placement(0, 2), machine.steps.append)
    asked = {"operatingMode": "mig", "cutDevices": {"index": [0]}, "migStrategy": "mixed"}
    settings = NvidiaSettings.model_validate({**machine.simulator.settings(), **asked})

    assert driver_of(settings).partitions() == (made,)
    found = NvmlDriver(settings, HostPaths()).discover()
    shown = {one.device.uuid: (one.device.mode, one.fault) for one in found.sightings}
    assert shown == {
        machine.cards[0]: ("mig", None),
        machine.cards[1]: ("hami-core", None),
        static.uuid: ("hami-core", None),
        machine.cards[3]: ("hami-core", None),
    }
    assert found.divided == {other}
