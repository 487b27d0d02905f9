"""What cards may be cut into, over counters: the scheduler gives out together just what a card can have together."""

from dataclasses import replace
from random import Random

import pytest

from hami_plugin.dra.claims import PreparedShare, excess
from hami_plugin.dra.cuts import MAX_COUNTERS, CardProfiles, cuts, left_beside, overlap, pool
from hami_plugin.dra.slices import (
    MAX_COUNTERS_TOGETHER,
    Pool,
    Taints,
    counter_set_problem,
    device_name,
    offered_devices,
    writes,
)
from hami_plugin.model.device import Health
from hami_plugin.model.placement import Grant
from hami_plugin.partitions.life import Entry, State, free_places, placeable
from hami_plugin.sdk.partitions import NOWHERE, Placement, Profile, Sized
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.dra import UnschedulableError, allocate, deallocate
from hami_plugin.simulation.objects import RESOURCES, misplaced
from tests.support.builders import FAMILY, snapshot, uuid

DRIVER, NODE = "toy.hami.io", "node-a"


def at(*starts, size):
    return tuple(Placement(start, size) for start in starts)


A100 = (
    Profile(name="1g.5gb", memory=4864, compute=1, placements=at(*range(7), size=1), limit=7),
    Profile(name="1g.5gb+me", memory=4864, compute=1, placements=at(*range(7), size=1), limit=1),
    Profile(name="1g.10gb", memory=9856, compute=1, placements=at(0, 2, 4, 6, size=2), limit=4),
    Profile(name="2g.10gb", memory=9856, compute=2, placements=at(0, 2, 4, size=2), limit=3),
    Profile(name="3g.20gb", memory=19968, compute=3, placements=at(0, 4, size=4), limit=2),
    Profile(name="4g.20gb", memory=19968, compute=4, placements=at(0, size=4), limit=1),
    Profile(name="7g.40gb", memory=40192, compute=7, placements=at(0, size=8), limit=1),
)
SUMS = (
    Profile(name="small", memory=16384, compute=5, placements=(NOWHERE,), limit=4),
    Profile(name="half", memory=32768, compute=10, placements=(NOWHERE,), limit=2),
)
CHIP = (
    Profile(
        name="vir03",
        memory=8192,
        compute=3,
        placements=(NOWHERE,),
        limit=6,
        sums={"memory": (8192, 65536), "cpus": (1, 6)},
    ),
    Profile(
        name="vir06",
        memory=16384,
        compute=6,
        placements=(NOWHERE,),
        limit=4,
        sums={"memory": (16384, 65536), "cpus": (1, 6)},
    ),
    Profile(
        name="vir12",
        memory=32768,
        compute=12,
        placements=(NOWHERE,),
        limit=2,
        sums={"memory": (32768, 65536), "cpus": (3, 6)},
    ),
)


def cards(count=1, profiles=A100, **unwell):
    names = frozenset(one.name for one in profiles)
    return [
        CardProfiles(card=one, profiles=profiles, allowed=names)
        for one in offered_devices(FAMILY, snapshot(count, **unwell))
    ]


