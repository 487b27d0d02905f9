"""What a node's conditions say of its devices, and which devices are cordoned or want a reset."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hami_plugin.errors import ClusterError
from hami_plugin.model.device import Health, Snapshot
from hami_plugin.model.views import NodeCondition, NodeView
from hami_plugin.node_status import remediation
from hami_plugin.node_status.registration import FamilySource, LiveNode
from hami_plugin.node_status.remediation import (
    WELL,
    NodeConditions,
    Remediation,
    Remedy,
    condition_of,
    kinds_of,
    remediation_annotations,
    remedy,
)
from hami_plugin.process.concurrency import Watched, cancel
from hami_plugin.protocol.keys import RESET_WANTED
from tests.support.builders import FAMILY, device, grant, held_by, ids, pod, uuid
from tests.support.node import until

CORDONING = replace(FAMILY, rules=replace(FAMILY.rules, cordon="toy/cordon"))
NOUNS = {"toy": "NPU", "other": "DEV"}


def source(*devices, ready=True, reason="", vendor="toy", family=CORDONING):
    snapshot = Snapshot(devices=devices, ready=ready, reason=reason, message="why" if reason else "")
    return FamilySource(family=family, snapshot=Watched(snapshot), vendor=vendor)


def broken(number, *, grave=True):
    return device(number, health=Health.UNHEALTHY, reason="Bad", message="it broke", grave=grave)


def test_each_kind_of_device_has_a_condition_by_what_its_users_call_it():
    kinds = kinds_of([source(device(0)), source(device(1)), source(device(2), vendor="other")], NOUNS)

    assert [(kind.condition, len(kind.sources)) for kind in kinds] == [("AcceleratorDegraded", 1), ("NPUDegraded", 2)]


def test_a_condition_names_what_is_out_of_service_and_says_nothing_that_changes_by_itself():
    (kind,) = kinds_of([source(device(0), broken(1), device(2, health=Health.SUSPECT, reason="Odd"))], NOUNS)

    found = condition_of(kind)

    assert (found.type, found.status, found.reason) == ("NPUDegraded", "True", "DevicesOutOfService")
    assert found.message == "1 of 3 NPUs are out of service: NPU1 (Bad it broke; needs a reset or a reboot)"


@pytest.mark.parametrize(
    ("one", "status"),
    [
        (source(device(0)), "False"),
        (source(ready=False, reason="NoDriver"), "Unknown"),
        (source(ready=False, reason="NotLookedYet"), None),
        (source(), None),
    ],
)
def test_a_condition_is_unknown_without_a_driver_and_absent_without_devices(one, status):
    (kind,) = kinds_of([one], NOUNS)
    found = condition_of(kind)

    assert (found and found.status) == status


async def test_conditions_that_nobody_wants_are_taken_away_whenever_the_node_shows_them_and_not_looked_for(monkeypatch):
    monkeypatch.setattr(remediation, "EVERY_S", 3600.0)
    monkeypatch.setattr(remediation, "AGAIN_S", 0.0)
    left = NodeView(name="n", conditions=(NodeCondition(type="GPUDegraded", status="False", reason=WELL),))
    taken, node = [], LiveNode()

    class Writer:
        async def patch_conditions(self, changes):
            taken.append([one["type"] for one in changes])
            if len(taken) == 1:
                raise ClusterError("refused", status=403)
            node.deliver(NodeView(name="n"))

    task = asyncio.create_task(NodeConditions(Writer(), node, list, wanted=False).run())
    try:
        for times in (2, 3):
            await asyncio.sleep(0)
            node.deliver(left)
            await until(lambda: len(taken) == times)  # noqa: B023
    finally:
        await cancel(task)

    assert taken == [["GPUDegraded"]] * 3


def test_only_devices_that_need_a_reset_are_cordoned_and_only_free_ones_want_it():
    devices = (device(0), broken(1), broken(2, grave=False), broken(3))
    held = [held_by(pod("one"), replicas=ids((3, 0)), grants=[grant(3)])]

    found = remedy([source(*devices), source(broken(5), family=FAMILY)], held)

    assert found == Remedy(cordon={"toy/cordon": (uuid(1), uuid(3))}, reset=(uuid(1), uuid(5)))


def test_a_cordon_is_added_to_those_that_are_there_and_never_lifted():
    wanted = Remedy(cordon={"toy/cordon": ("b", "c")}, reset=())

    assert remediation_annotations(NodeView(name="n", annotations={"toy/cordon": "a, b"}), wanted) == {
        "toy/cordon": "a,b,c"
    }
    assert remediation_annotations(NodeView(name="n", annotations={"toy/cordon": "a,b,c"}), wanted) == {}
    gone = remediation_annotations(
        NodeView(name="n", annotations={"toy/cordon": "b", RESET_WANTED: "b"}), Remedy(cordon={}, reset=())
    )
    assert gone == {RESET_WANTED: None}


def test_an_annotation_of_cordons_does_not_grow_without_end():
    many = tuple(f"u{number}" for number in range(3 * remediation.MAX_NAMED))

    found = remediation_annotations(NodeView(name="n"), Remedy(cordon={"toy/cordon": many}, reset=many))

    assert [len(text.split(",")) for text in found.values()] == [remediation.MAX_NAMED] * 2


class Asked:
    """The API server of one node, which refuses writes while ``refusing``."""

    def __init__(self, node):
        self.node = node
        self.refusing = False

    async def patch_node(self, annotations, *, resource_version):
        if self.refusing:
            raise ClusterError("refused", status=409)
        texts = {**self.node.value.annotations, **annotations}
        return NodeView(name="n", annotations={key: text for key, text in texts.items() if text})


def remediating(mode, held=()):
    node = LiveNode()
    node.deliver(NodeView(name="n", annotations={"toy/cordon": uuid(1)}))
    asked = Asked(node)
    sources = [source(device(0), broken(1), broken(2))]
    found = Remediation(asked, node, Told(), mode=mode, sources=lambda: sources, held=lambda: held)
    return found, asked, sources


class Told:
    def node(self, *_event, **_more): ...


async def test_what_is_done_about_devices_is_counted_once_and_what_is_refused_each_time():
    has = held_by(pod("one"), replicas=ids((2, 0)), grants=[grant(2)])
    remedies, asked, _sources = remediating("on", held=[has])
    assert set(remedies.counts.values()) == {0}

    asked.refusing = True
    with pytest.raises(ClusterError):
        await remedies.look()
    asked.refusing = False
    for _ in range(3):
        await remedies.look()

    assert remedies.counts == {
        ("cordon", "done"): 1,  # the first was cordoned already
        ("cordon", "failed"): 1,
        ("reset", "done"): 1,  # the second is still a pod's
        ("reset", "failed"): 1,
    }


async def test_a_dry_run_counts_what_would_be_done_whenever_it_begins_to_be_so():
    remedies, _asked, sources = remediating("dry-run")

    for devices in ((broken(1), broken(2)), (broken(1), broken(2)), (device(1),), (broken(1),)):
        sources[:] = [source(*devices)]
        await remedies.look()

    assert remedies.counts == {("cordon", "dry-run"): 3, ("reset", "dry-run"): 3}
