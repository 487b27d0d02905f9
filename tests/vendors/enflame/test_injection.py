"""What a container of Enflame receives, and what the scheduler and the kubelet are told of its devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.allocation.allocator import question_of
from hami_plugin.allocation.identity import record
from hami_plugin.errors import RefusedError
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.pods import decided_shares
from tests.support.rigs import golden
from tests.vendors.enflame.machines import machine
from vendors.enflame import VENDOR
from vendors.enflame.drs import CAPACITY
from vendors.enflame.partitions import slices

PROFILE = "enflame-s60-8"
GOLDEN = Path(__file__).parent / "golden"
WHOLE, SHARED, DRS = "enflame.com/gcu", "enflame.com/vgcu", "enflame.com/drs-gcu"


def test_partitions_are_announced_as_enflames_agent_does(tmp_path: Path) -> None:
    found = machine("partitions", tmp_path)

    told = json.loads(found.node(found.snapshot()).annotations[CAPACITY])

    assert told["devices"] == [{"index": "7", "minor": "7", "capacity": 4}]
    assert told["profiles"] == {"1g.8gb": "0", "2g.16gb": "1", "3g.24gb": "2", "6g.48gb": "3"}


def test_a_card_that_is_unwell_is_left_out_of_the_announcement(tmp_path: Path) -> None:
    found = machine("partitions", tmp_path)
    for index in range(7):
        found.simulator.inject("cut", index, 1)
    found.simulator.inject("no-node", 2)
    infos = [found.family.node.register(device, False) for device in found.snapshot().devices]
    assert found.family.node.encode

    told = json.loads(found.family.node.encode([replace(info, health=info.index != 2) for info in infos]))

    assert [one["index"] for one in told["devices"]] == ["0", "1", "3", "4", "5", "6", "7"]


@pytest.mark.parametrize(
    ("name", "way", "limits"),
    [
        ("two-whole", "whole", {WHOLE: 2}),
        ("partition", "partitions", {DRS: 2}),
    ],
)
def test_a_decided_pod_receives_its_cards(name: str, way: str, limits: dict[str, int], tmp_path: Path) -> None:
    found = machine(way, tmp_path)

    golden(GOLDEN / f"{name}.json", found.received(limits))


def test_a_runtime_that_reads_cdi_is_told_the_names(tmp_path: Path) -> None:
    found = machine("shared", tmp_path, deviceListStrategy="cdi-annotations,cdi-cri")

    golden(GOLDEN / "quarter-cdi.json", found.received({SHARED: 1, "enflame.com/vgcu-percentage": 25}))


def test_no_two_containers_have_the_same_partition(tmp_path: Path) -> None:
    found = machine("partitions", tmp_path)
    device = found.snapshot().devices[7]
    asked = Grant(uuid=device.uuid, device_type="Enflame", memory=16384, cores=34)

    first = found.family.node.place(asked, device, [])
    second = found.family.node.place(asked, device, [first])
    third = found.family.node.place(asked, device, [first, second])

    names = [(grant.notes or {}).get("partition") for grant in (first, second, third)]
    assert names == ["00070000", "00070001", None]


def test_a_partition_that_nobody_has_cut_is_not_placed_and_refused_with_the_command_that_cuts_it(
    tmp_path: Path,
) -> None:
    found = machine("partitions", tmp_path)
    snapshot = found.snapshot()
    node = found.node(snapshot)
    unread = replace(node, annotations={CAPACITY: node.annotations[CAPACITY]})
    pod = found.decided(unread, {DRS: 3})

    assert found.refused(node, {DRS: 3}) == "1/1 CardWithoutFreePartition"

    with pytest.raises(
        RefusedError, match=r"3g\.24gb of n1-enflame-drs-7, and none is free; cut one .*efsmi -i 7 --drs"
    ):
        found.answer(pod, snapshot.devices)


@pytest.mark.parametrize(("cores", "count"), [(17, 1), (34, 2), (50, 3), (67, 4), (84, 5), (100, 6)])
def test_a_partitions_cores_tell_its_slices(cores: int, count: int) -> None:
    assert slices(Grant(uuid="u", device_type="Enflame", cores=cores)) == count


def test_slices_are_counted_where_hami_asks_for_them(tmp_path: Path) -> None:
    found = machine("shared", tmp_path, sharedSlicesPerCard=4)
    snapshot = found.snapshot()
    limits = {SHARED: 1, "enflame.com/vgcu-percentage": 50, "enflame.com/shared-gcu": 2}
    pod = found.decided(found.node(snapshot), limits)
    questions = [question_of(found.family, one) for one in found.family.resources.units]

    (claim,) = [one for question in questions for one in decided_shares(pod, question)]

    assert claim.devices == ("n1-enflame-7", "n1-enflame-7")


def test_a_decision_that_another_family_wrote_under_the_same_name_does_not_hold_up_the_pod(tmp_path: Path) -> None:
    found = machine("partitions", tmp_path)
    pod = found.decided(found.node(found.snapshot()), {DRS: 2})
    shared = next(one for one in VENDOR.families(found.settings) if one.resources.device_type == "vGCU")

    alone, both = (
        record(pod, [question_of(one) for one in some], {}) for some in ([found.family], [found.family, shared])
    )

    assert alone == both
