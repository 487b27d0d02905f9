"""MetaX's driver on simulated machines: what sysfs and mx-smi show."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_plugin.errors import DriverReason
from hami_plugin.host.paths import HostPaths
from hami_plugin.sdk.tools import ToolError
from hami_plugin.simulation.machines import machine_names
from tests.support.rigs import absent_and_back, known, lost_alone
from tests.vendors.metax.machines import machine
from vendors.metax.driver import MetaxDiscoverer, Smi, card
from vendors.metax.zones import connected, forecast_tables

PROFILES = [name for name in machine_names() if known(name).vendor == "metax"]
NATIVE, SHARED = {"mode": "native"}, {"mode": "sgpu"}


@pytest.mark.parametrize("mode", [NATIVE, SHARED], ids=["native", "sgpu"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_gpu_knows_its_link_zone(profile: str, mode: dict[str, str], tmp_path: Path) -> None:
    made = machine(profile, tmp_path, **mode)

    snapshot = made.snapshot()

    described = made.machine.devices
    assert [card(device).uuid for device in snapshot.devices] == [one.uuid for one in described]
    assert [card(device).zone for device in snapshot.devices] == [one.extra["link_zone"] for one in described]


def test_gpus_without_links_are_worth_nothing_and_cut_nothing() -> None:
    assert forecast_tables([0, 0, 1, 1]) == ({"1": 0, "2": 10, "3": 10, "4": 10}, {"1": 0, "2": 0, "3": 0, "4": 0})


def test_zones_are_what_links_reach_also_over_others() -> None:
    assert connected(frozenset({(1, 2), (2, 5), (3, 4)}), range(6)) == {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 1}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("unavailable", "DeviceUnavailable"), ("no-node", "DeviceNodeMissing"), ("unbound", "DriverUnbound")],
)
def test_a_faulty_device_is_kept_back_and_heals(fault: str, reason: str, tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    roots = HostPaths(node="n1").elsewhere(sysfs=tmp_path / "sys", dev=tmp_path / "dev")
    look = MetaxDiscoverer(roots, Smi(made.settings.mx_smi, fresh=0.0), whole=False)

    def faults() -> dict[int, str]:
        found = look(lambda _uuid: None).sightings
        assert len(found) == 8
        return {one.device.index: one.fault.reason for one in found if one.fault}

    assert faults() == {}
    made.simulator.inject(fault, 2)
    assert faults() == {2: reason}
    made.simulator.inject("back", 2)
    assert faults() == {}


def test_a_shared_gpu_whose_memory_is_not_told_is_kept_back_until_it_is(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    answer = Path(f"{made.settings.mx_smi}.says/--show-memory")
    well = answer.read_text(encoding="utf-8")
    lines = well.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if line.startswith("GPU#2"))
    answer.write_text("".join([*lines[: place + 1], *lines[place + 2 :]]), encoding="utf-8")
    roots = HostPaths(node="n1").elsewhere(sysfs=tmp_path / "sys", dev=tmp_path / "dev")
    look = MetaxDiscoverer(roots, Smi(made.settings.mx_smi, fresh=0.0), whole=False)

    found = look(lambda _uuid: None).sightings

    assert {one.device.index: one.fault.reason for one in found if one.fault} == {2: "MemoryUnknown"}
    answer.write_text(well, encoding="utf-8")
    found = look(lambda _uuid: None).sightings
    assert [(one.device.memory, one.fault) for one in found] == [(65536, None)] * 8


def test_a_whole_gpu_is_served_though_its_memory_is_not_told(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path, **NATIVE)
    Path(f"{made.settings.mx_smi}.says/--show-memory").write_text("", encoding="utf-8")

    assert made.faults() == {}


def test_a_gpu_that_falls_off_the_bus_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    made = machine("metax-c600a-16", tmp_path)
    lost_alone(made, 0)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("driver-gone", DriverReason.NO_DRIVER),
        ("no-devices", DriverReason.NO_DEVICES),
        ("tool-gone", DriverReason.NO_LIBRARY),
        ("tool-fails", DriverReason.FAILED),
    ],
)
def test_an_absent_driver_or_tool_has_a_reason_and_comes_back(fault: str, reason: DriverReason, tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    absent_and_back(made, fault, reason)

    assert len(made.snapshot().devices) == 8


def test_a_tool_that_fails_later_takes_nothing_away(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    roots = HostPaths().elsewhere(sysfs=tmp_path / "sys", dev=tmp_path / "dev")
    look = MetaxDiscoverer(roots, Smi(made.settings.mx_smi, fresh=0.0), whole=False)
    before = look(lambda _uuid: None)
    made.simulator.inject("tool-gone")

    after = look(lambda _uuid: None)

    assert after.sightings == before.sightings
    assert "the GPUs' state is as it was" in after.problems[0]


def test_a_gpu_that_the_tool_lists_no_more_is_kept_back_and_heals(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    answer = Path(f"{made.settings.mx_smi}.says/-L")
    well = answer.read_text(encoding="utf-8")
    roots = HostPaths(node="n1").elsewhere(sysfs=tmp_path / "sys", dev=tmp_path / "dev")
    look = MetaxDiscoverer(roots, Smi(made.settings.mx_smi, fresh=0.0), whole=False)
    before = look(lambda _uuid: None).sightings

    answer.write_text("".join(line for line in well.splitlines(keepends=True) if "GPU#2" not in line), encoding="utf-8")

    after = look(lambda _uuid: None).sightings
    assert [one.device for one in after] == [one.device for one in before]
    assert {one.device.index: one.fault.reason for one in after if one.fault} == {2: "NotListed"}
    answer.write_text(well, encoding="utf-8")
    assert look(lambda _uuid: None).sightings == before


def test_a_tool_that_hangs_is_given_up(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    made.simulator.inject("tool-hangs")

    with pytest.raises(ToolError, match=r"not answered within 0\.2 s"):
        Smi(made.settings.mx_smi, deadline=0.2).listed({"0000:0e:00.0"})


def test_the_tool_is_asked_now_and_then_only(tmp_path: Path) -> None:
    made = machine("metax-c500-8", tmp_path)
    now = [0.0]
    smi = Smi(made.settings.mx_smi, clock=lambda: now[0])
    addresses = {one.pci for one in made.machine.devices}
    smi.listed(addresses)
    made.simulator.inject("unavailable", 1)

    assert all(one.available for one in smi.listed(addresses).values())
    now[0] = 10.0
    assert [one.number for one in smi.listed(addresses).values() if not one.available] == [1]
