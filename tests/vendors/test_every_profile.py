"""Every machine that can be simulated, in every way in which its vendor serves it: found, read by a scheduler, handed
out. The golden files are for people to read: one for each machine.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_plugin.protocol.nodes import DeviceInfo, decode_json, decode_legacy, encode_legacy
from hami_plugin.scheduler.engine.node_info import read_idle_node as stocks_of
from hami_plugin.sdk import Family, LoadMeter, load_vendor, vendor_names
from hami_plugin.simulation.hardware import vendor_of
from hami_plugin.simulation.machines import load_machine
from tests.support.machines import (
    GOLDEN,
    UNLIMITED,
    Case,
    Found,
    cases,
    expected,
    found,
    profiles,
    recorded,
    registered,
)
from tests.support.rigs import known, rig
from tests.support.scale import spread

GAPS = Path(__file__).parents[2] / "docs/gaps.md"
UNTOLD = "fabric_untold"
"""What a profile says where nobody can ask a machine how its devices are linked."""


@pytest.fixture(
    scope="module", params=spread(cases(), lambda case: (case.machine.vendor, case.way.name), part=99), ids=str
)
def case(request: pytest.FixtureRequest) -> Case:
    asked: Case = request.param
    return asked


@pytest.fixture(scope="module")
def seen(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found(case, tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def every_family() -> tuple[Family, ...]:
    """All families of all vendors, as a scheduler has them."""
    vendors = [load_vendor(name) for name in vendor_names()]
    return tuple(family for vendor in vendors for family in vendor.families(vendor.settings()))


def test_every_vendor_has_a_machine() -> None:
    assert {vendor_of(load_machine(name)).name for name in profiles()} == set(vendor_names())


TELLS: dict[str, str] = {
    "amd": "mi300x-8",
    "ascend": "ascend-910b3-8",
    "cambricon": "cambricon-mlu590-8",
    "gaudi": "gaudi2-8",
    "hygon": "hygon-k100ai-8",
    "iluvatar": "iluvatar-biv150-8",
    "kunlun": "kunlun-p800-8",
    "metax": "metax-c500-8",
    "mthreads": "mthreads-s4000-8",
}
"""Vendors of which it is public how their devices tell what is in use of them, beside NVIDIA, with a machine each."""
SILENT = {"biren": "Biren", "enflame": "Enflame", "vastai": "Vastai"}
"""Those that do not, as the gaps call them."""


def test_which_vendors_do_not_tell_how_much_of_their_devices_is_in_use_stands_in_the_gaps() -> None:
    gap = next(line for line in GAPS.read_text().splitlines() if "| G-30 |" in line)

    assert [name for name in SILENT.values() if name not in gap] == []
    assert set(SILENT) | set(TELLS) <= set(vendor_names())
    assert not set(SILENT) & set(TELLS)


@pytest.mark.parametrize("vendor", TELLS)
def test_how_much_of_each_device_is_in_use_is_what_its_hardware_or_tool_says(vendor: str, tmp_path: Path) -> None:
    machine = rig(TELLS[vendor], tmp_path)
    machine.simulator.inject("load", 1, "37:1024")
    devices = {one.device.uuid: one.device.index for one in machine.driver.discover().sightings}
    assert isinstance(machine.driver, LoadMeter)

    found = {devices[uuid]: (one.memory_used, one.utilization) for uuid, one in machine.driver.load().items()}

    assert found == {index: (1 << 30, 37) if index == 1 else (0, 0) for index in devices.values()}


def test_a_neuron_device_tells_its_memory_in_use_unless_one_of_its_cores_does_not(tmp_path: Path) -> None:
    machine = rig("aws-inf2-24xlarge", tmp_path)
    machine.simulator.inject("load", 1, "0:1024")
    cores = sorted(tmp_path.rglob("neuron2/neuron_core*/stats/memory_usage/device_mem/present"))
    cores[0].write_text("many")
    devices = {one.device.uuid: one.device.index for one in machine.driver.discover().sightings}
    assert isinstance(machine.driver, LoadMeter)

    found = {devices[uuid]: (one.memory_used, one.utilization) for uuid, one in machine.driver.load().items()}

    assert found == {index: (1 << 30 if index == 1 else 0, None) for index in devices.values() if index != 2}


def test_a_chip_whose_memory_the_driver_does_not_tell_still_tells_how_busy_it_is(tmp_path: Path) -> None:
    machine = rig("ascend-310p-8", tmp_path)
    machine.simulator.inject("load", 1, "37:1024")
    machine.driver.discover()
    assert isinstance(machine.driver, LoadMeter)

    assert {(one.memory_used, one.utilization) for one in machine.driver.load().values()} == {(None, 37), (None, 0)}


def test_every_machine_has_a_golden_file_and_every_file_a_machine() -> None:
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == {Path(name).stem for name in profiles()}


def test_what_is_found_is_the_profile(case: Case, seen: Found) -> None:
    snapshot, machine = seen.snapshot, case.machine

    assert [(one.index, one.memory, one.pci, one.numa) for one in snapshot.devices] == expected(case)
    assert [one.index for one in snapshot.devices if not one.health.offered] == cut_by_the_profile(case)
    assert (snapshot.links.problems, snapshot.links.asymmetric) == ((), ())
    if case.way.joined:
        return
    assert [one.model for one in snapshot.devices] == [one.model for one in machine.devices]
    minors = [one.extra.get("phy_id", one.extra.get("drm_render", one.minor)) for one in machine.devices]
    assert [one.minor for one in snapshot.devices] in (minors, [None] * len(minors))
    for i, a in enumerate(snapshot.devices):
        links = [snapshot.links.between(a.uuid, b.uuid) for b in snapshot.devices[:i]]
        lanes = [0] * i if UNTOLD in machine.extra else list(machine.lanes[i][:i])
        assert [link and link.level for link in links] == list(machine.levels[i][:i])
        assert [link and link.lanes for link in links] == lanes


def cut_by_the_profile(case: Case) -> list[int]:
    """GPUs that are cut into MIG instances are not offered."""
    return [one.index for one in case.machine.devices if one.extra.get("mig")]


def test_names_are_the_profiles_where_a_register_has_them(case: Case, seen: Found) -> None:
    names = [one.uuid for one in seen.snapshot.devices]

    own = [one.uuid for one in case.machine.devices]
    if seen.family.rules.annotations.register and all(own) and case.machine.vendor != "enflame":
        assert names == own
    uncut = [one.uuid for one in seen.snapshot.devices if not seen.family.node.register(one, False).count]
    assert [info.id for info in registered(seen)] == [name for name in names if name not in uncut]


def test_a_scheduler_reads_the_same_devices_from_a_register(seen: Found) -> None:
    told = [info for one in seen.snapshot.devices if (info := seen.family.node.register(one, False)).count]

    read = registered(seen)

    if seen.family.rules.annotations.register:
        assert list(read) == told
    assert [counted(one) for one in read] == [counted(one) for one in told]


def counted(info: DeviceInfo) -> tuple[Any, ...]:
    """What is right also where a scheduler only knows how many there are, and HAMi's code says the rest."""
    return info.id, info.index, info.type, info.devcore, info.health, info.vendor, info.custom


