"""The cases of HAMi's own tests about choosing NVIDIA cards: quota, NUMA, links, and MIG instances."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from pydantic import ValidationError

from hami_plugin.model.device import Link, Links, symmetric
from hami_plugin.model.views import ContainerView, PodView
from hami_plugin.protocol.nodes import DeviceInfo, MigProfile, decode_scores, encode_scores
from hami_plugin.scheduler.engine.devices import (
    Candidate,
    Charge,
    Context,
    Demand,
    DeviceState,
    Quota,
    Slice,
    idle_state,
    limit_or_request,
)
from hami_plugin.scheduler.engine.policy import ByNumaIf, Misfit, linked_choice, within_quota
from tests.hami import values
from tests.hami.vendors.nvidia import cost
from tests.support.hami import Json, asks
from tests.support.hami_questions import renamed
from vendors.nvidia import rules
from vendors.nvidia.rules import NUMA_BIND
from vendors.nvidia.settings import NvidiaSettings

EXCUSED = {"defaultExclusiveCoreIfNeeded": "its one case is a missing container, which admission here is never given"}


def card(uuid: str, **info: int) -> DeviceState:
    return idle_state(DeviceInfo(id=uuid, count=10, devmem=81920, devcore=100, type="NVIDIA", health=True, **info))


def asking(count: int = 1, annotations: Json | None = None, links: Links | None = None) -> Context:
    pod = PodView(uid="u", namespace="n", name="p", annotations=annotations or {})
    return Context(demand=Demand(device_type="NVIDIA", count=count), pod=pod, links=links or Links())


def candidate(state: DeviceState, memory: int = 0, cores: int = 0) -> Candidate:
    return Candidate(state=state, charge=Charge(memory=memory, cores=cores))


@asks("nvidia_admission", "resourceValue", "resourcePresent")
def test_a_container_that_says_nothing_asks_for_nothing(case: Json) -> None:
    container = ContainerView(name="c", **(case["input"]["container"] or {}))

    assert limit_or_request(container, case["input"]["name"]) is None
    assert not any(case["expected"].values())


@asks("nvidia_fit", "assertNuma")
def test_a_pod_is_bound_to_a_numa_node_when_hami_binds_it(case: Json) -> None:
    cards = [card("a", numa=0), card("b", numa=1)]

    groups = ByNumaIf(NUMA_BIND)(cards, asking(annotations=case["input"]["annos"]))

    assert (len(tuple(groups)) == 2) is case["expected"]["result"]


@asks("nvidia_fit", "fitQuota")
def test_a_quota_covers_what_hami_says(case: Json) -> None:
    put, names = case["input"], case["context"]["resource_names"]["NVIDIA"]
    memory, cores = names["resource_memory_name"], names["resource_core_name"]
    limits = {
        name: quota["limit"] for name, quota in case["context"]["quotas"][put["ns"]].items() if quota.get("limit_set")
    }
    mine = [
        candidate(card(grant.uuid), grant.memory, grant.cores)
        for grant in map(values.grant, (put["tmpDevs"] or {}).get("NVIDIA", ()))
    ]
    inits = tuple(ContainerView(name=f"i{n}", init=True) for n in range(len(put["pod"].get("init_containers", ()))))
    context = Context(
        demand=Demand(device_type="NVIDIA", count=1 + len(mine)),
        pod=PodView(uid="u", namespace=put["ns"], name="p", containers=inits),
        given={"NVIDIA": values.pieces((put.get("allocated") or {}).get("NVIDIA"))},
        quota=Quota(limits=limits),
    )

    check = within_quota(memory=memory, cores=cores, factor=names["memory_factor"])
    reason = check(candidate(card(put["devUUID"]), put["memreq"], put["coresreq"]), context, mine)

    assert (reason is None) is case["expected"]["result"]


@asks("nvidia_fit", "CustomFilterRule")
def test_a_cut_card_has_room_when_hami_finds_some(case: Json) -> None:
    put = renamed(case["input"])
    state = values.state({"id": "GPU-a", **put["device"]})
    before = [
        candidate(state if one["uuid"] == state.uuid else card(one["uuid"]), one["usedmem"])
        for one in put["to_allocate"] or ()
    ]

    reason = rules.has_place(candidate(state, put["request"].get("memreq", 0)), asking(), before)

    assert (reason is None) is case["expected"]["result"]


def links(case: Json) -> Links:
    """The node's links. HAMi adds both directions up; here the worse one counts (D-023)."""
    peers = {
        info["id"]: info["device_pair_score"]["scores"] for info in case["input"]["node_info"]["devices"]["NVIDIA"]
    }
    return symmetric(
        {(a, b): Link(score=score, label="") for a, scores in peers.items() for b, score in scores.items()}
    )


def chosen(uuids: Sequence[str], count: int, known: Links) -> list[str]:
    eligible = [candidate(card(uuid, index=place)) for place, uuid in enumerate(uuids)]
    choice = linked_choice(eligible, asking(count, links=known))
    assert not isinstance(choice, Misfit)
    return [one.uuid for one in choice]


def named(grants: Sequence[Json]) -> list[str]:
    return [grant["uuid"] for grant in grants]


