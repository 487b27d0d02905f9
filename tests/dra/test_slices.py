"""ResourceSlices: within the server's limits on every machine, and written only where they say something new."""

import copy
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from hami_plugin.dra.slices import (
    MAX_DEVICES,
    Pool,
    PoolContents,
    Taints,
    device_name,
    devices,
    link_groups,
    normalize,
    offered_devices,
    slice_view,
    writes,
)
from hami_plugin.model.device import Health, Links, scored
from hami_plugin.model.views import exact
from hami_plugin.protocol.nodes import refuses_key
from hami_plugin.simulation.objects import kept
from tests.support.builders import FAMILY, changed, snapshot, uuid
from tests.support.machines import cases, found
from tests.support.scale import spread

PLACE = Pool(driver="acme.hami.io", node="node-a", node_uid="u1")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")


def listed(count, **changes):
    return [
        {
            "name": f"card-{n}",
            "attributes": {"index": {"int": n}},
            "capacity": {"memory": {"value": "40960Mi"}},
            **changes,
        }
        for n in range(count)
    ]


class Server:
    """Takes writes as an API server does, and rewrites quantities."""

    def __init__(self):
        self.there, self.version = {}, 0

    def put(self, todo):
        for one in todo.deletes:
            del self.there[one.name]
        for document in (*todo.updates, *todo.creates):
            self.version += 1
            name = document["metadata"]["name"]
            written = kept(copy.deepcopy(document))
            meta = {**document["metadata"], "uid": f"of-{name}", "resourceVersion": str(self.version)}
            self.there[name] = slice_view({**written, "metadata": meta})

    def wants(self, wanted):
        todo = writes(PLACE, PoolContents(devices=wanted), self.there)
        self.put(todo)
        return todo

    def pool(self):
        """The devices of the newest generation, if it is whole."""
        newest = max(one.generation for one in self.there.values())
        own = [one.spec for _name, one in sorted(self.there.items()) if one.generation == newest]
        assert len(own) == len(self.there) == own[0]["pool"]["resourceSliceCount"]
        return [device["name"] for spec in own for device in spec["devices"]]


@pytest.mark.parametrize("count", [0, 1, MAX_DEVICES, MAX_DEVICES + 1, 3 * MAX_DEVICES])
def test_all_devices_are_published_in_whole_pools_and_nothing_is_written_twice(count):
    server = Server()

    assert server.wants(listed(count)).creates

    assert server.pool() == [f"card-{n}" for n in range(count)]
    assert all(len(one.spec["devices"]) <= MAX_DEVICES for one in server.there.values())
    assert not server.wants(listed(count))


def test_one_slice_changes_within_its_generation_and_several_get_a_new_one():
    server = Server()
    server.wants(listed(100))

    todo = server.wants(listed(99))
    assert [len(todo.deletes), len(todo.updates), len(todo.creates)] == [0, 1, 0]
    assert {one.generation for one in server.there.values()} == {1}

    server.wants(listed(99, attributes={}))
    assert {one.generation for one in server.there.values()} == {2}
    assert server.pool() == [f"card-{n}" for n in range(99)]


def test_a_pool_that_shrinks_lets_go_of_slices_before_it_writes_others():
    server = Server()
    server.wants(listed(200))

    todo = server.wants(listed(10))

    assert len(todo.deletes) == 3
    assert server.pool() == [f"card-{n}" for n in range(10)]
    assert not server.wants(listed(10))


@pytest.mark.parametrize("lost", [[0], [1], [0, 1, 2]])
def test_slices_that_others_delete_are_written_again(lost):
    server = Server()
    server.wants(listed(150))
    for number in lost:
        del server.there[PLACE.name(number)]

    server.wants(listed(150))

    assert server.pool() == [f"card-{n}" for n in range(150)]


def test_a_crash_between_two_writes_is_mended_by_the_next_look():
    server = Server()
    server.wants(listed(100))
    todo = writes(PLACE, PoolContents(devices=listed(100, attributes={})), server.there)
    server.put(type(todo)(updates=todo.updates[:1]))

    server.wants(listed(100, attributes={}))

    assert server.pool() == [f"card-{n}" for n in range(100)]


def test_a_new_node_of_the_same_name_owns_the_slices():
    server = Server()
    server.wants(listed(1))
    todo = writes(
        Pool(driver=PLACE.driver, node=PLACE.node, node_uid="u2"), PoolContents(devices=listed(1)), server.there
    )

    assert [one["metadata"]["ownerReferences"][0]["uid"] for one in todo.updates] == ["u2"]


LENT = ("enflame-s60-8-one-slice", "enflame-s60-8-six-slices", "enflame-s60-8-drs-lent")
"""Machines whose cards are cut beforehand: a claim cannot name a piece."""


@pytest.mark.parametrize("case", spread(cases()), ids=str)
def test_every_machine_is_published_within_the_servers_limits(case, tmp_path):
    it = found(case, tmp_path)
    published = devices(offered_devices(it.family, it.snapshot))

    lent = str(case) in LENT
    healthy = [device for device in it.snapshot.devices if device.health.offered and not lent]
    assert [one["name"] for one in published] == [
        device_name(device.uuid) for device in sorted(healthy, key=lambda d: d.order)
    ]
    assert len({one["name"] for one in published}) == len(published)
    for one in published:
        assert LABEL.fullmatch(one["name"])
        assert len(one["attributes"]) + len(one.get("capacity", {})) <= 32
        for name, value in one["attributes"].items():
            assert IDENTIFIER.fullmatch(name.removeprefix("resource.kubernetes.io/"))
            assert len(value) == 1
            assert len(str(next(iter(value.values())))) <= 64
        for capacity in one.get("capacity", {}).values():
            allowed(capacity, shared=one.get("allowMultipleAllocations", False))


