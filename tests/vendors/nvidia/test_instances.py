"""MIG instances that somebody has made, as devices: by the strategies, and through the real driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hami_plugin.errors import DriverReason, DriverUnavailableError
from hami_plugin.model.device import Action, Device, Fault, Sighting
from tests.support.mig import MigAdministrator
from vendors.nvidia.host import FAMILY, DiscoveredInstance
from vendors.nvidia.instances import MAX_NAME, Parts, family, require_alike

LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
FAULT = Fault(reason="RowRemapPending", action=Action.RESET)
CUT = "a100-pcie-2-mig"


def card(index: int, *profiles: str, whole: bool = False) -> Device:
    traits = tuple(
        DiscoveredInstance(
            uuid=f"MIG-{index}-{n}", index=n, gi=n + 1, ci=0, profile=profile, slices=f"{n}+1", memory=4864
        )
        for n, profile in enumerate(profiles)
    )
    return Device(
        uuid=f"GPU-{index}", family=FAMILY, index=index, model="A100", memory=40960, traits=None if whole else traits
    )


def parts(strategy: Any, *cards: Device, answering: Sequence[str] | None = None) -> list[Sighting]:
    known = [one.uuid for one in cards] if answering is None else answering
    return list(Parts(strategy).of([Sighting(device=one) for one in cards], known)[0])


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        ("1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("2g.45gb+me.all", "nvidia.com/mig-2g.45gb.me.all"),
        ("1c.3g.20gb", "nvidia.com/mig-1c.3g.20gb"),
        ("1g.24gb+me,gfx", "nvidia.com/mig-1g.24gb.me.gfx"),
    ],
)
def test_a_profile_has_the_resource_that_nvidias_plugin_gives_it(profile: str, resource: str) -> None:
    (seen,) = parts("mixed", card(0, profile))

    assert family(seen.device.family).resources.count == resource
    assert LABEL.fullmatch(resource)
    assert seen.fault is None


def test_a_profile_that_cannot_name_a_resource_is_a_fault_and_no_resource() -> None:
    (fits, too_long) = parts("mixed", card(0, "1g.5gb" + "x" * (MAX_NAME - 10), "1g.5gb" + "x" * (MAX_NAME - 9)))

    assert fits.fault is None
    assert too_long.fault
    assert too_long.fault.reason == "ProfileName"


def test_mixed_shows_instances_beside_cards_that_are_not_cut_and_tells_which_cards_are() -> None:
    found, divided = Parts("mixed").of(
        [Sighting(device=card(0, "1g.5gb", "2g.10gb")), Sighting(device=card(1, whole=True))], ["GPU-0", "GPU-1"]
    )

    assert [(one.device.uuid, one.device.family, one.device.number) for one in found] == [
        ("MIG-0-0", "MIG-1g.5gb", "0:0"),
        ("MIG-0-1", "MIG-2g.10gb", "0:1"),
        ("GPU-1", "NVIDIA", "1"),
    ]
    assert divided == {"GPU-0"}
    assert {one.device.card for one in found} == {"GPU-0", "GPU-1"}


def test_a_card_that_is_cut_into_nothing_is_no_device() -> None:
    found, divided = Parts("mixed").of([Sighting(device=card(0))], ["GPU-0"])

    assert (found, divided) == ((), {"GPU-0"})


def test_a_fault_of_the_card_is_each_instances() -> None:
    found, _divided = Parts("mixed").of([Sighting(device=card(0, "1g.5gb", "1g.5gb"), fault=FAULT)], [])

    assert [one.fault for one in found] == [FAULT, FAULT]


def test_without_a_strategy_a_card_is_what_it_is() -> None:
    assert parts("none", card(0, "1g.5gb"), card(1, whole=True)) == [
        Sighting(device=card(0, "1g.5gb")),
        Sighting(device=card(1, whole=True)),
    ]


@pytest.mark.parametrize(
    "cards",
    [
        [card(0, whole=True), card(1, whole=True)],
        [card(0, "1g.5gb", "1g.5gb"), card(1, "1g.5gb")],
        [card(0, "7g.40gb")],
        [],
    ],
)
def test_cards_that_are_alike_are_served_under_single(cards: list[Device]) -> None:
    require_alike(cards)


@pytest.mark.parametrize(
    ("cards", "says", "remedy"),
    [
        (
            [card(0, "1g.5gb"), card(1, whole=True), card(2, whole=True)],
            "card 0 is in MIG mode and cards 1,2 are not",
            "nvidia-smi -i 1,2 -mig 1",
        ),
        (
            [card(0), card(1, whole=True)],
            "card 0 is in MIG mode and card 1 is not",
            "off (nvidia-smi -i 0 -mig 0)",
        ),
        (
            [card(0, "1g.5gb"), card(1)],
            "card 1 is in MIG mode without any instance",
            "nvidia-smi mig -i 1 -cgi",
        ),
        (
            [card(0, "1g.5gb"), card(1, "3g.20gb"), card(2, "1g.5gb")],
            "the instances differ: 1g.5gb on cards 0,2, 3g.20gb on card 1",
            "make instances of one profile only",
        ),
        (
            [card(0, "1g.5gb", "1g.5gb+me")],
            "the instances differ: 1g.5gb on card 0, 1g.5gb+me on card 0",
            "migStrategy: mixed",
        ),
    ],
)
def test_a_mixture_under_single_names_the_cards_and_the_remedy(cards: list[Device], says: str, remedy: str) -> None:
    with pytest.raises(DriverUnavailableError) as raised:
        parts("single", *cards)

    assert raised.value.reason is DriverReason.MIG_MIXTURE
    assert says in str(raised.value)
    assert remedy in str(raised.value)


def test_a_card_that_does_not_answer_makes_no_mixture() -> None:
    found = parts("single", card(0, "1g.5gb"), card(1, whole=True), answering=["GPU-0"])

    assert [one.device.uuid for one in found] == ["MIG-0-0", "GPU-1"]


@pytest.mark.parametrize(
    ("gi", "ci", "concerned"),
    [
        (1, 0, ["a"]),
        (2, 0, ["b"]),
        (2, None, ["b", "c"]),
        (None, 1, ["c"]),
        (None, None, ["a", "b", "c"]),
        (9, 0, ["a", "b", "c"]),
    ],
)
def test_an_event_is_about_the_instances_that_it_names_and_about_all_when_it_names_none_that_is_known(
    gi: int | None, ci: int | None, concerned: list[str]
) -> None:
    cut = replace(
        card(0),
        traits=tuple(
            DiscoveredInstance(uuid=uuid, index=n, gi=at, ci=inner, profile="1c.2g.10gb")
            for n, (uuid, at, inner) in enumerate([("a", 1, 0), ("b", 2, 0), ("c", 2, 1)])
        ),
    )
    known = Parts("mixed")
    known.of([Sighting(device=cut)], ["GPU-0"])

    assert list(known.concerned("GPU-0", gi, ci)) == concerned
    assert known.concerned("GPU-7", gi, ci) == ("GPU-7",)


def test_the_driver_finds_each_instance_with_its_memory_and_its_place(rig: Callable[..., Any]) -> None:
    machine = rig(CUT, migStrategy="mixed")

    devices = {one.device.number: one.device for one in machine.driver.discover().sightings}

    assert devices.keys() == {"0:0", "0:1", "0:2", "0:3", "1"}
    first = machine.uuid(0)
    assert [(devices[n].place.partition("/")[2], devices[n].memory) for n in ("0:0", "0:1", "0:2", "0:3")] == [
        ("4+4/ci0", 40192),
        ("0+2/ci0", 19968),
        ("2+1/ci0", 9728),
        ("3+1/ci0", 9728),
    ]
    assert {devices[n].card for n in ("0:0", "0:1", "0:2", "0:3")} == {first}
    assert {(one.minor, one.pci, one.numa) for one in devices.values() if one.place} == {(0, "0000:4f:00.0", 0)}


def test_an_instance_that_stops_answering_stays_with_a_fault_and_its_neighbours_without(
    rig: Callable[..., Any],
) -> None:
    machine = rig(CUT, migStrategy="mixed")
    before = [one.device for one in machine.driver.discover().sightings]

    machine.simulator.inject("fail-call", 0, "nvmlDeviceGetGpuInstanceId:999")
    after = machine.driver.discover().sightings

    assert [one.device for one in after] == before
    assert [one.fault.reason if one.fault else "" for one in after] == ["InstanceUnreadable"] * 4 + [""]
    machine.simulator.inject("back", 0)
    assert not any(one.fault for one in machine.driver.discover().sightings)


def test_who_may_not_ask_for_an_instances_place_has_its_number(rig: Callable[..., Any]) -> None:
    machine = rig(CUT, migStrategy="mixed")
    machine.simulator.inject("fail-call", 0, "nvmlDeviceGetGpuInstanceById:4")

    places = {one.device.place for one in machine.driver.discover().sightings if one.device.place}

    assert len(places) == 4
    assert all(re.fullmatch(rf"{machine.uuid(0)}/gi\d+/ci0", place) for place in places)


def test_a_lost_card_leaves_its_instances_known_and_unhealthy(rig: Callable[..., Any]) -> None:
    machine = rig(CUT, migStrategy="mixed")
    before = {one.device.uuid for one in machine.driver.discover().sightings}

    machine.simulator.inject("lost", 0)
    after = machine.driver.discover().sightings

    assert {one.device.uuid for one in after} == before
    assert {one.device.number: bool(one.fault) for one in after} == {
        **dict.fromkeys(("0:0", "0:1", "0:2", "0:3"), True),
        "1": False,
    }


def test_events_reach_the_instances_that_they_name(rig: Callable[..., Any]) -> None:
    machine = rig(CUT, migStrategy="mixed")
    numbers = {one.device.uuid: one.device.number for one in machine.driver.discover().sightings}
    gi, ci = MigAdministrator(machine.settings.nvml_library).instances(0)[
        next(uuid for uuid, number in numbers.items() if number == "0:2")
    ]

    for value in (f"94:{gi}:{ci}", f"13:{gi}:{ci}", f"95:{gi}:{ci}", "94"):
        machine.simulator.inject("xid", 0, value)
    events = machine.driver.poll(1.0)

    told = [(numbers[event.uuid], event.fault.reason, event.fault.action) for event in events]
    every = ["0:0", "0:1", "0:2", "0:3"]
    assert told == [
        ("0:2", "Xid94", Action.DRAIN),
        ("0:2", "Xid13", Action.IGNORE),
        *[(number, "Xid95", Action.RESET) for number in every],
        *[(number, "Xid94", Action.RESET) for number in every],
    ]


def test_a_card_whose_mode_is_on_is_never_taken_for_a_whole_one(rig: Callable[..., Any]) -> None:
    machine = rig(CUT, migStrategy="mixed")
    machine.simulator.inject("fail-call", 0, "nvmlDeviceGetMaxMigDeviceCount:3")

    found = machine.driver.discover()

    assert [one.device.uuid for one in found.sightings] == [machine.uuid(1)]
    assert found.divided == {machine.uuid(0)}


def test_a_cards_compute_mode_is_left_alone_where_it_is_cut(rig: Callable[..., Any]) -> None:
    machine = rig(CUT, migStrategy="mixed", computeMode="ExclusiveProcess", deviceSplitCount=1)
    machine.simulator.inject("fail-call", 0, "nvmlDeviceSetComputeMode:4")

    assert not any(one.fault for one in machine.driver.discover().sightings)