class Cluster:
    def __init__(self, cut, *arguments, **named):
        self.api, self.number = SimulatedApiServer(), 0
        self.cuts = {one.name: one for one in cuts(cut)}
        place = Pool(driver=DRIVER, node=NODE, node_uid="u1")
        for document in writes(place, pool(cut, *arguments, **named), {}).creates:
            self.api.store.create(RESOURCES["resourceslices"], "", document)

    def claim(self, profile="", **capacity):
        selectors = (
            [{"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{profile}"'}}] if profile else []
        )
        asked = {"deviceClassName": f"partitions.{DRIVER}", "selectors": selectors, "capacity": {"requests": capacity}}
        return self.cuts[self.given(asked)]

    def whole(self):
        return self.given({"deviceClassName": DRIVER})

    def given(self, asked):
        self.number += 1
        name = f"c{self.number}"
        spec = {"devices": {"requests": [{"name": "r", "exactly": asked}]}}
        claim = self.api.create_claim({"metadata": {"name": name, "namespace": "a"}, "spec": spec})
        done = allocate(self.api, claim, {"metadata": {"name": name, "uid": name}}, NODE)
        (result,) = done["status"]["allocation"]["devices"]["results"]
        return result["device"]


@pytest.mark.parametrize("profiles", [A100, SUMS, CHIP], ids=["placed", "sums", "several sums"])
def test_counters_allow_what_the_life_cycle_allows_and_nothing_else(profiles):
    random = Random(7)
    for _round in range(12):
        cluster, taken = Cluster(cards(profiles=profiles)), []
        for _step in range(12):
            profile = random.choice(profiles)
            free = free_places(profile, profiles, taken)
            try:
                given = cluster.claim(profile.name)
            except UnschedulableError:
                assert not free, f"{profile.name} beside {taken}"
                continue
            assert given.placement in free, f"{profile.name} beside {taken}"
            taken.append((profile.name, given.placement))
            if random.random() < 0.2:
                deallocate(cluster.api, "a", f"c{cluster.number}")
                taken.pop()


def test_small_partitions_leave_room_for_large_ones_and_an_amount_has_the_smallest_that_has_it():
    cluster = Cluster(cards(2))

    assert [cluster.claim("1g.5gb").placement.start for _ in range(3)] == [6, 5, 4]
    assert cluster.claim("4g.20gb").placement == Placement(0, 4)
    given = cluster.claim(memory="8000Mi")
    assert (given.profile.name, given.card.device.uuid) == ("1g.10gb", uuid(1))


def test_a_card_has_no_more_of_a_profile_than_it_may_have_though_there_are_places():
    cluster = Cluster(cards(2))

    assert [cluster.claim("1g.5gb+me").card.device.uuid for _ in range(2)] == [uuid(0), uuid(1)]
    with pytest.raises(UnschedulableError):
        cluster.claim("1g.5gb+me")
    assert cluster.claim("1g.5gb")


def test_what_others_have_made_is_in_no_device_and_what_claims_have_stays():
    foreign = Entry(number=1, state=State.FOREIGN, card=uuid(0), profile="3g.20gb", placement=Placement(4, 4))
    cluster = Cluster(cards(), [foreign])

    assert {one["attributes"]["placement"]["int"] for one in devices(cluster, "1g.5gb")} == {0, 1, 2, 3}
    with pytest.raises(UnschedulableError):
        cluster.claim("7g.40gb")
    assert cluster.claim("4g.20gb").placement.start == 0
    with pytest.raises(UnschedulableError):
        cluster.claim("1g.5gb")


def devices(cluster, profile=""):
    found = [one for each in cluster.api.slices() for one in each["spec"].get("devices", ())]
    return [one for one in found if profile in ("", one["attributes"]["profile"]["string"])]


def test_of_an_unwell_card_only_what_claims_have_is_published_tainted():
    (first, *_) = cuts(cards())

    cluster = Cluster(cards(2, d0=Health.UNHEALTHY), held={first.name}, driver=DRIVER, taints=Taints.NO_SCHEDULE)

    own = [one for one in devices(cluster) if one["attributes"]["parentUUID"]["string"] == uuid(0)]
    assert [one["name"] for one in own] == [first.name]
    assert own[0]["taints"][0]["effect"] == "NoSchedule"
    assert devices(cluster)[-1] == own[0]


def test_only_allowed_profiles_are_devices_and_names_are_labels_of_their_own():
    every = cards(3)
    few = [replace(one, allowed=frozenset({"1g.5gb", "7g.40gb"})) for one in every]

    assert {one.profile.name for one in cuts(few)} == {"1g.5gb", "7g.40gb"}
    names = [one.name for one in cuts(every)]
    assert len(set(names)) == len(names) == 3 * sum(len(one.placements) for one in A100)
    assert all(device_name(one) == one and len(one) <= 63 for one in names)
    contents = pool(every)
    assert all(len(one["counters"]) <= MAX_COUNTERS for one in contents.counters)
    assert all(len(one["consumesCounters"]) == 1 for one in contents.devices)


def test_a_card_with_its_counters_is_in_one_slice_where_the_server_wants_that_and_an_order_holds_in_each():
    contents = pool(cards(8))
    assert not counter_set_problem(contents)

    slices = writes(Pool(driver="toy.hami.io", node="n", node_uid="u"), contents, {}, together=True).creates

    assert 1 < len(slices) < 8
    assert [misplaced(one, apart=False) for one in slices] == [""] * len(slices)
    counts = [sum(len(each["counters"]) for each in one["spec"]["sharedCounters"]) for one in slices]
    assert max(counts) <= MAX_COUNTERS_TOGETHER
    found = [each["name"] for one in slices for each in one["spec"]["devices"]]
    assert sorted(found) == sorted(one["name"] for one in contents.devices)
    card = next(iter(slices))["spec"]["sharedCounters"][0]["name"]
    own = [one for one in contents.devices if one["consumesCounters"][0]["counterSet"] == card]
    assert [name for name in found if name in {one["name"] for one in own}] == [one["name"] for one in own]


def held(cut, device="d"):
    grant = Grant(uuid=cut.card.device.uuid, device_type="TOY", memory=cut.profile.memory)
    return PreparedShare(request="r", device=device, grant=grant, profile=cut.profile.name, placement=cut.placement)


def test_overlapping_partitions_of_two_claims_are_refused_whatever_the_scheduler_says():
    every = {(one.profile.name, one.placement.start): one for one in cuts(cards())}
    big, small = every["3g.20gb", 4], every["1g.5gb", 5]

    why = overlap([held(small, "small")], {"team/a": [held(big)]}, cards())

    assert "small has no room on its card" in why
    assert "team/a" in why
    assert overlap([held(every["1g.5gb", 3])], {"team/a": [held(big)]}, cards()) == ""
    assert "this claim" in overlap([held(small), held(small)], {}, cards())


def test_a_sum_that_is_used_up_leaves_no_room_though_others_have_some():
    taken = [("vir03", NOWHERE)] * 6

    assert free_places(CHIP[0], CHIP, taken) == free_places(CHIP[1], CHIP, taken) == []  # 18 of 24 cores, all CPUs
    assert free_places(CHIP[1], CHIP, taken[1:]) == [NOWHERE]
    free = [Entry(number=n, state=State.READY, card="c", profile="vir03", placement=NOWHERE) for n in range(5)]
    assert {profile.name: left for profile, left in placeable(CHIP, free)} == {"vir03": 1, "vir06": 1, "vir12": 0}


def test_a_card_is_given_out_whole_or_in_parts_and_never_both():
    cluster = Cluster([replace(one, whole=True) for one in cards(2, profiles=CHIP)])

    assert cluster.claim("vir03").card.device.uuid == uuid(0)
    assert cluster.whole() == device_name(uuid(1))
    with pytest.raises(UnschedulableError):
        cluster.whole()
    assert cluster.claim("vir12").card.device.uuid == uuid(0)
    with pytest.raises(UnschedulableError):
        cluster.claim("vir12")


def test_a_card_with_a_partition_of_others_is_not_given_out_whole():
    foreign = Entry(number=1, state=State.FOREIGN, card=uuid(0), profile="vir03", placement=NOWHERE)
    cluster = Cluster([replace(one, whole=True) for one in cards(1, profiles=CHIP)], [foreign])

    with pytest.raises(UnschedulableError):
        cluster.whole()
    assert cluster.claim("vir12")


def test_a_partition_of_a_card_that_a_claim_has_whole_is_refused_and_one_beside_who_looks_after_it_is_not():
    (one, *_) = cuts(cards())
    grant = Grant(uuid=uuid(0), device_type="TOY", memory=1)
    whole = PreparedShare(request="r", device=device_name(uuid(0)), grant=grant)

    assert "team/a still has" in overlap([held(one)], {"team/a": [whole]}, cards())
    assert overlap([held(one)], {"team/a": [replace(whole, admin=True)]}, cards()) == ""


def test_of_a_card_that_is_cut_by_amounts_what_others_have_is_taken_off():
    (card,) = offered_devices(FAMILY, snapshot(1))
    card = replace(card, memory=4096, cores=100, cut=True, unit=256)
    sized = Sized(
        profile=lambda cores, memory: f"{cores}.{memory}",
        amounts=lambda name: tuple(map(int, name.split("."))),
        unit=256,
    )
    there = [
        Entry(number=n, state=State.FOREIGN, card=where, profile="30.100", placement=NOWHERE)
        for n, where in enumerate([card.device.uuid, card.device.uuid, "other"])
    ]

    left = left_beside(card, sized, there)

    assert (left.cores, left.memory, left.lessened) == (40, 3840, True)
    assert left_beside(card, sized, there[2:]) is card


def test_partitions_of_any_size_are_added_up_at_the_node_whatever_the_scheduler_says():
    (card,) = offered_devices(FAMILY, snapshot(1))
    card = replace(card, memory=4096, cores=100, slots=100, cut=True)
    grant = Grant(uuid=card.device.uuid, device_type="TOY", memory=1024, cores=60)
    share = PreparedShare(
        request="r", device=card.name, grant=grant, memory=1024, cores=60, profile="60.1024", placement=NOWHERE
    )

    why = excess([share], {"team/a": [share]}, [card])

    assert why == f"120 of 100 cores of {card.name} would be given out, with what ResourceClaim team/a still has"
    assert excess([share], {"team/a": [replace(share, cores=40)]}, [card]) == ""
