"""Partitions that efsmi cuts for containers: what the tool is asked, and what is left when it fails at any call."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.errors import HamiError, RefusedError
from hami_plugin.host.paths import HostFiles, HostPaths
from hami_plugin.model.placement import Assignment, Grant, Share
from hami_plugin.node_status.registration import Style, wanted_annotations
from hami_plugin.partitions.life import State
from hami_plugin.sdk import NOWHERE, Cuttable, InUseError, Mode, NoRoomError, Partition, Placement
from tests.support.partition_lives import Lives
from tests.support.rigs import Rig, rig
from tests.support.scale import spread
from vendors.enflame import VENDOR
from vendors.enflame.drs import DEVICE_TYPE
from vendors.enflame.on_demand import ASSIGNED, DrsModes, DrsPartitions, names, reservations
from vendors.enflame.rules import SHARED, WHOLE
from vendors.enflame.settings import EnflameSettings

PROFILE = "enflame-s60-8-drs"
CARD = "n1-enflame-0"
CALLS = ("create:after", "create:before", "list:before", "destroy:after", "destroy:before", "profiles:before")


@pytest.fixture
def found(tmp_path: Path) -> Rig:
    """All cards are in DRS mode, and nothing is cut."""
    one = rig(PROFILE, tmp_path / "machine")
    return replace(one, family=next(f for f in VENDOR.families(one.settings) if f.resources.device_type == "vGCU"))


@pytest.fixture
def driver(found: Rig) -> DrsPartitions:
    return DrsPartitions(found.settings, "n1-enflame")


@pytest.fixture
def lives(driver: DrsPartitions, tmp_path: Path) -> Lives:
    return Lives(driver=driver, path=tmp_path / "journal", card=CARD)


def nothing(_ids: object) -> None:
    pass


def test_what_is_made_is_listed_and_what_is_destroyed_is_not(driver: DrsPartitions) -> None:
    steps: list[object] = []
    made = driver.create(CARD, "2g.16gb", NOWHERE, steps.append)
    other = driver.create("n1-enflame-3", "6g.48gb", NOWHERE, steps.append)

    assert driver.partitions() == (made, other)
    assert driver.partitions("n1-enflame-3") == (other,)
    assert steps == [made.ids, other.ids]
    driver.destroy(made, nothing)
    assert driver.partitions() == (other,)
    driver.destroy(made, nothing)  # one that is gone is no error


def test_profiles_are_slices_of_a_card(driver: DrsPartitions) -> None:
    told = [(one.name, one.memory, one.compute, one.limit, one.cores) for one in driver.profiles(CARD)]

    assert told == [
        ("1g.8gb", 8192, 1, 6, 17),
        ("2g.16gb", 16384, 2, 3, 34),
        ("3g.24gb", 24576, 3, 2, 50),
        ("6g.48gb", 49152, 6, 1, 100),
    ]


def test_a_card_has_six_slices_whoever_cuts_them(found: Rig, driver: DrsPartitions) -> None:
    found.simulator.inject("cut", 0, 3)
    driver.create(CARD, "2g.16gb", NOWHERE, nothing)

    with pytest.raises(NoRoomError, match="has 1 slices left"):
        driver.create(CARD, "2g.16gb", NOWHERE, nothing)
    assert len(driver.partitions()) == 2


@pytest.mark.parametrize(("profile", "place"), [("4g.32gb", NOWHERE), ("2g.16gb", Placement(start=0, size=2))])
def test_what_a_card_cannot_be_cut_to_is_not_asked_for(
    profile: str, place: Placement, found: Rig, driver: DrsPartitions
) -> None:
    with pytest.raises(HamiError, match="cannot be cut"):
        driver.create(CARD, profile, place, nothing)


def test_one_that_is_used_stays_and_goes_when_it_is_not(found: Rig, driver: DrsPartitions) -> None:
    made = driver.create(CARD, "2g.16gb", NOWHERE, nothing)
    found.simulator.inject("used", 0, str(made.ids["instance"]) + " -")

    with pytest.raises(InUseError, match="busy"):
        driver.destroy(made, nothing)
    found.simulator.inject("used", 0, "-")
    driver.destroy(made, nothing)
    assert driver.partitions() == ()


def test_another_one_with_the_same_number_is_not_destroyed(driver: DrsPartitions) -> None:
    made = driver.create(CARD, "2g.16gb", NOWHERE, nothing)

    driver.destroy(replace(made, uuid="00000009"), nothing)
    assert driver.partitions() == (made,)


@pytest.mark.parametrize("call", spread(CALLS, part=3))
def test_a_failure_at_any_call_leaves_nothing_that_is_not_known(call: str, found: Rig, lives: Lives) -> None:
    found.simulator.inject("cut", 0, 1)
    (foreign,) = lives.driver.partitions()
    kept = lives.allocate("kept", "2g.16gb")
    found.simulator.inject("order", 0, call)
    try:
        lives.allocate("a", "3g.24gb")
    except HamiError:
        assert "a" not in lives.living
    lives.living.discard("a")
    lives.settle()

    assert lives.driver.partitions() == (foreign, kept)
    assert sorted(lives.known(), key=lambda one: one[1].profile) == [
        (State.FOREIGN, foreign),
        (State.ASSIGNED, kept),
    ]
    lives.allocate("b", "3g.24gb")


@pytest.mark.parametrize("call", spread([one for one in CALLS if one.startswith(("create", "destroy"))], part=3))
def test_the_next_life_finds_what_the_last_one_has_left(call: str, found: Rig, lives: Lives) -> None:
    kept, ended = lives.allocate("kept", "1g.8gb"), lives.allocate("ended", "2g.16gb")
    found.simulator.inject("order", 0, call)
    lives.living.discard("ended")
    with suppress(HamiError):
        lives.allocate("b", "6g.48gb")
    lives.restart()
    lives.settle()

    assert ended not in lives.driver.partitions()
    assert lives.driver.partitions() == (kept,)


def test_while_no_card_can_be_cut_there_are_no_partitions(tmp_path: Path) -> None:
    whole = rig("enflame-s60-8", tmp_path)
    driver = DrsPartitions(whole.settings, "n1-enflame")

    assert (driver.partitions(), driver.profiles(CARD)) == ((), ())


def test_a_tool_that_fails_says_nothing_of_what_there_is(found: Rig, driver: DrsPartitions) -> None:
    found.simulator.inject("tool-fails")

    for ask in (driver.partitions, lambda: driver.profiles(CARD)):
        with pytest.raises(HamiError, match="not been initialised"):
            ask()


def announced(found: Rig, **cuttable: Cuttable) -> dict[str, object]:
    told = wanted_annotations(
        found.family,
        found.snapshot(),
        Style(),
        cuttable={f"n1-enflame-{card[1:]}": one for card, one in cuttable.items()},
    )
    return dict(json.loads(told["hami-plugin.io/slices-vGCU"] or "{}"))


def test_a_node_announces_the_slices_that_no_scheduler_counts_as_taken(found: Rig, driver: DrsPartitions) -> None:
    profiles = driver.profiles(CARD)
    foreign = Partition(card=CARD, profile="3g.24gb", placement=NOWHERE, uuid="u")
    told = announced(found, c0=Cuttable(profiles=profiles, blocked=(foreign,)), c1=Cuttable(profiles=profiles))

    of_card = {"profiles": {"1g.8gb": 1, "2g.16gb": 2, "3g.24gb": 3, "6g.48gb": 6}}
    assert (told["0"], told["1"]) == ({**of_card, "slices": 3}, {**of_card, "slices": 6})


@pytest.mark.parametrize(
    ("slices", "percent", "why"),
    [(6, 100, ""), (3, 50, ""), (3, 51, "CardWithoutFreePartition"), (1, 17, "CardWithoutFreePartition"), (1, 16, "")],
)
def test_a_share_fits_where_its_partition_can_be_cut(slices: int, percent: int, why: str, found: Rig) -> None:
    node = found.node(found.snapshot())
    told = json.loads(node.annotations["hami-plugin.io/slices-vGCU"])
    left = {card: {**one, "slices": slices} for card, one in told.items()}
    node = replace(node, annotations={**node.annotations, "hami-plugin.io/slices-vGCU": json.dumps(left)})

    assert why in found.refused(node, {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": percent})
    assert bool(found.refused(node, {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": percent})) == bool(why)


def test_partitions_of_several_cards_are_refused_when_they_are_scheduled(found: Rig) -> None:
    node = found.node(found.snapshot())

    assert "OnePartitionPerPod" in found.refused(node, {"enflame.com/vgcu": 2, "enflame.com/vgcu-percentage": 50})


def test_what_a_pod_has_is_told_as_enflames_agent_does_and_read_again(found: Rig) -> None:
    limits = {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 25}
    pod = found.decided(found.node(found.snapshot()), limits)
    (wanted,) = reservations(found.settings, "vGCU", pod)
    made = Partition(card=wanted.card, profile="2g.16gb", placement=NOWHERE, uuid="abc", ids={"instance": 4})
    told = names(pod, [(wanted, made)])

    assert (wanted.profile, wanted.uuid) == ("25%", "")
    assert json.loads(told[ASSIGNED])["main"] == {
        "allocated": True,
        "instanceID": "4",
        "instanceUUID": "abc",
        "profileName": "2g.16gb",
        "request": 2,
    }
    (again,) = reservations(found.settings, "vGCU", replace(pod, annotations={**pod.annotations, **told}))
    assert (again.profile, again.uuid, again.ids) == ("2g.16gb", "abc", {"instance": 4})
    assert reservations(found.settings, "Enflame", pod) == []


def share(found: Rig, *grants: Grant) -> Assignment:
    devices = {one.uuid: one for one in found.snapshot().devices}
    pod = found.decided(found.node(found.snapshot()), {"enflame.com/vgcu": 1})
    shares = tuple(Share(grant=one, device=devices[one.uuid]) for one in grants)
    return Assignment(pod=pod, container=pod.containers[0], shares=shares)


@pytest.mark.parametrize(
    ("percent", "profile"), [(1, "1g.8gb"), (16, "1g.8gb"), (17, "2g.16gb"), (51, "6g.48gb"), (0, "6g.48gb")]
)
def test_a_share_has_the_smallest_partition_that_serves_it(percent: int, profile: str, found: Rig) -> None:
    assert found.family.node.partitions
    (wanted,) = found.family.node.partitions.wanted(
        share(found, Grant(uuid=CARD, device_type="Enflame", memory=percent, cores=0))
    )

    assert (wanted.card, wanted.profile) == (CARD, profile)


def test_a_container_that_was_granted_two_cards_is_refused(found: Rig) -> None:
    two = [Grant(uuid=f"n1-enflame-{card}", device_type="Enflame", memory=50, cores=0) for card in (0, 1)]

    assert found.family.node.partitions
    with pytest.raises(RefusedError, match="can be told of one"):
        found.family.node.partitions.wanted(share(found, *two))


def test_a_partition_without_a_usable_name_is_not_given_to_a_container(found: Rig) -> None:
    odd = Partition(card=CARD, profile="6g.48gb", placement=NOWHERE, uuid="a,b", ids={"instance": 0})

    assert found.family.node.partitions
    with pytest.raises(HamiError, match="no container can be told"):
        found.family.node.partitions.inject(
            share(found, Grant(uuid=CARD, device_type="Enflame", memory=100, cores=0)),
            [odd],
            HostFiles(paths=HostPaths()),
        )


def test_slices_are_registered_without_those_that_others_have(tmp_path: Path) -> None:
    one = rig(PROFILE, tmp_path, serve="partitions")
    assert isinstance(one.settings, EnflameSettings)
    foreign = Partition(card="n1-enflame-drs-0", profile="2g.16gb", placement=NOWHERE, uuid="u")
    told = wanted_annotations(
        one.family, one.snapshot(), Style(), cuttable={"n1-enflame-drs-0": Cuttable(blocked=(foreign,))}
    )
    capacity = json.loads(told["enflame.com/gcu-drs-capacity"] or "{}")

    assert [each["capacity"] for each in capacity["devices"]] == [4, 6, 6, 6, 6, 6, 6, 6]


def mode(on: bool, problem: str = "") -> Mode:
    return Mode(capable=True, current=on, pending=on, problem=problem)


def test_a_card_is_switched_into_drs_mode_and_out_of_it_once_nothing_is_cut(found: Rig, driver: DrsPartitions) -> None:
    modes = DrsModes(found.settings)
    found.simulator.inject("mode", 0, "off")
    assert (modes.mode(CARD), driver.profiles(CARD)) == (mode(on=False), ())

    modes.switch(CARD, on=True)
    assert modes.mode(CARD) == mode(on=True)
    made = driver.create(CARD, "2g.16gb", NOWHERE, nothing)
    with pytest.raises(HamiError, match=r"not switched: the card has 1 partition\(s\)"):
        modes.switch(CARD, on=False)
    driver.destroy(made, nothing)
    modes.switch(CARD, on=False)
    assert modes.mode(CARD) == mode(on=False)


@pytest.mark.parametrize(("order", "on"), [("switch:before", False), ("switch:after", True)])
def test_a_switch_that_fails_is_told_and_the_card_says_what_became_of_it(order: str, on: bool, found: Rig) -> None:
    modes = DrsModes(found.settings)
    found.simulator.inject("mode", 0, "off")
    found.simulator.inject("order", 0, order)

    with pytest.raises(HamiError, match="switch failed"):
        modes.switch(CARD, on=True)
    assert modes.mode(CARD).current is on
    modes.switch(CARD, on=True)
    assert modes.mode(CARD).current


def test_a_switch_that_changes_nothing_is_a_failure(found: Rig) -> None:
    modes = DrsModes(found.settings)
    found.simulator.inject("mode", 0, "off")
    found.simulator.inject("order", 0, "switch:leave")

    with pytest.raises(HamiError, match="does not say so"):
        modes.switch(CARD, on=True)


def test_a_card_that_is_shared_in_another_way_is_not_switched(found: Rig) -> None:
    modes = DrsModes(found.settings)
    found.simulator.inject("mode", 0, "SRIOV")

    with pytest.raises(HamiError, match="efsmi says SRIOV"):
        modes.switch(CARD, on=True)


@pytest.mark.parametrize(
    ("serve", "drs_mode", "served"),
    [
        ("auto", "enabled", SHARED),
        ("partitions", "enabled", DEVICE_TYPE),
        ("auto", "disabled", WHOLE),
        ("whole", "keep", ""),
    ],
)
def test_one_family_has_the_cards_that_are_to_be_switched(serve: str, drs_mode: str, served: str) -> None:
    settings = EnflameSettings.model_validate({"serve": serve, "drsMode": drs_mode})

    switched = [family.resources.device_type for family in VENDOR.families(settings) if family.node.modes]
    assert switched == [served] * bool(served)
