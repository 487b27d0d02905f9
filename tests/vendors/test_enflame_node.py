"""Enflame's node side: cards whole, shared and in partitions, from sysfs and efsmi to what a container receives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hami_plugin.allocation.allocator import question_of
from hami_plugin.allocation.identity import record
from hami_plugin.errors import DriverReason, RefusedError
from hami_plugin.model.placement import Grant
from hami_plugin.protocol.decisions import claims
from tests.support.rigs import Rig, absent_and_back, golden, kept_back_and_healed, lost_alone, rig
from vendors.enflame import VENDOR
from vendors.enflame.driver import Efsmi, EfsmiRow, partitions, profiles, rows
from vendors.enflame.drs import CAPACITY
from vendors.enflame.partitions import Partition, slices
from vendors.enflame.rules import NAMES

PROFILE = "enflame-s60-8"
GOLDEN = Path(__file__).parent / "golden" / "enflame"
WHOLE, SHARED, DRS = "enflame.com/gcu", "enflame.com/vgcu", "enflame.com/drs-gcu"


def machine(way: str, root: Path, **settings: object) -> Rig:
    """With the family that is served this way. Partitions can be cut of all cards, and two are, of the last."""
    found = rig(PROFILE, root, serve=way, **settings)
    if way == "partitions":
        found.simulator.inject("partitions")
        for _ in range(2):
            found.simulator.inject("cut", 7, 2)
    device_type, _ = NAMES[way]
    return replace(found, family=next(one for one in VENDOR.families(found.settings) if one.device_type == device_type))


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

    (claim,) = [one for question in questions for one in claims(pod, question)]

    assert claim.devices == ("n1-enflame-7", "n1-enflame-7")


def test_a_decision_that_another_family_wrote_under_the_same_name_does_not_hold_up_the_pod(tmp_path: Path) -> None:
    found = machine("partitions", tmp_path)
    pod = found.decided(found.node(found.snapshot()), {DRS: 2})
    shared = next(one for one in VENDOR.families(found.settings) if one.device_type == "vGCU")

    alone, both = (
        record(pod, [question_of(one) for one in some], {}) for some in ([found.family], [found.family, shared])
    )

    assert alone == both


@pytest.mark.parametrize(("fault", "reason"), [("no-driver", "DriverFailed"), ("no-node", "DeviceNodeMissing")])
def test_a_faulty_card_is_kept_back_and_heals(fault: str, reason: str, tmp_path: Path) -> None:
    found = machine("whole", tmp_path)
    kept_back_and_healed(found, fault, reason)


def test_a_card_that_falls_off_the_bus_leaves_the_others(tmp_path: Path) -> None:
    found = machine("whole", tmp_path)
    lost_alone(found, 5)


@pytest.mark.parametrize(
    ("fault", "reason"), [("driver-gone", DriverReason.NO_DRIVER), ("no-devices", DriverReason.NO_DEVICES)]
)
def test_an_absent_driver_has_a_reason_and_comes_back(fault: str, reason: DriverReason, tmp_path: Path) -> None:
    found = machine("whole", tmp_path)
    before = found.snapshot()

    absent_and_back(found, fault, reason)

    assert found.snapshot() == before


@pytest.mark.parametrize(("fault", "words"), [("tool-gone", "cannot be run"), ("tool-garbled", "does not list")])
def test_memory_that_nobody_tells_is_not_guessed(fault: str, words: str, tmp_path: Path) -> None:
    found = machine("whole", tmp_path)
    found.simulator.inject(fault)

    sightings = found.driver.discover().sightings

    assert {sighting.fault.reason for sighting in sightings if sighting.fault} == {"MemoryUnknown"}
    assert all(sighting.fault and words in sighting.fault.message for sighting in sightings)


def test_cards_that_are_cut_are_not_served_whole_and_whole_ones_not_in_parts(tmp_path: Path) -> None:
    whole = machine("whole", tmp_path / "a")
    whole.simulator.inject("partitions")
    parts = machine("partitions", tmp_path / "b")
    parts.simulator.inject("back")

    assert set(whole.faults().values()) == {"Partitioned"}
    assert set(parts.faults().values()) == {"NotPartitioned"}


def test_a_node_whose_profiles_nobody_tells_announces_no_card(tmp_path: Path) -> None:
    found = machine("partitions", tmp_path)
    found.simulator.inject("no-profiles")

    snapshot = found.snapshot()

    assert {device.reason for device in snapshot.devices} == {"ProfilesUnknown"}
    assert found.family.rules.node_devices(found.node(snapshot)) == ()


def test_the_tool_is_asked_now_and_then_and_what_it_said_is_kept(tmp_path: Path) -> None:
    found = machine("whole", tmp_path)
    now = [0.0]
    tool = Efsmi(found.settings.efsmi, clock=lambda: now[0])
    known = tool.row("0000:16:00.0")
    found.simulator.inject("tool-gone")

    assert known
    assert (tool.row("0000:16:00.0"), tool.problem) == (known, "")
    now[0] = 31.0
    assert tool.row("0000:16:00.0") == known
    assert "cannot be run" in tool.problem


def test_the_table_is_read_as_versions_of_the_tool_print_it() -> None:
    older = (
        "|EFSMI    V1.2.0.301       Driver Ver: 1.2.0.301                           |\n"
        "| DEV    NAME                | FW VER          | BUS-ID      ECC           |\n"
        "| TEMP   Dpm   Pwr(Usage/Cap)| Mem     GCU Virt| DUsed       SN            |\n"
        "| 0      S60                 | 33.6.2          | 00:01:00.0  Disable       |\n"
        "| 39 C   Sleep    105W  300W | 49120MiB Disable|   0.0%      A073640510015 |\n"
    )
    newer = (
        "| 1      Enflame S60G         | 31.5.3            | 00:2F:00.0  Disable       |\n"
        "| 34℃    LP0      N/A         | 23552MiB  SRIOV   | 0%          A018K30520031 |\n"
        "+-----------------------------+-------------------+---------------------------+\n"
    )

    assert list(rows(older + newer)) == [
        EfsmiRow(index=0, model="S60", bus="00:01:00.0", memory=49120, virtual="Disable", serial="A073640510015"),
        EfsmiRow(index=1, model="S60G", bus="00:2f:00.0", memory=23552, virtual="SRIOV", serial="A018K30520031"),
    ]


def test_profiles_and_partitions_are_known_by_their_names_among_other_lines() -> None:
    listing = "+----+\n| Dev Profile ID |\n| 0 1g.8gb 0 6 8 4 |\n| 0 6g.48gb 3 1 48 24 |\n"

    assert profiles(listing) == {"1g.8gb": "0", "6g.48gb": "3"}
    cut = "| 0 1g.8gb 4 abc-def |\n| 1 3g.24gb 4 abc-123 |\n"
    assert partitions(cut, 0) == (Partition(profile="1g.8gb", uuid="abc-def"),)
    assert partitions(cut, 1) == (Partition(profile="3g.24gb", uuid="abc-123"),)


def test_a_tool_that_hangs_is_left_after_its_deadline(tmp_path: Path) -> None:
    found = machine("whole", tmp_path)
    found.simulator.inject("tool-hangs")
    tool = Efsmi(found.settings.efsmi, deadline=0.2)

    assert not tool.row("0000:16:00.0")
    assert "has not answered within 0.2 s" in tool.problem
