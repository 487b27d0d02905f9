"""Linked cards as one device: kube-scheduler's first fit is the best-linked set that is free."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from hami_plugin.dra.sets import MAX_SETS, Counted, can_make_sets, linked_sets, members_of, pool
from hami_plugin.dra.slices import (
    MAX_DEVICES_TOGETHER,
    Pool,
    Taints,
    counter_set_problem,
    device_name,
    offered_devices,
    writes,
)
from hami_plugin.model.device import Health, Link, Links
from hami_plugin.scheduler.engine.topology import choose
from hami_plugin.simulation.apiserver import SimulatedApiServer
from hami_plugin.simulation.dra import UnschedulableError, allocate, deallocate
from hami_plugin.simulation.objects import RESOURCES, misplaced
from tests.support.builders import FAMILY, snapshot, uuid
from tests.support.machines import cases, found
from tests.support.scale import spread

DRIVER, NODE = "toy.hami.io", "node-a"
PLACE = Pool(driver=DRIVER, node=NODE, node_uid="u1")
SIZES = (1, 2, 4, 8)
OCCUPANCIES = 40


class Cluster:
    """An API server with the slices of one machine, and a scheduler. ``given`` are cards that claims have."""

    def __init__(self, cards, links, **published):
        self.cards, self.links = cards, links
        self.sets = linked_sets(cards, links)
        self.api = SimulatedApiServer()
        self.publish(**published)
        self.number = 0

    def publish(self, cards=None, **published):
        for one in self.api.slices():
            self.api.delete_slice(one["metadata"]["name"])
        counted = Counted(cards=cards or self.cards)
        wanted = pool(counted, self.links, self.sets, driver=DRIVER, **published)
        for document in writes(PLACE, wanted, {}).creates:
            self.api.store.create(RESOURCES["resourceslices"], "", document)

    def claim(self, *requests, **spec):
        """A claim that is allocated: the names of its devices."""
        self.number += 1
        name = f"c{self.number}"
        listed = [{"name": f"r{number}", "exactly": one} for number, one in enumerate(requests)]
        claim = self.api.create_claim(
            {"metadata": {"name": name, "namespace": "a"}, "spec": {"devices": {"requests": listed, **spec}}}
        )
        done = allocate(self.api, claim, {"metadata": {"name": name, "uid": name}}, NODE)
        return [one["device"] for one in done["status"]["allocation"]["devices"]["results"]]

    def best(self, size):
        """What the scheduler gives to a claim for so many linked cards, which is given back at once."""
        (name,) = self.claim(asking(size))
        deallocate(self.api, "a", f"c{self.number}")
        return self.uuids(name)

    def take(self, uuids):
        """Claims for single cards by their names."""
        for one in uuids:
            self.number += 1
            result = {"request": "r", "driver": DRIVER, "pool": NODE, "device": device_name(one)}
            consumed = {"shareID": "s", "consumedCapacity": {"slots": "1"}}
            name = f"c{self.number}"
            self.api.create_claim({"metadata": {"name": name, "namespace": "a"}, "spec": {"devices": {}}})
            status = {"allocation": {"devices": {"results": [{**result, **consumed}]}}}
            self.api.set_claim_status("a", name, status)

    def clear(self):
        for one in self.api.claims():
            deallocate(self.api, "a", one["metadata"]["name"])

    def uuids(self, name):
        singles = {one.name: (one,) for one in self.cards}
        return tuple(one.device.uuid for one in singles.get(name) or members_of(name, self.cards))


def asking(size, **more):
    if size == 1:
        return {"deviceClassName": DRIVER, **more}
    equals = f'device.attributes["{DRIVER}"].size == {size}'
    return {"deviceClassName": f"sets.{DRIVER}", "selectors": [{"cel": {"expression": equals}}], **more}


def linked(it):
    """The machine's cards, if they make sets."""
    cards = offered_devices(it.family, it.snapshot)
    return cards if can_make_sets(cards, it.snapshot.links) else ()


