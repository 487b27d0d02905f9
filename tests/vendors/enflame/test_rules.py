"""What is different in Enflame: partitions by profile, whole cards, and the shares by percentage of HAMi 2.7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hami_plugin.errors import WireError
from hami_plugin.model.placement import Grant
from hami_plugin.model.views import ContainerView, NodeView, PodView
from hami_plugin.scheduler.engine.devices import (
    Admitted,
    Context,
    Demand,
    Denied,
    DeviceState,
    Invalid,
    Reason,
    idle_state,
)
from hami_plugin.scheduler.engine.fit import Granted, Refused, fit
from tests.hami import values
from tests.hami.answers import ABOUT_A_FAMILY
from tests.hami.catalog import Known
from tests.hami.compare import compared
from tests.hami.differences import DIFFERENCES
from tests.hami.vendors.enflame import parity
from tests.support.hami import asks
from tests.support.hami_questions import renamed
from vendors.enflame.partitions import Wanted, in_gb, number, offered_profiles, size, smallest_profile
from vendors.enflame.rules import families
from vendors.enflame.settings import EnflameSettings

DECIDED_AT = 1_700_000_000_000_000_001
EXCUSED = {"clampToInt32": "a step of reading numbers, which are compared whole (D-301)"}
KNOWN = {
    family.resources.device_type: Known(vendor="enflame", family=family, parity=parity())
    for family in families(EnflameSettings(), clock=lambda: DECIDED_AT)
}
DRS, GCU, SHARED = (known.family for known in KNOWN.values())
SEED = NodeView(name="node1", capacity={"enflame.com/gcu-count": "2", "enflame.com/shared-gcu": "8"})
PROFILES = '{"1g.8gb":"0","2g.16gb":"1","3g.24gb":"2","6g.48gb":"3"}'


def pod(*names: str, **annotations: str) -> PodView:
    named = {f"enflame.com/{key.replace('_', '-')}": text for key, text in annotations.items()}
    containers = tuple(ContainerView(name=name) for name in names)
    return PodView(uid="u", namespace="n", name="p", annotations=named, containers=containers)


def drs_node(count: int = 1) -> NodeView:
    cards = ",".join(f'{{"index":"{n}","minor":"{n}","capacity":6}}' for n in range(count))
    return NodeView(
        name="n", annotations={"enflame.com/gcu-drs-capacity": f'{{"devices":[{cards}],"profiles":{PROFILES}}}'}
    )


def agree(question: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    ours = ABOUT_A_FAMILY[question["fn"]](question, KNOWN[question["vendor"]])
    ours = {key: value for key, value in ours.items() if key in theirs or key == "err"}
    rules = [one for one in DIFFERENCES if one.applies(question)]
    return not compared(question, ours, theirs) or any(one.right(question, ours, theirs) for one in rules)


@asks(("enflame_fit", "enflame_gcu"), "Fit")
def test_hami_and_we_choose_the_same_cards(case: Mapping[str, Any]) -> None:
    question, expected = renamed(case["input"]), renamed(case["expected"])
    unset = {"memreq": 0, "mempercentagereq": 0, "coresreq": 0}
    device_type = "GCU" if "GCUDevices" in case["fn"] else "Enflame"
    theirs = {"ok": expected["fit"], "devices": expected["devices"], "reason": expected["reason"]}

    asked = {"fn": "fit", "vendor": device_type, **question, "request": {**unset, **question["request"]}}

    assert agree(asked, theirs)


@asks(("enflame_request", "enflame_gcu"), "GenerateResourceRequests")
def test_hami_and_we_read_the_same_request(case: Mapping[str, Any]) -> None:
    device_type = "GCU" if "GCUDevices" in case["fn"] else "Enflame"
    assert agree({"fn": "request", "vendor": device_type, **plain(case["input"])}, renamed(case["expected"]))


@asks(("enflame_request", "enflame_gcu"), "MutateAdmission")
def test_hami_and_we_admit_the_same_containers(case: Mapping[str, Any]) -> None:
    question, expected = plain(case["input"]), case["expected"]
    container = (expected.get("after") or {}).get("container") or question["container"]
    theirs = {
        "found": expected["found"],
        "limits": container.get("limits") or {},
        "requests": container.get("requests") or {},
    }
    device_type = "GCU" if "GCUDevices" in case["fn"] else "Enflame"

    asked = {"fn": "mutate", "vendor": device_type, **question}

    assert agree(asked, {"err": expected["error"]} if expected["error"] else theirs)


def plain(question: Mapping[str, Any]) -> dict[str, Any]:
    """A question whose quantities are texts."""
    container = dict(question["container"])
    for place in ("limits", "requests"):
        texts = container.get(place) or {}
        container[place] = {k: v["quantity"] if isinstance(v, dict) else v for k, v in texts.items()}
    return {**question, "container": container}


@asks(("enflame_fit", "enflame_gcu"), "GetNodeDevices")
def test_hami_and_we_see_the_same_cards_of_a_node(case: Mapping[str, Any]) -> None:
    family, expected = GCU if "GCUDevices" in case["fn"] else DRS, case["expected"]
    try:
        found = family.rules.node_devices(values.node(case["input"]["node"]))
    except WireError:
        found = ()

    assert [
        (card.id, card.index, card.count, card.devmem, card.devcore, card.type, card.health, card.custom)
        for card in found
    ] == [
        (
            one["id"],
            one.get("index", 0),
            one["count"],
            one["devmem"],
            one["devcore"],
            one["type"],
            True,
            one.get("custom_info"),
        )
        for one in expected["devices"]
    ]


@asks("enflame_profiles", "selectProfileByRequest")
def test_hami_and_we_cut_the_same_profile(case: Mapping[str, Any]) -> None:
    question, expected = renamed(case["input"]), case["expected"]
    demand = parity().demand(
        {"type": "Enflame", "nums": 1, "memreq": 0, "mempercentagereq": 0, "coresreq": 0} | question["request"]
    )
    assert isinstance(demand.detail, Wanted)

    profile = smallest_profile(
        demand.detail, demand.cores, offered_profiles([values.state(device) for device in question["devices"]])
    )

    assert (profile is not None) == expected["matched"]
    if profile:
        ours = (profile.name, profile.id, profile.slices, profile.memory, profile.cores)
        names = ("name", "id", "size", "memory_gb", "core_percent")
        assert ours == tuple(expected["profile"].get(name) for name in names)


@asks("enflame_profiles", "parseProfile", "normalizeMemoryRequestToGB")
def test_hami_and_we_read_the_same_sizes(case: Mapping[str, Any]) -> None:
    question, expected = case["input"], case["expected"]
    if "profileName" in question:
        assert size(question["profileName"]) == (expected["slices"], expected["memory_gb"])
        return
    largest = question["maxProfileMemoryGB"]
    cards = values.state({"id": "d", "custominfo": {"profiles": {f"1g.{largest}gb": "0"}}})
    assert max(0, in_gb(question["rawMemory"], offered_profiles([cards]))) == expected["result"]


@asks("enflame_profiles", "parseDRSCapacity", "readCustomInfoInt")
def test_hami_and_we_read_the_same_numbers_of_32_bits(case: Mapping[str, Any]) -> None:
    """HAMi takes the largest number for a text beyond 32 bits, and none for a number beyond them (D-301)."""
    question, expected = case["input"], case["expected"]
    written = question["raw"] if "raw" in question else question["customInfo"][question["key"]]
    theirs = expected.get("capacity", expected.get("result"))

    assert number(written) == (0 if theirs == 2**31 - 1 else theirs)


@asks("enflame_profiles", "collectDRSProfiles")
def test_hami_and_we_know_the_same_profiles(case: Mapping[str, Any]) -> None:
    cards = [values.state({"id": "d", **device}) for device in renamed(case["input"]["devices"])]

    found = [(one.name, one.id, one.slices, one.memory, one.cores) for one in offered_profiles(cards)]

    names = ("name", "id", "size", "memory_gb", "core_percent")
    assert found == [tuple(one[name] for name in names) for one in case["expected"]["result"]]


@pytest.mark.parametrize(
    ("value", "read"),
    [(6, 6), (6.9, 6), (" 6 ", 6), ("x", 0), (None, 0), (True, 0), (1e300, 0), (float("nan"), 0), ("4294967299", 0)],
)
def test_numbers_come_as_agents_write_them(value: object, read: int) -> None:
    assert number(value) == read


def test_a_partition_is_the_smallest_that_suffices_and_takes_as_many_slots_as_slices() -> None:
    (card,) = [idle_state(info) for info in DRS.rules.node_devices(drs_node())]
    assert DRS.rules.policy
    asked = DRS.rules.policy.request(
        ContainerView(name="c", limits={"enflame.com/gcu-memory": "20480", "enflame.com/gcu-core": "40"})
    )
    assert isinstance(asked, Demand)

    outcome = fit(DRS.rules.policy, [card], Context(demand=asked, pod=pod("c")))

    assert isinstance(outcome, Granted)
    (grant,) = outcome.grants
    assert (grant.memory, grant.cores) == (24 * 1024, 50)
    booking = DRS.rules.policy.book(card, grant, pod("c"))
    assert not isinstance(booking, Reason)
    assert booking[0].slots == 3


def test_a_size_that_no_card_can_be_cut_to_is_refused_for_the_node() -> None:
    states = [idle_state(info) for info in DRS.rules.node_devices(drs_node(2))]
    assert DRS.rules.policy

    outcome = fit(
        DRS.rules.policy,
        states,
        Context(demand=Demand(device_type="Enflame", count=1, detail=Wanted(slices=4)), pod=pod()),
    )

    assert isinstance(outcome, Refused)
    assert str(outcome) == "1/2 ModeNotFit"


def test_the_agent_is_told_every_partition_and_the_first_by_keys_of_its_own() -> None:
    states = [idle_state(info) for info in DRS.rules.node_devices(drs_node())]
    pieces: list[tuple[Grant, ...]] = []
    assert DRS.rules.policy
    for limits in ({"drs-gcu": "1"}, {}, {"gcu-memory": "20", "gcu-core": "40"}):
        asked = DRS.rules.policy.request(
            ContainerView(name="c", limits={f"enflame.com/{key}": text for key, text in limits.items()})
        )
        outcome = fit(DRS.rules.policy, states, Context(demand=asked, pod=pod())) if isinstance(asked, Demand) else None
        pieces.append(outcome.grants if isinstance(outcome, Granted) else ())

    written = DRS.rules.patch(DRS, pod("a", "cpu", "b"), {"Enflame": tuple(pieces)})

    assert written == {
        "enflame.com/gcu-assigned-time": str(DECIDED_AT),
        "hami.io/enflame-vgpu-devices-allocated": "n-enflame-drs-0,Enflame,8192,17:;"
        ";n-enflame-drs-0,Enflame,24576,50:;",
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-index": "0",
        "enflame.com/gcu-assigned-id": "0",
        "enflame.com/gcu-assigned-minor": "0",
        "enflame.com/gcu-request-size": "1",
        "assigned-containers": '{"a":{"allocated":false,"request":1,"profileID":"0","profileName":"1g.8gb"},'
        '"b":{"allocated":false,"request":3,"profileID":"2","profileName":"3g.24gb"}}',
    }


def test_whole_cards_are_for_one_alone_and_hidden_by_no_annotation() -> None:
    states = [
        idle_state(info) for info in GCU.rules.node_devices(NodeView(name="n", capacity={"enflame.com/gcu": "4"}))
    ]
    assert GCU.rules.policy
    asked = GCU.rules.policy.request(ContainerView(name="c", limits={"enflame.com/gcu": "2"}))
    assert isinstance(asked, Demand)

    outcome = fit(GCU.rules.policy, states, Context(demand=asked, pod=pod("c", use_gpuuuid="another")))

    assert isinstance(outcome, Granted)
    assert GCU.rules.patch(GCU, pod("c"), {"GCU": (outcome.grants,)})["hami.io/enflame-gcu-devices-allocated"] == (
        "n-GCU-3,GCU,100,100:n-GCU-2,GCU,100,100:;"
    )


def shares(count: int = 2) -> list[DeviceState]:
    return [idle_state(info) for info in SHARED.rules.node_devices(SEED)][:count]


@pytest.mark.difference("D-150")
def test_a_quarter_of_the_card_that_the_pod_names() -> None:
    """HAMi 2.7's own example."""
    container = ContainerView(name="c", limits={"enflame.com/vgcu": "1", "enflame.com/vgcu-percentage": "25"})
    asking = pod("c", use_gpuuuid="node1-enflame-0")
    assert SHARED.rules.policy
    asked = SHARED.rules.policy.request(container)
    assert isinstance(asked, Demand)

    outcome = fit(SHARED.rules.policy, shares(), Context(demand=asked, pod=asking))

    assert isinstance(outcome, Granted)
    written = SHARED.rules.patch(SHARED, asking, {"vGCU": (outcome.grants,)})
    assert written == {
        "enflame.com/gcu-assigned-time": str(DECIDED_AT),
        "hami.io/enflame-vgpu-devices-allocated": "node1-enflame-0,Enflame,25,0:;",
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-id": "0",
    }