def test_no_other_family_reads_any_device(seen: Found, every_family: tuple[Family, ...]) -> None:
    surveyed = stocks_of(seen.node, every_family)

    assert surveyed.problems == ()
    assert {device_type for device_type, pool in surveyed.node_info.pools.items() if pool.states} == {
        seen.family.resources.device_type
    }


def test_the_register_is_hamis_format_where_the_vendor_has_none_of_its_own(seen: Found) -> None:
    family = seen.family
    text = seen.node.annotations.get(family.rules.annotations.register, "")

    assert bool(text) is bool(family.rules.annotations.register)
    if text and family.node.encode is None:
        decoded = decode_json(text)
        assert [replace(one, devcore=0) for one in decoded] == [replace(one, devcore=0) for one in registered(seen)]
    elif family.node.encode is encode_legacy:
        assert decode_legacy(text) == registered(seen)


@pytest.mark.parametrize(
    "profile", spread(profiles(), lambda name: known(name).vendor, part=4), ids=lambda name: Path(name).stem
)
async def test_pods_receive_what_was_reviewed(profile: str, tmp_path: Path) -> None:
    told = {
        case.way.name: await recorded(case, tmp_path / case.way.name) for case in cases() if case.profile == profile
    }

    file = GOLDEN / f"{Path(profile).stem}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(told, sort_keys=True, width=160), encoding="utf-8")
    assert told == yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_share_is_served_or_refused_with_a_reason_and_a_whole_device_is_always_served(file: Path) -> None:
    told = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)

    for way in told.values():
        trusted = way.get("share, if trusted")
        assert "refused" not in way.get("whole", {})
        assert ("refused" in way.get("share", {})) is (trusted is not None)
        assert trusted is None or ("refused" not in trusted and "unlimitedShares: true" in way["share"]["refused"])
        assert way.keys() & {"share", "whole"}


def test_a_vendor_that_must_be_trusted_refuses_shares_by_default(case: Case) -> None:
    vendor = vendor_of(case.machine)
    file = GOLDEN / f"{Path(case.profile).stem}.yaml"
    told = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)[case.way.name]

    trusting = UNLIMITED in vendor.settings.model_fields and "share" in told
    assert ("refused" in told.get("share", {})) is trusting