def allowed(capacity, *, shared):
    """What the server asks of a capacity and of its policy."""
    value, policy = exact(capacity["value"]), capacity.get("requestPolicy")
    assert bool(policy) == shared
    if policy:
        least, most, step = (exact(policy["validRange"][name]) for name in ("min", "max", "step"))
        default = exact(policy["default"])
        assert 0 <= least <= default <= most <= value
        assert (default - least) % step == (most - least) % step == 0
        assert least + step <= value


def test_an_unwell_or_withheld_card_is_left_out():
    every = offered_devices(FAMILY, snapshot(4, d1=Health.UNHEALTHY, d2=Health.SUSPECT))

    names = [one["name"] for one in devices(every, {uuid(0)})]

    assert names == [device_name(uuid(2)), device_name(uuid(3))]


@pytest.mark.parametrize(
    ("taints", "effects"),
    [
        (Taints.NO_SCHEDULE, ["", "NoSchedule", "NoSchedule", ""]),
        (Taints.NO_EXECUTE, ["", "NoSchedule", "NoExecute", ""]),
    ],
)
def test_an_unwell_card_is_tainted_by_severity_and_clean_again_when_it_is_well(taints, effects):
    found = snapshot(4, d1=Health.UNHEALTHY, d2=Health.UNHEALTHY)
    unwell = [replace(device, reason="XID 79!", grave=number == 2) for number, device in enumerate(found.devices)]
    published = devices(
        offered_devices(FAMILY, replace(found, devices=tuple(unwell))), driver="toy.hami.io", taints=taints
    )

    given = [one.get("taints", [{"effect": ""}])[0] for one in published]
    assert [taint["effect"] for taint in given] == effects
    assert given[2] | {"effect": ""} == {"key": "toy.hami.io/fault", "value": "XID-79", "effect": ""}
    assert not any("taints" in one for one in devices(offered_devices(FAMILY, snapshot(4)), taints=taints))


def test_a_taint_keeps_the_time_that_the_server_gave_it_and_is_not_written_for_that():
    server = Server()
    taint = {"key": "toy.hami.io/fault", "value": "Xid", "effect": "NoSchedule"}
    server.wants(listed(2, taints=[taint]))
    (there,) = server.there.values()
    for device in there.document["spec"]["devices"]:
        device["taints"] = [{**taint, "timeAdded": "2026-01-01T00:00:00Z"}]

    assert not server.wants(listed(2, taints=[taint]))
    todo = server.wants(
        [{**listed(2, taints=[taint])[0], "attributes": {}}, *listed(2, taints=[{**taint, "value": "Y"}])[1:]]
    )

    one, other = todo.updates[0]["spec"]["devices"]
    assert one["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    assert "timeAdded" not in other["taints"][0]


def pairs(names, linked):
    """Links of one bus, and direct ones between those that are ``linked``."""
    every = {tuple(sorted(pair)) for pair in combinations(names, 2)}
    return Links(pairs={pair: scored("SYS", int(pair in linked), "NV") for pair in every})


def test_linked_groups_have_only_direct_links_and_no_device_twice():
    names = [f"g{number}" for number in range(8)]
    quads = {pair for four in (names[:4], names[4:]) for pair in combinations(four, 2)}

    groups = link_groups(names, pairs(names, quads))

    assert {size for one in groups.values() for size in one} == {2, 4}
    for size in (2, 4):
        members = Counter(one[size] for one in groups.values())
        assert set(members.values()) == {size}
    assert len({groups[name][4] for name in names[:4]}) == 1
    assert link_groups(names, pairs(names, set())) == {name: {} for name in names}


@pytest.mark.parametrize(
    "changes",
    [
        {"whole_only": "nothing holds containers to parts"},
        {"unlimited": "nothing holds containers to parts"},
        {"announce": lambda _snapshot, _taken: {refuses_key("TOY"): "parts: no library"}},
        {"memory": "", "cores": ""},
        {"cores_are_bits": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_card_whose_parts_nothing_enforces_or_no_claim_can_say_is_given_out_whole(changes):
    assert all(one.shared for one in offered_devices(FAMILY, snapshot(2)))
    assert not any(one.shared for one in offered_devices(changed(FAMILY, **changes), snapshot(2)))


@pytest.mark.parametrize(
    ("uuid", "name"),
    [("GPU-5a1c-77", "gpu-5a1c-77"), ("abc", "abc")],
)
def test_a_uuid_that_is_a_label_is_the_devices_name(uuid, name):
    assert device_name(uuid) == name


def test_other_names_stay_apart():
    names = ["NODE.a/biren_0", "node-a-biren-0", "x" * 80, "x" * 81, "_", "é", "MIG-a/1/2"]
    made = [device_name(one) for one in names]

    assert len(set(made)) == len(names)
    assert all(LABEL.fullmatch(one) for one in made)


def test_quantities_are_compared_as_numbers_and_texts_as_they_are():
    one, other = ({"spec": {"devices": [{"name": "a", "capacity": {"m": {"value": v}}}]}} for v in ("40960Mi", "40Gi"))
    assert normalize(one) == normalize(other)
    other["spec"]["devices"][0]["capacity"]["m"]["value"] = "41Gi"
    assert normalize(one) != normalize(other)