@pytest.mark.parametrize("case", spread(cases()), ids=str)
def test_the_schedulers_first_fit_is_our_engines_choice_on(case, tmp_path, record_property):
    it = found(case, tmp_path)
    if not (cards := linked(it)):
        return
    links, uuids = it.snapshot.links, [one.device.uuid for one in cards if one.device.health.offered]
    cluster = Cluster(cards, links)

    for size in (size for size in SIZES if size <= len(uuids)):
        assert cluster.best(size) == choose(uuids, size, links).devices, f"{size} of an idle node"

    random, asked, best_of_all = Random(1), 0, 0
    for number in range(OCCUPANCIES if len(cards) <= 10 else OCCUPANCIES // 4):
        free = [one for one in uuids if random.random() < random.choice((0.4, 0.7, 0.9))]
        cluster.clear()
        cluster.take(one for one in uuids if one not in free)
        for size in (size for size in SIZES[1:] if size <= len(uuids)):
            scores = [one.score for one in cluster.sets if len(one.members) == size and fits(one, free)]
            try:
                given = cluster.best(size)
            except UnschedulableError:
                assert not scores, f"{size} of {free}, the {number}th"
                continue
            assert set(given) <= set(free)
            assert links.total(given) == max(scores), f"{size} of {free}, the {number}th"
            asked += 1
            best_of_all += links.total(given) == choose(free, size, links).score
    record_property("figures", f"{len(cluster.sets)} sets; the best of all free cards {best_of_all} of {asked} times")
    assert len(cards) > 10 or best_of_all == asked, "all sets are published"


def fits(one, free):
    return all(card.device.uuid in free for card in one.members)


@pytest.mark.parametrize("case", spread(cases()), ids=str)
def test_sets_are_within_the_servers_limits_on(case, tmp_path):
    it = found(case, tmp_path)
    cards = [replace(one, device=replace(one.device, health=Health.HEALTHY)) for one in linked(it)]
    if not cards:
        return
    sets = linked_sets(cards, it.snapshot.links)
    wanted = pool(Counted(cards=cards), it.snapshot.links, sets)

    assert len(sets) <= MAX_SETS
    names = [one["name"] for one in wanted.devices]
    assert len(set(names)) == len(names) == len(cards) + len(sets)
    assert all(len(one) <= 63 for one in names)
    assert all(len(one["counters"]) <= 32 and len(one["name"]) <= 63 for one in wanted.counters)
    known = {(one["name"], name) for one in wanted.counters for name in one["counters"]}
    for device in wanted.devices:
        assert len(device["consumesCounters"]) <= 2
        used = {(one["counterSet"], name) for one in device["consumesCounters"] for name in one["counters"]}
        assert used <= known
        assert len(used) == len(members_of(device["name"], cards) or [1])
        assert len(device["attributes"]) + len(device.get("capacity", {})) <= 32
        assert all(len(str(next(iter(value.values())))) <= 64 for value in device["attributes"].values())
    slices = writes(PLACE, wanted, {}).creates
    assert all(len(one["spec"].get("devices", ())) <= 64 for one in slices)
    assert all(("devices" in one["spec"]) != ("sharedCounters" in one["spec"]) for one in slices)
    assert "sharedCounters" in slices[0]["spec"]
    if counter_set_problem(wanted):
        assert len(wanted.devices) > MAX_DEVICES_TOGETHER
        return
    beside = writes(PLACE, wanted, {}, together=True).creates
    assert [misplaced(one, apart=False) for one in beside] == [""] * len(beside)
    assert [each["name"] for one in beside for each in one["spec"]["devices"]] == names
    assert all(len(one["spec"]["devices"]) <= MAX_DEVICES_TOGETHER for one in beside)


def boards(count, size=4, near=100, **unwell):
    """Cards on boards of ``size``: those of one are linked directly with ``near``, neighbours on it best."""
    uuids = [uuid(number) for number in range(count)]
    pairs = {
        (uuids[a], uuids[b]): Link(
            score=near + (a // 2 == b // 2) if a // size == b // size else 1,
            label="",
            lanes=int(a // size == b // size),
        )
        for a, b in combinations(range(count), 2)
    }
    return snapshot(count, links=Links(pairs=pairs), **unwell)


@pytest.fixture
def cluster():
    it = boards(8)
    return Cluster(offered_devices(FAMILY, it), it.links)


def numbers(cluster, name):
    known = [uuid(number) for number in range(64)]
    return [known.index(one) for one in cluster.uuids(name)]


def test_sets_are_given_out_best_first_until_none_is_free(cluster):
    quads = [numbers(cluster, cluster.claim(asking(4))[0]) for _ in range(2)]

    assert quads == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(UnschedulableError):
        cluster.claim(asking(2))
    with pytest.raises(UnschedulableError):
        cluster.claim(asking(1))


def test_a_card_that_is_shared_is_in_no_set_and_takes_more_shares(cluster):
    (single,) = cluster.claim(asking(1, capacity={"requests": {"memory": "1000Mi"}}))
    (quad,) = cluster.claim(asking(4))
    (again,) = cluster.claim(asking(1, capacity={"requests": {"memory": "1000Mi"}}))
    (pair,) = cluster.claim(asking(2))

    assert again == single
    assert numbers(cluster, quad) == [4, 5, 6, 7]
    assert numbers(cluster, pair) == [2, 3]


def test_no_set_with_an_unwell_card_stands_before_a_good_one_that_it_shares_cards_with():
    """The scheduler would book the counters of a tainted set, and pass over what needs them."""
    it = boards(8, d0=Health.UNHEALTHY)
    cluster = Cluster(offered_devices(FAMILY, it), it.links, taints=Taints.NO_SCHEDULE)
    cluster.take(uuid(number) for number in range(4, 8))

    (pair,) = cluster.claim(asking(2))

    assert numbers(cluster, pair) == [2, 3]
    tainted = [one["name"] for one in wanted(cluster)["devices"] if one.get("taints")]
    assert tainted == [device_name(uuid(0))]


def wanted(cluster):
    return {"devices": [one for each in cluster.api.slices() for one in each["spec"].get("devices", ())]}


def test_a_set_that_a_claim_has_stays_though_a_card_fails_so_that_its_other_cards_are_not_given_away():
    it = boards(8)
    cluster = Cluster(offered_devices(FAMILY, it), it.links)
    (quad,) = cluster.claim(asking(4))
    unwell = boards(8, d0=Health.UNHEALTHY)

    cluster.publish(cards=offered_devices(FAMILY, unwell), held={quad}, taints=Taints.NO_SCHEDULE)

    last = wanted(cluster)["devices"][-1]
    assert (last["name"], last["taints"][0]["effect"]) == (quad, "NoSchedule")
    (pair,) = cluster.claim(asking(2))
    assert min(numbers(cluster, pair)) >= 4
    (single,) = cluster.claim(asking(1))
    assert numbers(cluster, single)[0] >= 4


def test_a_set_is_its_cards_and_no_others():
    it = boards(8)
    cards = offered_devices(FAMILY, it)
    quad = next(one for one in linked_sets(cards, it.links) if len(one.members) == 4)

    assert members_of(quad.name, cards) == quad.members
    assert members_of(quad.name, cards[1:]) == ()
    assert members_of(quad.name[:-1] + "x", cards) == ()
    others = [replace(one, device=replace(one.device, uuid=f"{one.device.uuid}-b")) for one in cards]
    assert members_of(quad.name, others) == ()
    for hostile in ("set-", "set-0-1", "set-0-1-2-3-4-5-6-7-8-0123456789", "set-0-0-0123456789", "../0-1", ""):
        assert members_of(hostile, cards) == ()


def test_the_sets_of_many_cards_are_as_many_as_allowed_and_the_same_each_time():
    it = boards(16, size=8)
    cards = offered_devices(FAMILY, it)

    found = linked_sets(cards, it.links)

    assert found == linked_sets(cards, it.links)
    assert len(found) <= MAX_SETS
    sizes = [len(one.members) for one in found]
    assert sizes == sorted(sizes)
    assert sizes.count(2) == 120
    for size in (2, 4, 8):
        scores = [one.score for one in found if len(one.members) == size]
        assert scores == sorted(scores, reverse=True)


def test_without_links_or_with_too_many_cards_there_are_no_sets():
    assert not can_make_sets(offered_devices(FAMILY, snapshot(8)), snapshot(8).links)
    few, many = boards(2), boards(65)
    assert can_make_sets(offered_devices(FAMILY, few), few.links)
    assert not can_make_sets(offered_devices(FAMILY, many), many.links)