def test_four_quarters_fill_a_card_and_a_fifth_is_refused() -> None:
    (card,) = shares(1)
    assert SHARED.rules.policy
    quarter = Context(demand=Demand(device_type="vGCU", count=1, percent=25), pod=pod("c"))
    for _ in range(4):
        outcome = fit(SHARED.rules.policy, [card], quarter)
        assert isinstance(outcome, Granted)
        booking = SHARED.rules.policy.book(card, outcome.grants[0], pod("c"))
        assert not isinstance(booking, Reason)
        card = booking[0]

    refused = fit(SHARED.rules.policy, [card], quarter)

    assert isinstance(refused, Refused)
    assert refused.reasons == {Reason.NO_MEMORY: 1}


@pytest.mark.difference("D-151")
def test_a_share_is_rounded_up_to_the_slices_that_the_agent_hands_out() -> None:
    limits = {"enflame.com/vgcu": "1", "enflame.com/vgcu-percentage": "15"}
    (shared,) = families(EnflameSettings.model_validate({"sharedSlicesPerCard": 4}))[2:]

    rounded = shared.rules.admit(ContainerView(name="c", limits=limits), pod("c"))

    added = {"enflame.com/vgcu-percentage": "25", "enflame.com/shared-gcu": "1"}
    assert rounded == Admitted(found=True, limits=added, requests=added)


@pytest.mark.difference("D-152")
@pytest.mark.parametrize("percent", ["0", "101", "-1"])
def test_an_impossible_share_is_denied(percent: str) -> None:
    container = ContainerView(name="c", limits={"enflame.com/vgcu": "1", "enflame.com/vgcu-percentage": percent})
    assert SHARED.rules.policy

    denied = SHARED.rules.admit(container, pod("c"))

    assert isinstance(SHARED.rules.policy.request(container), Invalid)
    assert isinstance(denied, Denied)
    assert f"enflame.com/vgcu-percentage={percent} is not within 1 to 100" in denied.why


def test_several_shared_cards_are_whole_ones() -> None:
    container = ContainerView(name="c", limits={"enflame.com/vgcu": "2", "enflame.com/vgcu-percentage": "25"})

    admitted = SHARED.rules.admit(container, pod("c"))

    assert isinstance(admitted, Admitted)
    assert admitted.limits == {"enflame.com/vgcu-percentage": "100"}


def test_partitions_may_take_over_the_name_of_shares() -> None:
    settings = EnflameSettings.model_validate({"resourceNameDRSGCU": "enflame.com/vgcu"})

    assert [family.resources.device_type for family in families(settings)] == ["Enflame", "GCU"]