@asks("nvidia_topology_select", "computeWorstSingleCard")
def test_the_card_that_is_taken_tears_no_more_links_than_hamis(case: Json) -> None:
    uuids, known = named(case["input"]["tmpDevs"]["NVIDIA"]), links(case)

    def torn(uuid: str) -> int:
        return sum(known.score(uuid, peer) for peer in uuids)

    (mine,), (theirs,) = chosen(uuids, 1, known), named(case["expected"]["result"])

    assert torn(mine) == min(map(torn, uuids))
    assert torn(theirs) == torn(mine) or known.asymmetric


@asks("nvidia_topology_select", "computeBestCombination")
def test_the_cards_that_are_taken_are_linked_no_worse_than_hamis(case: Json) -> None:
    tried, known = [named(one) for one in case["input"]["combinations"]], links(case)
    uuids = list(dict.fromkeys(uuid for one in tried for uuid in one))
    assert {frozenset(one) for one in tried} == {frozenset(one) for one in combinations(uuids, len(tried[0]))}

    mine, theirs = chosen(uuids, len(tried[0]), known), named(case["expected"]["result"])

    assert known.total(mine) == max(map(known.total, tried))
    assert known.total(theirs) == known.total(mine) or known.asymmetric


@asks("nvidia_topology_select", "generateCombinations")
def test_whichever_combination_is_linked_best_is_found(case: Json) -> None:
    """HAMi lists all of them. Here each is found when it is the best, without a list."""
    uuids, count = named(case["input"]["tmpDevs"]["NVIDIA"]), case["input"]["request"].get("nums", 0)
    listed = [named(one) for one in case["expected"]["result"] or ()]
    if not listed:
        assert isinstance(linked_choice([candidate(card(uuid)) for uuid in uuids], asking(count)), Misfit)
    for one in listed:
        rest = [uuid for uuid in uuids if uuid not in one]
        linked = [*combinations(one if count > 1 else rest, 2)]
        best = Links(pairs={(min(pair), max(pair)): Link(score=100, label="") for pair in linked})
        assert sorted(chosen(uuids, count, best)) == sorted(one)


@asks("nvidia_topology_select", "getDevicePairScoreMap")
def test_links_are_known_by_card(case: Json) -> None:
    told = {one["id"]: one["device_pair_score"] for one in case["input"]["node_info"]["devices"]["NVIDIA"]}
    text = encode_scores({uuid: one["scores"] for uuid, one in told.items()}, list(told))

    assert decode_scores(text) == {uuid: one["scores"] for uuid, one in case["expected"]["result"].items()}


def occupied(put: Json) -> list[Slice]:
    return [Slice(profile="", start=one["start"], size=one["size"]) for one in put["occupied"] or ()]


def profiles(items: Sequence[Json]) -> tuple[MigProfile, ...]:
    return values.profiles([{"memoryMB": 0, "core": 0, "sliceCount": 0, **item} for item in items])


def placed(place: Slice) -> Json:
    return {"start": place.start, "size": place.size}


@asks("nvidia_mig", "canPlaceMigProfiles")
def test_instances_fit_together_as_for_hami(case: Json) -> None:
    put = renamed(case["input"])

    fits = rules.can_place(profiles(put["capabilities"]), occupied(put), put["requested"] or ())

    assert fits is case["expected"]["result"]


@asks("nvidia_mig", "selectMigPlacement")
def test_an_instance_goes_where_hami_puts_it(case: Json) -> None:
    put, expected = renamed(case["input"]), case["expected"]
    known = [one for one in profiles(put["profiles"]) if one.name == put["profileName"]]

    found = rules.choose(known, occupied(put), 0)

    assert (found is not None) is expected["ok"]
    if found:
        assert placed(found[1]) == {"start": 0, **expected["placement"]}


@pytest.mark.difference("D-114")
@asks("nvidia_mig", "selectMigCandidate")
def test_the_profile_is_hamis_and_its_place_too_unless_another_one_costs_less(case: Json) -> None:
    put, expected = renamed(case["input"]), renamed(case["expected"])

    known, taken = profiles(put["profiles"]), occupied(put)
    found = rules.choose(known, taken, put["memory"])

    assert (found is not None) is expected["ok"]
    if found:
        assert (found[0],) == profiles([expected["profile"]])
        ranges = [(one.start, one.size) for one in taken]
        place, his = [tuple({"start": 0, **one}.values()) for one in (placed(found[1]), expected["placement"])]
        assert place == his or cost(found[0], known, ranges, place) < cost(found[0], known, ranges, his)


@asks("nvidia_mig", "orderedMigPlacements")
def test_places_are_tried_in_hamis_order(case: Json) -> None:
    put = renamed(case["input"])
    left, order = list(put["placements"]), []
    while left:
        found = rules.choose(profiles([{"name": put["profile"], "placements": left}]), (), 0)
        assert found
        order.append(placed(found[1]))
        left.remove(placed(found[1]))

    assert order == [{"start": 0, **place} for place in case["expected"]["result"]]


@asks("nvidia_mig", "ValidateMigProfileAllowlist")
def test_an_allowlist_names_models_and_profiles(case: Json) -> None:
    if case["expected"]["error"] is None:
        allowed = NvidiaSettings.model_validate({"migProfileAllowlist": case["input"]["in"]}).mig_profile_allowlist
        assert [one.profiles for one in allowed] == [tuple(one["profiles"]) for one in case["input"]["in"]]
    else:
        with pytest.raises(ValidationError, match="profiles"):
            NvidiaSettings.model_validate({"migProfileAllowlist": case["input"]["in"]})
