"""Enflame's driver on simulated machines: what sysfs and efsmi show."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason
from tests.support.rigs import absent_and_back, kept_back_and_healed, lost_alone
from tests.vendors.enflame.machines import machine
from vendors.enflame.driver import Efsmi, EfsmiRow, instances, profiles, rows
from vendors.enflame.partitions import DrsInstance

PROFILE = "enflame-s60-8"


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
    cut = "| 0 1g.8gb 4 abc-def |\n| 1 3g.24gb 5 DRS-abc-123 |\n"
    assert instances(cut) == {
        0: (DrsInstance(profile="1g.8gb", uuid="abc-def", number=4),),
        1: (DrsInstance(profile="3g.24gb", uuid="abc-123", number=5),),
    }


def test_a_tool_that_hangs_is_left_after_its_deadline(tmp_path: Path) -> None:
    found = machine("whole", tmp_path)
    found.simulator.inject("tool-hangs")
    tool = Efsmi(found.settings.efsmi, deadline=0.2)

    assert not tool.row("0000:16:00.0")
    assert "has not answered within 0.2 s" in tool.problem
