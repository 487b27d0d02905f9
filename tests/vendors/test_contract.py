"""The contract, over every module in ``vendors``: names, a mirror test, quiet imports, and the laws of every policy."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_plugin.scheduler.engine.devices import DeviceState, idle_state
from hami_plugin.sdk import Family, Vendor, load_vendor, vendor_names
from tests.hami import values
from tests.hami.run import read
from tests.support import contract
from tests.support.described import described
from tests.support.scale import examples

ROOT = Path(__file__).parents[2]
MODELS = (
    "910A",
    "910B2",
    "910B3",
    "910B4",
    "910B4-1",
    "310P3",
    "Ascend910",
    "x MR-V100",
    "x MR-V50",
    "x BI-V150",
    "x BI-V100",
)
SDKS = ("pynvml", "grpc", "kubernetes")


@cache
def vendors() -> dict[str, Vendor]:
    return {name: load_vendor(name) for name in vendor_names()}


@cache
def families() -> dict[str, tuple[Vendor, Family]]:
    return {
        family.resources.device_type: (vendor, family)
        for vendor in vendors().values()
        for family in contract.families(vendor)
    }


@pytest.mark.parametrize("name", vendor_names())
def test_no_two_families_of_a_vendor_have_one_cdi_kind(name: str) -> None:
    kinds = [family.node.delivery.kind for family in contract.families(vendors()[name])]
    assert len(set(kinds)) == len(kinds)


@cache
def devices(device_type: str) -> tuple[DeviceState, ...]:
    """Eight idle devices."""
    vendor, family = families()[device_type]
    found = next(
        (infos for model in MODELS if (infos := described(vendor, family, contract.machine(vendor.name, [model])))),
        (),
    )
    return tuple(idle_state(info) for info in found) or recorded(device_type)


def recorded(device_type: str) -> tuple[DeviceState, ...]:
    """Devices of the first recorded question that has several, for a family of which a profile does not say enough."""
    for case in read(ROOT / "tests/vectors/enflame_vgcu_fit.jsonl.xz"):
        states = [values.state(item) for item in case.question["devices"]]
        if case.question["vendor"] == device_type and len(states) == 8:
            return tuple(idle_state(state.info) for state in states if state.info.health)
    raise AssertionError(device_type)


def test_every_vendor_is_under_contract() -> None:
    assert set(vendors()) == {file.stem for file in (ROOT / "vendors").glob("[a-z]*") if file.suffix != ".typed"}
    assert {vendor.name for vendor, _ in families().values()} == set(vendors())


@pytest.mark.parametrize("name", vendor_names())
def test_resources_and_annotations_are_nobody_elses(name: str) -> None:
    contract.check_names(vendors()[name], [other for other in vendors().values() if other.name != name])


@pytest.mark.parametrize("name", vendor_names())
def test_the_tests_of_a_vendor_stand_where_it_does(name: str) -> None:
    mirror = ROOT / "tests" / "vendors"

    assert all(list((mirror / name).glob(f"test_{module}*.py")) for module in ("driver", "rules"))
    assert list(mirror.glob(f"test_{name}*.py")) == []


def test_importing_every_vendor_loads_no_sdk_and_no_comparison_and_starts_nothing() -> None:
    code = (
        "import sys, threading; from hami_plugin.sdk import load_vendor, vendor_names; "
        "[load_vendor(name) for name in vendor_names()]; "
        f"print([name for name in {SDKS!r} if name in sys.modules], threading.active_count(), "
        "[name for name in sys.modules if name.startswith('tests')])"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert result.stdout.strip() == "[] 1 []"


@pytest.mark.parametrize("device_type", [*families()])
@pytest.mark.parametrize("law", contract.LAWS, ids=lambda law: law.__name__)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_policy_keeps_the_laws(law: contract.Law, device_type: str, data: st.DataObject) -> None:
    _, family = families()[device_type]
    situation = data.draw(contract.situations(family, devices(device_type)))
    if situation is not None:
        law(situation)


@pytest.mark.parametrize("device_type", [*families()])
def test_every_family_grants_something_on_idle_devices(device_type: str) -> None:
    """Else the laws would say nothing about it."""
    _, family = families()[device_type]
    names = family.resources
    tried = (
        {names.count: 1},
        {names.count: 1, names.memory: 2},
        {names.count: 2},
        {names.cores: 2},
        {names.count: 1, names.memory_percent: 25},
    )
    asked = [found for limits in tried if (found := contract.requested(family, limits))]

    assert any(contract.served(family, devices(device_type), *one) != devices(device_type) for one in asked), (
        device_type
    )
